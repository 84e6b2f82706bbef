import pickle
import shutil
import threading

import numpy as np
import pytest
import retrievalguard as rg
from conftest import MODELS, bits, drawn, png

RAMP = (np.arange(3 * 16 * 16) % 64 / 64).astype(np.float32).reshape(3, 16, 16)


def test_samples_equal_those_of_rust_bit_for_bit(encoder, reference):
    found = encoder.samples(RAMP, 0.1, 4, seed=3, stage="pilot", identity="ramp")
    assert bits(found) == reference["onnx"]["bits"]


def test_pieces_and_threads_do_not_change_samples(encoder, model):
    whole = encoder.samples(RAMP, 0.1, 700, identity="ramp")
    one = rg.Encoder(model, engine="rten", threads=1, batch=7)
    assert (one.samples(RAMP, 0.1, range(300, 700), identity="ramp") == whole[300:]).all()


def test_says_what_it_is(encoder, model):
    assert encoder.shape == (3, 16, 16) and encoder.dimension == 8 and encoder.norm_bound == 1.0
    assert encoder.engine.startswith("rten") and len(encoder.digest) == 64 and str(model) in repr(encoder)


def test_embeds_batches_and_single_pictures_alike(encoder, tmp_path):
    batch = np.stack([RAMP, RAMP[:, ::-1], 1 - RAMP])
    rows = encoder.embed(batch)
    assert rows.shape == (3, 8) and np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert (encoder.embed(RAMP) == rows[0]).all()
    assert (encoder.embed(list(batch.astype(np.float64))) == rows).all()
    pixels = drawn(1, 0)
    path = tmp_path / "picture.png"
    path.write_bytes(png(pixels))
    forms = [pixels, path, str(path), path.read_bytes()]
    prepared = encoder.prepare(path)
    assert prepared.shape == (3, 16, 16) and 0 <= prepared.min() < prepared.max() <= 1
    for form in forms:
        assert (encoder.prepare(form) == prepared).all()
        assert (encoder.embed(form) == encoder.embed(prepared)).all()
    assert (encoder.embed(forms) == encoder.embed([prepared] * 4)).all()
    assert encoder.embed(np.empty((0, 3, 16, 16), np.float32)).shape == (0, 8)


def test_smooth_by_a_function_equals_samples_by_the_encoder(encoder):
    pixels = encoder.prepare(drawn(2, 5))
    by_function = rg.smooth(encoder.embed, pixels, sigma=0.1, samples=50, seed=4, identity="p", progress=False)
    assert (by_function == encoder.samples(pixels, 0.1, 50, seed=4, identity="p")).all()


def test_pickles_by_opening_the_file_again(encoder):
    again = pickle.loads(pickle.dumps(encoder))
    assert (again.embed(RAMP) == encoder.embed(RAMP)).all() and again.engine == encoder.engine


def test_a_quantised_model_is_told_once():
    with pytest.warns(UserWarning, match="certificates are about the quantised network"):
        rg.Encoder(MODELS / "int8.onnx", engine="rten")


def test_an_encoder_that_couples_its_batch_runs_one_by_one_and_says_so(model):
    assert rg.Encoder(model, engine="rten").check.startswith("together: ")
    with pytest.warns(UserWarning, match="every picture goes through the encoder by itself"):
        coupled = rg.Encoder(MODELS / "dynamic_quantised.onnx", engine="rten")
    assert coupled.check.startswith("one by one: ") and "DynamicQuantizeLinear" in coupled.check
    # Two dark pictures beside a bright one, which would set the scale for all.
    bright = np.array([0.05, 1, 0.05], np.float32)[:, None, None, None]
    pictures = list(np.random.default_rng(0).random((3, 3, 16, 16), dtype=np.float32) * bright)
    alone = np.concatenate([coupled.embed([picture]) for picture in pictures])
    assert (coupled.embed(pictures) == alone).all()
    with pytest.raises(rg.InputError, match="draws random numbers at node `lots`"):
        rg.Encoder(MODELS / "random.onnx", engine="rten")


def test_onnxruntime_of_this_environment_is_taken(model):
    pytest.importorskip("onnxruntime")
    assert rg.Encoder(model).engine.startswith("onnxruntime")


def test_hostile_models_and_pictures_are_refused_by_name(encoder, model, tmp_path):
    with pytest.raises(FileNotFoundError, match="model `.*nowhere.onnx` cannot be read: No such file"):
        rg.Encoder(tmp_path / "nowhere.onnx")
    with pytest.raises(rg.InputError, match="is not a file, wanted an ONNX file"):
        rg.Encoder(tmp_path)
    shutil.copy(model, tmp_path / "lonely.onnx")
    with pytest.raises(rg.RetrievalGuardError, match="encoder.toml"):
        rg.Encoder(tmp_path / "lonely.onnx", engine="rten")
    assert rg.Encoder(tmp_path / "lonely.onnx", MODELS / "encoder.toml", engine="rten").dimension == 8
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(rg.InputError, match="broken.onnx` is (not an ONNX model|truncated)"):
        rg.Encoder(tmp_path / "broken.onnx", MODELS / "encoder.toml", engine="rten")
    with pytest.raises(rg.InputError, match="engine is `steam`|`steam`"):
        rg.Encoder(model, engine="steam")
    with pytest.raises(rg.InputError, match="threads is 0"):
        rg.Encoder(model, engine="rten", threads=0)
    with pytest.raises(rg.InputError, match="threads is 4096, wanted a number from 1 to 1024"):
        rg.Encoder(model, engine="rten", threads=4096)
    with pytest.raises(rg.InputError, match="threads is 1099511627776, wanted a whole number"):
        rg.Encoder(model, engine="rten", threads=2**40)
    with pytest.raises(rg.RetrievalGuardError, match="/nowhere/libonnxruntime.so"):
        rg.Encoder(model, library="/nowhere/libonnxruntime.so")
    for picture, message in [
        (np.zeros((3, 16, 15), np.float32), r"picture `.*` has shape \(3, 16, 15\), the encoder wants \(3, 16, 16\)"),
        (np.full((3, 16, 16), np.nan, np.float32), "NaN"),
        (np.zeros((8, 8, 4), np.uint8), r"pixels have shape \(8, 8, 4\), wanted"),
        (b"not a picture", "picture"),
        (b"", "nothing \\(it is empty\\)"),
    ]:
        with pytest.raises(rg.InputError, match=message):
            encoder.embed([picture])
        with pytest.raises(rg.InputError, match=message):
            encoder.samples(picture, 0.1, 3, identity="hostile")
    with pytest.raises(rg.InputError, match="wanted uint8"):
        encoder.prepare(RAMP)
    with pytest.raises(OSError, match="nowhere.png"):
        encoder.prepare("nowhere.png")
    with pytest.raises(rg.InputError, match="has no identity"):
        encoder.samples(RAMP, 0.1, 3)


def test_an_encoder_that_fails_at_work_is_no_bad_argument():
    zero = rg.Encoder(MODELS / "zero.onnx", engine="rten")
    with pytest.raises(rg.EncoderError) as caught:
        zero.samples(np.zeros((3, 16, 16), np.float32), 0.1, 3, identity="black")
    assert isinstance(caught.value, RuntimeError) and ": " in str(caught.value)


def test_the_interpreter_lock_is_free_while_the_encoder_runs(encoder):
    ticks, done = 0, threading.Event()

    def work():
        encoder.samples(RAMP, 0.1, 20_000, identity="ramp")
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        ticks += 1
    thread.join()
    assert ticks > 1000
