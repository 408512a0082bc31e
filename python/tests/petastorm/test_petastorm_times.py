"""Times and bytes within lists, and bytes of one length: delivered as pandas has them, not as the stored numbers."""

from __future__ import annotations

import copy
import datetime
import pathlib
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.petastorm import TransformSpec, make_batch_reader, make_reader
from bowstring.petastorm.errors import DecodeFieldError, TimeRangeError

FIRST, SECOND = datetime.datetime(2020, 1, 1, 12), datetime.datetime(2021, 6, 5)


def written(path: pathlib.Path, **columns: pa.Array) -> str:
    pq.write_table(pa.table(columns), path / "part.parquet")
    return f"file://{path}"


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    times = [[FIRST, SECOND], [SECOND, FIRST]]
    days = [[moment.date() for moment in row] for row in times]
    return written(
        tmp_path,
        us=pa.array(times, pa.list_(pa.timestamp("us"))),
        ms=pa.array(times, pa.list_(pa.timestamp("ms", "UTC"))),
        ns=pa.array(times, pa.list_(pa.timestamp("ns"))),
        day=pa.array(days, pa.list_(pa.date32())),
        fixed=pa.array([b"ab\0\0", b"efgh"], pa.binary(4)),
        fixed_list=pa.array([[b"a\0", b"cd"], [b"ef", b"\0\0"]], pa.list_(pa.binary(2))),
    )


def test_batches(url: str) -> None:
    with make_batch_reader(url, num_epochs=1) as reader:
        batch = next(reader)
    wanted = np.array([[FIRST, SECOND], [SECOND, FIRST]], "M8[ns]")
    for name in ("us", "ms", "ns"):
        found = getattr(batch, name)
        assert (found.dtype, found.tolist()) == (wanted.dtype, wanted.tolist()), name
    assert batch.day.tolist() == [[FIRST.date(), SECOND.date()], [SECOND.date(), FIRST.date()]]
    assert batch.fixed.tolist() == [b"ab\0\0", b"efgh"]
    assert batch.fixed_list.tolist() == [[b"a\0", b"cd"], [b"ef", b"\0\0"]]


def test_frames(url: str) -> None:
    pytest.importorskip("pandas")
    seen: list[Any] = []

    def looked(frame: Any) -> Any:
        seen.append(frame.copy())
        return frame

    with make_batch_reader(url, num_epochs=1, transform_spec=TransformSpec(looked)) as reader:
        batch = next(reader)
    assert seen[0]["us"][0].dtype == np.dtype("M8[ns]")
    assert seen[0]["fixed"].tolist() == batch.fixed.tolist() == [b"ab\0\0", b"efgh"]


@pytest.mark.filterwarnings("ignore:make_reader is for datasets")
def test_rows(url: str) -> None:
    with make_reader(url, num_epochs=1, shuffle_row_groups=False) as reader:
        rows = list(reader)
    for name in ("us", "ms", "ns"):
        found = getattr(rows[1], name)
        assert (found.dtype, found.tolist()) == (np.dtype("M8[us]"), [SECOND, FIRST]), name
    assert rows[0].day.tolist() == [FIRST.date(), SECOND.date()]
    assert [row.fixed for row in rows] == [b"ab\0\0", b"efgh"]
    assert rows[1].fixed_list.tolist() == [b"ef", b"\0\0"]


@pytest.mark.filterwarnings("ignore:make_reader is for datasets")
def test_nulls(tmp_path: pathlib.Path) -> None:
    url = written(
        tmp_path,
        fixed=pa.array([b"abcd", None], pa.binary(4)),
        times=pa.array([[FIRST], None], pa.list_(pa.timestamp("us"))),
    )
    with make_reader(url, num_epochs=1, shuffle_row_groups=False) as reader:
        rows = list(reader)
    assert (rows[1].fixed, rows[1].times) == (None, None)
    with make_batch_reader(url, ["fixed"], num_epochs=1) as reader:
        assert next(reader).fixed.tolist() == [b"abcd", None]


def test_a_time_in_a_list_that_does_not_fit_is_named_by_its_row(tmp_path: pathlib.Path) -> None:
    late = datetime.datetime(3000, 1, 1)
    url = written(tmp_path, times=pa.array([[FIRST], [], [FIRST, late]], pa.list_(pa.timestamp("us"))))
    with make_batch_reader(url, num_epochs=1) as reader, pytest.raises(TimeRangeError) as raised:
        next(reader)
    assert (raised.value.column, raised.value.row, raised.value.row_group) == ("times", 2, 0)
    for again in (pickle.loads(pickle.dumps(raised.value)), copy.copy(raised.value), copy.deepcopy(raised.value)):
        assert (str(again), vars(again)) == (str(raised.value), vars(raised.value))


def test_numbers_in_lists_never_wrap(tmp_path: pathlib.Path) -> None:
    from bowstring.petastorm import _document
    from bowstring.petastorm.etl._footer import SCHEMA_KEY, Folder
    from bowstring.petastorm.unischema import Unischema, UnischemaField

    url = written(tmp_path, x=pa.array([[1, 2], [1 << 32, 3]], pa.list_(pa.int64())))
    schema = Unischema("Lists", [UnischemaField("x", np.int32, (None,), None, False)])
    Folder(url).add({SCHEMA_KEY: _document.metadata(schema)})
    fault = pytest.raises(DecodeFieldError, match="4294967296 does not fit in int32")
    with make_reader(url, num_epochs=1, shuffle_row_groups=False) as reader, fault:
        list(reader)
