"""File systems of the user's, objects of fsspec or pyarrow, as stores that are read like any other."""

from __future__ import annotations

import abc
import contextlib
import functools
import json
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TypeAlias

from bowstring import _native
from bowstring.errors import ConfigError, NotFoundError
from bowstring.options import TABLE, dumped

__all__ = ["addresses", "through"]

Version: TypeAlias = "tuple[int, int | None, str | None]"
"""Size, nanoseconds of the last modification, and a tag that no two versions have."""

# What fsspec's file systems call a tag of a version, and the time of its last modification.
_TAGS = ("ETag", "etag", "generation", "VersionId", "md5Hash", "content_md5", "Content-MD5", "checksum")
_TIMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "modified")
_WANTED = ("ls", "info", "cat_file")
# What patterns are made of.
_MAGIC = re.compile(r"[*?\[{]")
# Options of bowstring's stores and cache.
_ELSEWHERE = (
    "storage_options",
    "credential_provider",
    "mounts",
    "cache",
    "cache_bytes",
    "cache_peers",
    "cache_peer_options",
)
# Synchronous file systems of fsspec that take several calls at once. Others may share a connection or an open file among calls.
_AT_ONCE = tuple(f"fsspec.implementations.{name}" for name in ("arrow", "local", "memory"))
# Open files of pyarrow that are kept: opening one costs a request.
_KEPT = 32


def addresses(
    filesystem: Any, urls: Sequence[str], timeout: float | None = None, *, patterns: bool = False
) -> tuple[list[str], _native.OwnStore | None]:
    """The addresses at which ``urls``, with or without a scheme, are read through ``filesystem``, and its store.

    They are valid in this process, for as long as the store is kept. Files of this machine are read without the object.

    :param timeout: seconds that a call may take; by default the loaders'.
    :param patterns: a path at which there is nothing may be a pattern.
    :raises ConfigError: if it is no file system.
    """
    paths = [_path(filesystem, url) for url in urls]
    found, above = _unwrapped(filesystem)
    if _is_local(found):
        return [f"{above}{path.lstrip('/') if above else path}" for path in paths], None
    root = above or _root(paths[0])
    if not above and any(_root(path) != root for path in paths):
        raise ConfigError(f"{paths[0]} and {paths[-1]} are not below one root of the file system", option="url")
    _check_current(found)
    files = _files(found, root)
    if files is None:
        kind = f"{type(filesystem).__module__}.{type(filesystem).__qualname__}"
        raise ConfigError(
            f"option filesystem: a {kind} is no file system; give one of fsspec, of pyarrow.fs, or an object with "
            f"{', '.join(_WANTED)}",
            option="filesystem",
        )
    limit = _timeout() if timeout is None else timeout
    store = _native.OwnStore(files, type(found).__name__, limit)
    below = [path if above else path[len(root) :] for path in paths]
    if not patterns:
        return [store.url(path) for path in below], store
    return [_pattern(store, root, path, limit) or store.url(path) for path in below], store


def _pattern(store: _native.OwnStore, root: str, path: str, timeout: float) -> str | None:
    """The address of what the pattern ``path`` names; ``None`` if it is none, or the name of something that is there."""
    first = _MAGIC.search(path)
    # In an http URL a question mark begins a query.
    if first is None or (root.startswith(("http://", "https://")) and "?" in path):
        return None
    # Without the environment's options, which have no effect on it.
    files = _native.FileSystem(dumped({"urls": [], "timeout": timeout}))
    try:
        files.entry(store.url(path))
    except NotFoundError:
        fixed, slash, _ = path[: first.start()].rpartition("/")
        # Nothing of a path is encoded.
        rest = path[len(fixed) + len(slash) :].replace("%", "%25")
        return f"{store.url(fixed).rstrip('/')}/{rest}"
    return None


def through(
    filesystem: Any, urls: Sequence[str], given: Mapping[str, Any]
) -> tuple[list[str], _native.OwnStore | None]:
    """As :func:`addresses`, for a loader with the options ``given``.

    :raises ConfigError: for options that have no meaning there.
    """
    for url in urls:
        if url.startswith("grpc"):
            raise ConfigError(
                f"{url} is a server's, which reads its own stores: leave filesystem out", option="filesystem"
            )
    for name in _ELSEWHERE:
        if given.get(name) is not None:
            raise ConfigError(
                f"option {name}: it has no effect on a filesystem of your own, which has its own options and caches; leave it out",
                option=name,
            )
    return addresses(filesystem, urls, given.get("timeout"), patterns=True)


def _is_local(filesystem: Any) -> bool:
    kind = type(filesystem)
    # By name, since neither library may be installed; a class of the user's of that name may do anything.
    known = kind.__name__ in ("LocalFileSystem", "LocalFileSystemWithDefaultSettings")
    return known and kind.__module__.partition(".")[0] in ("fsspec", "pyarrow")


