"""Batches as NumPy arrays."""

from __future__ import annotations

import importlib.util
from typing import Any

from bowstring import _native
from bowstring.base import BaseLoader

__all__ = ["Loader"]

_NUMPY = importlib.util.find_spec("numpy") is not None


class Loader(BaseLoader[Any]):
    """Yields ``dict[str, array]``: NumPy arrays over the batch's own memory.

    bfloat16, which NumPy lacks, stays a :class:`bowstring.Tensor`, and so does everything on a GPU, or if NumPy is not
    installed. Text and binary are arrays of ``str`` and ``bytes`` (``dtype=object``), lists of them arrays of ``list``; plain lists
    if NumPy is not installed. Columns named in ``arrow`` are ``pyarrow.Array``, or :class:`bowstring.ArrowArray` if pyarrow is
    not installed.
    """

    def _array(self, tensor: _native.Tensor) -> Any:
        return tensor.numpy() if _NUMPY and tensor.dtype != "bfloat16" and tensor.device == "cpu" else tensor


Loader.__doc__ = f"{Loader.__doc__}\n{BaseLoader.__doc__}"
