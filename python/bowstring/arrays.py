"""Shared by the adapters of frameworks: every column's type and axes before the first batch, and its bytes as arrays.

An adapter gets the columns from :func:`columns_of`, and makes arrays with :func:`numpy_array` and :class:`Text`.
Nothing here copies a tensor or looks at single rows.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bowstring import _native
from bowstring.errors import UnsupportedError

__all__ = ["Column", "Text", "arrow", "columns_of", "numpy_array", "objects", "pyarrow_for", "torch_stream"]

_NUMPY = importlib.util.find_spec("numpy") is not None

# The first version of pyarrow that takes arrays of other libraries, by their PyCapsules.
_OLDEST_PYARROW = 14


def arrow(array: _native.ArrowArray) -> Any:
    """``array`` as a ``pyarrow.Array`` over the same memory; unchanged if pyarrow is not installed, or is older than 14."""
    pyarrow = _new_pyarrow()
    return array if pyarrow is None else pyarrow.array(array)


def pyarrow_for(what: str) -> Any:
    """The module pyarrow, which ``what`` needs; an ``ImportError`` names the version if the installed one is too old."""
    import pyarrow

    if _new_pyarrow() is None:
        raise ImportError(f"{what} needs pyarrow {_OLDEST_PYARROW} or newer; {pyarrow.__version__} is installed")
    return pyarrow


@functools.cache
def _new_pyarrow() -> Any:
    """pyarrow, if it is installed and takes arrays of other libraries."""
    if importlib.util.find_spec("pyarrow") is None:
        return None
    import pyarrow

    return pyarrow if int(pyarrow.__version__.partition(".")[0]) >= _OLDEST_PYARROW else None


def torch_stream(device: str) -> int | None:
    """The stream on which torch uses tensors of ``device`` now, as DLPack numbers it."""
    if device == "cpu":
        return None
    from torch.cuda import current_stream

    # In torch's numbers the legacy default stream is 0.
    return current_stream(device).cuda_stream or 1


def objects(values: list[Any]) -> Any:
    """``values`` as a NumPy array of Python's objects; unchanged if NumPy is not installed."""
    if not _NUMPY:
        return values
    import numpy

    return numpy.fromiter(values, dtype=object, count=len(values))


@dataclass(frozen=True)
class Column:
    """One delivered column, which may be several arrays of the batch."""

    name: str
    dtype: str | None
    """Element type of a tensor by NumPy's name; ``None`` for Arrow columns."""
    arrow: str | None
    """Type of an Arrow column."""
    rows: int | None
    """Rows of the batch, with padding; of windows, rows of all their offsets. ``None`` if the last batches differ."""
    leading: tuple[int | None, ...]
    """The axes up to and with the batch's: ``(B,)``, for windows ``(T, B)``; ``None`` for the batch's if it varies."""
    inner: tuple[int, ...]
    """The fixed axes of one value."""
    ragged: int
    """Number of axes that vary in length, and of arrays of offsets."""
    shaped: bool
    """True if values come flat, with their axes in ``<name>__shape``."""
    parts: tuple[str, ...]
    """The names of its arrays in a batch, in order."""
    is_text: bool = False
    """True for text or binary, within :attr:`ragged` lists."""
    packed: bool = False
    """True for a pack, whose validity has the shape of its values."""

    @property
    def is_plain(self) -> bool:
        """True for one tensor with the rows first, which can be a part of a global array."""
        return self.dtype is not None and not self.ragged and not self.shaped

    def inner_of(self, part: str) -> tuple[int, ...]:
        """The fixed axes of one row in the array ``part``: the values, ``<name>__valid`` or ``<name>__lengths``."""
        extra = part.removeprefix(self.name)
        if extra == "__valid":
            # A pack has one for each of its columns.
            return self.inner if self.packed else ()
        if extra.startswith("__lengths"):
            return self.inner[: int(extra.removeprefix("__lengths").removeprefix("_") or 0)]
        return self.inner


