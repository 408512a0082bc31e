"""Directories of spilled rows, and their removal once the task that made them is dead.

```text
  spill/bowstring-spill-x1y2/            rows of one task, which a server of its own keeps there
    _spilled                             the host that made it
    .bowstring/_lock                     held by that server
```
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

from bowstring.errors import ConfigError

__all__ = ["made"]

_PREFIX = "bowstring-spill-"
_MARK = "_spilled"
# Seconds that a server may take to lock a directory that was made for it.
_YOUNG = 600.0


def made(spill: str) -> str:
    """A new directory below ``spill``. Those of tasks that were killed are removed.

    :raises ConfigError: there is no such directory on this host.
    """
    try:
        for left in Path(spill).glob(f"{_PREFIX}*"):
            if _is_dead(left):
                shutil.rmtree(left, ignore_errors=True)
        new = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=spill))
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        problem = (
            f"{spill} is not a directory that {socket.gethostname()} can write to; make it on all executors ({error})"
        )
        raise ConfigError(f"option spill: {problem}", option="spill") from error
    (new / _MARK).write_text(socket.gethostname())
    return str(new)


def _is_dead(left: Path) -> bool:
    """True if the process that made ``left`` on this host is gone: the lock of its server is free."""
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:
        return False  # not Unix
    try:
        if (left / _MARK).read_text() != socket.gethostname() or time.time() - left.stat().st_mtime < _YOUNG:
            return False
        at = os.open(left / ".bowstring" / "_lock", os.O_RDWR)
    except OSError:
        return False  # of something else, or removed meanwhile
    try:
        flock(at, LOCK_EX | LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(at)
    return True
