"""Tests of the independent checker: published values, closed forms, other programs' results, and forged receipts."""

import io
import json
import math
import sys
import tomllib
from pathlib import Path
from statistics import NormalDist

import numpy as np
import onnxruntime
import pytest
from PIL import Image

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import check_receipt as checker  # noqa: E402
import lipschitz  # noqa: E402

DEMO = HERE.parent / "crates/retrievalguard-cli/demo"


def config_of(folder):
    return checker.settings(tomllib.loads((folder / "encoder.toml").read_text()))


# --- noise ---


@pytest.mark.parametrize(
    "counter, key, words",
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, words):
    assert [int(word[0]) for word in checker.philox(counter, key)] == words


def test_noise_is_that_of_the_tool_up_to_its_stated_error():
    # Frozen in the tool's own tests: seed of sixteen bytes 7, name `golden`, stage certify, sample 1.
    bits = np.array([0xBF09398C, 0x3EDA3DEF, 0xBE4F2725, 0xBF2062DE], np.uint32)
    seed = int.from_bytes(bytes([7] * 16), "little")
    found = checker.normals(seed, b"golden", 2, [0, 1], 100)[1, :4]
    assert np.abs(found / bits.view(np.float32) - 1).max() < 4.4e-7


def test_noise_does_not_depend_on_which_samples_are_drawn_together():
    together = checker.normals(5, b"name", 1, range(7), 1000)
    assert np.array_equal(together[3:5], checker.normals(5, b"name", 1, [3, 4], 1000))
    assert abs(together.mean()) < 0.05 and abs(together.std() - 1) < 0.05


# --- Clopper-Pearson ---


@pytest.mark.parametrize("n, level", [(1, 0.3), (20, 0.01), (1000, 0.001), (100_000, 0.01)])
def test_bounds_of_all_and_of_one_success_have_their_closed_forms(n, level):
    assert checker.lower_bound(n, n, level)[0] == pytest.approx(level ** (1 / n), rel=1e-10)
    assert checker.lower_bound(1, n, level)[0] == pytest.approx(-math.expm1(math.log1p(-level) / n), rel=1e-9)
    assert checker.lower_bound(0, n, level) == (0.0, 1.0)


@pytest.mark.parametrize(
    "k, n, level", [(3, 50, 0.01), (30, 50, 0.05), (49, 50, 0.001), (990, 1000, 0.001), (40, 60, 0.7)]
)
def test_the_tail_at_a_bound_is_its_level_and_never_above(k, n, level):
    p, q = checker.lower_bound(k, n, level)
    tail = math.fsum(math.comb(n, j) * p**j * q ** (n - j) for j in range(k, n + 1))
    assert level * (1 - 1e-8) < tail <= level


def test_a_printed_bound_is_found_again():
    # The example in the tool's documentation.
    assert checker.lower_bound(990, 1000, 0.001)[0] == pytest.approx(0.976036, abs=1e-6)


# --- counting ---


def test_ties_are_lost_for_sure_and_near_ties_are_undecided():
    near = np.array([[1.0, 1.0, 3.0], [1.0, 1.1, 3.0], [1.0, 1.00001, 3.0], [2.0, 1.0, 3.0]])
    counted, least, most = checker.losses(near, 0, 1e-4)
    assert list(counted) == [0, 2, 0] and list(least) == [0, 2, 0] and list(most) == [0, 3, 0]
    counted, least, most = checker.votes(near, 0, 1e-4)
    assert list(counted) == [2, 2, 0] and list(least) == [1, 2, 0] and list(most) == [2, 3, 0]


# --- pictures ---


@pytest.mark.parametrize("name, filter_", [("bilinear", Image.BILINEAR), ("bicubic", Image.BICUBIC)])
@pytest.mark.parametrize("size", [(90, 61), (40, 200), (20, 19)])
def test_preparation_in_8_bits_is_that_of_pillow(name, filter_, size):
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8))
    config = {
        "input": {"height": 32, "width": 36},
        "resize": {"rule": "exact", "height": 32, "width": 36, "interpolation": name, "order": "across-first"},
        "crop": {"rule": "none"},
    }
    config["resize"]["resampling"] = "8-bit"
    wanted = picture.resize((36, size[0]), filter_).resize((36, 32), filter_)
    found = checker.prepare(picture, config)
    assert np.array_equal(found, np.asarray(wanted, np.float32).transpose(2, 0, 1) / np.float32(255))
    config["resize"]["resampling"] = "float"
    planes = [Image.fromarray(np.asarray(picture, np.float32)[:, :, channel], "F") for channel in range(3)]
    wanted = np.stack([np.asarray(plane.resize((36, 32), filter_)) for plane in planes]) / 255
    assert np.abs(checker.prepare(picture, config) - np.clip(wanted, 0, 1)).max() < 1e-6


