"""Storage of a field's values in Parquet.

Readers decode natively without these: ``encode`` serves writing with Spark, ``decode`` values that were read by other means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bowstring.petastorm import _image, _npy
from bowstring.petastorm._spark_types import SparkType, real, type_name

if TYPE_CHECKING:
    from bowstring.petastorm.unischema import UnischemaField

__all__ = ["CompressedImageCodec", "CompressedNdarrayCodec", "DataframeColumnCodec", "NdarrayCodec", "ScalarCodec"]


class DataframeColumnCodec(ABC):
    """The interface of all codecs."""

    @abstractmethod
    def encode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """The value as Spark stores it."""

    @abstractmethod
    def decode(self, unischema_field: UnischemaField, value: Any) -> Any:
        """The value that was stored."""

    @abstractmethod
    def spark_dtype(self) -> Any:
        """The Spark type of the stored value."""

    @abstractmethod
    def __str__(self) -> str:
        """The codec as Python source."""


class _Binary(DataframeColumnCodec):
    def spark_dtype(self) -> Any:
        return real(SparkType("BinaryType"))

    def __str__(self) -> str:
        return f"{type(self).__name__}()"


class CompressedImageCodec(_Binary):
    """Images as PNG or JPEG, ``[H, W]`` or ``[H, W, 3]`` (RGB).

    Encoding and decoding by hand needs OpenCV or Pillow; reading a dataset needs neither.

    :param image_codec: ``png`` or ``jpeg``.
    :param quality: of JPEG, 0 to 100.
    """

    def __init__(self, image_codec: str = "png", quality: int = 80) -> None:
        self._image_codec = f".{image_codec}"
        self._quality = quality

    @property
    def image_codec(self) -> str:
        """``png`` or ``jpeg``."""
        return self._image_codec[1:]

    @property
    def quality(self) -> int:
        """Of JPEG, 0 to 100."""
        return self._quality

    def encode(self, unischema_field: UnischemaField, value: npt.NDArray[Any]) -> bytearray:
        if unischema_field.numpy_dtype != value.dtype:
            raise ValueError(
                f"Unexpected type: {unischema_field.name} holds {_name(unischema_field.numpy_dtype)} images, got {value.dtype}"
            )
        _check_shape(unischema_field, value)
        if value.ndim != 2 and (value.ndim != 3 or value.shape[2] != 3):
            raise ValueError(f"{unischema_field.name}: an image is [H, W] or [H, W, 3], got {list(value.shape)}")
        return bytearray(_image.encoded(value, self.image_codec, self._quality))

    def decode(self, unischema_field: UnischemaField, value: bytes) -> npt.NDArray[Any]:
        image = _image.decoded(bytes(value))
        if image.ndim != 2 and (image.ndim != 3 or image.shape[2] != 3):
            raise ValueError(f"{unischema_field.name}: an image is [H, W] or [H, W, 3], got {list(image.shape)}")
        return image

    def __str__(self) -> str:
        return f"{type(self).__name__}('{self.image_codec}', {self._quality})"


class NdarrayCodec(_Binary):
    """Arrays as ``.npy`` files."""

    def encode(self, unischema_field: UnischemaField, value: npt.NDArray[Any]) -> bytearray:
        _check_array(unischema_field, value)
        return bytearray(_npy.written(value))

    def decode(self, unischema_field: UnischemaField, value: bytes) -> npt.NDArray[Any]:
        return _npy.read(bytes(value))


class CompressedNdarrayCodec(_Binary):
    """Arrays as compressed ``.npz`` files."""

    def encode(self, unischema_field: UnischemaField, value: npt.NDArray[Any]) -> bytearray:
        _check_array(unischema_field, value)
        return bytearray(_npy.written_zipped(value))

    def decode(self, unischema_field: UnischemaField, value: bytes) -> npt.NDArray[Any]:
        return _npy.read_zipped(bytes(value))


class ScalarCodec(DataframeColumnCodec):
    """A plain Spark value.

    :param spark_type: an instance of a class in ``pyspark.sql.types``.
    """

    def __init__(self, spark_type: Any) -> None:
        self._spark_type = spark_type

    def encode(self, unischema_field: UnischemaField, value: Any) -> Any:
        scalar = not hasattr(value, "__len__") or isinstance(value, str)
        if not scalar and not (isinstance(value, np.ndarray) and value.shape == ()):
            raise TypeError(f"Expected a scalar: {unischema_field.name} holds scalars, got a {type(value).__name__}")
        if unischema_field.shape:
            raise ValueError(
                f"{unischema_field.name}: the shape of a ScalarCodec's field must be an empty tuple, not {unischema_field.shape}"
            )
        name = type_name(self._spark_type)
        if name in ("ByteType", "ShortType", "IntegerType", "LongType"):
            return int(value)
        if name in ("FloatType", "DoubleType"):
            return float(value)
        if name == "BooleanType":
            return bool(value)
        if name == "StringType":
            if not isinstance(value, str):
                raise ValueError(f"{unischema_field.name} holds strings, got a {type(value).__name__}")
            return str(value)
        return value

    def decode(self, unischema_field: UnischemaField, value: Any) -> Any:
        return unischema_field.numpy_dtype(value)

    def spark_dtype(self) -> Any:
        return real(self._spark_type)

    def __str__(self) -> str:
        return f"{type(self).__name__}({type_name(self._spark_type)}())"


def _name(dtype: Any) -> str:
    return getattr(dtype, "__name__", str(dtype))


def _check_array(field: UnischemaField, value: Any) -> None:
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{field.name} holds arrays of {_name(field.numpy_dtype)}, got a {type(value).__name__}")
    if field.numpy_dtype != value.dtype.type:
        raise ValueError(f"{field.name} holds arrays of {_name(field.numpy_dtype)}, got {value.dtype}")
    _check_shape(field, value)


def _check_shape(field: UnischemaField, value: npt.NDArray[Any]) -> None:
    # A length of 0 on either side fits any, as in Petastorm.
    fits = len(value.shape) == len(field.shape) and all(
        not want or not got or want == got for got, want in zip(value.shape, field.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"Unexpected dimensions: {field.name} holds arrays of shape {field.shape}, got {value.shape}")
