"""Petastorm's metadata of a dataset, read by bowstring: schema, and indexes of row groups. Nothing in it is executed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from bowstring import _native
from bowstring.petastorm import codecs
from bowstring.petastorm._spark_types import parsed
from bowstring.petastorm.etl import RowGroupIndexerBase
from bowstring.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer
from bowstring.petastorm.unischema import Unischema, UnischemaField

__all__ = ["Metadata", "load"]

# Python's own types, for which NumPy no longer has names, and NumPy's older names.
_CLASSES = {
    "Decimal": Decimal,
    "str": str,
    "bytes": bytes,
    "int": int,
    "float": float,
    "bool": bool,
    "unicode_": np.str_,
    "string_": np.bytes_,
}


@dataclass(frozen=True)
class Metadata:
    """A Petastorm dataset, as its metadata describes it."""

    schema: Unischema
    indexes: dict[str, RowGroupIndexerBase]
    row_group_counts: dict[str, int] | None
    """Row groups of each file, by its path in the dataset; ``None`` if the footers must be read for it."""


def load(url: str, storage_options: Mapping[str, str] | None = None) -> Metadata | None:
    """The metadata of the dataset at ``url``; ``None`` if Petastorm did not write it."""
    text = _native.petastorm_metadata(url, json.dumps(dict(storage_options or {})))
    if text is None:
        return None
    document = json.loads(text)
    schema = Unischema(document["name"], map(_field, document["fields"]))
    indexes = {index["name"]: _index(index) for index in document["indexes"]}
    return Metadata(schema, indexes, document["row_group_counts"])


def _field(field: Mapping[str, Any]) -> UnischemaField:
    name = field["numpy_dtype"]
    dtype = _CLASSES.get(name) or getattr(np, name)
    return UnischemaField(field["name"], dtype, tuple(field["shape"]), _codec(field["codec"]), bool(field["nullable"]))


def _codec(codec: Any) -> codecs.DataframeColumnCodec | None:
    if codec is None:
        return None
    if codec == "ndarray":
        return codecs.NdarrayCodec()
    if codec == "compressed_ndarray":
        return codecs.CompressedNdarrayCodec()
    if "scalar" in codec:
        return codecs.ScalarCodec(parsed(codec["scalar"]["spark_type"]))
    image = codec["compressed_image"]
    quality = 80 if image["quality"] is None else image["quality"]
    return codecs.CompressedImageCodec(image["format"].removeprefix("."), quality)


def _value(value: Any) -> Any:
    """A value of an index; one that JSON lacks is tagged with its type."""
    if not isinstance(value, dict):
        return value
    return bytes(value["bytes"]) if "bytes" in value else float(value["float"])


def _index(index: Mapping[str, Any]) -> RowGroupIndexerBase:
    column = index["columns"][0]
    if index["kind"] == "single_field":
        single = SingleFieldIndexer(index["name"], column)
        for value, groups in index["values"]:
            single._index_data[_value(value)].update(groups)
        return single
    not_null = FieldNotNullIndexer(index["name"], column)
    for _, groups in index["values"]:
        not_null._index_data.update(groups)
    return not_null
