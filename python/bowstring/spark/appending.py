"""Checks that files which are added to a directory are rows of one dataset there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bowstring.errors import ConfigError, CorruptError, Error, MismatchError
from bowstring.paths import is_hidden
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
    files = [there, *_others(path, there, _columns(written))]
    try:
        plan([str(file) for file in (*files, written)], batch_size=1)
    except MismatchError as error:
        raise _differing(path, files, written, error) from error
    except CorruptError as error:
        if there.name.endswith(".parquet"):
            return
        problem = f"{path} is no dataset of Parquet, so nothing is appended to it; write to another directory ({error})"
        raise ConfigError(f"option path: {problem}", option="path") from error
    except Error:  # about something else than the files together: the rows are as readable as they were
        pass
    _check_case(path, there, set(_names(written)))


def _others(path: Path, first: Path, names: set[str]) -> Iterator[Path]:
    """Files of the dataset that have columns of ``names`` which ``first`` has not, or which have no values there.

    Every write was checked, so types that fit one file that has a column fit all of them; all files are read for new names only.
    """
    names = names - _columns(first)
    for file in _newest(path) if names else ():
        if names & (known := _columns(file)):
            yield file
            names = names - known
        if not names:
            return


def _differing(path: Path, files: Sequence[Path], written: Path, error: MismatchError) -> MismatchError:
    """Names the column that differs, with both types."""
    new = _schema(written)
    for file in files:
        there = _schema(file)
        for field in new:
            if field.name not in there.names or there.field(field.name).type.equals(field.type):
                continue
            try:
                plan([str(file), str(written)], batch_size=1, columns=[field.name])
            except MismatchError:
                problem = (
                    f'column "{field.name}" is {there.field(field.name).type} there, in file {file.relative_to(path)}, and '
                    f"{field.type} in the rows that are appended; cast it, or write to another directory"
                )
                return MismatchError(
                    f"option path: rows of other columns are appended to {path}: {problem}", column=field.name
                )
            except Error:  # about something else than its type
                continue
    return MismatchError(f"option path: rows of other columns are appended to {path}: {error}", column=error.column)


def _check_case(path: Path, there: Path, names: set[str]) -> None:
    """Refuses names that differ from those of the dataset only in case: Spark would read both, each half null, and find neither.

    Every write was checked, so names that are in a file of the dataset fit, and all its files are read for new names only.
    """
    new = names
    for file in chain((there,), _newest(path)):
        known = set(_names(file))
        new = new - known
        if not new:
            return
        folded = {name.lower(): name for name in known}
        if twin := next((name for name in sorted(new) if name.lower() in folded), None):
            problem = (
                f"column {twin!r} of the rows that are appended to {path} is {folded[twin.lower()]!r} there, which Spark takes for "
                "the same name; rename it"
            )
            raise MismatchError(f"option path: {problem}", column=twin)


def _newest(path: Path) -> Iterator[Path]:
    """All files of the dataset, the newest ones first: a column that came later is in them."""
    yield from sorted(_files(path), key=_written_at, reverse=True)


def _written_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:  # it was removed meanwhile
        return 0.0


def _schema(file: Path) -> pa.Schema:
    """The columns of a file; none if it is no Parquet."""
    try:
        return pq.read_schema(file)
    except (pa.ArrowException, OSError):
        return pa.schema([])


def _columns(file: Path) -> set[str]:
    """The columns of a file, without those that have no type."""
    return {field.name for field in _schema(file) if not pa.types.is_null(field.type)}


def _names(file: Path) -> Iterator[str]:
    """The columns of a file, and the fields within them, with dots between."""
    below = [("", field) for field in _schema(file)]
    while below:
        before, field = below.pop()
        name = f"{before}{field.name}"
        yield name
        below += [(f"{name}.", child) for child in _within(field.type)]


def _within(kind: Any) -> list[Any]:
    if pa.types.is_struct(kind):
        return [kind.field(number) for number in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [kind.value_field]
    return []


def _first(path: Path) -> Path | None:
    """A file of the dataset: one of Parquet by its name, else one without an ending, else any that readers see."""
    other, plain = None, None
    for file in _files(path):
        if file.name.endswith(".parquet"):
            return file
        other = other or file
        if "." not in file.name:
            plain = plain or file
    return plain or other


def _files(path: Path) -> Iterator[Path]:
    """All files that readers see."""
    for directory, below, files in os.walk(path):
        below[:] = sorted(name for name in below if not is_hidden(name))
        yield from (Path(directory, name) for name in sorted(files) if not is_hidden(name))
