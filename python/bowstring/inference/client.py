"""The client of a model's server: rows in order, answers in order, each once, across broken connections."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from bowstring.errors import ClosedError, Error, LimitError, MismatchError, RemoteError, TimeoutError, UnsupportedError
from bowstring.flight import Connection
from bowstring.flight.validity import checked
from bowstring.forks import Origin
from bowstring.inference.arrays import joined
from bowstring.inference.refusal import is_refusal
from bowstring.inference.streams import Answer, Failed
from bowstring.ranges import seconds, whole

__all__ = ["ModelClient"]

# Most rows of a message, waiting rows with which no more join it, and bytes.
_MOST_ROWS = 1 << 16
_TOGETHER = 4096
_TOGETHER_BYTES = 8 << 20
# Seconds between two messages while answers are outstanding: rows in quick succession go together, since a message
# costs both sides far more than a row. A caller that waits for each answer is not delayed.
_APART = 0.001
_TRANSIENT = (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError)


class _Asked:
    """Rows that wait for their answers."""

    def __init__(self, first: int, batch: pa.RecordBatch) -> None:
        self.first = first
        self.batch = batch
        self.future: Future[pa.RecordBatch] = Future()
        self.answers: list[pa.RecordBatch] = []
        self.answered = 0
        self.why: str | None = None
        """The failure of some of its rows."""

    def settle(self, url: str) -> None:
        """Completes the future, when all rows have answers."""
        if not self.future.set_running_or_notify_cancel():
            return  # its caller wants no answer any more
        if self.why is not None:
            self.future.set_exception(RemoteError(f"{url}: {self.why}"))
            return
        try:
            answers = joined(self.answers)
        except pa.ArrowException as error:
            self.future.set_exception(MismatchError(f"{url}: the parts of an answer cannot be joined: {error}"))
        else:
            self.future.set_result(answers)


class ModelClient:
    """A client of :func:`bowstring.inference.serve_model`. Several threads may call its methods.

    >>> with ModelClient("grpc://models:8816") as client:  # doctest: +SKIP
    ...     scores = client.predict(pyarrow.record_batch({"x": [1.0, 2.0]}))

    If tail latency matters, call ``gc.collect(); gc.freeze()`` once the client is warm: Python's garbage collector
    otherwise stops all threads now and then, for 30 ms and more, to scan all imported objects.

    :param url: ``grpc://host:port``.
    :param stream: this client's name at the server; a new one by default. A process that replaces a killed one
        gives the same name, and ``first``. No two clients share one: rows are known by their numbers alone, so each would
        get the other's answers.
    :param first: the number of the first row without an answer.
    :param window: rows that may wait for answers; at most the server's ``remember_rows``. A call of more rows has so many of them
        under way.
    :param timeout: seconds without an answer, over all connections, before an error.
    :param storage_options: ``token`` (or ``BOWSTRING_TOKEN``), ``ca``, ``cert``, ``key``, ``server_name``.
    """

    def __init__(
        self,
        url: str,
        *,
        stream: str | None = None,
        first: int = 0,
        window: int = 16_384,
        timeout: float = 120.0,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.stream = stream or uuid.uuid4().hex
        self._url = url
        self._storage = dict(storage_options or {})
        self._window = whole("window", window, 1)
        self._timeout = seconds("timeout", timeout)
        self._changed = threading.Condition()
        self._waiting: deque[_Asked] = deque()
        # Those that this connection has not sent.
        self._unsent: deque[_Asked] = deque()
        self._next = self._sent = self._used = whole("first", first)
        self._early: deque[tuple[int, Answer]] = deque()
        self._rows = 0
        self._columns: pa.Schema | None = None  # those of answers, once there was one
        self._origin = Origin("client")
        self._heard = time.monotonic()
        self._broken: Exception | None = None
        self._failed: Exception | None = None
        self._closed = False
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="bowstring-client", daemon=True)
        self._thread.start()

    # ---- the public methods -----------------------------------------------------------------------------------------------

    def submit(self, batch: pa.RecordBatch) -> Future[pa.RecordBatch]:
        """Sends rows and returns a future of as many answers. Waits while the window is full.

        The future raises :class:`bowstring.RemoteError` if the model fails with its rows; later calls are not concerned. A call
        may fail with another one of this client, if the model failed with rows of both at once. A future that is cancelled gives
        its answers up; the model may get its rows all the same.

        An empty batch goes to no model: its answer has the columns of earlier answers, and is a
        :class:`bowstring.UnsupportedError` before the first one.

        :raises ClosedError: if the client was closed, or made before this process was forked.
        """
        self._origin.check()
        with self._changed:
            while (
                self._rows and self._rows + batch.num_rows > self._window and self._failed is None and not self._closed
            ):
                self._changed.wait(1.0)
            if self._failed is not None:
                raise self._failed
            if self._closed:
                raise ClosedError("the client was closed")
            asked = _Asked(self._next, batch)
            if not self._waiting:
                self._heard = time.monotonic()
            self._next += batch.num_rows
            self._rows += batch.num_rows
            if batch.num_rows:
                self._waiting.append(asked)
                self._unsent.append(asked)
            elif self._columns is None:
                problem = "the columns of its answer are not known before the first answer with rows"
                asked.future.set_exception(
                    UnsupportedError(f"an empty batch: {problem}; predict rows first, or leave it out")
                )
            else:
                asked.future.set_result(pa.RecordBatch.from_pylist([], schema=self._columns))
            done = self._matched()
            self._changed.notify_all()
        for one in done:
            one.settle(self._url)
        return asked.future

    def predict(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The answers for ``batch``, in its order."""
        return self.submit(batch).result()

    def map(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The answers for each of ``batches``, in order; rows are sent ahead up to the window.

        Empty batches have empty answers. The server forgets an answer when the caller takes the next one; answers of
        :meth:`submit` only when there are too many.
        """
        ahead: deque[tuple[int, Future[pa.RecordBatch]]] = deque()
        # Those since the last one with rows: they wait for the columns of its answers.
        empty = 0
        for batch in batches:
            if batch.num_rows:
                ahead.append((empty, self.submit(batch)))
                empty = 0
            else:
                empty += 1
            while ahead and (ahead[0][1].done() or self._rows >= self._window // 2):
                yield from self._given(*ahead.popleft())
        while ahead:
            yield from self._given(*ahead.popleft())
        for _ in range(empty):
            yield self.predict(batch)

    def _given(self, empty: int, future: Future[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The answers of a call, after those of the empty batches before it."""
        self._origin.check()
        answers = future.result()
        for _ in range(empty):
            yield answers.slice(0, 0)
        yield answers
        # A caller that takes the next answers has finished with these: the server may forget them.
        self._used += answers.num_rows

    def close(self) -> None:
        """Ends the connection. Futures of rows without answers raise :class:`bowstring.ClosedError`."""
        if not self._origin.is_here:
            return  # a forked child has nothing to end
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(30)

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- connections ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = 0.05
        while not self._closed and self._failed is None:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                self._broken = None
            heard = self._heard
            try:
                if self._waiting:
                    self._connected()
            except Exception as error:
                self._end_unless_transient(error)
            pause = 0.05 if self._heard != heard else min(pause * 2, 2.0)
            if self._failed is None and not self._closed:
                with self._changed:
                    self._changed.wait(pause)
        self._give_up()

    def _end_unless_transient(self, error: Exception) -> None:
        silent = time.monotonic() - self._heard
        if isinstance(error, Error):
            self._failed = error
        elif is_refusal(error):
            self._failed = MismatchError(f"{self._url}: {_words(error)}")
        elif not isinstance(error, (*_TRANSIENT, ConnectionError)):
            self._failed = RemoteError(f"{self._url}: {_words(error)}")
        elif silent > self._timeout:
            self._failed = TimeoutError(f"{self._url} gave no answer for {silent:.0f} s: {_words(error)}")

    def _give_up(self) -> None:
        with self._changed:
            error = self._failed or ClosedError("the client was closed")
            waiting, self._waiting = self._waiting, deque()
            self._rows = 0
            self._changed.notify_all()
        for asked in waiting:
            if asked.future.set_running_or_notify_cancel():
                asked.future.set_exception(error)

    def _connected(self) -> None:
        """One connection, until it breaks or the client is closed."""
        with Connection(self._url, self._storage) as connection:
            with self._changed:
                self._sent = self._waiting[0].first + self._waiting[0].answered
                self._unsent = deque(self._waiting)
                self._early.clear()
                command = json.dumps({"stream": self.stream, "next": self._sent, "errors": True}).encode()
            descriptor = flight.FlightDescriptor.for_command(command)
            # A connection may live for as long as the client does.
            writer, reader = connection._client.do_exchange(descriptor, connection.options(timeout=365 * 86400.0))
            with self._changed:
                self._call = (writer, reader)
            receiver = threading.Thread(target=self._receive, args=(reader,), name="bowstring-answers", daemon=True)
            receiver.start()
            try:
                self._send(writer)
            except pa.ArrowException as error:
                with self._changed:
                    self._broken = self._broken or error
            finally:
                with self._changed:
                    self._call = None
                # Not done_writing(), nor close(): the reading thread may be ending the call, and Flight's C++ does not support
                # both at once. All rows that were sent have answers, or are sent again.
                reader.cancel()
                receiver.join(30)
                if not receiver.is_alive():
                    with contextlib.suppress(Exception):
                        writer.close()
            if self._broken is not None and self._failed is None:
                raise self._broken

    def _send(self, writer: Any) -> None:
        schema: pa.Schema | None = None
        while True:
            with self._changed:
                while not (found := self._to_send(schema)):
                    if self._is_over():
                        return
                    if self._unsent and self._outstanding() <= 0:
                        return  # rows of another schema need another connection
                    self._pause()
                first, batches = found
                acked = self._used
            if schema is None:
                schema = batches[0].schema
                writer.begin(schema)
            sent = 0
            for batch in _messages(batches, min(_MOST_ROWS, self._window)):
                with self._changed:
                    # Answers are lost with a connection, and the server remembers no more of them.
                    while 0 < self._outstanding() > self._window - batch.num_rows:
                        if self._is_over():
                            return
                        self._pause()
                if self._closed or self._broken is not None:
                    return
                said = {"first": first, "acked": acked}
                writer.write_with_metadata(batch, json.dumps(said).encode())
                first += batch.num_rows
                sent += batch.num_rows
                with self._changed:
                    self._sent = first
                    more = self._outstanding() > sent
            if more:
                time.sleep(_APART)

    def _is_over(self) -> bool:
        """True if this connection is to end."""
        if self._closed or self._broken is not None or self._failed is not None:
            return True
        silent = time.monotonic() - self._heard
        if self._waiting and silent > self._timeout:
            raise flight.FlightTimedOutError(f"no answer for {silent:.0f} s")
        return False

    def _pause(self) -> None:
        self._changed.wait(min(1.0, self._timeout / 4))

    def _outstanding(self) -> int:
        """Number of rows that were sent and have no answers."""
        return self._sent - self._waiting[0].first - self._waiting[0].answered if self._waiting else 0

    def _to_send(self, schema: pa.Schema | None) -> tuple[int, list[pa.RecordBatch]] | None:
        """Takes rows to send, as long as they have one schema, and the number of the first. None if the rest has another schema."""
        found: list[pa.RecordBatch] = []
        rows, size, first = 0, 0, self._sent
        while self._unsent and rows < _TOGETHER and size < _TOGETHER_BYTES:
            asked = self._unsent[0]
            skip = max(asked.answered, self._sent - asked.first)
            if skip < asked.batch.num_rows:
                schema = schema or asked.batch.schema
                if not asked.batch.schema.equals(schema):
                    break
                if not found:
                    first = asked.first + skip  # rows before it were answered without being sent again
                found.append(asked.batch.slice(skip))
                rows += found[-1].num_rows
                size += found[-1].nbytes
            self._unsent.popleft()
        return (first, found) if found else None

    def _receive(self, reader: Any) -> None:
        try:
            while True:
                chunk = reader.read_chunk()
                said = json.loads(chunk.app_metadata.to_pybytes())
                if "failed" in said:
                    raise self._failure(said)
                is_failure = "error" in said
                answers = (
                    Failed(int(said["rows"]), str(said["error"])) if is_failure else checked(chunk.data, self._url)
                )
                self._answered(int(said["first"]), answers)
        except StopIteration:
            broken: Exception | None = None
        except Exception as error:
            broken = error
        with self._changed:
            ended = flight.FlightUnavailableError("the server ended the stream")
            self._broken = self._broken or broken or (ended if self._waiting and not self._closed else None)
            self._changed.notify_all()

    def _failure(self, said: Mapping[str, Any]) -> Exception:
        if said.get("kind") == "limit":
            return LimitError(f"{self._url}: {said['failed']}")
        kind: type[Exception] = flight.FlightUnavailableError if said["again"] else flight.FlightServerError
        return kind(said["failed"])

    def _answered(self, first: int, answers: Answer) -> None:
        with self._changed:
            self._heard = time.monotonic()
            # A server that remembers this stream sends answers for rows before they are submitted again.
            self._early.append((first, answers))
            done = self._matched()
            self._changed.notify_all()
        for asked in done:
            asked.settle(self._url)

    def _matched(self) -> list[_Asked]:
        """Assigns received answers to the waiting rows, and returns those that are complete."""
        done: list[_Asked] = []
        while self._early and self._waiting:
            asked = self._waiting[0]
            at = asked.first + asked.answered
            first, answers = self._early[0]
            if first > at:
                # Here, whoever finds it: a caller that submits rows, or the thread that receives. The connection ends with it.
                self._failed = MismatchError(f"{self._url}: the server left rows {at} to {first} out")
                break
            piece = answers.slice(at - first, asked.batch.num_rows - asked.answered)
            if at + piece.num_rows >= first + answers.num_rows:
                self._early.popleft()
            if not piece.num_rows:
                continue  # answered before
            if isinstance(piece, Failed):
                asked.why = asked.why or piece.why
            else:
                asked.answers.append(piece)
                self._columns = piece.schema
            asked.answered += piece.num_rows
            if asked.answered == asked.batch.num_rows:
                self._waiting.popleft()
                self._rows -= asked.batch.num_rows
                done.append(asked)
        return done


def _messages(batches: list[pa.RecordBatch], most: int = _MOST_ROWS) -> Iterator[pa.RecordBatch]:
    """The same rows in few messages of moderate size."""
    try:
        together = [joined(batches)]
    except pa.ArrowException:  # such as dictionaries that have too many values together
        together = batches
    for batch in together:
        yield from _halved(batch, most)


def _halved(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Halves of halves, as long as they have too many rows, or are too large and that helps: a part has all of a dictionary."""
    size, half = batch.nbytes, batch.num_rows // 2
    parts = [batch.slice(0, half), batch.slice(half)]
    is_large = size > _TOGETHER_BYTES and half and sum(part.nbytes for part in parts) <= 1.5 * size
    if batch.num_rows <= most and not is_large:
        yield batch
        return
    for part in parts:
        yield from _halved(part, most)


def _words(error: Exception) -> str:
    text = str(error).partition(" gRPC client debug context:")[0]
    return (text.partition("with message: ")[2] or text).removesuffix(". Detail: Failed")
