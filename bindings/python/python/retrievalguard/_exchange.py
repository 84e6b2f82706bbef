"""Galleries from and to the indexes and tables of others: faiss and Lance."""

from __future__ import annotations

import json
import os
import warnings
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from ._arrays import PathLike, as_array, float32
from ._errors import FileError, InputError, MissingFileError, optional

if TYPE_CHECKING:
    from ._gallery import Gallery, Label

Labels = Union["Sequence[Label]", "Mapping[int, Label]"]

# How far norms may differ and still be called one: float32 normalisation leaves some 1e-7.
ONE_NORM = 1e-5

# Index types that keep vectors as they were added.
EXACT = ("IndexFlat", "IndexFlatL2", "IndexFlatIP", "IndexHNSWFlat", "IndexIVFFlat", "IndexNSGFlat", "IndexIVFFlatDedup")


class FaissVectors:
    """What a faiss index stores: vectors, their ids, and how it compares them."""

    def __init__(self, index: Any, metric: Optional[str]) -> None:
        faiss = optional("faiss", "faiss-cpu", "a faiss index")
        if isinstance(index, (str, os.PathLike)):
            place = os.fspath(index)
            if not os.path.isfile(place):
                raise MissingFileError(f"index `{place}` is not there")
            try:
                index = faiss.read_index(place)
            except RuntimeError as error:
                raise InputError(f"index `{place}` is none that faiss reads: {_last_line(error)}") from None
        name = type(index).__name__
        if not hasattr(index, "metric_type") or name.startswith("IndexBinary"):
            raise InputError(f"index is {name}, wanted a faiss index over floating-point vectors, or its file")
        if name == "IndexLSH":
            raise InputError("IndexLSH compares hashes, not vectors, and does not keep these; wanted the vectors themselves")
        ids: Optional[NDArray[np.int64]] = None
        while type(index).__name__ in ("IndexIDMap", "IndexIDMap2"):
            ids = faiss.vector_to_array(index.id_map).astype(np.int64)
            index = faiss.downcast_index(index.index)
        self.kind = type(index).__name__
        self.vectors = self._reconstructed(faiss, index)
        self.ids = np.arange(len(self.vectors), dtype=np.int64) if ids is None else ids
        self.metric = self._metric(faiss, index, metric)
        if self.kind not in EXACT:
            warnings.warn(
                f"{self.kind} keeps vectors as codes: the gallery has the decoded ones, and certificates are about exact search over these",
                stacklevel=3,
            )
        elif not self.kind.startswith("IndexFlat"):
            warnings.warn(
                f"{self.kind} searches approximately: certificates are about exact search over its vectors; `agreement` says how often "
                "both answer alike",
                stacklevel=3,
            )

    def _reconstructed(self, faiss: Any, index: Any) -> NDArray[np.float32]:
        if self.kind == "IndexPreTransform":
            raise InputError(
                "IndexPreTransform searches among transformed vectors, which queries are not; wanted the transformation in the "
                "encoder, and the index behind it"
            )
        if index.ntotal == 0:
            raise InputError("the index is empty, wanted at least one vector")
        try:
            if hasattr(index, "make_direct_map"):
                # On a copy: the index of the caller stays as it is. The view of it does not keep it alive.
                copy = faiss.clone_index(index)
                index = faiss.downcast_index(copy)
                index.make_direct_map()
            rows = index.reconstruct_n(0, index.ntotal).copy()
        except RuntimeError as error:
            raise InputError(
                f"{self.kind} does not give back its vectors in their order ({_last_line(error)}); wanted the vectors themselves"
            ) from None
        return float32(rows, "vectors of the index")

    def _metric(self, faiss: Any, index: Any, asked: Optional[str]) -> str:
        if index.metric_type == faiss.METRIC_L2:
            if asked not in (None, "euclidean"):
                raise InputError(f"the index compares by l2 distance, and metric is {asked}; wanted euclidean")
            return "euclidean"
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise InputError(f"the index has faiss metric {index.metric_type}, wanted l2 distance or inner product")
        norms = np.linalg.norm(self.vectors.astype(np.float64), axis=1)
        least, most = float(norms.min()), float(norms.max())
        if most - least <= ONE_NORM * most:
            if asked is not None:
                return asked
            # Of one norm, the largest product is the smallest distance; cosine would round vectors that are not quite of norm 1.
            unit = np.abs(norms - 1).max() <= np.finfo(np.float32).eps
            return "cosine" if unit else "euclidean"
        if asked is None:
            raise InputError(
                f"the index compares by inner product, and its vectors have norms from {least:.6g} to {most:.6g}: the largest product is "
                "not the smallest distance, and certificates are about the smallest; wanted vectors of one norm, or, for another "
                "retriever than the index, metric=\"cosine\" or metric=\"euclidean\""
            )
        return asked


