import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
import retrievalguard as rg

SMALL = {"samples": 300, "pilot": 60, "progress": False}


class Enough(Exception):
    pass


def stop_after(count):
    def progress(done, total):
        if done >= count:
            raise KeyboardInterrupt

    return progress


@pytest.fixture(scope="module")
def run(encoder, folders, gallery, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return out, rg.certify_pictures(folders[1], encoder, gallery, 0.1, out, certificate="all", **SMALL)


def test_a_run_gives_what_its_parts_give(run, encoder, folders, gallery):
    _, certificates = run
    stored = rg.Gallery.read(gallery)
    assert len(certificates) == 12 and certificates.certificates == rg.ALL
    assert {*certificates.verdicts()} & {"certified"}
    for place in (0, 5):
        identity = certificates.identities[place]
        path = folders[1] / identity
        pilot, samples = (
            encoder.samples(path, 0.1, count, stage=stage, identity=identity)
            for stage, count in (("pilot", 60), ("certify", 300))
        )
        alone = rg.certify(
            [samples], stored, [certificates.labels[place]], pilot=[pilot], sigma=0.1, certificate="all"
        ).row(0)
        for name, certificate in certificates.row(place).items():
            assert (certificate.verdict, certificate.radius) == (alone[name].verdict, alone[name].radius)
            assert certificate.retrieved == alone[name].retrieved
            assert certificate.nearest_wrong == alone[name].nearest_wrong


def test_the_directory_reads_back_and_other_programs_read_the_table(run):
    out, certificates = run
    for place in (out, out / "certificates.parquet", str(out)):
        assert rg.read_certificates(place) == certificates
    assert certificates.run["command"] == "certify" and certificates.alpha == 0.01
    table = out / "certificates.parquet"
    pandas.testing.assert_frame_equal(pandas.read_parquet(table), certificates.to_pandas(), check_dtype=False)
    assert polars.read_parquet(table).equals(certificates.to_polars())
    read = pyarrow.parquet.read_table(table)
    assert read.to_pydict() == certificates.to_arrow().to_pydict()
    assert read.schema.types == certificates.to_arrow().schema.types
    for name in ("places.json", "run.json"):
        assert (out / name).is_file()
    with pytest.raises(rg.InputError, match="retrievalguard explain"):
        certificates[0].explain()


def test_a_stopped_index_goes_on_and_ends_with_the_same_bytes(encoder, folders, gallery, tmp_path):
    place = tmp_path / "g"
    one = rg.Encoder(encoder._opening["model"], engine="rten", threads=1)
    with pytest.raises(KeyboardInterrupt):
        rg.index(folders[0], one, 0.1, place, samples=2000, progress=stop_after(2))
    with pytest.raises(rg.RetrievalGuardError, match="no manifest|no gallery"):
        rg.Gallery.read(place)
    told = []
    rg.index(folders[0], encoder, 0.1, place, samples=2000, progress=lambda done, total: told.append(done))
    assert told[0] >= 2 and told[-1] == 12
    rg.index(folders[0], encoder, 0.1, tmp_path / "whole", samples=2000, progress=False)
    assert (place / "vectors.npy").read_bytes() == (tmp_path / "whole" / "vectors.npy").read_bytes()


def test_a_stopped_run_goes_on_and_ends_with_the_same_bytes(encoder, folders, gallery, tmp_path):
    options = {**SMALL, "samples": 3000}
    wanted = rg.certify_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "whole", **options)
    one = rg.Encoder(encoder._opening["model"], engine="rten", threads=1)
    for count in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            rg.certify_pictures(
                folders[1], one, gallery, 0.1, tmp_path / "run", **{**options, "progress": stop_after(count)}
            )
    found = rg.certify_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "run", **options)
    assert found == wanted and found.resumed >= 4
    table = "certificates.parquet"
    assert (tmp_path / "run" / table).read_bytes() == (tmp_path / "whole" / table).read_bytes()


