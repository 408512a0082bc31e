"""Times of 96 bits, as Spark writes them by default: every date is read as written, or is an error."""

from __future__ import annotations

import datetime
import pathlib
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import needs_pyarrow

MOMENTS = [
    datetime.datetime(1, 1, 1),
    datetime.datetime(1582, 10, 4, 23, 59, 59, 999_999),
    datetime.datetime(1582, 10, 15),
    datetime.datetime(1677, 9, 21),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime.datetime(1970, 1, 1),
    datetime.datetime(2024, 2, 29, 12, 30, 0, 1),
    datetime.datetime(2262, 4, 12),
    datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),
]


def spark(table: pa.Table, path: pathlib.Path, **options: Any) -> str:
    """Writes as Spark does: without Arrow's schema."""
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, store_schema=False, **options)
    kinds = {pq.read_metadata(path).schema.column(at).physical_type for at in range(table.num_columns)}
    assert "INT96" in kinds
    return str(path)


def columns(url: str, **options: Any) -> dict[str, Any]:
    """Reads everything, in stored order."""
    with bowstring.Loader(url, batch_size=4, shuffle=False, timeout=60, **options) as loader:
        batch = next(iter(loader))
        return {name: pa.array(np.asarray(batch[name])) for name in batch}


@needs_pyarrow(20, "writing times beyond 64 bits of nanoseconds")
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("schema", [True, False])
def test_every_year_is_the_one_that_was_written(tmp_path: pathlib.Path, dictionary: bool, schema: bool) -> None:
    table = pa.table({"row": np.arange(len(MOMENTS)), "at": pa.array(MOMENTS, pa.timestamp("us"))})
    path = tmp_path / "a.parquet"
    if schema:
        pq.write_table(table, path, use_deprecated_int96_timestamps=True, use_dictionary=dictionary)
    else:
        spark(table, path, use_dictionary=dictionary)
    # pyarrow reads the same, with the right option.
    assert pq.read_table(path, coerce_int96_timestamp_unit="us")["at"].to_pylist() == MOMENTS
    with bowstring.Loader(str(path), batch_size=len(MOMENTS), shuffle=False, timeout=60) as loader:
        moments = np.asarray(next(iter(loader))["at"])
    assert moments.astype("datetime64[us]").astype(object).tolist() == MOMENTS


@needs_pyarrow(20, "writing times beyond 64 bits of nanoseconds")
def test_filters_compare_the_dates(tmp_path: pathlib.Path) -> None:
    table = pa.table({"row": np.arange(len(MOMENTS)), "at": pa.array(MOMENTS, pa.timestamp("us"))})
    url = spark(table, tmp_path / "a.parquet")
    for at, moment in enumerate(MOMENTS):
        with bowstring.Loader(
            url,
            columns=["row"],
            filter=f"at >= '{moment.isoformat()}'",
            batch_size=len(MOMENTS),
            shuffle=False,
            timeout=60,
        ) as loader:
            batch = next(iter(loader))
            rows = np.asarray(batch["row"])
        assert rows.tolist() == list(range(at, len(MOMENTS))), moment


@needs_pyarrow(20, "writing times beyond 64 bits of nanoseconds")
def test_nested_and_missing_times(tmp_path: pathlib.Path) -> None:
    lists = [[], None, MOMENTS[:3], [None, MOMENTS[8]], MOMENTS[3:8], []]
    pairs = [
        None if value is None else {"t": value, "n": at}
        for at, value in enumerate([*MOMENTS[:3], None, None, MOMENTS[8]])
    ]
    table = pa.table(
        {
            "list": pa.array(lists, pa.list_(pa.timestamp("us"))),
            "pair": pa.array(pairs, pa.struct([("t", pa.timestamp("us")), ("n", pa.int64())])),
            "other": pa.array(range(6), pa.timestamp("s")),
        }
    )
    url = spark(table, tmp_path / "a.parquet")
    copy = tmp_path / "copy"
    bowstring.convert(url, str(copy), to="parquet")
    found = pa.concat_tables([pq.read_table(path) for path in sorted(copy.glob("*.parquet"))])
    for name in ("list", "pair"):
        assert found[name].to_pylist() == table[name].to_pylist(), name
    assert found.schema.field("list").type.value_type == pa.timestamp("us")


