"""Tensors that the caller allocated, described for the native library as they are when a batch is copied into them."""

from __future__ import annotations

import sys
from typing import Any

from bowstring import _native
from bowstring.errors import MismatchError

__all__ = ["Buffers"]


class Buffers:
    """Tensors of the caller as the native library fills them. Called for each batch, because their memory may move between two."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self._tensors = tensors
        torch = sys.modules.get("torch")
        self._of_torch = torch is not None and all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
        # As they were last described, and where they were then.
        self._last: tuple[_native.Buffers, list[tuple[Any, ...]]] | None = None

    def __call__(self) -> _native.Buffers:
        if not self._of_torch:
            return self._described()
        # An export by torch takes thirty times as long as the look at a tensor which tells that there is no need for it.
        if self._last is not None and self._last[1] == self._places():
            return self._last[0]
        described = self._described()
        self._last = described, self._places()
        return described

    def _described(self) -> _native.Buffers:
        described = _native.Buffers(self._tensors)
        for name, tensor in self._tensors.items():
            found = _unfit(tensor)
            if found is not None:
                raise MismatchError(
                    f"the tensor for column {name}: expected a tensor that may be written, found {found}"
                )
        return described

    def _places(self) -> list[tuple[Any, ...]]:
        """All of what a description holds, and the size of the memory."""
        tensors = self._tensors.values()
        return [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.untyped_storage().nbytes()) for t in tensors]


def _unfit(tensor: Any) -> str | None:
    """The state of a tensor of torch that a copy into its memory would not fill, and that DLPack does not tell of."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return None
    if tensor.is_neg():
        return "one that shows what is in memory negated; give a tensor of its own, such as tensor.resolve_neg()"
    held = tensor.untyped_storage().nbytes()
    # Row-major, as is known here.
    used = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    if tensor.numel() and held < used:
        return f"one whose storage has {held} bytes where its values take {used}"
    return None