def columns_of(native: _native.Loader) -> list[Column]:
    """The columns of each batch of the loader, ``_mask`` last if there is one."""
    spec = native.state()["spec"]
    each, more = divmod(int(spec["global_batch"]), native.world_size)
    batch = None if spec["tail"] in ("short", "even") else each + (native.rank < more)
    found = [_column(field, batch) for field in native.fields]
    if native.masked:
        found.append(Column("_mask", "bool", None, batch, (batch,), (), 0, False, ("_mask",)))
    return found


def _column(field: Mapping[str, Any], batch: int | None) -> Column:
    dims: list[Any] = field["dims"]
    at = dims.index("batch")
    leading = (*dims[:at], batch)
    rest = dims[at + 1 :]
    rows = batch
    for axis in dims[:at]:
        rows = None if rows is None else rows * axis
    uneven = ("ragged", "sparse", "any")
    inner = tuple(axis["padded"] if isinstance(axis, dict) else axis for axis in rest if axis not in uneven)
    shaped = "any" in rest
    return Column(
        name=field["name"],
        dtype=field["dtype"],
        arrow=field["arrow"],
        rows=rows,
        leading=leading,
        inner=() if shaped else inner,
        ragged=1 if shaped else rest.count("ragged") + rest.count("sparse"),
        shaped=shaped,
        parts=tuple(field["names"]),
        is_text=field["text"],
        packed=field["packed"],
    )


class _Bits:
    """A tensor's memory under another type name, by NumPy's array interface."""

    def __init__(self, tensor: _native.Tensor, typestr: str) -> None:
        # NumPy keeps this object, and this keeps the tensor, for as long as the array or a view of it lives.
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "typestr": typestr,
            "data": (tensor.data_ptr, False),
        }


def numpy_array(tensor: _native.Tensor) -> Any:
    """``tensor`` as a NumPy array over the same memory; bfloat16 by ``ml_dtypes``, which TensorFlow and JAX bring along."""
    if tensor.dtype != "bfloat16":
        return tensor.numpy()
    if importlib.util.find_spec("ml_dtypes") is None:
        raise UnsupportedError("bfloat16 in NumPy needs the package ml_dtypes; or cast the column to float32")
    import ml_dtypes
    import numpy

    if tensor.nbytes == 0:
        return numpy.empty(tensor.shape, ml_dtypes.bfloat16)
    return numpy.asarray(_Bits(tensor, "<u2")).view(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Text:
    """Text or binary as NumPy arrays over Arrow's memory: value ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""

    data: Any
    """The bytes of all values, uint8."""
    offsets: Any
    """int64, one more than there are values; they need not begin at 0."""

    @staticmethod
    def of(array: _native.ArrowArray | Any) -> tuple[Text, list[Any]]:
        """The values of a column of text, and the offsets of the lists around them from the outermost one on. Nulls are empty."""
        import numpy

        pyarrow = pyarrow_for("text as an array of bytes")
        found = pyarrow.array(array) if isinstance(array, _native.ArrowArray) else array
        splits = []
        while pyarrow.types.is_large_list(found.type):
            if found.null_count:
                found = found.fill_null([])
            starts = found.offsets.to_numpy()
            splits.append(starts - starts[0])
            found = found.flatten()
        if found.null_count:
            found = found.fill_null(b"" if pyarrow.types.is_large_binary(found.type) else "")
        _, offsets, data = found.buffers()
        # An array without values may have no buffers.
        if len(found) == 0 or offsets is None:
            starts = numpy.zeros(len(found) + 1, numpy.int64)
        else:
            starts = numpy.frombuffer(offsets, numpy.int64)[found.offset : found.offset + len(found) + 1]
        values = numpy.empty(0, numpy.uint8) if data is None else numpy.frombuffer(data, numpy.uint8)
        return Text(values, starts), splits

    @property
    def used(self) -> Any:
        """The bytes of the values, without those of other slices of the array."""
        return self.data[self.offsets[0] : self.offsets[-1]]