# --- half-space ---


def gallery_of(vectors, labels):
    gallery = checker.Gallery.__new__(checker.Gallery)
    gallery.vectors, gallery.views, gallery.sigma = np.asarray(vectors, float), 1, None
    gallery.names = {name: place for place, name in enumerate(dict.fromkeys(labels))}
    gallery.label = np.array([gallery.names[label] for label in labels])
    gallery.unique, gallery.twin = np.unique(gallery.vectors, axis=0, return_inverse=True)
    gallery.facts = {"rows": len(labels), "dimension": len(vectors[0]), "views": 1, "vectors": "v", "items": "i"}
    gallery.hide([])
    return gallery


def test_unanimous_samples_come_close_to_the_ceiling_and_never_above():
    # Every score is F: no certificate can prove more than sigma (quantile(alpha^(1/n)) - quantile((s + F)/2F)), s = 0.
    gallery, n, alpha = gallery_of([[1.0, 0.0], [-1.0, 0.0]], ["a", "b"]), 1000, 0.01
    rows = np.tile([1.0, 0.0], (n, 1))
    radius, tests = checker.half_space(gallery, 0, rows[:100], rows, 0.25, alpha, 1.0, False, 1)
    ceiling = 0.25 * checker.quantile(*checker.lower_bound(n, n, alpha))
    assert 0.9 * ceiling < radius <= ceiling
    assert set(tests) == {1}


def test_a_mean_nearer_to_a_wrong_row_certifies_nothing():
    gallery, rows = gallery_of([[1.0, 0.0], [-1.0, 0.0]], ["a", "b"]), np.tile([-0.5, 0.1], (200, 1))
    assert checker.half_space(gallery, 0, rows, rows, 0.25, 0.01, 1.0, False, 1)[0] is None


@pytest.mark.parametrize("share", [0.6, 0.8, 0.95])
def test_two_cells_are_certified_inside_their_true_radius(share):
    # h is (1, 0) with probability `share`, else (-1, 0): the truth is sigma * quantile(share).
    gallery, random = gallery_of([[1.0, 0.0], [-1.0, 0.0]], ["a", "b"]), np.random.default_rng(3)
    draw = lambda count: np.where(random.random((count, 1)) < share, [[1.0, 0.0]], [[-1.0, 0.0]])  # noqa: E731
    radius, _ = checker.half_space(gallery, 0, draw(200), draw(2000), 1.0, 0.001, 1.0, False, 1)
    assert radius <= NormalDist().inv_cdf(share)
    assert share < 0.7 or radius > 0.5 * NormalDist().inv_cdf(share)


# --- Lipschitz ---


def test_the_demos_lipschitz_encoder_has_a_constant_near_one_and_moves_no_faster():
    folder, random = DEMO / "lipschitz", np.random.default_rng(0)
    config, model = config_of(folder), (folder / "encoder.onnx").read_bytes()
    picture = random.random((3, 32, 32)).astype(np.float32)
    h, constant, error = lipschitz.network(model, config, picture)
    assert 1.0 <= constant < 1 + 1e-6
    assert 0 <= error @ [np.linalg.norm(picture), 1] < 1e-8
    for size in (1e-3, 1.0):
        moved = picture + np.float32(size) * random.standard_normal(picture.shape).astype(np.float32)
        other = lipschitz.network(model, config, moved)[0]
        assert np.linalg.norm(other - h) <= constant * np.linalg.norm((moved - picture).astype(float)) + 1e-8
    session = onnxruntime.InferenceSession(model)
    found = session.run(None, {session.get_inputs()[0].name: picture[None]})[0][0]
    assert np.abs(found - h).max() < 1e-4


