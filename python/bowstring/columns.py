"""Options of single columns: images, padded lists, packed matrices, filled nulls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Fill", "Image", "NGram", "Pack", "Padded", "Vector"]

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def names(given: Any) -> Any:
    """Names of columns, which are checked where they are read; a text is one name, and not its letters."""
    return [given] if isinstance(given, str) else given


@dataclass(frozen=True)
class Image:
    """How a binary column of encoded images becomes a tensor: orientation, crop, resize, flip, normalise, layout.

    >>> Image(224, crop="random_resized", flip=True, dtype="float32", normalize="imagenet").options()["size"]
    224
    """

    size: int | tuple[int, int] | None = None
    """One number for a square, or ``(height, width)``. May be left out where all images of the column have the size of its first
    one, which is then looked at when the dataset is opened; not for ``nvjpeg`` nor for columns that only a glob names."""
    crop: Literal["none", "center", "random_resized"] = "none"
    """``none`` stretches the whole image; ``random_resized`` is torchvision's ``RandomResizedCrop``."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Least and greatest part of the area that ``random_resized`` takes."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Least and greatest width / height that ``random_resized`` takes."""
    resize_shorter: int | None = None
    """Before ``center``: the shorter side is resized to this many pixels."""
    resize: bool = True
    """``False`` never resizes; an image that does not fit ``size`` is then an error."""
    flip: bool | float = False
    """Probability of a horizontal flip; ``True`` is 0.5."""
    normalize: Literal["imagenet"] | tuple[Sequence[float], Sequence[float]] | None = None
    """``(mean, std)`` on the scale 0 to 1, for a float ``dtype``."""
    layout: Literal["chw", "hwc"] = "chw"
    """Order of the axes of one image."""
    dtype: Literal["uint8", "float16", "bfloat16", "float32"] = "uint8"
    """Element type. Floats are scaled to 0 to 1 before ``normalize``."""
    channels: Literal[1, 3, 4] = 3
    """1 (grey), 3 (RGB) or 4 (RGBA)."""
    orient: bool = True
    """Apply the EXIF orientation."""
    draft: bool = True
    """Permit decoding JPEG at 1/2, 1/4 or 1/8 if that is not smaller than the output."""
    truncated: Literal["error", "fill"] = "error"
    """A JPEG that stops before its end or is damaged: a bad row, or filled up as libjpeg does."""
    limits: Mapping[str, int] | None = None
    """Limits of one image: ``max_pixels``, ``max_side``, ``max_bytes``, ``max_scans``."""
    decoder: Literal["cpu", "nvjpeg"] = "cpu"
    """The decoder of JPEG: ``nvjpeg`` is the GPU of ``device="cuda"``, close to the CPU's pixels, not equal (``docs/gpu.md``)."""
    encoded_room: int = 256 << 10
    """With ``nvjpeg``: bytes of a photo that the GPU is given; the CPU decodes larger ones."""

    def options(self) -> dict[str, Any]:
        """The options as the library reads them."""
        options: dict[str, Any] = {
            "size": list(self.size) if isinstance(self.size, Iterable) else self.size,
            "crop": self.crop,
            "resize_shorter": self.resize_shorter,
            "resize": self.resize,
            "flip": self.flip,
            "layout": self.layout,
            "dtype": self.dtype,
            "channels": self.channels,
            "orient": self.orient,
            "draft": self.draft,
            "truncated": self.truncated,
            "decoder": self.decoder,
            "encoded_room": self.encoded_room,
        }
        if self.crop == "random_resized":
            options["crop"] = {"random_resized": {"scale": list(self.scale), "ratio": list(self.ratio)}}
        if self.normalize is not None:
            mean, std = _IMAGENET if self.normalize == "imagenet" else self.normalize
            options["normalize"] = {"mean": list(mean), "std": list(std)}
        if self.limits is not None:
            options["limits"] = dict(self.limits)
        return options


@dataclass(frozen=True)
class Padded:
    """Lists of varying length as one tensor ``[B, length, ...]`` and ``<column>__lengths``."""

    length: int | Sequence[int]
    """The length; for lists of lists one per level."""
    fill: bool | int | float = 0
    """The value of elements that a list does not have."""
    truncate: Literal["error", "right", "left"] = "error"
    """Treatment of longer lists: the row is bad, or its end or beginning is cut off."""
    left: bool = False
    """Put the padding before the values."""

    def options(self) -> dict[str, Any]:
        """The options as the library reads them."""
        length = list(self.length) if isinstance(self.length, Iterable) else self.length
        return {"padded": {"length": length, "fill": self.fill, "truncate": self.truncate, "left": self.left}}


@dataclass(frozen=True)
class Vector:
    """Vectors of Spark (``VectorUDT``), dense or sparse, as one matrix ``[B, length]``.

    It is optional: without it, the length is the one in Spark's metadata of the column, or that of its first vector.
    """

    length: int
    """The length of all vectors."""

    def options(self) -> dict[str, Any]:
        """The options as the library reads them."""
        return {"vector": self.length}


@dataclass(frozen=True)
class Pack:
    """Columns, by name or glob, delivered as one matrix ``[B, n]``."""

    columns: str | Sequence[str]
    """The columns in order, or the one."""
    dtype: str = "float32"
    """Element type of the matrix."""

    def options(self) -> dict[str, Any]:
        """The options as the library reads them."""
        return {"columns": names(self.columns), "dtype": self.dtype}


@dataclass(frozen=True)
class Fill:
    """Nulls take this value; null lists are empty."""

    value: bool | int | float | str

    def options(self) -> dict[str, Any]:
        """The options as the library reads them."""
        return {"fill": self.value}


@dataclass(frozen=True)
class NGram:
    """Windows of consecutive rows of one row group as samples: columns come time-major, ``[T, B, ...]``.

    Rows must be sorted by the timestamp within each row group. Of a window that repeats to fill the last batch, ``_mask`` is
    false.
    """

    fields: Mapping[int, str | Sequence[str]]
    """For each offset in the window, e.g. -1, 0, 1, the columns that are delivered of the row there."""
    timestamp_field: str
    """The column that orders rows."""
    delta_threshold: float
    """Largest step of the timestamp from a row to the next, in the column's own unit."""
    timestamp_overlap: bool = True
    """Permit windows that share rows."""

    def options(self) -> dict[str, Any]:
        """The options as the library reads them."""
        return {
            "fields": {str(offset): names(columns) for offset, columns in self.fields.items()},
            "timestamp_field": self.timestamp_field,
            "delta_threshold": self.delta_threshold,
            "timestamp_overlap": self.timestamp_overlap,
        }
