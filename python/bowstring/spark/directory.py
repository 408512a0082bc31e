"""Writing to a directory that all executors see: tasks write Parquet into a hidden place, one rename makes it visible.

```text
  clicks/                                seen by readers
    write-spark-5f0c.../                 one commit each: renamed into its place, whole
      000000x0x9f3a-part-00000.parquet
  .clicks.bowstring-spark-77ab.../       a write under way, ignored by readers
    000003x1x01bc/part-00000.parquet     one attempt at one task
```
A first commit renames a directory that holds its one ``write-...``, an append renames only that, and a replacing one exchanges two
directories; after a kill, on file systems that cannot do that in one step, the next write puts the old directory back.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bowstring._native import __version__
from bowstring.errors import ClosedError, ConfigError, StoreError
from bowstring.paths import local_path, shown
from bowstring.spark import lock, swap
from bowstring.spark.appending import appendable, fitting, fitting_files, unmanaged
from bowstring.spark.footers import with_spark_row
from bowstring.spark.options import SourceOptions
from bowstring.spark.task import Attempt, new_write, tries
from bowstring.spark.types import conform, stored_schema
from bowstring.writer import DatasetWriter

__all__ = ["DirectoryStreamWriter", "DirectoryWriter", "Place", "local", "replaceable"]

_OPEN = "_open"
# Files that belong beside Parquet files.
_BESIDE = {"_common_metadata", "_metadata"}
_REMOVALS = 20


def local(url: str) -> Path:
    """The directory of a path or a ``file:`` URL."""
    path = local_path(url)
    if path is None:
        problem = (
            "give a server, or a directory that all executors see (of dbfs:/x that is /dbfs/x); "
            "convert() and Spark's own formats write to stores"
        )
        raise ConfigError(f"option path: {shown(url)}: {problem}", option="path")
    return Path(unquote(path) if url.startswith("file:") else os.path.abspath(os.path.expanduser(path)))


@dataclass
class Written(WriterCommitMessage):
    """The result of one attempt."""

    write: str
    """The write that it belongs to."""
    directory: str
    """Its place; empty if nothing is to be committed."""
    rows: int
    """Rows written."""
    once: str | None = None
    """The micro-batch; one try of it is committed."""


class Place:
    """The directory where one write gathers its files, and its destination.

    :param path: the dataset.
    :param write: the write's name.
    :param once: the name of the commit, if the write is one of several attempts at it.
    """

    def __init__(self, path: Path, write: str, once: str | None = None) -> None:
        self.path = path
        self.write = write
        self.hidden = path.parent / f"{_hidden(path)}{write}"
        self.committed = path / f"write-{once or write}"
        """The write, once it is visible."""

    @staticmethod
    def remove_all(path: Path, prefix: str) -> None:
        """Ends all writes to ``path`` with this prefix, and removes their hidden files."""
        for found in _all_hidden(path, prefix):
            Place(path, found.name.removeprefix(_hidden(path))).remove()

    @staticmethod
    def recover(path: Path) -> None:
        """Restores a dataset that a commit was about to replace when it was killed, or removes the one that it had replaced."""
        with lock.held(path):
            for hidden in _all_hidden(path, ""):
                _checked(path, partial(swap.restored, path, hidden))

    def open(self) -> None:
        """Begins the write, or begins it again."""
        self.hidden.mkdir(parents=True, exist_ok=True)
        (self.hidden / _OPEN).touch()

    def is_open(self) -> bool:
        """True while attempts may write."""
        return (self.hidden / _OPEN).exists()

    def attempt(self, name: str) -> Path:
        """The directory of one attempt; it must exist when the attempt ends."""
        if not self.is_open():
            raise ClosedError(f"the write to {self.path} is over: it was aborted or committed")
        return self.hidden / name

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """For an attempt's work: removes files written after the end of the write, and raises."""
        try:
            yield
        finally:
            over = not self.is_open()
            if over:
                shutil.rmtree(self.hidden, ignore_errors=True)
        if over:
            raise ClosedError(f"the write to {self.path} was ended while this attempt wrote")

    def publish(self, attempts: Sequence[Path], replace: bool, create: bool, foreign: bool = False) -> bool:
        """Makes the files of ``attempts`` visible at once. ``False`` if they must not be, since the dataset exists.

        :raises ConfigError: if the data to replace are no dataset of bowstring's, and may not be ``foreign``, those to append
            to are a table of another system, or no Parquet, or a server has the dataset.
        :raises MismatchError: if rows of other columns are appended.
        """
        with lock.held(self.path):
            unmanaged(self.path)
            if replace:
                replaceable(self.path, foreign)
            elif not create:
                fitting_files(self.path, attempts)
            return self._publish(attempts, replace, create)

    def _publish(self, attempts: Sequence[Path], replace: bool, create: bool) -> bool:
        if self.committed.exists():  # by an earlier try at the same commit
            self._remove()
            return True
        gathered = self._gather(attempts, self.hidden / "dataset" / self.committed.name)
        if self.path.exists() and not replace and not create:
            if not any(self.path.iterdir()):
                _mark(self.path)
            _renamed(gathered, self.committed)
            _flush(self.path)
            self._remove()
            return True
        _mark(gathered.parent)
        return self._appear(gathered.parent, replace)

    def gathered(self, attempts: Sequence[Path]) -> Path:
        """The files of ``attempts`` in a directory that stays hidden, until the write is removed."""
        return self._gather(attempts, self.hidden / "dataset")

    def _gather(self, attempts: Sequence[Path], into: Path) -> Path:
        into.mkdir(parents=True, exist_ok=True)
        for attempt in attempts:
            for file in sorted(attempt.iterdir()):
                if not file.name.startswith(("_", ".")):
                    os.replace(file, into / f"{attempt.name}-{file.name}")
        _flush(into)
        return into

    def _appear(self, whole: Path, replace: bool) -> bool:
        if self.path.exists():
            if not replace:
                return False
            _checked(self.path, lambda: swap.replaced(whole, self.path, self.hidden))
        else:
            _renamed(whole, self.path)
        _flush(self.path.parent)
        self._remove()
        return True

    def remove(self) -> None:
        """Removes all hidden files, except a dataset set aside: that is put back."""
        with lock.held(self.path):
            self._remove()

    def _remove(self) -> None:
        _checked(self.path, lambda: swap.restored(self.path, self.hidden))
        # First the marker that stragglers check.
        (self.hidden / _OPEN).unlink(missing_ok=True)
        # An attempt that is creating a file prevents the removal of its directory.
        for _ in range(_REMOVALS):
            shutil.rmtree(self.hidden, ignore_errors=True)
            if not self.hidden.exists():
                return
            time.sleep(0.05)


