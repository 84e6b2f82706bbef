"""The actors of a run: placed on every node, fed with tasks, replaced when they are lost."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import warnings
from collections import Counter, deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Iterator, Optional, Sequence

from .._errors import InputError, RetrievalGuardError
from .._progress import Bar
from .._runs import Run, Worker

# Seconds between two checks of the nodes of the cluster.
_CHECK_INTERVAL = 2.0
# Seconds without a working actor after which the user is warned.
_PATIENCE = 30.0
# Actors that a node may lose, one after the other, before it has finished a task with them.
_LOSSES = 3
# Bytes of Ray's object store where it is started for one call: tasks are numbers.
_OBJECTS = 80 * 1024 * 1024


def _library() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError("Ray is not installed, wanted: pip install 'retrievalguard[ray]'") from error
    return ray


@contextlib.contextmanager
def connected(address: Optional[str]) -> Iterator[bool]:
    """A connection to a cluster, and whether that is this machine alone; one that was there before is left as it is."""
    ray = _library()
    if ray.is_initialized():
        yield False
        return
    alone = False
    named = address or os.environ.get("RAY_ADDRESS")
    _check(named)
    try:
        ray.init(address=named or "auto", logging_level="warning")
    except ConnectionError:
        # A cluster that was named and does not answer is not replaced by another.
        if named:
            raise
        alone = True
        ray.init(
            address="local", logging_level="warning", include_dashboard=False, object_store_memory=_OBJECTS
        )
    try:
        yield alone
    finally:
        ray.shutdown()


def _check(address: Optional[str]) -> None:
    """Refuses at once an address where nothing listens; Ray itself tries for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"no Ray cluster answers at `{address}`: {error}") from error


class RetrievalGuardWorker:
    """What runs on a node; holds a run with its encoder and gallery."""

    def open(self, address: str, working: dict[str, Any]) -> None:
        """Reads the run's manifest and opens its encoder and gallery."""
        self._worker = Worker(address, **working)

    def carry_out(self, number: int) -> None:
        """Does a task and writes its part."""
        self._worker.carry_out(number)


@dataclass(eq=False)
class _Actor:
    """An actor, its node, and the tasks it was given."""

    handle: Any
    node: str
    host: str
    threads: int
    open: bool = False
    tasks: dict[Any, int] = field(default_factory=dict)


