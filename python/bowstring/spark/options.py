"""The data source's options, from Spark's texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bowstring.errors import ConfigError, UnknownOptionError
from bowstring.flight import is_server
from bowstring.options import Mode
from bowstring.ranges import LONGEST, MOST, seconds

__all__ = ["SourceOptions"]

_OF_STORE = ("token", "token_file", "ca", "cert", "key", "server_name")
_EXISTS = ("append", "replace", "error", "ignore")
_OF_WRITER = ("rows_per_group", "group_bytes", "rows_per_file", "file_bytes")
_OURS = (
    *("columns", "filter", "parts", "if_exists", "overwrite_foreign", "pushdown", "timeout", "compression"),
    *_OF_STORE,
    *_OF_WRITER,
)
# What they mean for a write.
_OF_READS = {
    "filter": "it chooses rows to read, and a write writes all; filter the frame, with df.where",
    "columns": "it chooses columns to read, and a write writes all; choose those of the frame, with df.select",
    "parts": "it is the number of tasks of a read, and a write has those of the frame; use df.repartition or df.coalesce",
    "pushdown": "it is about filters of a read, and a write has none; leave it out",
}
# What Spark passes itself. The last two are done anyway.
_SPARKS = ("path", "paths", "checkpointlocation", "queryname", "recursivefilelookup", "mergeschema")


@dataclass(frozen=True)
class SourceOptions:
    """The values of ``.option(...)`` and ``.load(url)`` or ``.save(url)``."""

    url: str
    """``grpc://host:port/dataset``, or a directory."""
    columns: tuple[str, ...] | None
    """Columns to read; all by default."""
    filter: str | None
    """Rows to read, as in ``docs/filter.md``."""
    parts: int | None
    """Tasks to read with."""
    if_exists: str | None
    """Treatment of an existing dataset: ``append``, ``replace``, ``error`` or ``ignore``."""
    overwrite_foreign: bool
    """True if ``replace`` may delete a directory that is not a dataset of bowstring's."""
    pushdown: bool
    """Push down Spark's own filters."""
    timeout: float
    """Seconds that a call to a server may take: the rows of a whole task are one call."""
    checkpoints: str | None
    """The checkpoint directory of a streaming query; ``None`` if only Spark's configuration has it."""
    storage: dict[str, str] = field(repr=False)
    """Token and certificates."""
    writer: dict[str, Any]
    """Options of :class:`bowstring.DatasetWriter`."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> SourceOptions:
        """Reads Spark's options, whose names are case-insensitive.

        :raises ConfigError: for a name that is no option, and a value that an option has not.
        """
        options = {name.lower(): value for name, value in given.items()}
        _refuse_unknown(options)
        url = options.get("path", "")
        if not url:
            # Spark passes none of the options of a table in a catalogue to a source in Python, its place neither.
            problem = (
                "give .load(url) or .save(url); in SQL, CREATE TEMPORARY VIEW name USING bowstring OPTIONS (path 'url'), since "
                "Spark does not tell sources in Python where a table of CREATE TABLE is"
            )
            raise ConfigError(f"option path: {problem}", option="path")
        exists = options.get("if_exists")
        if exists is not None and exists not in _EXISTS:
            raise ConfigError(f"option if_exists: {exists!r} is not one of {', '.join(_EXISTS)}", option="if_exists")
        columns = _columns(options)
        writer: dict[str, Any] = {name: _number(options, name) for name in _OF_WRITER if name in options}
        if "compression" in options:
            writer["compression"] = options["compression"]
        if writer and is_server(url):
            name = next(iter(writer))
            raise ConfigError(f"option {name}: the server decides how it stores what is written there", option=name)
        return cls(
            url=url,
            columns=columns,
            filter=options.get("filter"),
            parts=_number(options, "parts", (1 << 31) - 1) if "parts" in options else None,
            if_exists=exists,
            overwrite_foreign=_flag(options, "overwrite_foreign"),
            pushdown=_flag(options, "pushdown"),
            timeout=_seconds(options),
            checkpoints=options.get("checkpointlocation"),
            storage={name: options[name] for name in _OF_STORE if name in options},
            writer=writer,
        )

    def for_writing(self) -> SourceOptions:
        """The same.

        :raises ConfigError: for an option of reads alone: all rows and columns would be written.
        """
        given = {"filter": self.filter, "columns": self.columns, "parts": self.parts, "pushdown": self.pushdown or None}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"option {name}: {_OF_READS[name]}", option=name)
        return self

    def exists(self, overwrite: bool) -> str:
        """Treatment of an existing dataset; ``overwrite`` comes from the save mode."""
        return self.if_exists or ("replace" if overwrite else "append")

    def exists_of_stream(self, overwrite: bool) -> str:
        """The same for a stream. Its output mode decides: every micro-batch is a write, and would replace the one before.

        :raises ConfigError: if ``if_exists`` is not what the output mode does.
        """
        does = "replace" if overwrite else "append"
        if self.if_exists not in (None, does):
            problem = (
                f"a stream appends, or replaces in mode complete, and {self.if_exists!r} is another thing than its mode's "
                f"{does!r}; leave it out"
            )
            raise ConfigError(f"option if_exists: {problem}", option="if_exists")
        return does

    def mode(self, overwrite: bool) -> Mode:
        """The same, as the mode of a commit."""
        modes: dict[str, Mode] = {"append": "append", "replace": "replace", "error": "create", "ignore": "create"}
        return modes[self.exists(overwrite)]


def _refuse_unknown(options: Mapping[str, str]) -> None:
    names = list(options)
    if "provider" in options:
        # Of a table in a catalogue, whose properties come along; what its maker gave as options is also below `option.`.
        names = [name.removeprefix("option.") for name in names if name.startswith("option.")]
    for name in names:
        if name not in (*_OURS, *_SPARKS) and not name.startswith("__"):
            import difflib  # not for those who make no mistakes

            near = difflib.get_close_matches(name, _OURS, 1)
            problem = f"did you mean {near[0]}?" if near else f"there are {', '.join(_OURS)}"
            raise UnknownOptionError(f"{name[:64]} is not an option of bowstring's data source; {problem}", option=name)


def _columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    if "columns" not in options:
        return None
    names = tuple(name.strip() for name in options["columns"].split(",") if name.strip())
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"option columns: {twice!r} is there twice; name it once", option="columns")
    return names


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false")
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"option {name}: {text[:64]!r} is not true or false", option=name)
    return text.lower() == "true"


def _number(options: Mapping[str, str], name: str, most: int = MOST) -> int:
    try:
        number = int(options[name])
    except ValueError:
        number = 0
    if not 1 <= number <= most:
        problem = f"{options[name][:64]!r} is not a whole number from 1 to {most}"
        raise ConfigError(f"option {name}: {problem}", option=name)
    return number


def _seconds(options: Mapping[str, str]) -> float:
    text = options.get("timeout", "600")
    try:
        return seconds("timeout", float(text))
    except ValueError:  # a ConfigError is one, too
        problem = f"{text[:64]!r} is not a number of seconds above 0, at most {LONGEST:.0f}"
        raise ConfigError(f"option timeout: {problem}", option="timeout") from None
