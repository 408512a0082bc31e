"""The end of the interpreter waits for threads that are in the library, or called from it."""

from __future__ import annotations

import atexit
import contextlib

from bowstring import _native

__all__: list[str] = []

# Tenths of a second that threads on their way into the interpreter may hold up its end.
_LAST = 100


class _End:
    """Waits after all functions of ``atexit``, which may end threads themselves: ``atexit`` drops them when the last one has run.

    To be called last is not enough: functions that were registered before the library was imported come later.
    """

    def __init__(self) -> None:
        self.begun = False

    def __call__(self) -> None:
        self.begun = True

    def __del__(self) -> None:
        # Children of multiprocessing drop the functions of their parent uncalled.
        for _ in range(_LAST if self.begun else 0):
            # Ctrl-C ends the process, which this wait is a part of.
            with contextlib.suppress(KeyboardInterrupt):
                if _native.calls_done(0.1):
                    return


atexit.register(_End())
