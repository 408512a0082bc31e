"""A model behind Flight's ``DoExchange``: rows go in, their predictions come out, in order."""

from __future__ import annotations

import functools
import json
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from bowstring.endpoint import Endpoint, answer
from bowstring.errors import Error, LimitError, MismatchError, UnsupportedError
from bowstring.flight.validity import checked
from bowstring.inference.arrays import Model, has_no_bytes, predicted, tensors
from bowstring.inference.batcher import Batcher
from bowstring.inference.refusal import refused
from bowstring.inference.streams import Answer, Failed, Stream, Streams
from bowstring.ranges import LONGEST, seconds, whole

__all__ = ["ModelServer", "serve_model"]

# Most rows of a micro-batch, as of a loader's batch.
_MOST_ROWS = 1 << 31
# Least ``queue_bytes``: twice a message of a client.
_LEAST_QUEUE = 16 << 20
# Least ``message_rows``: those of a message of a client.
_LEAST_ROWS = 1 << 16
# Most characters of a stream's name, and most bytes of the command that has it, in which a character may have six.
_MOST_NAME = 128
_MOST_COMMAND = 4096
# Part of ``queue_bytes`` that one client may leave unread before the server takes no more of its rows.
_UNREAD = 8


def serve_model(
    fn: Model,
    *,
    batch_size: int = 64,
    deadline_ms: float = 20.0,
    columns: list[str] | None = None,
    schema: pa.Schema | None = None,
    device: str | None = None,
    listen: str = "127.0.0.1:0",
    token: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    client_ca: str | None = None,
    insecure: bool = False,
    max_streams: int = 1024,
    remember_rows: int = 65_536,
    remember_bytes: int = 256 << 20,
    queue_bytes: int = 256 << 20,
    message_rows: int = 8 << 20,
) -> ModelServer:
    """Serves a model on threads of this process, for calls by :class:`bowstring.inference.ModelClient`.

    >>> def model(batch):
    ...     return {"score": batch["x"] * 2}
    >>> with serve_model(model, deadline_ms=5) as server:  # doctest: +SKIP
    ...     print(server.url)

    Rows of all streams go to the model together, once there are ``batch_size`` or the oldest has waited ``deadline_ms``. Streams
    take turns, so that a client with few rows does not wait for those of one with many; rows of a client that has left are dropped,
    and it sends them again if it comes back. The
    answers of a stream come in the order of its rows, and each row goes to the model once, also if its client's connection breaks:
    the server remembers the last answers of each stream. Only when the model fails, rows go to it again: those of each client
    alone, so that one client's rows do not fail the others'. Calls of one client that came in one message may fail together.

    :param fn: maps a mapping of tensors to a mapping of arrays with as many rows, see :func:`bowstring.spark.predict`.
    :param batch_size: most rows of a micro-batch.
    :param deadline_ms: milliseconds that a row waits for others.
    :param columns: columns passed to the model; all by default.
    :param schema: columns that it returns, ``pyarrow.schema``; by default, as it returns them.
    :param device: the tensors' device, for torch; NumPy arrays by default.
    :param listen: address and port; port 0 is any free one.
    :param token: the token of clients, 16 characters or more.
    :param tls_cert: certificate, PEM.
    :param tls_key: its private key, PEM.
    :param client_ca: CA of client certificates, PEM: clients without one are refused.
    :param insecure: be open to other machines without TLS and a token.
    :param max_streams: most streams at once; those without a client are dropped, oldest first.
    :param remember_rows: answered rows that each stream remembers after they were sent. A client that leaves as many unread is
        waited for.
    :param remember_bytes: bytes of them, of all streams together: streams without a client are forgotten first, then the oldest
        answers of the others.
    :param queue_bytes: bytes of rows that wait for the model, at least 16 MiB. Beyond them clients wait with theirs, as they do
        beyond ``remember_rows`` or 16 micro-batches; one message may come from each meanwhile. A message above it is refused
        with :class:`bowstring.LimitError`, and so is a client that has most of more than so many bytes of unread answers.
    :param message_rows: most rows of a message, at least 65,536, which is what a client puts in one. A message above it is refused
        with :class:`bowstring.LimitError`. Columns that take no bytes, such as nulls, are refused unless there are others.
    """
    rows = whole("batch_size", batch_size, 1, _MOST_ROWS)
    deadline = seconds("deadline_ms", deadline_ms, LONGEST, unit="milliseconds", zero=True) / 1000
    remembered = whole("remember_rows", remember_rows, 1)
    queued = whole("queue_bytes", queue_bytes, _LEAST_QUEUE)
    most = whole("message_rows", message_rows, _LEAST_ROWS)
    streams = Streams(whole("max_streams", max_streams, 1), remembered, whole("remember_bytes", remember_bytes), queued)

    def model(batch: pa.RecordBatch) -> pa.RecordBatch:
        return predicted(fn(tensors(batch, columns, device)), batch.num_rows, schema)

    door = {"token": token, "tls_cert": tls_cert, "tls_key": tls_key, "client_ca": client_ca, "insecure": insecure}
    batcher = Batcher(model, rows, deadline, max(16 * rows, remembered), queued, streams.trim)
    try:
        return ModelServer(batcher, streams, most, listen, **door)
    except BaseException:
        batcher.close()
        raise