def _path(filesystem: Any, url: str) -> str:
    """The path that the file system has for ``url``, as Petastorm and fsspec find it: without decoding anything."""
    scheme, mark, rest = url.partition("://")
    strip = getattr(filesystem, "_strip_protocol", None)
    if not mark or (strip is not None and scheme in _protocols(filesystem)):
        path = url
    else:
        path = f"/{rest.partition('/')[2]}" if scheme in ("file", "hdfs", "viewfs") else rest
    path = str(strip(path)) if strip is not None else path
    # A directory's own names begin without a slash.
    return path.lstrip("/") if type(filesystem).__name__ == "DirFileSystem" else path


def _protocols(filesystem: Any) -> Sequence[str]:
    protocol = getattr(filesystem, "protocol", ())
    return (protocol,) if isinstance(protocol, str) else protocol


def _root(path: str) -> str:
    """The part of a path that is no name of a file or directory: a slash, or the beginning of an address."""
    scheme, mark, rest = path.partition("://")
    if mark:
        return f"{scheme}://{rest.partition('/')[0]}/"
    return "/" if path.startswith("/") else ""


def _unwrapped(filesystem: Any) -> tuple[Any, str]:
    """The file system behind pyarrow's wrappers, and the directory of it that they lead to, with a slash at its end."""
    arrow = sys.modules.get("pyarrow.fs")
    above = ""
    while arrow is not None and type(filesystem) is arrow.SubTreeFileSystem:
        above = f"{filesystem.base_path.rstrip('/')}/{above}"
        filesystem = filesystem.base_fs
    # Its own infos say more than pyarrow keeps of them.
    if arrow is not None and type(filesystem) is arrow.PyFileSystem and type(filesystem.handler) is arrow.FSSpecHandler:
        filesystem = filesystem.handler.fs
    return filesystem, above


def _check_current(filesystem: Any) -> None:
    """Refuses a cache of fsspec that gives the bytes of an old version of a file with the size and time of a new one."""
    cached = sys.modules.get("fsspec.implementations.cached")
    if cached is None or not isinstance(filesystem, cached.CachingFileSystem):
        return
    # `simplecache` has the option of its base class, and does not look at it.
    if isinstance(filesystem, cached.SimpleCacheFileSystem) or not filesystem.check_files:
        raise ConfigError(
            f"option filesystem: {type(filesystem).__name__} keeps files that have changed in their store; give the file system "
            "that it caches with the loader's own cache=, or a filecache with check_files=True",
            option="filesystem",
        )


def _files(filesystem: Any, root: str) -> _Files | None:
    arrow = sys.modules.get("pyarrow.fs")
    if arrow is not None and isinstance(filesystem, arrow.FileSystem):
        return _Arrow(filesystem, root, arrow)
    if all(callable(getattr(filesystem, name, None)) for name in _WANTED):
        return _Fsspec(filesystem, root)
    return None


def _timeout() -> float:
    text = os.environ.get("BOWSTRING_TIMEOUT")
    if text is None:
        return float(next(entry["default"] for entry in TABLE if entry["name"] == "timeout"))
    return float(json.loads(_native.option_from_text("timeout", text, "BOWSTRING_TIMEOUT: ")))


