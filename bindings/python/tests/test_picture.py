"""One picture, answered: whatever it comes as, with noise and without, deployed and evaluated."""

import io
import shutil

import numpy as np
import PIL.Image
import pytest
import retrievalguard as rg
from conftest import MODELS, drawn, png
from test_without_noise import brute_force

FEW = {"samples": 300, "pilot": 60, "seed": 3}


@pytest.fixture(scope="module")
def stored(gallery):
    return rg.Gallery.read(gallery)


@pytest.fixture(scope="module")
def query(folders):
    return folders[1] / "label 1" / "10.png"


def numbers(certificate):
    return (certificate.verdict, certificate.radius, certificate.label, certificate.retrieved, certificate.nearest_wrong)


def test_it_says_what_its_parts_say(encoder, stored, query):
    for name in ("pairwise", "half-space", "vote"):
        found = rg.certify_picture(encoder, stored, query, "label 1", certificate=name, identity="q", **FEW)
        pilot = encoder.samples(query, 0.1, 60, 3, "pilot", identity="q")
        samples = encoder.samples(query, 0.1, 300, 3, identity="q")
        wanted = rg.certify(samples, stored, "label 1", pilot=pilot, sigma=0.1, certificate=name)
        assert numbers(found) == numbers(wanted) and found.radius > 0, name
        assert str(found.explain()).splitlines()[1:] == str(wanted.explain()).splitlines()[1:]
        assert (found.certificate, found.sigma, found.alpha, found.samples, found.identity) == (name, 0.1, 0.01, 300, "q")


def test_a_picture_is_the_same_however_it_comes(encoder, stored, query):
    rgb = drawn(1, 10)
    planes = np.moveaxis(rgb, 2, 0)
    ways = [
        query, str(query), query.read_bytes(), PIL.Image.open(query), PIL.Image.fromarray(rgb), rgb, planes,
        encoder.prepare(query), encoder.prepare(query).astype("f8"),
    ]
    found = [rg.certify_picture(encoder, stored, way, identity="q", **FEW) for way in ways]
    assert all(one == found[0] for one in found) and found[0].certified
    # A name of its own, unless it has a path.
    assert rg.certify_picture(encoder, stored, query, **FEW).identity == str(query)
    names = [rg.certify_picture(encoder, stored, way, **FEW).identity for way in ways[2:7]]
    assert len(set(names)) == 1 and names[0].startswith("picture-")


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "I;16"])
def test_images_of_every_mode_are_what_their_files_are(encoder, mode, tmp_path):
    image = PIL.Image.fromarray(drawn(2, 1))
    image = image.convert("L").convert(mode) if mode in ("I;16", "1") else image.convert(mode)
    path = tmp_path / ("picture.jpg" if mode == "CMYK" else "picture.png")
    image.save(path)
    assert (encoder.prepare(path) == encoder.prepare(PIL.Image.open(path))).all()


def test_a_turned_photograph_is_upright(encoder, tmp_path):
    image, exif = PIL.Image.fromarray(drawn(2, 1)), PIL.Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.jpg", exif=exif)
    turned = encoder.prepare(PIL.Image.open(tmp_path / "turned.jpg"))
    assert (turned == encoder.prepare(tmp_path / "turned.jpg")).all()
    assert np.abs(turned - encoder.prepare(image)).max() > 0.1
    assert np.abs(encoder.embed(PIL.Image.open(tmp_path / "turned.jpg")) - encoder.embed(turned)).max() == 0


def test_a_deployed_answer_draws_a_seed_and_says_so(encoder, stored, query):
    found = [rg.certify_picture(encoder, stored, query, samples=300) for _ in range(2)]
    assert found[0].label == "label 1" and all(one.certified for one in found)
    assert found[0].explain() is not None and str(found[0].explain()) != str(found[1].explain()), "the same noise twice"
    assert "a new attempt at alpha 0.01" in found[0].asking_again
    given = rg.certify_picture(encoder, stored, query, **FEW)
    assert given.asking_again is None and given == rg.certify_picture(encoder, stored, query, **FEW)
    assert given.statement == (
        f"label label 1: no change of the prepared picture with l2 norm below {int(given.radius * 1e4) / 1e4:.4f} changes it, "
        "except with probability 0.01 over the noise (pairwise retriever, 300 samples)"
    )


