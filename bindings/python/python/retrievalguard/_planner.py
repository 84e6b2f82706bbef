"""What could be certified at all, before any sample is drawn."""

from __future__ import annotations

from typing import Any, Optional

from . import _native
from ._arrays import count


def _guarantee(
    sigma: float, alpha: float, norm_bound: float, dimension: int, gallery_samples: Optional[int]
) -> dict[str, Any]:
    return {
        "sigma": float(sigma),
        "alpha": float(alpha),
        "norm_bound": float(norm_bound),
        "dimension": count(dimension, "dimension", least=1),
        "gallery_samples": None if gallery_samples is None else count(gallery_samples, "sample count"),
    }


def largest_radius(
    samples: int,
    *,
    sigma: float,
    alpha: float = 0.01,
    certificate: str = "half-space",
    norm_bound: float = 1.0,
    dimension: int = 128,
    gallery_samples: Optional[int] = None,
) -> Optional[float]:
    """The largest radius that any query could get, against gallery vectors of equal norms.

    Parameters
    ----------
    samples : int
        Certifying samples.
    sigma, alpha, certificate, norm_bound
        As in `certify`.
    dimension : int
        Length of an embedding, which the paper's certificates depend on.
    gallery_samples : int, optional
        Samples behind each gallery vector, for ``paper-repaired``.

    Returns
    -------
    float or None
        None if every query would abstain.

    Examples
    --------
    >>> import retrievalguard as rg
    >>> print(rg.largest_radius(100, sigma=0.25, certificate="paper"))
    None
    >>> round(rg.largest_radius(1000, sigma=0.25), 4)
    0.6512
    """
    guarantee = _guarantee(sigma, alpha, norm_bound, dimension, gallery_samples)
    return _native.largest_radius(str(certificate), count(samples, "sample count", most=2**63), guarantee)


def samples_needed(
    radius: float,
    *,
    sigma: float,
    alpha: float = 0.01,
    certificate: str = "half-space",
    norm_bound: float = 1.0,
    dimension: int = 128,
    gallery_samples: Optional[int] = None,
) -> Optional[int]:
    """The fewest certifying samples with which a radius is within reach.

    Parameters
    ----------
    radius : float
        The radius, above 0.
    sigma, alpha, certificate, norm_bound, dimension, gallery_samples
        As in `largest_radius`.

    Returns
    -------
    int or None
        None if no number of samples suffices.

    Examples
    --------
    >>> import retrievalguard as rg
    >>> rg.samples_needed(0.5, sigma=0.25)
    201
    >>> print(rg.samples_needed(0.4, sigma=0.25, certificate="paper"))
    None
    """
    guarantee = _guarantee(sigma, alpha, norm_bound, dimension, gallery_samples)
    return _native.samples_needed(str(certificate), float(radius), guarantee)