def test_a_run_leaves_receipts_that_hold_for_their_own_files_alone(encoder, folders, gallery, tmp_path):
    rg.certify_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "run", receipts=tmp_path / "receipts", **SMALL)
    first, second = sorted((tmp_path / "receipts").iterdir())[:2]
    identity = json.loads(first.read_text())["fixed"]["picture"]["identity"]
    picture = pathlib.Path(folders[1]) / identity
    found = rg.verify_receipt(first, encoder, gallery, picture)
    assert found and found.reason is None and found.undecided is None and len(found.statements) == 1
    other = rg.verify_receipt(second, encoder, gallery, picture)
    assert not other and "picture.file is" in other.reason
    asked = rg.verify_receipt(first, encoder, gallery, picture, challenge="anything")
    assert not asked and "the challenge is" in asked.reason
    with pytest.raises(rg.InputError, match="no receipt"):
        (tmp_path / "broken").write_text("{}")
        rg.verify_receipt(tmp_path / "broken", encoder, gallery, picture)


def test_an_exception_of_the_progress_function_stops_and_comes_out(encoder, folders, gallery, tmp_path):
    def progress(done, total):
        raise Enough

    with pytest.raises(Enough):
        rg.certify_pictures(folders[1], encoder, gallery, 0.1, tmp_path, **{**SMALL, "progress": progress})


def test_ctrl_c_is_heard(encoder, folders, gallery, tmp_path):
    code = textwrap.dedent("""
        import sys, retrievalguard as rg
        encoder = rg.Encoder(sys.argv[1], engine="rten", threads=1)
        def tell(done, total):
            print(done, flush=True)
        rg.certify_pictures(*[sys.argv[2], encoder, sys.argv[3], 0.1, sys.argv[4]], samples=3000, progress=tell)
    """)
    words = [sys.executable, "-c", code, encoder._opening["model"], folders[1], gallery, tmp_path / "run"]
    child = subprocess.Popen([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert int(child.stdout.readline()) >= 1
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert child.returncode not in (0, None) and told.rstrip().endswith("KeyboardInterrupt"), told
    found = rg.certify_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "run", samples=3000, progress=False)
    assert 1 <= found.resumed and len(found) == 12


def test_the_noise_level_may_be_left_to_the_gallery(encoder, folders, gallery, tmp_path):
    given = rg.certify_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "a", **SMALL)
    found = rg.certify_pictures(folders[1], encoder, gallery, None, tmp_path / "b", **SMALL)
    assert found == given and found.sigma == 0.1


def test_a_gallery_in_shards_gives_what_one_in_memory_gives(encoder, folders, gallery, tmp_path):
    shards = tmp_path / "shards"
    sharded, whole = rg.index(folders[0], encoder, 0.1, shards, shards=3, progress=False), rg.Gallery.read(gallery)
    assert (shards / "shard-00002" / "vectors.npy").exists() and repr(sharded) == repr(whole)
    assert sharded.labels.tolist() == whole.labels.tolist() and sharded.rows_of(whole.identities[4]) == [4]
    for retriever in ("half-space", "vote", "pairwise"):
        found, wanted = (
            rg.certify_pictures(folders[1], encoder, place, None, tmp_path / f"{name}-{retriever}", certificate=retriever, **SMALL)
            for name, place in (("shards", shards), ("whole", gallery))
        )
        assert found == wanted, retriever
    path = folders[1] / wanted.identities[0]
    pilot, samples = (encoder.samples(path, 0.1, count, stage=stage) for stage, count in (("pilot", 30), ("certify", 200)))
    found, wanted = (
        rg.certify(samples, place, pilot=pilot, sigma=0.1, certificate="pairwise") for place in (sharded, whole)
    )
    assert found == wanted
    with pytest.raises(rg.InputError, match="is a gallery in shards, which stays on disk"):
        sharded.vectors
    with pytest.raises(rg.InputError, match="half-space-mean needs the gallery in memory"):
        rg.certify_pictures(folders[1], encoder, shards, None, tmp_path / "all", certificate="all", **SMALL)


