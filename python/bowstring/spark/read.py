"""Reading: the stored rows of a server's dataset, or of a directory of Parquet."""

from __future__ import annotations

import datetime
import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StringType, StructType

from bowstring.errors import NotFoundError, SourceChangedError, UnsupportedError
from bowstring.flight import Address, Connection, is_server
from bowstring.flight.server import Server
from bowstring.paths import shown
from bowstring.ranges import LONGEST
from bowstring.spark import filters
from bowstring.spark.directory import local
from bowstring.spark.footers import with_spark_types
from bowstring.spark.instants import own_columns, with_instants
from bowstring.spark.julian import long_column, old_column
from bowstring.spark.listing import Listing, listed
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
# Footers that are searched for times of INT96 where a loader reads files: as many as it searches for days.
_MOST_SEARCHED = 64


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
    _check_names(columns, found.names)
    return StructType([found[name] for name in columns])


def _check_names(columns: Sequence[str], known: Sequence[str]) -> None:
    missing = [name for name in columns if name not in known]
    if missing:
        raise NotFoundError(f"column {missing[0]!r} not found; there are {', '.join(known)}")


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

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        super().__init__(options, wanted)
        self.is_files = not is_server(options.url) and not is_table(self.options.url)
        """True if a loader of this process reads files, whose directories may be keys."""
        if self.is_files:
            _check_texts(self.options.url, _texts(wanted))

    def partitions(self) -> Sequence[InputPartition]:
        """The parts, of one version of the dataset."""
        with _rows(self.options) as (connection, dataset):
            found = connection.rows(dataset, columns=self.wanted.names, filter=self.filter())
        if self.is_files and "timestamp" in self.wanted.simpleString():
            _tell(islice(_unopened(self.options.url), _MOST_SEARCHED), self.wanted.names, long_column, _LONG_TIMES)
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


def _listed(url: str) -> Listing:
    try:
        return listed(_place(url))
    except FileNotFoundError as error:
        raise NotFoundError(f"{shown(url)} not found") from error


def _files(url: str, texts: Collection[str] = ()) -> Any:
    """The files at ``url``, with text for the keys ``texts``; ``None`` if a loader has to see to it which files these are."""
    listing = _listed(url)
    if not listing.is_plain:
        return None
    try:
        found = _found(listing, "hive")
        typed = _typed(found, listing, texts)
        return found if typed is None else _found(listing, typed)
    except FileNotFoundError as error:
        raise NotFoundError(f"{shown(url)}: {error}") from error


def _found(listing: Listing, partitioning: Any = None) -> Any:
    import pyarrow.dataset as ds  # takes half a second, for pandas

    # INT96 in nanoseconds, pyarrow's default, wraps around beyond the years 1677 to 2262. Spark has microseconds.
    parquet = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
    return ds.dataset(
        listing.files,
        format=parquet,
        filesystem=listing.system,
        partitioning=partitioning,
        partition_base_dir=listing.base,
    )


def _typed(found: Any, listing: Listing, texts: Collection[str]) -> Any:
    """The partitioning of ``found`` with dates for keys of dates alone, as in Spark, integers for those of wide integers, and
    text for ``texts``.

    ``None`` if there are none of these.
    """
    import pyarrow.dataset as ds

    fields = {field.name: field.type for field in found.partitioning.schema}
    kinds = [(_is_date, pa.date32()), (_is_integer, pa.int64())]
    better = {name: pa.string() for name in listing.keys.keys() & texts}
    for name, inferred in fields.items():
        values = listing.keys.get(name, set())
        for is_one, kind in kinds if values and name not in texts and pa.types.is_string(inferred) else ():
            if all(map(is_one, values)):
                better[name] = kind
    if not better:
        return None
    return ds.partitioning(pa.schema([(name, better.get(name, kind)) for name, kind in fields.items()]), flavor="hive")


