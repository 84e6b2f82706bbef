"""Shared runs on a Ray cluster.

Every node of the cluster gets an actor that holds the run's encoder and gallery and does one task after the other. The
cluster is the one that ``ray start`` made on each machine; without one, Ray is started on this machine alone. Nodes may
come and go, and actors and nodes may be lost in the middle: their tasks are done again by others, and the table
has the bytes of a run on one machine.

The run must be where all nodes can reach it: in an object store, or in a directory that they share. Needs
``pip install retrievalguard[ray]`` on every node.
"""

from __future__ import annotations

from typing import Optional, Union

from .._arrays import PathLike, count
from .._certificates import Certificates
from .._progress import Bar, Progress
from .._runs import Run
from ._actor_pool import ActorPool, connected

__all__ = ["certify", "work"]


def work(
    run: Union[Run, PathLike],
    *,
    address: Optional[str] = None,
    threads: Optional[int] = None,
    gpus: float = 0,
    engine: Optional[str] = None,
    library: Optional[PathLike] = None,
    provider: str = "cpu",
    batch: int = 64,
    cache: Optional[PathLike] = None,
    attempts: int = 5,
    progress: Progress = True,
) -> None:
    """Does all tasks of a run that are still to be done.

    After an interruption the same call goes on where it was.

    Parameters
    ----------
    run : Run or path_like
        The run, or its address.
    address : str, optional
        Of the Ray cluster, ``"host:6379"`` for instance. By default the one that this process is connected to, that of
        ``RAY_ADDRESS``, or the one that runs on this machine; if there is none, one is started for this call. A
        process that is connected stays so, whatever is named here.
    threads : int, optional
        Threads and Ray CPUs of an actor; all CPUs of its node by default. Smaller actors let other work in between, but
        each holds encoder and gallery once more.
    gpus : float
        Ray GPUs of an actor.
    engine, library, provider, batch, cache
        As in `Run.work`, on the nodes.
    attempts : int
        How often a task may fail or lose its actor before the call gives up; a lost node does not count.
    progress : bool or callable
        Whether to show a bar, or a function of done and total.
    """
    chosen = run if isinstance(run, Run) else Run(run)
    working = {"engine": engine, "library": library, "provider": provider, "batch": batch, "cache": cache}
    wanted = None if threads is None else count(threads, "threads", least=1)
    tries = count(attempts, "attempts", least=1)
    todo = chosen.unfinished()
    with Bar(progress, chosen.tasks, "working", "task") as bar:
        bar.to(chosen.tasks - len(todo))
        if todo:
            with connected(address) as alone, ActorPool(chosen, wanted, float(gpus), working, tries, alone) as pool:
                pool.finish(todo, bar)


def certify(
    run: Union[Run, PathLike],
    out: PathLike,
    *,
    address: Optional[str] = None,
    threads: Optional[int] = None,
    gpus: float = 0,
    engine: Optional[str] = None,
    library: Optional[PathLike] = None,
    provider: str = "cpu",
    batch: int = 64,
    cache: Optional[PathLike] = None,
    attempts: int = 5,
    progress: Progress = True,
) -> Certificates:
    """Does what is left of a run, and merges it on this machine.

    Parameters
    ----------
    run : Run or path_like
        The run, or its address.
    out : path_like
        Directory for the table ``certificates.parquet`` and what the run was made with.
    address, threads, gpus, engine, library, provider, batch, cache, attempts, progress
        As in `work`.

    Returns
    -------
    Certificates
        One row per query.
    """
    chosen = run if isinstance(run, Run) else Run(run)
    work(
        chosen,
        address=address,
        threads=threads,
        gpus=gpus,
        engine=engine,
        library=library,
        provider=provider,
        batch=batch,
        cache=cache,
        attempts=attempts,
        progress=progress,
    )
    return chosen.merge(out, progress=progress)
