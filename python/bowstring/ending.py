"""The end of the interpreter waits for threads that are in the library, or called from it."""

from __future__ import annotations

import atexit
import contextlib

from bowstring import _native

__all__: list[str] = []

# Tenths of a second that threads on their way into the interpreter may hold up its end.
_LAST = 100


@atexit.register
def _wait() -> None:
    for _ in range(_LAST):
        # Ctrl-C ends the process, which this wait is a part of.
        with contextlib.suppress(KeyboardInterrupt):
            if _native.calls_done(0.1):
                return
