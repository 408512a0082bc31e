"""The rows that torch has taken of a batch, where it stacks the rows that a subclass of ``bowstring.torch.Dataset`` yields.

The loader's position is behind the whole batch that the subclass holds, so a state would lose those of its rows that torch has
not taken yet. They are counted, and such a state is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bowstring import _native
from bowstring.batch import Batch, Layout
from bowstring.errors import UnsupportedError

__all__ = ["Stacked"]


class _Count:
    """Rows that torch has taken."""

    def __init__(self, taken: int) -> None:
        self.taken = taken


class _Counted(Iterator[Any]):
    """An iterator of a fetcher of torch's, with their count."""

    def __init__(self, rows: Iterator[Any], count: _Count) -> None:
        self._rows = rows
        self.count = count

    def __next__(self) -> Any:
        row = next(self._rows)
        self.count.taken += 1
        return row


class Stacked:
    """A pass of ``native`` through a subclass whose rows a fetcher of torch's stacks."""

    def __init__(self, native: _native.Loader, layout: Layout) -> None:
        self._native = native
        self._layout = layout
        self._from = (0, 0)
        # Not with the iterator, which refers to the dataset: that would be a cycle.
        self._count: _Count | None = None
        self._before = 0
        self._given = 0
        self._one_each = True
        self._batches = 0
        self._whole = True
        self._keeps = False

    def began(self) -> None:
        """Notes the position of the pass, once it has begun."""
        self._from = self._native.epoch, self._native.step

    def counting(self, convert: Callable[[Any], Any], fetcher: Any) -> Callable[[Any], Any]:
        """``convert``, with a count of the rows that it gives, and of those that ``fetcher`` takes."""

        def given(columns: Any) -> Any:
            batch = convert(columns)
            if self._count is None:
                self._follow(fetcher)
            # A subclass that leaves out or repeats rows, or keeps some for later, has no ends of batches to be known by.
            self._one_each = self._one_each and self._given in (0, self._taken)
            self._whole = self._whole and self._batches in (0, self._taken)
            self._batches += 1
            self._given += Batch(columns, self._layout).rows
            return batch

        return given

    def _follow(self, fetcher: Any) -> None:
        """Counts what ``fetcher`` takes, which looks its iterator up for each row, and is taking one."""
        rows = getattr(fetcher, "dataset_iter", None)
        if isinstance(rows, _Counted):
            # Of an earlier pass: in a `ChainDataset`, or of a subclass that repeats.
            self._count = rows.count
            self._before = rows.count.taken
        elif hasattr(rows, "state_dict") and not hasattr(rows, "_native"):
            self._keeps = True
        elif rows is not None:
            self._count = _Count(1)
            fetcher.dataset_iter = _Counted(rows, self._count)

    @property
    def _taken(self) -> int:
        return 0 if self._count is None else self._count.taken - self._before

    def at_an_end(self) -> None:
        """Refuses a state in the middle of a batch.

        :raises UnsupportedError: with what can be done instead.
        """
        epoch, step = self._native.epoch, self._native.step
        if self._keeps or (self._whole and self._batches > 1 and self._taken == self._batches):
            return
        if epoch != self._from[0] or step <= self._from[1] or (self._one_each and self._taken == self._given):
            return
        raise UnsupportedError(
            f"a state continues after a whole batch, and torch's DataLoader has taken {self._taken} of the {self._given} rows "
            f"before step {step}: the others would be lost. Save where its batches end together with those of the "
            "bowstring.torch.Dataset (at the end of an epoch they do), or yield whole batches and use "
            "torch.utils.data.DataLoader(dataset, batch_size=None)"
        )