def test_digits_beyond_microseconds_are_not_lost_silently(tmp_path: pathlib.Path) -> None:
    nanos = pa.array([None, 1_000, 2_000, 1_700_000_000_000_000_123], pa.timestamp("ns"))
    url = spark(pa.table({"row": np.arange(4), "at": nanos}), tmp_path / "a.parquet")
    with pytest.raises(bowstring.UnsupportedError, match=r"a\.parquet, row group 0, column at, row 3.*INT96"):
        columns(url)
    assert columns(url, columns=["row"])["row"].to_pylist() == [0, 1, 2, 3]
    # A writer that declares nanoseconds gets them.
    pq.write_table(pa.table({"at": nanos[1:]}), tmp_path / "b.parquet", use_deprecated_int96_timestamps=True)
    with bowstring.Loader(str(tmp_path / "b.parquet"), batch_size=len(MOMENTS), shuffle=False, timeout=60) as loader:
        found = np.asarray(next(iter(loader))["at"])[:3]
    assert found.astype("datetime64[ns]").astype(np.int64).tolist() == nanos[1:].cast(pa.int64()).to_pylist()


SPARK_2 = {"org.apache.spark.version": "2.4.8"}
LEGACY = {"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyDateTime": ""}


@pytest.mark.parametrize("unit", ["us", "ms"])
@pytest.mark.parametrize(
    ("first", "told"), [(datetime.datetime(1899, 12, 31), True), (datetime.datetime(1900, 1, 1), False)]
)
def test_times_on_the_legacy_calendar_of_spark_are_told(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, unit: str, first: datetime.datetime, told: bool
) -> None:
    table = pa.table({"id": [1], "at": pa.array([first], pa.timestamp(unit))}).replace_schema_metadata(SPARK_2)
    pq.write_table(table, tmp_path / "a.parquet")
    columns(str(tmp_path))
    warnings = [record.getMessage() for record in caplog.records if "legacy calendar" in record.getMessage()]
    assert len(warnings) == told
    assert not told or ".parquet, column at: " in warnings[0]


@pytest.mark.parametrize(
    ("metadata", "first", "told"),
    [
        (SPARK_2, datetime.date(1, 1, 1), True),
        (LEGACY, datetime.date(1582, 10, 14), True),
        (LEGACY, datetime.date(1582, 10, 15), False),
        ({"org.apache.spark.version": "3.5.1"}, datetime.date(1, 1, 1), False),
    ],
)
def test_days_on_the_legacy_calendar_of_spark_are_told(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, metadata: dict[str, str], first: datetime.date, told: bool
) -> None:
    table = pa.table({"id": [1, 2], "day": [first, datetime.date(2026, 1, 1)]}).replace_schema_metadata(metadata)
    for name in ("a", "b"):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    found = columns(str(tmp_path))["day"]
    assert found[:2].to_pylist() == [(day - datetime.date(1970, 1, 1)).days for day in table["day"].to_pylist()]
    warnings = [record.getMessage() for record in caplog.records if "legacy calendar" in record.getMessage()]
    assert len(warnings) == told
    assert not told or ".parquet, column day: days before 1582-10-15" in warnings[0]


def test_days_of_spark_with_damaged_statistics_are_read_all_the_same(tmp_path: pathlib.Path) -> None:
    days = [datetime.date(1, 1, 1), datetime.date(2026, 1, 1)]
    table = pa.table({"day": days}).replace_schema_metadata(SPARK_2)
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    most = (days[1] - datetime.date(1970, 1, 1)).days.to_bytes(4, "little")
    # The number of nulls, 0, before the maximum in the footer: -1.
    whole = path.read_bytes()
    damaged = whole.replace(b"\x16\x00\x28\x04" + most, b"\x16\x01\x28\x04" + most)
    assert damaged != whole
    for name in ("a", "b"):
        (tmp_path / f"{name}.parquet").write_bytes(damaged)
    assert len(columns(str(tmp_path))["day"]) == 4
