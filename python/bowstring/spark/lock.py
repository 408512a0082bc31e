"""Only one driver at a time changes a path: a lock (``flock``) on a hidden file beside it, as conversions and servers do.

It is released with the process that holds it. Tasks take none: they write under names of their own.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bowstring.errors import ClosedError, StoreError

__all__ = ["PATIENCE", "held"]

PATIENCE = 60.0
"""Seconds to wait for a holder, who only renames and removes."""
_PAUSE = 0.05
# Errors of a file system without locks.
_CANNOT = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_log = logging.getLogger("bowstring.spark")


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Holds the lock of ``path``. If its parent does not exist, there is nothing to lock.

    :raises ClosedError: another process has held it for the whole wait.
    :raises StoreError: it cannot be made.
    """
    if not path.parent.exists():
        yield
        return
    name = path.parent / f".{path.name}.bowstring.lock"
    try:
        at = _taken(name)
    except OSError as error:
        raise StoreError(f"lock {name}: {error}", file=str(path)) from error
    try:
        yield
    finally:
        if at is not None:
            # Removed before it is released: a waiting process sees that the name refers to another file, and opens that one.
            name.unlink(missing_ok=True)
            os.close(at)


def _taken(name: Path) -> int | None:
    """The locked file; ``None`` if there are no locks."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:
        return None  # not Unix
    deadline = time.monotonic() + PATIENCE
    while True:
        at = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            flock(at, LOCK_EX | LOCK_NB)
            if name.exists() and os.path.samestat(os.fstat(at), os.stat(name)):
                return at
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(at)
                problem = (
                    f"{name} is held by another process, after waiting {PATIENCE:.0f} s: it commits to the same dataset"
                )
                raise ClosedError(problem) from None
            time.sleep(_PAUSE)
        except FileNotFoundError:
            pass  # removed by its last holder just now
        except OSError as error:
            if error.errno not in _CANNOT:
                os.close(at)
                raise
            _log.warning("%s: no locks here (%s); let one job at a time write to this dataset", name, error)
            os.close(at)
            name.unlink(missing_ok=True)
            return None
        os.close(at)
