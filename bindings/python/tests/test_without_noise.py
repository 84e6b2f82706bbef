"""Runs and certificates without noise, from Python."""

import numpy as np
import pytest
import retrievalguard as rg
from conftest import MODELS


def brute_force(query, vectors, labels, label):
    """The least over wrong items of the largest distance from a bisector."""
    query, vectors = np.asarray(query, float), np.asarray(vectors, float)
    squares = ((vectors - query) ** 2).sum(axis=1)
    right = [row for row, found in enumerate(labels) if found == label]
    wrong = [row for row, found in enumerate(labels) if found != label]
    return min(
        max((squares[b] - squares[a]) / (2 * np.linalg.norm(vectors[a] - vectors[b])) for a in right) for b in wrong
    )


def test_radii_of_embeddings_are_those_of_a_double_loop():
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(40, 6)).astype("f4")
    labels = [f"label {row % 5}" for row in range(40)]
    gallery = rg.Gallery(vectors, labels)
    queries = vectors[:10] + 0.2 * rng.normal(size=(10, 6))
    found = rg.certify_embeddings(queries, gallery, labels[:10], lipschitz=2.0)
    certified = 0
    for query, label, certificate in zip(queries, labels, found):
        wanted = brute_force(query, vectors, labels, label) / 2.0
        assert (certificate.sigma, certificate.alpha, certificate.samples) == (None, None, 0)
        if wanted > 0:
            assert certificate.radius == pytest.approx(wanted, rel=1e-9) and certificate.radius <= wanted
            certified += 1
        else:
            assert certificate.verdict == "misretrieved"
    assert certified >= 5
    margin = rg.certify_embeddings(queries[0], gallery, labels[0], lipschitz=2.0, certificate="lipschitz-margin")
    assert margin.radius <= found[0].radius
    shorter = rg.certify_embeddings(queries[0], gallery, labels[0], lipschitz=2.0, forward_error=0.01)
    assert shorter.radius == pytest.approx(found[0].radius - 0.01)
    with pytest.raises(rg.InputError, match="wanted one of lipschitz"):
        rg.certify_embeddings(queries, gallery, lipschitz=1.0, certificate="vote")
    with pytest.raises(rg.InputError):
        rg.certify_embeddings(queries, gallery, lipschitz=-1.0)


@pytest.fixture(scope="module")
def plain(tmp_path_factory, folders):
    encoder = rg.Encoder(MODELS / "block-means" / "encoder.onnx", engine="double")
    place = tmp_path_factory.mktemp("plain") / "gallery"
    gallery = rg.index(folders[0], encoder, None, place, progress=False)
    assert (gallery.sigma, gallery.samples) == (None, 0)
    return encoder, place


def test_a_gallery_without_noise_is_certified_by_one_pass(plain, folders, tmp_path):
    encoder, gallery = plain
    assert encoder.lipschitz == pytest.approx(1.0, abs=1e-6)
    certificates = rg.certify_pictures(folders[1], encoder, gallery, None, tmp_path / "run", progress=False)
    assert certificates.certificates == rg.LIPSCHITZ
    assert (certificates.sigma, certificates.alpha) == (None, None)
    assert certificates.run["method"] == "lipschitz"
    stored = rg.Gallery.read(gallery)
    checked = 0
    for place in range(len(certificates)):
        certificate = certificates.row(place)["lipschitz"]
        embedding = encoder.embed([folders[1] / certificates.identities[place]])[0]
        wanted = brute_force(embedding, stored.vectors, stored.labels, certificates.labels[place])
        if certificate.radius is not None:
            # The forward error is taken off twice, and the embedding was rounded here.
            assert certificate.radius == pytest.approx(wanted, rel=1e-4)
            checked += 1
    assert checked >= 5
    table = certificates.to_pandas()
    assert "sigma" not in table and "lipschitz_radius" in table
    assert rg.read_certificates(tmp_path / "run") == certificates


def test_a_shared_run_without_noise_gives_the_same_table(plain, folders, tmp_path):
    encoder, gallery = plain
    alone = rg.certify_pictures(folders[1], encoder, gallery, None, tmp_path / "alone", progress=False)
    run = rg.share_pictures(folders[1], encoder, gallery, None, tmp_path / "shared", progress=False)
    run.work(progress=False)
    assert run.merge(tmp_path / "merged", progress=False) == alone


def test_whatever_is_about_noise_is_refused(plain, folders, tmp_path):
    encoder, gallery = plain
    for name, value in {"alpha": 0.1, "samples": 10, "seed": 1, "pilot": 5, "target_radius": 0.1}.items():
        with pytest.raises(rg.InputError, match=f"{name} says nothing without noise"):
            rg.certify_pictures(
                folders[1], encoder, gallery, None, tmp_path / "run", progress=False, **{name: value}
            )
    with pytest.raises(rg.InputError, match="samples says nothing without noise"):
        rg.index(folders[0], encoder, None, tmp_path / "gallery", samples=3, progress=False)
    single = rg.Encoder(MODELS / "block-means" / "encoder.onnx", engine="rten")
    with pytest.raises(rg.RetrievalGuardError, match="single precision"):
        rg.index(folders[0], single, None, tmp_path / "gallery", progress=False)
