"""A number for the rows of batches: equal for the same rows in the same order, whatever other bytes are in memory.

A frame that is computed again after a failure must yield the rows that the ranks have begun to read; this number proves it.
Values under a null, padding and the division into buffers do not count, so columns are decomposed into plain values.
"""

from __future__ import annotations

import zlib
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["digest"]


def digest(batch: pa.RecordBatch, before: int = 0) -> int:
    """The number after the rows of ``batch``, given the one before."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        before = zlib.crc32(name.encode(), before)
        before = _array(column, before)
    return before


def _array(array: Any, before: int) -> int:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _array(array.storage, before)
    if array.null_count:
        before = _bytes(pc.cast(array.is_valid(), pa.uint8()), before)
    if pa.types.is_struct(kind):
        for child in array.flatten():  # null where the struct is
            before = _array(child, before)
        return before
    if pa.types.is_map(kind):
        # Without nulls, since a list cannot be made of offsets that begin within an array and a mask.
        array = array.drop_null()
        array = pa.ListArray.from_arrays(array.offsets, _entries(array))
        kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        before = _bytes(pc.list_value_length(array).drop_null(), before)
        return _array(array.flatten(), before)
    if pa.types.is_null(kind):
        return before
    return _bytes(array.drop_null(), before)


def _entries(array: Any) -> pa.StructArray:
    return pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])


def _bytes(array: Any, before: int) -> int:
    """Hashes an array of values without nulls: its values alone, however it is sliced."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if pa.types.is_primitive(array.type):
        # Most data are of this kind, so they are not copied.
        width = array.type.bit_width // 8
        values = array.buffers()[1]
        return zlib.crc32(values.slice(array.offset * width, len(array) * width), before) if len(array) else before
    # A copy: of a slice, Arrow also writes bytes of the values after it, as padding.
    array = pa.concat_arrays([array])
    return zlib.crc32(pa.record_batch([array], names=[""]).serialize(), before)
