"""Errors, one class for each remedy.

Each error carries its place in the dataset if it is known: ``file``, ``row_group``, ``column`` and ``row`` (counted from zero;
the row within its row group), and ``option``, the option to change. ``url`` is the section of the docs that says what to do.
"""

from __future__ import annotations

import builtins

__all__ = [
    "ClosedError",
    "ConfigError",
    "CorruptError",
    "DeviceError",
    "Error",
    "FencedError",
    "LimitError",
    "MismatchError",
    "NotFoundError",
    "NullsError",
    "RemoteError",
    "ShardingError",
    "SourceChangedError",
    "StoreError",
    "TimeoutError",
    "UnknownOptionError",
    "UnsupportedError",
    "WideIntegersError",
]

_PAGE = "https://github.com/bowstring-data/bowstring/blob/main/docs/troubleshooting.md"


class Error(Exception):
    """Any error of bowstring."""

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        row_group: int | None = None,
        column: str | None = None,
        row: int | None = None,
        option: str | None = None,
    ) -> None:
        super().__init__(message)
        self.file = file
        self.row_group = row_group
        self.column = column
        self.row = row
        self.option = option

    @property
    def url(self) -> str:
        """The section of the docs on errors of this class."""
        known = next(base.__name__ for base in type(self).__mro__ if base.__module__ == __name__)
        return f"{_PAGE}#{known.lower()}"


class NotFoundError(Error, FileNotFoundError, LookupError):
    """A path, column or dataset does not exist: correct the name."""


class CorruptError(Error):
    """The bytes are damaged or hostile: replace the file, or set ``bad_rows``."""


class NullsError(Error, ValueError):
    """Columns have nulls, and no option handles them: set ``nulls``, or filter these rows out.

    It is raised when a loader is opened if footers count nulls, else with the row.
    """


class SourceChangedError(Error):
    """A file has changed since the plan was made: open a new loader."""


class MismatchError(Error, ValueError):
    """Two things that must agree do not: schemas of two files, a state and a plan."""


class UnsupportedError(Error):
    """The data is valid, but not supported."""


class LimitError(Error):
    """A limit was reached before anything was allocated: raise ``option`` if the data is trusted."""


class ConfigError(Error, ValueError):
    """An option has an impossible value: correct ``option``."""


class UnknownOptionError(ConfigError, TypeError):
    """A keyword is not an option: the message names the corresponding one."""


class WideIntegersError(ConfigError, OverflowError):
    """Integers need more than 32 bits, which JAX lacks: set ``jax_enable_x64``, or exclude the column."""


class ShardingError(ConfigError):
    """Batches cannot be distributed over the devices of a sharding: change ``batch_size`` or the sharding."""


class StoreError(Error, OSError):
    """The store failed: check network, credentials, permissions, disk."""


class TimeoutError(Error, builtins.TimeoutError):
    """A wait passed its deadline; the message names the stage or peer that did not answer."""


class RemoteError(Error, ConnectionError):
    """A server refused or failed: check its address, the token, and its log."""


class FencedError(Error):
    """The gang was restarted: go back to the last acknowledged step and join again."""


class DeviceError(Error, RuntimeError):
    """A device is missing, refused or failed: check the driver, its memory, and the devices visible to this process."""


class ClosedError(Error):
    """The loader was closed, or this process was forked after it had started."""
