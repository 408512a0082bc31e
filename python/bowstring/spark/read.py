"""Reading: the stored rows of a server's dataset, or of a directory of Parquet."""

from __future__ import annotations

import datetime
import logging
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from bowstring.errors import NotFoundError, SourceChangedError
from bowstring.flight import Address, Connection, is_server
from bowstring.flight.server import Server
from bowstring.paths import shown
from bowstring.ranges import LONGEST
from bowstring.spark import filters
from bowstring.spark.directory import local
from bowstring.spark.footers import with_spark_types
from bowstring.spark.instants import with_instants
from bowstring.spark.julian import old_column
from bowstring.spark.options import SourceOptions
from bowstring.spark.tables import is_table
from bowstring.spark.types import arrow_schema, conform, spark_schema

__all__ = ["reader", "schema"]

_log = logging.getLogger(__name__)

_ROWS_PER_BATCH = 10_000
# Size of a file, and its modification time in nanoseconds; None if there is no file.
_Version = tuple[int | None, int | None]
# Tasks of a read from a server without `parts`: as many as row groups, but no more than this.
_PARTS = 32


class _Part(InputPartition):
    """The part of one task, at one version of the data."""

    def __init__(self, value: Any, fingerprint: str = "", versions: Mapping[str, _Version] | None = None) -> None:
        super().__init__(value)
        self.fingerprint = fingerprint
        self.versions = dict(versions or {})


def _chosen(found: StructType, columns: Sequence[str] | None) -> StructType:
    """The requested columns, in that order."""
    if columns is None:
        return found
    missing = [name for name in columns if name not in found.names]
    if missing:
        known = ", ".join(found.names)
        raise NotFoundError(f"column {missing[0]!r} not found; there are {known}")
    return StructType([found[name] for name in columns])


def schema(options: SourceOptions) -> StructType:
    """The columns of a read."""
    files: Iterable[Any] = ()
    if is_server(options.url):
        with _rows(options) as (connection, dataset):
            found = connection.rows(dataset).schema
    elif (dataset := _plain(options.url)) is not None:
        found = _schema(dataset)
        files = dataset.get_fragments()
    else:
        with _rows(options) as (connection, name):
            found = connection.rows(name).schema
        if not is_table(_place(options.url)):
            files = list(_unopened(_place(options.url)))
            found = with_instants(found, files)
    return with_spark_types(_chosen(spark_schema(found), options.columns), files)


def reader(options: SourceOptions, wanted: StructType) -> DataSourceReader:
    """A reader of the columns ``wanted``."""
    # A filter's text is in bowstring's syntax, so bowstring then reads the files.
    served = is_server(options.url) or options.filter is not None or _plain(options.url) is None
    kind = _KINDS[served, options.pushdown]
    return kind(options, wanted)


@contextmanager
def _rows(options: SourceOptions) -> Iterator[tuple[Connection, str]]:
    """A connection, and a dataset's name there; a directory is served within this process."""
    if is_server(options.url):
        address = Address.parse(options.url)
        with Connection(address.server, options.storage, timeout=options.timeout) as connection:
            yield connection, address.named()
        return
    # Others on this machine see the port, but not the rows.
    token = secrets.token_urlsafe(32)
    with (
        Server({"files": _place(options.url)}, shared_memory=False, tokens=[f"spark:{token}"]) as server,
        # Within this process nothing is lost on the way, and the reader of the rows may take any time.
        Connection(server.url, {"token": token}, timeout=LONGEST) as connection,
    ):
        yield connection, "files"


class _Reader(DataSourceReader):
    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        # Made on the driver: on executors a relative path is another one.
        self.options = options if is_server(options.url) else replace(options, url=_place(options.url))
        self.wanted = wanted
        self.conditions: list[filters.Condition] = []

    def filter(self) -> str | None:
        """The filter for a server."""
        both = [self.options.filter or "", filters.text(self.conditions)]
        return " and ".join(f"({one})" for one in both if one) or None


class _Pushed(_Reader):
    """Takes Spark's filters too.

    Only on request: Spark refuses such a reader unless ``spark.sql.python.filterPushdown.enabled`` is set, and Spark
    4.3 gives later queries of the same data frame the filters of its first.
    """

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:
        """Uses the filters to read less, and leaves their exact application to Spark."""
        self.conditions = filters.known(filters_, self.wanted)
        return filters_


