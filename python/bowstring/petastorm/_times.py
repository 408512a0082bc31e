"""Times in another unit, and days as Python's dates. A value that does not fit is an error: NumPy's own casts wrap around."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bowstring.petastorm.errors import TimeRangeError

__all__ = ["dates", "in_unit"]

Array = npt.NDArray[Any]

# 0001-01-01 and 9999-12-31 in days since 1970, the first and last of Python's dates.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


def in_unit(times: Array, unit: str, column: str, valid: Array | None = None) -> Array:
    """``times`` as ``M8[unit]``; :class:`TimeRangeError` for one that this type cannot hold, unless it is not ``valid``."""
    made: Array = times.astype(f"M8[{unit}]")
    if np.promote_types(made.dtype, times.dtype) == times.dtype:
        return made  # a coarser unit, which can hold all values
    wrong = (made.astype(times.dtype) != times) & ~np.isnat(times)
    _refuse(wrong, valid, times, column, f"does not fit in {made.dtype}, which ends 2^63 units from 1970")
    return made


def dates(days: Array, column: str, valid: Array | None = None) -> Array:
    """Days since 1970 as an array of Python's dates."""
    wrong = (days < _FIRST_DAY) | (days > _LAST_DAY)
    _refuse(wrong, valid, days, column, "days from 1970 are no date of Python's, whose years are 1 to 9999")
    return days.astype("M8[D]").astype(object)


def _refuse(wrong: Array, valid: Array | None, values: Array, column: str, why: str) -> None:
    if valid is not None:
        wrong = wrong & valid
    if not wrong.any():
        return
    row = int(np.unravel_index(np.argmax(wrong), wrong.shape)[0]) if wrong.ndim else 0
    value = values[wrong][0] if wrong.ndim else values
    raise TimeRangeError(column, row, f"{value} {why}")
