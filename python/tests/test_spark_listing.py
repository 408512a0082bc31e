"""The files that Spark's source reads of a directory: those of a loader, with the columns and the types that they have there."""

from __future__ import annotations

import datetime
import os
import pathlib
from typing import Any

import bowstring
import pytest
from bowstring.errors import ConfigError, MismatchError, NotFoundError, StoreError, UnsupportedError
from bowstring.paths import is_hidden

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason="PySpark is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from bowstring.petastorm.etl._footer import Folder
from bowstring.spark import read
from bowstring.spark.appending import fitting
from bowstring.spark.options import SourceOptions
from bowstring.spark.tables import is_table
from pyspark.sql import types

FILTER = {"filter": "id >= 0"}
both = pytest.mark.parametrize("options", [{}, FILTER])


def put(path: pathlib.Path, *ids: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), path)


def rows(path: pathlib.Path, schema: types.StructType | None = None, **options: str) -> list[dict[str, Any]]:
    """The rows as Spark's tasks read them."""
    given = SourceOptions.read({"path": str(path), **options})
    reader = read.reader(given, schema or read.schema(given))
    parts = reader.partitions()
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: str(row.get("id")))


def test_names_are_hidden_by_the_rule_of_loaders() -> None:
    assert all(map(is_hidden, ["_SUCCESS", "_temporary", ".a.crc", ".x=1"]))
    assert not any(map(is_hidden, ["a", "a_b", "_k=1", "k=_", "k=.5"]))


@both
def test_directories_of_a_key_that_begins_with_an_underscore_are_read(
    tmp_path: pathlib.Path, options: dict[str, str]
) -> None:
    put(tmp_path / "_k=1" / "a.parquet", 1)
    put(tmp_path / "_k=2" / "a.parquet", 2)
    put(tmp_path / "_temporary" / "a.parquet", 9)
    assert rows(tmp_path, **options) == [{"id": 1, "_k": 1}, {"id": 2, "_k": 2}]
    put(tmp_path / "b.parquet", 3)
    assert rows(tmp_path, **options)[2] == {"id": 3, "_k": None}


def test_directories_of_a_key_that_begins_with_an_underscore_are_seen_by_writers(tmp_path: pathlib.Path) -> None:
    put(tmp_path / "_k=1" / "a.parquet", 1)
    with pytest.raises(MismatchError, match=r'column "id" is int64 there, in file _k=1/a\.parquet'):
        fitting(tmp_path, pa.schema([("id", pa.string())]))
    assert Folder(f"file://{tmp_path}").files() == ["_k=1/a.parquet"]


@both
def test_what_a_loader_refuses_is_refused(tmp_path: pathlib.Path, options: dict[str, str]) -> None:
    put(tmp_path / "elsewhere.parquet", 7)
    put(tmp_path / "twice" / "a.parquet", 1)
    (tmp_path / "twice" / "b.parquet").symlink_to("a.parquet")
    put(tmp_path / "directories" / "x" / "a.parquet", 1)
    (tmp_path / "directories" / "y").symlink_to("x")
    put(tmp_path / "nowhere" / "a.parquet", 1)
    (tmp_path / "nowhere" / "b.parquet").symlink_to("gone")
    put(tmp_path / "pipe" / "a.parquet", 1)
    os.mkfifo(tmp_path / "pipe" / "b.parquet")
    put(tmp_path / "values" / "k=1" / "k=2" / "a.parquet", 1)
    (tmp_path / "empty").mkdir()
    put(tmp_path / "renamed" / "a.parquet", 1)
    put(tmp_path / "renamed" / "b.parquet.gz", 2)
    for name, error, words in [
        ("twice", ConfigError, "found twice, through a link"),
        ("directories", ConfigError, "found twice, through a link"),
        ("nowhere", StoreError, "where nothing is"),
        ("pipe", StoreError, "a named pipe"),
        ("values", MismatchError, 'partition column "k"'),
        ("empty", NotFoundError, "Parquet files at .*empty not found"),
        ("renamed", ConfigError, "a whole file of Parquet by another name"),
    ]:
        with pytest.raises(error, match=words):
            rows(tmp_path / name, **options)


@pytest.mark.timeout(30)
@both
def test_links_that_lead_back_are_refused(tmp_path: pathlib.Path, options: dict[str, str]) -> None:
    put(tmp_path / "set" / "a.parquet", 1)
    # Through each are both again, down to as many as a path may have.
    for name in ("s1", "s2"):
        (tmp_path / "set" / name).symlink_to(".")
    assert not is_table(str(tmp_path / "set"))
    with pytest.raises(StoreError, match="which it lies in"):
        rows(tmp_path / "set", **options)
    (tmp_path / "set" / "_delta_log").mkdir()
    (tmp_path / "set" / "_delta_log" / "0.json").touch()
    assert is_table(str(tmp_path / "set"))


