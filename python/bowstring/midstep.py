"""Whether Lightning saves a checkpoint in the middle of a training step, as it does on an exception.

Its own count of batches then goes back to before the step, and the positions of loaders have to.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["in_midstep"]

# Modes of several loaders in which each gives a batch to every step.
_EACH = ("max_size_cycle", "min_size")
# Most frames from a loader's `state_dict` to Lightning's loop.
_DEPTH = 6


def in_midstep() -> bool:
    """True if the caller's caller works for such a checkpoint, of loaders that all gave a batch to the step."""
    modules = (sys.modules.get(f"{name}.loops.fit_loop") for name in ("lightning.pytorch", "pytorch_lightning"))
    kinds = tuple(kind for module in modules if (kind := getattr(module, "_FitLoop", None)) is not None)
    frame = sys._getframe() if kinds else None
    for _ in range(_DEPTH):
        frame = None if frame is None else frame.f_back
        if frame is None:
            return False
        loop = frame.f_locals.get("self") if frame.f_code.co_name == "on_save_checkpoint" else None
        if isinstance(loop, kinds):
            loaders: Any = getattr(loop, "_combined_loader", None)
            each = loaders is not None and (len(loaders.flattened) == 1 or loaders._mode in _EACH)
            batches = loop.epoch_loop.batch_progress.current
            return each and bool(batches.ready > batches.processed)
    return False
