"""Row groups in a plan's order, without the rows that a predicate rejects.

All state is in attributes: after any interruption of a call, the next one continues there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bowstring.petastorm._plan import Patience, Plan
from bowstring.petastorm._source import Columns, Source

__all__ = ["Feed", "Filtered", "Piece", "Plain"]

T = TypeVar("T")

# Least entries of a native order, if epochs are shorter: between two orders the threads are idle.
_STRETCH = 256
# Row groups whose predicate columns are examined before the rest of their columns is requested.
_LOOK = 32


@dataclass(frozen=True)
class Piece(Generic[T]):
    """A row group, or a part of one."""

    group: int
    part: int
    data: T
    mask: Sequence[bool] | None
    """Mask of the rows that a predicate accepts; all if ``None``."""
    order: Any = None
    """Order of its rows, if it is random."""


class Feed(ABC, Generic[T]):
    """Pieces, one after another."""

    @abstractmethod
    def next(self) -> Piece[T] | None:
        """The next piece; ``None`` when the plan has ended."""

    @abstractmethod
    def close(self) -> None:
        """Stops everything at once."""

    @abstractmethod
    def reset(self) -> None:
        """Begins the plan again; only after its end."""


class Plain(Feed[T]):
    """All rows; with a predicate, its fields are among the columns and it is applied afterwards."""

    def __init__(
        self, source: Source, plan: Plan, convert: Callable[[Columns], T], mask: Callable[[Columns, T], Any] | None
    ) -> None:
        self._source, self._plan, self._convert, self._mask = source, plan, convert, mask
        self._started = False
        self._entries = 0
        self._patience = Patience(plan)

    def next(self) -> Piece[T] | None:
        while True:
            if not self._started:
                entries = self._plan.stretch(_STRETCH)
                if not entries:
                    return None
                self._source.start(entries)
                self._started = True
                self._entries = len(entries)
            found = self._source.next(self._made)
            if found is not None:
                self._patience.came()
                self._entries = 0
                (group, part), _, (data, mask) = found
                return Piece(group, part, data, mask)
            self._started = False
            self._patience.nothing(self._entries)

    def _made(self, columns: Columns) -> tuple[T, Any]:
        """Applies the predicate as well, so that a piece is delivered again if it raises or is interrupted."""
        data = self._convert(columns)
        return data, None if self._mask is None else self._mask(columns, data)

    def close(self) -> None:
        self._source.close()

    def reset(self) -> None:
        self._plan.reset()


class Filtered(Feed[T]):
    """Reads a predicate's columns first, and the others only of row groups in which it accepts a row."""

    def __init__(
        self,
        looked_at: Source,
        source: Source,
        plan: Plan,
        convert: Callable[[Columns], T],
        mask: Callable[[Columns], Any],
    ) -> None:
        self._look, self._source, self._plan = looked_at, source, plan
        self._convert, self._mask = convert, mask
        self._looking = self._reading = False
        self._patience = Patience(plan)
        # Entries without pieces so far: in the end, the row groups without rows.
        self._empty = 0
        self._taken: list[tuple[tuple[int, int], Any]] = []
        self._expected: deque[tuple[tuple[int, int], Any]] = deque()

    def next(self) -> Piece[T] | None:
        while True:
            if self._reading:
                found = self._source.next(self._convert)
                if found is not None:
                    (group, part), _, data = found
                    entry, mask = self._expected.popleft()
                    assert entry == (group, part)
                    return Piece(group, part, data, mask)
                self._reading = False
            if not self._look_ahead():
                return None

    def _look_ahead(self) -> bool:
        """Examines some row groups and starts reading the accepted ones; false when the plan has ended."""
        if not self._looking:
            entries = self._plan.stretch(_STRETCH)
            if not entries:
                return False
            self._look.start(entries)
            self._looking = True
            self._empty = len(entries)
        for _ in range(_LOOK):
            found = self._look.next(self._mask)
            if found is None:
                self._looking = False
                self._patience.nothing(self._empty)
                break
            self._empty -= 1
            entry, _, mask = found
            if any(mask):
                self._patience.came()
                self._taken.append((entry, mask))
            else:
                self._patience.nothing()
        if self._taken:
            self._source.start([entry for entry, _ in self._taken])
            self._expected = deque(self._taken)
            self._taken = []
            self._reading = True
        return True

    def close(self) -> None:
        self._look.close()
        self._source.close()

    def reset(self) -> None:
        self._plan.reset()
