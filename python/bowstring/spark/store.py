"""An executor's part of the rows: in memory up to the budget, in local files beyond it, served to ranks from both."""

from __future__ import annotations

import os
import shutil
import socket
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pyarrow as pa

from bowstring.errors import LimitError
from bowstring.flight import pieces
from bowstring.flight.server import Server
from bowstring.spark import spilled
from bowstring.spark.digest import digest

__all__ = ["Store", "StoreOptions", "own_address"]

_NAME = "rows"
# Bytes added at once: kept outside the store until they are known to fit, and stored as one file.
_CHUNK = 32 << 20


@dataclass(frozen=True)
class StoreOptions:
    """Options for storing and serving rows."""

    memory: int
    """Bytes that a task may take: half for stored rows, half for rows on their way."""
    spill: str | None
    """Directory for rows that do not fit; by default they are an error."""
    listen: str
    """Address to listen on."""
    server: dict[str, Any] = field(repr=False)
    """Options of :class:`bowstring.flight.Server`: TLS, tokens."""
    storage: dict[str, str] = field(repr=False)
    """Credentials of tasks for the driver: token, certificate."""


def own_address(peer: str) -> str:
    """The address from which this host reaches ``peer``, and under which others most likely reach it."""
    with socket.socket(socket.AF_INET6 if ":" in peer else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))  # sends nothing
        return str(probe.getsockname()[0])


class _Shelf:
    """One server with one dataset, which this process puts into it."""

    def __init__(self, options: StoreOptions, host: str, put: str) -> None:
        self._server = Server(
            listen=options.listen, put=put, memory_budget=options.memory, drain_grace=1.0, **options.server
        )
        scheme, _, at = self._server.url.partition("://")
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{shown}:{at.rpartition(':')[2]}"
        self._write = self._server.write(_NAME)

    @property
    def rows(self) -> int:
        """Number of rows added."""
        return self._write.rows

    def add(self, schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
        """Keeps ``batches``, or none of them."""
        self._write.stage(pa.RecordBatchReader.from_batches(schema, batches))

    def open(self) -> None:
        """Makes added rows readable."""
        if self.rows:
            self._write.commit()

    def close(self) -> None:
        self._server.close()


class Store:
    """The rows of one partition.

    :param options: how they are stored and served.
    :param host: the address by which ranks reach this host.
    """

    def __init__(self, options: StoreOptions, host: str) -> None:
        self._options = options
        self._host = host
        self._shelves: list[_Shelf] = []
        self._spilled: str | None = None
        self.digest = 0

    def fill(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Adds all rows; they can be read when it returns."""
        self._shelves = [_Shelf(self._options, self._host, "memory")]
        before: int | None = None
        for chunk in _chunks(batches, min(_CHUNK, max(self._options.memory // 16, 1 << 16))):
            # The order of ranks depends on the files, and these on `memory`. The last one has its rows whatever its limit is.
            if before is not None:
                self.digest = zlib.crc32(before.to_bytes(8, "little"), self.digest)
            before = sum(batch.num_rows for batch in chunk)
            for batch in chunk:
                self.digest = digest(batch, self.digest)
            try:
                self._shelves[-1].add(schema, chunk)
            except LimitError as error:
                if self._options.spill is None or self._spilled is not None:
                    problem = f"rows of a task do not fit into {self._options.memory} bytes: raise memory, or set spill"
                    raise LimitError(f"{problem} ({error})", option="memory") from error
                self._spilled = spilled.made(self._options.spill)
                self._shelves.append(_Shelf(self._options, self._host, self._spilled))
                self._shelves[-1].add(schema, chunk)
        for shelf in self._shelves:
            shelf.open()

    def parts(self) -> list[dict[str, Any]]:
        """The parts of the rows: for each its URL, its rows, a number for all rows and files of this store, and the process."""
        return [
            {
                "url": f"{shelf.url}/{_NAME}",
                "rows": shelf.rows,
                "digest": self.digest,
                "process": f"{socket.gethostname()}:{os.getpid()}",
            }
            for shelf in self._shelves
            if shelf.rows
        ]

    def close(self) -> None:
        """Ends the servers, and removes spilled rows."""
        for shelf in self._shelves:
            shelf.close()
        if self._spilled is not None:
            shutil.rmtree(self._spilled, ignore_errors=True)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _chunks(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[list[pa.RecordBatch]]:
    chunk: list[pa.RecordBatch] = []
    held = 0
    for whole in batches:
        for batch in pieces(whole, most):
            if not batch.num_rows:
                continue
            chunk.append(batch)
            held += batch.nbytes
            if held >= most:
                yield chunk
                chunk, held = [], 0
    if chunk:
        yield chunk
