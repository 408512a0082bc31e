"""Indexes of row groups in the form that Petastorm reads: a pickle, written opcode by opcode. Rust writes the schema.

It writes only opcodes that Petastorm's own reader and bowstring's inert one accept, for any objects; nothing here reads a pickle.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from bowstring.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer

__all__ = ["indexes"]


class _Writer:
    """Opcodes of protocol 4, one method per kind of value."""

    def __init__(self) -> None:
        self._out = bytearray(b"\x80\x04")

    def finished(self) -> bytes:
        return bytes(self._out) + b"."

    def plain(self, value: Any) -> None:
        """One value."""
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
        else:
            raise TypeError(f"metadata cannot hold a {type(value).__name__}: {value!r}")

    def named(self, module: str, name: str) -> None:
        self._out += b"c" + f"{module}\n{name}\n".encode()

    def pairs(self, items: Iterable[tuple[Any, Callable[[], None]]], empty: bytes = b"}") -> None:
        """Entries for a dictionary; ``empty`` creates it, or is empty if it exists already."""
        self._out += empty + b"("
        for key, write in items:
            self.plain(key)
            write()
        self._out += b"u"

    def groups(self, numbers: Iterable[int]) -> None:
        """A set of row groups."""
        self._out += b"\x8f("
        for number in sorted(numbers):
            self.plain(int(number))
        self._out += b"\x90"

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
    if isinstance(value, bytes):
        return bytes(value)  # NumPy's `item` takes zeros at the end for padding
    return value.item() if isinstance(value, np.generic) else value


def indexes(indexers: Mapping[str, Any]) -> bytes:
    """Indexes by name for ``dataset-toolkit.rowgroups_index.v1``."""
    for indexer in indexers.values():
        if not isinstance(indexer, (SingleFieldIndexer, FieldNotNullIndexer)):
            raise TypeError(f"{type(indexer).__name__} is not an index of Petastorm's: no reader would know it")
    writer = _Writer()
    writer.pairs((name, lambda index=index: writer.index(index)) for name, index in indexers.items())  # type: ignore[misc]
    return writer.finished()
