import functools
import subprocess
import sys
import types

import numpy as np
import pytest
import retrievalguard as rg
from conftest import bits

SIX = np.array([[0.0, 0.1, 0.2], [0.3, 0.4, 0.5]], dtype=np.float32)
COMMON = {"sigma": 0.25, "seed": 9, "identity": "six pixels", "progress": False}


def quarter(batch):
    return batch.reshape(len(batch), -1)[:, :4] * np.float32(0.25)


def test_samples_equal_those_of_rust_for_every_batch_size(reference):
    wanted = reference["smooth"]
    for batch in (1, 3, 64, 1000):
        found = rg.smooth(quarter, SIX, samples=range(wanted["start"], wanted["end"]), batch=batch, **COMMON)
        assert found.shape == (7, 4) and bits(found) == wanted["bits"]


def test_pieces_make_the_whole():
    whole = rg.smooth(quarter, SIX, samples=300, **COMMON)
    pieces = [rg.smooth(quarter, SIX, samples=range(start, start + 100), **COMMON) for start in (0, 100, 200)]
    assert (np.concatenate(pieces) == whole).all()
    assert (rg.smooth(quarter, SIX, samples=300, stage="pilot", **COMMON) != whole).any()


def test_batches_have_the_pictures_shape_and_progress_is_told():
    shapes, told = [], []

    def encode(batch):
        shapes.append(batch.shape)
        assert batch.dtype == np.float32
        return np.zeros((len(batch), 2))

    options = {**COMMON, "progress": lambda done, total: told.append((done, total))}
    rg.smooth(encode, SIX, samples=10, batch=4, **options)
    trial = [(1, 2, 3), (3, 2, 3), (4, 2, 3), (1, 2, 3)]
    assert shapes == trial + [(4, 2, 3), (4, 2, 3), (2, 2, 3)]
    assert told == [(4, 10), (8, 10), (10, 10)]


def test_a_bar_is_shown(capsys):
    rg.smooth(quarter, SIX, samples=10, **{**COMMON, "progress": True})
    assert "smoothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "function, change, message",
    [
        (lambda batch: np.full((len(batch), 2), np.nan), {}, "the encoder gave NaN in component 0 for sample 0 of"),
        (lambda batch: np.full((len(batch), 2), 9.0), {}, "embedding of norm 12.7.* wanted at most 1"),
        (lambda batch: np.zeros(len(batch)), {}, "the function's embeddings have shape"),
        (lambda batch: np.zeros((3, 2)), {}, r"the function gave an array of shape \(3, 2\) for 1 pictures"),
        (lambda batch: np.zeros((len(batch), len(batch))), {}, r"gave an array of shape \(3, 3\) for 3 pictures, wanted \(3, 1\)"),
        (lambda batch: None, {}, "wanted real numbers"),
        (None, {}, "function is NoneType, wanted something to call"),
        (quarter, {"picture": np.full((2, 3), np.inf)}, "picture `six pixels` has inf at pixel 0"),
        (quarter, {"picture": np.full((2, 3), 1e9)}, "is lost in rounding"),
        (quarter, {"picture": np.empty((0, 3))}, "wanted at least one"),
        (quarter, {"samples": 0}, "samples is 0, wanted a whole number from 1"),
        (quarter, {"samples": 2**32 - 1}, "4294967295 samples of 4 numbers take 68719476720 bytes of memory, wanted"),
        (quarter, {"samples": range(0, 10, 2)}, "wanted a non-empty range of step 1"),
        (quarter, {"batch": 0}, "batch is 0"),
        (quarter, {"sigma": -0.1}, "sigma is -0.1"),
        (quarter, {"stage": "tea"}, "stage is `tea`"),
        (quarter, {"identity": None}, "identity is None, wanted a string"),
        (quarter, {"norm_bound": 0}, "norm bound is 0"),
    ],
)
def test_hostile_functions_and_arguments_are_refused_by_name(function, change, message):
    options = {**COMMON, "picture": SIX, "samples": 4, **change}
    with pytest.raises(rg.InputError, match=message):
        rg.smooth(function, options.pop("picture"), **options)


def test_what_the_function_raises_comes_out_as_it_is():
    class Own(Exception):
        pass

    def encode(batch):
        if len(batch) > 1:
            raise Own("enough")
        return np.zeros((1, 2))

    with pytest.raises(Own, match="enough"):
        rg.smooth(encode, SIX, samples=4, **COMMON)

    def interrupted(batch):
        if len(batch) > 1:
            raise KeyboardInterrupt
        return np.zeros((1, 2))

    with pytest.raises(KeyboardInterrupt):
        rg.smooth(interrupted, SIX, samples=4, **COMMON)


def test_embeddings_above_the_bound_are_projected_when_told():
    found = rg.smooth(lambda batch: np.full((len(batch), 2), 9.0), SIX, samples=4, excess="project", **COMMON)
    assert np.allclose(np.linalg.norm(found, axis=1), 1)


class FakeTensor:
    """As much of a tensor as is used."""

    def __init__(self, values, log):
        self.values, self.log = values, log

    device, dtype = "here", "float32"

    def to(self, device, dtype):
        self.log.append(("to", device, dtype))
        return self

    def float(self):
        return self

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.values


FakeTensor.__module__ = "torch"


