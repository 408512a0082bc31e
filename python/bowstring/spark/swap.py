"""Replaces a directory by another: in one step if the system can exchange two names, else in two that can be undone.

Between those two renames the old directory is set aside, under the name :data:`ASIDE` in a hidden directory. A write that finds it
there, and nothing in its place, puts it back: :func:`restored`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path

__all__ = ["ASIDE", "replaced", "restored"]

ASIDE = "replaced"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# Errors of a kernel or a file system that cannot exchange names.
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


def _exchanged(one: Path, other: Path) -> bool:
    """Exchanges two names in one step; ``False`` if that is impossible."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False  # not Linux, or a C library without it
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def replaced(new: Path, old: Path, hidden: Path) -> None:
    """Puts ``new`` in the place of ``old``, which goes to ``hidden``. If it fails, ``old`` stays where it was.

    :raises OSError: from the renames.
    """
    if _exchanged(new, old):
        return
    os.rename(old, hidden / ASIDE)
    try:
        os.rename(new, old)
    except BaseException:
        restored(old, hidden)
        raise


def restored(path: Path, hidden: Path) -> None:
    """Puts back the directory set aside in ``hidden`` if nothing is in its place; else removes it."""
    aside = hidden / ASIDE
    if not aside.exists():
        return
    if path.exists():
        # It was replaced. If kept, it would reappear once the new one is deleted.
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(aside, path)
