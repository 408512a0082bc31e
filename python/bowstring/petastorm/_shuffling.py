"""Shuffling buffers of the data loaders. They draw as Petastorm's did, so that runs with seeded global generators agree."""

from __future__ import annotations

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
    """Batches of the rows that :class:`RowShuffle` gives, of rows that lie in arrays: drawn together, and gathered field by field.

    Where a field has another type in the next row group, NumPy's common one holds for all batches from there on.
    """

    def __init__(self, capacity: int, batch_size: int) -> None:
        self._batch_size = batch_size
        self._least = max(capacity - 1, 1)
        self._columns: list[Any] = []
        # Of the columns, those that nobody has taken.
        self._rows: list[int] = []
        self._drawn: list[list[Any]] = []
        self._missing = batch_size

    def add(self, columns: Sequence[Any]) -> None:
        """Takes rows in: one array per field."""
        self._draw(len(self._rows) - self._least + 1)
        if self._columns:
            rows = np.array(self._rows, np.intp)
            old = (column.take(rows, axis=0) for column in self._columns)
            columns = [np.concatenate(parts) for parts in zip(old, columns, strict=True)]
        self._columns = list(columns)
        self._rows = list(range(len(columns[0]) if columns else 0))

    def _draw(self, most: int) -> None:
        """At most so many rows by chance for the next batch; the last one moves to the place of each."""
        rows, count = self._rows, min(most, self._missing)
        if count <= 0:
            return
        drawn = []
        for at in np.random.randint(0, np.arange(len(rows), len(rows) - count, -1)).tolist():
            last = rows.pop()
            if at < len(rows):
                last, rows[at] = rows[at], last
            drawn.append(last)
        self._missing -= count
        self._drawn.append([column.take(drawn, axis=0) for column in self._columns])

    def ready(self, *, ended: bool) -> bool:
        """Whether a batch may be taken; ``ended`` says that no more rows will come."""
        if ended:
            return bool(self._rows or self._drawn)
        return len(self._rows) - self._least + 1 >= self._missing

    def take(self) -> list[Any]:
        """A batch; the last one may be smaller."""
        self._draw(len(self._rows))
        parts, self._drawn, self._missing = self._drawn, [], self._batch_size
        return parts[0] if len(parts) == 1 else [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]


class BatchQueue:
    """Batches in the order that rows came. Only a batch that two blocks share is a copy, made by ``join``."""

    def __init__(self, batch_size: int, join: Callable[[tuple[Any, ...]], Any] = torch.cat) -> None:
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
        return parts[0] if len(parts) == 1 else [self._join(pieces) for pieces in zip(*parts, strict=True)]


class BatchShuffle:
    """Batches of rows drawn at random from a buffer of at least ``capacity``.

    The buffer's order is drawn once and handed out batch by batch; it is drawn anew once rows have come in. The rows of all batches
    until then are gathered at once, and the batches are parts of them.
    """

    def __init__(self, capacity: int, batch_size: int) -> None:
        self._batch_size = batch_size
        # Rows at which a batch is taken: as many as Petastorm waits for, and never less than a batch.
        self._enough = max(capacity + batch_size - 2, batch_size)
        # The rows that nobody has taken are those of `_batches`, and of `_columns` those that `_order` names from `_gathered` on.
        self._columns: list[Any] = []
        self._size = 0
        self._order: Any = None
        self._gathered = 0
        self._batches: deque[tuple[Any, ...]] = deque()

    def __len__(self) -> int:
        return self._size

    def missing(self) -> int:
        """Rows that have to come before a batch may be taken."""
        return max(self._enough - self._size, 0)

    def add(self, columns: Sequence[Any]) -> None:
        """Takes rows in: one tensor per field."""
        if self._order is None:
            kept = [[column] for column in self._columns] or [[] for _ in columns]
        else:
            # What is left closes ranks, in the order in which it would have come.
            left = self._order[self._gathered :]
            kept = [
                [*parts, column.index_select(0, left)]
                for parts, column in zip(self._waiting(), self._columns, strict=True)
            ]
            self._order = None
            self._batches.clear()
        self._columns = [torch.cat([*parts, new]) for parts, new in zip(kept, columns, strict=True)]
        self._size = len(self._columns[0])

    def _waiting(self) -> list[list[Any]]:
        """Of each field, what was gathered and not taken."""
        return [[batch[at] for batch in self._batches] for at in range(len(self._columns))]

    def ready(self, *, ended: bool) -> bool:
        """Whether a batch may be taken; ``ended`` says that no more rows will come."""
        return self._size >= (1 if ended else self._enough)

    def take(self) -> list[Any]:
        """A batch; the last one may be smaller."""
        if self._order is None:
            self._order = torch.randperm(self._size, device=self._columns[0].device)
            self._gathered = 0
        if not self._batches:
            self._gather()
        batch = self._batches.popleft()
        self._size -= len(batch[0])
        return list(batch)

    def _gather(self) -> None:
        """Takes as many batches out of the buffer as can be taken before rows must come in; all, if that is now."""
        many = (self._size - self._enough) // self._batch_size + 1
        end = self._gathered + (many * self._batch_size if many > 0 else self._size)
        rows = self._order[self._gathered : end]
        self._gathered += len(rows)
        fields = (torch.split(column.index_select(0, rows), self._batch_size) for column in self._columns)
        self._batches.extend(zip(*fields, strict=True))
