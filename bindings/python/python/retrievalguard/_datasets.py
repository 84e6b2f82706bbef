"""Pictures from data sets in memory: anything that yields pairs of a picture and its label, such as torch's."""

from __future__ import annotations

import itertools
import os
import warnings
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Sized, Union

import numpy as np
from numpy.typing import NDArray

from ._arrays import PathLike, Seed, as_array, count, is_tensor, seed_digits
from ._certificates import Certificate, Certificates
from ._certify import LIPSCHITZ, _table
from ._encoder import Encoder, Picture
from ._errors import InputError
from ._gallery import Gallery, Label, as_list, label_text, made_of
from ._picture import Asker, Prepared, take
from ._progress import Bar, Progress
from ._smooth import Function, smooth

# After so many labels of which the gallery has none, something is said.
STRANGE = 32

DataSet = Union[Iterable[tuple[Picture, Label]], Sequence[tuple[Picture, Label]]]
"""Pairs of a picture and its label: a list, a generator, a torch ``Dataset`` or ``DataLoader``."""


class Entry(NamedTuple):
    """One picture of a data set."""

    position: int
    picture: Any
    label: str


def class_names(source: Any, classes: Optional[Sequence[str]]) -> Optional[list[str]]:
    """What whole-number labels stand for: the names that were given, or those of the data set."""
    if classes is not None:
        return [label_text(name) for name in as_list(classes)]
    # A DataLoader holds a Dataset, and a Subset another one.
    for _ in range(8):
        found = getattr(source, "classes", None)
        if isinstance(found, (list, tuple)) and found and all(isinstance(name, str) for name in found):
            return list(found)
        source = getattr(source, "dataset", None)
        if source is None:
            return None
    return None


def entries(
    source: Any, classes: Optional[Sequence[str]], every: int = 1, limit: Optional[int] = None
) -> Iterator[Entry]:
    """The pictures of a data set, one by one, also where it yields batches."""
    names = class_names(source, classes)
    step, most = count(every, "every", least=1), None if limit is None else count(limit, "limit", least=1)

    def flat() -> Iterator[tuple[Any, Any]]:
        for pair in _iterated(source):
            picture, label = _pair(pair)
            if not _is_batch(label):
                yield picture, label
                continue
            labels = as_list(as_array(label, "labels") if is_tensor(label) else label)
            if len(picture) != len(labels):
                raise InputError(f"a batch has {len(picture)} pictures and {len(labels)} labels, wanted as many of both")
            yield from zip(picture, labels)

    chosen = itertools.islice(enumerate(flat()), 0, None if most is None else step * most, step)
    for position, (picture, label) in chosen:
        yield Entry(position, picture, _named(label, names, position))


def _iterated(source: Any) -> Iterator[Any]:
    if hasattr(source, "__iter__"):
        return iter(source)
    # A map-style Dataset need not end by an IndexError.
    return (source[place] for place in range(len(source)))


def _pair(pair: Any) -> tuple[Any, Any]:
    if isinstance(pair, Mapping):
        if "image" in pair and "label" in pair:
            return pair["image"], pair["label"]
        raise InputError(f"an entry of the data set has the keys {', '.join(map(str, pair))}, wanted image and label")
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        found = f"{len(pair)} parts" if isinstance(pair, (tuple, list)) else type(pair).__name__
        raise InputError(f"an entry of the data set is {found}, wanted a picture and its label")
    return pair[0], pair[1]


def _is_batch(label: Any) -> bool:
    return isinstance(label, (list, tuple)) or getattr(label, "ndim", 0) == 1


def _named(label: Any, names: Optional[list[str]], position: int) -> str:
    if is_tensor(label) or isinstance(label, np.ndarray):
        array = as_array(label, "label")
        label = array.item() if array.ndim == 0 else label
    text = label_text(label)
    if names is None or isinstance(label, str):
        return text
    if not 0 <= int(text) < len(names):
        raise InputError(f"entry {position} of the data set has label {text}, wanted one below {len(names)}, the number of classes")
    return names[int(text)]


def _length(source: Any) -> int:
    """How many entries there are, 0 if that is not known; of a loader, how many batches are not pictures."""
    inner = source
    for _ in range(8):
        if hasattr(inner, "batch_size") and hasattr(inner, "dataset"):
            inner = inner.dataset
    return len(inner) if isinstance(inner, Sized) else 0


