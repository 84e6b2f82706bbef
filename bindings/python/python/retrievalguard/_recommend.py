"""Which noise level, which retriever, and what a decision will cost."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Optional, Sequence, Union

from . import _native
from ._arrays import PathLike, Seed, count, seed_digits
from ._encoder import Encoder
from ._pipeline import _encoder, _pictures, _tell_skipped
from ._progress import Bar, Progress


class EstimatedShare(NamedTuple):
    """An estimate of certified recall, with the 95 % interval that the number of queries leaves."""

    radius: float
    """The radius."""
    estimate: float
    """Share of the queries that are expected to be certified beyond the radius."""
    lower: float
    """Lower end of the interval."""
    upper: float
    """Upper end of the interval."""


class Setting(NamedTuple):
    """One noise level under one retriever."""

    sigma: float
    """Standard deviation of the noise."""
    retriever: str
    """``"mean"``, ``"vote"`` or ``"pairwise"``."""
    recall: float
    """Share of the queries that it answers rightly, judged by the noisy copies."""
    average_radius: float
    """Estimate of the average certified radius, zero where nothing is certified."""
    certified: tuple[EstimatedShare, ...]
    """Estimates of certified recall at a few radii."""
    passes: int
    """Encoder passes of one decision in the median."""
    target: Optional[float]
    """The radius that the passes decide; none where all samples are drawn."""
    seconds: float
    """The passes in seconds, at the speed of this run."""

    @property
    def certificate(self) -> str:
        """The certificate to ask for: ``"half-space"`` for the mean retriever, otherwise the retriever's name."""
        return "half-space" if self.retriever == "mean" else self.retriever


class Recommendation(NamedTuple):
    """What was tried and what is recommended; nothing in it is certified."""

    pictures: int
    """Pictures that were searched in."""
    classes: int
    """Their labels."""
    queries: int
    """Pictures that were asked for."""
    plain_recall: float
    """Share of the queries that the encoder without noise answers rightly."""
    passes_per_second: float
    """Speed of the encoder, all threads together."""
    settings: tuple[Setting, ...]
    """Every noise level under every retriever."""
    recommended: int
    """Position of the recommended one."""
    reason: str
    """Why that one."""

    @property
    def choice(self) -> Setting:
        """The recommended setting."""
        return self.settings[self.recommended]


def recommend(
    pictures: PathLike,
    encoder: Encoder,
    sigma: Union[float, Sequence[float]] = (0.1, 0.25, 0.5),
    *,
    radius: Optional[float] = None,
    recall_loss: float = 0.05,
    queries: int = 100,
    copies: int = 100,
    gallery_copies: int = 8,
    samples: int = 1000,
    alpha: float = 0.01,
    seed: Seed = 0,
    excess: str = "refuse",
    format: str = "auto",
    split: Optional[str] = None,
    every: int = 1,
    limit: Optional[int] = None,
    skip_broken: bool = False,
    progress: Progress = True,
) -> Recommendation:
    """Tries noise levels and retrievers on labelled pictures before anything is certified.

    The numbers are those of ``retrievalguard recommend``. Certified recall is an estimate from few noisy copies; their noise
    is used by no certificate.

    Parameters
    ----------
    pictures : path_like
        A folder of folders (``label/picture.jpg``), a CSV list, or a data set's folder.
    encoder : Encoder
        The encoder.
    sigma : float or sequence of float
        Noise levels to try.
    radius : float, optional
        The radius that matters to you; by default the average certified radius decides.
    recall_loss : float
        How much Recall@1 of the plain encoder may be lost.
    queries : int
        Pictures that are asked for, spread over all; the others are searched in.
    copies, gallery_copies : int
        Noisy copies of each query, and behind each stored vector.
    samples : int
        Samples of the certificates that are estimated.
    alpha : float
        Failure probability of the certificates that are estimated.
    seed : int or bytes
        Root of the noise.
    excess, format, split, every, limit, skip_broken, progress
        As in `index`.

    Returns
    -------
    Recommendation
        Every setting with its estimates, and the recommended one.
    """
    levels = [sigma] if isinstance(sigma, (int, float)) else list(sigma)
    trying: dict[str, Any] = {
        "sigmas": [float(level) for level in levels],
        "radius": None if radius is None else float(radius),
        "recall_loss": float(recall_loss),
        "queries": count(queries, "queries", least=1),
        "copies": count(copies, "copies", least=1),
        "gallery_copies": count(gallery_copies, "gallery_copies", least=1),
        "samples": count(samples, "sample count", most=2**63),
        "alpha": float(alpha),
        "seed": seed_digits(seed),
        "excess": str(excess),
    }
    chosen = _pictures(pictures, format, split, every, limit, skip_broken)
    with Bar(progress, 0, "trying", "picture") as bar:
        text, skipped = _native.recommend(chosen, _encoder(encoder), trying, bar.to)
    _tell_skipped(skipped)
    found = json.loads(text)
    settings = tuple(
        Setting(**{**setting, "certified": tuple(EstimatedShare(**share) for share in setting["certified"])})
        for setting in found.pop("settings")
    )
    return Recommendation(settings=settings, **found)


__all__ = ["EstimatedShare", "Recommendation", "Setting", "recommend"]
