"""Times of 96 bits, which Spark writes by default for TIMESTAMP: instants, though neither Parquet nor Arrow says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pyarrow as pa

__all__ = ["with_instants"]


def with_instants(schema: pa.Schema, files: Iterable[Any]) -> pa.Schema:
    """``schema`` with instants in UTC where one of ``files``, pyarrow's fragments of Parquet, stores times of 96 bits.

    A time that Spark writes without a zone, TIMESTAMP_NTZ, has 64 bits. No file is read if there are no times without a zone.
    """
    if not any(_has_times(field.type) for field in schema):
        return schema
    long: dict[str, list[bool]] = {}
    with ThreadPoolExecutor(16) as pool:
        for own in pool.map(_long, files):
            long = {**own, **long}
    fields = [_retyped(field, iter(long.get(field.name, []))) for field in schema]
    return pa.schema(fields, schema.metadata)


def _long(file: Any) -> dict[str, list[bool]]:
    """For each column of ``file`` with times of 96 bits, which of its leaves are such."""
    try:
        stored = file.metadata.schema
    except pa.ArrowInvalid:  # no Parquet: no reader takes columns from it
        return {}
    leaves = (stored.column(at).physical_type == "INT96" for at in range(len(stored)))
    # By their places: names may have dots.
    columns = {field.name: list(islice(leaves, _leaves(field.type))) for field in stored.to_arrow_schema()}
    return {name: own for name, own in columns.items() if any(own)}


def _children(kind: pa.DataType) -> list[pa.DataType]:
    """The types that ``kind`` is made of, in the order of their leaves in Parquet."""
    if pa.types.is_struct(kind):
        return [child.type for child in kind]
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if _is_list(kind) else []


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _leaves(kind: pa.DataType) -> int:
    return sum(map(_leaves, children)) if (children := _children(kind)) else 1


def _has_times(kind: pa.DataType) -> bool:
    is_time = pa.types.is_timestamp(kind) and kind.tz is None
    return is_time or any(map(_has_times, _children(kind)))


# The leaves of an Arrow type are those of its column in Parquet, in their order.
def _retyped(field: pa.Field, leaves: Iterator[bool]) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_retyped(child, leaves) for child in kind])
    elif pa.types.is_map(kind):
        key = _retyped(kind.key_field, leaves)
        kind = pa.map_(key, _retyped(kind.item_field, leaves))
    elif _is_list(kind):
        value = _retyped(kind.value_field, leaves)
        if pa.types.is_fixed_size_list(kind):
            kind = pa.list_(value, kind.list_size)
        else:
            kind = pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)
    elif next(leaves, False) and pa.types.is_timestamp(kind) and kind.tz is None:
        kind = pa.timestamp(kind.unit, "UTC")
    return field.with_type(kind)
