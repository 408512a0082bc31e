"""One file of a store, as Python knows files, to read or to save: a checkpoint, a table, weights.

>>> with bowstring.open("s3://bucket/model.pt", cache="/nvme/bowstring") as file:  # doctest: +SKIP
...     model.load_state_dict(torch.load(file.local_path(), mmap=True))
>>> with bowstring.open("s3://bucket/model.pt", "wb") as file:  # doctest: +SKIP
...     torch.save(model.state_dict(), file)
"""

from __future__ import annotations

import atexit
import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, overload

from bowstring import _native
from bowstring.credentials import CredentialProvider, provider
from bowstring.errors import UnsupportedError
from bowstring.options import Url, document

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["File", "FileWriter", "Upload", "files", "flush", "open"]

Upload: TypeAlias = Literal["wait", "background"]

# Bytes that a read of no given size returns at most, and a look ahead: there is one for each line of text.
_SOME = 128 << 10
_LOOK = 1 << 10
# Bytes that are handed over for writing at once.
_PART = 4 << 20


def files(given: Mapping[str, Any], credential_provider: CredentialProvider | None) -> _native.FileSystem:
    """The stores that are reached with the options ``given``, and those of the environment."""
    return _native.FileSystem(document((), given), provider(credential_provider))


def _not_copied(file: File | FileWriter) -> UnsupportedError:
    # The end of a copy would end the file.
    return UnsupportedError(
        f"{file.name}: a {type(file).__name__} is neither copied nor sent to another process; open the file again there"
    )


class File(io.BufferedIOBase):
    """A file to read, at the version that was there when it was opened. See :func:`bowstring.open`.

    Its methods are those of files that the builtin ``open(path, "rb")`` returns. A replaced file is a
    :class:`bowstring.SourceChangedError`, never a mixture of two versions. While it waits for a store, other threads run.
    """

    mode = "rb"

    def __init__(self, native: _native.File) -> None:
        self._native: _native.File | None = native
        self.name: str = native.url
        """The address, without credentials."""
        self.size: int = native.size
        """Bytes of the file."""

    def _file(self) -> _native.File:
        if self._native is None:
            raise ValueError("I/O operation on closed file.")
        return self._native

    def readable(self) -> bool:
        """True."""
        self._file()
        return True

    def seekable(self) -> bool:
        """True."""
        self._file()
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """The next ``size`` bytes, or all that are left; fewer only at the end."""
        file = self._file()
        if size is None or size < 0:
            size = max(self.size - file.tell(), 0)
        return file.read(size)

    def read1(self, size: int = -1, /) -> bytes:
        """Some of the next ``size`` bytes: those that come first."""
        return self._file().some(_SOME if size < 0 else size)

    def peek(self, size: int = 0, /) -> bytes:
        """Some of the next bytes, which stay the next ones."""
        file = self._file()
        position = file.tell()
        some = file.some(max(size, _LOOK))
        file.seek(position)
        return some

    def readinto(self, buffer: Buffer, /) -> int:
        """Fills ``buffer``; returns the number of bytes, fewer than its own only at the end."""
        return self._fill(buffer, whole=True)

    def readinto1(self, buffer: Buffer, /) -> int:
        """Puts some of the next bytes into ``buffer``: those that come first."""
        return self._fill(buffer, whole=False)

    def _fill(self, buffer: Buffer, whole: bool) -> int:
        file = self._file()
        with memoryview(buffer) as view:
            if view.nbytes == 0:
                return 0
            with view.cast("B") as target:
                start, filled = file.tell(), 0
                try:
                    while filled < len(target):
                        part = file.some(len(target) - filled)
                        target[filled : filled + len(part)] = part
                        filled += len(part)
                        if not part or not whole:
                            break
                except BaseException:
                    file.seek(start)
                    raise
        return filled

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves to ``offset``, counted from the start, the position or the end; returns the new position."""
        file = self._file()
        if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        base = {os.SEEK_SET: 0, os.SEEK_CUR: file.tell(), os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        file.seek(base + offset)
        return base + offset

    def tell(self) -> int:
        """The position."""
        return self._file().tell()

    def local_path(self) -> str:
        """The path of a file of this machine with these bytes and no others, for programs that open or map files themselves.

        A local file is itself. Of an object in a store it is a copy in the cache, which is fetched first: once for all
        processes of this machine. The copy is not evicted as long as this file is open, and what is mapped by then stays mapped.
        It must not be written to.

        :raises bowstring.ConfigError: without a cache on a disk.
        :raises bowstring.LimitError: if the copy does not fit into the cache.
        """
        return os.fspath(self._file().local_path())

    def fileno(self) -> int:
        """The descriptor, once there is a file of this machine: of a local file, and after :meth:`local_path`."""
        descriptor = self._file().fileno()
        if descriptor is None:
            raise io.UnsupportedOperation(f"{self.name} is no file of this machine; local_path() makes it one")
        return descriptor

    def stats(self) -> dict[str, Any]:
        """The cache's counters, as in ``loader.stats()["cache"]``."""
        return self._file().stats()

    def close(self) -> None:
        """Gives everything back."""
        # A file that could not be opened is closed too.
        native, self._native = getattr(self, "_native", None), None
        if native is not None:
            native.close()
        super().close()

    def __enter__(self) -> File:
        self._file()
        return self

    def __reduce__(self) -> NoReturn:
        raise _not_copied(self)

    def __repr__(self) -> str:
        return f"<bowstring.File {self.name}, {self.size} bytes{', closed' if self.closed else ''}>"


