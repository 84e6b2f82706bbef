"""The resumable runs over folders of pictures."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union, cast

from . import _native
from ._arrays import PathLike, Seed, count, is_data_set, seed_digits
from ._certificates import Certificates
from ._certify import _names
from ._encoder import Encoder
from ._errors import InputError
from ._gallery import Gallery
from ._progress import Bar, Progress
from ._smooth import Function

if TYPE_CHECKING:
    from ._datasets import DataSet


def index(
    pictures: Union[PathLike, DataSet],
    encoder: Union[Encoder, Function],
    sigma: Optional[float],
    out: Optional[PathLike] = None,
    *,
    samples: Optional[int] = None,
    seed: Optional[Seed] = None,
    metric: str = "euclidean",
    views: Optional[PathLike] = None,
    excess: str = "refuse",
    shards: Optional[int] = None,
    format: str = "auto",
    split: Optional[str] = None,
    every: int = 1,
    limit: Optional[int] = None,
    skip_broken: bool = False,
    classes: Optional[Sequence[str]] = None,
    norm_bound: Optional[float] = None,
    progress: Progress = True,
) -> Gallery:
    """Embeds labelled pictures and makes a gallery.

    Of files, what is done is on disk at once: after an interruption, Ctrl-C or worse, the same call goes on and ends with the
    same bytes. Pairs in memory are embedded one after the other, and the gallery is written at the end.

    Parameters
    ----------
    pictures : path_like, torch Dataset or DataLoader, or iterable of pairs
        A folder of folders (``label/picture.jpg``), a CSV list, or a data set's folder; or anything that yields pairs of a
        picture, as `certify_picture` takes it, and its label, also in batches.
    encoder : Encoder, torch module or callable
        The encoder; a module or function for pairs in memory only.
    sigma : float or None
        Standard deviation of the noise; None for an encoder with a Lipschitz bound, opened with ``engine="double"``.
    out : path_like, optional
        Directory for the gallery; a gallery of pairs may stay in memory.
    samples : int, optional
        Noisy copies averaged per picture, 32 by default; 0 stores the embedding of the clean picture.
    seed : int or bytes, optional
        Root of the noise, 0 by default.
    metric : {"euclidean", "cosine"}
        How vectors are compared.
    views : str or path_like, optional
        Stores several views of each picture: ``"shifts"``, ``"flips"``, ``"crops"``, ``"rotations"``, ``"all"``, or a TOML
        file that lists views.
    excess : {"refuse", "project"}
        What happens to embeddings above the norm bound.
    shards : int, optional
        Write the gallery in so many shards, which are searched on disk instead of in memory.
    format : str
        Layout of the data set: ``"auto"``, ``"image-folder"``, ``"csv"``, ``"cub"``, ``"cars"``, ``"sop"`` or ``"idx"``.
    split : str, optional
        Part of the data set, ``"test"`` for instance.
    every, limit : int
        Take every n-th picture, and at most the first so many of those.
    skip_broken : bool
        Leave broken pictures out, with a warning, instead of raising.
    classes : sequence of str, optional
        For pairs: what whole-number labels stand for, by default what the data set says as ``classes``, as torchvision's do.
    norm_bound : float, optional
        Norm bound ``F`` of a function, 1 by default.
    progress : bool or callable
        Whether to show a bar, or a function of done and total.

    Returns
    -------
    Gallery
        As it was written.
    """
    if is_data_set(pictures):
        _of_files_only(views=views, shards=shards, split=split, skip_broken=skip_broken or None, format=_given(format))
        # It asks one picture after the other, by way of what runs are asked with.
        from ._datasets import index_data_set

        return index_data_set(
            cast("DataSet", pictures), encoder, sigma, out, samples=samples, seed=seed, metric=metric, excess=excess,
            classes=classes, norm_bound=norm_bound, every=every, limit=limit, progress=progress,
        )
    _of_pairs_only(classes=classes, norm_bound=norm_bound)
    if out is None:
        raise InputError("out is None, wanted a directory for a gallery of files")
    place = os.fspath(out)
    indexing = {
        "sigma": None if sigma is None else float(sigma),
        "samples": None if samples is None else count(samples, "samples"),
        "seed": None if seed is None else seed_digits(seed),
        "metric": str(metric),
        "views": None if views is None else os.fspath(views),
        "excess": str(excess),
        "shards": None if shards is None else count(shards, "shards"),
    }
    chosen = _pictures(cast(PathLike, pictures), format, split, every, limit, skip_broken)
    with Bar(progress, 0, "indexing", "picture") as bar:
        report = _native.index(chosen, _encoder(encoder), place, indexing, bar.to)
    _tell_skipped(report["skipped"])
    return Gallery.read(place)


def certify_pictures(
    pictures: Union[PathLike, DataSet],
    encoder: Union[Encoder, Function],
    gallery: Union[PathLike, Gallery],
    sigma: Optional[float] = None,
    out: Optional[PathLike] = None,
    *,
    alpha: Optional[float] = None,
    simultaneous: bool = False,
    samples: Optional[int] = None,
    pilot: Optional[int] = None,
    certificate: Union[None, str, Sequence[str]] = None,
    target_radius: Optional[float] = None,
    top_k: int = 1,
    mixtures: Optional[int] = None,
    replan_bets: bool = False,
    seed: Optional[Seed] = None,
    leave_one_out: str = "auto",
    excess: str = "refuse",
    format: str = "auto",
    split: Optional[str] = None,
    every: int = 1,
    limit: Optional[int] = None,
    skip_broken: bool = False,
    classes: Optional[Sequence[str]] = None,
    norm_bound: Optional[float] = None,
    receipts: Optional[PathLike] = None,
    progress: Progress = True,
) -> Certificates:
    """Certifies pictures against a gallery and makes a table, as ``retrievalguard certify`` does.

    Of files, what is done is on disk at once: after an interruption, Ctrl-C or worse, the same call goes on and ends with the
    same bytes. ``retrievalguard evaluate``, ``report``, ``explain`` and ``attack`` read the directory. Pairs in memory are
    certified one after the other, and their table, which ``evaluate`` reads, is written at the end.

    Parameters
    ----------
    pictures : path_like, torch Dataset or DataLoader, or iterable of pairs
        The queries, as `index` takes them. Of pairs in memory, a query is called by its position and a digest of its pixels; its
        noise depends on both, so a loader that shuffles draws other noise each time.
    encoder : Encoder, torch module or callable
        The encoder that made the gallery; a module or function for pairs in memory only.
    gallery : path_like or Gallery
        Directory of the gallery; for pairs in memory also the gallery itself.
    sigma : float or None
        Standard deviation of the noise; None for that of the gallery. For a gallery without noise, the encoder needs a
        Lipschitz bound (``engine="double"``), and whatever is about noise is refused.
    out : path_like, optional
        Directory for the table ``certificates.parquet``, and of files also for the journal and what the run was made with.
    alpha : float, optional
        Probability that a certificate is wrong, 0.01 by default.
    simultaneous : bool
        Share `alpha` over all queries, so that all certificates hold at once.
    samples : int, optional
        Certifying samples per query, 1000 by default; the most that are drawn, with a target radius.
    pilot : int, optional
        Pilot samples: 200, or 20 where they choose little (pairwise, and vote with a target radius).
    certificate : str or sequence of str, optional
        Names, or ``"all"``; half-space by default, lipschitz and lipschitz-margin without noise.
    target_radius : float, optional
        Decide this radius with as few samples as possible (half-space, vote or pairwise alone).
    top_k : int
        Also radii for Recall@2 to Recall@k (half-space, and lipschitz).
    mixtures : int, optional
        How many right items may stand together against a wrong one (lipschitz only), 1 by default.
    replan_bets : bool
        Plan the bets of half-space again while samples come in: larger radii where the pilot is small.
    seed : int or bytes, optional
        Root of the noise, fixed before the queries are seen; 0 by default.
    leave_one_out : {"auto", "always", "never"}
        Whether a query is kept from finding itself; ``"auto"``: if it is the same picture, byte for byte, or pixel for pixel
        where both were pairs in memory.
    receipts : path_like, optional
        Folder in which every query of files leaves a receipt, which `verify_receipt` and ``retrievalguard verify`` check.
    excess, format, split, every, limit, skip_broken, classes, norm_bound, progress
        As in `index`.

    Returns
    -------
    Certificates
        One row per query.
    """
    certifying = _certifying(
        sigma, alpha, simultaneous, samples, pilot, certificate, target_radius, top_k, mixtures, replan_bets, seed,
        leave_one_out, excess,
    )
    if is_data_set(pictures):
        _of_files_only(split=split, skip_broken=skip_broken or None, format=_given(format), receipts=receipts)
        from ._datasets import certify_data_set

        return certify_data_set(
            cast("DataSet", pictures), encoder, gallery, out, certifying, classes=classes, norm_bound=norm_bound,
            leave_one_out=leave_one_out, every=every, limit=limit, progress=progress,
        )
    _of_pairs_only(classes=classes, norm_bound=norm_bound)
    if isinstance(gallery, Gallery):
        raise InputError("the gallery is in memory, wanted its directory for a run over files, which `Gallery.write` makes")
    if out is None:
        raise InputError("out is None, wanted a directory for a run over files")
    certifying["receipts"] = None if receipts is None else os.fspath(receipts)
    chosen = _pictures(cast(PathLike, pictures), format, split, every, limit, skip_broken)
    places = (os.fspath(gallery), os.fspath(out))
    with Bar(progress, 0, "certifying", "query") as bar:
        report = _native.certify_pictures(chosen, _encoder(encoder), places, certifying, bar.to)
    return _certificates(report)


def _certificates(report: dict[str, Any]) -> Certificates:
    """The table of a finished run, with the files beside it."""
    _tell_skipped(report["skipped"], stacklevel=4)
    certificates = Certificates(report["columns"])
    certificates.skipped = report["skipped"]
    certificates.resumed = report["resumed"]
    certificates._attach_at_k(report["deeper"])
    return certificates


def _certifying(
    sigma: Optional[float],
    alpha: Optional[float],
    simultaneous: bool,
    samples: Optional[int],
    pilot: Optional[int],
    certificate: Union[None, str, Sequence[str]],
    target_radius: Optional[float],
    top_k: int,
    mixtures: Optional[int],
    replan_bets: bool,
    seed: Optional[Seed],
    leave_one_out: str,
    excess: str,
) -> dict[str, Any]:
    return {
        "receipts": None,
        "sigma": None if sigma is None else float(sigma),
        "alpha": None if alpha is None else float(alpha),
        "simultaneous": bool(simultaneous),
        "pilot": None if pilot is None else count(pilot, "sample count", most=2**63),
        "samples": None if samples is None else count(samples, "sample count", most=2**63),
        "certificates": None if certificate is None else ["all"] if certificate == "all" else list(_names(certificate)),
        "top_k": count(top_k, "top_k"),
        "mixtures": None if mixtures is None else count(mixtures, "mixtures", least=1),
        "target_radius": None if target_radius is None else float(target_radius),
        "replan_bets": bool(replan_bets),
        "seed": None if seed is None else seed_digits(seed),
        "leave_one_out": str(leave_one_out),
        "excess": str(excess),
    }


def _encoder(encoder: Union[Encoder, Function]) -> _native.Encoder:
    if not isinstance(encoder, Encoder):
        raise InputError(f"encoder is {type(encoder).__name__}, wanted an Encoder for pictures in files")
    return encoder._encoder


def _given(format: str) -> Optional[str]:
    return None if format == "auto" else format


def _of_files_only(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is for pictures in files, wanted none for pairs in memory")


def _of_pairs_only(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is for pairs in memory, wanted none for pictures in files")


def _pictures(
    path: PathLike, format: str, split: Optional[str], every: int, limit: Optional[int], skip_broken: bool
) -> dict[str, Any]:
    return {
        "path": os.fspath(path),
        "format": str(format),
        "split": split,
        "every": count(every, "every", least=1),
        "limit": None if limit is None else count(limit, "limit", least=1),
        "skip_broken": bool(skip_broken),
    }


def _tell_skipped(skipped: list[tuple[str, str]], stacklevel: int = 3) -> None:
    for identity, reason in skipped:
        warnings.warn(f"skipped: {identity}: {reason}", stacklevel=stacklevel)
