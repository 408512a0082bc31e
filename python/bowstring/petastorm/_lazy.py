"""Libraries that only some users need, imported on use."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["installed", "needed"]

_PACKAGES = {"cv2": "opencv-python-headless", "PIL.Image": "pillow", "tensorflow.data": "tensorflow"}


def installed(module: str) -> bool:
    """True if a module can be imported."""
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def needed(module: str, why: str) -> Any:
    """The module; an :class:`ImportError` that names the feature that needs it, and how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = _PACKAGES.get(module, module.partition(".")[0])
        raise ImportError(f"{why} needs {package}: pip install {package}", name=module) from error
