"""Times of 96 bits, which Spark writes by default for TIMESTAMP: instants, though neither Parquet nor Arrow says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

__all__ = ["with_instants"]


def with_instants(schema: pa.Schema, files: Iterable[Any]) -> pa.Schema:
    """``schema`` with instants in UTC where one of ``files``, pyarrow's fragments of Parquet, stores times of 96 bits.

    A time that Spark writes without a zone, TIMESTAMP_NTZ, has 64 bits.
    """
    long: dict[str, list[bool]] = {}
    for file in files:
        leaves: dict[str, list[bool]] = {}
        stored = file.metadata.schema
        for leaf in map(stored.column, range(len(stored))):
            leaves.setdefault(leaf.path.partition(".")[0], []).append(leaf.physical_type == "INT96")
        for name, own in leaves.items():
            if any(own):
                long.setdefault(name, own)
    fields = [_retyped(field, iter(long.get(field.name, []))) for field in schema]
    return pa.schema(fields, schema.metadata)


# The leaves of an Arrow type are those of its column in Parquet, in their order.
def _retyped(field: pa.Field, leaves: Iterator[bool]) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_retyped(child, leaves) for child in kind])
    elif pa.types.is_map(kind):
        key = _retyped(kind.key_field, leaves)
        kind = pa.map_(key, _retyped(kind.item_field, leaves))
    elif pa.types.is_list(kind):
        kind = pa.list_(_retyped(kind.value_field, leaves))
    elif next(leaves, False) and pa.types.is_timestamp(kind) and kind.tz is None:
        kind = pa.timestamp(kind.unit, "UTC")
    return field.with_type(kind)
