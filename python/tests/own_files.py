"""File systems of a user's own: of no class of fsspec's, and a handler of pyarrow's. They count and fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs as arrow


class Own:
    """A file system of no class of fsspec's: it counts, and does what it is told before and behind each read."""

    def __init__(self) -> None:
        self.inner = LocalFileSystem()
        self.lock = threading.Lock()
        self.given: list[tuple[str, int, int]] = []
        self.now = self.most = self.looks = 0
        self.before: Callable[[str], None] = lambda path: None
        self.behind: Callable[[bytes], bytes] = lambda content: content

    def ls(self, path: str, detail: bool = True) -> Any:
        return self.inner.ls(path, detail=detail)

    def info(self, path: str) -> Any:
        self.looks += 1
        return self.inner.info(path)

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        with self.lock:
            self.given.append((path, start, end))
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            self.before(path)
            return self.behind(self.inner.cat_file(path, start=start, end=end))
        finally:
            with self.lock:
                self.now -= 1


class Closed:
    """A gate: calls wait at it until it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()

    def __call__(self, path: str) -> None:
        self._opened.wait(60)

    def open(self) -> None:
        self._opened.set()


class Handler(arrow.FileSystemHandler):  # type: ignore[misc]
    """As `Own`, as a handler of pyarrow's: it can be looked at, listed, and opened."""

    def __init__(self) -> None:
        self.inner = arrow.LocalFileSystem()
        self.opened = 0
        self.short = 0

    def get_type_name(self) -> str:
        return "own"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        return self.inner.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self.inner.get_file_info(selector)

    def open_input_file(self, path: str) -> Any:
        self.opened += 1
        return pa.PythonFile(_Short(path, self), mode="r")

    def _no(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("only reads are asked for")

    open_input_stream = open_output_stream = open_append_stream = _no
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = _no


class _Short:
    def __init__(self, path: str, handler: Handler) -> None:
        self.file, self.handler = open(path, "rb"), handler  # noqa: SIM115
        self.closed = False

    def read(self, length: int = -1) -> bytes:
        return self.file.read(max(length - self.handler.short, 0))

    def seek(self, at: int, whence: int = 0) -> int:
        return self.file.seek(at, whence)

    def tell(self) -> int:
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        self.closed = True
