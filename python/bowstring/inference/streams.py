"""The memory of a model's server for its clients' streams, so that each row is predicted and answered once.

Rows of a stream are numbered from 0. A client that lost its connection reconnects with the number of the first row that it has no
answer for, and sends from there: rows that the server has already taken are skipped, and their answers come from memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from bowstring.errors import LimitError, MismatchError

__all__ = ["Answer", "Failed", "Stream", "Streams"]


@dataclass(frozen=True)
class Failed:
    """The answer for rows that the model failed with."""

    num_rows: int
    why: str

    @property
    def nbytes(self) -> int:
        """Bytes of the text, as of a record batch."""
        return len(self.why)

    def slice(self, offset: int = 0, length: int | None = None) -> Failed:
        """The same for some of the rows, as of a record batch."""
        left = max(0, self.num_rows - offset)
        return Failed(left if length is None else min(left, length), self.why)


Answer: TypeAlias = "pa.RecordBatch | Failed"


class Stream:
    """One client's rows. Its methods may be called by several threads."""

    def __init__(self, name: str, remember: int) -> None:
        self.name = name
        self.changed = threading.Condition()
        self.taken = 0
        """Number of rows received, each counted once."""
        self.answered = 0
        """Number of rows with answers."""
        self.connection = 0
        """Number of the newest connection, the only valid one."""
        self.connected = False
        self.failed: str | None = None
        self.again = False
        """True if another connection may help after a failure."""
        self.kind = "remote"
        """Kind of the client's error after a failure."""
        self.failing = False
        """True if the model failed with the last rows."""
        self.bytes = 0
        """Bytes of the remembered answers."""
        self.sent = 0
        """The first row whose answer this connection has not sent."""
        self._remember = remember
        self._answers: deque[tuple[int, Answer]] = deque()
        self._first = 0
        # Bytes of the last answer to one row.
        self._width: float | None = None

    def attach(self, wanted: int) -> int:
        """Connects a client, new or not, that has answers for all rows before ``wanted``. Returns the connection's number."""
        with self.changed:
            if wanted < self._first:
                raise MismatchError(
                    f"stream {self.name!r}: the answers before row {self._first} are forgotten, and row {wanted} is asked for"
                )
            if wanted > self.answered:
                # The server was restarted, or has forgotten the stream: it continues where the client is.
                if self.taken:
                    raise MismatchError(
                        f"stream {self.name!r}: row {wanted} is asked for, but {self.answered} come next"
                    )
                self.taken = self.answered = self._first = wanted
            self.connection += 1
            self.connected = True
            self.sent = wanted
            self.forget(wanted)
            self.changed.notify_all()
            return self.connection

    def detach(self, connection: int, drop: Callable[[Stream], int | None] = lambda stream: None) -> None:
        """Ends a connection.

        ``drop`` forgets the rows that wait for the model, and returns the number of the first: another connection sends them
        again, from the first without an answer.
        """
        with self.changed:
            if connection == self.connection:
                self.connected = False
                dropped = drop(self)
                self.taken = self.taken if dropped is None else dropped

    def take(self, first: int, batch: pa.RecordBatch, put: Callable[[int, pa.RecordBatch], None]) -> None:
        """Passes the rows of ``batch``, the first of which is row ``first``, to ``put``, unless they were received before."""
        with self.changed:
            if first > self.taken:
                raise MismatchError(f"stream {self.name!r}: rows {self.taken} to {first} are missing")
            batch = batch.slice(self.taken - first)
            if batch.num_rows:
                first, self.taken = self.taken, self.taken + batch.num_rows
                put(first, batch)

    def answer(self, first: int, batch: Answer) -> None:
        """Stores the answers for rows from ``first`` on."""
        with self.changed:
            if self.failed is not None and not self.again:
                return  # nobody will ask for them
            self._answers.append((first, batch))
            self.answered = first + batch.num_rows
            self.bytes += batch.nbytes
            if isinstance(batch, pa.RecordBatch):
                self._width = batch.nbytes / batch.num_rows
            # Those that this connection has not sent stay, and those that may be lost with it: `ahead` limits the former.
            while self._answers and self.sent - self._end() > self._remember:
                self._drop()
            self.changed.notify_all()

    def _end(self) -> int:
        first, batch = self._answers[0]
        return first + int(batch.num_rows)

    def _drop(self) -> None:
        first, batch = self._answers.popleft()
        self.bytes -= batch.nbytes
        self._first = first + batch.num_rows

    def forget(self, before: int) -> None:
        """Forgets the answers before a row, which the client has."""
        with self.changed:
            while self._answers and self._end() <= before:
                self._drop()

    def unsent(self) -> int:
        """Bytes of the answers that the client has not been sent."""
        with self.changed:
            found = 0
            for first, batch in reversed(self._answers):
                if first + batch.num_rows <= self.sent:
                    break
                found += batch.nbytes
            return found

    def ahead(self, unread: int, rows: int) -> bool:
        """True if the client should be waited for: its unread answers have ``unread`` bytes, or may have with those that come.

        Fewer than ``rows`` rows without answers do not count, since they may wait for more to come. As many unread answers as are
        remembered are enough too, whatever their bytes.
        """
        with self.changed:
            if self.answered - self.sent >= self._remember:
                return True
            waiting = self.taken - self.answered
            if waiting >= rows and self._width is None:
                return True
            coming = waiting * (self._width or 0.0) if waiting >= rows else 0.0
            return self.bytes + coming >= unread and self.unsent() + coming >= unread

    def shrink(self, enough: int) -> int:
        """Forgets the oldest answers that were sent, until ``enough`` bytes are free. Returns their number."""
        with self.changed:
            before = self.bytes
            while self._answers and self._end() <= self.sent and before - self.bytes < enough:
                self._drop()
            return before - self.bytes

    def fail(self, why: str, again: bool = False, kind: str = "remote") -> None:
        """Marks the stream as failed: no more answers come. For good, unless ``again``."""
        with self.changed:
            if self.failed is None:
                self.failed, self.again, self.kind = why, again, kind
            self.changed.notify_all()

    def abandon(self, why: str) -> None:
        """Fails because of a limit, and forgets all answers."""
        with self.changed:
            self.fail(why, kind="limit")
            while self._answers:
                self._drop()

    def after(self, row: int) -> Answer | None:
        """The next answers from ``row`` on, as far as there are any."""
        if row < self._first and self.failed is None:
            self.fail(f"answers before row {self._first} are forgotten: the client has acknowledged them")
        # The request is mostly for the newest of thousands.
        for first, batch in reversed(self._answers):
            if first <= row:
                return batch.slice(row - first) if row < first + batch.num_rows else None
        return None


