"""Times of 96 bits, which Spark writes by default for TIMESTAMP: instants, though neither Parquet nor Arrow says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pyarrow as pa

from bowstring.errors import MismatchError

__all__ = ["own_columns", "with_instants"]


def with_instants(schema: pa.Schema, files: Iterable[Any]) -> pa.Schema:
    """``schema`` with instants in UTC where ``files``, pyarrow's fragments of Parquet, store times of 96 bits.

    A time that Spark writes without a zone, TIMESTAMP_NTZ, has 64 bits. No file is read if there are no times without a zone.

    :raises MismatchError: if one column has both.
    """
    if not any(_has_times(field.type) for field in schema):
        return schema
    known: dict[tuple[str, int], tuple[bool, str]] = {}
    files = list(files)
    with ThreadPoolExecutor(16) as pool:
        for file, times in zip(files, pool.map(_times, files), strict=True):
            for (column, leaf), is_long in times.items():
                was_long, other = known.setdefault((column, leaf), (is_long, file.path))
                if is_long != was_long:
                    long, short = (file.path, other) if is_long else (other, file.path)
                    raise _mixed(column, long, short)
    are_long = {place for place, (is_long, _) in known.items() if is_long}
    fields = [_retyped(field, ((field.name, leaf) in are_long for leaf in count())) for field in schema]
    return pa.schema(fields, schema.metadata)


def own_columns(file: Any) -> tuple[pa.Schema, dict[tuple[str, int], bool]]:
    """The columns of ``file``, a fragment of Parquet, and which of their times have 96 bits: equal for files that go together."""
    schema = file.physical_schema
    return schema, (_times(file) if any(_has_times(field.type) for field in schema) else {})


def _mixed(column: str, long: str, short: str) -> MismatchError:
    return MismatchError(
        f"column {column!r} has times of INT96, which are instants, in file {long}, and times without a zone in file {short}: one "
        "type would change some of them; read the files as two frames and cast, or write those of one kind anew",
        column=column,
    )


def _times(file: Any) -> dict[tuple[str, int], bool]:
    """For each leaf of ``file`` of times without a zone, by its column and its place there, whether it has 96 bits."""
    try:
        stored = file.metadata.schema
    except pa.ArrowInvalid:  # no Parquet: no reader takes columns from it
        return {}
    found = {}
    at = 0
    # By their places: names may have dots.
    for field in stored.to_arrow_schema():
        for leaf, kind in enumerate(_leaves(field.type)):
            if pa.types.is_timestamp(kind) and kind.tz is None:
                found[field.name, leaf] = stored.column(at).physical_type == "INT96"
            at += 1
    return found


def _children(kind: pa.DataType) -> list[pa.DataType]:
    """The types that ``kind`` is made of, in the order of their leaves in Parquet."""
    if pa.types.is_struct(kind):
        return [child.type for child in kind]
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if _is_list(kind) else []


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _leaves(kind: pa.DataType) -> list[pa.DataType]:
    children = _children(kind)
    return [leaf for child in children for leaf in _leaves(child)] if children else [kind]


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
    elif next(leaves) and pa.types.is_timestamp(kind) and kind.tz is None:
        kind = pa.timestamp(kind.unit, "UTC")
    return field.with_type(kind)
