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


def is_data_set(pictures: Any) -> bool:
    """Whether these are pairs in memory, not a path."""
    if isinstance(pictures, (str, bytes, os.PathLike)):
        return False
    if hasattr(pictures, "__iter__") or hasattr(pictures, "__getitem__"):
        return True
    raise InputError(f"pictures are {type(pictures).__name__}, wanted a path or pairs of a picture and its label")


def is_image(values: Any) -> bool:
    """Whether this is an image of Pillow, which is never imported for it."""
    return type(values).__module__.split(".")[0] == "PIL" or (hasattr(values, "getexif") and hasattr(values, "convert"))


def rgb_pixels(picture: Any) -> NDArray[np.uint8]:
    """Interleaved RGB of an image of Pillow or of 8-bit pixels, the way files are decoded: upright, without transparency."""
    if is_image(picture):
        from PIL import ImageOps

        picture = ImageOps.exif_transpose(picture).convert("RGB")
    pixels = as_array(picture, "pixels")
    if pixels.dtype != np.uint8:
        raise InputError(f"pixels hold {pixels.dtype} values, wanted uint8")
    if pixels.ndim == 3 and pixels.shape[2] not in (1, 3) and pixels.shape[0] in (1, 3):
        # As torchvision decodes files: planes.
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise InputError(f"pixels have shape {pixels.shape}, wanted (height, width, 3) or (height, width)")
    return np.ascontiguousarray(pixels)


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