def _destination(url: str) -> Path:
    """The directory that is written to: where the name is a link, the directory that it leads to, which may be on another disk."""
    path = local(url)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _writable(path: Path) -> None:
    """Checks, before any task works, that a commit can put its files into ``path``.

    :raises ConfigError: if ``path`` is a file, has a file system of its own, or is a server's.
    """
    unmanaged(path)
    if path.exists() and not path.is_dir():
        raise ConfigError(
            f"option path: {path} is a file, and a dataset is a directory; name another place", option="path"
        )
    if path.exists() and path.stat().st_dev != path.parent.stat().st_dev:
        problem = (
            f"{path} is the root of a file system, and tasks write beside the dataset, on another one, from where no commit can "
            f"rename; write to a directory below it, such as {path / 'data'}"
        )
        raise ConfigError(f"option path: {problem}", option="path")


def replaceable(path: Path, foreign: bool) -> None:
    """Checks that a dataset may replace the content of ``path``: nothing, one of ours alone, or anything if ``foreign`` is set.

    :raises ConfigError: naming the option that allows it.
    """
    if foreign or not path.exists():
        return
    if not _is_ours(path):
        problem = (
            f"{path} has no _SUCCESS of bowstring, so overwrite does not replace it; "
            "set overwrite_foreign to true to delete what is there"
        )
    elif (name := _added(path)) is not None:
        problem = (
            f"{path} has {name}, which bowstring did not write there, so overwrite does not replace it; move it away, or "
            "set overwrite_foreign to true to delete it"
        )
    else:
        return
    raise ConfigError(f"option overwrite_foreign: {problem}", option="overwrite_foreign")


def _mark(path: Path) -> None:
    # Its content marks the dataset as one of ours, as with `DatasetWriter`.
    (path / "_SUCCESS").write_text(json.dumps({"bowstring": __version__}) + "\n")


def _is_ours(path: Path) -> bool:
    mark = path / "_SUCCESS"
    try:
        if path.is_dir() and not any(path.iterdir()):
            return True
        # Opening something other than a file, such as a pipe, may block for ever.
        return mark.is_file() and "bowstring" in json.loads(mark.read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def _added(path: Path) -> str | None:
    """A file of others in a dataset of ours, by the same rules as for conversions; ``None`` if there is none."""
    try:
        listed = {json.loads(line)["name"] for line in (path / "_files").read_text().splitlines()}
    except FileNotFoundError:
        if not (path / "_SUCCESS").exists() or "format" in json.loads((path / "_SUCCESS").read_bytes()):
            return None  # empty, or a conversion that lost its list
        listed = None
    except (ValueError, KeyError, TypeError):
        listed = set()  # no list of ours
    for directory, below, files in os.walk(path):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in files:
            found = Path(directory, name).relative_to(path).as_posix()
            if name.startswith(".") or found in ("_SUCCESS", "_files", "_bowstring_index"):
                continue
            ours = found in listed if listed is not None else found.endswith(".parquet") or found in _BESIDE
            if not ours:
                return found
    return None


def _hidden(path: Path) -> str:
    return f".{path.name}.bowstring-"


def _all_hidden(path: Path, prefix: str) -> list[Path]:
    """Hidden directories of writes to ``path`` with this prefix."""
    begins = f"{_hidden(path)}{prefix}"
    return [found for found in path.parent.iterdir() if found.name.startswith(begins)] if path.parent.exists() else []


def _renamed(old: Path, new: Path) -> None:
    _checked(new, lambda: os.rename(old, new))


def _checked(path: Path, step: Callable[[], None]) -> None:
    try:
        step()
    except OSError as error:
        raise StoreError(f"commit of {path}: {error}", file=str(path)) from error


def _flush(directory: Path) -> None:
    at = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)


