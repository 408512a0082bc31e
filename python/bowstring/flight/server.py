"""A Flight server within this process: for notebooks, Spark executors and tests. For production, ``bowstring serve``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from bowstring import _native
from bowstring.errors import ConfigError
from bowstring.options import Mode, Url, dumped, size, urls_of
from bowstring.ranges import seconds

__all__ = ["Server", "Write", "check_tls"]

_DAY = 86_400.0


class Server:
    """Serves datasets to loaders and accepts written ones, on threads of its own, until it is closed.

    >>> with Server({"photos": "photos/*.parquet"}) as server:  # doctest: +SKIP
    ...     loader = bowstring.Loader(f"{server.url}/photos", batch_size=32)

    :param datasets: name -> file, directory, glob or URL, or a list of them.
    :param listen: address and port; port 0 is any free one.
    :param put: the place of datasets that clients write: ``"memory"``, or a directory. By default clients cannot write.
    :param memory_budget: bytes for everything in flight, or text such as ``"2GiB"``.
    :param threads: CPU threads for decoding; all that this process may use.
    :param tokens: tokens of clients, each ``"tenant:token"``.
    :param tls_cert: certificate in PEM, a file.
    :param tls_key: its private key, a file.
    :param client_ca: CA of client certificates, PEM, a file: every client then shows a certificate (``cert`` and
        ``key`` of its ``storage_options``), whose name is the tenant if there are no tokens.
    :param insecure: serve everyone who can reach the address; needed beyond loopback without TLS and tokens, or ``client_ca``.
    :param drain_grace: seconds for streams to end when the server is closed (1).
    :param audit_log: a file that gets a line of JSON for each call and each end of a stream.
    :param spaces: name of a space -> tenants that share its gangs and written datasets (a grant); every other tenant has a space
        of its own.
    :param check: open each dataset before the first client, so that a damaged or missing file is an error here.
    :param options: other options of the table ``[server]`` of ``bowstring serve``'s configuration.
    """

    def __init__(
        self,
        datasets: Mapping[str, Url | Sequence[Url]] | None = None,
        *,
        listen: str = "127.0.0.1:0",
        put: Url | None = None,
        memory_budget: int | str | None = None,
        threads: int | None = None,
        tokens: Sequence[str] | None = None,
        tls_cert: Url | None = None,
        tls_key: Url | None = None,
        client_ca: Url | None = None,
        insecure: bool = False,
        drain_grace: float = 1.0,
        audit_log: Url | None = None,
        spaces: Mapping[str, Sequence[str]] | None = None,
        check: bool = True,
        **options: Any,
    ) -> None:
        options["drain_grace"] = drain_grace
        check_tls(tls_cert, tls_key, client_ca)
        tls = (
            None
            if tls_cert is None
            else {"cert": _path(tls_cert), "key": _path(tls_key), "client_ca": _path(client_ca)}
        )
        for name, zero in (("drain_grace", True), ("gang_lease", False), ("refresh", True)):
            if options.get(name) is not None:
                options[name] = seconds(name, options[name], _DAY, zero=zero)
        server = {
            "listen": listen,
            "put": None if put is None else _path(put),
            "memory_budget": None if memory_budget is None else size(memory_budget),
            "threads": threads,
            "tls": tls,
            "insecure": insecure,
            "audit_log": _path(audit_log),
            "spaces": None if spaces is None else {name: list(tenants) for name, tenants in spaces.items()},
            **options,
        }
        document = {
            "datasets": {name: _urls(urls) for name, urls in (datasets or {}).items()},
            "check": check,
            "tokens": None if tokens is None else list(tokens),
            "server": {name: value for name, value in server.items() if value is not None},
        }
        self._native = _native.Server(dumped(document))

    @property
    def url(self) -> str:
        """Its address, e.g. ``grpc://127.0.0.1:41234``; datasets are below it."""
        return self._native.url

    def put(self, name: str, data: Any, *, mode: Mode = "create") -> dict[str, int]:
        """Writes rows of this process to the server, without a connection: they appear at once or not at all.

        >>> with Server(put="memory") as server:  # doctest: +SKIP
        ...     server.put("train", pyarrow.table({"x": [1.0, 2.0]}))
        ...     loader = bowstring.Loader(f"{server.url}/train", batch_size=2)

        The same as a client's DoPut and commit; the server needs ``put=``. After Ctrl-C during the commit it may still be made:
        look whether the rows are there before you put them again.

        :param name: the dataset.
        :param data: anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``: a table, a reader, a frame of polars.
        :param mode: an existing dataset is an error (``create``), replaced (``replace``) or extended (``append``).
        :returns: ``rows``, ``bytes`` as stored, and ``files``.
        """
        with self.write(name, mode) as write:
            write.stage(data)
        return write.committed

    def write(self, name: str, mode: Mode = "create") -> Write:
        """Writes rows in parts, in a ``with`` statement: they appear together at its end, or not at all if it ends with an error.

        After Ctrl-C during the commit, at the end, it may still be made: see :meth:`put`.

        >>> with server.write("train") as write:  # doctest: +SKIP
        ...     for table in tables:
        ...         write.stage(table)

        :param name: the dataset.
        :param mode: as for :meth:`put`.
        """
        return Write(self._native, name, mode)

    def close(self) -> None:
        """Drains and stops; Ctrl-C cuts what is left. Closing again does nothing."""
        self._native.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Write:
    """Rows on their way into a server of this process: see :meth:`Server.write`."""

    def __init__(self, native: _native.Server, dataset: str, mode: Mode) -> None:
        self._native = native
        self._dataset = dataset
        self._mode = mode
        self._id = os.urandom(16).hex()
        self._tokens: list[dict[str, int]] = []
        self.rows = 0
        """Staged rows."""
        self.committed: dict[str, int] = {}
        """``rows``, ``bytes`` as stored, and ``files``, after the commit."""

    def stage(self, data: Any) -> None:
        """Stages the rows of ``data``, all or none: see :meth:`Server.put`."""
        staged = json.loads(self._native.stage(self._dataset, self._id, len(self._tokens), data))
        self._tokens.append(staged["token"])
        self.rows += staged["rows"]

    def commit(self) -> None:
        """Makes the staged rows visible; the end of the ``with`` statement does it. After Ctrl-C it may still be made."""
        tokens, mode = json.dumps(self._tokens), json.dumps(self._mode)
        self.committed = json.loads(self._native.commit(self._dataset, self._id, mode, tokens))

    def __enter__(self) -> Write:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        elif self._tokens:
            self._native.abort(self._dataset, self._id)


def check_tls(tls_cert: Url | None, tls_key: Url | None, client_ca: Url | None) -> None:
    """Refuses incomplete TLS options."""
    if (tls_cert is None) != (tls_key is None):
        lacking = "tls_key" if tls_key is None else "tls_cert"
        raise ConfigError(f"option {lacking}: TLS needs tls_cert and tls_key", option=lacking)
    if client_ca is not None and tls_cert is None:
        problem = "clients show certificates over TLS only: give tls_cert and tls_key too"
        raise ConfigError(f"option client_ca: {problem}", option="client_ca")


def _path(path: Url | None) -> str | None:
    return None if path is None else os.path.expanduser(path)


def _urls(urls: Url | Sequence[Url]) -> list[str]:
    return [os.path.expanduser(url) for url in urls_of(urls)]
