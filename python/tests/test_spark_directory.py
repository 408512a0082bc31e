"""Replacing a dataset in a directory: the old one or the new one is there, whatever fails and whenever the driver is killed."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from typing import Any

import bowstring
import bowstring.flight
import bowstring.spark
import pytest
from bowstring.errors import (
    ClosedError,
    ConfigError,
    Error,
    MismatchError,
    StoreError,
    UnknownOptionError,
    UnsupportedError,
)

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason="PySpark is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from bowstring.spark import filters, lock, read, swap, tables
from bowstring.spark.directory import DirectoryStreamWriter, DirectoryWriter, Place, _writable, local
from bowstring.spark.options import _OURS, SourceOptions
from bowstring.spark.server import ServerStreamWriter
from bowstring.spark.source import BowstringSource
from bowstring.spark.task import Attempt
from conftest import ROOT
from pyspark.sql.datasource import EqualTo, In
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

# Replaces the dataset `old` by `new`; `change` is the test's own code before that.
PROGRAM = """
import os, pathlib, signal, sys
from bowstring.spark import swap
from bowstring.spark.directory import Place

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

place = Place(pathlib.Path(sys.argv[1]), "new")
place.open()
attempt = place.attempt("0")
attempt.mkdir()
(attempt / "new.parquet").touch()
{change}
place.publish([attempt], replace=True, create=False)
"""
TWO_RENAMES = "swap._exchanged = lambda *_: False\n"
# Kills after a number of complete renames.
KILL = """
renames, left = os.rename, [{after}]
def rename(*names):
    if not left[0]:
        die()
    left[0] -= 1
    renames(*names)
os.rename = rename
"""


def begun(path: pathlib.Path, name: str) -> tuple[Place, pathlib.Path]:
    """Begins a write with one file."""
    place = Place(path, name)
    place.open()
    attempt = place.attempt("0")
    attempt.mkdir()
    (attempt / f"{name}.parquet").touch()
    return place, attempt


@pytest.fixture
def old(tmp_path: pathlib.Path) -> pathlib.Path:
    """Writes a dataset with one file."""
    place, attempt = begun(tmp_path / "clicks", "old")
    assert place.publish([attempt], replace=False, create=True)
    assert holds(place.path) == {"old"}
    return place.path


def holds(path: pathlib.Path) -> set[str]:
    """Returns the writes that a dataset holds."""
    return {found.stem.rpartition("-")[2] for found in path.rglob("*.parquet")}


@pytest.mark.parametrize("exchange", [True, False])
def test_replace(exchange: bool, old: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange:
        monkeypatch.setattr(swap, "_exchanged", lambda *_: False)
    place, attempt = begun(old, "new")
    assert place.publish([attempt], replace=True, create=False)
    assert holds(old) == {"new"}
    assert [found.name for found in old.parent.iterdir()] == ["clicks"], "nothing hidden is left"


@pytest.mark.skipif(sys.platform != "linux", reason="names are exchanged on Linux only")
def test_names_are_exchanged_in_one_step(old: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap.os, "rename", None)
    (old.parent / "other").mkdir()
    assert swap._exchanged(old.parent / "other", old)
    assert holds(old.parent / "other") == {"old"}
    with pytest.raises(FileNotFoundError):
        swap._exchanged(old.parent / "nothing", old)


@pytest.mark.parametrize("exchange", [True, False])
def test_a_failed_replace_leaves_the_old_dataset(
    exchange: bool, old: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, attempt = begun(old, "new")
    rename = os.rename

    def failing(one: Any, other: Any) -> None:
        if pathlib.Path(other) == old and pathlib.Path(one).name != swap.ASIDE:
            raise OSError(5, "Input/output error")
        rename(one, other)

    def failed(*_: Any) -> bool:
        raise OSError(5, "Input/output error")

    if exchange:
        monkeypatch.setattr(swap, "_exchanged", failed)
    else:
        monkeypatch.setattr(swap, "_exchanged", lambda *_: False)
        monkeypatch.setattr(swap.os, "rename", failing)
    with pytest.raises(StoreError, match=r"commit of .*clicks.*Input/output error"):
        place.publish([attempt], replace=True, create=False)
    assert holds(old) == {"old"}
    place.remove()  # as Spark's abort does
    assert holds(old) == {"old"}
    assert [found.name for found in old.parent.iterdir()] == ["clicks"]


def test_an_abort_restores_the_dataset_set_aside(old: pathlib.Path) -> None:
    place, _ = begun(old, "new")
    os.rename(old, place.hidden / swap.ASIDE)
    place.remove()
    assert holds(old) == {"old"}


@pytest.mark.parametrize(
    ("change", "then"),
    [
        # By an exchange: killed before, and right after.
        ("swap._exchanged = die", "old"),
        ("exchanged = swap._exchanged\nswap._exchanged = lambda *names: exchanged(*names) and die()", "new"),
        # By two renames: before, in between, and after them.
        (TWO_RENAMES + KILL.format(after=0), "old"),
        (TWO_RENAMES + KILL.format(after=1), "old"),
        (TWO_RENAMES + KILL.format(after=2) + "swap.restored = die", "new"),
        (TWO_RENAMES + "Place._remove = die", "new"),
    ],
)
def test_killed_at_any_step(change: str, then: str, old: pathlib.Path) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM.format(change=change), str(old)], check=False)
    assert ran.returncode == -signal.SIGKILL
    Place.recover(old)  # the first step of a writer
    assert holds(old) == {then}
    Place.recover(old)
    place, attempt = begun(old, "third")
    assert place.publish([attempt], replace=False, create=False)
    assert holds(old) == {then, "third"}
    # The replaced dataset does not come back once the new one is deleted.
    for file in old.rglob("*"):
        if file.is_file():
            file.unlink()
    for directory in sorted(old.rglob("*"), reverse=True):
        directory.rmdir()
    old.rmdir()
    Place.recover(old)
    assert not old.exists()


HOLDER = """
import pathlib, sys, time
from bowstring.spark import lock

