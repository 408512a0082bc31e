"""make_batch_reader: plain Parquet, a row group at a time, in pandas' types."""

from __future__ import annotations

import datetime
import pathlib
import time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.petastorm import make_batch_reader, make_reader
from bowstring.petastorm.codecs import ScalarCodec
from bowstring.petastorm.errors import NoDataAvailableError, TimeRangeError
from bowstring.petastorm.ngram import NGram
from bowstring.petastorm.predicates import in_lambda, in_negate, in_pseudorandom_split, in_reduce, in_set
from bowstring.petastorm.transform import TransformSpec
from bowstring.petastorm.unischema import UnischemaField

ROWS = 50


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    """Row groups of 10: `id`, `maybe` (int32, null in every third row), `word`, `day`, `at`, `price`, `vector`, `ragged`."""
    n = range(ROWS)
    table = pa.table(
        {
            "id": pa.array(n, pa.int64()),
            "maybe": pa.array([None if i % 3 == 0 else i for i in n], pa.int32()),
            "word": pa.array([None if i == 4 else f"w{i}" for i in n]),
            "day": pa.array([datetime.date(2020, 1, 1 + i % 28) for i in n]),
            "at": pa.array([datetime.datetime(2021, 1, 1, i % 24) for i in n], pa.timestamp("us")),
            "price": pa.array([Decimal(i) / 4 for i in n], pa.decimal128(8, 2)),
            "vector": pa.array([[float(i), float(-i)] for i in n], pa.list_(pa.float32())),
            "ragged": pa.array([list(range(i % 3)) for i in n], pa.list_(pa.int64())),
        }
    )
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=10)
    return f"file://{tmp_path}"


def batches(url: str, *fields: str, **options: Any) -> list[Any]:
    with make_batch_reader(url, list(fields) or None, **{"shuffle_row_groups": False, **options}) as reader:
        assert reader.batched_output
        return list(reader)


def test_types(url: str) -> None:
    first = batches(url, "id", "maybe", "word", "day", "at", "price", "vector")[0]
    assert first.id.dtype == np.int64
    assert first.id.tolist() == list(range(10))
    assert first.maybe.dtype == np.float64
    assert np.isnan(first.maybe[[0, 3, 6, 9]]).all()
    assert first.word.dtype.kind == "U"
    assert first.word[4] == "None"
    assert first.day[3] == datetime.date(2020, 1, 4)
    assert first.at.dtype == np.dtype("M8[ns]")
    assert first.price[3] == Decimal("0.75")
    assert first.vector.shape == (10, 2)
    assert first.vector[3].tolist() == [3.0, -3.0]


def test_lists_of_several_lengths_raise_an_error_with_advice(url: str) -> None:
    with pytest.raises(RuntimeError, match=r"ragged.*0, 1, 2.*schema_fields"):
        batches(url, "ragged")


def test_predicates(url: str) -> None:
    def ids(predicate: Any, *fields: str) -> list[int]:
        found = batches(url, "id", *fields, predicate=predicate)
        return [row for batch in found for row in batch.id.tolist()]

    assert ids(in_set({3, 44}, "id")) == [3, 44]
    assert ids(in_negate(in_set(set(range(48)), "id")), "word") == [48, 49]
    assert ids(in_reduce([in_set({1, 2}, "id"), in_set({2, 3}, "id")], all)) == [2]
    pytest.importorskip("pandas")
    assert ids(in_lambda(["id"], lambda column: column % 20 == 7), "vector") == [7, 27, 47]
    assert ids(in_lambda(["word"], lambda column: column.isnull()), "word") == [4]
    assert ids(in_lambda(["ragged"], lambda column: column.map(len) == 2), "ragged") == list(range(2, 50, 3))
    for wrong in (True, [True]):
        with pytest.raises(TypeError, match="one truth per row"):
            ids(in_lambda(["id"], lambda column, wrong=wrong: wrong))

    class NotIn(in_set):
        def do_include(self, values: Any) -> Any:
            return ~values["id"].isin(self._inclusion_values)

    assert ids(NotIn(set(range(48)), "id")) == [48, 49]


def test_predicates_get_nulls_and_deliver_arrays(url: str) -> None:
    for fields in (["word", "maybe", "vector"], ["word", "maybe", "vector", "id"]):
        plain = batches(url, *fields)[0]
        (found,) = batches(url, *fields, predicate=in_set({None}, "word"))
        assert (found.word.tolist(), found.maybe.tolist(), found.vector.tolist()) == (["None"], [4.0], [[4.0, -4.0]])
        for name in fields:
            assert getattr(found, name).dtype.kind == getattr(plain, name).dtype.kind
    assert batches(url, "word", predicate=in_set({"None"}, "word")) == []


