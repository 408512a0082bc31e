"""Shuffling buffers of the data loaders. They draw as Petastorm's did, so that runs with seeded global generators agree."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["BatchQueue", "BatchShuffle", "ColumnShuffle", "RowQueue", "RowShuffle"]


class RowQueue:
    """Rows in the order they came."""

    def __init__(self) -> None:
        self._rows: deque[Any] = deque()

    def add(self, rows: Iterable[Any]) -> None:
        """Adds rows."""
        self._rows.extend(rows)

    def take(self, most: int, *, ended: bool) -> list[Any]:
        """The next rows, at most ``most``; ``ended`` means that no more will come."""
        return [self._rows.popleft() for _ in range(min(most, len(self._rows)))]


class RowShuffle:
    """Rows in random order, from a buffer that is kept at ``capacity``."""

    def __init__(self, capacity: int) -> None:
        self.rows: list[Any] = []
        self._kept = max(capacity - 2, 0)

    def add(self, rows: Iterable[Any]) -> None:
        """Adds rows."""
        self.rows.extend(rows)

    def take(self, most: int, *, ended: bool) -> list[Any]:
        """Random rows, at most ``most``; ``ended`` means that no more will come. The last row takes the place of each."""
        rows = self.rows
        taken: list[Any] = []
        count = min(most, len(rows) - (0 if ended else self._kept))
        if count <= 0:
            return taken
        # The same numbers as from single draws.
        for at in np.random.randint(0, np.arange(len(rows), len(rows) - count, -1)).tolist():
            last = rows.pop()
            if at < len(rows):
                last, rows[at] = rows[at], last
            taken.append(last)
        return taken


class ColumnShuffle:
    """Batches of the rows that :class:`RowShuffle` would give, for rows in arrays: numbers are drawn, and fields gathered.

    ``join`` combines pieces of one field's rows into a batch's value.
    """

    def __init__(self, capacity: int, batch_size: int, join: Callable[[Sequence[Any]], Any]) -> None:
        self._batch_size = batch_size
        self._join = join
        # Blocks of columns with the numbers of their first rows, and the number after the last.
        self._blocks: list[list[Any]] = []
        self._firsts: list[int] = []
        self._end = 0
        # Numbers of rows: those to draw from, and those drawn for the next batch.
        self._numbers = RowShuffle(capacity)
        self._drawn: list[int] = []

    def add(self, columns: Sequence[Any]) -> None:
        """Adds rows: one array per field."""
        if columns and len(columns[0]):
            self._blocks.append(list(columns))
            self._firsts.append(self._end)
            first, self._end = self._end, self._end + len(columns[0])
            self._numbers.add(range(first, self._end))

    def ready(self, *, ended: bool) -> bool:
        """True if a batch may be taken; ``ended`` means that no more rows will come. Draws as much of it as possible."""
        self._drawn += self._numbers.take(self._batch_size - len(self._drawn), ended=ended)
        return len(self._drawn) >= (1 if ended else self._batch_size)

    def take(self) -> list[Any]:
        """The batch that is ready; the last one may be smaller."""
        drawn, self._drawn = self._drawn, []
        self._merge(drawn)
        if len(self._blocks) == 1:
            return [self._join([column.take(drawn, axis=0)]) for column in self._blocks[0]]
        # Fields whose type or shape changes from row group to row group: row by row, as single rows would be joined.
        found = [bisect_right(self._firsts, row) - 1 for row in drawn]
        places = [(self._blocks[at], row - self._firsts[at]) for at, row in zip(found, drawn, strict=True)]
        fields = range(len(self._blocks[0]))
        return [self._join([block[field][at : at + 1] for block, at in places]) for field in fields]

    def _merge(self, drawn: list[int]) -> None:
        """Joins blocks of equal layout, and drops removed rows once they are as many as the others."""
        first, *others = self._blocks
        if others and all(all(map(_alike, first, block)) for block in others):
            self._blocks = [[np.concatenate(parts) for parts in zip(*self._blocks, strict=True)]]
            self._firsts = [0]
        if self._end > 2 * (len(self._numbers.rows) + len(drawn)):
            self._compact(drawn)

    def _compact(self, drawn: list[int]) -> None:
        """Keeps the undrawn rows, and ``drawn``, with new numbers."""
        kept = np.array(drawn + self._numbers.rows, np.intp)
        owners = np.searchsorted(self._firsts, kept, side="right") - 1
        in_place = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[in_place], np.arange(len(self._blocks)), side="right").tolist()
        blocks, firsts, start = [], [], 0
        for block, first, end in zip(self._blocks, self._firsts, ends, strict=True):
            if end > start:
                rows = kept[in_place[start:end]] - first
                blocks.append([column.take(rows, axis=0) for column in block])
                firsts.append(start)
            start = end
        self._blocks, self._firsts, self._end = blocks, firsts, len(kept)
        numbers = np.empty_like(kept)
        numbers[in_place] = np.arange(len(kept))
        drawn[:] = numbers[: len(drawn)].tolist()
        self._numbers.rows = numbers[len(drawn) :].tolist()


def _alike(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.shape[1:] == other.shape[1:])


def _joined(pieces: Sequence[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


class BatchQueue:
    """Batches in the order that rows came. ``join`` combines the pieces of a field; a single tensor is not copied."""

    def __init__(self, batch_size: int, join: Callable[[Sequence[Any]], Any] = _joined) -> None:
        self._batch_size = batch_size
        self._join = join
        self._blocks: deque[list[Any]] = deque()
        self._first = 0
        self._size = 0

    def missing(self) -> int:
        """Number of rows missing before a batch may be taken."""
        return max(self._batch_size - self._size, 0)

    def add(self, columns: Sequence[Any]) -> None:
        """Adds rows: one tensor, or array, per field."""
        if columns and len(columns[0]):
            self._blocks.append(list(columns))
            self._size += len(columns[0])

    def ready(self, *, ended: bool) -> bool:
        """True if a batch may be taken; ``ended`` means that no more rows will come."""
        return self._size >= (1 if ended else self._batch_size)

    def take(self) -> list[Any]:
        """The next batch; the last one may be smaller."""
        missing = min(self._size, self._batch_size)
        self._size -= missing
        parts: list[list[Any]] = []
        while missing:
            block = self._blocks[0]
            end = min(self._first + missing, len(block[0]))
            parts.append([column[self._first : end] for column in block])
            missing -= end - self._first
            self._first = end
            if end == len(block[0]):
                self._blocks.popleft()
                self._first = 0
        return [self._join(pieces) for pieces in zip(*parts, strict=True)]


class BatchShuffle:
    """Batches of rows drawn at random from a buffer of at least ``capacity``.

    The buffer's order is drawn once and handed out batch by batch; it is drawn anew once rows have been added.
    """

    def __init__(self, capacity: int, batch_size: int) -> None:
        self._batch_size = batch_size
        # Rows at which a batch is taken: as many as Petastorm waits for, and never less than a batch.
        self._enough = max(capacity + batch_size - 2, batch_size)
        # The rows not taken yet: those of `_columns` that `_order` names from `_taken` on, and later arrivals.
        self._columns: list[Any] = []
        self._order: Any = None
        self._taken = 0
        self._new: list[list[Any]] = []
        self._size = 0

    def missing(self) -> int:
        """Number of rows missing before a batch may be taken."""
        return max(self._enough - self._size, 0)

    def add(self, columns: Sequence[Any]) -> None:
        """Adds rows: one tensor per field."""
        if columns:
            self._new.append(list(columns))
            self._size += len(columns[0])

    def ready(self, *, ended: bool) -> bool:
        """True if a batch may be taken; ``ended`` means that no more rows will come."""
        return self._size >= (1 if ended else self._enough)

    def take(self) -> list[Any]:
        """A batch; the last one may be smaller."""
        if self._new:
            self._draw_anew()
        rows = self._order[self._taken : self._taken + self._batch_size]
        self._taken += len(rows)
        self._size -= len(rows)
        # Many times faster than indexing, with the same results.
        return [column.index_select(0, rows) for column in self._columns]

    def _draw_anew(self) -> None:
        """Joins the remaining rows, in the order of their draws, with the new ones."""
        new, self._new = self._new, []
        for field, parts in enumerate(zip(*new, strict=True)):
            if self._order is None:
                self._columns.append(torch.cat(parts))
            else:
                left = self._columns[field].index_select(0, self._order[self._taken :])
                self._columns[field] = torch.cat([left, *parts])
        self._order = torch.randperm(self._size, device=self._columns[0].device)
        self._taken = 0
