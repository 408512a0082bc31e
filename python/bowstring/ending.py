"""The end of the interpreter waits for calls of Python code by the library's threads."""

from __future__ import annotations

import atexit
import contextlib
import os

from bowstring import _native

__all__ = ["wait_for_calls"]

# Tenths of a second that calls in progress may hold up the end of the interpreter.
_LAST = 100

_waiting: int | None = None


def wait_for_calls() -> None:
    """Has calls of this process end before the interpreter does: a thread that comes back to it later takes the process down."""
    global _waiting
    if _waiting != os.getpid():
        _waiting = os.getpid()
        atexit.register(_wait)


def _wait() -> None:
    for _ in range(_LAST):
        # Ctrl-C ends the process, which this wait is a part of.
        with contextlib.suppress(KeyboardInterrupt):
            # A forked child has none.
            if _waiting != os.getpid() or _native.calls_done(0.1):
                return