class _Files(abc.ABC):
    """What Rust asks a file system for. Paths are those below ``root``, without slashes before and behind."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._fs = filesystem
        self._root = root
        self._start = root if "://" in root else root.strip("/")

    def _whole(self, path: str) -> str:
        return f"{self._root}{path}" if path else self._root.rstrip("/") or self._root

    def _name(self, whole: str) -> str:
        """The path of a file that is listed as ``whole``, with a slash before it or without."""
        name = whole if "://" in self._root else whole.strip("/")
        return name.removeprefix(self._start).strip("/")

    @abc.abstractmethod
    def list(self, directory: str) -> list[tuple[str, Version | None]]:
        """Files and directories right in ``directory``, directories without a version."""

    @abc.abstractmethod
    def look(self, path: str) -> Version:
        """The file at ``path`` as it is now."""

    @abc.abstractmethod
    def read(self, path: str, start: int, end: int, version: str | None) -> bytes:
        """Bytes of the file at ``path``."""


class _Fsspec(_Files):
    """A file system of fsspec, or an object like one."""

    def __init__(self, filesystem: Any, root: str) -> None:
        super().__init__(filesystem, root)
        self._turn = contextlib.nullcontext() if _takes_calls_at_once(filesystem) else _turn(filesystem)

    def list(self, directory: str) -> list[tuple[str, Version | None]]:
        whole = self._whole(directory)
        with self._turn:
            self._forget(directory)
            found: list[tuple[str, Version | None]] = []
            for listed in self._fs.ls(whole, detail=True):
                name = listed["name"]
                # A link says of itself neither where it leads nor how long that is.
                info = self._fs.info(name) if listed["type"] == "link" else listed
                if info["type"] in ("file", "directory"):
                    found.append((self._name(name), _version(info) if info["type"] == "file" else None))
            return found

    def look(self, path: str) -> Version:
        whole = self._whole(path)
        with self._turn:
            self._forget(path)
            info = self._fs.info(whole)
            if info["type"] == "directory":
                raise IsADirectoryError(whole)
            size, modified, tag = _version(info)
            if modified is None and tag is None:
                modified, tag = _when(self._modified(whole, info))
            return size, modified, tag

    def _modified(self, whole: str, info: Mapping[str, Any]) -> Any:
        try:
            return self._fs.modified(whole)
        except (AttributeError, NotImplementedError):
            return info.get("created")

    def _forget(self, path: str) -> None:
        """Drops what it has listed before, which may be long past."""
        forget: Callable[[str], None] | None = getattr(self._fs, "invalidate_cache", None)
        if forget is None:
            return
        forget(self._whole(path))
        # Some, such as adlfs, answer from the list of the directory above, and drop no other list than the one that is named.
        above, lists = self._whole(path.rpartition("/")[0]), getattr(self._fs, "dircache", None)
        if path and (lists is None or above in lists):
            # Some have no name for what is above a repository or a bucket, and no list of it.
            with contextlib.suppress(Exception):
                forget(above)

    def read(self, path: str, start: int, end: int, version: str | None) -> bytes:
        with self._turn:
            content: bytes = self._fs.cat_file(self._whole(path), start=start, end=end)
            return content


def _takes_calls_at_once(filesystem: Any) -> bool:
    spec = sys.modules.get("fsspec.spec")
    if spec is None or not isinstance(filesystem, spec.AbstractFileSystem):
        # An object of the user's own: it is documented to be called several times at once.
        return True
    kind = type(filesystem)
    inner = {"DirFileSystem": "fs", "AsyncFileSystemWrapper": "sync_fs"}.get(kind.__name__)
    if inner is not None:
        return _takes_calls_at_once(getattr(filesystem, inner))
    # Of the class: file systems that cache another one answer with what that has.
    is_async = bool(getattr(kind, "async_impl", False)) and kind.__name__ != "ReferenceFileSystem"
    return is_async or kind.__module__ in _AT_ONCE


_turns: dict[int, threading.Lock] = {}


def _turn(filesystem: Any) -> threading.Lock:
    """The lock of a file system, whoever reads through it."""
    number = id(filesystem)
    if number not in _turns:
        weakref.finalize(filesystem, _turns.pop, number, None)
    return _turns.setdefault(number, threading.Lock())


# A lock that another thread holds stays locked in a forked child.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turns.clear)


class _Arrow(_Files):
    """A file system of pyarrow."""

    def __init__(self, filesystem: Any, root: str, arrow: Any) -> None:
        super().__init__(filesystem, root)
        self._arrow = arrow
        # By version: a file that was opened before it was replaced is not the one of later readers.
        self._opened = functools.lru_cache(_KEPT)(lambda whole, version: _Open(filesystem.open_input_file(whole)))

    def list(self, directory: str) -> list[tuple[str, Version | None]]:
        kinds = self._arrow.FileType
        selector = self._arrow.FileSelector(self._whole(directory))
        return [
            (self._name(info.path), _of_info(info) if info.type == kinds.File else None)
            for info in self._fs.get_file_info(selector)
            if info.type in (kinds.File, kinds.Directory)
        ]

    def look(self, path: str) -> Version:
        info = self._fs.get_file_info(self._whole(path))
        if info.type != self._arrow.FileType.File:
            raise FileNotFoundError(info.path)
        return _of_info(info)

    def read(self, path: str, start: int, end: int, version: str | None) -> bytes:
        if version is None:
            with self._fs.open_input_file(self._whole(path)) as file:
                content: bytes = file.read_at(end - start, start)
                return content
        try:
            kept = self._opened(self._whole(path), version)
            content = kept.file.read_at(end - start, start)
        except BaseException:
            # It may be the connection that it was opened with.
            self._opened.cache_clear()
            raise
        return content


class _Open:
    """An open file, which is closed when it is neither kept nor read any more."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __del__(self) -> None:
        self.file.close()


def _of_info(info: Any) -> Version:
    return _size(info.size, info.path), info.mtime_ns, None


def _version(info: Mapping[str, Any]) -> Version:
    """The version that an info of fsspec tells."""
    size = _size(info.get("size"), info["name"])
    tag = next((str(info[name]) for name in _TAGS if info.get(name)), None)
    modified, instead = _when(next((info[name] for name in _TIMES if info.get(name)), None))
    return size, modified, tag or instead


def _size(size: Any, name: str) -> int:
    if not isinstance(size, int):
        raise ValueError(f"the file system does not tell the size of {name}, so that parts of it cannot be read")
    return size


def _when(time: Any) -> tuple[int | None, str | None]:
    """Nanoseconds since 1970; or if it has another form, the time as a tag."""
    if time is None:
        return None, None
    if isinstance(time, datetime):
        time = (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()
    # Some count milliseconds. It need only be told apart from others.
    if isinstance(time, (int, float)) and 0 < time < 1 << 33:
        return round(time * 1_000_000_000), None
    return None, str(time)
