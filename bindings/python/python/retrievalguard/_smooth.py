"""Embeddings of noisy copies by any Python function."""

from __future__ import annotations

import sys
from typing import Any, Callable, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _native
from ._arrays import Seed, count, float32, is_tensor, matrix, seed_digits, span
from ._errors import InputError
from ._progress import Bar, Progress

Function = Callable[[Any], Any]


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
        device instead, under ``torch.no_grad``; torch is imported by nobody but its user. It is called once with the
        picture as it is, to learn ``d``.
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
    stage : {"certify", "pilot", "gallery"}
        What the samples are for; those of different stages are independent.
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
        A picture that cannot be smoothed, or an embedding that is not finite, too long or of another shape. What the
        function itself raises comes out as it is.

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
    dimension = _rows(call(pixels[None]), 1).shape[1]
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


def _adapted(function: Function) -> Function:
    """The function, with arrays made tensors where it is a torch module."""
    if not callable(function):
        raise InputError(f"function is {type(function).__name__}, wanted something to call")
    torch = sys.modules.get("torch")
    if torch is None:
        return function
    if not isinstance(function, torch.nn.Module):

        def without_gradients(batch: NDArray[np.float32]) -> Any:
            with torch.no_grad():
                return function(batch)

        return without_gradients
    module: Any = function
    if any(part.training for part in module.modules()):
        # Batch statistics and dropout would make an embedding depend on its companions or on chance.
        raise InputError("the module or a part of it is in training mode, wanted it after module.eval()")
    parameter = next(iter(module.parameters()), None)

    def embed(batch: NDArray[np.float32]) -> Any:
        with torch.no_grad():
            tensor = torch.from_numpy(batch)
            if parameter is not None:
                tensor = tensor.to(device=parameter.device, dtype=parameter.dtype)
            result = module(tensor)
            return result.float() if is_tensor(result) else result

    return embed
