"""The files at a path as a loader sees them: pyarrow, by its own rules, passes over data, and takes rows twice."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from bowstring.paths import is_hidden

__all__ = ["Listing", "listed", "opened", "stored", "walked"]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_FOLDER = "_$folder$"  # ends the names by which Hadoop's older stores mark directories


@dataclass(frozen=True)
class Listing:
    """Files of a dataset."""

    system: Any
    """Their file system, pyarrow's."""
    base: str
    """The directory below which directories are keys and values."""
    files: list[str]
    """Their paths, sorted."""
    keys: dict[str, set[str]]
    """Texts of each key's values, without null."""
    is_plain: bool
    """False if a loader refuses some of them, or what is beside them, or has to look at it."""


def opened(place: str) -> tuple[Any, str]:
    """The file system of a path or a store's URL, and the path there."""
    from pyarrow import fs  # takes long, and writers do not need it

    return fs.FileSystem.from_uri(place) if "://" in place else (fs.LocalFileSystem(), place)


def listed(place: str) -> Listing:
    """The files at a path or a store's URL.

    :raises FileNotFoundError: if nothing is there.
    """
    from pyarrow import fs

    system, base = opened(place)
    kind = system.get_file_info(base).type
    if kind == fs.FileType.NotFound:
        raise FileNotFoundError(place)
    if kind == fs.FileType.File:
        # Directories above a file that is named are no columns of it.
        return Listing(system, base.rpartition("/")[0], [base], {}, True)
    is_local = isinstance(system, fs.LocalFileSystem)
    found = walked(base, is_hidden) if is_local else stored(system, base)
    start = len(base.rstrip("/")) + 1
    seen = [path for path in found if not any(map(is_hidden, path[start:].split("/")))]
    files = sorted(filter(_is_data, seen))
    keys: dict[str, set[str]] = {}
    once = True
    for directory in {path[start:].rpartition("/")[0] for path in files}:
        pairs = list(_pairs(directory))
        once = once and len(dict(pairs)) == len(pairs)
        for key, value in pairs:
            keys.setdefault(key, set()).update([] if value == _NULL else [unquote(value)])
    plain = bool(files) and once and len(files) == len(seen) and not (is_local and _is_odd(files))
    return Listing(system, base, files, keys, plain)


def stored(system: Any, base: str) -> Iterator[str]:
    """All files below a directory of a store."""
    from pyarrow import fs

    found = system.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
    return (info.path for info in found if info.type == fs.FileType.File)


def walked(base: str, leaves_out: Callable[[str], bool] = lambda name: False) -> Iterator[str]:
    """All that is no directory below one of this machine, without directories that have names to leave out.

    pyarrow says nothing of links to nowhere, and does not end where two links lead back. A link to a directory that it is in is not
    followed but is itself one of the paths, which no loader reads.
    """
    around = {base: frozenset([os.path.realpath(base)])}
    for directory, below, names in os.walk(base, onerror=_failed, followlinks=True):
        yield from (os.path.join(directory, name) for name in names)
        above = around.pop(directory)
        followed = []
        for name in below:
            path = os.path.join(directory, name)
            if leaves_out(name):
                continue
            place = os.path.realpath(path)
            if place in above:
                yield path
            else:
                followed.append(name)
                around[path] = above | {place}
        below[:] = followed


def _failed(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a directory that is gone has no rows
        raise error


def _is_data(path: str) -> bool:
    name = path.rpartition("/")[2]
    _, dot, ending = name.rpartition(".")
    # What follows a number sign may be the mark of a file that is being written.
    return (not dot or ending.lower() in ("parquet", "parq", "pq")) and not name.endswith(_FOLDER) and "#" not in name


def _pairs(directory: str) -> Iterator[tuple[str, str]]:
    for part in directory.split("/"):
        key, equals, value = part.partition("=")
        if key and equals:
            yield unquote(key), value


def _is_odd(files: list[str]) -> bool:
    """True if two of ``files`` are one, as links make them, or one is no file."""
    known = set()
    for file in files:
        try:
            said = os.stat(file)
        except OSError:  # a link to nowhere, or in a circle
            return True
        if not stat.S_ISREG(said.st_mode):
            return True
        known.add((said.st_dev, said.st_ino))
    return len(known) < len(files)
