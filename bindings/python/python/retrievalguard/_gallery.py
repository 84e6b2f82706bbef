"""Labelled vectors and the exact search in them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _native
from ._arrays import PathLike, as_array, count, matrix
from ._errors import InputError, optional
from ._exchange import FaissVectors, Labels, arrow_vectors, faiss_index, lance_table, read_items, write_items

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Label = Union[str, int]


def label_text(label: Any) -> str:
    """A label as it is stored: strings as they are, whole numbers by their digits."""
    if isinstance(label, str):
        return str(label)
    if isinstance(label, (int, np.integer)) and not isinstance(label, bool):
        return str(int(label))
    raise InputError(f"label is {label!r}, wanted a string or a whole number")


class Gallery:
    """Labelled vectors that are searched exactly, with ties going to the smaller row.

    Certificates are about the nearest *stored* vector: the vectors kept here are the retrieval system itself.

    Parameters
    ----------
    vectors : array_like
        ``(items, dimension)``; kept as float32.
    labels : sequence of str or int
        One for each vector; whole numbers are kept as their digits.
    identities : sequence of str, optional
        Names of the pictures, ``"0"``, ``"1"``, ... if there are none. One picture may own several rows.
    metric : {"euclidean", "cosine"}
        ``"cosine"`` scales the stored vectors to norm 1.
    views : sequence of str, optional
        Names of the views that every item has: as many consecutive rows, of one identity and label, are one item. Without
        them every row is an item.
    sigma, samples, norm_bound : optional
        What is known of how the vectors were made elsewhere: the noise level of smoothed ones, how many noisy copies are
        behind each (0 for the embedding of the clean picture) and the norm bound of their encoder. Queries are held against
        what is said here, and `sigma` is the noise that `certify_picture` takes.

    Examples
    --------
    >>> import retrievalguard as rg
    >>> gallery = rg.Gallery([[0, 0], [1, 0], [0, 3]], ["cat", "cat", "dog"])
    >>> gallery
    Gallery(3 items, 2 labels, dimension 2, euclidean)
    >>> rows, distances = gallery.nearest([0.0, 2.5], k=2)
    >>> rows.tolist(), distances.tolist()
    ([2, 0], [0.5, 2.5])
    >>> gallery.labels[rows[0]]
    'dog'

    Two views of each item; neighbours are items, each by its nearest view:

    >>> names = ["cat-1", "cat-1", "dog-1", "dog-1"]
    >>> gallery = rg.Gallery([[0.0], [1.0], [1.5], [9.0]], ["cat", "cat", "dog", "dog"], names, views=["as is", "mirrored"])
    >>> gallery
    Gallery(2 items with 2 views, 2 labels, dimension 1, euclidean)
    >>> rows, _ = gallery.nearest([1.1], k=2)
    >>> [(names[row], gallery.views[row % 2]) for row in rows]
    [('cat-1', 'mirrored'), ('dog-1', 'as is')]
    """

    _stored: _native.Gallery

    def __init__(
        self,
        vectors: ArrayLike,
        labels: Sequence[Label],
        identities: Optional[Sequence[str]] = None,
        metric: str = "euclidean",
        views: Optional[Sequence[str]] = None,
        *,
        sigma: Optional[float] = None,
        samples: Optional[int] = None,
        norm_bound: Optional[float] = None,
    ) -> None:
        made = None
        if not (sigma is None and samples is None and norm_bound is None):
            made = made_of(sigma, samples, norm_bound)
        self._fill(vectors, labels, identities, metric, views, made)

    def _fill(
        self,
        vectors: ArrayLike,
        labels: Sequence[Label],
        identities: Optional[Sequence[str]],
        metric: str,
        views: Optional[Sequence[str]],
        made: Optional[dict[str, Any]],
    ) -> None:
        rows = matrix(vectors, "gallery vectors")
        names = [label_text(label) for label in as_list(labels)]
        kinds = None if views is None else [str(view) for view in as_list(views)]
        if identities is None:
            identities = [str(row // max(len(kinds or ()), 1)) for row in range(len(rows))]
        known = [str(identity) for identity in as_list(identities)]
        self._stored = _native.Gallery(rows, names, known, str(metric), kinds, made)

    @classmethod
    def _made(
        cls, vectors: ArrayLike, labels: Sequence[Label], identities: Sequence[str], metric: str, made: dict[str, Any]
    ) -> Gallery:
        """A gallery of which more is known than a user can say."""
        gallery = cls.__new__(cls)
        gallery._fill(vectors, labels, identities, metric, None, made)
        return gallery

    @classmethod
    def _of(cls, stored: _native.Gallery) -> Gallery:
        gallery = cls.__new__(cls)
        gallery._stored = stored
        return gallery

    @classmethod
    def read(cls, path: PathLike) -> Gallery:
        """Reads a gallery directory, as written by `write`, `index` or ``retrievalguard index``.

        One in shards stays on disk: it is searched and certified against like another, and `vectors`, `identities`, `write` and
        the tables, which need all of it in memory, raise `InputError`.

        Parameters
        ----------
        path : path_like
            The directory.

        Returns
        -------
        Gallery
            With every item that was added since. It also knows how it was made: `certify` holds its noise level, its
            dimension and its norm bound against the queries'.
        """
        return cls._of(_native.Gallery.read(os.fspath(path)))

    def write(self, path: PathLike, norm_bound: Optional[float] = None) -> None:
        """Writes a gallery directory.

        Parameters
        ----------
        path : path_like
            The directory; a gallery that is there is replaced.
        norm_bound : float, optional
            Norm bound ``F`` of the encoder that made the vectors: what the gallery says by itself, else 1.

        Notes
        -----
        A gallery with views is written only if it was read from a directory, which says how they were made.

        Examples
        --------
        >>> import os, tempfile
        >>> import retrievalguard as rg
        >>> gallery = rg.Gallery([[0.6, 0.8], [1, 0]], ["cat", "dog"], ["cat-1", "dog-1"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "pets.gallery")
        ...     gallery.write(path)
        ...     rg.Gallery.read(path).identities.tolist()
        ['cat-1', 'dog-1']
        """
        self._stored.write(os.fspath(path), norm_bound)

    @classmethod
    def from_table(
        cls,
        table: Union[pandas.DataFrame, polars.DataFrame, pyarrow.Table, pyarrow.RecordBatch],
        metric: str = "euclidean",
        *,
        label: str = "label",
        vector: str = "vector",
        identity: str = "identity",
        sigma: Optional[float] = None,
        samples: Optional[int] = None,
        norm_bound: Optional[float] = None,
    ) -> Gallery:
        """A gallery from a table with a column of labels, one of vectors, and perhaps ``identity`` and ``view``.

        Parameters
        ----------
        table : pandas.DataFrame, polars.DataFrame, pyarrow.Table or pyarrow.RecordBatch
            As `to_pandas`, `to_polars` and `to_arrow` return, or as others make them; vectors are lists of numbers.
        metric : {"euclidean", "cosine"}
            How vectors are compared.
        label, vector, identity : str
            Names of the columns; identities are row numbers where there is no such column.
        sigma, samples, norm_bound : optional
            What is known of how the vectors were made, as in `Gallery`.

        Returns
        -------
        Gallery
        """
        names: list[Any] = list(getattr(table, "columns", []))
        if type(table).__module__.startswith("pyarrow"):
            names = list(getattr(table, "schema").names)
        wanted = [label, vector] + ([identity] if identity != "identity" else [])
        for name in wanted:
            if name not in names:
                raise InputError(f"the table has no column `{name}`, it has {', '.join(map(str, names)) or 'none'}")
        columns = {name: as_list(table[name]) for name in (label, identity, "view") if name in names}
        vectors = table[vector]
        if type(vectors).__module__.startswith("pyarrow"):
            rows: Any = arrow_vectors(vectors)
        else:
            rows = vectors.to_numpy() if type(vectors).__module__.startswith("polars") else as_list(vectors)
        if getattr(rows, "dtype", None) == object or isinstance(rows, list):
            rows = [np.asarray(row) for row in rows]
            if len({row.shape for row in rows}) > 1:
                raise InputError("the vectors of the table differ in length")
            rows = np.stack(rows) if rows else np.empty((0, 0), np.float32)
        views = cls._view_names(columns.get("view"), len(rows), "the table")
        known = columns.get(identity)
        return cls(
            rows, columns[label], known if known is None else [str(name) for name in known], metric, views,
            sigma=sigma, samples=samples, norm_bound=norm_bound,
        )

    @staticmethod
    def _view_names(column: Optional[list[str]], rows: int, what: str) -> Optional[list[str]]:
        views = list(dict.fromkeys(column)) if column else None
        if views and column != views * (rows // len(views)):
            raise InputError(f"the views of {what} are not {', '.join(map(str, views))} for each item in turn")
        return views

    @classmethod
    def from_faiss(
        cls,
        index: Any,
        labels: Optional[Labels] = None,
        identities: Optional[Sequence[str]] = None,
        metric: Optional[str] = None,
        *,
        sigma: Optional[float] = None,
        samples: Optional[int] = None,
        norm_bound: Optional[float] = None,
    ) -> Gallery:
        """A gallery of the vectors that a faiss index stores, searched exactly.

        Parameters
        ----------
        index : faiss.Index or path_like
            ``IndexFlatL2``, ``IndexFlatIP``, or another that gives back its vectors, with a warning: certificates are about exact
            search over the vectors stored here, whatever the index does.
        labels : sequence or mapping, optional
            A label for each vector, in their order or by the index's ids. Of a file, by default those that `to_faiss` wrote beside it.
        identities : sequence of str, optional
            Names of the pictures; the index's ids by default.
        metric : {"euclidean", "cosine"}, optional
            How vectors are compared: as the index does, where that is the smallest distance. An index by inner product over
            vectors of different norms is another retriever and refused, unless a metric is named.
        sigma, samples, norm_bound : optional
            What is known of how the vectors were made, as in `Gallery`.

        Returns
        -------
        Gallery

        Examples
        --------
        >>> import numpy as np, retrievalguard as rg
        >>> vectors = np.eye(3, dtype=np.float32)
        >>> index = rg.Gallery(vectors, ["cat", "cat", "dog"], metric="cosine").to_faiss()
        >>> rg.Gallery.from_faiss(index, ["cat", "cat", "dog"])
        Gallery(3 items, 2 labels, dimension 3, cosine)
        """
        found = FaissVectors(index, metric)
        views = None
        if labels is None:
            if not isinstance(index, (str, os.PathLike)):
                raise InputError("an index has no labels of its own, wanted the argument `labels`")
            labels, names, column = read_items(index, len(found.vectors))
            views = cls._view_names(column, len(found.vectors), "the items")
            identities = names if identities is None else identities
        ids = [int(number) for number in found.ids]
        if isinstance(labels, Mapping):
            missing = next((number for number in ids if number not in labels), None)
            if missing is not None:
                raise InputError(f"the index has a vector with id {missing}, for which there is no label")
            labels = [labels[number] for number in ids]
        known = [str(number) for number in ids] if identities is None else identities
        return cls(found.vectors, labels, known, found.metric, views, sigma=sigma, samples=samples, norm_bound=norm_bound)

    def to_faiss(self, path: Optional[PathLike] = None, metric: Optional[str] = None) -> Any:
        """An exact faiss index over the vectors, in their order.

        Parameters
        ----------
        path : path_like, optional
            File for the index; labels and identities are written beside it, as ``path.items.jsonl``.
        metric : {"l2", "ip"}, optional
            ``IndexFlatL2`` or ``IndexFlatIP``: by default inner product for a cosine gallery, l2 otherwise.

        Returns
        -------
        faiss.Index
        """
        index = faiss_index(self, metric)
        if path is not None:
            import faiss

            faiss.write_index(index, os.fspath(path))
            write_items(path, self)
        return index

    @classmethod
    def from_lance(
        cls,
        table: Any,
        metric: str = "euclidean",
        *,
        label: str = "label",
        vector: str = "vector",
        identity: str = "identity",
        sigma: Optional[float] = None,
        samples: Optional[int] = None,
        norm_bound: Optional[float] = None,
    ) -> Gallery:
        """A gallery of the rows of a Lance table; an index that the table has is not used.

        Parameters
        ----------
        table : str, path_like, lance.LanceDataset or lancedb.table.Table
            The table, or where it lies.
        metric, label, vector, identity, sigma, samples, norm_bound : optional
            As in `from_table`.

        Returns
        -------
        Gallery
        """
        return cls.from_table(
            lance_table(table), metric, label=label, vector=vector, identity=identity, sigma=sigma, samples=samples,
            norm_bound=norm_bound,
        )

    def to_lance(self, path: PathLike, mode: str = "create") -> Any:
        """Writes the columns of `to_arrow` as a Lance table.

        Parameters
        ----------
        path : path_like
            Where; ``mode="overwrite"`` replaces what is there.
        mode : {"create", "overwrite", "append"}
            What happens to a table that is there.

        Returns
        -------
        lance.LanceDataset
        """
        lance = optional("lance", "pylance", "a Lance table")
        return lance.write_dataset(self.to_arrow(), os.fspath(path), mode=mode)

    def nearest(self, queries: ArrayLike, k: int = 1) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The nearest items of each query, each by its nearest row.

        Parameters
        ----------
        queries : array_like
            ``(queries, dimension)``, or one vector.
        k : int
            How many; no more than there are items are returned.

        Returns
        -------
        rows : numpy.ndarray
            ``(queries, k)`` of int64, the nearest first; ``(k,)`` for one vector.
        distances : numpy.ndarray
            Their Euclidean distances to the stored vectors, float64.
        """
        values = as_array(queries, "queries")
        if values.dtype.kind not in "fiub":
            raise InputError(f"queries hold {values.dtype} values, wanted real numbers")
        if values.ndim not in (1, 2) or values.shape[-1] != self.dimension:
            raise InputError(
                f"queries have shape {values.shape}, wanted rows of the gallery's dimension {self.dimension}"
            )
        rows = np.ascontiguousarray(np.atleast_2d(values), dtype=np.float64)
        found, squared = self._stored.nearest(rows, count(k, "number of neighbours"))
        distances = np.sqrt(squared)
        return (found[0], distances[0]) if values.ndim == 1 else (found, distances)

    def __len__(self) -> int:
        """Number of stored vectors: of rows, not of items."""
        return len(self._stored)

    def __repr__(self) -> str:
        kinds = self._stored.label_count
        views = f" with {len(self.views)} views" if self.views else ""
        return f"Gallery({self.items} items{views}, {kinds} labels, dimension {self.dimension}, {self.metric})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Where it was read from and how it was made do not travel; scaled vectors stay as they are.
        views = list(self.views) or None
        return (Gallery, (self.vectors, list(self.labels), list(self.identities), self.metric, views))

    @property
    def items(self) -> int:
        """Number of items: of rows, unless items have several views."""
        return self._stored.items

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views, in the order of an item's rows; empty where every row is an item."""
        return tuple(self._stored.views)

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self._stored.dimension

    @property
    def metric(self) -> str:
        """How vectors are compared."""
        return self._stored.metric

    @property
    def vectors(self) -> NDArray[np.float32]:
        """A copy of the stored vectors, ``(rows, dimension)``."""
        return self._stored.vectors()

    @property
    def labels(self) -> NDArray[np.object_]:
        """Labels of the rows, strings."""
        return np.array(self._stored.labels(), dtype=object)

    @property
    def identities(self) -> NDArray[np.object_]:
        """Names of the rows' pictures, strings."""
        return np.array(self._stored.identities(), dtype=object)

    @property
    def sigma(self) -> Optional[float]:
        """Noise level under which the vectors were smoothed, if it is known."""
        return self._stored.sigma

    @property
    def samples(self) -> Optional[int]:
        """Samples behind each vector, if that is known; 0 for clean pictures."""
        return self._stored.samples

    def rows_of(self, identity: str) -> list[int]:
        """Rows made from one picture.

        Parameters
        ----------
        identity : str
            Name of the picture.

        Returns
        -------
        list of int
            Ascending, empty if there is none.
        """
        return self._stored.rows_of(str(identity))

    def to_pandas(self) -> pandas.DataFrame:
        """The columns ``identity``, ``label`` and ``vector`` (an array in each row).

        Returns
        -------
        pandas.DataFrame

        Examples
        --------
        >>> import retrievalguard as rg
        >>> gallery = rg.Gallery([[0.6, 0.8], [1, 0]], ["cat", "dog"])
        >>> gallery.to_pandas().label.tolist()
        ['cat', 'dog']
        >>> len(rg.Gallery.from_table(gallery.to_pandas()))
        2
        """
        import pandas

        columns = {"identity": self.identities, "label": self.labels, "vector": list(self.vectors), **self._view_column()}
        return pandas.DataFrame(columns)

    def to_polars(self) -> polars.DataFrame:
        """The columns ``identity``, ``label`` and ``vector`` (``Array(Float32, dimension)``).

        Returns
        -------
        polars.DataFrame
        """
        import polars

        columns = {"identity": self._stored.identities(), "label": self._stored.labels(), **self._view_column()}
        kind = polars.Array(polars.Float32, self.dimension)
        return polars.DataFrame(columns).with_columns(polars.Series("vector", self.vectors, dtype=kind))

    def to_arrow(self) -> pyarrow.Table:
        """The columns ``identity``, ``label`` and ``vector`` (fixed-size list of float32).

        Returns
        -------
        pyarrow.Table
        """
        import pyarrow

        vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(self.vectors.ravel()), self.dimension)
        columns = {"identity": self._stored.identities(), "label": self._stored.labels(), "vector": vectors}
        return pyarrow.table({**columns, **self._view_column()})

    def _view_column(self) -> dict[str, list[str]]:
        """Which view each row is, where items have several."""
        return {"view": list(self.views) * self.items} if self.views else {}


def as_list(values: Any) -> list[Any]:
    """A list of what an array, a column or a sequence holds."""
    if isinstance(values, (str, bytes)):
        raise InputError(f"a single string {values!r} was given, wanted a sequence of them")
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)


def made_of(sigma: Optional[float], samples: Optional[int], norm_bound: Optional[float]) -> dict[str, Any]:
    """What is said of how vectors were made."""
    if sigma is not None and samples == 0:
        raise InputError(
            f"samples is 0, so the vectors are of clean pictures, and sigma is {sigma}; wanted sigma=None, and the noise with each question"
        )
    return {
        "sigma": None if sigma is None else float(sigma),
        "samples": None if samples is None else count(samples, "samples"),
        "seed": None,
        "norm_bound": 1.0 if norm_bound is None else float(norm_bound),
        "plain": None,
        "encoder": None,
    }