class ServerReader(_Reader):
    """Reads by DoGet, row groups dealt to tasks."""

    def partitions(self) -> Sequence[InputPartition]:
        """The parts, of one version of the dataset."""
        with _rows(self.options) as (connection, dataset):
            found = connection.rows(dataset, columns=self.wanted.names, filter=self.filter())
        parts = min(self.options.parts or _PARTS, max(found.row_groups, 1))
        return [_Part((part, parts), found.fingerprint) for part in range(parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        assert isinstance(partition, _Part)
        target = arrow_schema(self.wanted)
        part, parts = partition.value
        with _rows(self.options) as (connection, dataset):
            rows = connection.rows(dataset, part=part, parts=parts, columns=self.wanted.names, filter=self.filter())
            if rows.fingerprint != partition.fingerprint:
                raise _changed(self.options.url)
            for batch in rows:
                yield conform(batch, target)


def _changed(url: str) -> SourceChangedError:
    return SourceChangedError(
        f"{shown(url)} has another version than when the read was planned: rows were added, or it was written anew; load() it "
        "again, or read while nobody writes"
    )


def _versions(files: Sequence[Any]) -> dict[str, _Version]:
    """The versions of pyarrow's fragments, by their paths."""
    by_path = {file.path: file.filesystem for file in files}
    with ThreadPoolExecutor(16) as pool:
        found = pool.map(lambda item: item[1].get_file_info(item[0]), by_path.items())
        return {path: (info.size, info.mtime_ns) for path, info in zip(by_path, found, strict=True)}


def _place(url: str) -> str:
    # pyarrow opens a store's URL: s3://, gs://, hdfs://.
    return url if "://" in url and not url.startswith("file:") else str(local(url))


def _files(url: str) -> Any:
    place = _place(url)
    try:
        found = _found(place, "hive")
    except FileNotFoundError as error:
        raise NotFoundError(f"{shown(url)} not found") from error
    typed = _typed(found)
    return found if typed is None else _found(place, typed)


def _found(place: str, partitioning: Any = None) -> Any:
    import pyarrow.dataset as ds  # takes half a second, for pandas

    # INT96 in nanoseconds, pyarrow's default, wraps around beyond the years 1677 to 2262. Spark has microseconds.
    parquet = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
    return ds.dataset(place, format=parquet, partitioning=partitioning)


def _typed(found: Any) -> Any:
    """The partitioning of ``found`` with dates for keys of dates alone, as in Spark, and integers for those of wide integers.

    ``None`` if there are none of both.
    """
    import pyarrow.dataset as ds

    fields = {field.name: field.type for field in found.partitioning.schema}
    texts: dict[str, set[str]] = {name: set() for name, kind in fields.items() if pa.types.is_string(kind)}
    for file in found.get_fragments() if texts else ():
        for name, value in ds.get_partition_keys(file.partition_expression).items():
            if name in texts and value is not None:
                texts[name].add(value)
    kinds = [(_is_date, pa.date32()), (_is_integer, pa.int64())]
    better = {
        name: kind for name, values in texts.items() for is_one, kind in kinds if values and all(map(is_one, values))
    }
    if not better:
        return None
    return ds.partitioning(pa.schema([(name, better.get(name, kind)) for name, kind in fields.items()]), flavor="hive")


def _is_integer(text: str) -> bool:
    return re.fullmatch("-?[0-9]+", text) is not None and -(1 << 63) <= int(text) < 1 << 63


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _plain(url: str) -> Any:
    """The files at ``url``; ``None`` if pyarrow would read other rows or columns of them than a loader."""
    if is_table(_place(url)):
        return None
    try:
        found = _files(url)
        return found if _uniform(found) else None
    # A key of directories is a column of the files, too, of another type, or it has no values; or a file is no Parquet.
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None


def _unopened(place: str) -> Iterator[Any]:
    """All files of a directory, as pyarrow's fragments of Parquet, though some may be no Parquet."""
    import pyarrow.dataset as ds

    # With a schema given, pyarrow opens no file here.
    yield from ds.dataset(place, schema=pa.schema([]), format="parquet").get_fragments()


def _schema(found: Any) -> pa.Schema:
    """The columns of ``found``, whose files all have the same, as Spark has them."""
    return with_instants(found.schema, islice(found.get_fragments(), 1))


def _uniform(dataset: Any) -> bool:
    """True if all files have the same columns, and directories give no other values for them.

    pyarrow takes the first file's: other columns would be missing silently.
    """
    import pyarrow.dataset as ds

    fragments = list(dataset.get_fragments())
    keys = {name for file in fragments for name in ds.get_partition_keys(file.partition_expression)}
    with ThreadPoolExecutor(16) as pool:
        schemas = pool.map(lambda fragment: fragment.physical_schema, fragments)
        first = next(schemas, None)
        if first is None:
            return True
        return not keys & set(first.names) and _alike(first, schemas)


def _alike(first: pa.Schema, schemas: Iterable[pa.Schema]) -> bool:
    return all(first.equals(schema, check_metadata=False) for schema in schemas)


class FilesReader(_Reader):
    """Reads Parquet by row groups."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        super().__init__(options, wanted)
        # The columns as planned: a file that is added meanwhile may come first, and have others.
        self.stored = _schema(_files(self.options.url)).remove_metadata()

    def partitions(self) -> Sequence[InputPartition]:
        """Row groups, dealt to tasks in consecutive runs."""
        found = _files(self.options.url)
        files = list(found.get_fragments())
        # Before the footers are read: a later change is another version than the planned one.
        versions = _versions(files)
        groups = [group for file in files for group in file.split_by_row_group()]
        schemas = [file.physical_schema for file in files]
        if not _alike(self.stored, [_schema(found)]) or (schemas and not _alike(schemas[0], schemas)):
            raise _changed(self.options.url)  # since this reader was chosen for them
        self._tell_days(files)
        groups = [group for group in groups if group.row_groups]
        parts = min(self.options.parts or len(groups), len(groups))
        bounds = [len(groups) * part // max(parts, 1) for part in range(parts + 1)]
        return [_Part(own, versions=_of(own, versions)) for own in (groups[a:b] for a, b in pairwise(bounds))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some row groups."""
        target = arrow_schema(self.wanted)
        if partition.value is None:  # Spark's partition for an empty list
            return
        assert isinstance(partition, _Part)
        chosen = filters.expression(self.conditions)
        for group in partition.value:
            self._check(group, partition)
            batches = group.to_batches(
                schema=self.stored, columns=self.wanted.names, filter=chosen, batch_size=_ROWS_PER_BATCH
            )
            for batch in batches:
                if batch.num_rows:
                    yield conform(batch, target)
            self._check(group, partition)

    def _tell_days(self, files: Iterable[Any]) -> None:
        """Warns, once, of days on the calendar of before 1582: whoever reads them as Parquet has Spark change them."""
        for file in files:
            if (column := old_column(file.metadata, self.wanted.names)) is not None:
                _log.warning(
                    "file %s, column %s: days before 1582-10-15 or times before 1900 are on Spark's legacy calendar; they come as "
                    "stored, where spark.read.parquet gives other days. Write the data anew with "
                    "spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED",
                    file.path,
                    column,
                )
                return

    def _check(self, group: Any, partition: _Part) -> None:
        """Checks that the file of a row group is the one that was planned."""
        if _versions([group]) != _of([group], partition.versions):
            raise _changed(self.options.url)


def _of(groups: Sequence[Any], versions: Mapping[str, _Version]) -> dict[str, _Version]:
    """The versions of the files of some row groups."""
    return {group.path: versions[group.path] for group in groups}


class _PushedServerReader(_Pushed, ServerReader):
    pass


class _PushedFilesReader(_Pushed, FilesReader):
    pass


# Keys: the data come from a server; Spark's filters are pushed down.
_KINDS: dict[tuple[bool, bool], type[_Reader]] = {
    (True, False): ServerReader,
    (True, True): _PushedServerReader,
    (False, False): FilesReader,
    (False, True): _PushedFilesReader,
}
