"""Rows by hand: for values that were read by other means, such as a Spark RDD."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from bowstring.petastorm.errors import DecodeFieldError
from bowstring.petastorm.unischema import Unischema, UnischemaField

__all__ = ["DecodeFieldError", "decode_row"]


def decode_row(row: Mapping[str, Any], schema: Unischema) -> dict[str, Any]:
    """The decoded values of the fields that ``schema`` knows."""
    return {str(name): _decoded(schema.fields[name], value) for name, value in row.items() if name in schema.fields}


def _decoded(field: UnischemaField, value: Any) -> Any:
    if value is None:
        return None
    try:
        if field.codec is not None:
            return field.codec.decode(field, value)
        dtype = field.numpy_dtype
        return dtype(value) if isinstance(dtype, type) and issubclass(dtype, (np.generic, Decimal)) else value
    except Exception as error:
        raise DecodeFieldError(f"field {field.name} does not decode: {error}") from error
