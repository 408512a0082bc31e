"""NumPy's array files, for values delivered as stored and for codecs that are called directly.

The header is matched as text and never evaluated; object arrays are refused; no array is larger than its bytes.
"""

from __future__ import annotations

import io
import lzma
import math
import re
import struct
import zipfile
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from bowstring.petastorm.errors import DecodeFieldError

__all__ = ["read", "read_zipped", "written", "written_zipped"]

# Enough for any header without fields; no codec has record types.
_MAX_HEADER = 10_000
# A compressed array may be this many times its file: zlib reaches about 1030.
_MAX_RATIO = 1100
_DESCR = re.compile(r"'descr'\s*:\s*'([<>|=][?biufcSUmM]\d*(?:\[\w+\])?)'")
_ORDER = re.compile(r"'fortran_order'\s*:\s*(True|False)")
# Only its characters: an expression that also parses axes can be made to backtrack for ever.
_SHAPE = re.compile(r"'shape'\s*:\s*\(([\d\sL,]{0,1000})\)", re.ASCII)
_AXIS = re.compile(r"\d{1,20}L?", re.ASCII)
# Elements of an array without bytes: `<U0`, or one with an axis of length 0 besides others.
_MAX_EMPTY = 1 << 20
# Exceptions of `zipfile` for damage; an encrypted entry is a RuntimeError.
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    RuntimeError,
    struct.error,
)


def read(data: bytes) -> npt.NDArray[Any]:
    """The array in an ``.npy`` file, as a copy that may be written to.

    :raises DecodeFieldError: if it is invalid in any way.
    """
    try:
        return _read(data)
    except (ValueError, TypeError, ArithmeticError) as error:  # NumPy's errors for invalid types and shapes
        raise DecodeFieldError(f".npy: {error}") from error


def _read(data: bytes) -> npt.NDArray[Any]:
    if data[:6] != b"\x93NUMPY" or len(data) < 12:
        raise DecodeFieldError("this is not a .npy file: its first bytes are not NumPy's")
    wide = data[6] >= 2
    start = 12 if wide else 10
    length = int.from_bytes(data[8:start], "little")
    if length > _MAX_HEADER or start + length > len(data):
        raise DecodeFieldError(f".npy: a header of {length} bytes in a file of {len(data)}")
    header = data[start : start + length].decode("utf-8" if data[6] >= 3 else "latin-1")
    found = [pattern.search(header) for pattern in (_DESCR, _ORDER, _SHAPE)]
    if not all(found):
        raise DecodeFieldError(f".npy: header {header[:200]!r} is not an array of plain elements")
    descr, order, shape_text = (match[1] for match in found if match)
    dtype = np.dtype(descr)
    axes = [axis.strip() for axis in shape_text.split(",") if axis.strip()]
    if not all(map(_AXIS.fullmatch, axes)):
        raise DecodeFieldError(f".npy: the shape ({shape_text[:200]}) is none")
    shape = tuple(int(axis.rstrip("L")) for axis in axes)
    size = math.prod(shape) * dtype.itemsize
    body = memoryview(data)[start + length :]
    if len(body) < size:
        raise DecodeFieldError(f".npy: {dtype}{list(shape)} needs {size} bytes, the file has {len(body)}")
    if size == 0:
        # NumPy allocates one byte or letter for elements of no bytes.
        if math.prod(shape) > _MAX_EMPTY:
            raise DecodeFieldError(f".npy: {list(shape)} elements of no bytes are more than {_MAX_EMPTY}")
        return np.zeros(shape, dtype)
    flat: npt.NDArray[Any] = np.frombuffer(body[:size], dtype)
    made: npt.NDArray[Any] = flat.reshape(shape, order="F" if order == "True" else "C").copy(order="K")
    return made


def read_zipped(data: bytes, name: str = "arr") -> npt.NDArray[Any]:
    """The array ``name`` in an ``.npz`` file."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entry = archive.getinfo(f"{name}.npy")
            if entry.file_size > _MAX_RATIO * len(data):
                raise DecodeFieldError(f".npz: {entry.file_size} bytes from {len(data)} cannot be")
            with archive.open(entry) as file:
                return read(file.read(entry.file_size))
    except DecodeFieldError:
        raise
    except _BROKEN as error:
        raise DecodeFieldError(f".npz: {error}") from error


def written(array: npt.NDArray[Any]) -> bytes:
    """``array`` as an ``.npy`` file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def written_zipped(array: npt.NDArray[Any], name: str = "arr") -> bytes:
    """``array`` as a compressed ``.npz`` file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", written(array))
    return file.getvalue()
