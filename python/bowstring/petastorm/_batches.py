"""Columns to the arrays of a batch: the types that Petastorm's ``make_batch_reader`` gives, which are those of pandas."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bowstring import _native
from bowstring.petastorm._holes import holed, key, null_lists
from bowstring.petastorm._source import Columns
from bowstring.petastorm._times import dates, in_unit
from bowstring.petastorm._values import binaries, is_fixed_binary, listed, timed, with_nulls
from bowstring.petastorm.unischema import UnischemaField

__all__ = ["Array", "as_text", "column_of", "objects", "out_of_frame", "stacked"]

Array = npt.NDArray[Any]


def objects(values: Sequence[Any]) -> Array:
    """An array of Python objects of any kind, one per value."""
    made = np.empty(len(values), object)
    made[:] = values
    return made


def as_text(values: Sequence[Any]) -> Array:
    """Strings as an array of fixed width. A null becomes the text ``None``, as it did with Petastorm."""
    return np.array([str(value) for value in values], dtype=np.str_)


def column_of(field: UnischemaField, columns: Columns, unit: str | None, *, frame: bool) -> Array:
    """The field's values as an array with its own memory.

    With ``frame`` as pandas holds them in a data frame: text stays Python strings, lists stay one array per row.
    """
    name = field.name
    mask: Any = columns.get(f"{name}__valid")
    valid: Array | None = None if mask is None or mask.numpy().all() else mask.numpy()
    column: Any = columns.get(name)
    if column is None:
        return _lists(field, columns, valid, unit, frame)
    if isinstance(column, _native.ArrowArray):
        return _arrow(field, with_nulls(listed(column), valid), frame)
    array: Array = column.numpy()
    if is_fixed_binary(field, array):
        return _nulled(objects(binaries(array)), valid)
    if array.ndim > 1:
        if valid is not None:
            raise _null_list(name)
        return objects([row.copy() for row in array]) if frame else array.copy()
    return _scalars(name, array, valid, unit)


def out_of_frame(field: UnischemaField, values: Array) -> Array:
    """What :func:`column_of` gives without ``frame``, from what it gives with it."""
    if values.dtype.kind != "O":
        return values
    if field.codec is None and field.shape:
        return stacked(field.name, values.tolist())
    return as_text(values.tolist()) if field.numpy_dtype in (np.str_, str) else values


def _scalars(name: str, array: Array, valid: Array | None, unit: str | None) -> Array:
    if unit == "D":
        return _nulled(dates(array.astype(np.int64), name, valid), valid)
    if unit is not None:
        times = in_unit(array.astype(np.int64).astype(f"M8[{unit}]"), "ns", name, valid)
        if valid is not None:
            times[~valid] = np.datetime64("NaT")
        return times
    made: Array
    if valid is None:
        made = array.copy()
        return made
    if array.dtype.kind == "b":
        return _nulled(array.astype(object), valid)
    # Integers with nulls become float64, because pandas has no other null for them.
    made = array.astype(array.dtype if array.dtype.kind == "f" else np.float64)
    made[~valid] = np.nan
    return made


def _nulled(values: Array, valid: Array | None) -> Array:
    if valid is not None:
        values[~valid] = None
    return values


def _arrow(field: UnischemaField, values: list[Any], frame: bool) -> Array:
    if field.codec is None and field.shape:
        lists = [None if value is None else objects(value) for value in values]
        return objects(lists) if frame else stacked(field.name, lists)
    return as_text(values) if field.numpy_dtype in (np.str_, str) and not frame else objects(values)


def _lists(field: UnischemaField, columns: Columns, valid: Array | None, unit: str | None, frame: bool) -> Array:
    name = field.name
    flat: Any = columns[f"{name}__values"]
    ends: Any = columns[f"{name}__offsets"]
    values: Array = objects(listed(flat)) if isinstance(flat, _native.ArrowArray) else flat.numpy()
    bounds: Array = ends.numpy()
    if is_fixed_binary(field, values):
        values = objects(binaries(values))
    elif unit is not None and field.numpy_dtype is np.datetime64:
        values = timed(field, values, bounds, unit, "ns")
    holes: Any = columns.get(key(name))
    if holes is not None:
        values = holed(values, holes)
    valid = null_lists(valid, bounds)
    if not frame:
        if valid is not None:
            raise _null_list(name)
        lengths = np.diff(bounds)
        if len(lengths) and (lengths != lengths[0]).any():
            raise _unequal(name, lengths.tolist())
        matrix: Array = values.reshape(len(lengths), -1).copy()
        return matrix
    owned = values.copy()
    edges = bounds.tolist()
    rows: list[Any] = [owned[start:end] for start, end in itertools.pairwise(edges)]
    return _nulled(objects(rows), valid)


def stacked(name: str, rows: Sequence[Any]) -> Array:
    """Lists of equal length as a matrix."""
    if any(row is None for row in rows):
        raise _null_list(name)
    lengths = [len(row) for row in rows]
    if len(set(lengths)) > 1:
        raise _unequal(name, lengths)
    return np.stack([np.asarray(row) for row in rows])


_INSTEAD = "leave it out with schema_fields, give it one length with a TransformSpec, or use bowstring.Loader"


def _unequal(name: str, lengths: Sequence[int]) -> RuntimeError:
    few = ", ".join(map(str, sorted(set(lengths))[:8]))
    return RuntimeError(f"column {name!r} has lists of lengths {few}, which do not make a matrix; {_INSTEAD}")


def _null_list(name: str) -> RuntimeError:
    return RuntimeError(f"column {name!r} has lists that are null, which do not make a matrix; {_INSTEAD}")
