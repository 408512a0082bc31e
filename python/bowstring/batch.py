"""A batch as yielded by the loader, to convert and to inspect."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from bowstring import _native, display
from bowstring.arrays import Column, arrow, columns_of, numpy_array, objects, torch_stream
from bowstring.errors import UnsupportedError
from bowstring.records import record_batch
from bowstring.schema import Schema

__all__ = ["Batch", "Layout"]

# Most pictures shown of a batch, and their side in pixels.
_PICTURES = 8
_SIDE = 96


class Layout:
    """The layout of one loader's batches. ``options`` are those of its columns; the columns ``kept_arrow`` stay Arrow arrays."""

    def __init__(self, native: _native.Loader, options: Mapping[str, Any], kept_arrow: frozenset[str]) -> None:
        self.schema = Schema(native)
        self.columns = columns_of(native)
        self.kept_arrow = kept_arrow
        images = options.get("images") or {}
        self.images = {
            column.name: found for column in self.columns if (found := _image_options(column, images)) is not None
        }
        """The options of each column of pictures, as JSON."""


def _image_options(column: Column, images: Mapping[str, Any]) -> str | None:
    """The options that make ``column`` a picture; those of stored arrays follow from type and shape."""
    if not column.is_plain or len(column.inner) != 3 or column.dtype is None:
        return None
    for pattern, options in images.items():
        if _native.column_is_meant(pattern, column.name):
            return json.dumps(options)
    stored = column.dtype == "uint8" and column.inner[2] in (1, 3, 4) and min(column.inner[:2]) > 4
    return json.dumps({"layout": "hwc"}) if stored else None


class Batch(Mapping[str, "_native.Tensor | _native.ArrowArray"]):
    """One rank's rows of one step: a mapping from names to :class:`bowstring.Tensor` and :class:`bowstring.ArrowArray`.

    It comes from :meth:`bowstring.Loader.batches` and :meth:`bowstring.Loader.preview`, which every loader has. The results of
    conversions share the batch's memory, except for the copies named here, and may be kept for as long as needed.

    ===================  ================================================================================================
    conversion           copies
    ===================  ================================================================================================
    :meth:`to_torch`     nothing: tensors stay where they are, on a GPU too
    :meth:`to_numpy`     tensors on a GPU, to the host; text, to Python's objects
    :meth:`to_pyarrow`   tensors on a GPU, to the host; booleans and masks of nulls, to bits
    ===================  ================================================================================================

    It is an Arrow record batch as well (``__arrow_c_array__``): ``pyarrow.record_batch(batch)``. A notebook shows its columns, and
    small pictures of its first images.
    """

    def __init__(self, columns: dict[str, _native.Tensor | _native.ArrowArray], layout: Layout) -> None:
        self._columns = columns
        self._layout = layout

    def __getitem__(self, name: str) -> _native.Tensor | _native.ArrowArray:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """The number of arrays; :attr:`rows` is that of rows."""
        return len(self._columns)

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a batch is memory of this process; pickle what its to_numpy(), to_torch() or to_pyarrow() returns"
        )

    @property
    def rows(self) -> int:
        """The rows of the batch, padding included."""
        for column in self._layout.columns:
            *frames, _ = column.leading
            windows = math.prod(length or 1 for length in frames)
            if column.dtype is None:
                return len(self._columns[column.name]) // windows
            if column.ragged:
                return (len(self._columns[f"{column.name}__offsets"]) - 1) // windows
            value = self._columns[column.name]
            return value.shape[len(frames)] if isinstance(value, _native.Tensor) else len(value)
        return 0

    @property
    def schema(self) -> Schema:
        """The columns of the loader's batches."""
        return self._layout.schema

    @property
    def device(self) -> str:
        """The device of its tensors: ``cpu``, ``cuda:0``."""
        tensors = (value for value in self._columns.values() if isinstance(value, _native.Tensor))
        return next((tensor.device for tensor in tensors), "cpu")

    def to_numpy(self) -> dict[str, Any]:
        """NumPy arrays, over the same memory; text and binary are copied to arrays of ``str`` and ``bytes``.

        Tensors on a GPU are copied to the host. bfloat16 takes the package ``ml_dtypes``.
        """
        return {
            name: numpy_array(value.cpu()) if isinstance(value, _native.Tensor) else self._other(name, value, objects)
            for name, value in self._columns.items()
        }

    def to_torch(self) -> dict[str, Any]:
        """torch tensors, over the same memory, where the batch is: on a GPU too. Text and binary are lists."""
        from torch.utils.dlpack import from_dlpack

        def other(name: str, array: _native.ArrowArray) -> Any:
            return self._other(name, array, lambda values: values)

        return _native.by_dlpack(self._columns, from_dlpack, torch_stream(self.device), other)

    def to_pyarrow(self) -> Any:
        """A ``pyarrow.RecordBatch`` over the same memory, with one column for each column of the dataset.

        Lists are ``large_list``, tensors of several axes ``arrow.fixed_shape_tensor``; if the loader has a mask
        ``<column>__valid``, the column has nulls instead. Lengths of padded columns, shapes, ``_row_id`` and ``_mask`` are columns
        of their own. Booleans and nulls are copied, to bits; tensors on a GPU to the host. bfloat16, which Arrow lacks, and windows
        (``ngram``) are :class:`bowstring.UnsupportedError`.
        """
        host = {
            name: value.cpu() if isinstance(value, _native.Tensor) else value for name, value in self._columns.items()
        }
        return record_batch(self._layout.schema, self._layout.columns, host)

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        """As :meth:`to_pyarrow`, as PyCapsules."""
        return self.to_pyarrow().__arrow_c_array__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        """The schema of :meth:`to_pyarrow`, as a PyCapsule."""
        return self.to_pyarrow().schema.__arrow_c_schema__()

    def _other(self, name: str, array: _native.ArrowArray, text: Any) -> Any:
        return arrow(array) if name in self._layout.kept_arrow else text(array.to_pylist())

    def __repr__(self) -> str:
        return f"<bowstring.Batch of {self.rows} rows: {', '.join(self._columns)}>"

    def _repr_html_(self) -> str:
        """For notebooks: names, types and shapes, and the first images of the first column of images."""
        where = "" if self.device == "cpu" else f" on {self.device}"
        rows = [(name, *_described(value)) for name, value in self._columns.items()]
        return display.table(
            f"bowstring.Batch of {self.rows} rows{where}", ("name", "type", "shape"), rows, self._pictures()
        )

    def _pictures(self) -> Iterator[str]:
        name = next(iter(self._layout.images), None)
        value = None if name is None else self._columns[name]
        if name is None or not isinstance(value, _native.Tensor):
            return
        tensor = value.cpu()
        for row in range(min(_PICTURES, self.rows)):
            yield display.picture(_native.preview(tensor, row, self._layout.images[name], _SIDE), f"{name} {row}")


def _described(value: _native.Tensor | _native.ArrowArray) -> tuple[str, str]:
    if isinstance(value, _native.Tensor):
        return value.dtype, str(list(value.shape))
    return f"arrow {value.type}", str([len(value)])