@pytest.fixture
def torch(monkeypatch):
    """A stand-in for torch, which is not installed where these tests run."""
    log = []

    class Module:
        training = False

        def parameters(self):
            return [FakeTensor(None, log)]

        def modules(self):
            return [self]

        def __call__(self, tensor):
            assert log[-2:] == [("no_grad", True), ("to", "here", "float32")]
            return FakeTensor(quarter(tensor.values), log)

    class NoGrad:
        def __enter__(self):
            log.append(("no_grad", True))

        def __exit__(self, *_):
            log.append(("no_grad", False))

    fake = types.ModuleType("torch")
    fake.nn = types.SimpleNamespace(Module=Module)
    fake.no_grad = NoGrad
    fake.from_numpy = lambda values: FakeTensor(values, log)
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_a_module_gets_tensors_without_gradients(torch, reference):
    module = torch.nn.Module()
    wanted = reference["smooth"]
    found = rg.smooth(module, SIX, samples=range(wanted["start"], wanted["end"]), **COMMON)
    assert bits(found) == wanted["bits"]
    module.training = True
    with pytest.raises(rg.InputError, match="wanted it after module.eval()"):
        rg.smooth(module, SIX, samples=3, **COMMON)


class Encoder:
    """Something to call that holds a module."""

    def __init__(self, module):
        self.module = module

    def __call__(self, batch):
        return quarter(batch)

    def encode(self, batch):
        return quarter(batch)


def test_a_module_in_training_is_found_behind_what_wraps_it(torch):
    module = torch.nn.Module()
    module.training = True
    holder = Encoder(module)
    models, named = [module], {"encoder": (module,)}
    wrapped = {
        "a closure": lambda batch: (module, quarter(batch))[1],
        "a list in a closure": lambda batch: (models, quarter(batch))[1],
        "a dict in a closure": lambda batch: (named, quarter(batch))[1],
        "a partial": functools.partial(lambda held, batch: quarter(batch), module),
        "a method": module.__call__,
        "an object": holder,
        "a method of an object": holder.encode,
    }
    for name, function in wrapped.items():
        with pytest.raises(rg.InputError, match="is in training mode, wanted it after module.eval()"):
            rg.smooth(function, SIX, samples=3, **COMMON)
            pytest.fail(name)
    module.training = False
    for function in [wrapped["a closure"], wrapped["a partial"], holder, holder.encode]:
        assert (rg.smooth(function, SIX, samples=3, **COMMON) == rg.smooth(quarter, SIX, samples=3, **COMMON)).all()


def test_a_function_that_companions_reach_gets_one_picture_at_a_time():
    def centred(batch):
        rows = quarter(batch)
        return np.tanh(rows - rows.mean(axis=0) + rows.sum(axis=1, keepdims=True)) / 2

    def scaled(batch):
        levels = np.abs(batch).max() / 127
        return quarter(np.round(batch / levels) * levels)

    for coupled in (centred, scaled):
        sizes = set()

        def watched(batch):
            sizes.add(len(batch))
            return coupled(batch)

        found = {}
        for batch in (1, 3, 64):
            with pytest.warns(UserWarning, match="one picture at a time"):
                found[batch] = rg.smooth(watched, SIX, samples=20, batch=batch, **COMMON)
        assert sizes == {1, 3, 4}  # beyond 1: the trial's own
        assert (found[1] == found[3]).all() and (found[1] == found[64]).all()


def test_the_number_of_pictures_is_noticed_at_the_size_that_runs():
    def counted(batch):
        return quarter(batch) / np.float32(max(len(batch), 8))

    with pytest.warns(UserWarning, match="one picture at a time"):
        found = rg.smooth(counted, SIX, samples=20, batch=10, **COMMON)
    assert (found == rg.smooth(counted, SIX, samples=20, batch=1, **COMMON)).all()


def test_a_function_that_cannot_be_tried_gets_one_picture_at_a_time():
    def encode(batch):
        sizes.append(len(batch))
        rows = quarter(batch)
        rows[(batch == SIX).all(axis=(1, 2))] = np.nan
        return rows

    sizes = []
    rg.smooth(encode, SIX, samples=5, batch=5, **COMMON)
    assert sizes[-5:] == [1] * 5


def test_rounding_is_no_company(recwarn):
    def nearly(batch):
        return quarter(batch) * np.float32(1 + 1e-7 * len(batch))

    rg.smooth(nearly, SIX, samples=4, **COMMON)
    assert not recwarn.list


def test_a_function_that_draws_lots_is_refused():
    rng = np.random.default_rng(1)
    with pytest.raises(rg.InputError, match="other numbers for the same picture the second time"):
        rg.smooth(lambda batch: quarter(batch) + 1e-3 * rng.random((len(batch), 4)), SIX, samples=4, **COMMON)


def test_a_plain_function_may_return_tensors(torch):
    found = rg.smooth(lambda batch: FakeTensor(quarter(batch), []), SIX, samples=3, **COMMON)
    assert (found == rg.smooth(quarter, SIX, samples=3, **COMMON)).all()


def test_nothing_heavy_is_imported_by_the_package():
    code = "import sys, retrievalguard; print([m for m in ('torch', 'pandas', 'polars', 'pyarrow', 'matplotlib') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