class _Target:
    """The destination of a writer."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.path = _destination(options.url)
        self.options = options
        self.schema = with_spark_row(stored_schema(schema), schema)

    def stage(self, write: str, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Written:
        """Writes the rows of one attempt."""
        place = Place(self.path, write)
        at = place.attempt(attempt.unique())
        rows = 0
        with place.guarded(), DatasetWriter(at, self.schema, **self.options.writer) as writer:
            for batch in batches:
                writer.write(conform(batch, self.schema))
                rows += batch.num_rows
        return Written(write, str(at), rows)


def _attempts(messages: Sequence[WriterCommitMessage | None]) -> list[Path]:
    return sorted(Path(message.directory) for message in messages if isinstance(message, Written) and message.directory)


def _tried(messages: Sequence[WriterCommitMessage | None]) -> set[tuple[str, str | None]]:
    return {(message.write, message.once) for message in messages if isinstance(message, Written)}


class DirectoryWriter(DataSourceArrowWriter):
    """One job's writes."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        self.target = _Target(options, schema)
        self.write_id = new_write()
        self.exists = options.exists(overwrite)
        Place.recover(self.target.path)
        there = self.target.path.exists()
        if there and self.exists == "error":
            raise ConfigError(f"option if_exists: {self.target.path} exists", option="if_exists")
        if self.exists == "replace":
            replaceable(self.target.path, options.overwrite_foreign)
        elif self.exists == "append":
            fitting(self.target.path, self.target.schema)
        self.skip = there and self.exists == "ignore"
        if not self.skip:
            _writable(self.target.path)
            Place(self.target.path, self.write_id).open()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes one attempt at one task."""
        if self.skip:
            return Written(self.write_id, "", sum(0 for _ in iterator))
        return self.target.stage(self.write_id, Attempt.current(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Makes all tasks' rows visible at once."""
        if self.skip:
            return
        place = Place(self.target.path, self.write_id)
        published = place.publish(
            _attempts(messages),
            replace=self.exists == "replace",
            create=self.exists in ("error", "ignore"),
            foreign=self.target.options.overwrite_foreign,
        )
        if not published:
            place.remove()
            if self.exists == "error":
                raise ConfigError(f"option if_exists: {self.target.path} appeared meanwhile", option="if_exists")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Removes everything written."""
        if not self.skip:
            Place(self.target.path, self.write_id).remove()


class DirectoryStreamWriter(DataSourceStreamArrowWriter):
    """A micro-batch is one commit, whose name is made of the query and the batch's number. Each attempt is a write of its own.

    One of them becomes visible.
    """

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        self.replace = options.exists_of_stream(overwrite) == "replace"
        self.target = _Target(options, schema)
        self.write_id = new_write(options.checkpoints)
        Place.recover(self.target.path)
        if self.replace:
            replaceable(self.target.path, options.overwrite_foreign)
        else:
            appendable(self.target.path)
        _writable(self.target.path)
        # Done by the driver before tasks exist, so that none of them begins the write again after its end. Spark makes a writer
        # of its own for `commit` and `abort`, which remove what this one opens here.
        Place(self.target.path, self.write_id).open()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Writes one attempt at one task of a micro-batch."""
        attempt = Attempt.current()
        once = attempt.once()
        if Place(self.target.path, self.write_id, once).committed.exists():
            return Written(self.write_id, "", 0, once)
        return replace(self.target.stage(self.write_id, attempt, iterator), once=once)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Makes the micro-batch visible, unless it is already."""
        for write, once in _tried(messages):
            place = Place(self.target.path, write, once)
            foreign = self.target.options.overwrite_foreign
            place.publish(_attempts(messages), replace=self.replace, create=False, foreign=foreign)
        self._end(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Removes the output of this attempt and of earlier ones; the next one starts afresh."""
        self._end(messages)

    def _end(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Ends this attempt, and earlier ones that a killed driver left behind."""
        checkpoints = self.target.options.checkpoints
        names = (
            {self.write_id, *(write for write, _ in _tried(messages))} if checkpoints is None else {tries(checkpoints)}
        )
        for name in names:
            Place.remove_all(self.target.path, name)
