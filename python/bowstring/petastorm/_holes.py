"""The null items of lists. A mask names only rows, so a row group that has any is read once more, with its nulls filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bowstring import _native

__all__ = ["FILL", "Holes", "holed", "key", "null_lists"]

Array = npt.NDArray[Any]

FILL = 1
"""What nulls are filled with; below a mask they are zero."""


def key(name: str) -> str:
    """Where the mask of a column's null items is, among its row group's columns."""
    return f"{name}\0holes"


def null_lists(valid: Array | None, ends: Array) -> Array | None:
    """The mask of the lists that are not null, from that of those without nulls: a list with a null item has a length."""
    if valid is None:
        return None
    whole: Array = valid | (np.diff(ends) > 0)
    return None if whole.all() else whole


def holed(values: Array, holes: Array) -> Array:
    """A copy of ``values`` with nulls as pandas has them: NaN, which makes integers floats, NaT, or ``None``."""
    made: Array
    if values.dtype.kind in "iu":
        made = values.astype(np.float64)
    else:
        made = values.copy() if values.dtype.kind in "fM" else values.astype(object)
    nulls = {"f": np.nan, "M": np.datetime64("NaT")}
    made[holes] = nulls.get(made.dtype.kind)
    return made


class Holes:
    """The null items of one column.

    :param opened: that column alone, with nulls filled with :data:`FILL`, in whole row groups.
    """

    def __init__(self, name: str, opened: _native.RowGroups) -> None:
        self._name = name
        self._opened = opened
        self._group = -1
        self._ends = self._filled = np.zeros(0, np.int64)

    def of(self, group: int, first: int, values: Array, ends: Array) -> Array:
        """The mask of the null items among ``values``, those of the lists from row ``first`` on that end at ``ends``."""
        if self._group != group:
            self._group = -1
            self._opened.start([group])
            while self._opened.next(self._read) is not None:
                pass
            self._group = group
        begun, ended = self._ends[[first, first + len(ends) - 1]]
        holes: Array = _each(values == 0) & self._filled[begun:ended]
        return holes

    def _read(self, group: int, first: int, columns: Any) -> bool:
        self._filled = _each(columns[f"{self._name}__values"].numpy() == FILL)
        self._ends = columns[f"{self._name}__offsets"].numpy().astype(np.int64)
        return True

    def close(self) -> None:
        """Stops everything at once."""
        self._opened.close()


def _each(same: Array) -> Array:
    """One truth for each item; bytes of one length are rows of numbers."""
    return np.asarray(same.all(axis=1)) if same.ndim > 1 else same.copy()
