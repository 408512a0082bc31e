"""Files of one dataset whose times have other units, and a time that the finer unit cannot hold."""

from __future__ import annotations

import pathlib

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def table(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a directory whose first file has the year 5138 in row 50."""
    times = pa.array([1] * 50 + [10**14] + [2] * 9, pa.timestamp("ms"))
    pq.write_table(pa.table({"x": times, "k": range(60)}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"x": pa.array([3], pa.timestamp("ns")), "k": [99]}), tmp_path / "1.parquet")
    return tmp_path


@pytest.mark.parametrize("chosen", [None, "k >= 45"])
def test_a_time_beyond_the_finer_unit_is_named_by_its_row(table: pathlib.Path, chosen: str | None) -> None:
    with (
        bowstring.Loader(table, batch_size=90, shuffle=False, filter=chosen) as loader,
        pytest.raises(
            bowstring.UnsupportedError, match=r"of Timestamp\(ms\) as Timestamp\(ns\) is not supported"
        ) as caught,
    ):
        next(iter(loader))
    assert (caught.value.row, caught.value.column) == (50, "x")
    assert caught.value.file.endswith("0.parquet")
    assert "by a filter on another column" in str(caught.value)


def test_rows_without_it_are_read(table: pathlib.Path) -> None:
    with bowstring.Loader(table, batch_size=90, shuffle=False, filter="k < 50 or k > 50") as loader:
        assert next(iter(loader))["x"].tolist() == [10**6] * 50 + [2 * 10**6] * 9 + [3]
    with bowstring.Loader(table / "0.parquet", batch_size=90, shuffle=False) as loader:
        assert next(iter(loader))["x"].tolist()[50] == 10**14
