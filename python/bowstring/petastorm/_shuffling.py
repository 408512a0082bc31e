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
        """Takes rows in."""
        self._rows.extend(rows)

    def ready(self, *, ended: bool) -> bool:
        """Whether a row may be taken; ``ended`` says that no more will come."""
        return bool(self._rows)

    def take(self) -> Any:
        """The next row."""
        return self._rows.popleft()


class RowShuffle:
    """Rows in random order, from a buffer that is kept at ``capacity``."""

    def __init__(self, capacity: int) -> None:
        self._rows: list[Any] = []
        self._least = capacity - 1

    def add(self, rows: Iterable[Any]) -> None:
        """Takes rows in."""
        self._rows.extend(rows)

    def ready(self, *, ended: bool) -> bool:
        """Whether a row may be taken; ``ended`` says that no more will come."""
        return len(self._rows) >= (1 if ended else max(self._least, 1))

    def take(self) -> Any:
        """A row by chance; the last one moves to its place."""
        at = np.random.randint(0, len(self._rows))
        row, last = self._rows[at], self._rows.pop()
        if at < len(self._rows):
            self._rows[at] = last
        return row


class ColumnShuffle:
    """Batches of the rows that :class:`RowShuffle` gives, of rows that lie in arrays: their numbers are drawn, and fields gathered.

    ``join`` makes of pieces of one field's rows what a batch has.
    """

    def __init__(self, capacity: int, batch_size: int, join: Callable[[Sequence[Any]], Any]) -> None:
        self._batch_size = batch_size
        self._least = max(capacity - 1, 1)
        self._join = join
        # Blocks of columns with the numbers of their first rows, the number after the last, and the rows that nobody has drawn.
        self._blocks: list[list[Any]] = []
        self._firsts: list[int] = []
        self._end = 0
        self._rows: list[int] = []
        self._drawn: list[int] = []

    def add(self, columns: Sequence[Any]) -> None:
        """Takes rows in: one array per field."""
        if columns and len(columns[0]):
            self._blocks.append(list(columns))
            self._firsts.append(self._end)
            first, self._end = self._end, self._end + len(columns[0])
            self._rows.extend(range(first, self._end))

    def _draw(self, most: int) -> None:
        """At most so many rows by chance for the next batch; the last one moves to the place of each."""
        rows, count = self._rows, min(most, self._batch_size - len(self._drawn))
        if count <= 0:
            return
        for at in np.random.randint(0, np.arange(len(rows), len(rows) - count, -1)).tolist():
            last = rows.pop()
            if at < len(rows):
                last, rows[at] = rows[at], last
            self._drawn.append(last)

    def ready(self, *, ended: bool) -> bool:
        """Whether a batch may be taken; ``ended`` says that no more rows will come. What can be drawn of it by now is drawn."""
        if ended:
            return bool(self._rows or self._drawn)
        self._draw(len(self._rows) - self._least + 1)
        return len(self._drawn) == self._batch_size

    def take(self) -> list[Any]:
        """A batch; the last one may be smaller."""
        self._draw(len(self._rows))
        drawn, self._drawn = self._drawn, []
        self._merge(drawn)
        if len(self._blocks) == 1:
            batch = [self._join([column.take(drawn, axis=0)]) for column in self._blocks[0]]
        else:
            # Fields whose type or shape changes from row group to row group: row by row, as rows would be put together.
            found = [bisect_right(self._firsts, row) - 1 for row in drawn]
            places = [(self._blocks[at], row - self._firsts[at]) for at, row in zip(found, drawn, strict=True)]
            fields = range(len(self._blocks[0]))
            batch = [self._join([block[field][at : at + 1] for block, at in places]) for field in fields]
        return batch

    def _merge(self, drawn: list[int]) -> None:
        """Joins blocks that are alike, and leaves out rows that are gone once they are as many as the others."""
        first, *others = self._blocks
        if others and all(all(map(_alike, first, block)) for block in others):
            self._blocks = [[np.concatenate(parts) for parts in zip(*self._blocks, strict=True)]]
            self._firsts = [0]
        if self._end > 2 * (len(self._rows) + len(drawn)):
            self._compact(drawn)

    def _compact(self, drawn: list[int]) -> None:
        """Keeps the rows that nobody has drawn, and ``drawn``, which are numbered anew with them."""
        kept = np.array(drawn + self._rows, np.intp)
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
        self._rows = numbers[len(drawn) :].tolist()


