"""Certificates from samples that are there already."""

from __future__ import annotations

import os
from typing import Any, Iterable, Literal, Optional, Sequence, Union, overload

import numpy as np
from numpy.typing import ArrayLike

from . import _native
from ._arrays import as_array, count, matrix, whole
from ._certificates import AtK, Certificate, Certificates, Step, Verdict
from ._errors import InputError
from ._gallery import Gallery, Label, as_list, label_text
from ._progress import Bar, Progress

ALL = ("paper", "paper-linear", "paper-repaired", "paper-frozen", "half-space-mean", "half-space", "vote", "pairwise")
"""Names of all certificates from samples, in the order in which tables show them."""

LIPSCHITZ = ("lipschitz", "lipschitz-margin")
"""Names of the certificates that need no noise."""

Exclude = Union[None, str, int, Iterable[Union[str, int]]]


@overload
def certify(  # type: ignore[overload-overlap]  # lists of numbers and lists of arrays are both array-like
    samples: ArrayLike,
    gallery: Gallery,
    label: Union[Label, None] = None,
    *,
    pilot: ArrayLike,
    sigma: float,
    alpha: float = ...,
    certificate: str = ...,
    norm_bound: float = ...,
    excess: Literal["refuse", "project"] = ...,
    non_negative: bool = ...,
    replan_bets: bool = ...,
    discrete: bool = ...,
    item: Optional[int] = ...,
    exclude: Exclude = ...,
    target_radius: Optional[float] = ...,
    top_k: int = ...,
    gallery_samples: Optional[int] = ...,
) -> Certificate: ...
@overload
def certify(
    samples: Sequence[ArrayLike],
    gallery: Gallery,
    label: Sequence[Union[Label, None]],
    *,
    pilot: Sequence[ArrayLike],
    sigma: float,
    alpha: float = ...,
    certificate: Union[str, Sequence[str]] = ...,
    norm_bound: float = ...,
    excess: Literal["refuse", "project"] = ...,
    non_negative: bool = ...,
    replan_bets: bool = ...,
    discrete: bool = ...,
    exclude: Optional[Sequence[Exclude]] = ...,
    target_radius: Optional[float] = ...,
    top_k: int = ...,
    gallery_samples: Optional[int] = ...,
    identities: Optional[Sequence[str]] = ...,
    threads: Optional[int] = ...,
    progress: Progress = ...,
) -> Certificates: ...
def certify(
    samples: Any,
    gallery: Gallery,
    label: Any = None,
    *,
    pilot: Any,
    sigma: float,
    alpha: float = 0.01,
    certificate: Union[str, Sequence[str]] = "half-space",
    norm_bound: float = 1.0,
    excess: str = "refuse",
    non_negative: bool = False,
    replan_bets: bool = False,
    discrete: bool = False,
    item: Optional[int] = None,
    exclude: Any = None,
    target_radius: Optional[float] = None,
    top_k: int = 1,
    gallery_samples: Optional[int] = None,
    identities: Optional[Sequence[str]] = None,
    threads: Optional[int] = None,
    progress: Progress = False,
) -> Union[Certificate, Certificates]:
    """Proves how far a query's pixels may move without changing the label that is retrieved.

    Parameters
    ----------
    samples : array_like
        ``(n, d)``: embeddings of noisy copies of one query, fresh and independent of the pilot. A list of such arrays, or
        ``(queries, n, d)``, stands for many queries. float32; other numbers are converted.
    gallery : Gallery
        What is searched.
    label : str, int or None
        The label that the retrieval must have; None certifies the label that the pilot retrieves. For many queries a
        sequence of them.
    pilot : array_like
        ``(m, d)``: embeddings of other noisy copies, on which every choice is made; rows of one array may serve as both if
        none is in both. For many queries like `samples`.
    sigma : float
        Standard deviation of the noise.
    alpha : float
        Probability that the certificate is wrong.
    certificate : str
        One of `retrievalguard.ALL`. For many queries also ``"all"`` or a sequence of names.
    norm_bound : float
        Norm bound ``F`` of the embeddings.
    excess : {"refuse", "project"}
        What happens to embeddings above the norm bound by more than rounding.
    non_negative : bool
        Set negative components of the embeddings to zero, for larger radii of half-spaces: the certificates are about the encoder
        that does so. A gallery that says how it was made must say the same.
    replan_bets : bool
        Plan the bets of half-space again while samples come in: larger radii where the pilot is small.
    discrete : bool
        Whether the encoder has few outputs (signs, hashes, numbers of low precision), so that rows may repeat; you then
        promise that each row has noise of its own. Otherwise a certifying row that is there twice, in the pilot or in the
        gallery is refused.
    item : int, optional
        Certify that the item of this row stays first, by whichever of its views, instead of a label.
    exclude : str, int or sequence, optional
        Rows that the query must not find, or identities of pictures whose rows it must not find; a row hides the other
        views of its item, too. For many queries one such thing for each.
    target_radius : float, optional
        Decide this radius with as few of the samples as possible, in their order (half-space, vote or pairwise alone).
    top_k : int
        Also radii for Recall@2 to Recall@k (half-space only).
    gallery_samples : int, optional
        Samples behind each gallery vector, which ``paper-repaired`` needs; what the gallery says by itself, by default.
    identities : sequence of str, optional
        Names of many queries.
    threads : int, optional
        For many queries, one per core by default. Results do not depend on it.
    progress : bool or callable
        For many queries: whether to show a bar, or a function of done and total.

    Returns
    -------
    Certificate or Certificates
        For one query, or for many.

    Raises
    ------
    InputError
        A ``ValueError``: what cannot be answered, with what was found and what was wanted.

    Examples
    --------
    >>> import numpy as np
    >>> import retrievalguard as rg
    >>> gallery = rg.Gallery([[1.0, 0.0], [-1.0, 0.0]], ["left", "right"])
    >>> def draw(stage, count):  # stands for the embeddings of noisy copies
    ...     return rg.Noise(7, "query", stage).add(np.array([0.5, 0.0]), range(count), sigma=0.1)
    >>> certificate = rg.certify(draw("certify", 1000), gallery, "left", pilot=draw("pilot", 200), sigma=0.25)
    >>> certificate
    <Certificate half-space certified within 0.4661, 1000 samples>
    >>> certificate.verdict == "certified", certificate.radius > 0.4
    (True, True)
    >>> print(certificate.explain())  # doctest: +ELLIPSIS
    half-space certified within 0.4661, 1000 samples
    samples ...
    """
    if not isinstance(gallery, Gallery):
        raise InputError(f"gallery is {type(gallery).__name__}, wanted a Gallery")
    settings: dict[str, Any] = {
        "sigma": float(sigma),
        "alpha": float(alpha),
        "norm_bound": float(norm_bound),
        "excess": str(excess),
        "non_negative": bool(non_negative),
        "replan_bets": bool(replan_bets),
        "discrete": bool(discrete),
        "gallery_samples": None if gallery_samples is None else count(gallery_samples, "sample count"),
        "target_radius": None if target_radius is None else float(target_radius),
        "top_k": count(top_k, "top_k"),
        "threads": 1,
    }
    queries = _many(samples)
    if queries is None:
        if not isinstance(certificate, str) or certificate == "all":
            raise InputError("several certificates were asked of one query, wanted a list of queries")
        if identities is not None:
            raise InputError("identities name many queries, wanted samples of shape (queries, n, d)")
        query = _query(None, samples, pilot, label, item, exclude, gallery)
        answer = _native.certify([query], gallery._stored, {**settings, "certificates": [certificate]})[0]
        return _row(answer, gallery, settings, None)[certificate]
    if item is not None:
        raise InputError("item is for one query, wanted labels for many")
    names = _names(certificate)
    pilots = _aligned(_many(pilot), len(queries), "pilots")
    labels = _aligned(None if label is None else as_list(label), len(queries), "labels")
    excluded = [None] * len(queries) if exclude is None else _aligned(list(exclude), len(queries), "exclusions")
    known = [str(place) for place in range(len(queries))]
    if identities is not None:
        known = [str(name) for name in _aligned(as_list(identities), len(queries), "identities")]
    settings["certificates"] = list(names)
    settings["threads"] = (os.cpu_count() or 1) if threads is None else count(threads, "threads")
    rows: list[dict[str, Certificate]] = []
    # A few at a time: samples are copied before the lock is released.
    step = max(1, 4 * settings["threads"])
    with Bar(progress, len(queries), "certifying", "query") as bar:
        for first in range(0, len(queries), step):
            places = range(first, min(first + step, len(queries)))
            chunk = [
                _query(f"query `{known[at]}`", queries[at], pilots[at], labels[at], None, excluded[at], gallery)
                for at in places
            ]
            answers = _native.certify(chunk, gallery._stored, settings)
            rows += [_row(answer, gallery, settings, known[at]) for at, answer in zip(places, answers)]
            bar.to(len(rows))
    return _table(rows, names, settings)