def _last_line(error: BaseException) -> str:
    """The reason in a message of faiss, which begins with places in its sources."""
    return str(error).strip().splitlines()[-1].split(": ")[-1]


def items_path(index: PathLike) -> str:
    """Where labels and identities lie beside an index."""
    return f"{os.fspath(index)}.items.jsonl"


def read_items(index: PathLike, wanted: int) -> tuple[list[str], list[str], Optional[list[str]]]:
    """Labels, identities and views from beside an index."""
    place = items_path(index)
    try:
        with open(place, encoding="utf-8") as file:
            items = [json.loads(line) for line in file if line.strip()]
    except FileNotFoundError:
        raise MissingFileError(f"`{place}` with labels is not there, wanted it or the argument `labels`") from None
    except OSError as error:
        raise FileError(f"`{place}` cannot be read: {error}") from None
    except ValueError as error:
        raise InputError(f"`{place}` is not lines of JSON: {error}") from None
    if len(items) != wanted:
        raise InputError(f"`{place}` has {len(items)} items, wanted one for each of {wanted} vectors")
    try:
        labels, identities = ([str(item[name]) for item in items] for name in ("label", "identity"))
    except (KeyError, TypeError):
        raise InputError(f"`{place}` has a line without label and identity, wanted both in each") from None
    found = [item.get("view") for item in items]
    return labels, identities, None if all(view is None for view in found) else [str(view) for view in found]


def write_items(index: PathLike, gallery: Gallery) -> None:
    """Labels, identities and views beside an index, a line for each vector."""
    views = list(gallery.views) * gallery.items
    with open(items_path(index), "w", encoding="utf-8") as file:
        for row, (identity, label) in enumerate(zip(gallery.identities, gallery.labels)):
            view = {"view": views[row]} if views else {}
            file.write(json.dumps({"identity": identity, "label": label, **view}, ensure_ascii=False) + "\n")


def faiss_index(gallery: Gallery, metric: Optional[str]) -> Any:
    """An exact index over the gallery's vectors."""
    faiss = optional("faiss", "faiss-cpu", "a faiss index")
    kinds = {"l2": faiss.IndexFlatL2, "ip": faiss.IndexFlatIP}
    kind = metric or ("ip" if gallery.metric == "cosine" else "l2")
    if kind not in kinds:
        raise InputError(f"metric is {kind!r}, wanted l2 or ip")
    vectors = gallery.vectors
    if kind == "ip":
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
        if float(norms.max() - norms.min()) > ONE_NORM * float(norms.max()):
            raise InputError(
                f"the vectors have norms from {norms.min():.6g} to {norms.max():.6g}, so an index by inner product answers otherwise than "
                "the gallery; wanted metric=\"l2\""
            )
    index = kinds[kind](gallery.dimension)
    index.add(vectors)
    return index


def lance_table(source: Any) -> Any:
    """The rows of a Lance data set, of a LanceDB table, or of what lies at an address, as an Arrow table."""
    if isinstance(source, (str, os.PathLike)):
        lance = optional("lance", "pylance", "a Lance table")
        try:
            source = lance.dataset(os.fspath(source))
        except (ValueError, OSError) as error:
            raise InputError(f"`{os.fspath(source)}` is no Lance table that can be read: {error}") from None
    for method in ("to_table", "to_arrow"):
        if hasattr(source, method):
            return getattr(source, method)()
    raise InputError(f"table is {type(source).__name__}, wanted a Lance data set, a LanceDB table, or an address")


def arrow_vectors(column: Any) -> NDArray[np.float32]:
    """Rows of an Arrow column of lists."""
    import pyarrow

    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if isinstance(column, pyarrow.ChunkedArray):  # of no chunk
        column = pyarrow.concat_arrays(column.chunks) if column.num_chunks else pyarrow.array([], column.type)
    if isinstance(column, pyarrow.ExtensionArray):
        column = column.storage
    kind = column.type
    lists = pyarrow.types.is_fixed_size_list(kind) or pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    if not lists:
        raise InputError(f"the vectors of the table are {kind}, wanted lists of numbers")
    if column.null_count:
        raise InputError("a vector of the table is null, wanted one in each row")
    flat = column.flatten()
    if flat.null_count:
        raise InputError("a component of a vector of the table is null, wanted numbers")
    if pyarrow.types.is_fixed_size_list(kind):
        width = kind.list_size
    else:
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if len(lengths) > 1:
            raise InputError("the vectors of the table differ in length")
        width = int(lengths[0]) if len(lengths) else 0
    return float32(as_array(flat.to_numpy(zero_copy_only=False), "vectors"), "vectors").reshape(len(column), width)
