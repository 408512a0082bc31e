"""The stores that loaders read, as a file system of fsspec: for pandas, pyarrow, ``torch.distributed.checkpoint`` and others.

>>> fs = BowstringFileSystem(cache="/nvme/bowstring")  # doctest: +SKIP
>>> pandas.read_parquet("s3://bucket/labels.parquet", filesystem=fs)  # doctest: +SKIP

Paths are ``s3://bucket/key`` with the key as it is, or paths of this machine: ``%`` and ``*`` are characters of a name, since
libraries join names and take them apart. :meth:`BowstringFileSystem.address` is the same for a loader or :func:`bowstring.open`,
which decode ``%41``. Where a library wants a URL of its own for each file system, put ``bowstring://`` before:
``bowstring://s3://bucket/x``. What is saved is there as a whole when its file is closed; an exception inside ``with fs.open(...)``
or ``with fsspec.open(...)`` gives it up.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any, Literal, NoReturn
from urllib.parse import unquote

import fsspec
from fsspec.core import OpenFile
from fsspec.spec import AbstractFileSystem

from bowstring.credentials import CredentialProvider
from bowstring.errors import ConfigError, NotFoundError, UnsupportedError
from bowstring.file import File, FileWriter, Upload, _begun, files

__all__ = ["BowstringFileSystem"]

_PROTOCOL = "bowstring"
# Options of fsspec itself that mean nothing here.
_FSSPEC = ("asynchronous", "batch_size", "listings_expiry_time", "loop", "max_paths", "use_listings_cache")
# An end of a range behind that of any file.
_END = (1 << 64) - 1
# Their paths are addresses here too: with a query, a revision such as ``refs%2Fconvert%2Fparquet``, or a path of this machine.
_ENCODED = ("http", "https", "hf", "file")
# What an address has encoded, if it is of a key.
_MEANT = re.compile(r"[\x00-\x20\x7f%?#*\[\]{}]")
_QUERY = re.compile("[?#]")


def _is_local(path: str) -> bool:
    return "://" not in path


def _is_encoded(path: str) -> bool:
    return _is_local(path) or path.partition("://")[0] in _ENCODED


def _address(path: str) -> str:
    """The address of a path without ``bowstring://``."""
    if _is_encoded(path):
        return path
    scheme, _, rest = path.partition("://")
    return f"{scheme}://{_MEANT.sub(lambda found: f'%{ord(found[0]):02X}', rest)}"


def _path(address: str) -> str:
    """The path of an address."""
    return address if _is_encoded(address) else unquote(address)


def _bare(address: str) -> str:
    """``address`` without slashes at its end, but those of a scheme alone: ``bow://`` is the directory above all mounts."""
    bare = address.rstrip("/")
    return f"{bare}//" if bare.endswith(":") and "://" in address else bare


class BowstringFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of stores, read and saved through a cache if there is one.

    :param cache: the directory of a cache, or ``memory``; as for a :class:`bowstring.Loader`.
    :param cache_bytes: bytes that the cache may take.
    :param cache_peers: hosts whose caches are one with this one.
    :param cache_peer_options: credentials for these hosts.
    :param storage_options: options of the stores.
    :param credential_provider: a callable that returns credentials.
    :param mounts: the TOML file that says what ``bow://`` addresses lead to; by default ``BOWSTRING_MOUNTS``.
    :param timeout: the longest wait for bytes, in seconds (600).
    :param upload: when what is saved has to be in its store: ``wait`` or ``background``, as for :func:`bowstring.open`.
    """

    protocol = _PROTOCOL
    root_marker = ""

    def __init__(
        self,
        *,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        cache_peers: str | Sequence[str] | None = None,
        cache_peer_options: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        credential_provider: CredentialProvider | None = None,
        mounts: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        upload: Upload = "wait",
        **fsspec_options: Any,
    ) -> None:
        unknown = sorted(set(fsspec_options) - set(_FSSPEC))
        if unknown:
            raise ConfigError(
                f"{unknown[0]} is no option of bowstring.fs; options of a store go into storage_options",
                option=unknown[0],
            )
        super().__init__(**fsspec_options)
        given = {
            "cache": cache,
            "cache_bytes": cache_bytes,
            "cache_peers": cache_peers,
            "cache_peer_options": cache_peer_options,
            "storage_options": storage_options,
            "mounts": mounts,
            "timeout": timeout,
        }
        self._files = files(given, credential_provider)
        self._upload = upload

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fspath(path)
        for start in (f"{_PROTOCOL}://", f"{_PROTOCOL}::"):
            text = text.removeprefix(start)
        # Listings have paths. Others, such as those with a query, are refused where they are read.
        if text.startswith("file:///") and not _QUERY.search(text):
            with contextlib.suppress(UnicodeDecodeError):
                text = unquote(text.removeprefix("file://"), errors="strict")
        if _is_local(text):
            return os.path.abspath(os.path.expanduser(text)) if text else text
        return _bare(text)

    @classmethod
    def address(cls, path: str | os.PathLike[str]) -> str:
        """The address of ``path``, for a loader, :func:`bowstring.open` and the command line: with characters encoded that mean
        something there."""
        return _address(str(cls._strip_protocol(path)))

    @classmethod
    def _parent(cls, path: Any) -> str:
        text = cls._strip_protocol(path)
        if _is_local(text):
            return str(os.path.dirname(text))
        scheme, _, rest = text.partition("://")
        above = rest.rpartition("/")[0]
        # A bucket is in no directory, and all mounts are in one.
        return f"{scheme}://{above if scheme == 'bow' else above or rest}"

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The entries of the directory ``path``; for a file, the file itself."""
        found = [_info(*one) for one in self._files.list(self.address(path))]
        return found if detail else [one["name"] for one in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and type of what is at ``path``; of a file also its time and tag."""
        return _info(*self._files.entry(self.address(path)))

    def exists(self, path: str, **_: Any) -> bool:
        """True if ``path`` exists. A store that fails is an error."""
        return self._type(path) is not None

    def isdir(self, path: str) -> bool:
        """True if ``path`` is a directory. A store that fails is an error."""
        return self._type(path) == "directory"

    def isfile(self, path: str) -> bool:
        """True if ``path`` is a file. A store that fails is an error."""
        return self._type(path) == "file"

    def _type(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except NotFoundError:
            return None

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: Literal["omit", "raise"] | Callable[[OSError], object] = "omit",
        **options: Any,
    ) -> Iterator[Any]:
        """All directories below ``path``, like :func:`os.walk`. A store that fails is an error; a missing directory is empty.

        On this machine and in its mounts, links to directories are followed, but for one that leads back to a directory around it.
        """
        base = self._strip_protocol(path)
        above, real = options.get("_above", ()), self._files.real_path(self.address(base))
        if real is not None:
            if real in above:
                return
            # The base class hands options down to the directories below.
            options["_above"] = (*above, real)
        told = _unless_missing if on_error == "omit" else on_error
        yield from super().walk(base, maxdepth=maxdepth, topdown=topdown, on_error=told, **options)

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        """All files below ``path``, or ``path`` itself if it is one."""
        base = self._strip_protocol(path)
        if _is_local(base) or maxdepth is not None:
            return super().find(base, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        # One list of everything costs a store least.
        found = {info["name"]: info for info in (_info(*one) for one in self._files.find(_address(base)))}
        if not withdirs:
            found = {name: info for name, info in found.items() if info["type"] == "file"}
        else:
            for name in list(found):
                parent = self._parent(name)
                while len(parent) >= len(base) and parent not in found:
                    found[parent] = _info(parent, None, None, None)
                    parent = self._parent(parent)
        if not found and self.isfile(base):
            found[base] = self.info(base)
        return {name: found[name] for name in sorted(found)} if detail else sorted(found)

    def du(
        self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **options: Any
    ) -> Any:
        """Bytes of the files below ``path``, by name unless ``total``; directories have none of their own."""
        sizes = super().du(path, total=False, maxdepth=maxdepth, withdirs=withdirs, **options)
        return sum(size or 0 for size in sizes.values()) if total else sizes

    def _open(
        self,
        path: str,
        mode: str = "rb",
        *_: Any,
        autocommit: bool = True,
        upload: Upload | None = None,
        **__: Any,
    ) -> File | FileWriter:
        url = self.address(path)
        if mode == "rb":
            return File(self._files.open(url))
        return _Writer(_begun(self._files, url, mode, upload or self._upload), autocommit)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: Any = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        """Opens a file, as fsspec does; text that is not written to its end is given up, like bytes."""
        if compression is not None and "r" not in mode:
            raise UnsupportedError("compression of what is saved is not supported; compress the bytes and save these")
        if "w" in mode and "b" not in mode:
            told = {name: options.pop(name) for name in ("encoding", "errors", "newline") if name in options}
            file = super().open(path, mode.replace("t", "") + "b", block_size, cache_options, **options)
            return _TextWriter(file, **told)
        return super().open(path, mode, block_size, cache_options, compression, **options)

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **options: Any) -> None:
        """Copies a file to this machine, where it appears as a whole: what was there stays until then."""
        told = {} if callback is None else {"callback": callback}
        source = self._strip_protocol(rpath)
        target = "" if outfile is not None or hasattr(lpath, "write") else os.fspath(lpath)
        if target and _is_local(source) and os.path.exists(target) and os.path.samefile(source, target):
            raise shutil.SameFileError(f"{source} and {target} are the same file")
        # A link, or a device, is written to.
        if not target or (os.path.lexists(target) and (os.path.islink(target) or not os.path.isfile(target))):
            super().get_file(rpath, lpath, outfile=outfile, **told, **options)
            return
        beside = os.path.join(os.path.dirname(target), f".{uuid.uuid4().hex[:12]}.part")
        try:
            super().get_file(rpath, beside, **told, **options)
            if os.path.isdir(beside):
                os.rename(beside, target)
            else:
                os.replace(beside, target)
        finally:
            if os.path.isfile(beside):
                os.remove(beside)

    def flush(self) -> None:
        """Waits until the stores have all that was saved through the cache: see :func:`bowstring.flush`."""
        self._files.flush()

    def mv(self, path1: str, path2: str, recursive: bool = False, **_: Any) -> None:
        """Gives one file another name in its store, in place of what may be there; a directory only on this machine.

        If ``path2`` is a directory, or ends with a slash, the file goes into it under its own name.
        """
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if recursive and not _is_local(source):
            raise UnsupportedError(f"{source}: stores have no directories to move; move its files one by one")
        if os.fspath(path2).endswith("/") or (source != target and self.isdir(target)):
            target = f"{target.rstrip('/')}/{source.rpartition('/')[2]}"
        self._files.rename(_address(source), _address(target))

    def rm_file(self, path: str) -> None:
        """Removes one file."""
        self._files.remove(self.address(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files; with ``recursive`` also all that is below a directory, and links without what they lead to."""
        if maxdepth is not None:
            raise UnsupportedError("rm with maxdepth is not supported; remove what find(path, maxdepth=..) gives")
        for one in [path] if isinstance(path, (str, os.PathLike)) else path:
            url = self.address(one)
            if recursive:
                self._files.remove_all(url)
            else:
                self._files.remove(url)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a directory and those above it, on this machine; stores need none."""
        url = self._strip_protocol(path)
        if not exist_ok and self.exists(url):
            raise FileExistsError(f"{url} is there already")
        self._files.make_directory(_address(url))

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Makes a directory, on this machine; stores need none."""
        url = self._strip_protocol(path)
        if not create_parents and not self.isdir(self._parent(url)):
            raise FileNotFoundError(f"{self._parent(url)} is not there")
        self.makedirs(url)

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:
        """Makes an empty file; without ``truncate`` only if there is none."""
        if truncate or not self.exists(path):
            self.pipe_file(path, b"")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of ``path`` from ``start`` to ``end``; negative ones count from the end."""
        found = self.cat_ranges([path], [start], [end], on_error="raise")
        return bytes(found[0])

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: int | Sequence[int | None] | None,
        ends: int | Sequence[int | None] | None,
        max_gap: int | None = None,
        on_error: Literal["raise", "return"] = "return",
        **_: Any,
    ) -> list[Any]:
        """The ranges of ``paths``, all at once. With ``on_error="return"`` a failed one is its exception."""
        begin = [starts] * len(paths) if starts is None or isinstance(starts, int) else list(starts)
        finish = [ends] * len(paths) if ends is None or isinstance(ends, int) else list(ends)
        if not len(paths) == len(begin) == len(finish):
            raise ValueError("paths, starts and ends must have one length")
        # Those of one file are of one version.
        wanted: dict[str, list[int]] = {}
        for at, path in enumerate(paths):
            wanted.setdefault(self._strip_protocol(path), []).append(at)
        found: list[Any] = [None] * len(paths)
        asked: list[tuple[str, list[tuple[int, int]]]] = []
        for path, places in list(wanted.items()):
            try:
                asked.append((_address(path), [self._range(path, begin[at], finish[at]) for at in places]))
            except Exception as error:
                if on_error == "raise":
                    raise
                for at in wanted.pop(path):
                    found[at] = error
        for places, parts in zip(wanted.values(), self._files.read(asked), strict=True):
            if isinstance(parts, BaseException):
                if on_error == "raise":
                    raise parts
                for at in places:
                    found[at] = parts
                continue
            for at, part in zip(places, parts, strict=True):
                found[at] = part
        return found

    def _range(self, path: str, start: int | None, end: int | None) -> tuple[int, int]:
        if (start or 0) < 0 or (end or 0) < 0:
            size = int(self.info(path)["size"] or 0)
            start = max(size + start, 0) if start is not None and start < 0 else start
            end = max(size + end, 0) if end is not None and end < 0 else end
        return start or 0, _END if end is None else end

    def modified(self, path: str) -> datetime:
        """Time of the last change."""
        seconds = self.info(path).get("mtime")
        if seconds is None:
            raise UnsupportedError(f"{path}: its store tells no time of the last change")
        return datetime.fromtimestamp(seconds, timezone.utc)

    def ukey(self, path: str) -> str:
        """A text that is another one for another version of the file."""
        info = self.info(path)
        return sha256(repr([info.get(key) for key in ("name", "size", "mtime", "ETag")]).encode()).hexdigest()

    def checksum(self, path: str) -> int:
        """The same as a number."""
        return int(self.ukey(path), 16)

    def stats(self) -> dict[str, Any]:
        """The cache's counters, as in ``loader.stats()["cache"]``."""
        return self._files.stats()


class _Writer(FileWriter):
    """A file that is saved, also by ``fsspec.open(...)``, which closes it after an exception too."""

    def close(self) -> None:
        if not self.closed and _is_left_by_exception():
            self.discard()
        super().close()


def _is_left_by_exception() -> bool:
    """True inside the end of a ``with fsspec.open(...)`` that an exception leaves. Nothing but its frame tells the file of that."""
    frame = None if sys.exc_info()[0] is None else sys._getframe(1)
    while frame is not None:
        if frame.f_code is OpenFile.__exit__.__code__ and any(frame.f_locals.get("args", ())):
            return True
        frame = frame.f_back
    return False


class _TextWriter(io.TextIOWrapper):
    """Text that is saved. The base class would end the file after an exception, too."""

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.buffer.discard()  # type: ignore[attr-defined]

    def __del__(self) -> None:
        # None if it could not be opened. A transaction still commits one that was closed.
        buffer: Any = getattr(self, "buffer", None)
        if buffer is not None and not buffer.closed:
            buffer.discard()


def _info(url: str, size: int | None, modified: int | None, etag: str | None) -> dict[str, Any]:
    info: dict[str, Any] = {
        "name": _bare(_path(url)) or "/",
        "size": size,
        "type": "directory" if size is None else "file",
    }
    if modified is not None:
        info["mtime"] = modified / 1e9
    if etag is not None:
        info["ETag"] = etag
    return info


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, NotFoundError):
        raise error


def _no_copy(_: BowstringFileSystem, path: Any = "", *__: Any, **___: Any) -> NoReturn:
    raise UnsupportedError(
        f"bowstring.fs does not copy inside stores, and is asked to change {path or 'a store'}: use the store's own library"
    )


def _no_rmdir(_: BowstringFileSystem, path: Any = "", *__: Any, **___: Any) -> NoReturn:
    raise UnsupportedError(
        f"bowstring.fs does not remove directories on their own, and is asked to remove {path}: rm(path, recursive=True) removes "
        "one with all that is in it"
    )


for _name, _refused in {"cp_file": _no_copy, "rmdir": _no_rmdir}.items():
    setattr(BowstringFileSystem, _name, _refused)

fsspec.register_implementation(_PROTOCOL, BowstringFileSystem, clobber=True)
