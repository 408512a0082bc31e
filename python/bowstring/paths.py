"""Addresses as users write them: their local path, the part that may be shown, and the names below them that are no data."""

from __future__ import annotations

import re

from bowstring.errors import ConfigError

__all__ = ["is_hidden", "local_path", "shown"]


def local_path(address: str, option: str = "path") -> str | None:
    """The path of a ``file:`` URL unchanged, with ``%20`` and the like; a plain path itself; ``None`` for other URLs.

    Hadoop writes URLs with one slash too (``hdfs:/x``, ``dbfs:/x``).

    :raises ConfigError: for a URL with ``#`` or ``?``. Its path ends there, and may be that of another directory.
    """
    if not address.startswith("file:"):
        return None if "://" in address or re.match("[A-Za-z][A-Za-z0-9+.-]+:/", address) else address
    if "#" in address or "?" in address:
        raise ConfigError(
            f"option {option}: {address} has a # or ? in it, where the path of a URL ends; give the plain path, write %23 and %3F "
            "where bowstring's own readers and Spark's format decode them, or rename the directory",
            option=option,
        )
    path = address.removeprefix("file:")
    # A host follows two slashes, and it is this one.
    return "/" + path[2:].partition("/")[2] if path.startswith("//") else path


def is_hidden(part: str) -> bool:
    """True if a file or directory of this name is no data unless it is named on purpose: the rule of loaders."""
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def shown(address: str) -> str:
    """An address for messages: a URL without user, password, query and fragment."""
    if "://" not in address:
        return address
    scheme, _, rest = address.partition("://")
    place = re.split("[?#]", rest, maxsplit=1)[0]
    # Azure's form has the container before the @, which is no credential unless there is a password.
    user, at, host = place.rpartition("@")
    is_container = scheme.startswith("abfs") and at and not set(user) & set(":/@")
    return f"{scheme}://{place if is_container else host}"
