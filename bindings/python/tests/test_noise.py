import threading

import numpy as np
import pytest
import retrievalguard as rg
from conftest import bits


def test_values_equal_those_of_rust_bit_for_bit(reference):
    assert len(reference["noise"]) > 50
    for case in reference["noise"]:
        noise = rg.Noise(int(case["seed"]), case["identity"], case["stage"])
        found = noise.fill(case["sample"], 5, first_pixel=case["first_pixel"])
        assert bits(found) == case["bits"], case


def test_a_seed_of_bytes_is_the_integer_with_the_lowest_byte_first():
    seed = bytes(range(16))
    assert (rg.Noise(seed, "a").fill(1, 9) == rg.Noise(int.from_bytes(seed, "little"), "a").fill(1, 9)).all()


def test_names_as_strings_are_their_utf8_bytes():
    assert (rg.Noise(1, "ä").fill(0, 4) == rg.Noise(1, "ä".encode()).fill(0, 4)).all()


def test_added_noise_is_sigma_times_the_values_in_f32():
    image = np.linspace(0, 1, 60, dtype=np.float32).reshape(3, 4, 5)
    noise = rg.Noise(3, "picture", "gallery")
    for sample in (0, 7):
        wanted = image + np.float32(0.1) * noise.fill(sample, image.shape)
        assert (noise.add(image, sample, 0.1) == wanted).all()
    batch = noise.add(image, range(5, 8), 0.1)
    assert batch.shape == (3, 3, 4, 5) and (batch[2] == noise.add(image, 7, 0.1)).all()


def test_a_view_with_strides_is_read_in_its_own_order():
    image = np.arange(24, dtype=np.float32).reshape(4, 6)[::-1, ::2]
    assert not image.flags.c_contiguous
    noise = rg.Noise(3, "picture")
    assert (noise.add(image, 0, 1.0) == noise.add(image.copy(), 0, 1.0)).all()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: rg.Noise(-1, "a"), "seed is `-1`, wanted a whole number from 0 to 2\\^128 - 1"),
        (lambda: rg.Noise(2**128, "a"), "wanted a whole number from 0 to"),
        (lambda: rg.Noise(1.5, "a"), "seed is 1.5, wanted a whole number"),
        (lambda: rg.Noise(b"short", "a"), "seed has 5 bytes, wanted 16"),
        (lambda: rg.Noise(1, "a", "lunch"), "stage is `lunch`, wanted pilot, certify"),
        (lambda: rg.Noise(1, 7), "identity is 7"),
        (lambda: rg.Noise(1, "a").fill(2**32, 1), "sample is 4294967296"),
        (lambda: rg.Noise(1, "a").fill(-1, 1), "sample is -1"),
        (lambda: rg.Noise(1, "a").fill(0, 4, first_pixel=2**34), "wanted an end of at most 17179869184"),
        (lambda: rg.Noise(1, "a").fill(0, (2**20, 2**20)), "wanted at most 17179869184 values"),
        (lambda: rg.Noise(1, "a").add([0.0], 0, -1.0), "sigma is -1, wanted a number from 0.0001 to 2"),
        (lambda: rg.Noise(1, "a").add([0.0], 0, float("nan")), "sigma is NaN"),
        (lambda: rg.Noise(1, "a").add([1e39], 0, 1.0), "wanted a number that fits into float32"),
        (lambda: rg.Noise(1, "a").add(["x"], 0, 1.0), "wanted real numbers"),
        (lambda: rg.Noise(1, "a").add([0.0], range(3, 3), 1.0), "wanted a non-empty range"),
    ],
)
def test_hostile_arguments_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert isinstance(caught.value, rg.RetrievalGuardError)


def test_the_seed_is_not_shown():
    assert "1234" not in repr(rg.Noise(1234, "a"))


def test_the_interpreter_lock_is_free_while_noise_is_drawn():
    noise, ticks, done = rg.Noise(1, "a"), 0, threading.Event()

    def draw():
        noise.fill(0, 30_000_000)
        done.set()

    thread = threading.Thread(target=draw)
    thread.start()
    while not done.is_set():
        ticks += 1
    thread.join()
    assert ticks > 100
