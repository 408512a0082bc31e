"""Batches on a GPU for frameworks that do not name the streams they read on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bowstring.columns import Image
from bowstring.errors import DeviceError

__all__ = ["placed", "wanted"]

_LOG = logging.getLogger("bowstring")


def wanted(options: Mapping[str, Any]) -> str:
    """The option ``device``, from the keyword or the environment."""
    return str(options.get("device") or os.environ.get("BOWSTRING_DEVICE") or "cpu")


def _on_host(image: Any) -> Any:
    """The options of an image, for a loader that decodes it on the host."""
    if isinstance(image, Mapping):
        return {**image, "decoder": "cpu"}
    return replace(image, decoder="cpu") if isinstance(image, Image) else image


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
        if isinstance(given.get("images"), Mapping):
            given["images"] = {name: _on_host(image) for name, image in given["images"].items()}
        return {**given, "device": "cpu"}
    if given.get("device_fence") is None and "BOWSTRING_DEVICE_FENCE" not in os.environ:
        given["device_fence"] = "context"
    return given
