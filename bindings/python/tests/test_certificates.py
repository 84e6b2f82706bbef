import pickle

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as pyplot
import numpy as np
import pandas
import pytest
import retrievalguard as rg

GALLERY = rg.Gallery([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], ["a", "b", "c"])


def draw(stage, count, centre, identity):
    return rg.Noise(7, identity, stage).add(np.array(centre), range(count), 0.1)


@pytest.fixture(scope="module")
def certificates():
    centres = [[0.5, 0.0], [0.3, 0.0], [0.02, 0.01], [-0.5, 0.0]]
    names = [f"query {at}" for at in range(4)]
    return rg.certify(
        [draw("certify", 500, centre, name) for centre, name in zip(centres, names)],
        GALLERY,
        ["a", "a", "a", "a"],
        pilot=[draw("pilot", 100, centre, name) for centre, name in zip(centres, names)],
        sigma=0.25,
        certificate=["vote", "half-space", "paper"],
        identities=names,
    )


def test_shares_are_of_all_queries(certificates):
    assert certificates.certificates == ("paper", "half-space", "vote")
    assert certificates.verdicts().tolist()[3] == "misretrieved"
    radii = certificates.radii()
    assert radii[0] > radii[1] > 0 and radii[3] == 0
    assert certificates.recall() == np.mean(certificates.verdicts() != "misretrieved")
    for radius in (0.0, radii[1], 0.5 * (radii[0] + radii[1]), radii[0]):
        # Strictly above, as the paper's indicator says.
        assert certificates.certified_recall(radius) == np.mean(radii > radius)
    assert certificates.certified_recall([[0.0, 9.0]]).shape == (1, 2)
    summary = certificates.summary()
    assert summary["queries"] == 4 and summary["mean_radius"] == radii.mean()
    assert summary["certified"] + summary["rejected"] + summary["misretrieved"] == 1
    assert certificates.summary("paper")["certified"] == 0
    with pytest.raises(rg.InputError, match="no certificate paper-frozen here, wanted one of paper, half-space, vote"):
        certificates.recall("paper-frozen")
    with pytest.raises(rg.InputError, match="negative or NaN"):
        certificates.certified_recall([-1.0])


def test_is_a_sequence_of_certificates(certificates):
    assert len(certificates) == 4 and certificates[-1] == certificates[3]
    assert [row.identity for row in certificates[1:3]] == ["query 1", "query 2"]
    assert all(row.certificate == "half-space" for row in certificates)
    assert set(certificates.row(0)) == {"paper", "half-space", "vote"}
    assert len(certificates[0].explain()) > 5
    with pytest.raises(IndexError):
        certificates[4]


def test_writes_and_reads_back(certificates, tmp_path):
    for name in ("c.parquet", "c.jsonl"):
        certificates.write(tmp_path / name)
        again = rg.read_certificates(tmp_path / name)
        assert (again.radii() == certificates.radii()).all()
        assert again.certificates == certificates.certificates
        assert again.to_arrow() == certificates.to_arrow()
    assert rg.read_certificates(tmp_path / "c.parquet") == certificates
    pandas.testing.assert_frame_equal(
        pandas.read_parquet(tmp_path / "c.parquet"), certificates.to_pandas(), check_dtype=False
    )


def test_a_changed_table_is_refused(certificates, tmp_path):
    certificates.write(tmp_path / "c.jsonl")
    assert certificates.run["command"] == "certify-arrays" and certificates.alpha == 0.01
    assert rg.read_certificates(tmp_path / "c.jsonl").run == certificates.run
    text = (tmp_path / "c.jsonl").read_text()
    (tmp_path / "c.jsonl").write_text(text.replace("query 1", "query 9"))
    for unverified in (False, True):
        with pytest.raises(rg.InputError, match="was changed"):
            rg.read_certificates(tmp_path / "c.jsonl", unverified=unverified)
    (tmp_path / "alone.jsonl").write_text(text)
    with pytest.raises(rg.InputError, match="has no digest"):
        rg.read_certificates(tmp_path / "alone.jsonl")
    alone = rg.read_certificates(tmp_path / "alone.jsonl", unverified=True)
    assert (alone.radii() == certificates.radii()).all() and alone.alpha is None
    # pandas keeps the columns and not the digest.
    pandas.read_json(tmp_path / "alone.jsonl", lines=True)
    certificates.to_pandas().to_parquet(tmp_path / "again.parquet")
    with pytest.raises(rg.InputError, match="has no digest"):
        rg.read_certificates(tmp_path / "again.parquet")
    assert len(rg.read_certificates(tmp_path / "again.parquet", unverified=True)) == 4