def _texts(wanted: StructType) -> list[str]:
    """The columns that are to be text, whatever they look like."""
    return [field.name for field in wanted if isinstance(field.dataType, StringType)]


def _check_texts(url: str, texts: Collection[str]) -> None:
    """Refuses keys that are to be ``texts`` where a loader reads integers, whose text is another one."""
    keys = _listed(url).keys if texts else {}
    for name in keys.keys() & texts:
        other = next((value for value in sorted(keys[name]) if _is_integer(value) and str(int(value)) != value), None)
        if other is not None and all(map(_is_integer, keys[name])):
            raise UnsupportedError(
                f"column {name!r} of {shown(url)} is text by the schema, and {name}={other} would come as {str(int(other))!r}: "
                "with filter, or where files differ in their columns, keys are integers if all their values are; leave filter "
                f"out, or take {name!r} as bigint"
            )


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
        return found if found is not None and _uniform(found) else None
    # A key of directories is a column of the files, too, of another type, or it has no values; or a file is no Parquet.
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None


def _unopened(place: str) -> Iterator[Any]:
    """All files of a directory, as pyarrow's fragments of Parquet, though some may be no Parquet."""
    import pyarrow.dataset as ds

    listing = listed(place)
    # With a schema given, pyarrow opens no file here.
    found = ds.dataset(listing.files, schema=pa.schema([]), format="parquet", filesystem=listing.system)
    yield from found.get_fragments()


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
        columns = pool.map(own_columns, fragments)
        first = next(columns)
        return not keys & set(first[0].names) and all(first == own for own in columns)


class FilesReader(_Reader):
    """Reads Parquet by row groups."""

    def __init__(self, options: SourceOptions, wanted: StructType) -> None:
        super().__init__(options, wanted)
        # The columns as planned: a file that is added meanwhile may come first, and have others.
        self.stored = _schema(self._found()).remove_metadata()
        _check_names(wanted.names, self.stored.names)

    def _found(self) -> Any:
        found = _files(self.options.url, _texts(self.wanted))
        if found is None:
            raise _changed(self.options.url)  # since this reader was chosen for them
        return found

    def partitions(self) -> Sequence[InputPartition]:
        """Row groups, dealt to tasks in consecutive runs."""
        found = self._found()
        files = list(found.get_fragments())
        # Before the footers are read: a later change is another version than the planned one.
        versions = _versions(files)
        groups = [group for file in files for group in file.split_by_row_group()]
        columns = [own_columns(file) for file in files]
        if self.stored != _schema(found).remove_metadata() or any(own != columns[0] for own in columns):
            raise _changed(self.options.url)
        _tell(files, self.wanted.names, old_column, _DAYS)
        _tell(files, self.wanted.names, long_column, _LONG_TIMES)
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

    def _check(self, group: Any, partition: _Part) -> None:
        """Checks that the file of a row group is the one that was planned."""
        if _versions([group]) != _of([group], partition.versions):
            raise _changed(self.options.url)


_DAYS = (
    "file %s, column %s: days before 1582-10-15 or times before 1900 are on Spark's legacy calendar; they come as stored, where "
    "spark.read.parquet gives other days. Write the data anew with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED"
)
_LONG_TIMES = (
    "file %s, column %s: times of INT96 before 1900, if there are any, are on Spark's legacy calendar; they come as stored, where "
    "spark.read.parquet gives other times. Write the data anew with spark.sql.parquet.int96RebaseModeInWrite=CORRECTED"
)


def _tell(
    files: Iterable[Any], columns: Sequence[str], found: Callable[[Any, Sequence[str]], str | None], what: str
) -> None:
    """Warns, once, of values on the calendar of before 1582: whoever reads them as Parquet has Spark change them."""
    for file in files:
        try:
            column = found(file.metadata, columns)
        except pa.ArrowInvalid:  # no Parquet: no reader takes columns from it
            continue
        if column is not None:
            _log.warning(what, file.path, column)
            return


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
