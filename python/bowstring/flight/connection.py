"""A server's writes and stored rows, over plain ``pyarrow.flight``. Spark's executors use this.

Batches for training come from :class:`bowstring.Loader`, which reads Flight by itself. This module has the other calls:
staging attempts of a write, committing them, and reading stored rows. The wire is in ``docs/protocol.md``.
"""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from bowstring import _native
from bowstring.errors import (
    ClosedError,
    ConfigError,
    CorruptError,
    DeviceError,
    Error,
    FencedError,
    LimitError,
    MismatchError,
    NotFoundError,
    NullsError,
    RemoteError,
    SourceChangedError,
    StoreError,
    TimeoutError,
    UnsupportedError,
)
from bowstring.flight.validity import checked
from bowstring.options import Mode, is_server
from bowstring.ranges import seconds

__all__ = ["Address", "Connection", "Rows", "attempt_of", "is_server", "pieces"]

PORT = 8815
_SCHEMES = {"grpc": "grpc+tcp", "grpc+tcp": "grpc+tcp", "grpc+tls": "grpc+tls"}
# Messages stay well below the server's limit of 80 MiB.
_MESSAGE_BYTES = 16 << 20
_COMMIT_TRIES = 4
# The trailer with the server's description of an error, and the class of each kind.
_DETAIL = "bowstring-error-bin"
# The header with its version.
_VERSION = "bowstring-version"
_KINDS: dict[str, type[Error]] = {
    "closed": ClosedError,
    "config": ConfigError,
    "corrupt": CorruptError,
    "device": DeviceError,
    "fenced": FencedError,
    "limit": LimitError,
    "mismatch": MismatchError,
    "not_found": NotFoundError,
    "nulls": NullsError,
    "remote": RemoteError,
    "source_changed": SourceChangedError,
    "store": StoreError,
    "timeout": TimeoutError,
    "unsupported": UnsupportedError,
}


@dataclass(frozen=True)
class Address:
    """A server, and a dataset there."""

    server: str
    """``grpc://host:port`` or ``grpc+tls://host:port``."""
    dataset: str
    """The dataset's name; empty for the server itself."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Reads ``grpc://host:port/dataset``."""
        parsed = urllib.parse.urlsplit(url)
        if parsed.scheme not in _SCHEMES or not parsed.hostname:
            raise ConfigError(f"option url: {url!r} is not a server; write grpc://host:port/dataset", option="url")
        if parsed.username or parsed.password or parsed.query or parsed.fragment:
            raise ConfigError("option url: tokens and options do not belong into a server's address", option="url")
        host = f"[{parsed.hostname}]" if ":" in parsed.hostname else parsed.hostname
        scheme = "grpc+tls" if parsed.scheme == "grpc+tls" else "grpc"
        name = urllib.parse.unquote(parsed.path.strip("/"))
        try:
            port = parsed.port or PORT
        except ValueError as error:
            raise ConfigError(f"option url: {url!r} has no port from 1 to 65535", option="url") from error
        return cls(f"{scheme}://{host}:{port}", name)

    def named(self) -> str:
        """The dataset's name, which must be given."""
        if not self.dataset:
            raise ConfigError(f"option url: {self.server} names no dataset; write {self.server}/NAME", option="url")
        return self.dataset

    def __str__(self) -> str:
        return f"{self.server}/{self.dataset}"


def attempt_of(dataset: str, write: str, task: int, attempt: int) -> bytes:
    """The descriptor's command of one attempt at one task of a write."""
    return json.dumps({"dataset": dataset, "write": write, "task": task, "attempt": attempt}).encode()


def _token(options: Mapping[str, str]) -> str | None:
    if "token" in options:
        return options["token"]
    path = options.get("token_file")
    if path is None and "BOWSTRING_TOKEN" in os.environ:
        return os.environ["BOWSTRING_TOKEN"]
    path = path or os.environ.get("BOWSTRING_TOKEN_FILE")
    if path is None:
        return None
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


class _Refusals(flight.ClientMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Keeps the error that a call of this thread ended with, as the server sent it among the trailers."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.local()
        self._version = ""

    def start_call(self, info: flight.CallInfo) -> flight.ClientMiddleware:
        """Called by Flight as a call begins."""
        self._thread.error = None
        return _Trailers(self)

    def arrived(self, error: bytes) -> None:
        """Takes the error of a call, as JSON."""
        self._thread.error = json.loads(error)

    def heard(self, version: str) -> None:
        """Takes the version of the server."""
        self._version = version

    def named(self, server: str) -> str:
        """The server, with both versions if its own differs."""
        is_other = self._version not in ("", _native.__version__)
        return f"{server} (bowstring {self._version}; this is {_native.__version__})" if is_other else server

    def taken(self) -> dict[str, Any] | None:
        """The error of this thread's last call, once, if the server described one."""
        found: dict[str, Any] | None = getattr(self._thread, "error", None)
        self._thread.error = None
        return found


class _Trailers(flight.ClientMiddleware):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, refusals: _Refusals) -> None:
        super().__init__()
        self._refusals = refusals

    def received_headers(self, headers: Mapping[str, list[str | bytes]]) -> None:
        """Called by Flight with headers, and at the end with trailers."""
        for version in headers.get(_VERSION, ()):
            self._refusals.heard(version if isinstance(version, str) else version.decode(errors="replace"))
        for value in headers.get(_DETAIL, ()):
            self._refusals.arrived(value if isinstance(value, bytes) else value.encode())