class FileWriter(io.BufferedIOBase):
    """A file to save: written once from start to end, and there as a whole when :meth:`close` returns. See :func:`bowstring.open`.

    Until then, and if it is given up, what was there before is there: after an exception inside ``with``, :meth:`discard`, a crash,
    and if nobody closes it.
    """

    mode = "wb"

    def __init__(self, native: _native.FileWriter, autocommit: bool = True) -> None:
        self._native: _native.FileWriter | None = native
        self._autocommit = autocommit
        self._size = 0
        self.name: str = native.url
        """The address, without credentials."""

    def _file(self) -> _native.FileWriter:
        if self.closed or self._native is None:
            raise ValueError("I/O operation on closed file.")
        return self._native

    def writable(self) -> bool:
        """True."""
        self._file()
        return True

    def write(self, data: Buffer, /) -> int:
        """Writes all of ``data``; returns the number of its bytes. A failure gives the file up."""
        file = self._file()
        with memoryview(data) as view:
            try:
                if isinstance(data, bytes) and len(data) <= _PART:
                    file.write(data)
                elif view.nbytes:
                    whole = view if view.contiguous else memoryview(view.tobytes())
                    with whole.cast("B") as flat:
                        for start in range(0, len(flat), _PART):
                            file.write(bytes(flat[start : start + _PART]))
            except BaseException:
                # A part of the data may be in it.
                self.discard()
                raise
            self._size += view.nbytes
            return view.nbytes

    def tell(self) -> int:
        """The number of bytes that were written."""
        self._file()
        return self._size

    def flush(self) -> None:
        """Does nothing: the file is there when it is closed, and not before."""
        # The base class calls it at the end of the file too.
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def close(self) -> None:
        """Ends the file: it is there. With ``upload="wait"`` the store has it, with ``"background"`` the disk of this machine has.

        :raises bowstring.StoreError: if the store or the disk failed; what was there before is there still.
        """
        if self.closed:
            return
        if self._autocommit:
            self.commit()
        super().close()

    def commit(self) -> None:
        """Ends the file if it was opened with ``autocommit=False``, as transactions of fsspec do: then :meth:`close` does not."""
        # A file that could not be opened is closed too.
        native, self._native = getattr(self, "_native", None), None
        if native is None:
            return
        try:
            native.finish()
        except BaseException:
            native.abort()
            super().close()
            raise

    def discard(self) -> None:
        """Gives the file up: what was there before stays."""
        native, self._native = getattr(self, "_native", None), None
        if native is not None:
            native.abort()
        super().close()

    def __enter__(self) -> FileWriter:
        self._file()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # The base class would close it.
        self.discard()

    def __reduce__(self) -> NoReturn:
        raise _not_copied(self)

    def __repr__(self) -> str:
        return f"<bowstring.FileWriter {self.name}, {self._size} bytes{', closed' if self.closed else ''}>"


