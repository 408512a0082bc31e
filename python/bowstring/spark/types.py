"""Types across the border: Spark's from Arrow's, and batches in the layout that the other side expects."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from bowstring.errors import NotFoundError, NullsError, UnsupportedError
from bowstring.fields import lacking

__all__ = ["arrow_schema", "conform", "spark_schema", "stored_schema"]

_NAMED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of rows with ``schema``: instants are in UTC."""
    return to_arrow_schema(schema, timezone="UTC")


def stored_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that rows with ``schema`` are stored with.

    Every column may be null, as with Spark's own files: appending rows must not depend on whether
    Spark knows that a column has no nulls.
    """
    return pa.schema([_stored(field) for field in schema])


def _stored(field: StructField) -> pa.Field:
    # Before the conversion: Arrow has no void that is NOT NULL, the element of Spark's array().
    plain = StructType([_all_nullable(field)])
    try:
        return _nullable(arrow_schema(plain).field(0))
    except Exception as error:  # PySpark's own, without the column
        raise UnsupportedError(
            f"column {field.name!r} is {field.dataType.simpleString()}, which cannot be stored: {error}; cast it, or leave it out"
        ) from error


def _all_nullable(field: StructField) -> StructField:
    return StructField(field.name, _with_nulls_inside(field.dataType), True, field.metadata)


def _with_nulls_inside(kind: DataType) -> DataType:
    if isinstance(kind, ArrayType):
        return ArrayType(_with_nulls_inside(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_with_nulls_inside(kind.keyType), _with_nulls_inside(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([_all_nullable(field) for field in kind])
    return kind


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of rows that are stored with ``schema``, all columns nullable."""
    fields = []
    for field in schema:
        try:
            from_arrow_schema(pa.schema([_nullable(field.with_type(_plain(field.type)))]))
        except Exception as error:
            raise UnsupportedError(f"column {field.name!r} is {field.type}, which Spark has not: {error}") from error
        fields.append(_nullable(field.with_type(_plain(field.type))))
    return from_arrow_schema(pa.schema(fields))


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema`` of ``batch``, by name, with its types; without a copy if only nullability differs.

    :raises NotFoundError: for a field within a column that ``batch`` lacks.
    :raises NullsError: for nulls in a column that has none by ``schema``.
    """
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if not field.nullable and column.null_count:
            # Spark fails without the column's name.
            raise NullsError(f"column {field.name!r} has {column.null_count} nulls, and its schema says NOT NULL")
        columns.append(column if column.type.equals(field.type) else _cast(column, field))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: Any, field: pa.Field) -> Any:
    lacks = lacking(column.type, field.type)
    if lacks is not None:
        raise NotFoundError(f"column {field.name!r} has no field {lacks!r}: it is {column.type}")
    try:
        # With NOT NULL, pyarrow counts the nulls below a null too, where nothing is defined.
        column = column.cast(_nullable(field).type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnsupportedError(f"column {field.name!r}: {column.type} to {field.type}: {error}") from error
    if column.type.equals(field.type):
        return column
    if (name := _with_nulls(column, field)) is not None:
        raise NullsError(f"column {field.name!r} has nulls in {name}, and its schema says NOT NULL")
    return pa.array(_Typed(column, field.type))


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def _with_nulls(column: Any, field: pa.Field) -> str | None:
    """The path of the first field within ``field`` that is NOT NULL, and null in ``column`` where all around it is not null."""
    if column.type.equals(field.type):
        return None
    there = column.drop_null()
    for at, child in enumerate(_children(field.type)):
        if pa.types.is_map(field.type):
            # As a list, whose items are those of its rows alone.
            entries = there.cast(pa.list_(pa.struct(_children(there.type)))).flatten()
            values = entries.field(at)
        else:
            values = there.field(at) if pa.types.is_struct(field.type) else there.flatten()
        if not child.nullable and values.null_count:
            return str(child.name)
        if (below := _with_nulls(values, child)) is not None:
            return f"{child.name}.{below}"
    return None


class _Typed:
    """A column with a type that differs in NOT NULL alone, over the same memory."""

    def __init__(self, column: Any, kind: pa.DataType) -> None:
        self.column = column
        self.kind = kind

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.kind.__arrow_c_schema__(), self.column.__arrow_c_array__()[1]


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_nullable(child) for child in kind])
    elif pa.types.is_map(kind):
        key = _nullable(kind.key_field).with_nullable(False)
        kind = pa.map_(key, _nullable(kind.item_field))
    return field.with_type(kind).with_nullable(True)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The Arrow form of Spark's type for values of ``kind``."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    ):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([child.with_type(_plain(child.type)) for child in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=None if kind.tz is None else "UTC")
    if pa.types.is_time(kind):
        return pa.time64("ns")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else kind
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return _NAMED.get(kind, kind)
