"""Images to PNG or JPEG bytes and back, by OpenCV or Pillow, whichever is installed."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["decoded", "encoded"]

_MISSING = (
    "encoding and decoding images by hand needs OpenCV or Pillow: pip install opencv-python-headless. "
    "Readers decode without them"
)


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def encoded(image: npt.NDArray[Any], codec: str, quality: int) -> bytes:
    """``image``, grey or RGB, as ``png`` or ``jpeg``."""
    if _installed("cv2"):
        import cv2

        bgr = image if image.ndim == 2 else np.ascontiguousarray(image[:, :, ::-1])
        done, contents = cv2.imencode(f".{codec}", bgr, [int(cv2.IMWRITE_JPEG_QUALITY), quality])
        if not done:
            raise ValueError(f"{image.dtype}{list(image.shape)} does not encode as {codec}")
        return bytes(contents)
    if not _installed("PIL"):
        raise ImportError(_MISSING)
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG" if codec in ("jpeg", "jpg") else codec.upper(), quality=quality)
    return file.getvalue()


def decoded(contents: bytes) -> npt.NDArray[Any]:
    """Grey ``[H, W]`` or RGB ``[H, W, 3]``; 8 or 16 bits as stored."""
    if _installed("cv2"):
        import cv2

        image: npt.NDArray[Any] | None = cv2.imdecode(np.frombuffer(contents, np.uint8), cv2.IMREAD_UNCHANGED)
        if image is None:
            raise ValueError(f"{len(contents)} bytes are no image that OpenCV reads")
        return image if image.ndim == 2 or image.shape[2] != 3 else np.ascontiguousarray(image[:, :, ::-1])
    if not _installed("PIL"):
        raise ImportError(_MISSING)
    from PIL import Image

    return np.array(Image.open(io.BytesIO(contents)))
