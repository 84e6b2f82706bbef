"""Data sets in memory: pairs of a picture and its label, as torch's give them, without torch."""

import numpy as np
import PIL.Image
import pytest
import retrievalguard as rg
from conftest import MODELS, drawn

SMALL = {"samples": 300, "pilot": 60, "progress": False}
CLASSES = [f"label {number}" for number in range(4)]


class Drawn:
    """A map-style data set: a length and entries, and no IndexError at its end."""

    classes = CLASSES

    def __init__(self, first, transform=None):
        self.first, self.transform, self.asked = first, transform or (lambda pixels: pixels), []

    def __len__(self):
        return 12

    def __getitem__(self, place):
        self.asked.append(place)
        label, number = divmod(place % 12, 3)
        return self.transform(drawn(label, self.first + number)), label


class Loader:
    """Batches of it, as a loader collates them."""

    batch_size = 5

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return 3

    def __iter__(self):
        for start in range(0, 12, 5):
            pairs = [self.dataset[place] for place in range(start, min(start + 5, 12))]
            yield np.stack([picture for picture, _ in pairs]), np.array([label for _, label in pairs])


@pytest.fixture(scope="module")
def made(encoder):
    return rg.index(Drawn(0), encoder, 0.1, progress=False)


def rows(certificates):
    return [(row.verdict, row.radius, row.label, row.retrieved_label) for row in certificates]