def _alike(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and one.shape[1:] == other.shape[1:])


def _joined(pieces: Sequence[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


class BatchQueue:
    """Batches in the order that rows came. ``join`` makes one of the pieces of a field; with tensors only several are a copy."""

    def __init__(self, batch_size: int, join: Callable[[Sequence[Any]], Any] = _joined) -> None:
        self._batch_size = batch_size
        self._join = join
        self._blocks: deque[list[Any]] = deque()
        self._first = 0
        self._size = 0

    def missing(self) -> int:
        """Rows that have to come before a batch may be taken."""
        return max(self._batch_size - self._size, 0)

    def add(self, columns: Sequence[Any]) -> None:
        """Takes rows in: one tensor, or array, per field."""
        if columns and len(columns[0]):
            self._blocks.append(list(columns))
            self._size += len(columns[0])

    def ready(self, *, ended: bool) -> bool:
        """Whether a batch may be taken; ``ended`` says that no more rows will come."""
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

    The buffer's order is drawn once and handed out batch by batch; it is drawn anew once rows have come in. The rows of all batches
    until then are gathered at once.
    """

    def __init__(self, capacity: int, batch_size: int) -> None:
        self._batch_size = batch_size
        # Rows at which a batch is taken: as many as Petastorm waits for, and never less than a batch.
        self._enough = max(capacity + batch_size - 2, batch_size)
        # The rows that nobody has taken: those of `_batches`, those of `_columns` that `_order` names from `_gathered` on, and what
        # has come since.
        self._batches: deque[tuple[Any, ...]] = deque()
        self._columns: list[Any] = []
        self._order: Any = None
        self._gathered = 0
        self._new: list[list[Any]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def missing(self) -> int:
        """Rows that have to come before a batch may be taken."""
        return max(self._enough - self._size, 0)

    def add(self, columns: Sequence[Any]) -> None:
        """Takes rows in: one tensor per field."""
        if columns:
            self._new.append(list(columns))
            self._size += len(columns[0])

    def ready(self, *, ended: bool) -> bool:
        """Whether a batch may be taken; ``ended`` says that no more rows will come."""
        return self._size >= (1 if ended else self._enough)

    def take(self) -> list[Any]:
        """A batch; the last one may be smaller."""
        if self._new:
            self._draw_anew()
        if not self._batches:
            self._gather()
        batch = self._batches.popleft()
        self._size -= len(batch[0])
        # Memory of its own, whatever is done with it or however long it is kept.
        return [part.clone() for part in batch]

    def _draw_anew(self) -> None:
        """Joins what is left, in the order in which it would have come, and what has come."""
        new, self._new = self._new, []
        left = None if self._order is None else self._order[self._gathered :]
        for field, parts in enumerate(zip(*new, strict=True)):
            waiting = [batch[field] for batch in self._batches]
            if left is None:
                self._columns.append(torch.cat(parts))
            else:
                self._columns[field] = torch.cat([*waiting, self._columns[field].index_select(0, left), *parts])
        self._batches.clear()
        self._order = torch.randperm(self._size, device=self._columns[0].device)
        self._gathered = 0

    def _gather(self) -> None:
        """Takes as many batches out of the buffer as can be taken before rows must come in; all, if that is now."""
        many = (self._size - self._enough) // self._batch_size + 1
        end = self._gathered + (many * self._batch_size if many > 0 else self._size)
        rows = self._order[self._gathered : end]
        self._gathered += len(rows)
        fields = (torch.split(column.index_select(0, rows), self._batch_size) for column in self._columns)
        self._batches.extend(zip(*fields, strict=True))
