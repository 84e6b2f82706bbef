"""Gaussian noise as a pure function of seed, picture, stage, sample and pixel."""

from __future__ import annotations

import math
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _native
from ._arrays import Seed, count, float32, identity_bytes, seed_digits, span
from ._errors import InputError


class Noise:
    """All the noise of one picture in one stage, equal to that of the Rust crates bit for bit.

    Every value has its own counter, so the order in which values are asked for, the batch size and the number of threads
    never change one.

    Parameters
    ----------
    seed : int or bytes
        Root of the noise: a whole number below 2**128, or 16 bytes.
    identity : str or bytes
        Name of the picture, unique in the data set.
    stage : {"certify", "pilot", "gallery", "attack", "train", "judge", "measure", "choose", "trial"}
        What the noise is for; samples of different stages are independent. What is measured or compared before anything is
        certified takes "measure" or "choose", so that nothing is chosen on the sample that proves.

    Examples
    --------
    >>> import numpy as np
    >>> import retrievalguard as rg
    >>> noise = rg.Noise(42, "birds/albatross-7.jpg", "certify")
    >>> image = np.full((3, 32, 32), 0.5, dtype=np.float32)
    >>> noisy = noise.add(image, 17, sigma=0.25)
    >>> bool(np.all(noisy == image + np.float32(0.25) * noise.fill(17, image.shape)))
    True
    """

    def __init__(self, seed: Seed, identity: Union[str, bytes], stage: str = "certify") -> None:
        self._stream = _native.Noise(seed_digits(seed), identity_bytes(identity), str(stage))
        self._identity, self._stage = identity, stage

    def __repr__(self) -> str:
        # The seed may be secret.
        return f"Noise(seed=..., identity={self._identity!r}, stage={self._stage!r})"

    def fill(self, sample: int, shape: Union[int, tuple[int, ...]], first_pixel: int = 0) -> NDArray[np.float32]:
        """Standard normals of one sample.

        Parameters
        ----------
        sample : int
            Index of the sample.
        shape : int or tuple of int
            Shape of the result.
        first_pixel : int
            Where in the picture the result begins.

        Returns
        -------
        numpy.ndarray
            float32 of the given shape.

        Examples
        --------
        >>> import retrievalguard as rg
        >>> noise = rg.Noise(42, "cat-7")
        >>> whole = noise.fill(3, (2, 5))
        >>> bool((noise.fill(3, 4, first_pixel=6) == whole.ravel()[6:]).all())
        True
        """
        sides = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        sides = tuple(count(side, "shape", most=2**34) for side in sides)
        size = math.prod(sides)
        if size > 2**34:
            raise InputError(f"shape is {sides}, wanted at most {2**34} values")
        first_pixel = count(first_pixel, "first_pixel", most=2**34)
        return self._stream.fill(count(sample, "sample"), first_pixel, size).reshape(sides)

    def add(self, image: ArrayLike, sample: Union[int, range], sigma: float) -> NDArray[np.float32]:
        """Noisy copies of a picture, ``image + sigma * z`` in float32.

        Parameters
        ----------
        image : array_like
            Pixels of any shape.
        sample : int or range
            Index of the sample; a range gives one copy for each, along a new first axis.
        sigma : float
            Standard deviation of the noise.

        Returns
        -------
        numpy.ndarray
            float32, of the picture's shape, or of ``(len(sample), *image.shape)``.
        """
        pixels = float32(image, "pixels")
        many = isinstance(sample, range)
        chosen: Any = span(sample, "sample") if many else range(count(sample, "sample"), 0)
        copies = len(chosen) if many else 1
        noisy = self._stream.add(pixels.ravel(), chosen.start, copies, float(sigma))
        return noisy.reshape((copies, *pixels.shape) if many else pixels.shape)