def test_a_gallery_of_a_data_set_is_that_of_its_files(made, encoder, gallery):
    stored = rg.Gallery.read(gallery)
    assert (made.sigma, made.samples, made.labels.tolist()) == (0.1, 32, stored.labels.tolist())
    # The noise depends on names, and these are others: alike, not equal.
    assert 0 < np.abs(made.vectors - stored.vectors).max() < 0.2
    assert all(name.startswith(f"{row}-") for row, name in enumerate(made.identities))
    clean = rg.index(Drawn(0), encoder, 0.1, samples=0, progress=False)
    assert clean.samples == 0 and clean.sigma is None
    assert np.abs(clean.vectors - np.stack([encoder.embed(drawn(row // 3, row % 3)) for row in range(12)])).max() == 0


def test_what_a_gallery_was_made_with_is_kept_and_checked(made, encoder, tmp_path):
    made.write(tmp_path / "g")
    again = rg.index(Drawn(0), encoder, 0.1, tmp_path / "h", progress=False)
    for place in (tmp_path / "g", tmp_path / "h"):
        stored = rg.Gallery.read(place)
        assert (stored.vectors == made.vectors).all() and (stored.sigma, stored.samples) == (0.1, 32)
        found = rg.certify_pictures(Drawn(10), encoder, place, limit=3, **SMALL)
        assert found == rg.certify_pictures(Drawn(10), encoder, made, limit=3, **SMALL)
        assert found.plain_recall is not None
    assert (again.vectors == made.vectors).all()
    other = rg.Encoder(MODELS / "fixed_batch.onnx", MODELS / "encoder.toml", engine="rten")
    for gallery in (made, tmp_path / "g"):
        with pytest.raises(rg.InputError, match="was embedded by model"):
            rg.certify_pictures(Drawn(10), other, gallery, **SMALL)
        with pytest.raises(rg.InputError, match="was smoothed with sigma 0.1, the queries with 0.2"):
            rg.certify_pictures(Drawn(10), encoder, gallery, 0.2, **SMALL)


def test_certificates_are_those_of_single_pictures(made, encoder):
    found = rg.certify_pictures(Drawn(10), encoder, made, certificate=["vote", "pairwise", "half-space"], **SMALL)
    assert len(found) == 12 and found.certificates == ("half-space", "vote", "pairwise") and found.sigma == 0.1
    assert found.recall() > 0.8 and (found.alpha, found.run["command"]) == (0.01, "certify-arrays")
    for place in (0, 7):
        row = found.row(place)
        for name in found.certificates:
            alone = rg.certify_picture(
                encoder, made, drawn(place // 3, 10 + place % 3), CLASSES[place // 3], certificate=name, samples=300, pilot=60,
                seed=0, identity=found.identities[place],
            )
            assert (row[name].verdict, row[name].radius, row[name].retrieved) == (alone.verdict, alone.radius, alone.retrieved)


def test_every_kind_of_data_set_gives_the_same_table(made, encoder):
    wanted = rg.certify_pictures(Drawn(10), encoder, made, **SMALL)
    images = Drawn(10, PIL.Image.fromarray)
    prepared = Drawn(10, encoder.prepare)
    kinds = [
        images,
        Loader(Drawn(10)),
        [Drawn(10)[place] for place in range(12)],
        (Drawn(10)[place] for place in range(12)),
        [{"image": images[place][0], "label": place // 3} for place in range(12)],
        [([pixels], [CLASSES[label]]) for pixels, label in (Drawn(10)[place] for place in range(12))],
    ]
    for kind in kinds:
        found = rg.certify_pictures(kind, encoder, made, classes=CLASSES, **SMALL)
        assert rows(found) == rows(wanted) and found.identities.tolist() == wanted.identities.tolist()
    # What stands for prepared pixels is another name, and other noise.
    found = rg.certify_pictures(Loader(prepared), encoder, made, **SMALL)
    assert [row.label for row in found] == [row.label for row in wanted] and found.recall() > 0.8


def test_only_what_is_wanted_is_asked_for(made, encoder):
    queries = Drawn(10)
    found = rg.certify_pictures(queries, encoder, made, every=2, limit=3, **SMALL)
    assert [name.split("-")[0] for name in found.identities] == ["0", "2", "4"] and max(queries.asked) <= 5
    told = []
    rg.certify_pictures(Loader(Drawn(10)), encoder, made, **{**SMALL, "progress": lambda *numbers: told.append(numbers)})
    assert told[-1] == (12, 12) and told[0] == (1, 12)


def test_a_query_of_the_data_set_does_not_find_itself(made, encoder):
    own = rg.certify_pictures(Drawn(0), encoder, made, **SMALL)
    assert all(row.retrieved.split("-")[0] != row.identity.split("-")[0] for row in own)
    free = rg.certify_pictures(Drawn(0), encoder, made, leave_one_out="never", **SMALL)
    assert free.recall() == 1.0 and sum(row.retrieved == row.identity for row in free) > 6
    single = rg.certify_picture(encoder, made, drawn(0, 0), "label 0", samples=300)
    assert not single.retrieved.startswith("0-")


def test_alpha_is_shared_over_the_data_set(made, encoder):
    shared = rg.certify_pictures(Drawn(10), encoder, made, simultaneous=True, limit=4, **SMALL)
    assert shared.alpha == 0.01 / 4 and len(shared) == 4
    alone = rg.certify_picture(
        encoder, made, drawn(0, 10), "label 0", certificate="half-space", alpha=0.01 / 4, samples=300, pilot=60, seed=0,
        identity=shared.identities[0],
    )
    assert shared[0].radius == alone.radius
    with pytest.raises(rg.InputError, match="wanted a data set that has a length"):
        rg.certify_pictures(iter([Drawn(10)[0]]), encoder, made, simultaneous=True, **SMALL)


def test_the_table_is_written_and_read(made, encoder, tmp_path):
    found = rg.certify_pictures(Drawn(10), encoder, made, None, tmp_path / "run", limit=2, **SMALL)
    assert rg.read_certificates(tmp_path / "run") == found and (tmp_path / "run" / "certificates.parquet").is_file()


def encode(batch):
    flat = batch.reshape(len(batch), -1) - 0.5
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


def test_functions_are_indexed_and_certified(tmp_path):
    gallery = rg.index(Drawn(0), encode, 0.25, samples=64, progress=False)
    assert (gallery.sigma, gallery.samples, gallery.dimension) == (0.25, 64, 3 * 24 * 20)
    name = gallery.identities[4]
    picture = np.moveaxis(drawn(1, 1), 2, 0).astype("f4") / np.float32(255)
    samples = rg.smooth(encode, picture, sigma=0.25, samples=64, seed=0, identity=name, stage="gallery", progress=False)
    assert (gallery.vectors[4] == samples.astype("f8").mean(axis=0).astype("f4")).all()
    found = rg.certify_pictures(Drawn(10), encode, gallery, certificate="pairwise", **SMALL)
    assert found.recall() == 1.0 and found.certified_recall(0.1) == 1.0
    with pytest.raises(rg.InputError, match="encoder is function, wanted an Encoder for pictures in files"):
        rg.index(tmp_path, encode, 0.25, tmp_path / "g", progress=False)


def test_without_noise_a_data_set_is_certified_by_one_pass_each(folders, tmp_path):
    encoder = rg.Encoder(MODELS / "block-means" / "encoder.onnx", engine="double")
    gallery = rg.index(Drawn(0), encoder, None, progress=False)
    files = rg.index(folders[0], encoder, None, tmp_path / "g", progress=False)
    assert (gallery.sigma, gallery.samples) == (None, 0) and np.abs(gallery.vectors - files.vectors).max() < 1e-5
    found = rg.certify_pictures(Drawn(10), encoder, gallery, progress=False)
    wanted = rg.certify_pictures(folders[1], encoder, tmp_path / "g", None, tmp_path / "run", progress=False)
    assert found.certificates == rg.LIPSCHITZ and (found.sigma, found.alpha) == (None, None)
    assert np.allclose(found.radii(), wanted.radii(), atol=1e-4) and found.plain_recall == wanted.plain_recall
    with pytest.raises(rg.InputError, match="samples and seed say nothing without noise"):
        rg.index(Drawn(0), encoder, None, samples=3, progress=False)
    with pytest.raises(rg.InputError, match="samples says nothing without noise"):
        rg.certify_pictures(Drawn(0), encoder, gallery, samples=3, progress=False)


def test_labels_that_the_gallery_does_not_have_are_told(made, encoder):
    numbered = [(picture, label) for picture, label in (Drawn(10)[place] for place in range(2))]
    with pytest.warns(UserWarning, match="the data set says 0, the gallery label 0, label 1.*classes="):
        found = rg.certify_pictures(numbered, encoder, made, **SMALL)
    assert found.recall() == 0.0 and found.labels.tolist() == ["0", "0"]


def test_what_is_no_data_set_is_refused_by_name(made, encoder, tmp_path):
    picture = drawn(0, 0)
    for pictures, message in [
        ([], "has no pictures"),
        ([picture], "an entry of the data set is ndarray, wanted a picture and its label"),
        ([(picture, 0, 1)], "an entry of the data set is 3 parts"),
        ([{"pixel": 1}], "has the keys pixel, wanted image and label"),
        ([(picture[None], [0, 1])], "a batch has 1 pictures and 2 labels"),
        ([(picture, 1.5)], "label is 1.5"),
        ([(picture, 9)], "has label 9, wanted one below 4"),
        ([(picture.astype("f4"), 1)], "entry 0 of the data set has pixels from"),
        (7, "pictures are int, wanted a path or pairs"),
    ]:
        for call in (
            lambda: rg.certify_pictures(pictures, encoder, made, classes=CLASSES, **SMALL),
            lambda: rg.index(pictures, encoder, 0.1, classes=CLASSES, progress=False),
        ):
            with pytest.raises(rg.InputError, match=message):
                call()
    for change, message in [
        ({"views": "flips"}, "views is for pictures in files"),
        ({"shards": 2}, "shards is for pictures in files"),
        ({"split": "test"}, "split is for pictures in files"),
        ({"skip_broken": True}, "skip_broken is for pictures in files"),
        ({"format": "csv"}, "format is for pictures in files"),
    ]:
        with pytest.raises(rg.InputError, match=message):
            rg.index(Drawn(0), encoder, 0.1, progress=False, **change)
    for change, message in [
        ({"classes": CLASSES}, "classes is for pairs in memory"),
        ({"out": None}, "out is None, wanted a directory"),
        ({"gallery": made}, "the gallery is in memory, wanted its directory"),
    ]:
        options = {"pictures": tmp_path, "encoder": encoder, "gallery": tmp_path, "out": tmp_path / "run", **change}
        with pytest.raises(rg.InputError, match=message):
            rg.certify_pictures(**options)


def test_data_sets_and_loaders_of_torch_are_taken(made, encoder):
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, Dataset, Subset

    class Tensors(Dataset):
        classes = CLASSES

        def __len__(self):
            return 12

        def __getitem__(self, place):
            return torch.from_numpy(np.moveaxis(drawn(place // 3, 10 + place % 3), 2, 0).copy()), place // 3

    wanted = rows(rg.certify_pictures(Drawn(10), encoder, made, **SMALL))
    for source in (Tensors(), DataLoader(Tensors(), batch_size=5), Subset(Tensors(), range(12)), DataLoader(Tensors(), batch_size=None)):
        assert rows(rg.certify_pictures(source, encoder, made, **SMALL)) == wanted
    assert len(rg.index(DataLoader(Tensors(), batch_size=4), encoder, 0.1, progress=False)) == 12