def test_an_unbounded_radius_is_infinite_and_survives_tables(certificates, tmp_path):
    columns = {**certificates._columns, "certificates": [dict(c) for c in certificates._columns["certificates"]]}
    columns["certificates"][1] = {**columns["certificates"][1], "radii": [float("inf"), 0.5, None, None]}
    columns["certificates"][1]["verdicts"] = ["certified", "certified", "abstained", "misretrieved"]
    unbounded = rg.Certificates(columns)
    assert "unbounded" in repr(unbounded[0]) and unbounded.certified_recall(1e300) == 0.25
    unbounded.write(tmp_path / "c.parquet")
    assert rg.read_certificates(tmp_path / "c.parquet") == unbounded
    frame = unbounded.to_pandas()
    assert frame.half_space_unbounded.tolist() == [True, False, False, False]
    assert np.isnan(frame.half_space_radius[0]) and unbounded.to_polars()["half_space_radius"][0] is None
    unbounded.plot(pyplot.figure().gca(), interval=True)


def test_pickles(certificates):
    again = pickle.loads(pickle.dumps(certificates))
    assert again == certificates and str(again[0].explain()) == str(certificates[0].explain())


def test_curves_fall_from_the_certified_share_to_zero(certificates):
    figure, axes = pyplot.subplots()
    assert certificates.plot(axes, interval=True) is axes
    lines = axes.get_lines()
    assert [line.get_label() for line in lines] == ["paper", "half-space", "vote"]
    across, recall = lines[1].get_data()
    assert recall[0] == certificates.certified_recall(0) and recall[-1] == 0
    assert (np.diff(recall) <= 0).all() and (np.diff(across) > 0).all()
    assert axes.get_ylabel() == "Recall@1(r)"
    pyplot.close(figure)
    axes = certificates.plot()
    assert axes is pyplot.gca()
    pyplot.close("all")


def test_broken_tables_are_refused_by_name(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not a table")
    with pytest.raises(rg.RetrievalGuardError, match="broken.parquet"):
        rg.read_certificates(tmp_path / "broken.parquet")
    with pytest.raises(FileNotFoundError, match="nowhere.jsonl"):
        rg.read_certificates(tmp_path / "nowhere.jsonl")
    with pytest.raises(FileNotFoundError, match="certificates.parquet"):
        rg.read_certificates(tmp_path)


def test_planner_equals_rust(reference):
    from conftest import bits64

    for case in reference["planner"]:
        options = {"sigma": 0.25, "certificate": case["certificate"], "dimension": 64}
        assert bits64(rg.largest_radius(5000, **options)) == case["radius_bits"]
        assert rg.samples_needed(0.1, **options) == case["samples"]
    for call, message in [
        (lambda: rg.largest_radius(0, sigma=0.25), "sample count is 0"),
        (lambda: rg.largest_radius(2**32, sigma=0.25), "sample count is 4294967296"),
        (lambda: rg.largest_radius(10, sigma=0.25, dimension=0), "dimension is 0"),
        (lambda: rg.samples_needed(float("nan"), sigma=0.25), "target radius is NaN"),
        (lambda: rg.samples_needed(0.1, sigma=0.25, certificate="x"), "`x` is not a certificate"),
    ]:
        with pytest.raises(rg.InputError, match=message):
            call()
