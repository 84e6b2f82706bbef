"""Encoders in ONNX files."""

from __future__ import annotations

import importlib.util
import os
import warnings
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _native
from ._arrays import PathLike, Seed, as_array, count, float32, is_image, rgb_pixels, seed_digits, span
from ._errors import InputError
from ._progress import Bar, Progress

if TYPE_CHECKING:
    import PIL.Image

Picture = Union[PathLike, bytes, ArrayLike, "PIL.Image.Image"]


class Encoder:
    """An encoder in an ONNX file, with the config that says how pictures are prepared for it.

    Parameters
    ----------
    model : path_like
        The ONNX file.
    contract : path_like, optional
        Its config, if it is not beside it as ``encoder.toml`` or ``config.json``.
    engine : {"onnxruntime", "rten", "double"}, optional
        onnxruntime if it is installed, otherwise the built-in rten.
    threads : int, optional
        One per core by default. Results do not depend on it.
    library : path_like, optional
        onnxruntime's library, or the folder that holds it; that of the installed package by default.
    provider : str
        Where onnxruntime computes: ``"cpu"``, or ``"cuda"``, ``"tensorrt"``, ``"openvino"``, ``"coreml"`` (untested).
    batch : int
        Pictures that are handed over at once, at most 256. Results do not depend on it.
    non_negative : bool
        Set negative components of every embedding to zero: another encoder, unless it has none. Half-space certificates reach
        further; gallery and queries must both be made so.
    """

    def __init__(
        self,
        model: PathLike,
        contract: Optional[PathLike] = None,
        engine: Optional[str] = None,
        threads: Optional[int] = None,
        *,
        library: Optional[PathLike] = None,
        provider: str = "cpu",
        batch: int = 64,
        non_negative: bool = False,
    ) -> None:
        self._opening: dict[str, Any] = {
            "model": os.fspath(model),
            "contract": None if contract is None else os.fspath(contract),
            "engine": engine,
            "library": None if library is None else os.fspath(library),
            "provider": provider,
            "threads": None if threads is None else count(threads, "threads", least=1),
            "batch": count(batch, "batch", least=1),
            "non_negative": bool(non_negative),
        }
        self._encoder = _open(self._opening)
        for notice in self._encoder.notices:
            warnings.warn(notice, stacklevel=2)

    def __reduce__(self) -> tuple[Any, ...]:
        # The file is opened again where it arrives.
        return (_again, (self._opening,))

    def __repr__(self) -> str:
        return f"Encoder({str(self._encoder.model)!r}, {self.shape} to {self.dimension}, {self.engine})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one picture: channels, height, width."""
        return tuple(self._encoder.shape)

    @property
    def dimension(self) -> int:
        """Length of an embedding."""
        return self._encoder.dimension

    @property
    def norm_bound(self) -> float:
        """Norm bound ``F`` of the embeddings."""
        return self._encoder.norm_bound

    @property
    def engine(self) -> str:
        """Which engine runs, with its version."""
        return self._encoder.engine

    @property
    def lipschitz(self) -> float:
        """Upper bound on the Lipschitz constant, computed from the weights; needs the engine ``"double"``."""
        return self._encoder.lipschitz

    @property
    def check(self) -> str:
        """How it was settled that embeddings are functions of single pictures: run together, or one by one and why."""
        return self._encoder.check

    @property
    def digest(self) -> str:
        """SHA-256 of the ONNX file."""
        return self._encoder.digest

    def prepare(self, picture: Picture, identity: str = "picture") -> NDArray[np.float32]:
        """Decodes, resizes and crops a picture as the model config says.

        Parameters
        ----------
        picture : path_like, bytes, PIL.Image.Image or array_like
            A JPEG, PNG or WebP file, the bytes of one, an image of Pillow, or uint8 pixels ``(height, width, 3)``,
            ``(3, height, width)`` or ``(height, width)``.
        identity : str
            What messages call a picture without a path.

        Returns
        -------
        numpy.ndarray
            float32 of `shape`, in [0, 1].
        """
        if isinstance(picture, (str, os.PathLike)):
            return self._encoder.prepare_file(os.fspath(picture))
        if isinstance(picture, (bytes, bytearray, memoryview)):
            return self._encoder.prepare_bytes(identity, bytes(picture))
        pixels = rgb_pixels(picture)
        height, width, _ = pixels.shape
        return self._encoder.prepare_pixels(identity, height, width, pixels.ravel())

    def _pixels(self, picture: Any, identity: str) -> NDArray[np.float32]:
        """What the encoder takes, from a prepared picture or one that is not."""
        if isinstance(picture, (str, os.PathLike, bytes, bytearray, memoryview)) or is_image(picture):
            return self.prepare(picture, identity)
        array = as_array(picture, "pixels")
        if array.dtype == np.uint8:
            return self.prepare(array, identity)
        if array.shape != self.shape:
            raise InputError(f"picture `{identity}` has shape {array.shape}, the encoder wants {self.shape}")
        return float32(array, "pixels")

    def embed(self, pictures: Union[Picture, Sequence[Picture]]) -> NDArray[np.float32]:
        """Embeds clean pictures.

        Parameters
        ----------
        pictures : array_like, path_like, bytes, PIL.Image.Image, or a list of them
            Prepared pictures ``(b, *shape)``, one of them, or whatever `prepare` takes.

        Returns
        -------
        numpy.ndarray
            float32 ``(b, dimension)``, or ``(dimension,)`` for one picture.
        """
        one = isinstance(pictures, (str, os.PathLike, bytes, bytearray, memoryview)) or is_image(pictures)
        if not one and not isinstance(pictures, (list, tuple)):
            array = as_array(pictures, "pictures")
            one = array.ndim == len(self.shape) and array.dtype != np.uint8 or array.ndim == 2
            one = one or (array.dtype == np.uint8 and array.ndim == 3 and array.shape[-1] == 3)
        parts = [pictures] if one else list(pictures)  # type: ignore[arg-type]
        prepared = [self._pixels(picture, str(place)) for place, picture in enumerate(parts)]
        flat = np.concatenate([part.ravel() for part in prepared]) if prepared else np.empty(0, np.float32)
        if not np.isfinite(flat).all():
            raise InputError("a picture has a NaN or infinite pixel, wanted finite numbers")
        rows = self._encoder.embed(flat, len(prepared))
        return rows[0] if one else rows

    def gradient(self, picture: Picture, direction: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embeds one picture and differentiates the product of its embedding with a direction.

        The graph of the ONNX file is evaluated for it, and compared with the engine first.

        Parameters
        ----------
        picture : array_like, path_like or bytes
            A prepared picture of `shape`, or whatever `prepare` takes.
        direction : array_like
            Numbers ``(dimension,)``.

        Returns
        -------
        embedding : numpy.ndarray
            float32 ``(dimension,)``, as the graph evaluates it: the engine's up to rounding.
        gradient : numpy.ndarray
            float32 of `shape`, with respect to the pixels in [0, 1].

        Raises
        ------
        InputError
            A node of the graph that cannot be evaluated is named.
        """
        pixels = self._pixels(picture, "picture")
        towards = float32(direction, "direction").ravel()
        embedding, gradient = self._encoder.gradient(pixels.ravel(), towards)
        return embedding, gradient.astype(np.float32).reshape(self.shape)

    def samples(
        self,
        picture: Picture,
        sigma: float,
        n: Union[int, range],
        seed: Seed = 0,
        stage: str = "certify",
        *,
        identity: Optional[str] = None,
        excess: str = "refuse",
        progress: Progress = False,
    ) -> NDArray[np.float32]:
        """Embeds noisy copies of a picture: the samples that `certify` takes.

        Parameters
        ----------
        picture : path_like, bytes, PIL.Image.Image or array_like
            A prepared picture of `shape`, or whatever `prepare` takes.
        sigma : float
            Standard deviation of the noise.
        n : int or range
            How many samples, or which.
        seed : int or bytes
            Root of the noise.
        stage : {"certify", "pilot", "gallery", "measure", "choose"}
            What the samples are for; whatever is compared or chosen by them takes "measure" or "choose", never "certify".
        identity : str, optional
            Name of the picture, on which the noise depends; the path as it was given by default, and wanted for
            anything else.
        excess : {"refuse", "project"}
            What happens to embeddings above the norm bound.
        progress : bool or callable
            Whether to show a bar, or a function of done and total.

        Returns
        -------
        numpy.ndarray
            float32 ``(n, dimension)``.
        """
        if identity is None:
            if not isinstance(picture, (str, os.PathLike)):
                raise InputError("a picture without a path has no identity, wanted the argument `identity`")
            identity = str(os.fspath(picture))
        pixels = self._pixels(picture, identity).ravel()
        chosen = span(n)
        sampling = {
            "identity": identity,
            "sigma": float(sigma),
            "seed": seed_digits(seed),
            "stage": str(stage),
            "excess": str(excess),
        }
        # Pieces between which Ctrl-C is heard.
        step = 256 * self._encoder.threads
        pieces = []
        with Bar(progress, len(chosen), "smoothing", "sample") as bar:
            for start in range(chosen.start, chosen.stop, step):
                end = min(start + step, chosen.stop)
                pieces.append(self._encoder.samples(pixels, {**sampling, "start": start, "end": end}))
                bar.by(end - start)
        return np.concatenate(pieces)


def _open(opening: dict[str, Any]) -> _native.Encoder:
    """Opens a model with the onnxruntime of this very environment, if there is one and no other was asked for."""
    return _native.Encoder({**opening, "library": opening["library"] or usual_library(opening["engine"])})


def usual_library(engine: Optional[str]) -> Optional[str]:
    """The folder with onnxruntime's library in this very environment, unless another engine or library is named."""
    if engine == "rten" or os.environ.get("ORT_DYLIB_PATH"):
        return None
    package = importlib.util.find_spec("onnxruntime")
    folders = (package.submodule_search_locations or []) if package else []
    places = (os.path.join(folder, "capi") for folder in folders)
    return next((place for place in places if os.path.isdir(place)), None)


def _again(opening: dict[str, Any]) -> Encoder:
    names = {name: value for name, value in opening.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Encoder(names.pop("model"), **names)
