"""A line on standard error that says how far a conversion or a comparison is: where somebody watches, or asks for it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TextIO

__all__ = ["Line", "shown"]

# Work of this time or less has no line.
PATIENCE = 2.0
# Seconds between two lines where none can be written over, as in a log.
PAUSE = 10.0


def amount(size: int) -> str:
    """Bytes with a unit."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def clock(seconds: float) -> str:
    """A time as hours, minutes and seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Line:
    """The line of one piece of work; the library calls it with what is done, some times a second."""

    def __init__(self, what: str, stream: TextIO) -> None:
        self._what = what
        self._stream = stream
        self._over = stream.isatty()
        self._started = time.monotonic()
        self._next = self._started + PATIENCE
        self._drawn = False

    def __call__(self, done: int, size: int, rows: int) -> None:
        """Draws ``done`` of ``size`` bytes and the ``rows`` written; ``size`` is 0 while it is unknown."""
        now = time.monotonic()
        if now < self._next:
            return
        text = self.text(done, size, rows, now - self._started)
        self._write(f"\r{text}\x1b[K" if self._over else f"{text}\n")
        self._drawn = True
        self._next = now if self._over else now + PAUSE

    def text(self, done: int, size: int, rows: int, seconds: float) -> str:
        parts = [f"{self._what}: {clock(seconds)}"]
        if size > 0:
            done = min(done, size)
            parts.append(f"{amount(done)} of {amount(size)} read ({100 * done // size} %)")
            if done > 0:
                parts.append(f"{clock(seconds * (size - done) / done)} left")
        if rows > 0:
            parts.append(f"{rows:,} rows")
        return ", ".join(parts)

    def close(self) -> None:
        """Leaves nothing on a terminal."""
        if self._over and self._drawn:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        # No conversion ends because nobody can read how far it is.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


@contextlib.contextmanager
def shown(what: str, progress: bool | None) -> Iterator[Line | None]:
    """The line of some work while it lasts: on a terminal by default, never with ``False``, always with ``True``."""
    stream = sys.stderr
    # A program without standard streams has None there.
    if stream is None or progress is False or (progress is None and not stream.isatty()):
        yield None
        return
    line = Line(what, stream)
    try:
        yield line
    finally:
        line.close()
