"""One picture, answered with a certificate."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import replace
from typing import Any, Iterable, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from . import _native
from ._arrays import PathLike, Seed, as_array, count, float32, is_image, rgb_pixels
from ._certificates import Certificate
from ._certify import LIPSCHITZ, Exclude, _excluded, _row
from ._embeddings import certify_embeddings
from ._encoder import Encoder, Picture
from ._errors import InputError
from ._gallery import Gallery, Label, label_text
from ._pipeline import _certifying
from ._progress import Bar, Progress
from ._smooth import Function, _adapted, _batched, _rows

# How far prepared pixels may lie outside [0, 1]: what resizing in floating point rounds.
SLACK = 1e-3

ASKING_AGAIN = "the seed was drawn for this question alone: asking again draws other noise and is a new attempt at alpha {alpha:g}"


class Taken(NamedTuple):
    """A picture as it was handed over."""

    rgb: Optional[NDArray[np.uint8]]
    """Decoded pixels, unless it is prepared already."""
    prepared: Optional[NDArray[np.float32]]
    path: Optional[str]

    @property
    def digest(self) -> str:
        """Stands for the pixels, however they were handed over."""
        pixels: NDArray[Any] = self.rgb if self.rgb is not None else np.asarray(self.prepared)
        head = f"{pixels.dtype.str} {pixels.shape}\n".encode()
        return hashlib.sha256(head + pixels.tobytes()).hexdigest()[:16]


def take(picture: Any, what: str = "picture") -> Taken:
    """Decodes a file, an image of Pillow or 8-bit pixels; takes floating-point pixels as prepared."""
    if isinstance(picture, (str, os.PathLike)):
        path = str(os.fspath(picture))
        return Taken(_native.decode_file(path), None, path)
    if isinstance(picture, (bytes, bytearray, memoryview)):
        return Taken(_native.decode_bytes(what, bytes(picture)), None, None)
    if is_image(picture):
        return Taken(rgb_pixels(picture), None, None)
    array = as_array(picture, what)
    if array.dtype == np.uint8:
        return Taken(rgb_pixels(array), None, None)
    pixels = float32(array, what)
    if pixels.size == 0:
        raise InputError(f"{what} has shape {pixels.shape}, wanted pixels")
    low, high = float(pixels.min()), float(pixels.max())
    # Not a number compares false, and is named below with its place.
    if low < -SLACK or high > 1 + SLACK:
        raise InputError(
            f"{what} has pixels from {low:.4g} to {high:.4g}, wanted floating-point pixels in [0, 1]: noise and radii are in these "
            "units, and means and standard deviations belong into the encoder"
        )
    return Taken(None, pixels, None)


class Prepared:
    """An encoder or a function, and pictures as it takes them."""

    def __init__(self, encoder: Union[Encoder, Function], norm_bound: Optional[float] = None, batch: int = 64) -> None:
        self.encoder = encoder
        self._norm_bound = 1.0 if norm_bound is None else float(norm_bound)
        self._batch = count(batch, "batch", least=1, most=256)
        if not isinstance(encoder, Encoder):
            self._call = _adapted(encoder)
        elif norm_bound is not None:
            raise InputError(f"norm_bound is {norm_bound}, wanted none beside an Encoder, which says its own")

    def prepared(self, taken: Taken, what: str) -> NDArray[np.float32]:
        """The picture as the encoder takes it."""
        if isinstance(self.encoder, Encoder):
            if taken.rgb is not None:
                return self.encoder.prepare(taken.rgb, what)
            pixels = np.asarray(taken.prepared)
            if pixels.shape != self.encoder.shape:
                raise InputError(f"{what} has shape {pixels.shape}, the encoder wants {self.encoder.shape}")
            return pixels
        if taken.prepared is not None:
            return taken.prepared
        # Of its own size: what a function wants of a picture, only its user knows.
        planes = np.moveaxis(np.asarray(taken.rgb), 2, 0).astype(np.float32) / np.float32(255)
        return np.ascontiguousarray(planes)

    def function(self, pixels: NDArray[np.float32]) -> Optional[dict[str, Any]]:
        """The function, tried on this very picture as `smooth` does; None for an `Encoder`, which was tried when it was opened."""
        if isinstance(self.encoder, Encoder):
            return None
        call = self._call
        dimension, batch = _batched(call, pixels, self._batch, stacklevel=5)
        return {
            "call": lambda pictures: _rows(call(pictures), len(pictures)),
            "shape": list(pixels.shape),
            "dimension": dimension,
            "norm_bound": self._norm_bound,
            "batch": batch,
        }


class Asker(Prepared):
    """An encoder and a gallery that are asked about pictures, one after the other."""

    def __init__(
        self,
        encoder: Union[Encoder, Function],
        gallery: Union[Gallery, PathLike],
        *,
        certifying: dict[str, Any],
        norm_bound: Optional[float] = None,
        lipschitz: Optional[float] = None,
        forward_error: float = 0.0,
        batch: int = 64,
        usual: tuple[tuple[str, ...], tuple[str, ...]] = (("pairwise",), ("lipschitz",)),
    ) -> None:
        super().__init__(encoder, norm_bound, batch)
        self.gallery = gallery if isinstance(gallery, Gallery) else Gallery.read(gallery)
        self.certifying = dict(certifying)
        sigma = certifying["sigma"]
        self.sigma: Optional[float] = self.gallery.sigma if sigma is None else sigma
        self._lipschitz, self._forward_error = lipschitz, float(forward_error)
        self._digests: Optional[dict[str, list[int]]] = None
        if isinstance(encoder, Encoder) and lipschitz is not None:
            raise InputError(f"lipschitz is {lipschitz}, wanted none beside an Encoder, which computes its own")
        if lipschitz is not None:
            if self.sigma is not None:
                whose = "the gallery was smoothed with" if sigma is None else "it was asked with"
                raise InputError(f"lipschitz is for questions without noise, and {whose} sigma {self.sigma}")
            self._refuse_noise()
        if self.certifying["certificates"] is None:
            self.certifying = {**certifying, "certificates": list(usual[0] if self.noisy else usual[1])}

    @property
    def noisy(self) -> bool:
        """Whether answers come from noisy copies."""
        return self.sigma is not None

    @property
    def alpha(self) -> Optional[float]:
        """Probability that one certificate is wrong."""
        if not self.noisy:
            return None
        alpha = self.certifying["alpha"]
        return 0.01 if alpha is None else float(alpha)

    def _refuse_noise(self) -> None:
        names = ("alpha", "samples", "pilot", "target_radius", "seed")
        given = [name for name in names if self.certifying[name] is not None]
        if given:
            raise InputError(f"{given[0]} says nothing without noise, wanted none beside lipschitz")

    def own_rows(self, taken: Taken, identity: str, leave_one_out: str) -> list[int]:
        """Rows of the gallery that are the very picture."""
        if leave_one_out == "never":
            return []
        if leave_one_out not in ("auto", "always"):
            raise InputError(f"leave_one_out is `{leave_one_out}`, wanted auto, always or never")
        rows = self.gallery.rows_of(identity) if leave_one_out == "always" else []
        rows += self._rows_by_digest().get(taken.digest, [])
        if taken.path is not None:
            # A gallery names pictures by their paths below the folder that was indexed.
            parts = os.path.normpath(taken.path).split(os.sep)
            for first in range(len(parts)):
                for row in self.gallery.rows_of("/".join(parts[first:])):
                    path = self.gallery._stored.picture_path(row)
                    if path is not None and _same_bytes(taken.path, path):
                        rows.append(row)
        return sorted(set(rows))

    def _rows_by_digest(self) -> dict[str, list[int]]:
        """Rows of pictures that were handed over by a data set, by what stands for their pixels."""
        if self._digests is None:
            self._digests = {}
            try:
                names = self.gallery._stored.identities()
            except InputError:  # in shards on disk, which data sets are not written to
                names = []
            for row, name in enumerate(names):
                digest = name.rpartition("-")[2]
                if len(digest) == 16:
                    self._digests.setdefault(digest, []).append(row)
        return self._digests

    def ask(
        self,
        taken: Taken,
        label: Optional[Label],
        *,
        identity: str,
        item: Optional[int] = None,
        excluded: Iterable[int] = (),
        queries: int = 1,
        progress: Any = None,
    ) -> dict[str, Certificate]:
        """Certificates of one picture, by their names."""
        if label is not None and item is not None:
            raise InputError("both a label and an item were given, wanted one of them")
        pixels = self.prepared(taken, identity)
        if self._lipschitz is not None:
            return self._without_noise(pixels, label, item, list(excluded))
        certifying = self.certifying
        asking_again = None
        if self.noisy and certifying["seed"] is None:
            # Drawn after the picture is here, so that nobody could aim at the noise.
            certifying = {**certifying, "seed": str(secrets.randbits(128))}
            asking_again = ASKING_AGAIN.format(alpha=self.alpha)
        asked = {
            "identity": identity,
            "label": None if label is None else label_text(label),
            "item": None if item is None else count(item, "item", most=2**63 - 1),
            "excluded": list(excluded),
            "queries": queries,
        }
        native = self.encoder._encoder if isinstance(self.encoder, Encoder) else None
        answer = _native.certify_picture(
            (native, self.function(pixels)), pixels.ravel(), self.gallery._stored, asked, certifying, progress
        )
        alpha = self.alpha
        if alpha is not None and certifying["simultaneous"]:
            alpha /= queries
        rows = _row(answer, self.gallery, {"sigma": self.sigma, "alpha": alpha}, identity)
        return {name: replace(found, asking_again=asking_again) for name, found in rows.items()}

    def _without_noise(
        self, pixels: NDArray[np.float32], label: Optional[Label], item: Optional[int], excluded: list[int]
    ) -> dict[str, Certificate]:
        self.function(pixels)  # refuses one whose embeddings are not its picture's own
        embedding = as_array(self._call(pixels[None]), "the function's embedding")
        rows: dict[str, Certificate] = {}
        for name in self.certifying["certificates"]:
            found = certify_embeddings(
                embedding[0],
                self.gallery,
                label,
                lipschitz=float(self._lipschitz or 0.0),
                forward_error=self._forward_error,
                certificate=name,
                item=item,
                exclude=excluded,
                top_k=self.certifying["top_k"],
                mixtures=self.certifying["mixtures"] or 1,
            )
            assert isinstance(found, Certificate)
            rows[name] = found
        return rows


def certify_picture(
    encoder: Union[Encoder, Function],
    gallery: Union[Gallery, PathLike],
    picture: Picture,
    label: Optional[Label] = None,
    *,
    sigma: Optional[float] = None,
    alpha: Optional[float] = None,
    samples: Optional[int] = None,
    pilot: Optional[int] = None,
    certificate: Optional[str] = None,
    target_radius: Optional[float] = None,
    item: Optional[int] = None,
    exclude: Exclude = None,
    leave_one_out: str = "auto",
    seed: Optional[Seed] = None,
    identity: Optional[str] = None,
    excess: str = "refuse",
    norm_bound: Optional[float] = None,
    lipschitz: Optional[float] = None,
    forward_error: float = 0.0,
    batch: int = 64,
    progress: Progress = False,
) -> Certificate:
    """Retrieves the label of one picture and proves how far its pixels may move without changing the answer.

    Without `label` it is the answer of a deployed system, as ``retrievalguard query`` gives it: the pilot chooses the label, and
    what cannot be proved is an abstention. With `label` it is an evaluation: is that label retrieved, and how surely?

    Parameters
    ----------
    encoder : Encoder, torch module or callable
        The encoder that made the gallery. A function takes ``(b, *shape)`` and returns ``(b, d)``, as in `smooth`.
    gallery : Gallery or path_like
        What is searched; for many pictures read it once.
    picture : path_like, bytes, PIL.Image.Image or array_like
        A file, the bytes of one, an image of Pillow, uint8 pixels ``(height, width, 3)``, or a prepared picture: floating-point
        pixels in [0, 1] of the shape that the encoder takes, such as a torch tensor ``(channels, height, width)``. An `Encoder`
        prepares what is not prepared; a function gets files, images and uint8 pixels as ``(3, height, width)`` in [0, 1], of
        their own size.
    label : str or int, optional
        The right label, if it is known.
    sigma : float, optional
        Standard deviation of the noise; that of the gallery by default. A gallery without a noise level is asked without
        noise: by an `Encoder` with a Lipschitz bound (``engine="double"``), or by a function for which `lipschitz` is given.
    alpha : float, optional
        Probability that the certificate is wrong, 0.01 by default.
    samples : int, optional
        Certifying samples, 1000 by default; the most that are drawn, with a target radius.
    pilot : int, optional
        Pilot samples, on which the label is chosen: 200, or 20 where they choose little (pairwise, and vote with a target
        radius).
    certificate : str, optional
        One of `retrievalguard.ALL`, ``"pairwise"`` by default; without noise ``"lipschitz"`` or ``"lipschitz-margin"``.
    target_radius : float, optional
        Stop as soon as this radius is certified, or out of reach (half-space, vote or pairwise).
    item : int, optional
        Certify that the item of this row stays first, instead of a label.
    exclude : str, int or sequence, optional
        Rows of the gallery, or identities of its pictures, that the query must not find.
    leave_one_out : {"auto", "always", "never"}
        With a label or an item, whether a picture that is also in the gallery is kept from finding itself: ``"auto"`` if it is
        the same picture, byte for byte of its file or pixel for pixel; ``"always"`` also by its name. Without them nothing is hidden.
    seed : int or bytes, optional
        Root of the noise. By default it is drawn from the operating system when the picture is here, so that nobody can aim
        at the noise; then `asking_again` says what a second question means.
    identity : str, optional
        Name of the picture, on which its noise depends: its path as given, or else a digest of its pixels.
    excess : {"refuse", "project"}
        What happens to embeddings above the norm bound.
    norm_bound : float, optional
        Norm bound ``F`` of a function, 1 by default; an `Encoder` says its own.
    lipschitz, forward_error : float, optional
        For a function without noise, your word on its Lipschitz constant and on the largest l2 error of an embedding, as in
        `certify_embeddings`.
    batch : int
        Copies that a function gets at once.
    progress : bool or callable
        Whether to show a bar, or a function of done and total.

    Returns
    -------
    Certificate
        With `verdict`, `radius`, `label`, `statement` and `explain()`.

    Examples
    --------
    >>> import numpy as np
    >>> import retrievalguard as rg
    >>> def encode(batch):
    ...     flat = batch.reshape(len(batch), -1) - 0.5
    ...     return flat / np.linalg.norm(flat, axis=1, keepdims=True)
    >>> rng = np.random.default_rng(7)
    >>> pictures = {label: rng.uniform(size=(3, 8, 8)).astype("f4") for label in ("cat", "dog")}
    >>> gallery = rg.Gallery([encode(p[None])[0] for p in pictures.values()], list(pictures))
    >>> found = rg.certify_picture(encode, gallery, np.clip(pictures["cat"] + 0.05, 0, 1), sigma=0.25, samples=500)
    >>> found.label, found.certified
    ('cat', True)
    >>> print(found.statement)
    label cat: no change of the prepared picture with l2 norm below ... changes it, except with probability 0.01 over the noise
    (pairwise retriever, 500 samples)
    """
    if certificate is not None and not isinstance(certificate, str) or certificate == "all":
        raise InputError("several certificates were asked of one picture, wanted one; `certify_pictures` computes several")
    certifying = _certifying(
        sigma=sigma, alpha=alpha, simultaneous=False, samples=samples, pilot=pilot, certificate=certificate,
        target_radius=target_radius, top_k=1, mixtures=None, replan_bets=False, seed=seed, leave_one_out="auto", excess=excess,
    )
    asker = Asker(
        encoder, gallery, certifying=certifying, norm_bound=norm_bound, lipschitz=lipschitz,
        forward_error=forward_error, batch=batch,
    )
    taken = take(picture)
    name = identity or taken.path or f"picture-{taken.digest}"
    excluded = set(_excluded(exclude, asker.gallery))
    if label is not None or item is not None:
        excluded.update(asker.own_rows(taken, name, leave_one_out))
        if item is not None and item in excluded:
            raise InputError(f"item {item} is the picture itself, which it is kept from finding; wanted leave_one_out=\"never\"")
    with Bar(progress, 0, "certifying", "sample") as bar:
        rows = asker.ask(taken, label, identity=name, item=item, excluded=sorted(excluded), progress=bar.to)
    return next(iter(rows.values()))


def _same_bytes(one: PathLike, other: PathLike) -> bool:
    """Whether two files are there and the same."""
    try:
        with open(one, "rb") as first, open(other, "rb") as second:
            return first.read() == second.read()
    except OSError:
        return False


__all__ = ["LIPSCHITZ", "Asker", "certify_picture", "take"]
