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

# Seconds between two looks at the nodes of the cluster.
_LOOK = 2.0
# Seconds without a working actor after which the user hears why.
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
    """Says at once that nobody is there; Ray itself tries for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"no Ray cluster answers at `{address}`: {error}") from error


class RetrievalGuardWorker:
    """What runs on a node; a run with its encoder and gallery at hand."""

    def open(self, address: str, working: dict[str, Any]) -> None:
        """Reads the run's manifest and opens its encoder and gallery."""
        self._worker = Worker(address, **working)

    def carry_out(self, number: int) -> None:
        """Does a task and writes its part."""
        self._worker.carry_out(number)


@dataclass(eq=False)
class _Member:
    """An actor, where it is, and what it has in hand."""

    handle: Any
    node: str
    place: str
    threads: int
    open: bool = False
    tasks: dict[Any, int] = field(default_factory=dict)


class Crew:
    """All actors of a run."""

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
        # Whether the cluster has this machine alone, so that nothing better can come.
        self._fixed = fixed
        self._members: list[_Member] = []
        # What is waited for, and whose it is.
        self._waited: dict[Any, _Member] = {}
        # Nodes that cannot do this, with what they said.
        self._useless: dict[str, BaseException] = {}
        self._losses: Counter[str] = Counter()
        self._failures: Counter[int] = Counter()
        self._looked = 0.0
        self._worked = time.monotonic()
        self._warned = False

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        for member in list(self._members):
            self._dismiss(member)

    def finish(self, todo: Sequence[int], bar: Bar) -> None:
        """Has every task done."""
        waiting = deque(todo)
        while waiting or self._waited_tasks():
            self._look(len(waiting))
            self._feed(waiting)
            references = list(self._waited)
            if not references:
                time.sleep(_LOOK / 4)
                continue
            ready, _ = self._ray.wait(references, num_returns=1, timeout=_LOOK)
            for reference in ready:
                self._hear(reference, waiting, bar)

    def _waited_tasks(self) -> bool:
        return any(member.tasks for member in self._members)

    def _alive(self) -> dict[str, dict[str, Any]]:
        return {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}

    def _look(self, waiting: int) -> None:
        """Places actors where there is room for them, and lets those go whose node is gone."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        self._looked = now
        nodes = self._alive()
        sizes = {name: self._size(node["Resources"]) for name, node in nodes.items()}
        able = [name for name, (_, most) in sizes.items() if most > 0]
        for member in [member for member in self._members if member.node not in nodes and not member.tasks]:
            self._dismiss(member)
        for name, node in nodes.items():
            if name in self._useless:
                continue
            threads, most = sizes[name]
            here = sum(member.node == name for member in self._members)
            # No more actors than there are tasks for.
            for _ in range(min(most - here, waiting)):
                self._place(name, node.get("NodeManagerHostname", name), threads)
                waiting -= 1
        if any(member.open for member in self._members):
            self._worked = now
        elif able and not self._members and all(name in self._useless for name in able):
            raise next(reversed(self._useless.values()))
        elif self._fixed and not able:
            raise InputError(f"an actor wants {self._wish()}, this machine has {os.cpu_count()} CPUs")
        elif now - self._worked > _PATIENCE and not self._warned:
            self._warned = True
            free = self._ray.available_resources()
            warnings.warn(
                f"no actor has started for {_PATIENCE:.0f} s: an actor wants {self._wish()}, the cluster has"
                f" {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free; see `threads`",
                stacklevel=5,
            )

    def _wish(self) -> str:
        return f"{self._threads or 'all'} CPUs of a node and {self._gpus:g} GPUs"

    def _size(self, resources: dict[str, float]) -> tuple[int, int]:
        """Threads of an actor, and how many actors there may be."""
        cpus = int(resources.get("CPU", 0))
        threads = cpus if self._threads is None else self._threads
        room = cpus // threads if threads else 0
        if self._gpus > 0:
            room = min(room, int(resources.get("GPU", 0) / self._gpus))
        return threads, room

    def _place(self, node: str, place: str, threads: int) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = self._ray.remote(
            num_cpus=threads,
            num_gpus=self._gpus,
            max_restarts=0,
            max_concurrency=threads,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        member = _Member(options(RetrievalGuardWorker).remote(), node, place, threads)
        self._members.append(member)
        self._waited[member.handle.open.remote(self._run.address, self._working)] = member

    def _feed(self, waiting: deque[int]) -> None:
        """Gives every actor a task for each thread, and one that is at hand when the first of them ends."""
        for member in self._members:
            while member.open and waiting and len(member.tasks) <= member.threads:
                number = waiting.popleft()
                reference = member.handle.carry_out.remote(number)
                member.tasks[reference] = number
                self._waited[reference] = member

    def _hear(self, reference: Any, waiting: deque[int], bar: Bar) -> None:
        """Takes up what came of a task, or of opening an actor."""
        from ray.exceptions import RayError, RayTaskError

        member = self._waited.pop(reference, None)
        if member is None:
            # Somebody else had told already that its actor is lost.
            return
        number = member.tasks.get(reference)
        try:
            self._ray.get(reference)
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if number is None:
                self._refuse(member, cause, waiting)
            else:
                del member.tasks[reference]
                self._failed(number, cause, waiting)
        except RayError as error:
            self._lost(member, error, waiting)
        else:
            self._losses[member.node] = 0
            if number is None:
                member.open = True
            else:
                del member.tasks[reference]
                bar.by(1)

    def _refuse(self, member: _Member, error: BaseException, waiting: deque[int]) -> None:
        """A node that cannot open the run is left alone; the others go on."""
        if not isinstance(error, InputError):
            # A store that did not answer may answer the next time.
            self._lost(member, error, waiting)
            return
        self._useless[member.node] = error
        warnings.warn(f"node {member.place} does not take part: {error}", stacklevel=6)
        self._dismiss(member)

    def _failed(self, number: int, error: Exception, waiting: deque[int]) -> None:
        """What is wrong with the run itself is wrong everywhere; the rest may be better elsewhere."""
        self._failures[number] += 1
        if isinstance(error, InputError) or self._failures[number] >= self._attempts:
            raise error
        waiting.append(number)

    def _lost(self, member: _Member, error: BaseException, waiting: deque[int]) -> None:
        """An actor is gone: what it had in hand goes to others, and another takes its place."""
        numbers = list(member.tasks.values())
        self._dismiss(member)
        waiting.extendleft(reversed(numbers))
        if member.node in self._alive():
            self._losses[member.node] += 1
            if self._losses[member.node] >= _LOSSES:
                self._useless[member.node] = RetrievalGuardError(
                    f"node {member.place} failed {_LOSSES} times, one after the other: {error}"
                )
                warnings.warn(f"node {member.place} does not take part any more: {error}", stacklevel=6)
            # The oldest were being done, one by each thread; the rest had not begun and are not to blame.
            for one in numbers[: member.threads]:
                self._failures[one] += 1
                if self._failures[one] >= self._attempts:
                    raise RetrievalGuardError(
                        f"task {one} of run `{self._run.address}` lost its actor {self._attempts} times: {error}"
                    ) from error
        self._looked = 0.0

    def _dismiss(self, member: _Member) -> None:
        self._members.remove(member)
        for reference in [reference for reference, owner in self._waited.items() if owner is member]:
            del self._waited[reference]
        member.tasks.clear()
        with contextlib.suppress(Exception):
            self._ray.kill(member.handle)
