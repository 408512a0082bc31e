"""Columns to the values of rows: the types that Petastorm's ``make_reader`` gives, made column by column.

Values never share memory with the batch, so that a row may be kept, and written to, for any length of time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from bowstring import _native
from bowstring.arrays import arrow
from bowstring.petastorm import _npy
from bowstring.petastorm._holes import holed, key, null_lists
from bowstring.petastorm._source import Columns
from bowstring.petastorm._times import dates, in_unit
from bowstring.petastorm.codecs import CompressedNdarrayCodec, ScalarCodec
from bowstring.petastorm.errors import DecodeFieldError, TimeRangeError
from bowstring.petastorm.unischema import UnischemaField

__all__ = ["binaries", "is_fixed_binary", "listed", "timed", "values_of", "with_nulls"]

Array = npt.NDArray[Any]

# Arrays of at least this many bytes are copied one by one, so that one row does not keep its whole row group in memory.
_OWN_BYTES = 2048


def listed(column: Any) -> list[Any]:
    """An Arrow column as Python values; decimals and the like need pyarrow."""
    made = arrow(column)
    return list(made.to_pylist())


def with_nulls(values: list[Any], valid: Array | None) -> list[Any]:
    """Lists with ``None`` for those that are null, which are empty where others have nulls: ``valid`` is false for both."""
    return _nulled(values, None if valid is None else valid | np.array([value != [] for value in values], dtype=bool))


def values_of(field: UnischemaField, columns: Columns, unit: str | None) -> list[Any]:
    """The field's value in each row; ``None`` for null, but NaN for a null float and NaT for a null time."""
    name = field.name
    try:
        valid = _valid(name, columns)
        column: Any = columns.get(name)
        if column is None:
            return _ragged(field, columns, unit, valid)
        if isinstance(column, _native.ArrowArray):
            return _stored(field, with_nulls(listed(column), valid))
        array = column.numpy()
        if is_fixed_binary(field, array):
            return _nulled(binaries(array), valid)
        if array.ndim > 1 or field.shape:
            return _nulled(_rows(_typed(array, field.numpy_dtype)), valid)
        return _scalars(field, array, valid, unit)
    except TimeRangeError:
        raise
    except (ValueError, TypeError, ArithmeticError, DecodeFieldError) as error:
        raise DecodeFieldError(f"field {name} does not decode: {error}") from error


def _valid(name: str, columns: Columns) -> Array | None:
    mask: Any = columns.get(f"{name}__valid")
    if mask is None:
        return None
    valid: Array = mask.numpy()
    return None if valid.all() else valid


def _nulled(values: list[Any], valid: Array | None) -> list[Any]:
    if valid is not None:
        for row in np.flatnonzero(~valid).tolist():
            values[row] = None
    return values


def _typed(array: Array, dtype: Any) -> Array:
    """Casts to the schema's type, without a copy if it has that type already. Integers that do not fit are an error."""
    if not (isinstance(dtype, type) and issubclass(dtype, (np.number, np.bool_))):
        return array
    made: Array = array.astype(dtype, copy=False)
    if array.dtype.kind in "iu" and made.dtype.kind in "iu" and not np.can_cast(array.dtype, made.dtype):
        # Signs are compared too: int64's -1 and uint64's maximum have equal bits.
        wrong = (made != array) | ((made < 0) != (array < 0))
        if wrong.any():
            raise ValueError(f"{array[wrong][0]} does not fit in {made.dtype}")
    return made


def is_fixed_binary(field: UnischemaField, array: Array) -> bool:
    """True if bytes of one length, which bowstring delivers as rows of numbers, are bytes in the schema."""
    is_plain = field.codec is None or isinstance(field.codec, ScalarCodec)
    return is_plain and field.numpy_dtype in (np.bytes_, bytes) and array.dtype == np.uint8 and array.ndim == 2


def binaries(array: Array) -> list[Any]:
    """``[R, length]`` as R values of bytes."""
    return [row.tobytes() for row in array]


def timed(field: UnischemaField, flat: Array, ends: Array, unit: str, target: str) -> Array:
    """Times within lists that begin and end at ``ends``: days as Python's dates, others in ``target``."""
    stored = flat.astype(np.int64)
    try:
        if unit == "D":
            return dates(stored, field.name)
        return in_unit(stored.astype(f"M8[{unit}]"), target, field.name)
    except TimeRangeError as error:
        raise error.of_lists(ends.tolist()) from None


