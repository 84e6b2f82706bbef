"""Progress: a tqdm bar, a function of one's own, or silence."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, Optional, Union

Progress = Union[bool, Callable[[int, int], None]]


class Bar:
    """Hears how much of the work is done."""

    def __init__(self, progress: Progress, total: int, what: str, unit: str) -> None:
        self._told = progress if callable(progress) else None
        self._bar: Any = None
        self._total = total
        self._done = 0
        if progress is True:
            from tqdm.auto import tqdm

            self._bar = tqdm(total=total or None, desc=what, unit=unit, leave=False)

    def to(self, done: int, total: Optional[int] = None) -> None:
        """So much is done, of a total that may only now be known."""
        if total is not None:
            self._total = total
        if self._told is not None and done != self._done:
            self._told(done, self._total)
        if self._bar is not None:
            self._bar.total = self._total
            self._bar.update(done - self._done)
        self._done = done

    def by(self, step: int) -> None:
        """So much more is done."""
        self.to(self._done + step)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._bar is not None:
            self._bar.close()
