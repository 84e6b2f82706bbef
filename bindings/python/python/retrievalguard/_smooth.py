"""Embeddings of noisy copies by any Python function."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any, Callable, Iterator, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _native
from ._arrays import Seed, count, float32, is_tensor, matrix, seed_digits, span
from ._errors import InputError
from ._progress import Bar, Progress

Function = Callable[[Any], Any]

# Largest difference that companions may make in any component, as a share of the embedding's norm: rounding in another
# order makes about a tenth of it, statistics over a batch of hostile companions a hundred thousand times as much.
TOLERANCE = 1e-5

# How much larger than a picture hostile companions are.
LOUD = 1000.0


def smooth(
    function: Function,
    picture: ArrayLike,
    *,
    sigma: float,
    samples: Union[int, range],
    seed: Seed,
    identity: str,
    stage: str = "certify",
    batch: int = 64,
    progress: Progress = True,
    norm_bound: float = 1.0,
    excess: str = "refuse",
) -> NDArray[np.float32]:
    """Embeds noisy copies of a picture: the samples that `certify` takes.

    Parameters
    ----------
    function : callable
        Takes a float32 array ``(b, *picture.shape)`` and returns ``(b, d)``. A torch module gets a tensor on its own
        device instead, under ``torch.no_grad``; the package never imports torch. Every row must be a function
        of its picture alone: the function is tried first, on the picture by itself, twice, and beside companions a
        thousand times louder. A function that draws lots, or a module in training mode, is refused; one that companions
        reach gets one picture at a time, with a warning.
    picture : array_like
        Pixels in [0, 1], of any shape.
    sigma : float
        Standard deviation of the noise.
    samples : int or range
        How many, or which: ``range(1000, 2000)`` gives the second thousand of 2000.
    seed : int or bytes
        Root of the noise, fixed before the picture is seen.
    identity : str
        Name of the picture, unique in the data set; the noise depends on it.
    stage : {"certify", "pilot", "gallery", "measure", "choose"}
        What the samples are for; those of different stages are independent. Whatever is compared or chosen by samples takes
        "measure" or "choose", never "certify".
    batch : int
        Copies that the function gets at once, at most 256.
    progress : bool or callable
        Whether to show a bar, or a function of done and total.
    norm_bound : float
        Norm bound ``F`` that the function promises.
    excess : {"refuse", "project"}
        What happens to embeddings above it by more than rounding.

    Returns
    -------
    numpy.ndarray
        float32 ``(n, d)``, in the order of the samples.

    Raises
    ------
    InputError
        A picture that cannot be smoothed, an embedding that is not finite, too long or of another shape, or other
        numbers for the same picture the second time. What the function itself raises comes out as it is.

    Examples
    --------
    >>> import numpy as np
    >>> import retrievalguard as rg
    >>> def encode(batch):
    ...     return np.tanh(batch.mean(axis=(1, 2, 3)))[:, None]
    >>> picture = np.full((3, 8, 8), 0.5, dtype=np.float32)
    >>> samples = rg.smooth(encode, picture, sigma=0.25, samples=100, seed=7, identity="grey", progress=False)
    >>> samples.shape, samples.dtype
    ((100, 1), dtype('float32'))
    """
    pixels = float32(picture, "pixels")
    chosen = span(samples)
    batch = count(batch, "batch", least=1, most=2**31)
    if not isinstance(identity, str):
        raise InputError(f"identity is {identity!r}, wanted a string")
    digits = seed_digits(seed)
    flat = pixels.ravel()
    _native.check_picture(flat, list(pixels.shape), identity, float(sigma))
    call = _adapted(function)
    dimension, batch = _batched(call, pixels, min(batch, len(chosen)), stacklevel=3)
    with Bar(progress, len(chosen), "smoothing", "sample") as bar:

        def embed(pictures: NDArray[np.float32]) -> NDArray[np.float32]:
            rows = _rows(call(pictures), len(pictures))
            bar.by(len(pictures))
            return rows

        smoothing = {
            "shape": list(pixels.shape),
            "dimension": dimension,
            "identity": identity,
            "sigma": float(sigma),
            "seed": digits,
            "stage": str(stage),
            "start": chosen.start,
            "end": chosen.stop,
            "batch": batch,
            "norm_bound": float(norm_bound),
            "excess": str(excess),
        }
        return _native.smooth(embed, flat, smoothing)


def _rows(result: Any, wanted: int) -> NDArray[np.float32]:
    rows = matrix(result, "the function's embeddings")
    if len(rows) != wanted or rows.shape[1] == 0:
        raise InputError(f"the function gave an array of shape {rows.shape} for {wanted} pictures")
    return rows


def _tried(call: Function, picture: NDArray[np.float32], size: int) -> tuple[int, bool | None]:
    """The dimension of embeddings, and whether a picture's is the same in every company; raises if it is not its own.

    Nobody can tell from an embedding that is not finite; the answer then is None.
    """
    alone = _rows(call(picture[None]), 1)
    dimension = alone.shape[1]

    def embedded(pictures: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        rows = _rows(call(np.stack(pictures)), len(pictures))
        if rows.shape[1] != dimension:
            raise InputError(
                f"the function gave an array of shape {rows.shape} for {len(pictures)} pictures, "
                f"wanted {(len(pictures), dimension)}"
            )
        return rows

    # Any numbers without a pattern would do; these are the same on every machine.
    loud = LOUD * np.random.default_rng(0).random(picture.shape, dtype=np.float32)
    quiet = np.zeros_like(picture)
    constant = np.full_like(picture, LOUD)
    with np.errstate(all="ignore"):
        first = embedded([loud, picture, -loud])[1]
        second = embedded([picture, quiet, constant, picture])
    again = embedded([picture])
    if again.tobytes() != alone.tobytes():
        raise InputError("the function gave other numbers for the same picture the second time, wanted the same bits")
    if not np.isfinite(alone).all():
        # Samples may be finite; one that is not is refused with its place.
        return dimension, None
    exact = alone[0].astype(np.float64)

    def unmoved(rows: NDArray[np.float32]) -> bool:
        with np.errstate(all="ignore"):
            difference = np.abs(rows.astype(np.float64) - exact).max()
            return bool(difference <= TOLERANCE * np.linalg.norm(exact))

    together = unmoved(np.stack([first, second[0], second[3]]))
    if together and size > 4:
        # What a function makes of the number of pictures may begin to show at any size.
        with np.errstate(all="ignore"):
            rows = embedded([picture, *[loud, -loud] * size][: size - 1] + [picture])
        together = unmoved(rows[[0, -1]])
    return dimension, together


def _batched(call: Function, picture: NDArray[np.float32], size: int, stacklevel: int) -> tuple[int, int]:
    """The dimension of embeddings, and how many pictures the function may get at once: one, if companions reach it."""
    dimension, together = _tried(call, picture, size)
    if together is False:
        warnings.warn(
            "the function's embeddings depend on what else is in the batch, so it gets one picture at a time, which is slower",
            stacklevel=stacklevel,
        )
    return dimension, size if together else 1


def _behind(function: Any, depth: int = 3) -> Iterator[Any]:
    """What a function is made of: itself, what it wraps, and what it holds or names."""
    yield function
    if depth == 0:
        return
    parts: list[Any] = []
    if isinstance(function, (list, tuple, set, frozenset)):
        parts += function
    if isinstance(function, dict):
        parts += function.values()
    if isinstance(function, functools.partial):
        parts += [function.func, *function.args, *function.keywords.values()]
    parts += [getattr(function, name, None) for name in ("__self__", "__wrapped__")]
    code = getattr(function, "__code__", None)
    if code is not None:
        for cell in getattr(function, "__closure__", None) or ():
            try:
                parts.append(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        names = getattr(function, "__globals__", {})
        parts += [names[name] for name in code.co_names if name in names]
    elif not isinstance(function, type(sys)):
        parts += list(getattr(function, "__dict__", {}).values())
    for part in parts:
        if part is not None and not isinstance(part, (type(sys), str, bytes, int, float)):
            yield from _behind(part, depth - 1)


def _adapted(function: Function) -> Function:
    """The function, with arrays made tensors where it is a torch module."""
    if not callable(function):
        raise InputError(f"function is {type(function).__name__}, wanted something to call")
    torch = sys.modules.get("torch")
    if torch is None:
        return function
    for part in _behind(function):
        # Batch statistics and dropout would make an embedding depend on its companions or on chance.
        if isinstance(part, torch.nn.Module) and any(inner.training for inner in part.modules()):
            raise InputError("the module or a part of it is in training mode, wanted it after module.eval()")
    if not isinstance(function, torch.nn.Module):

        def without_gradients(batch: NDArray[np.float32]) -> Any:
            with torch.no_grad():
                return function(batch)

        return without_gradients
    module: Any = function
    parameter = next(iter(module.parameters()), None)

    def embed(batch: NDArray[np.float32]) -> Any:
        with torch.no_grad():
            tensor = torch.from_numpy(batch)
            if parameter is not None:
                tensor = tensor.to(device=parameter.device, dtype=parameter.dtype)
            result = module(tensor)
            return result.float() if is_tensor(result) else result

    return embed