def test_equal_integers_stay_in_one_part_beside_nulls(tmp_path: pathlib.Path) -> None:
    users = [*range(50), *range(49), None]
    pq.write_table(pa.table({"user": pa.array(users, pa.int64())}), tmp_path / "a.parquet", row_group_size=50)
    parts = [
        {row for batch in batches(f"file://{tmp_path}", predicate=split) for row in batch.user.tolist() if row == row}
        for split in (in_pseudorandom_split([0.5, 0.5], part, "user") for part in range(2))
    ]
    assert parts[0].isdisjoint(parts[1])
    assert parts[0] | parts[1] == set(range(50))


def test_filters_come_before_shards(tmp_path: pathlib.Path) -> None:
    for day in range(4):
        for kind in ("train", "val"):
            folder = tmp_path / f"day={day}" / f"kind={kind}"
            folder.mkdir(parents=True)
            pq.write_table(pa.table({"id": [10 * day + (kind == "val")]}), folder / "a.parquet")
    train = [("kind", "=", "train")]
    for at, wanted in enumerate([[[0], [20]], [[10], [30]]]):
        found = batches(f"file://{tmp_path}", "id", filters=train, cur_shard=at, shard_count=2)
        assert [batch.id.tolist() for batch in found] == wanted


def test_transform(url: str) -> None:
    pytest.importorskip("pandas")

    def changed(frame: Any) -> Any:
        frame["square"] = [np.full((2, 2), value) for value in frame["id"]]
        return frame[frame["id"] % 2 == 0]

    spec = TransformSpec(changed, [("square", np.int64, (2, 2), False)], removed_fields=["word"])
    found = batches(url, "id", "word", transform_spec=spec)
    assert [batch.square.shape for batch in found] == [(5, 2, 2)] * 5
    assert found[1].id.tolist() == [10, 12, 14, 16, 18]
    assert not hasattr(found[0], "word")
    with pytest.raises(ValueError, match="edit_fields and removed_fields"):
        batches(url, "id", "word", transform_spec=TransformSpec(changed))


def test_edited_fields_may_be_fields_of_a_schema(url: str) -> None:
    pytest.importorskip("pandas")
    field = UnischemaField("half", np.float64, (), ScalarCodec(None), True)
    spec = TransformSpec(lambda frame: frame.assign(half=frame["id"] / 2), edit_fields=[field])
    with make_batch_reader(url, ["id"], transform_spec=spec, shuffle_row_groups=False) as reader:
        assert reader.schema.fields["half"] == field
        assert reader.schema.fields["half"].codec is None
        assert next(reader).half.tolist() == [row / 2 for row in range(10)]


