"""Shared by Flight servers in Python: authentication, typed errors, a shutdown that waits for no caller."""

from __future__ import annotations

import hmac
import ipaddress
import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pyarrow.flight as flight

from bowstring.errors import ConfigError
from bowstring.flight.server import check_tls

__all__ = ["Endpoint", "is_everywhere", "is_loopback", "split_listen"]

E = TypeVar("E", bound="Endpoint")
_MIN_TOKEN = 16
# Seconds for calls to end.
_CLOSING = 10.0


def split_listen(listen: str) -> tuple[str, int]:
    """Host and port of ``host:port``."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or not host:
        raise ConfigError(f"option listen: {listen!r} is not host:port", option="listen")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """True if only this machine reaches ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_everywhere(host: str) -> bool:
    """True if ``host`` means all addresses of its machine, so that no client can connect to it by that name."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def check_open(host: str, *, token: str | None, encrypted: bool, known: bool, insecure: bool) -> None:
    """Refuses accidental exposure: listening beyond this machine requires TLS and a token or ``known`` clients, or ``insecure``."""
    if token is not None and len(token) < _MIN_TOKEN:
        raise ConfigError(f"option token: a token has {_MIN_TOKEN} characters or more", option="token")
    if not is_loopback(host) and not insecure and not (encrypted and (known or token is not None)):
        problem = f"{host} is reached by others: give tls_cert, tls_key, and token or client_ca, or insecure=True"
        raise ConfigError(f"option listen: {problem}", option="listen")


class _Door(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses calls without the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        given = next(iter(headers.get("authorization", [])), "")
        if not hmac.compare_digest(given.encode(), self._expected):
            raise flight.FlightUnauthenticatedError("a good token is missing: authorization: Bearer TOKEN")


class Endpoint(flight.FlightServerBase):  # type: ignore[misc]
    """A Flight server on threads of its own. Subclasses answer the calls.

    :param listen: ``host:port``; port 0 is any that is free.
    :param token: the token of callers, 16 characters or more.
    :param insecure: permit other machines without TLS and a token.
    :param tls_cert: certificate, PEM.
    :param tls_key: its private key, PEM.
    :param client_ca: CA of client certificates, PEM: callers without one are refused.
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        *,
        token: str | None = None,
        insecure: bool = False,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        client_ca: str | None = None,
    ) -> None:
        host, port = split_listen(listen)
        check_tls(tls_cert, tls_key, client_ca)
        encrypted = tls_cert is not None and tls_key is not None
        check_open(host, token=token, encrypted=encrypted, known=client_ca is not None, insecure=insecure)
        shown = f"[{host}]" if ":" in host else host
        more: dict[str, Any] = {}
        if tls_cert is not None and tls_key is not None:
            more["tls_certificates"] = [(Path(tls_cert).read_bytes(), Path(tls_key).read_bytes())]
        if client_ca is not None:
            more |= {"verify_client": True, "root_certificates": Path(client_ca).read_bytes()}
        if token is not None:
            more["middleware"] = {"door": _Door(token)}
        super().__init__(f"{'grpc+tls' if encrypted else 'grpc+tcp'}://{shown}:{port}", **more)
        self._url = f"{'grpc+tls' if encrypted else 'grpc'}://{shown}:{self.port}"
        self._open = True

    @property
    def url(self) -> str:
        """Its address: ``grpc://host:port``."""
        return self._url

    def close(self) -> None:
        """Ends the server. Calls in progress end first, but it does not wait for a client that is stuck."""
        if self._open:
            self._open = False
            ending = threading.Thread(target=self.shutdown, name="bowstring-shutdown", daemon=True)
            ending.start()
            ending.join(_CLOSING)

    def __enter__(self: E) -> E:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def answer(body: dict[str, Any]) -> list[bytes]:
    """Encodes an action's answer."""
    return [json.dumps(body).encode()]
