"""Petastorm's own exceptions. All others are built in, or bowstring's where Petastorm had none."""

from __future__ import annotations

import bisect
import copyreg
from collections.abc import Sequence
from typing import Any

from bowstring.errors import UnsupportedError

__all__ = [
    "DecodeFieldError",
    "NoDataAvailableError",
    "PetastormMetadataError",
    "PetastormMetadataGenerationError",
    "TimeRangeError",
]


class NoDataAvailableError(Exception):
    """Nothing is left to read.

    There are fewer row groups than shards, so that some shard would be empty: ask for fewer, or write smaller row groups. Or
    a whole epoch of an endless reader yields nothing (``num_epochs=None``): correct its predicate.
    """


class PetastormMetadataError(Exception):
    """The dataset has no schema of Petastorm's."""


class PetastormMetadataGenerationError(Exception):
    """The metadata that was written cannot be read back."""


class DecodeFieldError(RuntimeError):
    """A stored value does not decode."""


class TimeRangeError(UnsupportedError, ValueError):
    """A time is outside of the range of its type, which for ``datetime64[ns]`` is 1677 to 2262: leave the column out.

    With Petastorm this is a ``pyarrow.ArrowInvalid``, a ``ValueError`` as well.
    """

    def __init__(self, column: str, row: int | None, problem: str) -> None:
        self.problem = problem
        super().__init__(f"column {column}, row {row}: {problem}", column=column, row=row)

    def __reduce__(self) -> tuple[Any, ...]:
        """Without ``__init__``, whose parameters are not the message: copies and pickles keep everything."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def of_lists(self, ends: Sequence[int]) -> TimeRangeError:
        """The same for items of lists that begin and end at ``ends``: the row is the list's."""
        row = None if self.row is None else bisect.bisect_right(ends, self.row) - 1
        return TimeRangeError(str(self.column), row, self.problem)

    def at(self, file: str, row_group: int, first: int) -> TimeRangeError:
        """The same with its place: ``first`` is the first row within the row group."""
        row = None if self.row is None else self.row + first
        made = TimeRangeError(str(self.column), row, self.problem)
        made.file, made.row_group = file, row_group
        made.args = (f"file {file}, row group {row_group}, column {self.column}, row {row}: {self.problem}",)
        return made
