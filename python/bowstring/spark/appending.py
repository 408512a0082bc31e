"""Checks that files which are added to a directory are rows of one dataset there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bowstring.errors import ConfigError, CorruptError, Error, MismatchError
from bowstring.planning import plan
from bowstring.spark.tables import log_of
from bowstring.writer import DatasetWriter

__all__ = ["appendable", "fitting", "fitting_files", "unmanaged"]

# Versions of the datasets that a server has are in this directory, below their names.
_SERVERS = ".bowstring"


def appendable(path: Path) -> None:
    """Checks that ``path`` is no table of another system.

    :raises ConfigError: if it is one, whose log would not know the files.
    """
    if (system := log_of(path)) is not None:
        problem = (
            f"{path} is a table of {system}, whose readers would never see rows that bowstring adds; append with {system}'s own "
            "format of Spark, or write to another directory"
        )
        raise ConfigError(f"option path: {problem}", option="path")


def unmanaged(path: Path) -> None:
    """Checks that no server has the dataset at ``path``.

    :raises ConfigError: if one has, whose next commit would drop rows that it did not write.
    """
    version = Path(os.path.realpath(path))
    if version.parent.parent.name == _SERVERS and (version / "_record.json").exists():
        problem = (
            f"{path} is dataset {version.parent.name} of a server, whose next commit would drop rows that come by another way; "
            f"write to grpc://HOST:PORT/{version.parent.name}"
        )
        raise ConfigError(f"option path: {problem}", option="path")


def fitting(path: Path, schema: Any) -> None:
    """Checks that rows of an Arrow schema may be appended to ``path``.

    :raises ConfigError: if it is no dataset of Parquet.
    :raises MismatchError: if no loader could read them together with the rows that are there.
    """
    appendable(path)
    if _first(path) is None:
        return
    with tempfile.TemporaryDirectory(prefix="bowstring-") as directory:
        empty = Path(directory, "appended")
        with DatasetWriter(empty, schema):
            pass
        _checked(path, next(empty.glob("*.parquet")))


def fitting_files(path: Path, attempts: Sequence[Path]) -> None:
    """As :func:`fitting`, for rows that are written already, in the directories ``attempts``."""
    appendable(path)
    written = next((file for attempt in attempts for file in sorted(attempt.glob("*.parquet"))), None)
    if written is not None:
        _checked(path, written)


def _checked(path: Path, written: Path) -> None:
    there = _first(path)
    if there is None:
        return
    try:
        plan([str(there), str(written)], batch_size=1)
    except MismatchError as error:
        raise MismatchError(
            f"option path: rows of other columns are appended to {path}: {error}", column=error.column
        ) from error
    except CorruptError as error:
        if there.name.endswith(".parquet"):
            return
        problem = f"{path} is no dataset of Parquet, so nothing is appended to it; write to another directory ({error})"
        raise ConfigError(f"option path: {problem}", option="path") from error
    except Error:  # about something else than both files together: the rows are as readable as they were
        return


def _first(path: Path) -> Path | None:
    """A file of the dataset: one of Parquet by its name, else one without an ending, else any that readers see."""
    other, plain = None, None
    for directory, below, files in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith(("_", ".")))
        for name in sorted(name for name in files if not name.startswith(("_", "."))):
            if name.endswith(".parquet"):
                return Path(directory, name)
            other = other or Path(directory, name)
            if "." not in name:
                plain = plain or Path(directory, name)
    return plain or other