def test_what_cannot_be_proved_is_an_abstention_where_nobody_knows_the_label(encoder, stored):
    grey = np.full((24, 20, 3), 128, np.uint8)
    found = rg.certify_picture(encoder, stored, grey, samples=15, pilot=5, alpha=1e-6, seed=1)
    assert found.verdict == "abstained" and found.radius is None and found.label is not None
    assert found.statement.startswith(f"abstained: label {found.label} cannot be guaranteed after 15 samples")
    wrong = rg.certify_picture(encoder, stored, drawn(1, 10), "label 2", **FEW)
    assert wrong.verdict == "misretrieved" and wrong.statement.startswith("misretrieved: the pairwise retriever does not answer")
    nobody = rg.certify_picture(encoder, stored, drawn(1, 10), "a label that is not there", **FEW)
    assert nobody.verdict == "misretrieved" and nobody.label == "a label that is not there"


def test_the_plain_answer_comes_along(encoder, stored, query):
    found = rg.certify_picture(encoder, stored, query, **FEW)
    assert found.plain_retrieved in stored.identities and found.plain_retrieved_label == "label 1"


def test_a_target_radius_takes_fewer_samples(encoder, stored, query):
    found = rg.certify_picture(encoder, stored, query, target_radius=0.01, samples=5000, seed=3)
    assert (found.decision, found.radius) == ("reached", 0.01) and 0 < found.samples < 2000
    with pytest.raises(rg.InputError, match="takes at least"):
        rg.certify_picture(encoder, stored, query, target_radius=0.3, samples=10)


def test_a_picture_of_the_gallery_finds_itself_unless_it_is_evaluated(encoder, stored, folders, tmp_path):
    own = folders[0] / "label 2" / "1.png"
    deployed = rg.certify_picture(encoder, stored, own, identity="q", **FEW)
    assert (deployed.retrieved, deployed.label) == ("label 2/1.png", "label 2")
    for identity in (None, "q"):
        hidden = rg.certify_picture(encoder, stored, own, "label 2", identity=identity, **FEW)
        assert hidden.retrieved != "label 2/1.png"
        wanted = rg.certify_picture(
            encoder, stored, own, "label 2", identity=identity, leave_one_out="never", exclude="label 2/1.png", **FEW
        )
        assert numbers(hidden) == numbers(wanted)
    seen = rg.certify_picture(encoder, stored, own, "label 2", leave_one_out="never", identity="q", **FEW)
    assert seen.retrieved == "label 2/1.png"
    # Another picture of that name is not the same.
    other = tmp_path / "label 2" / "1.png"
    other.parent.mkdir()
    other.write_bytes(png(drawn(2, 33)))
    named = rg.certify_picture(encoder, stored, other, "label 2", **FEW)
    assert numbers(named) == numbers(rg.certify_picture(encoder, stored, other, "label 2", leave_one_out="never", **FEW))
    # A copy elsewhere is.
    shutil.copy(own, other)
    assert rg.certify_picture(encoder, stored, other, "label 2", **FEW).retrieved != "label 2/1.png"
    row = stored.rows_of("label 2/1.png")[0]
    with pytest.raises(rg.InputError, match="is the picture itself"):
        rg.certify_picture(encoder, stored, own, item=row, **FEW)
    assert rg.certify_picture(encoder, stored, own, item=row, leave_one_out="never", **FEW).label is None


def test_the_gallery_may_be_a_directory_and_says_what_does_not_fit(encoder, gallery, query, tmp_path):
    found = rg.certify_picture(encoder, gallery, query, **FEW)
    assert found == rg.certify_picture(encoder, rg.Gallery.read(gallery), query, **FEW)
    with pytest.raises(rg.InputError, match="was smoothed with sigma 0.1, the queries with 0.2"):
        rg.certify_picture(encoder, gallery, query, sigma=0.2)
    clamped = rg.Encoder(encoder._opening["model"], engine="rten", non_negative=True)
    with pytest.raises(rg.InputError, match="unclamped"):
        rg.certify_picture(clamped, gallery, query)
    shutil.copy(MODELS / "encoder.toml", tmp_path / "encoder.toml")
    shutil.copy(MODELS / "fixed_batch.onnx", tmp_path / "encoder.onnx")
    with pytest.raises(rg.InputError, match="was embedded by model"):
        rg.certify_picture(rg.Encoder(tmp_path / "encoder.onnx", engine="rten"), gallery, query)
    unsaid = rg.Gallery(rg.Gallery.read(gallery).vectors, rg.Gallery.read(gallery).labels)
    with pytest.raises(rg.InputError, match="gallery `in memory` has no noise level"):
        rg.certify_picture(encoder, unsaid, query)
    assert rg.certify_picture(encoder, unsaid, query, sigma=0.1, **FEW).radius == found.radius


