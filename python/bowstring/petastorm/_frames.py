"""Data frames for the user's functions, and back."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from bowstring.petastorm._batches import Array, as_text, objects, stacked
from bowstring.petastorm._lazy import needed
from bowstring.petastorm._times import in_unit
from bowstring.petastorm.transform import TransformSpec
from bowstring.petastorm.unischema import Unischema, UnischemaField

__all__ = ["frame_of", "transformed"]


def frame_of(columns: Mapping[str, Array]) -> Any:
    """A ``pandas.DataFrame`` over the columns."""
    pandas = needed(
        "pandas", "a function of TransformSpec or in_lambda with make_batch_reader, which gets pandas objects,"
    )
    return pandas.DataFrame(dict(columns), copy=False)


def transformed(frame: Any, spec: TransformSpec, schema: Unischema) -> dict[str, Array]:
    """The result of ``spec`` for a row group, as arrays of the schema after it."""
    result = spec.func(frame) if spec.func is not None else frame
    for name in set(result.columns) & set(spec.removed_fields):
        del result[name]
    if set(result.columns) != set(schema.fields):
        if spec.selected_fields is not None and spec.func is None:
            result = result[list(schema.fields)]
        else:
            raise ValueError(
                f"the transform returned columns {', '.join(map(str, result.columns))}, but the schema after it has "
                f"{', '.join(schema.fields)}: name the difference in edit_fields and removed_fields"
            )
    return {name: _array(field, result[name]) for name, field in schema.fields.items()}


def _array(field: UnischemaField, series: Any) -> Array:
    values: Array = series.to_numpy()
    if values.dtype.kind == "M":
        return in_unit(values, "ns", field.name)
    if values.dtype.kind != "O":
        return np.array(values)
    first = next((value for value in values if value is not None), None)
    if isinstance(first, (np.ndarray, list, tuple)):
        return _matrix(field, values.tolist())
    if isinstance(first, str):
        return as_text(values.tolist())
    if isinstance(first, (bool, np.bool_)):
        return np.array(values.tolist()) if None not in values.tolist() else values
    if isinstance(first, (bytes, Decimal, datetime.date)) or first is None:
        return objects(values.tolist())
    if isinstance(first, (int, float, np.number)):
        return np.array([np.nan if value is None else value for value in values.tolist()])
    return objects(values.tolist())


def _matrix(field: UnischemaField, rows: list[Any]) -> Array:
    if len(field.shape) > 1:
        for row in rows:
            _check(field, row)
    return stacked(field.name, rows)


def _check(field: UnischemaField, row: Any) -> None:
    if not isinstance(row, np.ndarray):
        raise ValueError(f"field {field.name} must be a NumPy array, got {type(row).__name__}")
    if None in field.shape:
        raise ValueError(f"field {field.name}: all axes of {field.shape} must be fixed for rows to make a batch")
    if row.shape != tuple(field.shape):
        raise ValueError(f"field {field.name} must have the shape {field.shape}, got {row.shape}")