with lock.held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_one_driver_at_a_time_commits(old: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.2)
    place, attempt = begun(old, "new")
    command = [sys.executable, "-c", HOLDER, str(old)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        with pytest.raises(ClosedError, match="another process"):
            place.publish([attempt], replace=True, create=False)
        with pytest.raises(ClosedError, match="another process"):
            Place.recover(old)
        assert holds(old) == {"old"}
        # Its lock ends with it, even if the file remains.
        holder.kill()
    monkeypatch.undo()
    assert place.publish([attempt], replace=True, create=False)
    assert holds(old) == {"new"}
    assert [found.name for found in old.parent.iterdir()] == [old.name]


LONG = StructType([StructField("id", LongType())])


def test_foreign_directories_are_replaced_only_on_request(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "thesis"
    path.mkdir()
    (path / "_SUCCESS").touch()  # as Spark's own parquet leaves it
    (path / "chapter").touch()
    given = {"path": str(path)}
    for kind in (DirectoryWriter, DirectoryStreamWriter):
        with pytest.raises(ConfigError, match="overwrite_foreign to true"):
            kind(SourceOptions.read(given), LONG, True)
    place, attempt = begun(path, "new")
    with pytest.raises(ConfigError, match="overwrite_foreign"):
        place.publish([attempt], replace=True, create=False)
    assert (path / "chapter").exists()
    writer = DirectoryWriter(SourceOptions.read({**given, "overwrite_foreign": "True"}), LONG, True)
    writer.abort([])
    assert place.publish([attempt], replace=True, create=False, foreign=True)
    assert sorted(file.name for file in path.iterdir()) == ["_SUCCESS", "write-new"]
    # Now it is a dataset of ours.
    place, attempt = begun(path, "next")
    assert place.publish([attempt], replace=True, create=False)
    # A file that somebody else adds is not.
    notes = path / "write-next" / "notes.txt"
    notes.touch()
    place, attempt = begun(path, "last")
    with pytest.raises(ConfigError, match=r"write-next/notes.txt.*overwrite_foreign"):
        place.publish([attempt], replace=True, create=False)
    notes.unlink()
    assert place.publish([attempt], replace=True, create=False)


def test_an_empty_directory_is_replaced(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "empty"
    path.mkdir()
    place, attempt = begun(path, "new")
    assert place.publish([attempt], replace=True, create=False)


def test_a_url_never_names_the_directory_before_a_mark(tmp_path: pathlib.Path) -> None:
    for end in ("#2", "?x=1", "#", "?"):
        with pytest.raises(ConfigError, match="%23"):
            local(f"file://{tmp_path}/train{end}")
    assert local(f"file://{tmp_path}/train%232%20a") == tmp_path / "train#2 a"
    assert local(f"{tmp_path}/train#2") == tmp_path / "train#2"
    with pytest.raises(ConfigError) as raised:
        local("s3://key:secret@bucket/a?sig=secret")
    assert "secret" not in str(raised.value)
    assert "bucket/a" in str(raised.value)


def test_no_address_is_a_directory_of_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("hdfs:/data/x", "dbfs:/mnt/x", "s3a:/bucket/x", "FILE:/tmp/x"):
        with pytest.raises(ConfigError, match=f"option path: {address}: give a server, or a directory"):
            local(address)
    monkeypatch.setenv("HOME", "/home/me")
    assert local("~/x") == pathlib.Path("/home/me/x")
    assert local("/a/~/b:/c") == pathlib.Path("/a/~/b:/c")


def rows_of(url: str) -> list[dict[str, Any]]:
    options = SourceOptions.read({"path": url})
    reader = read.reader(options, read.schema(options))
    return sorted(
        (row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()), key=str
    )


def save(path: str, ids: list[int], overwrite: bool = False, **options: str) -> None:
    """Writes as Spark's driver and one task do."""
    writer = DirectoryWriter(SourceOptions.read({"path": path, **options}), StructType().add("id", "long"), overwrite)
    rows = iter([pa.record_batch({"id": ids})])
    writer.commit([writer.target.stage(writer.write_id, Attempt(0, 0, None), rows)])


def test_rows_are_read_from_the_directory_that_was_planned(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "driver" / "data").mkdir(parents=True)
    (tmp_path / "executor").mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "driver" / "data" / "a.parquet")
    for more in ({}, {"filter": "id > 0"}):
        monkeypatch.chdir(tmp_path / "driver")
        options = SourceOptions.read({"path": "data", **more})
        reader = read.reader(options, read.schema(options))
        parts = reader.partitions()
        monkeypatch.chdir(tmp_path / "executor")  # executors of a cluster have directories of their own
        assert [batch.column(0).to_pylist() for part in parts for batch in reader.read(part)] == [[1, 2]]


@pytest.mark.parametrize("name", ["README.txt", "a.parquet.crc"])
def test_files_that_the_loader_leaves_out_are_left_out(name: str, tmp_path: pathlib.Path) -> None:
    times = pa.array([datetime.datetime(2026, 1, 1)], pa.timestamp("us"))
    pq.write_table(pa.table({"id": [1], "t": times}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    (tmp_path / name).write_text("x")
    time = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    assert rows_of(str(tmp_path)) == [{"id": 1, "t": time}]


def test_a_key_without_values_is_a_column_of_nulls(tmp_path: pathlib.Path) -> None:
    (tmp_path / "k=__HIVE_DEFAULT_PARTITION__").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "k=__HIVE_DEFAULT_PARTITION__" / "a.parquet")
    assert rows_of(str(tmp_path)) == [{"id": 1, "k": None}]


def test_the_target_of_a_link_is_written(tmp_path: pathlib.Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    save(str(tmp_path / "link"), [1])
    save(str(tmp_path / "link"), [2], overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert rows_of(str(tmp_path / "disk")) == [{"id": 2}]


def test_the_root_of_a_file_system_is_refused_before_tasks_work(tmp_path: pathlib.Path) -> None:
    root = next((path for path in map(pathlib.Path, ("/dev/shm", "/proc")) if os.path.ismount(path)), None)
    if root is None:
        pytest.skip("there is no mount")
    with pytest.raises(ConfigError, match=f"option path: {root} is the root of a file system"):
        _writable(root)
    _writable(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"option path: .*/file is a file"):
        _writable(tmp_path / "file")


@pytest.mark.parametrize(
    "keys", [{"version": "2.4.8"}, {"version": "3.5.1", "legacyDateTime": ""}, {"version": "3.5.1"}, {}]
)
@pytest.mark.parametrize("old", [True, False])
def test_days_on_the_former_calendar_are_told(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, keys: dict[str, str], old: bool
) -> None:
    day, time = (-200_000, -4_000_000_000) if old else (-100_000, -2_000_000_000)
    table = pa.table(
        {
            "id": [1],
            "day": pa.array([day], pa.date32()),
            "s": pa.array([{"at": time * 10**6}], pa.struct([("at", pa.timestamp("us", "UTC"))])),
        }
    )
    spark = {f"org.apache.spark.{key}": value for key, value in keys.items()}
    pq.write_table(table.replace_schema_metadata(spark), tmp_path / "f.parquet")
    told = []
    for columns in ("id,day", "s", "id"):
        caplog.clear()
        options = SourceOptions.read({"path": str(tmp_path), "columns": columns})
        parts = read.reader(options, read.schema(options)).partitions()
        told += [column for column in ("day", "s.at") if f"column {column}: days before 1582" in caplog.text]
        assert len(parts) == 1
    assert told == (["day", "s.at"] if old and (keys.get("version", "3") < "3" or "legacyDateTime" in keys) else [])


def test_nothing_is_written_by_path_to_a_dataset_of_a_server(tmp_path: pathlib.Path) -> None:
    with bowstring.flight.Server(put=str(tmp_path / "put")) as server:
        server.put("clicks", pa.table({"id": [1]}))
        place, attempt = begun(tmp_path / "put" / "clicks", "w")
        with pytest.raises(ConfigError, match="dataset clicks of a server"):
            place.publish([attempt], replace=False, create=False)
        place.remove()
        for overwrite in (False, True):
            with pytest.raises(ConfigError, match="dataset clicks of a server"):
                save(str(tmp_path / "put" / "clicks"), [2], overwrite, overwrite_foreign="true")
    assert rows_of(str(tmp_path / "put" / "clicks")) == [{"id": 1}]


def test_files_with_other_columns_are_read_as_the_loader_reads_them(tmp_path: pathlib.Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1], pa.int32()), "b": [1]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": pa.array([1 << 40], pa.int64()), "c": ["x"]}), tmp_path / "1.parquet")
    assert read.schema(SourceOptions.read({"path": str(tmp_path)})).names == ["a", "b", "c"]
    wanted = [{"a": 1, "b": 1, "c": None}, {"a": 1 << 40, "b": None, "c": "x"}]
    assert rows_of(str(tmp_path)) == wanted
    (tmp_path / "1.parquet").unlink()
    assert rows_of(str(tmp_path)) == [{"a": 1, "b": 1}]


def delta(path: pathlib.Path) -> None:
    """A table whose rows 0 to 2 were replaced by 10 and 11; the old file is still there."""
    log = path / "_delta_log"
    log.mkdir(parents=True)
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    meta = {"id": "t", "format": {"provider": "parquet", "options": {}}, "partitionColumns": [], "configuration": {}}
    made: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {**meta, "schemaString": json.dumps(schema)}},
    ]
    for version, (name, ids) in enumerate({"a": [0, 1, 2], "b": [10, 11]}.items()):
        pq.write_table(pa.table({"id": ids}), path / f"{name}.parquet")
        size = (path / f"{name}.parquet").stat().st_size
        add = {
            "path": f"{name}.parquet",
            "partitionValues": {},
            "size": size,
            "modificationTime": 1,
            "dataChange": True,
        }
        gone = [{"remove": {"path": "a.parquet", "deletionTimestamp": 2, "dataChange": True}}] if version else made
        lines = [json.dumps(action) for action in [*gone, {"add": add}]]
        (log / f"{version:020d}.json").write_text("\n".join(lines))


def test_a_table_has_the_rows_that_its_log_says(tmp_path: pathlib.Path) -> None:
    delta(tmp_path / "table")
    assert read.schema(SourceOptions.read({"path": str(tmp_path / "table")})).names == ["id"]
    assert rows_of(str(tmp_path / "table")) == [{"id": 10}, {"id": 11}]
    # Two versions of one group of files.
    (tmp_path / "hudi" / ".hoodie").mkdir(parents=True)
    (tmp_path / "hudi" / ".hoodie" / "hoodie.properties").touch()
    for version in ("001", "002"):
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "hudi" / f"f_0-0-0_{version}.parquet")
    with pytest.raises(Error, match="Hudi"):
        rows_of(str(tmp_path / "hudi"))
    # A file by its own path, and a directory that only looks like one of metadata.
    (tmp_path / "plain" / "metadata").mkdir(parents=True)
    pq.write_table(pa.table({"id": [7]}), tmp_path / "plain" / "metadata" / "a.parquet")
    for place in ("plain", "plain/metadata/a.parquet"):
        assert not tables.is_table(str(tmp_path / place))
        assert rows_of(str(tmp_path / place)) == [{"id": 7}]


def test_nothing_is_appended_to_a_table(tmp_path: pathlib.Path) -> None:
    options = SourceOptions.read({"path": str(tmp_path / "table"), "checkpointLocation": str(tmp_path / "checkpoints")})
    schema = StructType().add("id", "long")
    place, attempt = begun(tmp_path / "table", "w")
    delta(tmp_path / "table")  # while the write is under way
    with pytest.raises(ConfigError, match="table of Delta Lake"):
        place.publish([attempt], replace=False, create=False)
    place.remove()
    before = holds(tmp_path / "table")
    for kind in (DirectoryWriter, DirectoryStreamWriter):
        with pytest.raises(ConfigError, match="table of Delta Lake"):
            kind(options, schema, overwrite=False)
    assert holds(tmp_path / "table") == before
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["table"]


def test_rows_that_no_reader_could_read_with_the_others_are_not_appended(tmp_path: pathlib.Path) -> None:
    def appends(path: pathlib.Path, kind: str) -> DirectoryWriter:
        return DirectoryWriter(SourceOptions.read({"path": str(path)}), StructType().add("id", kind), overwrite=False)

    odd = tmp_path / "a {b} *"
    odd.mkdir()
    writer = appends(odd, "long")  # nothing is there yet
    pq.write_table(pa.table({"id": [1]}), odd / "a.parquet")
    with pytest.raises(MismatchError, match=r'other columns are appended.*"id"'):
        appends(odd, "string")
    place, attempt = begun(odd, "w")
    (attempt / "w.parquet").unlink()
    pq.write_table(pa.table({"id": ["text"]}), attempt / "w.parquet")
    with pytest.raises(MismatchError, match="other columns"):
        place.publish([attempt], replace=False, create=False)
    place.remove()
    writer.abort([])
    appends(odd, "integer").abort([])  # a wider type holds both
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("id\n1\n")
    with pytest.raises(ConfigError, match=r"no dataset of Parquet.*a\.csv"):
        appends(tmp_path / "csv", "long")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["a {b} *", "csv"]
    assert [path.name for path in odd.iterdir()] == ["a.parquet"]


@pytest.mark.parametrize("first", [{"id": [1]}, {"id": [1], "x": pa.nulls(1)}])
def test_types_are_compared_with_those_of_all_files(tmp_path: pathlib.Path, first: dict[str, Any]) -> None:
    pq.write_table(pa.table(first), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [2], "x": [[{"y": "text"}]]}), tmp_path / "b.parquet")
    number = ArrayType(StructType([StructField("y", LongType())]))
    options = SourceOptions.read({"path": str(tmp_path)})
    with pytest.raises(
        MismatchError, match=r'column "x" is list.*string.* there, in file b\.parquet, and list.*int64'
    ) as error:
        DirectoryWriter(options, StructType([StructField("id", LongType()), StructField("x", number)]), overwrite=False)
    assert error.value.column == "x"
    text = ArrayType(StructType([StructField("y", StringType())]))
    writer = DirectoryWriter(options, StructType([StructField("x", text)]), overwrite=False)
    writer.abort([])