class ActorPool:
    """The actors of a run, one or more on each node."""

    def __init__(
        self,
        run: Run,
        threads: Optional[int],
        gpus: float,
        working: dict[str, Any],
        attempts: int,
        fixed: bool,
    ) -> None:
        self._ray = _library()
        self._run, self._threads, self._gpus = run, threads, gpus
        self._working, self._attempts = working, attempts
        # Whether the cluster has this machine alone, so that no other node can join.
        self._fixed = fixed
        self._actors: list[_Actor] = []
        # References that are waited for, and whose they are.
        self._pending: dict[Any, _Actor] = {}
        # Nodes that take no part, with their errors.
        self._excluded: dict[str, BaseException] = {}
        self._losses: Counter[str] = Counter()
        self._failures: Counter[int] = Counter()
        self._checked = 0.0
        self._last_open = time.monotonic()
        self._warned = False

    def __enter__(self) -> ActorPool:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        for actor in list(self._actors):
            self._stop(actor)

    def finish(self, todo: Sequence[int], bar: Bar) -> None:
        """Has every task carried out."""
        waiting = deque(todo)
        while waiting or self._has_tasks():
            self._check_nodes(len(waiting))
            self._feed(waiting)
            references = list(self._pending)
            if not references:
                time.sleep(_CHECK_INTERVAL / 4)
                continue
            ready, _ = self._ray.wait(references, num_returns=1, timeout=_CHECK_INTERVAL)
            for reference in ready:
                self._collect(reference, waiting, bar)

    def _has_tasks(self) -> bool:
        return any(actor.tasks for actor in self._actors)

    def _alive(self) -> dict[str, dict[str, Any]]:
        return {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}

    def _check_nodes(self, waiting: int) -> None:
        """Starts actors where there is room for them, and drops those whose node is gone."""
        now = time.monotonic()
        if now - self._checked < _CHECK_INTERVAL:
            return
        self._checked = now
        nodes = self._alive()
        capacities = {name: self._capacity(node["Resources"]) for name, node in nodes.items()}
        able = [name for name, (_, most) in capacities.items() if most > 0]
        for actor in [actor for actor in self._actors if actor.node not in nodes and not actor.tasks]:
            self._stop(actor)
        for name, node in nodes.items():
            if name in self._excluded:
                continue
            threads, most = capacities[name]
            here = sum(actor.node == name for actor in self._actors)
            # No more actors than there are tasks for.
            for _ in range(min(most - here, waiting)):
                self._start(name, node.get("NodeManagerHostname", name), threads)
                waiting -= 1
        if any(actor.open for actor in self._actors):
            self._last_open = now
        elif able and not self._actors and all(name in self._excluded for name in able):
            raise next(reversed(self._excluded.values()))
        elif self._fixed and not able:
            raise InputError(f"an actor wants {self._wanted()}, this machine has {os.cpu_count()} CPUs")
        elif now - self._last_open > _PATIENCE and not self._warned:
            self._warned = True
            free = self._ray.available_resources()
            warnings.warn(
                f"no actor has started for {_PATIENCE:.0f} s: an actor wants {self._wanted()}, the cluster has"
                f" {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free; see `threads`",
                stacklevel=5,
            )

    def _wanted(self) -> str:
        return f"{self._threads or 'all'} CPUs of a node and {self._gpus:g} GPUs"

    def _capacity(self, resources: dict[str, float]) -> tuple[int, int]:
        """Threads of an actor, and how many actors there may be."""
        cpus = int(resources.get("CPU", 0))
        threads = cpus if self._threads is None else self._threads
        room = cpus // threads if threads else 0
        if self._gpus > 0:
            room = min(room, int(resources.get("GPU", 0) / self._gpus))
        return threads, room

    def _start(self, node: str, host: str, threads: int) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = self._ray.remote(
            num_cpus=threads,
            num_gpus=self._gpus,
            max_restarts=0,
            max_concurrency=threads,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        actor = _Actor(options(RetrievalGuardWorker).remote(), node, host, threads)
        self._actors.append(actor)
        self._pending[actor.handle.open.remote(self._run.address, self._working)] = actor

    def _feed(self, waiting: deque[int]) -> None:
        """Gives every actor a task for each thread, and one more to go on with."""
        for actor in self._actors:
            while actor.open and waiting and len(actor.tasks) <= actor.threads:
                number = waiting.popleft()
                reference = actor.handle.carry_out.remote(number)
                actor.tasks[reference] = number
                self._pending[reference] = actor

    def _collect(self, reference: Any, waiting: deque[int], bar: Bar) -> None:
        """Collects the result of a task, or of opening an actor."""
        from ray.exceptions import RayError, RayTaskError

        actor = self._pending.pop(reference, None)
        if actor is None:
            # Its actor is known to be lost already.
            return
        number = actor.tasks.get(reference)
        try:
            self._ray.get(reference)
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if number is None:
                self._exclude(actor, cause, waiting)
            else:
                del actor.tasks[reference]
                self._failed(number, cause, waiting)
        except RayError as error:
            self._lost(actor, error, waiting)
        else:
            self._losses[actor.node] = 0
            if number is None:
                actor.open = True
            else:
                del actor.tasks[reference]
                bar.by(1)

    def _exclude(self, actor: _Actor, error: BaseException, waiting: deque[int]) -> None:
        """A node that cannot open the run is left alone; the others go on."""
        if not isinstance(error, InputError):
            # A store that did not answer may answer the next time.
            self._lost(actor, error, waiting)
            return
        self._excluded[actor.node] = error
        warnings.warn(f"node {actor.host} does not take part: {error}", stacklevel=6)
        self._stop(actor)

    def _failed(self, number: int, error: Exception, waiting: deque[int]) -> None:
        """What is wrong with the run itself is wrong everywhere; the rest may be better elsewhere."""
        self._failures[number] += 1
        if isinstance(error, InputError) or self._failures[number] >= self._attempts:
            raise error
        waiting.append(number)

    def _lost(self, actor: _Actor, error: BaseException, waiting: deque[int]) -> None:
        """An actor is gone: its tasks go to others, and another actor is started."""
        numbers = list(actor.tasks.values())
        self._stop(actor)
        waiting.extendleft(reversed(numbers))
        if actor.node in self._alive():
            self._losses[actor.node] += 1
            if self._losses[actor.node] >= _LOSSES:
                self._excluded[actor.node] = RetrievalGuardError(
                    f"node {actor.host} failed {_LOSSES} times, one after the other: {error}"
                )
                warnings.warn(f"node {actor.host} does not take part any more: {error}", stacklevel=6)
            # The oldest were being done, one by each thread; the rest had not begun and are not to blame.
            for one in numbers[: actor.threads]:
                self._failures[one] += 1
                if self._failures[one] >= self._attempts:
                    raise RetrievalGuardError(
                        f"task {one} of run `{self._run.address}` lost its actor {self._attempts} times: {error}"
                    ) from error
        self._checked = 0.0

    def _stop(self, actor: _Actor) -> None:
        self._actors.remove(actor)
        for reference in [reference for reference, owner in self._pending.items() if owner is actor]:
            del self._pending[reference]
        actor.tasks.clear()
        with contextlib.suppress(Exception):
            self._ray.kill(actor.handle)
