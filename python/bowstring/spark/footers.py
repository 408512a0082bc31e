"""Types that Parquet lacks, and Spark therefore keeps in the footers of its files: collated text, intervals, variants, vectors."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
    VariantType,
)

__all__ = ["with_spark_row", "with_spark_types"]

_log = logging.getLogger(__name__)

_ROW = b"org.apache.spark.sql.parquet.row.metadata"
_COLLATIONS = "__COLLATIONS"
_OWN = ("variant", "interval ", "geometry", "geography")
# A file names the class of a type, which PySpark imports: no other ones.
_CLASSES = {f"pyspark.{module}.linalg.{name}" for module in ("ml", "mllib") for name in ("VectorUDT", "MatrixUDT")}


def with_spark_row(stored: pa.Schema, schema: StructType) -> pa.Schema:
    """``stored`` with the types of Spark's ``schema`` in its metadata, as Spark has them in the footers of its own files."""
    return stored.with_metadata({**(stored.metadata or {}), _ROW: schema.json().encode()})


def with_spark_types(schema: StructType, files: Iterable[Any]) -> StructType:
    """``schema`` with the types of its columns that the footers of ``files``, pyarrow's fragments of Parquet, agree on.

    Warns of columns whose values have another type in Spark than here.
    """
    told: dict[str, set[str]] = {}
    with ThreadPoolExecutor(16) as pool:
        for names, row in set(pool.map(_told, files)):
            own = _own_types(row)
            for name in names:
                told.setdefault(name, set()).add(own.get(name, ""))
    return StructType([_retyped(field, told.get(field.name, set())) for field in schema])


def _told(file: Any) -> tuple[tuple[str, ...], bytes]:
    """The columns of a file, and Spark's schema of them."""
    try:
        schema = file.physical_schema
    except pa.ArrowInvalid:  # no Parquet: no reader takes columns from it
        return (), b""
    return tuple(schema.names), (schema.metadata or {}).get(_ROW, b"")


def _own_types(row: bytes) -> dict[str, str]:
    """For columns of a type that Parquet lacks, Spark's description as JSON. A schema that cannot be read says nothing."""
    try:
        fields = json.loads(row)["fields"] if row else []
        return {
            str(field["name"]): json.dumps({**field, "nullable": True, "metadata": _collations(field)}, sort_keys=True)
            for field in fields
            if _is_own_field(field)
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        _log.debug("Spark's schema: %s", error)
        return {}


def _collations(field: Any) -> dict[str, Any]:
    metadata = field.get("metadata") or {}
    return {_COLLATIONS: metadata[_COLLATIONS]} if _COLLATIONS in metadata else {}


def _is_own_field(field: Any) -> bool:
    return bool(_collations(field)) or _is_own(field["type"])


def _is_own(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind.startswith(_OWN)
    if kind["type"] == "struct":
        return any(map(_is_own_field, kind["fields"]))
    return kind["type"] == "udt" or any(
        _is_own(kind[part]) for part in ("elementType", "keyType", "valueType") if part in kind
    )


class _Unknown(Exception):
    """A type that is none of this reader."""


def _retyped(field: StructField, told: set[str]) -> StructField:
    try:
        kinds = [_type(field.dataType, json.loads(said)) if said else field.dataType for said in sorted(told)]
    except _Unknown as error:
        why = str(error)
    else:
        if not kinds or all(kind == kinds[0] for kind in kinds):
            return StructField(field.name, kinds[0] if kinds else field.dataType, field.nullable, field.metadata)
        why = "its files do not agree on the type that Spark has for it"
    _log.warning(
        "column %s comes as %s, as Parquet has it: %s. spark.read.parquet may give another type, which compares otherwise; "
        "cast it, or give the type by .schema(...)",
        field.name,
        field.dataType.simpleString(),
        why,
    )
    return field


def _type(plain: DataType, said: Any) -> DataType:
    """The type that ``said`` is for values of ``plain``."""
    why = f"it is {json.dumps(said['type'])[:200]} in Spark's footers, which this reader has not"
    try:
        unknown = next(_unknown_classes(said["type"]), None)
        kind = _carried(plain, StructField.fromJson(said).dataType) if unknown is None else None
    except Exception as error:  # a type of a newer Spark, or a damaged one, for which PySpark has many errors
        raise _Unknown(f"{why} ({error})") from error
    if kind is None:
        raise _Unknown(f"{why} ({unknown})" if unknown else why)
    return kind


def _unknown_classes(kind: Any) -> Iterator[str]:
    if not isinstance(kind, dict):
        return
    if kind["type"] == "udt":
        name = str(kind.get("pyClass"))
        if name not in _CLASSES:
            yield f"class {name}"
        return
    for part in ("elementType", "keyType", "valueType"):
        yield from _unknown_classes(kind.get(part))
    for field in kind.get("fields", ()):
        yield from _unknown_classes(field["type"])


def _carried(plain: DataType, told: DataType) -> DataType | None:
    """``told`` if values of ``plain`` are values of it, with nulls anywhere; ``plain`` if Parquet has that type; else ``None``."""
    if isinstance(told, StructType) and isinstance(plain, StructType):
        by_name = {field.name: field.dataType for field in told}
        kinds = [_carried(field.dataType, by_name.get(field.name, field.dataType)) for field in plain]
        fields = zip(plain, kinds, strict=True)
        made = [StructField(field.name, kind, True, field.metadata) for field, kind in fields if kind is not None]
        return StructType(made) if len(made) == len(plain) else None
    if isinstance(told, ArrayType) and isinstance(plain, ArrayType):
        items = _carried(plain.elementType, told.elementType)
        return None if items is None else ArrayType(items)
    if isinstance(told, MapType) and isinstance(plain, MapType):
        keys, values = _carried(plain.keyType, told.keyType), _carried(plain.valueType, told.valueType)
        return None if keys is None or values is None else MapType(keys, values)
    if isinstance(told, StringType):
        return told if isinstance(plain, StringType) else None
    if isinstance(told, DayTimeIntervalType):
        return told if isinstance(plain, (LongType, DayTimeIntervalType)) else None
    if isinstance(told, VariantType):
        return told if isinstance(plain, VariantType) or _is_whole_variant(plain) else None
    if isinstance(told, UserDefinedType):
        return told if plain.simpleString() == told.sqlType().simpleString() else None
    return None if _is_own(told.jsonValue()) else plain


def _is_whole_variant(plain: DataType) -> bool:
    """True unless parts of the values are in columns of their own."""
    if not isinstance(plain, StructType) or set(plain.names) != {"value", "metadata"}:
        return False
    return all(isinstance(field.dataType, BinaryType) for field in plain)