def _rows(array: Array) -> list[Any]:
    """``[R, ...]`` as R arrays."""
    if len(array) and array.nbytes // len(array) >= _OWN_BYTES:
        return [row.copy() for row in array]
    return list(array.copy())


def _scalars(field: UnischemaField, array: Array, valid: Array | None, unit: str | None) -> list[Any]:
    dtype = field.numpy_dtype
    if unit is not None and dtype is np.datetime64:
        # Petastorm's times went through Python's datetime, hence microseconds; a null date stayed None.
        stored = array.astype(np.int64).astype(f"M8[{unit}]")
        times = in_unit(stored, "D" if unit == "D" else "us", field.name, valid)
        if valid is not None and unit != "D":
            times[~valid] = np.datetime64("NaT")
        return _nulled(list(times), valid) if unit == "D" else list(times)
    if isinstance(dtype, type) and issubclass(dtype, (np.number, np.bool_)):
        made = _typed(array, dtype)
        if valid is None or array.dtype.kind != "f":
            return _nulled(list(made), valid)
        if made.dtype.kind == "f":
            made = made.copy()
            made[~valid] = np.nan
        return list(made)
    cast = _cast(field)
    return _nulled([cast(value) for value in array.tolist()], valid)


def _cast(field: UnischemaField) -> Any:
    """The class that Petastorm applies to a stored value: a codec's always, else NumPy's and Decimal."""
    dtype = field.numpy_dtype
    known = isinstance(dtype, type) and issubclass(dtype, (np.generic, Decimal))
    return dtype if known or isinstance(field.codec, ScalarCodec) else lambda value: value


def _stored(field: UnischemaField, values: list[Any]) -> list[Any]:
    """Decodes values that came in Parquet's types."""
    if field.codec is not None and not isinstance(field.codec, ScalarCodec):
        read = _npy.read_zipped if isinstance(field.codec, CompressedNdarrayCodec) else _npy.read
        return [None if value is None else read(value) for value in values]
    if field.shape:
        return [None if value is None else _array_of(field, value) for value in values]
    cast = _cast(field)
    if None in values:
        return [None if value is None else cast(value) for value in values]
    return list(map(cast, values))


def _array_of(field: UnischemaField, value: Sequence[Any]) -> Array:
    kind = field.numpy_dtype
    # NumPy's text has no null.
    return np.array(value, dtype=kind if kind in (np.str_, np.bytes_) and None not in value else object)


def _ragged(field: UnischemaField, columns: Columns, unit: str | None, valid: Array | None) -> list[Any]:
    flat, ends = _flat(field.name, columns)
    rows = _cut(field, columns, unit, flat, ends)
    holes: Any = columns.get(key(field.name))
    if holes is not None:
        for row in np.unique(np.searchsorted(ends, np.flatnonzero(holes), side="right") - 1).tolist():
            rows[row] = holed(rows[row], holes[ends[row] : ends[row + 1]])
    return _nulled(rows, null_lists(valid, ends))


def _cut(field: UnischemaField, columns: Columns, unit: str | None, flat: Any, ends: Array) -> list[Any]:
    """The lists that begin and end at ``ends``, with the values of nulls where these are."""
    name = field.name
    if not isinstance(flat, list) and is_fixed_binary(field, flat):
        # NumPy's own bytes lose the zeros at their end.
        values = binaries(flat)
        return [np.array(values[start:end], dtype=object) for start, end in itertools.pairwise(ends.tolist())]
    if isinstance(flat, list):
        flat = np.array(flat, dtype=object)
    elif unit is not None and field.codec is None and field.numpy_dtype is np.datetime64:
        flat = timed(field, flat, ends, unit, "us")
    flat = _typed(flat, field.numpy_dtype)
    shape: Any = columns.get(f"{name}__shape")
    bounds = ends.tolist()
    if not bounds[1:]:
        return []
    if flat.nbytes // len(bounds) >= _OWN_BYTES:
        rows = [flat[start:end].copy() for start, end in itertools.pairwise(bounds)]
    else:
        owned = flat.copy()
        rows = [owned[start:end] for start, end in itertools.pairwise(bounds)]
    if shape is None:
        return rows
    return [row.reshape(axes) for row, axes in zip(rows, shape.numpy().tolist(), strict=True)]


def _flat(name: str, columns: Columns) -> tuple[Any, Array]:
    values: Any = columns[f"{name}__values"]
    offsets: Any = columns[f"{name}__offsets"]
    return listed(values) if isinstance(values, _native.ArrowArray) else values.numpy(), offsets.numpy()
