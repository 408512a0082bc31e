"""One file of a store, as Python knows files: a checkpoint, a table, weights.

>>> with bowstring.open("s3://bucket/model.pt", cache="/nvme/bowstring") as file:  # doctest: +SKIP
...     model.load_state_dict(torch.load(file.local_path(), mmap=True))
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bowstring import _native
from bowstring.credentials import CredentialProvider, provider
from bowstring.options import Url, document

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["File", "files", "open"]

# Bytes that a read of no given size returns at most, and a look ahead: there is one for each line of text.
_SOME = 128 << 10
_LOOK = 1 << 10


def files(given: Mapping[str, Any], credential_provider: CredentialProvider | None) -> _native.FileSystem:
    """The stores that are reached with the options ``given``, and those of the environment."""
    return _native.FileSystem(document((), given), provider(credential_provider))


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

    def __repr__(self) -> str:
        return f"<bowstring.File {self.name}, {self.size} bytes{', closed' if self.closed else ''}>"


def open(
    url: Url,
    *,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
    cache_peers: str | Sequence[str] | None = None,
    cache_peer_options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    credential_provider: CredentialProvider | None = None,
    timeout: float | None = None,
) -> File:
    """Opens the file at ``url`` for reading: of any store that loaders read, or of this machine.

    What is read in order is fetched in advance. With a cache, ranges are read through it, and all processes of this machine
    that read the same file share its requests. For many files, :class:`bowstring.fs.BowstringFileSystem` keeps connections.

    :param url: an address such as ``s3://bucket/model.pt``, or a path.
    :param cache: the directory of a cache, or ``memory``; as for a :class:`bowstring.Loader`.
    :param cache_bytes: bytes that the cache may take.
    :param cache_peers: hosts whose caches are one with this one.
    :param cache_peer_options: credentials for these hosts.
    :param storage_options: options of the store.
    :param credential_provider: a callable that returns credentials.
    :param timeout: the longest wait for bytes, in seconds (600).
    """
    given = {
        "cache": cache,
        "cache_bytes": cache_bytes,
        "cache_peers": cache_peers,
        "cache_peer_options": cache_peer_options,
        "storage_options": storage_options,
        "timeout": timeout,
    }
    return File(files(given, credential_provider).open(os.path.expanduser(os.fspath(url))))