class Streams:
    """All streams.

    Those without a connection are forgotten, oldest first, when there are too many or the answers take too much memory. If that
    is not enough memory, the others forget answers that were sent; and when those that were not exceed ``unread_bytes``, the
    streams that have most of them fail.
    """

    def __init__(
        self, max_streams: int, remember_rows: int, remember_bytes: int, unread_bytes: int = 256 << 20
    ) -> None:
        # Entered again by `fail`, where the end of a server is found by the garbage collector inside one of these methods.
        self._lock = threading.RLock()
        self._all: OrderedDict[str, Stream] = OrderedDict()
        self._limits = (max_streams, remember_rows, remember_bytes)
        self._unread = max(unread_bytes, remember_bytes)

    def attach(self, name: str, wanted: int) -> tuple[Stream, int]:
        """The stream of that name, and the connection's number."""
        max_streams, rows, _ = self._limits
        with self._lock:
            stream = self._all.get(name)
            if stream is None or stream.failed is not None:
                stream = Stream(name, rows)
            number = stream.attach(wanted)
            self._all[name] = stream
            self._all.move_to_end(name)
            self._trim()
            if len(self._all) > max_streams:
                del self._all[name]
                raise LimitError(f"there are {max_streams} streams already: raise max_streams", option="max_streams")
            return stream, number

    def _trim(self) -> None:
        max_streams, _, most = self._limits
        held = sum(stream.bytes for stream in self._all.values())
        if len(self._all) <= max_streams and held <= most:
            return
        for stream in [stream for stream in self._all.values() if not stream.connected]:
            if len(self._all) <= max_streams and held <= most:
                return
            held -= stream.bytes
            del self._all[stream.name]
        # The largest first. More than is needed, so that this is rare.
        for stream in sorted(self._all.values(), key=lambda stream: -stream.bytes):
            if held <= most:
                return
            held -= stream.shrink(held - most + most // 8)
        for stream in sorted(self._all.values(), key=lambda stream: -stream.bytes):
            if held <= self._unread:
                return
            held -= stream.bytes
            stream.abandon(
                f"answers that clients have not read exceed {self._unread} bytes, most of them this client's: "
                "raise queue_bytes, or lower the client's window"
            )

    def trim(self) -> None:
        """Forgets streams beyond the limits."""
        with self._lock:
            self._trim()

    def fail(self, why: str, again: bool) -> None:
        """Ends all streams."""
        with self._lock:
            for stream in self._all.values():
                stream.fail(why, again)