def _expected(source: Any, every: int, limit: Optional[int]) -> int:
    chosen = -(-_length(source) // max(int(every), 1))
    return chosen if limit is None or not chosen else min(chosen, limit)


def index_data_set(
    source: DataSet,
    encoder: Union[Encoder, Function],
    sigma: Optional[float],
    out: Optional[PathLike],
    *,
    samples: Optional[int],
    seed: Optional[Seed],
    metric: str,
    excess: str,
    classes: Optional[Sequence[str]],
    norm_bound: Optional[float],
    every: int,
    limit: Optional[int],
    progress: Progress,
) -> Gallery:
    """A gallery of a data set's pictures; see `index`."""
    bound = 1.0 if norm_bound is None else float(norm_bound)
    if isinstance(encoder, Encoder):
        bound = encoder.norm_bound
        if sigma is None:
            encoder.lipschitz  # raises where there is none
    if sigma is None and (samples is not None or seed is not None):
        raise InputError("samples and seed say nothing without noise, and sigma is None; wanted neither")
    copies = 0 if sigma is None else 32 if samples is None else count(samples, "samples")
    root = 0 if seed is None else seed
    embedder = _Embedder(encoder, norm_bound, excess)
    vectors, clean, labels, identities = [], [], [], []
    with Bar(progress, _expected(source, every, limit), "indexing", "picture") as bar:
        for entry in entries(source, classes, every, limit):
            taken = take(entry.picture, f"entry {entry.position} of the data set")
            identity = f"{entry.position}-{taken.digest}"
            pixels = embedder.prepared(taken, identity)
            if copies > 0 and sigma is not None:
                vectors.append(embedder.mean(pixels, sigma, copies, root, identity))
                if isinstance(encoder, Encoder):
                    clean.append(encoder.embed(pixels))
            else:
                vectors.append(embedder.clean(pixels))
            labels.append(entry.label)
            identities.append(identity)
            bar.by(1)
    if not vectors:
        raise InputError("the data set has no pictures, wanted at least one")
    made = {
        **made_of(sigma if copies else None, copies, bound),
        "seed": seed_digits(root) if copies else None,
        "plain": np.stack(clean) if clean else None,
        "encoder": encoder._encoder if isinstance(encoder, Encoder) else None,
    }
    gallery = Gallery._made(np.stack(vectors), labels, identities, metric, made)
    if out is None:
        return gallery
    gallery.write(out)
    return Gallery.read(out)


class _Embedder(Prepared):
    """An encoder or a function that embeds the pictures of a gallery."""

    def __init__(self, encoder: Union[Encoder, Function], norm_bound: Optional[float], excess: str) -> None:
        super().__init__(encoder, norm_bound)
        self._excess = excess

    def mean(
        self, pixels: NDArray[np.float32], sigma: float, copies: int, seed: Seed, identity: str
    ) -> NDArray[np.float32]:
        """Mean over noisy copies, summed in double precision."""
        if isinstance(self.encoder, Encoder):
            rows = self.encoder.samples(pixels, sigma, copies, seed, "gallery", identity=identity, excess=self._excess)
        else:
            rows = smooth(
                self.encoder, pixels, sigma=sigma, samples=copies, seed=seed, identity=identity, stage="gallery",
                progress=False, norm_bound=self._norm_bound, excess=self._excess,
            )
        mean: NDArray[np.float32] = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean

    def clean(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        """The embedding of the clean picture."""
        if isinstance(self.encoder, Encoder):
            return self.encoder.embed(pixels)
        function = self.function(pixels)
        assert function is not None
        row: NDArray[np.float32] = function["call"](pixels[None])[0]
        return row


def certify_data_set(
    source: DataSet,
    encoder: Union[Encoder, Function],
    gallery: Union[Gallery, PathLike],
    out: Optional[PathLike],
    certifying: dict[str, Any],
    *,
    classes: Optional[Sequence[str]],
    norm_bound: Optional[float],
    leave_one_out: str,
    every: int,
    limit: Optional[int],
    progress: Progress,
) -> Certificates:
    """Certificates of a data set's pictures; see `certify_pictures`."""
    asker = Asker(encoder, gallery, certifying=certifying, norm_bound=norm_bound, usual=(("half-space",), LIPSCHITZ))
    if asker.noisy and certifying["seed"] is None:
        asker.certifying["seed"] = "0"
    total = _expected(source, every, limit)
    if certifying["simultaneous"] and total == 0:
        raise InputError("simultaneous shares alpha over all queries, wanted a data set that has a length")
    known = set(asker.gallery._stored.labels())
    strange: Optional[set[str]] = set()
    rows: list[dict[str, Certificate]] = []
    with Bar(progress, total, "certifying", "query") as bar:
        for entry in entries(source, classes, every, limit):
            if strange is not None:
                strange = None if entry.label in known else strange | {entry.label}
                if strange and len(rows) + 1 == min(STRANGE, total or STRANGE):
                    _tell_strange(strange, known)
            taken = take(entry.picture, f"entry {entry.position} of the data set")
            identity = f"{entry.position}-{taken.digest}"
            own = asker.own_rows(taken, identity, leave_one_out)
            row = asker.ask(taken, entry.label, identity=identity, excluded=own, queries=max(total, 1))
            rows.append(row)
            bar.to(len(rows))
    if not rows:
        raise InputError("the data set has no pictures, wanted at least one")
    if certifying["simultaneous"] and len(rows) > total:
        raise InputError(f"the data set has {len(rows)} pictures and said {total}, so alpha was shared among too few")
    first = next(iter(rows[0].values()))
    settings = {
        "sigma": asker.sigma,
        "alpha": first.alpha,
        "top_k": certifying["top_k"],
        "target_radius": certifying["target_radius"],
    }
    table = _table(rows, tuple(rows[0]), settings)
    if out is not None:
        os.makedirs(out, exist_ok=True)
        table.write(os.path.join(out, "certificates.parquet"))
    return table


def _tell_strange(strange: set[str], known: set[str]) -> None:
    def some(names: set[str]) -> str:
        return ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")

    warnings.warn(
        f"none of the labels so far is in the gallery: the data set says {some(strange)}, the gallery {some(known)}; "
        "what whole numbers stand for is said by classes=",
        stacklevel=4,
    )


__all__ = ["DataSet", "certify_data_set", "index_data_set"]
