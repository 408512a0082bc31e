"""The schema of plain Parquet: Petastorm's type of each column, and the columns it omits."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np

from bowstring.petastorm.unischema import Unischema, UnischemaField

__all__ = ["element", "from_arrow", "from_types", "left_out"]

# Arrow's name of a type in Rust -> the class of an element. Petastorm lacks unsigned integers but uint8, float16 and times.
_ELEMENTS: dict[str, Any] = {
    "Boolean": np.bool_,
    "Int8": np.int8,
    "UInt8": np.uint8,
    "Int16": np.int16,
    "Int32": np.int32,
    "Int64": np.int64,
    "Float32": np.float32,
    "Float64": np.float64,
    "Utf8": np.str_,
    "Utf8View": np.str_,
    "LargeUtf8": np.str_,
    "Binary": np.bytes_,
    "BinaryView": np.bytes_,
    "LargeBinary": np.bytes_,
    "FixedSizeBinary": np.bytes_,
    "Date32": np.datetime64,
    "Date64": np.datetime64,
    "Timestamp": np.datetime64,
    "Decimal32": Decimal,
    "Decimal64": Decimal,
    "Decimal128": Decimal,
    "Decimal256": Decimal,
}
_WORD = re.compile(r"[A-Z]\w*")


def element(arrow_type: str) -> tuple[Any, tuple[int | None, ...]] | None:
    """Class of an element and shape of a value of a type such as ``Int32`` or ``List(Int32)``; ``None`` for omitted types."""
    words = _WORD.findall(arrow_type)
    if words and words[0] in ("List", "LargeList"):
        # The item's type is the first one named inside; a list or struct there has none of these names.
        inner = next((word for word in words[1:] if word in _ELEMENTS or word in _NESTED), "")
        return (_ELEMENTS[inner], (None,)) if inner in _ELEMENTS else None
    return (_ELEMENTS[words[0]], ()) if words and words[0] in _ELEMENTS else None


_NESTED = {"List", "LargeList", "ListView", "LargeListView", "FixedSizeList", "Struct", "Map"}


def from_types(columns: Iterable[tuple[str, str, bool]], partitions: Iterable[tuple[str, Any]]) -> Unischema:
    """The schema of ``(name, Arrow type, nullable)``, after the ``(name, class)`` of partition columns."""
    fields = [UnischemaField(name, dtype, (), None, False) for name, dtype in partitions]
    for name, arrow_type, nullable in columns:
        found = element(arrow_type)
        if found is None:
            left_out(name, arrow_type)
        else:
            fields.append(UnischemaField(name, found[0], found[1], None, nullable))
    return Unischema("inferred_schema", fields)


def left_out(name: str, arrow_type: object) -> None:
    warnings.warn(f"column {name!r} of type {arrow_type} is left out: Petastorm has no such fields", stacklevel=4)


def from_arrow(schema: Any, omit_unsupported_fields: bool) -> Unischema:
    """The schema of a ``pyarrow.Schema``."""
    from pyarrow import types

    def name_of(arrow_type: Any) -> str:
        if types.is_list(arrow_type):
            return f"List({name_of(arrow_type.value_type)})"
        if types.is_decimal(arrow_type):
            return "Decimal128"
        for test, name in (
            (types.is_timestamp, "Timestamp"),
            (types.is_date, "Date32"),
            (types.is_string, "Utf8"),
            (types.is_binary, "Binary"),
            (types.is_fixed_size_binary, "FixedSizeBinary"),
            (types.is_boolean, "Boolean"),
            (types.is_float32, "Float32"),
            (types.is_float64, "Float64"),
        ):
            if test(arrow_type):
                return name
        # int32 -> Int32, uint8 -> UInt8; anything else matches nothing.
        return str(arrow_type).replace("uint", "UInt").replace("int", "Int")

    if not omit_unsupported_fields:
        unsupported = [field.name for field in schema if element(name_of(field.type)) is None]
        if unsupported:
            raise ValueError(f"columns {', '.join(unsupported)} have types that Petastorm has no fields for")
    return from_types(((field.name, name_of(field.type), field.nullable) for field in schema), ())
