"""Petastorm's metadata in the form in which Petastorm reads it: a pickle, written opcode by opcode.

Only what Petastorm's own reader and bowstring's inert one accept is written, whatever the objects are; nothing here reads one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from bowstring.petastorm import codecs
from bowstring.petastorm._spark_types import SparkType, type_name
from bowstring.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer
from bowstring.petastorm.unischema import Unischema, UnischemaField

__all__ = ["indexes", "schema"]


class _Writer:
    """Opcodes of protocol 4, one method per kind of value."""

    def __init__(self) -> None:
        self._out = bytearray(b"\x80\x04")
        self._memo: dict[str, int] = {}

    def finished(self) -> bytes:
        return bytes(self._out) + b"."

    def plain(self, value: Any) -> None:
        """A value of JSON's kinds, or a tuple of them."""
        if value is None:
            self._out += b"N"
        elif isinstance(value, bool):
            self._out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            size = value.bit_length() // 8 + 1
            self._out += b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)
        elif isinstance(value, float):
            self._out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            text = value.encode("utf-8", "surrogatepass")
            self._out += b"X" + struct.pack("<I", len(text)) + text
        elif isinstance(value, bytes):
            self._out += b"B" + struct.pack("<I", len(value)) + value
        elif isinstance(value, tuple):
            self._out += b"("
            for item in value:
                self.plain(item)
            self._out += b"t"
        else:
            raise TypeError(f"metadata cannot hold a {type(value).__name__}: {value!r}")

    def named(self, module: str, name: str) -> None:
        self._out += b"c" + f"{module}\n{name}\n".encode()

    def instance(self, module: str, name: str, state: Mapping[str, Any] | None = None) -> None:
        """An object made without arguments, with a plain state."""
        self.named(module, name)
        self._out += b")\x81"
        if state:
            self.pairs((key, lambda value=value: self.plain(value)) for key, value in state.items())  # type: ignore[misc]
            self._out += b"b"

    def pairs(self, items: Iterable[tuple[Any, Callable[[], None]]], empty: bytes = b"}") -> None:
        """Entries for a dictionary; ``empty`` makes it, or is nothing where it is there already."""
        self._out += empty + b"("
        for key, write in items:
            self.plain(key)
            write()
        self._out += b"u"

    def field(self, field: UnischemaField) -> None:
        """A field; the second time only a reference to it."""
        if field.name in self._memo:
            self._out += b"j" + struct.pack("<I", self._memo[field.name])
            return
        self.named("petastorm.unischema", "UnischemaField")
        self._out += b"("
        self.plain(field.name)
        self._dtype(field.numpy_dtype)
        self.plain(tuple(field.shape))
        self._codec(field.codec)
        self.plain(bool(field.nullable))
        self._out += b"t\x81r" + struct.pack("<I", len(self._memo))
        self._memo[field.name] = len(self._memo)

    def _dtype(self, dtype: Any) -> None:
        if dtype is Decimal:
            self.named("decimal", "Decimal")
        elif isinstance(dtype, type) and issubclass(dtype, np.generic):
            # NumPy 2 calls it bool; what wrote and reads such files calls it bool_.
            self.named("numpy", "bool_" if dtype is np.bool_ else dtype.__name__)
        else:
            raise TypeError(f"a field's numpy_dtype must be a class of NumPy's or decimal.Decimal, got {dtype!r}")

    def _codec(self, codec: Any) -> None:
        if codec is None:
            self.plain(None)
        elif isinstance(codec, codecs.CompressedImageCodec):
            state = {"_image_codec": f".{codec.image_codec}", "_quality": codec._quality}
            self.instance("petastorm.codecs", "CompressedImageCodec", state)
        elif isinstance(codec, codecs.ScalarCodec):
            self.named("petastorm.codecs", "ScalarCodec")
            self._out += b")\x81"
            self.pairs([("_spark_type", lambda: self._spark(codec._spark_type))])
            self._out += b"b"
        elif isinstance(codec, (codecs.NdarrayCodec, codecs.CompressedNdarrayCodec)):
            self.instance("petastorm.codecs", type(codec).__name__)
        else:
            raise TypeError(f"{type(codec).__name__} is no codec of Petastorm's: no reader would know it")

    def _spark(self, spark_type: Any) -> None:
        name = type_name(spark_type)
        state: dict[str, Any] = {}
        if name == "DecimalType":
            stand_in = isinstance(spark_type, SparkType)
            precision, scale = spark_type.arguments or (10, 0) if stand_in else (spark_type.precision, spark_type.scale)
            state = {"precision": precision, "scale": scale, "hasPrecisionInfo": True}
        self.instance("pyspark.sql.types", name, state)

    def groups(self, numbers: Iterable[int]) -> None:
        """A set of row groups."""
        self._out += b"\x8f("
        for number in sorted(numbers):
            self.plain(int(number))
        self._out += b"\x90"

    def ordered(self, fields: Mapping[str, UnischemaField]) -> None:
        """An OrderedDict of fields."""
        self.named("collections", "OrderedDict")
        self.pairs(self._by_name(fields), empty=b")R")

    def _by_name(self, fields: Mapping[str, UnischemaField]) -> list[tuple[str, Callable[[], None]]]:
        return [(name, lambda field=field: self.field(field)) for name, field in fields.items()]  # type: ignore[misc]

    def unischema(self, schema: Unischema) -> None:
        """A schema, with an attribute for each field as Petastorm's objects have them."""
        self.named("petastorm.unischema", "Unischema")
        self._out += b")\x81"
        state: list[tuple[str, Callable[[], None]]] = [
            ("_name", lambda: self.plain(schema._name)),
            ("_fields", lambda: self.ordered(schema.fields)),
        ]
        self.pairs([*state, *self._by_name(schema.fields)])
        self._out += b"b"

    def index(self, index: Any) -> None:
        """One index of row groups."""
        name = type(index).__name__
        self.named("petastorm.etl.rowgroup_indexers", name)
        self._out += b")\x81"
        data = self._by_value if isinstance(index, SingleFieldIndexer) else self._not_null
        self.pairs(
            [
                ("_index_name", lambda: self.plain(index.index_name)),
                ("_column_name", lambda: self.plain(index.column_names[0])),
                ("_index_data", lambda: data(index)),
            ]
        )
        self._out += b"b"

    def _by_value(self, index: Any) -> None:
        self.named("collections", "defaultdict")
        self._out += b"("
        self.named("builtins", "set")
        entries = index._index_data.items()
        self.pairs(
            ((_item(value), lambda groups=groups: self.groups(groups)) for value, groups in entries),  # type: ignore[misc]
            empty=b"tR",
        )

    def _not_null(self, index: Any) -> None:
        self.groups(index._index_data)


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def schema(unischema: Unischema) -> bytes:
    """``unischema`` for ``dataset-toolkit.unischema.v1``."""
    writer = _Writer()
    writer.unischema(unischema)
    return writer.finished()


def indexes(indexers: Mapping[str, Any]) -> bytes:
    """Indexes by name for ``dataset-toolkit.rowgroups_index.v1``."""
    for indexer in indexers.values():
        if not isinstance(indexer, (SingleFieldIndexer, FieldNotNullIndexer)):
            raise TypeError(f"{type(indexer).__name__} is no index of Petastorm's: no reader would know it")
    writer = _Writer()
    writer.pairs((name, lambda index=index: writer.index(index)) for name, index in indexers.items())  # type: ignore[misc]
    return writer.finished()
