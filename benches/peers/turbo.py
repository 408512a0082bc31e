# libjpeg-turbo 3 called directly: decode only the part that a crop needs, at 1/2, 1/4 or 1/8 if that is enough.
# The bare chain is the reference for other decoders; the library is the one that bowstring itself was built with.

from __future__ import annotations

import ctypes
import ctypes.util
import os
import pathlib
import subprocess
import threading
from typing import Any

from data import ROOT

BUILT = ROOT / "bench-out" / "peers" / "libturbojpeg.so"

# From turbojpeg.h.
INIT_DECOMPRESS, PIXELS_RGB = 1, 0
PARAM_SUBSAMPLING, PARAM_WIDTH, PARAM_HEIGHT = 4, 5, 6
MCU_WIDTH = {0: 8, 1: 16, 2: 16, 3: 8, 4: 8, 5: 32, 6: 8}


class Scale(ctypes.Structure):
    _fields_ = [("num", ctypes.c_int), ("denom", ctypes.c_int)]


class Region(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_int), ("w", ctypes.c_int), ("h", ctypes.c_int)]


def library() -> pathlib.Path:
    """A shared libjpeg-turbo 3: $BOWSTRING_TURBOJPEG, or linked from bowstring's build, or the system's.

    # Errors
    OSError if there is none.
    """
    given = os.environ.get("BOWSTRING_TURBOJPEG")
    if given:
        return pathlib.Path(given)
    if BUILT.exists():
        return BUILT
    for profile in ("release", "debug"):
        for archive in sorted((ROOT / "target" / profile / "build").glob("turbojpeg-sys-*/out/lib/libturbojpeg.a")):
            whole = ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive"]
            BUILT.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cc", "-shared", "-o", str(BUILT), *whole], check=True)
            return BUILT
    found = ctypes.util.find_library("turbojpeg")
    if found and hasattr(ctypes.CDLL(found), "tj3Init"):
        return pathlib.Path(found)
    raise OSError("no libjpeg-turbo 3 as a shared library; set BOWSTRING_TURBOJPEG or build bowstring with it first")


class Decoder:
    """Decodes regions; each thread has its own handle."""

    def __init__(self) -> None:
        calls = ctypes.CDLL(str(library()))
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        for name, result, arguments in (
            ("tj3Init", pointer, [ctypes.c_int]),
            ("tj3DecompressHeader", ctypes.c_int, [pointer, ctypes.c_char_p, size]),
            ("tj3Get", ctypes.c_int, [pointer, ctypes.c_int]),
            ("tj3SetScalingFactor", ctypes.c_int, [pointer, Scale]),
            ("tj3SetCroppingRegion", ctypes.c_int, [pointer, Region]),
            ("tj3Decompress8", ctypes.c_int, [pointer, ctypes.c_char_p, size, pointer, ctypes.c_int, ctypes.c_int]),
            ("tj3GetErrorStr", ctypes.c_char_p, [pointer]),
        ):
            function = getattr(calls, name)
            function.restype, function.argtypes = result, arguments
        self.calls = calls
        self.local = threading.local()

    def header(self, image: bytes) -> tuple[int, int]:
        """Reads the header on this thread's handle; width and height."""
        handle = getattr(self.local, "handle", None)
        if handle is None:
            handle = self.local.handle = self.calls.tj3Init(INIT_DECOMPRESS)
        self.check(self.calls.tj3DecompressHeader(handle, image, len(image)))
        return self.calls.tj3Get(handle, PARAM_WIDTH), self.calls.tj3Get(handle, PARAM_HEIGHT)

    def region(self, image: bytes, box: tuple[int, int, int, int], size: int) -> Any:
        """RGB pixels [h, w, 3] of the box, from the smallest scale that still has `size` pixels each way.

        Call after `header` on the same thread.
        """
        import numpy as np

        handle, (x, y, w, h) = self.local.handle, box
        width, height = self.calls.tj3Get(handle, PARAM_WIDTH), self.calls.tj3Get(handle, PARAM_HEIGHT)
        denom = next(d for d in (8, 4, 2, 1) if d == 1 or min(w, h) >= size * d)
        self.check(self.calls.tj3SetScalingFactor(handle, Scale(1, denom)))
        mcu = MCU_WIDTH[self.calls.tj3Get(handle, PARAM_SUBSAMPLING)] // denom
        left, right = x // denom, min(-(-(x + w) // denom), -(-width // denom))
        top, bottom = y // denom, min(-(-(y + h) // denom), -(-height // denom))
        aligned = left // mcu * mcu
        self.check(self.calls.tj3SetCroppingRegion(handle, Region(aligned, top, right - aligned, bottom - top)))
        out = np.empty((bottom - top, right - aligned, 3), np.uint8)
        self.check(self.calls.tj3Decompress8(handle, image, len(image), out.ctypes.data, 0, PIXELS_RGB))
        return out[:, left - aligned :]

    def check(self, code: int) -> None:
        if code != 0:
            raise ValueError(self.calls.tj3GetErrorStr(self.local.handle).decode())