def test_a_clamped_encoder_is_another_encoder(encoder, folders, gallery, tmp_path):
    clamped = rg.Encoder(encoder._opening["model"], engine="rten", threads=2, non_negative=True)
    own = rg.index(folders[0], clamped, 0.1, tmp_path / "g", progress=False)
    assert own.vectors.min() >= 0 and rg.Gallery.read(gallery).vectors.min() < 0
    found = rg.certify_pictures(folders[1], clamped, tmp_path / "g", None, tmp_path / "run", **SMALL)
    path = folders[1] / found.identities[0]
    draw = {"identity": found.identities[0]}
    pilot = clamped.samples(path, 0.1, 60, stage="pilot", **draw)
    samples = clamped.samples(path, 0.1, 300, **draw)
    assert samples.min() >= 0
    alone = rg.certify(samples, own, found.labels[0], pilot=pilot, sigma=0.1, non_negative=True)
    assert (alone.verdict, alone.radius) == (found.row(0)["half-space"].verdict, found.row(0)["half-space"].radius)
    for wrong in (
        lambda: rg.certify(samples, own, found.labels[0], pilot=pilot, sigma=0.1),
        lambda: rg.certify_pictures(folders[1], encoder, tmp_path / "g", None, tmp_path / "no", **SMALL),
    ):
        with pytest.raises(rg.InputError, match="has clamped embeddings, the queries unclamped ones"):
            wrong()


def test_bets_may_be_planned_again_where_there_are_bets(encoder, folders, gallery, tmp_path):
    few = {**SMALL, "samples": 600, "pilot": 20}
    fixed, again = (
        rg.certify_pictures(folders[1], encoder, gallery, None, tmp_path / str(replan), replan_bets=replan, **few)
        for replan in (False, True)
    )
    assert [row.radius for row in fixed] != [row.radius for row in again]
    with pytest.raises(rg.InputError, match="replan_bets is for the bets of half-space"):
        rg.certify_pictures(
            folders[1], encoder, gallery, None, tmp_path / "no", certificate="vote", replan_bets=True, **SMALL
        )


def test_a_query_does_not_find_itself(encoder, folders, gallery, tmp_path):
    own = rg.certify_pictures(folders[0], encoder, gallery, 0.1, tmp_path / "a", **SMALL)
    assert all(row.retrieved != row.identity for row in own)
    free = rg.certify_pictures(folders[0], encoder, gallery, 0.1, tmp_path / "b", leave_one_out="never", **SMALL)
    assert free.recall() == 1.0 and any(row.retrieved == row.identity for row in free)


def test_deeper_recalls_target_radii_and_shared_alpha(encoder, folders, gallery, tmp_path):
    deep = rg.certify_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "a", top_k=3, **SMALL)
    assert all([at.k for at in row.at_k] == [2, 3] for row in deep)
    target = rg.certify_pictures(folders[1], encoder, gallery, 0.1, tmp_path / "b", target_radius=0.01, **SMALL)
    assert {row.radius for row in target} <= {0.01, None}
    shared = rg.certify_pictures(
        folders[1], encoder, gallery, 0.1, tmp_path / "c", simultaneous=True, limit=4, every=2, **SMALL
    )
    assert len(shared) == 4 and shared.alpha == 0.01 / 4


