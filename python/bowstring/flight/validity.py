"""Whether a batch that a peer sent stays within its memory."""

from __future__ import annotations

import pyarrow as pa

from bowstring.errors import CorruptError

__all__ = ["checked"]


def checked(batch: pa.RecordBatch, peer: str) -> pa.RecordBatch:
    """``batch``, if its lengths and offsets are within its buffers. The reader of messages takes a peer's word for that."""
    try:
        _validate(batch)
    except pa.ArrowException as error:
        raise CorruptError(f"{peer} sent a batch that is not valid: {error}") from error
    return batch


def _validate(batch: pa.RecordBatch) -> None:
    try:
        batch.validate(full=True)
    except pa.ArrowException:
        # A value may be why: files have times of 24:00 and decimals of more digits than their type, and loaders read them.
        batch.validate()
        for column in batch.columns:
            column.view(_without_ranges(column.type)).validate(full=True)


def _without_ranges(kind: pa.DataType) -> pa.DataType:
    """A type of the same buffers, with bytes for values of which Arrow refuses some."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _without_ranges(kind.storage_type)
    if types.is_time(kind) or types.is_date64(kind) or types.is_decimal(kind):
        return pa.binary(kind.bit_width // 8)
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_ranges(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([_field(one) for one in kind])
    if types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field))
    if types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field), kind.list_size)
    return kind


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_without_ranges(field.type))