_waiting: int | None = None


def _wait_for_uploads() -> None:
    # A forked child has none.
    while _waiting == os.getpid() and not _native.uploads_done(0.1):
        pass


def _begun(native: _native.FileSystem, url: str, mode: str, upload: str) -> _native.FileWriter:
    """What is to be at ``url`` and begins to be saved."""
    global _waiting
    if mode != "wb":
        raise UnsupportedError(
            f"mode {mode!r} of {url} is not supported: a file is read (rb), or written once from start to end (wb)"
        )
    if upload == "background" and _waiting != os.getpid():
        _waiting = os.getpid()
        atexit.register(_wait_for_uploads)
    return native.create(url, upload)


@overload
def open(
    url: Url,
    mode: Literal["rb"] = "rb",
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
) -> File: ...
@overload
def open(
    url: Url,
    mode: Literal["wb"],
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
) -> FileWriter: ...
def open(
    url: Url,
    mode: str = "rb",
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
) -> File | FileWriter:
    """Opens the file at ``url`` for reading, or for saving: of any store that loaders read, or of this machine.

    Sequential reads are fetched in advance. With a cache, ranges are read through it, and all processes of this machine
    that read the same file share its requests. A saved file is there as a whole when it is closed, and is in the cache too.
    For many files, :class:`bowstring.fs.BowstringFileSystem` keeps connections.

    :param url: an address such as ``s3://bucket/model.pt``, or a path.
    :param mode: ``rb``, or ``wb``.
    :param cache: the directory of a cache, or ``memory``; as for a :class:`bowstring.Loader`.
    :param cache_bytes: bytes that the cache may take.
    :param cache_peers: hosts whose caches are one with this one.
    :param cache_peer_options: credentials for these hosts.
    :param storage_options: options of the store.
    :param credential_provider: a callable that returns credentials.
    :param mounts: the TOML file that says what ``bow://`` addresses lead to; by default ``BOWSTRING_MOUNTS``.
    :param timeout: the longest wait for bytes, in seconds (600).
    :param upload: ``wait``: what is saved is in the store when ``close`` returns. ``background``: it is on the disk of this machine
        then, in the cache, and uploaded afterwards; :func:`bowstring.flush` waits for that.
    """
    given = {
        "cache": cache,
        "cache_bytes": cache_bytes,
        "cache_peers": cache_peers,
        "cache_peer_options": cache_peer_options,
        "storage_options": storage_options,
        "mounts": mounts,
        "timeout": timeout,
    }
    native, path = files(given, credential_provider), os.path.expanduser(os.fspath(url))
    return File(native.open(path)) if mode == "rb" else FileWriter(_begun(native, path, mode, upload))


def flush(
    *,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    storage_options: Mapping[str, str] | None = None,
    credential_provider: CredentialProvider | None = None,
    mounts: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> None:
    """Waits until the stores have all that was saved through ``cache``, by whatever process of this machine.

    What a killed process has left is uploaded. What is of a store that these options do not reach stays: ``bowstring cache status``
    shows it. Without a cache (``cache`` or ``BOWSTRING_CACHE``), or with one in memory, nothing waits, and it returns at once.

    :raises bowstring.NotFoundError: if there is no such directory.
    :raises bowstring.StoreError: if the disk of the cache fails: what was saved there is not seen.
    :raises bowstring.Error: the first failure, after all uploads were tried.
    """
    given = {
        "cache": cache,
        "cache_bytes": cache_bytes,
        "storage_options": storage_options,
        "mounts": mounts,
        "timeout": timeout,
    }
    _native.FileSystem.of_existing_cache(document((), given), provider(credential_provider)).flush()
