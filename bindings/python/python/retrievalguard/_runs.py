"""Runs that many machines share: tasks, workers and their merge."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence, Union

from . import _native
from ._arrays import PathLike, Seed, count
from ._certificates import Certificates
from ._encoder import Encoder, usual_library
from ._errors import InputError
from ._pipeline import _certificates, _certifying, _encoder, _pictures
from ._progress import Bar, Progress


class Run:
    """A run of certificates in a directory or an object store, cut into tasks that any number of machines do.

    Workers need not know of each other. Killed and repeated at will, they leave the same parts, and `merge` gives the
    bytes of a run on one machine. ``retrievalguard worker`` and ``retrievalguard merge`` read the same run.

    Parameters
    ----------
    address : path_like
        A directory, or an address such as ``s3://bucket/run``, ``gs://…`` or ``az://…``. Keys and endpoints come from
        the environment, under the names that each provider uses.
    """

    def __init__(self, address: PathLike) -> None:
        self._address = _whole(address)
        self._tasks = _native.unfinished(self._address)[1]

    def __repr__(self) -> str:
        return f"Run({self._address!r}, {self._tasks} tasks)"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Run, (self._address,))

    @property
    def address(self) -> str:
        """Where the run lies."""
        return self._address

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self._tasks

    def unfinished(self) -> list[int]:
        """Numbers of the tasks that are still to be done."""
        return _native.unfinished(self._address)[0]

    def work(
        self,
        index: Optional[int] = None,
        of: Optional[int] = None,
        *,
        threads: Optional[int] = None,
        engine: Optional[str] = None,
        library: Optional[PathLike] = None,
        provider: str = "cpu",
        batch: int = 64,
        cache: Optional[PathLike] = None,
        progress: Progress = True,
    ) -> None:
        """Does tasks on this machine.

        Parameters
        ----------
        index, of : int, optional
            Which of so many equal shares, from 0; everything that is left by default.
        threads : int, optional
            One per core by default. Results do not depend on it.
        engine : {"onnxruntime", "rten"}, optional
            The run's by default; another one is refused, because last digits differ.
        library, provider, batch
            As for an `Encoder`.
        cache : path_like, optional
            Where encoder and gallery of a run in an object store are kept on this machine; the temporary folder by
            default.
        progress : bool or callable
            Whether to show a bar, or a function of done and total.
        """
        share = None
        if (index is None) != (of is None):
            raise InputError("index and of were not given together, wanted both or none")
        if index is not None and of is not None:
            share = (count(index, "index"), count(of, "of", least=1))
        chosen = os.cpu_count() or 1 if threads is None else count(threads, "threads", least=1)
        with Bar(progress, 0, "working", "task") as bar:
            working = _working(engine, library, provider, batch, cache)
            _native.work(self._address, share, chosen, working, bar.to)

    def merge(self, out: PathLike, *, progress: Progress = True) -> Certificates:
        """Puts the parts together once all tasks are done, and writes what `certify_pictures` writes.

        Parameters
        ----------
        out : path_like
            Directory for the table ``certificates.parquet`` and what the run was made with.
        progress : bool or callable
            Whether to show a bar, or a function of done and total.

        Returns
        -------
        Certificates
            One row per query.
        """
        with Bar(progress, 0, "merging", "query") as bar:
            report = _native.merge(self._address, os.fspath(out), bar.to)
        return _certificates(report)


class Worker:
    """A run with its encoder and gallery opened; does tasks as they are asked for, from any number of threads.

    Parameters
    ----------
    run : Run or path_like
        The run, or its address.
    engine, library, provider, batch, cache
        As in `Run.work`.
    """

    def __init__(
        self,
        run: Union[Run, PathLike],
        engine: Optional[str] = None,
        *,
        library: Optional[PathLike] = None,
        provider: str = "cpu",
        batch: int = 64,
        cache: Optional[PathLike] = None,
    ) -> None:
        address = run.address if isinstance(run, Run) else _whole(run)
        self._worker = _native.Worker(address, _working(engine, library, provider, batch, cache))

    def carry_out(self, number: int) -> None:
        """Does a task and writes its part, which is there when the call returns.

        Parameters
        ----------
        number : int
            Number of the task, from 0.
        """
        self._worker.carry_out(count(number, "number", most=2**63))


def share_pictures(
    pictures: PathLike,
    encoder: Encoder,
    gallery: PathLike,
    sigma: Optional[float],
    run: PathLike,
    *,
    chunk: Optional[int] = None,
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
    progress: Progress = True,
) -> Run:
    """Writes a run for many machines instead of running it: encoder, gallery, pictures and every parameter.

    Parameters
    ----------
    pictures, encoder, gallery, sigma
        As in `certify_pictures`.
    run : path_like
        A directory that all machines see, or an address such as ``s3://bucket/run``.
    chunk : int, optional
        Samples of one task; whole queries by default, which leaves parts of some hundred bytes.
    alpha, simultaneous, samples, pilot, certificate, target_radius, top_k, replan_bets, seed, leave_one_out
        As in `certify_pictures`.
    excess, format, split, every, limit, skip_broken, progress
        As in `index`.

    Returns
    -------
    Run
        The run; the same call made again finds it, and another run in the same place is refused.
    """
    certifying = _certifying(
        sigma, alpha, simultaneous, samples, pilot, certificate, target_radius, top_k, mixtures, replan_bets, seed,
        leave_one_out, excess,
    )
    chosen = _pictures(pictures, format, split, every, limit, skip_broken)
    places = (os.fspath(gallery), _whole(run))
    pieces = None if chunk is None else count(chunk, "chunk", least=1)
    with Bar(progress, 0, "sharing", "picture") as bar:
        _native.share_pictures(chosen, _encoder(encoder), places, certifying, pieces, bar.to)
    return Run(run)


def _whole(address: PathLike) -> str:
    """An address that means the same wherever it is read."""
    text = str(os.fspath(address))
    return text if "://" in text else os.path.abspath(text)


def _working(
    engine: Optional[str],
    library: Optional[PathLike],
    provider: str,
    batch: int,
    cache: Optional[PathLike],
) -> dict[str, Any]:
    return {
        "engine": engine,
        "library": usual_library(engine) if library is None else os.fspath(library),
        "provider": str(provider),
        "batch": count(batch, "batch", least=1),
        "cache": None if cache is None else os.fspath(cache),
    }
