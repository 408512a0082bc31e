"""Images to PNG or JPEG bytes and back, by OpenCV or Pillow, whichever is installed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from bowstring.petastorm._lazy import installed, needed

__all__ = ["decoded", "encoded"]

_WHY = "an image codec used by hand (readers decode without one)"


def encoded(image: npt.NDArray[Any], codec: str, quality: int) -> bytes:
    """``image``, grey or RGB, as ``png`` or ``jpeg``."""
    if not installed("cv2") and installed("PIL.Image"):
        file = io.BytesIO()
        pillow = needed("PIL.Image", _WHY)
        pillow.fromarray(image).save(file, "JPEG" if codec in ("jpeg", "jpg") else codec.upper(), quality=quality)
        return file.getvalue()
    cv2 = needed("cv2", _WHY)
    bgr = image if image.ndim == 2 else np.ascontiguousarray(image[:, :, ::-1])
    done, contents = cv2.imencode(f".{codec}", bgr, [int(cv2.IMWRITE_JPEG_QUALITY), quality])
    if not done:
        raise ValueError(f"{image.dtype}{list(image.shape)} does not encode as {codec}")
    return bytes(contents)


def decoded(contents: bytes) -> npt.NDArray[Any]:
    """Grey ``[H, W]`` or RGB ``[H, W, 3]``; 8 or 16 bits as stored."""
    if not installed("cv2") and installed("PIL.Image"):
        return np.array(needed("PIL.Image", _WHY).open(io.BytesIO(contents)))
    cv2 = needed("cv2", _WHY)
    image: npt.NDArray[Any] | None = cv2.imdecode(np.frombuffer(contents, np.uint8), cv2.IMREAD_UNCHANGED)
    if image is None:
        raise ValueError(f"{len(contents)} bytes are no image that OpenCV reads")
    return image if image.ndim == 2 or image.shape[2] != 3 else np.ascontiguousarray(image[:, :, ::-1])