def test_shuffling(url: str) -> None:
    groups = [batch.id[0] // 10 for batch in batches(url, "id", shuffle_row_groups=True, seed=3)]
    assert groups == [batch.id[0] // 10 for batch in batches(url, "id", shuffle_row_groups=True, seed=3)]
    assert sorted(groups) == list(range(5))
    rows = batches(url, "id", "vector", shuffle_rows=True, seed=3)
    assert all(sorted(batch.id.tolist()) == list(range(at * 10, at * 10 + 10)) for at, batch in enumerate(rows))
    assert all((batch.vector[:, 0] == batch.id).all() for batch in rows)


@pytest.mark.parametrize("seed", [None, 5])
def test_parts_hold_each_row_once(url: str, seed: int | None) -> None:
    found = batches(url, "id", shuffle_row_drop_partitions=3, shuffle_rows=True, shuffle_row_groups=True, seed=seed)
    assert len(found) == 15
    assert sorted(row for batch in found for row in batch.id.tolist()) == list(range(ROWS))


def test_a_file_without_the_partition_column_is_null_there(tmp_path: pathlib.Path) -> None:
    for at, name in enumerate(["day=1/a", "rest", "day=2/a", "day=3/a"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [at]}), tmp_path / f"{name}.parquet")
    seen = []

    def third(day: Any) -> bool:
        seen.append(day)
        return bool(day == 3)

    url = f"file://{tmp_path}"
    found = batches(url, "id", "day", predicate=in_lambda(["day"], third))
    assert [(batch.id.tolist(), batch.day.tolist()) for batch in found] == [([3], [3])]
    assert set(seen) == {1, 2, 3, None}
    assert [batch.id.tolist() for batch in batches(url, "id", "day", predicate=in_set({1, 2}, "day"))] == [[0], [2]]
    assert [batch.id.tolist() for batch in batches(url, "id", "day", predicate=in_set({None}, "day"))] == [[1]]


@pytest.mark.parametrize("seed", [0, 5])
def test_a_seeded_order_does_not_depend_on_the_pool(seed: int, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("pandas")
    pq.write_table(pa.table({"id": range(400)}), tmp_path / "a.parquet", row_group_size=20)

    def slow(frame: Any) -> Any:
        time.sleep(0.003 * (frame["id"].min() // 20 % 3))
        return frame

    def order(**options: Any) -> list[int]:
        found = batches(f"file://{tmp_path}", "id", shuffle_rows=True, seed=seed, **options)
        return [row for batch in found for row in batch.id.tolist()]

    plain = order()
    assert all(order(transform_spec=TransformSpec(slow)) == plain for _ in range(3))
    assert order(transform_spec=TransformSpec(slow), reader_pool_type="dummy") == plain
    assert len({tuple(row % 20 for row in plain[at : at + 20]) for at in range(0, 400, 20)}) > 15


def test_times_beyond_nanoseconds_are_an_error(tmp_path: pathlib.Path) -> None:
    last = datetime.datetime(2262, 4, 11, 23, 47, 16, 854775)
    times = [datetime.datetime(1900, 1, 1)] * 10 + [last, None, datetime.datetime(9999, 12, 31), last]
    table = pa.table(
        {"id": range(14), "at": pa.array(times, pa.timestamp("us")), "s": pa.array(times, pa.timestamp("ms"))}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    url = f"file://{tmp_path}"
    for column in ("at", "s"):
        with make_batch_reader(url, ["id", column], shuffle_row_groups=False) as reader:
            assert next(reader)[1][0] == np.datetime64("1900-01-01", "ns")
            with pytest.raises(
                ValueError, match=rf"a\.parquet, row group 1, column {column}, row 2: 9999-12-31"
            ) as caught:
                next(reader)
        error = caught.value
        assert isinstance(error, TimeRangeError)
        assert (error.file, error.row_group, error.column, error.row) == ("a.parquet", 1, column, 2)
    assert np.isnat(batches(url, "at", filters=[("id", "<", 12)])[1].at[-1])
    pandas = pytest.importorskip("pandas")
    if int(pandas.__version__.partition(".")[0]) < 2:
        return  # this pandas has only nanoseconds, and refuses itself

    def far(frame: Any) -> Any:
        frame["at"] = np.array(["1900-01-01", "3000-01-01"] * 5, "M8[s]")[: len(frame)]
        return frame

    with pytest.raises(ValueError, match=r"column at, row 1: 3000-01-01"):
        batches(url, "id", "at", filters=[("id", "<", 10)], transform_spec=TransformSpec(far))


def test_days_beyond_pythons_are_an_error(tmp_path: pathlib.Path) -> None:
    days = pa.array([-719162, 2932896, None, 2932897], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"id": range(4), "day": days}), tmp_path / "a.parquet", row_group_size=3)
    with make_batch_reader(f"file://{tmp_path}", shuffle_row_groups=False) as reader:
        assert next(reader).day.tolist() == [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]
        with pytest.raises(TimeRangeError, match="row group 1, column day, row 0: 2932897"):
            next(reader)


@pytest.mark.timeout(60)
def test_an_endless_reader_that_yields_nothing_ends(url: str) -> None:
    pytest.importorskip("pandas")
    nothing = TransformSpec(lambda frame: frame[:0])
    for options in (
        {"predicate": in_lambda(["id"], lambda column: column < 0)},
        {"predicate": in_lambda(["id", "word"], lambda column, word: column < 0)},
        {"transform_spec": nothing},
        {"transform_spec": nothing, "reader_pool_type": "dummy"},
    ):
        for shuffled in (False, True):
            with pytest.raises(NoDataAvailableError, match="num_epochs=None has no end"):
                batches(url, "id", "word", num_epochs=None, shuffle_row_groups=shuffled, **options)
    assert batches(url, "id", "word", num_epochs=3, predicate=in_lambda(["id"], lambda column: column < 0)) == []


@pytest.mark.timeout(60)
def test_an_endless_reader_of_one_row_continues(url: str) -> None:
    for fields in (["id"], ["id", "word"]):
        with make_batch_reader(url, fields, num_epochs=None, predicate=in_set({49}, "id"), seed=1) as reader:
            assert [next(reader).id.tolist() for _ in range(200)] == [[49]] * 200


def test_filters_select_rows(url: str) -> None:
    found = batches(url, "id", filters=[("id", ">=", 37)])
    assert [row for batch in found for row in batch.id.tolist()] == list(range(37, 50))


def test_windows_are_refused(url: str) -> None:
    with pytest.raises(NotImplementedError, match="make_reader"):
        make_batch_reader(url, NGram({0: ["id"]}, 1, "id"))


def test_rows_of_plain_parquet(url: str) -> None:
    with (
        pytest.warns(UserWarning, match="make_batch_reader"),
        make_reader(url, ["id", "maybe", "word", "at", "price", "ragged"], shuffle_row_groups=False) as reader,
    ):
        rows = list(reader)
    assert [row.maybe for row in rows[:4]] == [None, 1, 2, None]
    assert isinstance(rows[1].maybe, np.int32)
    assert rows[4].word is None
    assert rows[5].at == np.datetime64("2021-01-01T05:00:00", "us")
    assert rows[5].price == Decimal("1.25")
    assert [len(row.ragged) for row in rows[:4]] == [0, 1, 2, 0]