def test_what_is_appended_to_nothing_is_ours(tmp_path: pathlib.Path) -> None:
    (tmp_path / "d").mkdir()
    for name, replace in (("first", False), ("second", False), ("third", True)):
        place, attempt = begun(tmp_path / "d", name)
        (attempt / f"{name}.parquet").unlink()
        pq.write_table(pa.table({"id": [1]}), attempt / f"{name}.parquet")
        assert place.publish([attempt], replace=replace, create=False)
    assert holds(tmp_path / "d") == {"third"}


def test_values_of_directories_are_those_of_the_loader(tmp_path: pathlib.Path) -> None:
    for name, values in {"wide": ["3000000000", "-7"], "large": ["99999999999999999999"], "both": ["1", "2"]}.items():
        for value in values:
            (tmp_path / name / f"k={value}").mkdir(parents=True)
            table = pa.table({"id": [0]} | ({"k": [99]} if name == "both" else {}))
            pq.write_table(table, tmp_path / name / f"k={value}" / "a.parquet")
    assert read._plain(str(tmp_path / "wide")) is not None
    assert read._plain(str(tmp_path / "both")) is None
    assert rows_of(str(tmp_path / "wide")) == [{"id": 0, "k": -7}, {"id": 0, "k": 3000000000}]
    assert rows_of(str(tmp_path / "large")) == [{"id": 0, "k": "99999999999999999999"}]
    assert rows_of(str(tmp_path / "both")) == [{"id": 0, "k": 1}, {"id": 0, "k": 2}]