def _names(certificate: Union[str, Sequence[str]]) -> tuple[str, ...]:
    if certificate == "all":
        return ALL
    names = (certificate,) if isinstance(certificate, str) else tuple(certificate)
    if not names:
        raise InputError("no certificate was asked for, wanted at least one")
    # In the order of tables; what is unknown is refused below by its name.
    order = ALL + LIPSCHITZ
    return tuple(sorted(dict.fromkeys(names), key=lambda name: order.index(name) if name in order else -1))


def _many(samples: Any) -> Optional[list[Any]]:
    """The queries, or None if the samples are those of one."""
    if isinstance(samples, (list, tuple)):
        if not samples:
            raise InputError("no queries were given, wanted at least one")
        if np.ndim(as_array(samples[0], "samples")) == 2:
            return list(samples)
    array = as_array(samples, "samples")
    if array.ndim == 3:
        if len(array) == 0:
            raise InputError("no queries were given, wanted at least one")
        return list(array)
    return None


def _aligned(values: Optional[list[Any]], wanted: int, what: str) -> list[Any]:
    if values is None or len(values) != wanted:
        found = "none" if values is None else len(values)
        raise InputError(f"{found} {what} were given, wanted one for each of {wanted} queries")
    return values


def _query(
    name: Optional[str], samples: Any, pilot: Any, label: Any, item: Optional[int], exclude: Exclude, gallery: Gallery
) -> dict[str, Any]:
    of = "" if name is None else f" of {name}"
    if label is not None and item is not None:
        raise InputError("both a label and an item were given, wanted one of them")
    if label is not None and not isinstance(label, (str, int, np.integer)):
        raise InputError(f"label{of} is {label!r}, wanted one string or whole number")
    if _shared(samples, pilot):
        raise InputError(f"the pilot{of} shares memory with the samples, wanted other noisy copies: the proof needs both")
    return {
        "name": name,
        "samples": matrix(samples, f"samples{of}"),
        "pilot": matrix(pilot, f"pilot samples{of}"),
        "label": None if label is None else label_text(label),
        "item": None if item is None else count(item, "item", most=2**63 - 1),
        "excluded": _excluded(exclude, gallery),
    }


