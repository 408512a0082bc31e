"""Credentials that expire, from a callable of yours: ``Loader(url, credential_provider=...)``.

Both shapes that are in use are taken. obstore's: a mapping with ``expires_at``, a ``datetime`` with a time zone or ``None``.
And polars': a pair of a mapping and the time of expiry, in seconds since 1970 or ``None``. The callable may be ``async``.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from bowstring.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

__all__ = ["CredentialProvider", "Given"]

Given: TypeAlias = "Mapping[str, Any] | tuple[Mapping[str, Any], float | None]"
"""What a provider returns."""
CredentialProvider: TypeAlias = "Callable[[], Given | Awaitable[Given]]"
"""What ``credential_provider`` may be."""

_OPTION = "credential_provider"


def provider(given: CredentialProvider | None) -> tuple[str, Callable[[], tuple[dict[str, str], float | None]]] | None:
    """``given`` as Rust takes it: its name, and a callable of one shape."""
    if given is None:
        return None
    asked: object = given
    if not callable(asked):
        kind = type(asked).__name__
        raise ConfigError(f"option {_OPTION}: a {kind} cannot be called; give what returns credentials", option=_OPTION)
    return _name(given), _Asked(given)


def _name(given: Any) -> str:
    """What names it in errors: not its ``repr``, which may have what it holds."""
    of = given if hasattr(given, "__qualname__") else type(given)
    return f"{of.__module__}.{of.__qualname__}"


class _Asked:
    """Calls a provider, and brings what it gives into one shape. Never called twice at a time."""

    def __init__(self, given: CredentialProvider) -> None:
        self._given = given
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self) -> tuple[dict[str, str], float | None]:
        found = self._given()
        if inspect.isawaitable(found):
            found = self._run(found)
        return _shaped(found)

    def _run(self, found: Awaitable[Given]) -> Given:
        # One loop for all calls: what a provider keeps open, such as a session, belongs to it.
        if self._loop is None:
            # Not with the package: it takes longer to import than all of it.
            import asyncio

            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, self._loop.close)

        async def wait() -> Given:
            return await found

        return self._loop.run_until_complete(wait())


def _shaped(found: Any) -> tuple[dict[str, str], float | None]:
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Mapping):
        values, expires = found
        if isinstance(expires, datetime):
            expires = _seconds(expires)
        elif expires is not None and (isinstance(expires, bool) or not isinstance(expires, (int, float))):
            raise _wrong(f"the expiry that it gives is a {type(expires).__name__}, not seconds since 1970 or None")
    elif isinstance(found, Mapping):
        values, expires = found, found.get("expires_at")
        if expires is not None:
            expires = _seconds(expires)
    else:
        raise _wrong(f"it gives a {type(found).__name__}, not a mapping, or a pair of a mapping and an expiry")
    texts = {}
    for key, value in values.items():
        if key == "expires_at" or value is None:
            continue
        if not isinstance(value, str):
            raise _wrong(f"the {key} that it gives is a {type(value).__name__}, not text")
        texts[str(key)] = value
    return texts, None if expires is None else float(expires)


def _seconds(expires: Any) -> float:
    if not isinstance(expires, datetime) or expires.tzinfo is None:
        raise _wrong("the expires_at that it gives is no datetime with a time zone")
    return expires.timestamp()


def _wrong(problem: str) -> ConfigError:
    return ConfigError(problem, option=_OPTION)