@contextmanager
def _reported(server: str, what: str, refusals: _Refusals, timeout: float) -> Iterator[None]:
    """Flight's errors as bowstring's."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        text = str(error).partition(" gRPC client debug context:")[0]
        text = text.partition("with message: ")[2] or text
        message = f"{what} at {refusals.named(server)}: {text}"
        detail = refusals.taken()
        if detail is None or detail.get("kind") not in _KINDS:
            if isinstance(error, flight.FlightTimedOutError):
                late = f"took longer than timeout ({timeout:g} s), the time of a whole call"
                message = f"{what} at {refusals.named(server)}: {late}: {text}"
            raise _by_code(error)(message) from error
        place = detail.get("at") or detail
        about = {name: place.get(name) for name in ("file", "row_group", "column", "row")}
        kind = detail["kind"]
        option = "nulls" if kind == "nulls" else detail.get("option")
        raise _KINDS[kind](message, **about, option=option) from error


def _by_code(error: Exception) -> type[Error]:
    """The class for an error without a description: of the transport, or one too long for the trailers."""
    if isinstance(error, flight.FlightTimedOutError):
        return TimeoutError
    if isinstance(error, pa.ArrowKeyError):
        return NotFoundError
    if isinstance(error, pa.ArrowNotImplementedError):
        return UnsupportedError
    if isinstance(error, pa.ArrowInvalid):
        return MismatchError
    return RemoteError


class Connection:
    """A connection to one server. It may be used by several threads.

    :param url: ``grpc://host:port`` or ``grpc+tls://host:port``; a dataset's name after it is ignored.
    :param storage_options: ``token`` or ``token_file`` (or ``BOWSTRING_TOKEN``), ``ca``, ``cert``, ``key``, ``server_name``.
    :param timeout: seconds that one call may take, a stream as a whole.
    """

    def __init__(self, url: str, storage_options: Mapping[str, str] | None = None, *, timeout: float = 600.0) -> None:
        options = dict(storage_options or {})
        self.server = Address.parse(url).server
        self.timeout = seconds("timeout", timeout)
        token = _token(options)
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        more: dict[str, Any] = {}
        for name, option in (("tls_root_certs", "ca"), ("cert_chain", "cert"), ("private_key", "key")):
            if option in options:
                with open(options[option], "rb") as file:
                    more[name] = file.read()
        if "server_name" in options:
            more["override_hostname"] = options["server_name"]
        scheme, _, rest = self.server.partition("://")
        self._refusals = _Refusals()
        self._client = flight.FlightClient(f"{_SCHEMES[scheme]}://{rest}", middleware=[self._refusals], **more)

    def _reported(self, what: str, timeout: float | None = None) -> AbstractContextManager[None]:
        return _reported(self.server, what, self._refusals, self.timeout if timeout is None else timeout)

    def options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        """Options of one call: its deadline in seconds, and the token."""
        return flight.FlightCallOptions(
            timeout=self.timeout if timeout is None else seconds("timeout", timeout), headers=self._headers
        )

    def action(self, name: str, body: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """The answer of an action, JSON on both sides."""
        text = json.dumps(body, separators=(",", ":"))
        with self._reported(name, timeout):
            [answer] = self._client.do_action((name, text.encode()), self.options(timeout))
        found: dict[str, Any] = json.loads(answer.body.to_pybytes())
        return found

    def exists(self, dataset: str) -> bool:
        """True if the server has a dataset of that name."""
        command = json.dumps({"dataset": dataset, "options": {"batch_size": 1}})
        try:
            with self._reported("GetSchema"):
                self._client.get_schema(flight.FlightDescriptor.for_command(command), self.options())
        except NotFoundError:
            return False
        except (MismatchError, UnsupportedError):  # it is there, but needs other options
            return True
        return True

    def put(self, command: bytes, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
        """Stages the rows of ``batches`` as one attempt, and returns its ``token``, ``rows`` and ``bytes``.

        :param command: see :func:`attempt_of`.
        """
        with self._reported("DoPut"):
            descriptor = flight.FlightDescriptor.for_command(command)
            writer, reader = self._client.do_put(descriptor, schema, self.options())
        # An exception of `batches` ends the call before its last message: the server then keeps nothing.
        try:
            for batch in batches:
                for piece in pieces(batch):
                    with self._reported("DoPut"):
                        writer.write_batch(piece)
            with self._reported("DoPut"):
                writer.done_writing()
                answer = reader.read()
                found = None if answer is None else json.loads(answer.to_pybytes())
        except BaseException as error:
            self._give_up(writer, error)
        with self._reported("DoPut"):
            writer.close()
        if found is None:
            raise RemoteError(f"{self.server} accepted the rows but sent no answer")
        return dict(found)

    def _give_up(self, writer: Any, error: BaseException) -> None:
        # A failed write mostly means that the server has refused; closing raises the reason. `close` on a good stream finishes
        # an attempt that is never committed, which is harmless.
        if isinstance(error, Error):
            try:
                writer.close()
            except pa.ArrowException as refusal:
                with self._reported("DoPut"):
                    raise refusal
        raise error

    def commit(
        self,
        dataset: str,
        write: str,
        mode: Mode,
        tokens: Iterable[Mapping[str, Any]],
        *,
        once: str | None = None,
    ) -> dict[str, int]:
        """Makes the attempts visible, all at once. Repeating it changes nothing, so a lost answer is requested again.

        :param tokens: of :meth:`put`; about 80,000 fit into a request.
        :param once: the name by which the commit is remembered; by default the write's own. Of several writes with one name,
            the first commit counts, and the staged rows of the others are removed.
        """
        # Without names, so that more of them fit into a request.
        short = [[token[name] for name in ("task", "attempt", "number")] for token in tokens]
        body = {"dataset": dataset, "write": write, "mode": mode, "tokens": short}
        if once is not None:
            body["once"] = once
        for tried in range(_COMMIT_TRIES):
            try:
                return self.action("put.commit", body)
            except LimitError as error:
                if error.option != "action_bytes":
                    raise
                problem = (
                    f"{len(short):,} tasks are too many for one commit; write with fewer (Spark: df.coalesce(10_000))"
                )
                raise LimitError(
                    f"{problem}, or raise action_bytes in [server.limits] ({error})", option="action_bytes"
                ) from error
            except RemoteError:
                if tried + 1 == _COMMIT_TRIES:
                    raise
                time.sleep(0.2 * 4**tried)
        raise AssertionError

    def abort(self, dataset: str, write: str) -> None:
        """Ends a write: removes staged rows and refuses later attempts."""
        self.action("put.abort", {"dataset": dataset, "write": write})

    def abort_all(self, dataset: str, prefix: str) -> int:
        """Ends all open writes whose ids begin with ``prefix`` and returns their number."""
        return int(self.action("put.abort", {"dataset": dataset, "prefix": prefix})["aborted"])

    def drop(self, dataset: str) -> bool:
        """Removes a written dataset from the server. ``False`` if there is none.

        Readers get the batches already on their way, then a :class:`bowstring.NotFoundError`. Open writes continue: the next
        commit creates the dataset again.
        """
        return bool(self.action("put.drop", {"dataset": dataset})["dropped"])

    def rows(
        self,
        dataset: str,
        *,
        parts: int = 1,
        part: int | None = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
    ) -> Rows:
        """The stored rows of a dataset.

        :param parts: number of parts, cut at row groups.
        :param part: the part, from 0; all by default.
        :param columns: whole columns, in this order.
        :param filter: rows to select.
        """
        options: dict[str, Any] = {} if filter is None else {"filter": filter}
        if columns is not None:
            options["columns"] = {"columns": list(columns)}
        wanted = {"parts": parts} if part is None else {"parts": parts, "part": part}
        command = json.dumps({"dataset": dataset, "options": options, "rows": wanted})
        with self._reported("GetFlightInfo"):
            info = self._client.get_flight_info(flight.FlightDescriptor.for_command(command), self.options())
        return Rows(self, info)

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Rows:
    """A part of a dataset's rows, or all: an iterable of record batches, with its schema."""

    def __init__(self, connection: Connection, info: flight.FlightInfo) -> None:
        self._connection = connection
        self._info = info
        self.schema: pa.Schema = info.schema
        self.total: int = info.total_records
        said = json.loads(info.app_metadata or b"{}")
        self.fingerprint: str = said.get("fingerprint", "")
        self.row_groups: int = said.get("row_groups", 1)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        connection = self._connection
        for endpoint in self._info.endpoints:
            with connection._reported("DoGet"):
                stream = connection._client.do_get(endpoint.ticket, connection.options())
            while True:
                with connection._reported("DoGet"):
                    try:
                        chunk = stream.read_chunk()
                    except StopIteration:
                        break
                yield checked(chunk.data, connection.server)


def pieces(batch: pa.RecordBatch, most: int = _MESSAGE_BYTES) -> Iterator[pa.RecordBatch]:
    """``batch`` in slices of about ``most`` bytes, each of which fits into a message."""
    parts = max(1, -(-batch.nbytes // most))
    step = max(1, -(-batch.num_rows // parts))
    for first in range(0, max(batch.num_rows, 1), step):
        yield batch.slice(first, step)