def _shared(samples: Any, pilot: Any) -> bool:
    """Whether certifying samples are also in the pilot, as far as can be seen."""
    if samples is pilot:
        return True
    if not isinstance(samples, np.ndarray) or not isinstance(pilot, np.ndarray):
        return False
    work: Any = 100_000
    try:
        return np.shares_memory(samples, pilot, max_work=work)
    except (TypeError, RuntimeError):
        return False


def _excluded(exclude: Exclude, gallery: Gallery) -> list[int]:
    if exclude is None:
        return []
    entries = [exclude] if isinstance(exclude, (str, int, np.integer)) else list(exclude)
    rows: list[int] = []
    for entry in entries:
        if isinstance(entry, str):
            rows += gallery.rows_of(entry)
            continue
        row = whole(entry, "excluded row")
        if not 0 <= row < len(gallery):
            raise InputError(f"excluded row is {row}, wanted one below the gallery's length {len(gallery)}")
        rows.append(row)
    return rows


def _row(
    answer: dict[str, Any], gallery: Gallery, settings: dict[str, Any], identity: Optional[str]
) -> dict[str, Certificate]:
    stored = gallery._stored

    def name(row: Optional[int]) -> tuple[Optional[str], Optional[str], Optional[str]]:
        return (None, None, None) if row is None else stored.item(row)

    retrieved, retrieved_label, retrieved_view = name(answer["retrieved"])
    nearest_wrong, nearest_wrong_label, nearest_wrong_view = name(answer["nearest_wrong"])
    plain_retrieved, plain_retrieved_label, _ = name(answer["plain"])
    return {
        outcome["certificate"]: Certificate(
            certificate=outcome["certificate"],
            verdict=Verdict(outcome["verdict"]),
            radius=outcome["radius"],
            samples=outcome["samples"],
            sigma=settings["sigma"],
            alpha=settings["alpha"],
            identity=identity,
            label=answer["label"],
            retrieved=retrieved,
            retrieved_label=retrieved_label,
            nearest_wrong=nearest_wrong,
            nearest_wrong_label=nearest_wrong_label,
            retrieved_view=retrieved_view,
            nearest_wrong_view=nearest_wrong_view,
            at_k=tuple(AtK(k, Verdict(word), radius) for k, (word, radius) in enumerate(outcome["deeper"], 2)),
            decision=outcome["decision"],
            plain_retrieved=plain_retrieved,
            plain_retrieved_label=plain_retrieved_label,
            _steps=tuple(Step(*step) for step in outcome["steps"]),
        )
        for outcome in answer["outcomes"]
    }


def _table(rows: list[dict[str, Certificate]], names: tuple[str, ...], settings: dict[str, Any]) -> Certificates:
    first = [next(iter(row.values())) for row in rows]
    columns = {
        "sigma": settings["sigma"],
        "identities": [row.identity for row in first],
        "labels": [row.label or "" for row in first],
        "retrieved": [row.retrieved or "" for row in first],
        "retrieved_labels": [row.retrieved_label or "" for row in first],
        "nearest_wrong": [row.nearest_wrong for row in first],
        "nearest_wrong_labels": [row.nearest_wrong_label for row in first],
        "retrieved_views": [row.retrieved_view for row in first],
        "nearest_wrong_views": [row.nearest_wrong_view for row in first],
        "plain_retrieved": [row.plain_retrieved for row in first],
        "plain_retrieved_labels": [row.plain_retrieved_label for row in first],
        "file_scales": [None] * len(first),
        "file_roundings": [None] * len(first),
        "certificates": [
            {
                "certificate": name,
                "verdicts": [row[name].verdict.value for row in rows],
                "radii": [row[name].radius for row in rows],
                "samples": [row[name].samples for row in rows],
            }
            for name in names
        ],
        "run": None
        if settings["sigma"] is None
        else _native.describe_arrays(
            settings["sigma"], settings["alpha"], list(names), settings["top_k"], settings["target_radius"]
        ),
    }
    return Certificates(columns, rows)


__all__ = ["ALL", "certify"]