def test_changed_weights_of_a_residual_layer_are_refused():
    model = bytearray((DEMO / "lipschitz" / "encoder.onnx").read_bytes())
    tensors, nodes, _ = lipschitz.graph_of(bytes(model))
    scale = next(inputs[1] for operator, inputs, _, _ in nodes if operator == "Mul")
    content = tensors[scale].astype("<f4").tobytes()
    at = bytes(model).index(content)
    model[at:at + len(content)] = (2 * tensors[scale]).astype("<f4").tobytes()
    with pytest.raises(checker.Refused, match="wanted 2"):
        lipschitz.network(bytes(model), config_of(DEMO / "lipschitz"), np.zeros((3, 32, 32), np.float32))


def test_distances_from_bisectors_have_their_closed_form():
    gallery = gallery_of([[1.0, 0.0], [-1.0, 0.0], [0.0, 9.0]], ["a", "b", "b"])
    assert lipschitz.reach_of(gallery, 0, np.array([0.5, 0.1]), "lipschitz") == pytest.approx(0.5)
    margin = (math.hypot(1.5, 0.1) - math.hypot(0.5, 0.1)) / 2
    assert lipschitz.reach_of(gallery, 0, np.array([0.5, 0.1]), "lipschitz-margin") == pytest.approx(margin)
    assert lipschitz.reach_of(gallery, 1, np.array([0.5, 0.1]), "lipschitz") is None


# --- receipts ---


def seal(receipt):
    """Commitment and digest made again, as whoever forges a field would."""

    def tie(kind, value):
        return checker.sha(f"retrievalguard receipt {kind}1\n".encode() + checker.canonical(value))

    body = {name: value for name, value in receipt.items() if name not in ("digest", "signature")}
    body["commitment"] = tie("commitment ", {"fixed": body["fixed"], "opened": body["opened"]})
    return json.dumps(body | {"digest": tie("", body), "signature": None}).encode()


@pytest.fixture(scope="module")
def honest():
    """A pairwise receipt of the demo's encoder, and what is needed to check it."""
    random = np.random.default_rng(0)
    config, model = config_of(DEMO), (DEMO / "encoder.onnx").read_bytes()
    session, file = onnxruntime.InferenceSession(model), io.BytesIO()
    smooth = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((32, 32), Image.BICUBIC)
    smooth.save(file, "PNG")
    picture, name, n = file.getvalue(), "a picture.png", 200
    pixels = checker.prepare(smooth, config)
    encoder = {"model": checker.sha(model), "config": json.dumps(config), "dimension": 64, "components": "any",
               "excess": "refuse", "engine": "another"}
    draw = lambda stage, count: checker.embed(session, pixels + np.float32(0.25) * checker.normals(  # noqa: E731
        7, name.encode(), stage, range(count), pixels.size).reshape(-1, *pixels.shape), config, encoder)
    pilot, sample = draw(1, 20), draw(2, n)
    rows = np.float32([pilot.mean(0), pilot.mean(0) + 0.12 * random.standard_normal(64) / 8, -pilot.mean(0)])
    gallery = gallery_of(rows.astype(float), ["shoe", "boot", "tie"])
    found = checker.losses(gallery.nearest(sample), 0, 2e-4)[0]
    radius = 0.25 * checker.quantile(*checker.lower_bound(int(n - found.max()), n, 0.01)) * (1 - 1e-12)
    lost = [{"label": label, "copies": int(found[at])} for label, at in sorted(gallery.names.items()) if found[at]]
    answer = {"certificate": "pairwise", "label": "shoe", "verdict": "certified", "radius": checker.text(radius),
              "samples": n, "decision": None, "counted": {"losses": lost, "steps": []}}
    fixed = {"tool": "retrievalguard 0", "picture": {"identity": name, "file": checker.sha(picture),
             "pixels": checker.sha(pixels.tobytes())}, "encoder": encoder, "gallery": gallery.facts | {"excluded": []},
             "question": {"label": None}, "retriever": "pairwise", "certificates": ["pairwise"], "bound": None,
             "challenge": None,
             "noise": {"sigma": "0.25", "alpha": "0.01", "pilot": 20, "samples": n, "schedule": "fixed", "top_k": 1,
                       "target_radius": None, "replan_bets": False, "seed_from": "given"}}
    answer["statement"] = checker.statement(answer, radius, fixed, config["input"])
    receipt = {"receipt": 1, "fixed": fixed, "opened": {"seed": "7", "salt": "00" * 32}, "commitment": "",
               "answers": [answer],
               "drawn": [{"stage": "pilot", "first": 0, "end": 20}, {"stage": "certify", "first": 0, "end": n}]}
    assert radius > 0.05 and found.max() > 0
    return receipt, (picture, model, session, config, gallery)


