"""Credentials that expire, from a callable of yours: ``Loader(url, credential_provider=...)``.

Both common shapes are accepted. obstore's: a mapping with ``expires_at``, a ``datetime`` with a time zone or ``None``.
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
"""Return value of a provider."""
CredentialProvider: TypeAlias = "Callable[[], Given | Awaitable[Given]]"
"""Type of ``credential_provider``."""

_OPTION = "credential_provider"


def provider(given: CredentialProvider | None) -> tuple[str, Callable[[], tuple[dict[str, str], float | None]]] | None:
    """``given`` in the form for Rust: its name, and a callable with one return type."""
    if given is None:
        return None
    asked: object = given
    if not callable(asked):
        kind = type(asked).__name__
        raise ConfigError(f"option {_OPTION}: a {kind} cannot be called; give what returns credentials", option=_OPTION)
    return _name(given), _Asked(given)


def _name(given: Any) -> str:
    """Its name for errors: not its ``repr``, which may reveal its content."""
    of = given if hasattr(given, "__qualname__") else type(given)
    return f"{of.__module__}.{of.__qualname__}"


class _Asked:
    """Calls a provider and normalises its result. Never called concurrently."""

    def __init__(self, given: CredentialProvider) -> None:
        self._given = given
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self) -> tuple[dict[str, str], float | None]:
        found = self._given()
        if inspect.isawaitable(found):
            found = self._run(found)
        return _shaped(found)

    def _run(self, found: Awaitable[Given]) -> Given:
        # One loop for all calls: objects that a provider keeps open, such as a session, belong to it.
        if self._loop is None:
            # Not imported with the package: its import takes longer than that of the package.
            import asyncio

            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, _closed, self._loop)

        async def wait() -> Given:
            return await found

        return self._loop.run_until_complete(wait())


def _closed(loop: asyncio.AbstractEventLoop) -> None:
    # At the end of the process a call may still be under way.
    if not loop.is_running():
        loop.close()


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
