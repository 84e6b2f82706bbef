"""What users hand over, as the arrays and numbers that the native module takes."""

from __future__ import annotations

import operator
import os
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import InputError

Seed = Union[int, bytes]
PathLike = Union[str, "os.PathLike[str]"]

LARGEST_F32 = float(np.finfo(np.float32).max)


def float32(values: Any, what: str) -> NDArray[np.float32]:
    """The values as contiguous float32; a copy only where it is needed.

    Numbers of other kinds are converted. What float32 would turn into infinity is refused: it was a finite number.
    """
    array = as_array(values, what)
    if array.dtype == np.float32:
        return np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{what} hold {array.dtype} values, wanted real numbers")
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        with np.errstate(invalid="ignore"):
            too_large = np.isfinite(array) & (np.abs(array) > LARGEST_F32)
        if too_large.any():
            place = tuple(int(axis) for axis in np.argwhere(too_large)[0])
            raise InputError(f"{what} have {float(array[place])} at {place}, wanted a number that fits into float32")
    return np.ascontiguousarray(array, dtype=np.float32).reshape(array.shape)


def as_array(values: Any, what: str) -> NDArray[Any]:
    """An array, also of a torch tensor."""
    if is_tensor(values):
        values = values.detach().cpu().numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} are not an array: {error}") from None


def is_tensor(values: Any) -> bool:
    """Whether this is a torch tensor; torch is never imported for it."""
    kind = type(values)
    return kind.__module__.split(".")[0] == "torch" and hasattr(values, "detach")


def matrix(values: ArrayLike, what: str) -> NDArray[np.float32]:
    """Rows of float32."""
    array = float32(values, what)
    if array.ndim != 2:
        raise InputError(f"{what} have shape {array.shape}, wanted two dimensions: rows of numbers")
    return array


def seed_digits(seed: Seed) -> str:
    """A seed of up to 128 bits: an integer, or 16 bytes of which the first is the lowest."""
    if isinstance(seed, (bytes, bytearray)):
        if len(seed) != 16:
            raise InputError(f"seed has {len(seed)} bytes, wanted 16")
        return str(int.from_bytes(seed, "little"))
    return str(whole(seed, "seed"))


def whole(value: Any, what: str) -> int:
    """An integer, also NumPy's."""
    if isinstance(value, bool):
        raise InputError(f"{what} is {value}, wanted a whole number")
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{what} is {value!r}, wanted a whole number") from None


def count(value: Any, what: str, least: int = 0, most: int = 2**32 - 1) -> int:
    """An integer within limits."""
    number = whole(value, what)
    if not least <= number <= most:
        raise InputError(f"{what} is {number}, wanted a whole number from {least} to {most}")
    return number


def span(samples: Any, what: str = "samples") -> range:
    """Sample indices: `n` stands for the first `n`, a range of step 1 for itself."""
    if isinstance(samples, range):
        if samples.step != 1 or len(samples) == 0 or samples.start < 0 or samples.stop > 2**32 - 1:
            raise InputError(f"{what} are {samples}, wanted a non-empty range of step 1 within 0 to {2**32 - 1}")
        return samples
    return range(count(samples, what, least=1))


def identity_bytes(identity: Any) -> bytes:
    """The bytes of a picture's name."""
    if isinstance(identity, str):
        return identity.encode("utf-8", "surrogatepass")
    if isinstance(identity, (bytes, bytearray)):
        return bytes(identity)
    raise InputError(f"identity is {identity!r}, wanted a string or bytes")
