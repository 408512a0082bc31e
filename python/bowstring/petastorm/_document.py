"""A Unischema as the JSON that bowstring reads and writes, and in the form that Petastorm stores."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from bowstring import _native
from bowstring.errors import ConfigError
from bowstring.petastorm import codecs

if TYPE_CHECKING:
    from bowstring.petastorm.unischema import Unischema

__all__ = ["document", "metadata"]


def document(schema: Unischema) -> dict[str, Any]:
    """The schema as plain values."""
    fields = [
        {
            "name": field.name,
            "numpy_dtype": _dtype(field.numpy_dtype),
            "shape": list(field.shape),
            "codec": _codec(field.name, field.codec),
            "nullable": bool(field.nullable),
        }
        for field in schema.fields.values()
    ]
    return {"name": schema._name, "fields": fields}


def metadata(schema: Unischema) -> bytes:
    """The schema as ``_common_metadata`` holds it."""
    return _native.unischema_metadata(json.dumps(document(schema)))


def _dtype(dtype: Any) -> str:
    """The name that Petastorm's NumPy knows: the newest calls ``bool_`` by Python's name."""
    return "bool_" if dtype is np.bool_ else str(dtype.__name__)


def _codec(name: str, codec: Any) -> Any:
    if codec is None:
        return None
    if isinstance(codec, codecs.CompressedNdarrayCodec):
        return "compressed_ndarray"
    if isinstance(codec, codecs.NdarrayCodec):
        return "ndarray"
    if isinstance(codec, codecs.ScalarCodec):
        return {"scalar": {"spark_type": str(codec._spark_type)}}
    if isinstance(codec, codecs.CompressedImageCodec):
        image = codec.image_codec
        return {"compressed_image": {"format": f".{image}", "quality": None if image == "png" else codec.quality}}
    raise ConfigError(
        f"option petastorm: field {name} has a codec of its own, {type(codec).__name__}", option="petastorm"
    )
