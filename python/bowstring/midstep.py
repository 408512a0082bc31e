"""The position of a loader in a checkpoint that Lightning saves before it has trained on the loader's last batch: on an exception.

Lightning's own count of batches then goes back to before the step, and the positions of loaders have to. A loader that is over
before the longest one of its `CombinedLoader` has to stay over.
"""

from __future__ import annotations

import sys
from typing import Any

from bowstring import _native

__all__ = ["trained_on"]

# Most frames from a loader's `state_dict` to Lightning's loop.
_DEPTH = 6


def trained_on(native: _native.Loader) -> tuple[int, int] | None:
    """The position for the checkpoint that the caller's caller works for, if it is another than that of ``native``."""
    loop = _saving()
    loaders, fetcher = (None, None) if loop is None else (loop._combined_loader, loop._data_fetcher)
    if loop is None or loaders is None or fetcher is None:
        return None
    epoch, step = native.epoch, native.step
    if step > 0:
        # It gave a batch to the last fetch, as every loader does that is not over.
        return (epoch, step - 1) if _untrained(fetcher, loop.epoch_loop.batch_progress.current) else None
    # Over before the longest one, it gives nothing until the epoch ends; from the start of the next epoch it would.
    return (epoch - 1, native.steps) if loaders._mode == "max_size" and epoch > 0 and fetcher.fetched > 0 else None


def _untrained(fetcher: Any, batches: Any) -> bool:
    """True if no step has trained on what was fetched last."""
    if hasattr(fetcher, "iterator_wrapper"):
        # A step that was given the iterator fetches by itself, as often as it likes.
        return bool(min(fetcher.fetched, batches.ready) > batches.processed)
    # A batch is counted as ready only once it is on the device. Between two epochs the fetches are of the former one.
    return bool(fetcher.fetched == batches.processed + 1)


def _saving() -> Any:
    """Lightning's loop, if it saves the positions of its loaders."""
    modules = (sys.modules.get(f"{name}.loops.fit_loop") for name in ("lightning.pytorch", "pytorch_lightning"))
    kinds = tuple(kind for module in modules if (kind := getattr(module, "_FitLoop", None)) is not None)
    frame = sys._getframe(1) if kinds else None
    for _ in range(_DEPTH):
        frame = None if frame is None else frame.f_back
        if frame is None:
            return None
        loop = frame.f_locals.get("self") if frame.f_code.co_name == "on_save_checkpoint" else None
        if isinstance(loop, kinds):
            return loop
    return None
