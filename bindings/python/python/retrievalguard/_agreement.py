"""How often another search, such as an approximate index, answers as exact search over the same vectors does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _native
from ._arrays import as_array, float32
from ._errors import InputError
from ._gallery import Gallery, as_list


@dataclass(frozen=True)
class Agreement:
    """How often another search answers as exact search does, on queries without noise; nothing is proved about others.

    Attributes
    ----------
    queries : int
        How many were asked.
    same_item, same_label : int
        Queries that get the item of exact search, or one with its label, in the first place.
    unanswered : int
        Queries that the other search did not answer.
    """

    queries: int
    same_item: int
    same_label: int
    unanswered: int

    @property
    def item_share(self) -> float:
        """Share of queries with the same item."""
        return self.same_item / self.queries

    @property
    def label_share(self) -> float:
        """Share of queries with the same label."""
        return self.same_label / self.queries

    @property
    def item_interval(self) -> tuple[float, float]:
        """95 % Clopper-Pearson interval of the share with the same item, over the choice of queries."""
        return _native.intervals([self.same_item], self.queries)[0]

    @property
    def label_interval(self) -> tuple[float, float]:
        """95 % Clopper-Pearson interval of the share with the same label, over the choice of queries."""
        return _native.intervals([self.same_label], self.queries)[0]

    def __str__(self) -> str:
        def shown(what: str, share: float, ends: tuple[float, float]) -> str:
            return f"same {what} {share:.4f} (95 % interval {ends[0]:.4f} to {ends[1]:.4f})"

        item, label = (
            shown("item", self.item_share, self.item_interval),
            shown("label", self.label_share, self.label_interval),
        )
        return f"{self.queries} queries against exact search: {item}, {label}"


def agreement(
    gallery: Gallery,
    queries: ArrayLike,
    answers: Any,
    *,
    ids: Optional[Sequence[Union[int, str]]] = None,
) -> Agreement:
    """Compares the first answers of another search with those of exact search over the gallery.

    Certificates are about exact search. A system that searches approximately keeps their promise where it answers alike; on
    other queries than these, and on perturbed ones above all, this measures nothing.

    Parameters
    ----------
    gallery : Gallery
        The vectors that both search in.
    queries : array_like
        Embeddings ``(queries, dimension)``; both searches get them as float32.
    answers : index, callable or array_like
        What answers: an index with ``search(queries, k)`` as faiss has it, a function from queries to answers, or the answers
        themselves, one per query or one row per query with the first answer in front. A negative number or None is no answer.
    ids : sequence of int or str, optional
        What answers call the gallery's rows, in their order. By default whole numbers are rows and strings are identities.

    Returns
    -------
    Agreement
        An answer that is just as near as the nearest item, and one that is another view of it, counts as the same item.

    Examples
    --------
    >>> import retrievalguard as rg
    >>> gallery = rg.Gallery([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]], ["cat", "cat", "dog"])
    >>> found = rg.agreement(gallery, [[0.1, 0.0], [0.9, 0.1], [0.0, 2.0], [0.0, 4.0]], [0, 0, 2, 1])
    >>> found.same_item, found.same_label
    (2, 3)
    >>> print(found)
    4 queries against exact search: same item 0.5000 (95 % interval 0.0676 to 0.9324), same label 0.7500 (95 % interval 0.1941 to
    0.9937)
    """
    if not isinstance(gallery, Gallery):
        raise InputError(f"gallery is {type(gallery).__name__}, wanted a Gallery")
    asked = float32(queries, "queries")
    if asked.ndim != 2 or len(asked) == 0 or asked.shape[1] != gallery.dimension:
        raise InputError(f"queries have shape {asked.shape}, wanted (queries, {gallery.dimension})")
    rows = _rows(gallery, _first(_answered(answers, asked), len(asked)), ids)
    same_item, same_label, unanswered = gallery._stored.agreement(asked, rows)
    return Agreement(len(asked), same_item, same_label, unanswered)


def _answered(answers: Any, queries: NDArray[np.float32]) -> Any:
    """What the other search answers."""
    search: Optional[Callable[..., Any]] = getattr(answers, "search", None)
    if search is not None:
        found = search(queries, 1)
        # faiss answers with distances and ids.
        return found[1] if isinstance(found, tuple) and len(found) == 2 else found
    return answers(queries) if callable(answers) else answers


def _first(answers: Any, queries: int) -> list[Any]:
    """The first answer to each query."""
    found = as_list(answers if isinstance(answers, (list, tuple)) else as_array(answers, "answers"))
    if len(found) != queries:
        raise InputError(f"{len(found)} answers were given for {queries} queries, wanted one for each")
    firsts = []
    for answer in found:
        many = isinstance(answer, (list, tuple)) or getattr(answer, "ndim", 0) > 0
        firsts.append((answer[0] if len(answer) else None) if many else answer)
    return firsts


def _rows(gallery: Gallery, answers: list[Any], ids: Optional[Sequence[Union[int, str]]]) -> list[Optional[int]]:
    """The row that each answer names."""
    size = len(gallery)
    known: Optional[dict[Any, int]] = None
    if ids is not None:
        named = as_list(ids)
        if len(named) != size:
            raise InputError(f"{len(named)} ids were given, wanted one for each of the gallery's {size} rows")
        known = {}
        for place, name in enumerate(named):
            known.setdefault(name, place)
    rows: list[Optional[int]] = []
    for place, answer in enumerate(answers):
        if isinstance(answer, np.generic):
            answer = answer.item()
        if answer is None or isinstance(answer, int) and answer < 0:
            rows.append(None)
            continue
        row: Optional[int]
        if known is not None:
            row = known.get(answer)
        elif isinstance(answer, str):
            row = next(iter(gallery.rows_of(answer)), None)
        elif isinstance(answer, int) and not isinstance(answer, bool):
            row = answer if answer < size else None
        else:
            raise InputError(f"answer {place} is {answer!r}, wanted a row of the gallery or an identity")
        if row is None:
            raise InputError(f"answer {place} is {answer!r}, which the gallery of {size} rows does not have")
        rows.append(row)
    return rows