def test_broken_pictures_stop_or_are_skipped_with_a_warning(encoder, folders, tmp_path):
    for label in ("a", "b"):
        (tmp_path / "p" / label).mkdir(parents=True)
        (tmp_path / "p" / label / "0.png").write_bytes((folders[0] / "label 0" / "0.png").read_bytes())
    (tmp_path / "p" / "b" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.raises(rg.InputError, match="1.png"):
        rg.index(tmp_path / "p", encoder, 0.1, tmp_path / "g", progress=False)
    with pytest.warns(UserWarning, match="skipped: b/1.png: "):
        gallery = rg.index(tmp_path / "p", encoder, 0.1, tmp_path / "g", skip_broken=True, progress=False)
    assert len(gallery) == 2


def test_what_does_not_fit_is_refused_by_name(encoder, folders, gallery, tmp_path):
    def certify(**change):
        options = {"pictures": folders[1], "encoder": encoder, "gallery": gallery, "sigma": 0.1, "out": tmp_path}
        rg.certify_pictures(**{**options, **SMALL, **change})

    for change, message in [
        ({"sigma": 0.2}, "was smoothed with sigma 0.1"),
        ({"sigma": -1}, "sigma is -1"),
        ({"pictures": tmp_path / "nowhere"}, "nowhere"),
        ({"gallery": tmp_path / "nowhere"}, "nowhere"),
        ({"encoder": "encoder.onnx"}, "encoder is str, wanted an Encoder"),
        ({"certificate": "magic"}, "`magic` is not a certificate"),
        ({"certificate": "vote", "top_k": 2}, "top_k applies to half-space only"),
        ({"samples": 0}, "sample count is 0"),
        ({"format": "tarot"}, "tarot"),
        ({"split": "monday"}, "split is `monday`, wanted one of train"),
        ({"leave_one_out": "perhaps"}, "leave_one_out is `perhaps`"),
        ({"limit": 0}, "limit is 0"),
        ({"every": 0}, "every is 0"),
        ({"seed": "x"}, "seed is 'x'"),
    ]:
        with pytest.raises(rg.RetrievalGuardError, match=message):
            certify(**change)
    with pytest.raises(FileNotFoundError):
        certify(pictures=tmp_path / "nowhere")
    certify()
    with pytest.raises(rg.InputError, match="journal"):
        certify(seed=5)


def test_a_bar_is_shown(encoder, folders, tmp_path, capsys):
    rg.index(folders[0], encoder, 0.1, tmp_path / "g")
    assert "indexing" in capsys.readouterr().err


def test_the_program_takes_up_the_directory(run):
    program = os.environ.get("RETRIEVALGUARD_PROGRAM")
    if not program:
        pytest.skip("RETRIEVALGUARD_PROGRAM names no program")
    out, certificates = run
    told = subprocess.run([program, "evaluate", out / "certificates.parquet"], capture_output=True, text=True, check=True)
    assert "half-space" in told.stdout
    told = subprocess.run(
        [program, "explain", certificates.identities[0], "--run", out, "--engine", "rten"],
        capture_output=True, text=True, check=True,
    )
    assert certificates.identities[0] in told.stdout
    assert np.isfinite(certificates.radii()).all()


def test_a_gallery_with_views_counts_items_and_says_which_view_was_nearest(encoder, folders, gallery, tmp_path):
    made = rg.index(folders[0], encoder, 0.1, tmp_path / "g", views="flips", progress=False)
    assert (made.items, len(made), made.views) == (12, 24, ("as is", "mirrored"))
    assert (made.vectors[::2] == rg.Gallery.read(gallery).vectors).all()
    certificates = rg.certify_pictures(folders[1], encoder, tmp_path / "g", None, tmp_path / "run", **SMALL)
    assert certificates.run["gallery"]["items"] == 12 and certificates.run["gallery"]["views"] == 2
    for certificate in certificates:
        assert {certificate.retrieved_view, certificate.nearest_wrong_view} <= {"as is", "mirrored"}
    assert rg.read_certificates(tmp_path / "run") == certificates
    stored = pyarrow.parquet.read_table(tmp_path / "run" / "certificates.parquet")
    assert set(certificates.to_pandas().columns) == set(stored.column_names)
    certificates.write(tmp_path / "copy.parquet")
    assert rg.read_certificates(tmp_path / "copy.parquet") == certificates
    # The gallery itself as queries: none finds a view of itself.
    own = rg.certify_pictures(folders[0], encoder, tmp_path / "g", None, tmp_path / "own", **SMALL)
    assert all(certificate.retrieved != certificate.identity for certificate in own)
    made.write(tmp_path / "again")
    assert rg.Gallery.read(tmp_path / "again").views == made.views
    with pytest.raises(rg.InputError, match="no view set `flip`"):
        rg.index(folders[0], encoder, 0.1, tmp_path / "h", views="flip", progress=False)