def test_an_honest_receipt_is_verified(honest):
    receipt, given = honest
    assert checker.check(seal(receipt), *given).startswith("pairwise shoe certified")


FORGERIES = {
    "radius": lambda r: r["answers"][0].update(radius="0.9"),
    "radius by one part in a million": lambda r: r["answers"][0].update(
        radius=checker.text(float(r["answers"][0]["radius"]) * (1 + 1e-6))),
    "verdict": lambda r: r["answers"][0].update(verdict="abstained", radius=None, statement="Nothing is certified."),
    "label": lambda r: r["answers"][0].update(label="boot"),
    "statement": lambda r: r["answers"][0].update(statement=r["answers"][0]["statement"].replace("below", "up to")),
    "count": lambda r: r["answers"][0]["counted"].update(losses=[]),
    "samples": lambda r: r["answers"][0].update(samples=2000),
    "seed": lambda r: r["opened"].update(seed="8"),
    "sigma": lambda r: r["fixed"]["noise"].update(sigma="0.5"),
    "alpha": lambda r: r["fixed"]["noise"].update(alpha="0.001"),
    "stage": lambda r: r["drawn"].reverse(),
    "range": lambda r: r["drawn"][1].update(first=100, end=300),
    "identity": lambda r: r["fixed"]["picture"].update(identity="another.png"),
    "picture": lambda r: r["fixed"]["picture"].update(file="0" * 64),
    "pixels": lambda r: r["fixed"]["picture"].update(pixels="0" * 64),
    "model": lambda r: r["fixed"]["encoder"].update(model="0" * 64),
    "gallery": lambda r: r["fixed"]["gallery"].update(vectors="0" * 64),
    "labels of the gallery": lambda r: r["fixed"]["gallery"].update(items="0" * 64),
    "hidden rows": lambda r: r["fixed"]["gallery"].update(excluded=[1]),
    "a field more": lambda r: r["fixed"].update(claim="no change in any norm"),
    "a field less": lambda r: r["fixed"].pop("challenge"),
    "components": lambda r: r["fixed"]["encoder"].update(components="anything"),
    "where the seed is from": lambda r: r["fixed"]["noise"].update(seed_from="elsewhere"),
    "salt": lambda r: r["opened"].update(salt="not a salt"),
    "retriever": lambda r: r["fixed"].update(retriever="mean"),
    "certificate": lambda r: (r["answers"][0].update(certificate="vote"), r["fixed"].update(certificates=["vote"])),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_receipt_is_refused_though_it_was_sealed_again(honest, name):
    receipt, given = honest
    forged = json.loads(json.dumps(receipt))
    FORGERIES[name](forged)
    with pytest.raises((checker.Refused, KeyError)):
        checker.check(seal(forged), *given)


def test_a_signature_that_nobody_checked_is_said_to_be_unchecked(honest):
    receipt, given = honest
    signed = json.loads(seal(receipt)) | {"signature": {"key": "0" * 64, "value": "0" * 128}}
    assert checker.check(json.dumps(signed).encode(), *given).endswith("(the signature was not checked)")


def test_a_receipt_that_was_not_sealed_again_is_refused(honest):
    receipt, given = honest
    text = seal(receipt)
    with pytest.raises(checker.Refused, match="digest|commitment"):
        checker.check(text.replace(b'"samples": 200', b'"samples": 201'), *given)
    with pytest.raises(checker.Refused, match="twice"):
        checker.check(text[:-1] + b', "receipt": 1}', *given)


@pytest.mark.parametrize("name", ["lipschitz", "lipschitz-margin"])
def test_certificates_without_noise_are_refused_where_noise_was_drawn(honest, name):
    receipt, given = honest
    forged = json.loads(json.dumps(receipt))
    forged["answers"][0].update(certificate=name)
    forged["fixed"].update(certificates=[name], retriever="plain")
    with pytest.raises(checker.Refused, match="with noise"):
        checker.check(seal(forged), *given)


def test_other_schedules_are_declined_by_name(honest):
    receipt, given = honest
    growing = json.loads(json.dumps(receipt))
    growing["fixed"]["noise"]["schedule"] = "growing"
    with pytest.raises(checker.Declined, match="schedules"):
        checker.check(seal(growing), *given)