def test_unknown_options_are_refused() -> None:
    for name, meant in [("filters", "filter"), ("Colums", "columns"), ("overwriteForeign", "overwrite_foreign")]:
        with pytest.raises(
            UnknownOptionError, match=f"is not an option of bowstring's data source; did you mean {meant}"
        ):
            SourceOptions.read({"path": "/p", name: "x"})
    with pytest.raises(
        UnknownOptionError, match="zzz is not an option of bowstring's data source; there are columns, filter"
    ):
        SourceOptions.read({"path": "/p", "zzz": "1"})
    for name in ("pushdown", "overwrite_foreign"):
        for text in ("1", "yes", ""):
            with pytest.raises(ConfigError, match=f"option {name}: '{text}' is not true or false"):
                SourceOptions.read({"path": "/p", name: text})
        for text, value in [("TRUE", True), ("false", False)]:
            assert getattr(SourceOptions.read({"path": "/p", name: text}), name) is value


def test_columns_are_named_once() -> None:
    with pytest.raises(ConfigError, match="option columns: 'id' is there twice"):
        SourceOptions.read({"path": "/p", "columns": "id,x, id"})
    source = BowstringSource({"path": "/p", "columns": "id"})
    with pytest.raises(ConfigError, match=r"option columns: the columns of \.schema\(\.\.\.\) are x"):
        source.reader(StructType().add("x", "long"))


