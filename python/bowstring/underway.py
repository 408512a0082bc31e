"""A pass that Accelerate tracks like those of its own loaders: it queries the loader of the current loop.

Accelerate ends gradient accumulation with an epoch, and cuts what ``gather_for_metrics`` gathers of a last step, by two attributes
of that loader: ``end_of_dataloader`` and ``remainder``. This module does not import it: a program with an
``Accelerator`` has done so.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bowstring.torch import DataLoader

__all__ = ["Underway", "watched"]


def watched() -> bool:
    """True if Accelerate is imported."""
    return "accelerate.state" in sys.modules


def _state() -> Any:
    """Accelerate's state of the running loops, if an ``Accelerator`` was made."""
    kind = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    return kind() if kind is not None and kind._shared_state else None


class Underway:
    """A pass of ``loader``, from its first step to its end or to the loop that leaves it."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def begin(self) -> None:
        """Notifies Accelerate that the current loop is over this pass, unless it was."""
        state = _state()
        if state is None or self._loader._underway is self:
            return
        active = state.active_dataloader
        data = getattr(active, "dataset", None)
        # By identity: a dataset may be an array, whose comparison is one too.
        around = any(one is self._loader for one in (data, getattr(data, "_loader", None)))
        if active is not self._loader and around:
            # One of Accelerate's own is around this loader, and tells of it.
            return
        # A pass that was left is over.
        state._remove_dataloader(self._loader)
        state._add_dataloader(self._loader)
        self._loader._underway = self

    def end(self) -> None:
        """Notifies Accelerate that the loop is over, if it was told of it."""
        if self._loader._underway is self:
            self._loader._underway = None
            state = _state()
            if state is not None:
                state._remove_dataloader(self._loader)
