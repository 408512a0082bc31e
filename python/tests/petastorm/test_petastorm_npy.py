"""Hostile headers of stored arrays: refused at once, with a typed error."""

from __future__ import annotations

import contextlib
import io
import time
import zipfile

import numpy as np
import pytest
from bowstring.petastorm import _npy
from bowstring.petastorm.errors import DecodeFieldError


def headed(header: str) -> bytes:
    text = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def test_no_shape_takes_longer_than_its_length() -> None:
    for shape in ("1" * 60 + "x", "1" * 60 + ")", " " * 60 + "x", "1L" * 30 + "x", "1," * 30 + "x"):
        began = time.perf_counter()
        with pytest.raises(DecodeFieldError):
            _npy.read(headed(f"{{'descr': '<U1', 'fortran_order': False, 'shape': ({shape}, }}"))
        assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("descr", "shape"), [("<U0", "(100000000,)"), ("|S0", "(1048577,)"), ("<U0", "(9999999999, 9999999999)")]
)
def test_elements_of_no_bytes_make_no_large_array(descr: str, shape: str) -> None:
    with pytest.raises(DecodeFieldError, match="no bytes"):
        _npy.read(headed(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"))


@pytest.mark.parametrize(
    ("descr", "shape"),
    [("<f3", "(1,)"), ("<f8", "(1 2,)"), ("<f8", "(" + "0," * 70 + ")"), ("<f8", "(0, 99999999999999999999)")],
)
def test_types_unknown_to_numpy_are_typed_errors(descr: str, shape: str) -> None:
    with pytest.raises(DecodeFieldError):
        _npy.read(headed(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"))


def test_empty_arrays_are_read_as_before() -> None:
    for array in (np.zeros((0,), "<U1"), np.zeros((3, 0), "<f8"), np.array("text"), np.zeros((), "<i4")):
        found = _npy.read(_npy.written(array))
        assert (found.shape, found.dtype) == (array.shape, array.dtype)
    assert _npy.read(headed("{'descr': '<i2', 'fortran_order': False, 'shape': (0L, 4L), }")).shape == (0, 4)


def test_damage_of_an_archive_is_a_typed_error() -> None:
    whole = _npy.written_zipped(np.arange(200))
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        with contextlib.suppress(DecodeFieldError):
            _npy.read_zipped(bytes(damaged))
    for kept in range(0, len(whole), 5):
        with pytest.raises(DecodeFieldError):
            _npy.read_zipped(whole[:kept])
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            archive.writestr("arr.npy", _npy.written(np.arange(200)))
        start = file.getvalue().index(b"arr.npy") + 7
        cell = bytearray(file.getvalue())
        cell[start : start + 40] = bytes(40)
        with pytest.raises(DecodeFieldError):
            _npy.read_zipped(bytes(cell))