def test_ctrl_c_and_progress_are_heard_between_samples(encoder, stored, query):
    told = []
    rg.certify_picture(encoder, stored, query, samples=3000, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (3020, 3020) and told == sorted(told)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rg.certify_picture(encoder, stored, query, samples=200_000, progress=stop)


def test_without_noise_it_is_one_pass_and_holds_always(folders, tmp_path):
    encoder = rg.Encoder(MODELS / "block-means" / "encoder.onnx", engine="double")
    gallery = rg.index(folders[0], encoder, None, tmp_path / "g", progress=False)
    path = folders[1] / "label 3" / "11.png"
    found = rg.certify_picture(encoder, gallery, path, "label 3")
    embedding = encoder.embed(path)
    wanted = brute_force(embedding, gallery.vectors, gallery.labels, "label 3")
    assert (found.certificate, found.sigma, found.alpha, found.samples, found.retriever) == ("lipschitz", None, None, 0, "plain")
    assert found.radius == pytest.approx(wanted, rel=1e-4) and found.asking_again is None
    assert found.statement == (
        f"label label 3: no change of the prepared picture with l2 norm below {int(found.radius * 1e4) / 1e4:.4f} changes it "
        "(plain retriever)"
    )
    deployed = rg.certify_picture(encoder, gallery, PIL.Image.open(path))
    assert (deployed.label, deployed.radius) == ("label 3", found.radius)
    margin = rg.certify_picture(encoder, gallery, path, "label 3", certificate="lipschitz-margin")
    assert margin.radius <= found.radius
    for name, value in {"alpha": 0.1, "samples": 10, "seed": 1, "pilot": 5, "target_radius": 0.1}.items():
        with pytest.raises(rg.InputError, match=f"{name} says nothing without noise"):
            rg.certify_picture(encoder, gallery, path, **{name: value})
    with pytest.raises(rg.InputError, match="wanted none beside an Encoder"):
        rg.certify_picture(encoder, gallery, path, lipschitz=1.0)


def encode(batch):
    flat = batch.reshape(len(batch), -1) - 0.5
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def by_function():
    pictures = {label: drawn(label, 0) for label in range(4)}
    rows = [encode(np.moveaxis(pixels, 2, 0)[None].astype("f4") / np.float32(255))[0] for pixels in pictures.values()]
    return rg.Gallery(rows, list(pictures), samples=0)


def noisy(function, gallery, picture, **options):
    return rg.certify_picture(function, gallery, picture, sigma=0.25, **options)


def test_a_function_is_asked_like_an_encoder(by_function):
    picture = np.moveaxis(drawn(1, 7), 2, 0).astype("f4") / np.float32(255)
    found = noisy(encode, by_function, picture, identity="q", **FEW)
    draw = {"sigma": 0.25, "seed": 3, "identity": "q", "progress": False}
    pilot = rg.smooth(encode, picture, samples=60, stage="pilot", **draw)
    samples = rg.smooth(encode, picture, samples=300, **draw)
    wanted = rg.certify(samples, by_function, pilot=pilot, sigma=0.25, certificate="pairwise")
    assert numbers(found) == numbers(wanted) and found.certified and found.label == "1"
    item = noisy(encode, by_function, picture, item=1, **FEW)
    assert item.certified and item.label is None and item.statement.startswith("item 1: no change")
    # A gallery of clean vectors serves every noise level, and is what the plain retriever searches.
    assert found.plain_retrieved_label == "1"
    ways = [drawn(1, 7), PIL.Image.fromarray(drawn(1, 7)), png(drawn(1, 7))]
    assert all(numbers(noisy(encode, by_function, way, identity="q", **FEW)) == numbers(found) for way in ways)


def test_a_function_that_draws_lots_or_looks_at_its_batch_is_found_out(by_function):
    rng = np.random.default_rng(0)
    picture = drawn(1, 7)
    with pytest.raises(rg.InputError, match="other numbers for the same picture the second time"):
        noisy(lambda batch: encode(batch + rng.normal(size=batch.shape)), by_function, picture)
    sizes = set()

    def centred(batch):
        sizes.add(len(batch))
        return encode(batch - batch.mean(axis=0) * (len(batch) > 1))

    with pytest.warns(UserWarning, match="one picture at a time"):
        found = noisy(centred, by_function, picture, identity="q", **FEW)
    assert numbers(found) == numbers(noisy(encode, by_function, picture, identity="q", batch=1, **FEW))

    class Enough(Exception):
        pass

    def failing(batch):
        raise Enough

    with pytest.raises(Enough):
        noisy(failing, by_function, picture)


def test_a_function_with_a_lipschitz_bound_needs_no_noise():
    gallery = rg.Gallery([[0.2], [0.8]], ["dark", "light"])

    def brightness(batch):
        return batch.reshape(len(batch), -1).mean(axis=1, keepdims=True)

    picture = np.full((3, 4, 4), 0.3, "f4")
    # The mean of 48 pixels moves by at most 1/√48 of what they move by.
    found = rg.certify_picture(brightness, gallery, picture, lipschitz=48**-0.5)
    assert found.label == "dark" and found.radius == pytest.approx(0.2 * 48**0.5, rel=1e-5) and found.alpha is None
    short = rg.certify_picture(brightness, gallery, picture, "dark", lipschitz=48**-0.5, forward_error=0.01)
    assert short.radius < found.radius
    for change, message in [
        ({"sigma": 0.1}, "lipschitz is for questions without noise, and it was asked with sigma 0.1"),
        ({"samples": 5}, "samples says nothing without noise"),
        ({"certificate": "vote"}, "wanted one of lipschitz"),
    ]:
        with pytest.raises(rg.InputError, match=message):
            rg.certify_picture(brightness, gallery, picture, lipschitz=1.0, **change)
    with pytest.raises(rg.InputError, match="wanted sigma, or lipschitz"):
        rg.certify_picture(brightness, gallery, picture)
    with pytest.raises(rg.InputError, match="samples is 0, so the vectors are of clean pictures"):
        rg.Gallery([[0.2], [0.8]], ["dark", "light"], sigma=0.25, samples=0)
    smoothed = rg.Gallery([[0.2], [0.8]], ["dark", "light"], sigma=0.25)
    with pytest.raises(rg.InputError, match="the gallery was smoothed with sigma 0.25"):
        rg.certify_picture(brightness, smoothed, picture, lipschitz=1.0)


@pytest.mark.parametrize(
    "picture, message",
    [
        (np.full((3, 24, 20), 200.0), "has pixels from 200 to 200, wanted floating-point pixels in \\[0, 1\\]"),
        (np.random.default_rng(0).normal(size=(3, 24, 20)), "means and standard deviations belong into the encoder"),
        (np.full((3, 7, 5), 0.5), "has shape \\(3, 7, 5\\), the encoder wants"),
        (np.zeros((0, 3)), "has shape \\(0, 3\\), wanted pixels"),
        (np.zeros((9, 9, 4), np.uint8), "pixels have shape \\(9, 9, 4\\)"),
        (b"no picture", "picture"),
        ("nowhere.png", "nowhere.png"),
        ({"a": 1}, "wanted real numbers"),
    ],
)
def test_pictures_that_are_none_are_refused_by_name(encoder, stored, picture, message):
    with pytest.raises(rg.RetrievalGuardError, match=message):
        rg.certify_picture(encoder, stored, picture)


def test_pixels_that_are_no_numbers_are_refused(encoder, stored):
    hole = np.full(encoder.shape, 0.5, "f4")
    hole[0, 0, 0] = np.nan
    with pytest.raises(rg.InputError, match="NaN"):
        rg.certify_picture(encoder, stored, hole)


def test_words_that_mean_nothing_are_refused(encoder, stored, query):
    for change, message in [
        ({"certificate": "all"}, "`certify_pictures` computes several"),
        ({"certificate": "magic"}, "`magic` is not a certificate"),
        ({"certificate": "lipschitz"}, "need no noise, found sigma 0.1"),
        ({"leave_one_out": "perhaps", "label": "label 1"}, "leave_one_out is `perhaps`"),
        ({"label": "label 1", "item": 3}, "both a label and an item"),
        ({"exclude": 99}, "excluded row is 99"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"norm_bound": 2.0}, "wanted none beside an Encoder"),
        ({"excess": "perhaps"}, "excess is `perhaps`"),
    ]:
        with pytest.raises(rg.InputError, match=message):
            rg.certify_picture(encoder, stored, query, **change)
    with pytest.raises(rg.InputError, match="function is int"):
        rg.certify_picture(3, stored, query)
    image = io.BytesIO()
    PIL.Image.fromarray(drawn(0, 0)).save(image, "PNG")
    assert rg.certify_picture(encoder, stored, image.getvalue(), **FEW).label == "label 0"


def test_a_torch_module_gets_tensors(by_function):
    torch = pytest.importorskip("torch")

    class Flat(torch.nn.Module):
        def forward(self, batch):
            return torch.nn.functional.normalize(batch.flatten(1) - 0.5, dim=1)

    tensor = torch.from_numpy(drawn(1, 7)).permute(2, 0, 1)
    for picture in (tensor, tensor.float() / 255):
        found = noisy(Flat().eval(), by_function, picture, **FEW)
        assert found.certified and found.label == "1"
    with pytest.raises(rg.InputError, match="training mode"):
        noisy(Flat(), by_function, tensor)