@pytest.mark.parametrize("place", ["grpc://127.0.0.1:1/x", "directory"])
def test_a_stream_does_what_its_output_mode_says(place: str, tmp_path: pathlib.Path) -> None:
    path = place if "://" in place else str(tmp_path / place)
    kind = ServerStreamWriter if "://" in place else DirectoryStreamWriter
    for complete, own in ((False, "append"), (True, "replace")):
        for exists in ("append", "replace", "error", "ignore"):
            options = SourceOptions.read({"path": path, "if_exists": exists})
            if exists == own:
                kind(options, LONG, complete)
                continue
            with pytest.raises(ConfigError, match=f"a stream appends, or replaces in mode complete.*{own!r}; leave it"):
                kind(options, LONG, complete)
        kind(SourceOptions.read({"path": path}), LONG, complete)


def test_names_that_differ_in_case_are_not_appended(tmp_path: pathlib.Path) -> None:
    def append(*names: str) -> None:
        schema = StructType([StructField(name, LongType()) for name in names])
        rows = pa.record_batch({name: [1] for name in names})
        writer = DirectoryWriter(SourceOptions.read({"path": str(tmp_path / "rows")}), schema, False)
        writer.commit([writer.target.stage(writer.write_id, Attempt(0, 0, None), iter([rows]))])

    append("id")
    with pytest.raises(MismatchError, match=r"column 'ID' of the rows .* is 'id' there") as error:
        append("ID")
    assert error.value.column == "ID"
    append("id", "added")
    append("added", "id")
    # The file that has the name is not the first one.
    with pytest.raises(MismatchError, match="column 'Added' of the rows"):
        append("id", "Added")
    assert len(rows_of(str(tmp_path / "rows"))) == 3
    # A field of a record, and rows that others appended while the tasks ran.
    pq.write_table(pa.table({"record": [{"inner": 1}]}), tmp_path / "rows" / "others.parquet")
    place, attempt = begun(tmp_path / "rows", "late")
    pq.write_table(pa.table({"record": [{"Inner": 1}]}), attempt / "late.parquet")
    with pytest.raises(MismatchError, match=r"column 'record\.Inner' of the rows"):
        place.publish([attempt], replace=False, create=False)