@both
def test_links_and_what_is_no_data_change_no_rows(tmp_path: pathlib.Path, options: dict[str, str]) -> None:
    put(tmp_path / "elsewhere" / "b.parquet", 2)
    put(tmp_path / "set" / "a.parquet", 1)
    (tmp_path / "set" / "linked").symlink_to("../elsewhere")
    (tmp_path / "set" / "README.md").write_text("two rows")
    (tmp_path / "set" / "_SUCCESS").touch()
    assert [row["id"] for row in rows(tmp_path / "set", **options)] == [1, 2]
    # Directories above a file that is named are no columns of it.
    put(tmp_path / "k=1" / "a.parquet", 1)
    assert rows(tmp_path / "k=1" / "a.parquet", **options) == rows(tmp_path / "k=1", **options) == [{"id": 1}]


def test_a_key_is_text_where_the_schema_says_so(tmp_path: pathlib.Path) -> None:
    put(tmp_path / "zip=01234" / "a.parquet", 1)
    put(tmp_path / "zip=98765" / "a.parquet", 2)
    schema = types.StructType().add("id", "long").add("zip", "string")
    assert rows(tmp_path, schema) == [{"id": 1, "zip": "01234"}, {"id": 2, "zip": "98765"}]
    assert rows(tmp_path)[0] == {"id": 1, "zip": 1234}
    # A column of the files is cast, as any type is.
    assert rows(tmp_path, types.StructType().add("id", "string")) == [{"id": "1"}, {"id": "2"}]
    with pytest.raises(UnsupportedError, match=r"column 'zip' .* zip=01234 would come as '1234'.*leave filter"):
        rows(tmp_path, schema, **FILTER)
    put(tmp_path / "zip=x1" / "a.parquet", 3)
    assert [row["zip"] for row in rows(tmp_path, schema, **FILTER)] == ["01234", "98765", "x1"]


@pytest.mark.parametrize("name", ["ID", "extra"])
@both
def test_a_column_of_the_schema_that_no_file_has_is_named(
    tmp_path: pathlib.Path, name: str, options: dict[str, str]
) -> None:
    put(tmp_path / "a.parquet", 1)
    with pytest.raises(NotFoundError, match=f"column [\"']{name}[\"'] not found"):
        rows(tmp_path, types.StructType().add(name, "long"), **options)


def times(path: pathlib.Path, long: bool, metadata: dict[str, str] | None = None, zone: str | None = None) -> None:
    value = pa.array([datetime.datetime(2024, 7, 1, 12)], pa.timestamp("us", zone))
    table = pa.table({"id": [1], "at": value, "in": [[value[0]]]})
    pq.write_table(
        table.replace_schema_metadata({f"org.apache.spark.{key}": said for key, said in (metadata or {}).items()}),
        path,
        use_deprecated_int96_timestamps=long,
    )


@both
@pytest.mark.parametrize("first", [True, False])
def test_instants_beside_times_without_a_zone_are_refused(
    tmp_path: pathlib.Path, first: bool, options: dict[str, str]
) -> None:
    times(tmp_path / "a.parquet", first)
    times(tmp_path / "b.parquet", not first)
    long, short = ("a", "b") if first else ("b", "a")
    with pytest.raises(
        MismatchError, match=rf"column 'at' .*INT96.* file .*{long}\.parquet, .* file .*{short}\.parquet"
    ):
        rows(tmp_path, **options)


@both
@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"version": "2.4.8"}, True),
        ({"version": "3.0.3"}, True),
        ({"version": "3.1.0"}, False),
        ({"version": "4.3.0", "legacyINT96": ""}, True),
        ({"version": "4.3.0", "legacyDateTime": ""}, False),
        ({"legacyINT96": ""}, False),
    ],
)
def test_times_of_int96_that_may_be_on_the_former_calendar_are_told(
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
    metadata: dict[str, str],
    told: bool,
    options: dict[str, str],
) -> None:
    """Spark writes no statistics for them."""
    for name in ("a", "b"):
        times(tmp_path / f"{name}.parquet", True, metadata)
    for columns, expected in (("id,at", "at"), ("in", "in"), ("id", None)):
        caplog.clear()
        assert len(rows(tmp_path, columns=columns, **options)) == 2
        warnings = [one.getMessage() for one in caplog.records if "times of INT96 before 1900" in one.getMessage()]
        assert len(warnings) == (told and expected is not None), columns
        assert not warnings or f"a.parquet, column {expected}" in warnings[0]


def test_loaders_see_the_same_files(tmp_path: pathlib.Path) -> None:
    for number, name in enumerate(
        ["a.parquet", "b", "c.PQ", "_k=1/d.parq", "k=_x/e.parquet", "_f=1.parquet", "_g", ".h/i"]
    ):
        put(tmp_path / name, number)
    with bowstring.Loader(tmp_path, batch_size=99, shuffle=False, columns=["id"]) as loader:
        expected = sorted(next(iter(loader))["id"].tolist())
    assert [row["id"] for row in rows(tmp_path)] == expected == [0, 1, 2, 3, 4, 5]
