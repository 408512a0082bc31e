"""The row groups to read and their order: Petastorm's order, draw for draw, so that seeded runs agree."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bowstring.petastorm.errors import NoDataAvailableError

__all__ = ["Patience", "Plan", "part_rows", "sharded"]


def sharded(
    groups: Sequence[int], numbers: Mapping[int, int], cur_shard: object, shard_count: object, seed: int | None
) -> list[int]:
    """The row groups of one shard, dealt by their ``numbers``, which those of the other shards have too."""
    if not isinstance(cur_shard, int) or not isinstance(shard_count, int) or not shard_count:
        raise ValueError("cur_shard and shard_count must be integers, and both given")
    if len(numbers) < shard_count:
        raise NoDataAvailableError(
            "Number of row-groups in the dataset must be at least the number of shards: the dataset has "
            f"{len(numbers)} row groups, fewer than {shard_count} shards: some would be empty"
        )
    order = list(groups)
    if seed is not None:
        random.Random(seed).shuffle(order)
    return [group for group in order if numbers[group] % shard_count == cur_shard]


class Plan:
    """The order of row groups, epoch after epoch.

    :param groups: the row groups, in order.
    :param parts: number of parts that each row group is divided into; each is read by itself.
    :param epochs: number of passes; ``None`` for endless.
    """

    def __init__(
        self, groups: Iterable[int], *, parts: int, epochs: int | None, shuffle: bool, seed: int | None
    ) -> None:
        if epochs is not None and (not isinstance(epochs, int) or epochs < 1):
            raise ValueError(f"num_epochs must be a positive integer or None, got {epochs!r}")
        self.entries = [(group, part) for group in groups for part in range(parts)]
        self._epochs = epochs
        self._left = epochs
        self._shuffle = shuffle
        # One generator and one list for all epochs and resets: each epoch shuffles the order of the last one.
        self._random = np.random.RandomState(seed)

    @property
    def endless(self) -> bool:
        """True if it has no end."""
        return self._epochs is None

    def reset(self) -> None:
        """Restarts the plan with as many epochs."""
        self._left = self._epochs

    def _epoch(self) -> list[tuple[int, int]]:
        if self._shuffle:
            self._random.shuffle(self.entries)
        return list(self.entries)

    def stretch(self, least: int) -> list[tuple[int, int]]:
        """The next epochs, with at least ``least`` entries; empty at the end."""
        found: list[tuple[int, int]] = []
        while self.entries and self._left != 0 and len(found) < least:
            found += self._epoch()
            if self._left is not None:
                self._left -= 1
        return found


class Patience:
    """Ends the wait for a first row if an endless plan yields none. With an end, the reader is empty, as with Petastorm.

    Petastorm waits for ever. Two epochs' worth of entries contain one whole epoch, wherever the count began.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._in_vain = 0

    def came(self) -> None:
        """Records that rows came."""
        self._in_vain = 0

    def nothing(self, entries: int = 1) -> None:
        """Records that ``entries`` more entries of the plan brought no row."""
        self._in_vain += entries
        if self._plan.endless and self._in_vain >= 2 * len(self._plan.entries):
            raise NoDataAvailableError(
                "no row came of a whole epoch, and num_epochs=None has no end: predicate, filters, NGram or transform leave "
                "nothing; correct them, or give num_epochs"
            )


def part_rows(rows: int, part: int, parts: int, overlap: int) -> tuple[int, int]:
    """Rows ``first..end`` of one part of a row group of ``rows``, with ``overlap`` rows of the next part."""
    if rows == 0:
        return 0, 0
    number = np.floor(np.arange(rows) / (float(rows) / min(rows, parts)))
    first = int(np.searchsorted(number, part, side="left"))
    end = int(np.searchsorted(number, part, side="right"))
    return first, min(end + overlap, rows)