def test_what_spark_adds_is_no_unknown_option() -> None:
    stream = {"path": "/p", "queryname": "q", "checkpointlocation": "/c"}
    assert SourceOptions.read(stream).checkpoints == "/c"
    # As Spark 4.3 has them for `CREATE TABLE ... USING bowstring OPTIONS (...)`.
    table = {"location": "file:/p", "columns": "id", "owner": "me", "path": "file:/p", "provider": "bowstring"}
    assert SourceOptions.read({**table, "option.columns": "id"}).columns == ("id",)
    with pytest.raises(UnknownOptionError, match="colums is not"):
        SourceOptions.read({**table, "option.colums": "id"})


def test_every_option_of_the_guide_is_one() -> None:
    guide = (ROOT / "docs" / "spark.md").read_text()
    table = guide.partition("| option | meaning |")[2].partition("\n\n")[0]
    names = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert names == set(_OURS)


def test_frames_of_pandas_are_refused_with_what_to_give() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"id": [1]})
    for call in (
        lambda: bowstring.spark.serve(frame, world_size=1, batch_size=1),
        lambda: bowstring.spark.predict(frame, dict, batch_size=1, schema="y int"),
    ):
        with pytest.raises(ConfigError, match=r"option df: a pandas.*DataFrame is no DataFrame of pyspark.sql; give"):
            call()


def test_what_a_source_cannot_do_is_refused(tmp_path: pathlib.Path) -> None:
    frame = StructType([StructField("id", LongType())])
    for name, value, why in (
        ("filter", "id < 5", "it chooses rows to read, and a write writes all"),
        ("columns", "id", r"it chooses columns to read, and a write writes all; .*df\.select"),
        ("parts", "3", "it is the number of tasks of a read"),
        ("pushdown", "true", "it is about filters of a read"),
    ):
        source = BowstringSource({"path": str(tmp_path / "x"), name: value})
        for write in (source.writer, source.streamWriter):
            with pytest.raises(ConfigError, match=f"option {name}: {why}") as error:
                write(frame, False)
            assert error.value.option == name
    with pytest.raises(UnsupportedError, match=r"use spark\.read"):
        source.streamReader(frame)
    assert list(tmp_path.iterdir()) == []


def test_long_filters_are_left_to_spark() -> None:
    """A request to a server has a limit."""
    schema = StructType([StructField("id", LongType()), StructField("word", StringType())])
    given = [In(("id",), tuple(range(300_000))), EqualTo(("word",), "x" * 2_000_000), EqualTo(("id",), 3)]
    assert [one.operator for one in filters.known(given, schema)] == ["="]