class ModelServer(Endpoint):
    """The result of :func:`serve_model`: ``url``, ``stats()``, ``close()``, and a context manager."""

    def __init__(self, batcher: Batcher, streams: Streams, message_rows: int, listen: str, **door: Any) -> None:
        self._batcher = batcher
        self._streams = streams
        self._message_rows = message_rows
        super().__init__(listen, **door)
        # A program that ends without `close` would wait for its clients: pyarrow's own finalizer comes after this one.
        weakref.finalize(self, streams.fail, "the server ends", True)

    def stats(self) -> dict[str, int]:
        """Numbers of rows and of micro-batches given to the model."""
        return {"rows": self._batcher.rows, "batches": self._batcher.batches}

    def close(self) -> None:
        """Ends the server; rows without an answer get none."""
        self._streams.fail("the server ends", again=True)
        super().close()
        self._batcher.close()

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """``stats``, as JSON."""
        if action.type != "stats":
            raise flight.FlightServerError(f"no action {action.type!r} here: stats")
        return answer(dict(self.stats()))

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """One connection of one stream.

        The command is ``{"stream": name, "next": row, "errors": bool}``. A batch has ``{"first": row, "acked": row}`` as
        ``app_metadata``: the number of its first row, and of the first whose answer may still be needed. Answers have
        ``{"first": row}``. Metadata without a batch, ``{"failed": why, "again": bool, "kind": name}`` (true if another connection
        may help; the kind of error), are the last. With ``errors``, ``{"first": row, "rows": count, "error": why}`` without a
        batch is the answer for rows that the model failed with; the stream continues. Without, it ends.
        """
        try:
            if len(descriptor.command) > _MOST_COMMAND:
                raise LimitError(f"a command of {len(descriptor.command)} bytes: at most {_MOST_COMMAND}")
            asked = json.loads(descriptor.command)
            name, wanted = str(asked["stream"]), int(asked["next"])
            if len(name) > _MOST_NAME:
                raise LimitError(f"a stream's name of {len(name)} characters: at most {_MOST_NAME}")
            errors = asked.get("errors") is True
            stream, number = self._streams.attach(name, wanted)
        except Error as error:
            raise refused(str(error)) from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise refused(f'the command is {{"stream": name, "next": row}}: {error}') from error
        sender = _Sender(stream, number, wanted, writer, errors, self._batcher.drop)
        try:
            self._receive(stream, number, reader, sender)
            sender.finish()
        except Error as error:
            raise refused(str(error)) from error
        finally:
            sender.stop()
            stream.detach(number, self._batcher.drop)
            self._streams.trim()

    def _receive(self, stream: Stream, number: int, reader: Any, sender: _Sender) -> None:
        most = self._batcher.max_bytes
        while stream.connection == number and stream.failed is None:
            self._batcher.room(stream)
            sender.room(most // _UNREAD, self._batcher.batch_size)
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            if chunk.data is None or chunk.app_metadata is None:
                raise MismatchError('a batch comes with {"first": row, "acked": row} as app_metadata')
            said: Mapping[str, int] = json.loads(chunk.app_metadata.to_pybytes())
            if all(has_no_bytes(field.type) for field in chunk.data.schema):
                raise UnsupportedError(
                    f"rows of which no column takes bytes ({_names(chunk.data.schema)}): send other columns too"
                )
            rows = chunk.data.num_rows
            # Of whole buffers, since parts of them are kept whole.
            size = chunk.data.get_total_buffer_size()
            if size > most:
                stream.fail(f"a message of {size} bytes for {rows} rows, above queue_bytes of {most}", kind="limit")
                return
            if rows > self._message_rows:
                stream.fail(f"a message of {rows} rows, above message_rows of {self._message_rows}", kind="limit")
                return
            checked(chunk.data, "a client")
            stream.forget(int(said.get("acked", 0)))
            put = functools.partial(self._batcher.put, stream, size=size)
            stream.take(int(said["first"]), chunk.data, put)


class _Sender:
    """A thread that sends a connection's answers while another one reads."""

    def __init__(
        self,
        stream: Stream,
        number: int,
        first: int,
        writer: Any,
        errors: bool,
        drop: Callable[[Stream], int | None],
    ) -> None:
        self._stream = stream
        self._number = number
        self._next = first
        self._writer = writer
        self._errors = errors
        """True if the client knows failures of rows."""
        self._drop = drop
        self._ended = False
        self._end: int | None = None
        self._stopped = False
        self._schema: pa.Schema | None = None
        self._thread = threading.Thread(target=self._run, name="bowstring-answers", daemon=True)
        self._thread.start()

    def room(self, unread: int, rows: int) -> None:
        """Waits while ``rows`` or more are not answered whose answers, with those not sent, may be ``unread`` bytes or more.

        It waits too while as many answers as are remembered are not sent.
        """
        stream = self._stream
        with stream.changed:
            while (
                not self._ended
                and stream.connection == self._number
                and stream.failed is None
                and stream.ahead(unread, rows)
            ):
                stream.changed.wait(1.0)

    def finish(self) -> None:
        """Waits until all received rows are answered."""
        with self._stream.changed:
            self._end = self._stream.taken
            self._stream.changed.notify_all()
        self._thread.join()

    def stop(self) -> None:
        """Ends it at once."""
        with self._stream.changed:
            self._stopped = True
            self._stream.changed.notify_all()
        self._thread.join()

    def _wait(self) -> Answer | None:
        stream = self._stream
        with stream.changed:
            while True:
                if self._stopped or stream.connection != self._number:
                    return None
                found = stream.after(self._next)
                if found is not None:
                    return found
                if stream.failed is not None:
                    return None
                if self._end is not None and self._next >= self._end:
                    return None
                stream.changed.wait()

    def _tell(self) -> None:
        """The reason why no more answers come, as metadata: the call itself ends only when its client does."""
        stream = self._stream
        why = {"failed": stream.failed, "again": stream.again, "kind": stream.kind}
        self._writer.write_metadata(json.dumps(why).encode())

    def _send(self, answers: Answer) -> None:
        if isinstance(answers, Failed):
            said = {"first": self._next, "rows": answers.num_rows, "error": answers.why}
            self._writer.write_metadata(json.dumps(said).encode())
            return
        if self._schema is None:
            self._schema = answers.schema
            self._writer.begin(self._schema)
        self._writer.write_with_metadata(answers, json.dumps({"first": self._next}).encode())

    def _run(self) -> None:
        stream = self._stream
        try:
            while (answers := self._wait()) is not None:
                if isinstance(answers, Failed) and not self._errors:
                    stream.fail(answers.why)
                    break
                if isinstance(answers, pa.RecordBatch) and not answers.schema.equals(self._schema or answers.schema):
                    stream.fail(
                        f"the model returned {_names(answers.schema)} after {_names(self._schema)}: give schema"
                    )
                    break
                self._send(answers)
                self._next += answers.num_rows
                with stream.changed:
                    if stream.connection == self._number:
                        stream.sent = self._next
                    stream.changed.notify_all()
            if stream.failed is not None and not self._stopped:
                self._tell()
        except (pa.ArrowException, OSError):
            # The client is gone: its next connection gets the answers. This one may be waiting for room, which its rows take.
            stream.detach(self._number, self._drop)
        finally:
            with stream.changed:
                self._ended = True
                stream.changed.notify_all()


def _names(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)
