"""Batches on a GPU for frameworks that do not name the streams they read on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bowstring.errors import DeviceError

__all__ = ["placed", "wanted"]

_LOG = logging.getLogger("bowstring")


def wanted(options: Mapping[str, Any]) -> str:
    """The option ``device``, from the keyword or the environment."""
    return options.get("device") or os.environ.get("BOWSTRING_DEVICE") or "cpu"


def placed(options: Mapping[str, Any], framework: str, has_gpu: Callable[[], bool]) -> dict[str, Any]:
    """``options`` for batches on the GPU if they ask for one and ``framework`` has a GPU too; ``auto`` otherwise means the host.

    By default, memory is reused after all work queued on the GPU (``device_fence="context"``).
    """
    given, device = dict(options), wanted(options)
    if device in ("cpu", "pinned"):
        return given
    if not has_gpu():
        why = f"{framework} sees no GPU here (its package for CUDA is not installed, or no GPU is visible)"
        if device != "auto":
            raise DeviceError(f"device {device}: {why}; install that, or leave device as cpu")
        _LOG.warning("device auto: batches stay on the CPU: %s", why)
        given["images"] = {name: replace(image, decoder="cpu") for name, image in (given.get("images") or {}).items()}
        return {**given, "device": "cpu"}
    if given.get("device_fence") is None and "BOWSTRING_DEVICE_FENCE" not in os.environ:
        given["device_fence"] = "context"
    return given
