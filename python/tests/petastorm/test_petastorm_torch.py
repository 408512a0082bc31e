"""The loaders for PyTorch over both kinds of reader."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")

from bowstring.petastorm import make_batch_reader, make_reader  # noqa: E402
from bowstring.petastorm._shuffling import BatchShuffle, ColumnShuffle, RowShuffle  # noqa: E402
from bowstring.petastorm.pytorch import (  # noqa: E402
    BatchedDataLoader,
    DataLoader,
    InMemBatchedDataLoader,
    decimal_friendly_collate,
)
from bowstring.petastorm.weighted_sampling_reader import WeightedSamplingReader  # noqa: E402

from .datasets import CODECS  # noqa: E402

At = Callable[[str], str]


@pytest.fixture
def table(tmp_path: pathlib.Path) -> str:
    """50 rows in row groups of 13: `id` and `vector` [2]."""
    rows = range(50)
    vectors = pa.array([[float(i), float(-i)] for i in rows], pa.list_(pa.float32()))
    pq.write_table(pa.table({"id": rows, "vector": vectors}), tmp_path / "t.parquet", row_group_size=13)
    return f"file://{tmp_path}"


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def test_rows_to_batches(at: At) -> None:
    fields = ["id|s_bool|s_float|s_string|s_decimal|nd_f32|nd_u16|img_png_rgb"]
    with DataLoader(make_reader(at(CODECS), fields, shuffle_row_groups=False), batch_size=16) as loader:
        batches = list(loader)
    assert ids(batches) == [list(range(16)), list(range(16, 32)), list(range(32, 40))]
    first = batches[0]
    assert first["nd_f32"].shape == (16, 2, 3)
    assert first["nd_u16"].dtype == torch.int32
    assert first["s_bool"].dtype == torch.uint8
    assert first["img_png_rgb"].shape == (16, 24, 32, 3)
    assert isinstance(first["s_string"][0], str)
    assert isinstance(first["s_decimal"][0], Decimal)


@pytest.mark.parametrize("capacity", [0, 1, 7, 100])
@pytest.mark.parametrize("kind", [DataLoader, BatchedDataLoader])
def test_every_row_once(kind: Any, capacity: int, table: str) -> None:
    for reader in (make_batch_reader(table, ["id", "vector"]), rows_of(table)):
        with kind(reader, batch_size=8, shuffling_queue_capacity=capacity) as loader:
            batches = list(loader)
        assert sorted(row for batch in ids(batches) for row in batch) == list(range(50))
        assert [len(batch["id"]) for batch in batches] == [8] * 6 + [2]
        assert all((batch["vector"][:, 0] == batch["id"]).all() for batch in batches)


def drawn(buffer: Any, blocks: list[int]) -> list[list[int]]:
    """Draws batches from a buffer that is fed with blocks of consecutive row numbers; `blocks` are their ends."""
    found = []
    for first, end in zip([0, *blocks], blocks, strict=False):
        rows = torch.arange(first, end)
        buffer.add([rows, torch.stack([rows, -rows], 1)])
        while buffer.ready(ended=end == blocks[-1]):
            ids, vectors = buffer.take()
            assert torch.equal(vectors, torch.stack([ids, -ids], 1))
            found.append(ids.tolist())
    return found


class DrawsRowByRow:
    """The same algorithm in its simplest form."""

    def __init__(self, capacity: int, size: int) -> None:
        self.size, self.enough = size, max(capacity + size - 2, size)
        self.rows: list[int] = []
        self.in_order = True

    def add(self, columns: Any) -> None:
        self.rows += columns[0].tolist()
        self.in_order = True

    def ready(self, *, ended: bool) -> bool:
        return len(self.rows) >= (1 if ended else self.enough)

    def take(self) -> list[Any]:
        if self.in_order:
            self.rows = [self.rows[at] for at in torch.randperm(len(self.rows)).tolist()]
            self.in_order = False
        batch, self.rows = torch.tensor(self.rows[: self.size]), self.rows[self.size :]
        return [batch, torch.stack([batch, -batch], 1)]


@pytest.mark.parametrize("seed", range(100))
def test_batches_are_drawn_from_the_whole_buffer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity, size = int(rng.integers(1, 60)), int(rng.integers(1, 20))
    blocks = np.cumsum([1, *rng.integers(1, 70, 8)]).tolist()
    found = []
    for kind in (BatchShuffle, DrawsRowByRow):
        torch.manual_seed(seed)
        found.append(drawn(kind(capacity, size), blocks))
    assert found[0] == found[1]
    assert sorted(row for batch in found[0] for row in batch) == list(range(blocks[-1]))


@pytest.mark.parametrize("seed", range(100))
def test_rows_in_arrays_are_drawn_as_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity, size, alike = int(rng.integers(1, 60)), int(rng.integers(1, 20)), seed % 2
    arrays, rows = ColumnShuffle(capacity, size, np.concatenate), RowShuffle(capacity)
    blocks = np.cumsum(rng.integers(1, 70, 30)).tolist()
    found: list[list[list[float]]] = [[], []]
    # Row by row, as Petastorm draws; in sequence, so that each draws from the generator alone.
    np.random.seed(seed)
    held: list[int] = []
    single: list[int] = []
    for first, end in zip([0, *blocks], blocks, strict=False):
        held += range(first, end)
        while len(held) >= (1 if end == blocks[-1] else max(capacity - 1, 1)):
            at = np.random.randint(0, len(held))
            single.append(held[at])
            held[at] = held[-1]
            held.pop()
    np.random.seed(seed)
    for first, end in zip([0, *blocks], blocks, strict=False):
        rows.add(range(first, end))
        while taken := rows.take(size, ended=end == blocks[-1]):
            found[0].append(taken)
    assert [row for taken in found[0] for row in taken] == single
    found[0] = [single[at : at + size] for at in range(0, len(single), size)]
    np.random.seed(seed)
    for first, end in zip([0, *blocks], blocks, strict=False):
        block = np.arange(first, end).astype(np.int32 if alike or first % 2 else np.float64)
        arrays.add([block, -block])
        while arrays.ready(ended=end == blocks[-1]):
            numbers, negative = arrays.take()
            assert (numbers == -negative).all()
            found[1].append(numbers.tolist())
        assert arrays._end <= 2 * (capacity + size + 140), "rows that are gone are kept"
    assert found[0] == found[1]


def rows_of(url: str) -> Any:
    with pytest.warns(UserWarning, match="make_batch_reader"):
        return make_reader(url, ["id", "vector"])


def test_second_pass_repeats_no_row(table: str) -> None:
    with DataLoader(make_batch_reader(table, ["id"], shuffle_row_groups=False), batch_size=16) as loader:
        assert ids(loader) == ids(loader)


def test_one_pass_at_a_time(table: str) -> None:
    with DataLoader(make_batch_reader(table, ["id"]), batch_size=16) as loader:
        first = iter(loader)
        next(first)
        with pytest.raises(RuntimeError, match="under way"):
            next(iter(loader))
        first.close()


@pytest.mark.parametrize(("field", "problem"), [("n_string", "None"), ("nd_str", "array of <U")])
def test_types_that_torch_lacks_are_refused(field: str, problem: str, at: At) -> None:
    loader = DataLoader(make_reader(at(CODECS), [field]), batch_size=4)
    with pytest.raises(TypeError, match=problem):
        list(loader)
    with pytest.raises(RuntimeError, match="last pass failed"):
        list(loader)


def test_in_memory(table: str) -> None:
    reader = make_batch_reader(table, ["id", "vector"], num_epochs=None, shuffle_row_groups=False)
    loader = InMemBatchedDataLoader(reader, batch_size=8, num_epochs=2, rows_capacity=20, shuffle=True, seed=1)
    batches = ids(loader)
    assert [len(batch) for batch in batches] == [8, 8, 4] * 2
    assert sorted(row for batch in batches[:3] for row in batch) == list(range(20))
    assert batches[:3] != batches[3:]
    with pytest.raises(RuntimeError, match="num_epochs"):
        list(loader)


@pytest.mark.parametrize("capacity", [0, 1, 2, 5, 12, 30, 99])
@pytest.mark.parametrize("batch_size", [1, 3, 13, 25, 100])
def test_batches_of_columns_are_those_of_rows(capacity: int, batch_size: int, table: str) -> None:
    def batches(collate: Any) -> list[dict[str, Any]]:
        np.random.seed(capacity)
        found = []
        reader = make_batch_reader(table, ["id", "vector"], shuffle_row_groups=False)
        with DataLoader(reader, batch_size, collate, shuffling_queue_capacity=capacity) as loader:
            for batch in loader:
                found.append(batch)
                np.random.rand()  # A training loop may draw too.
        return found

    # Any function but the default one gets rows.
    cut, collated = batches(decimal_friendly_collate), batches(lambda rows: decimal_friendly_collate(rows))
    assert len(cut) == len(collated) == -(-50 // batch_size)
    for one, other in zip(cut, collated, strict=True):
        assert list(one) == list(other)
        assert all(one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one)


def test_a_type_that_changes_between_row_groups(tmp_path: pathlib.Path) -> None:
    ids = pa.array([None if 20 < i < 30 else i for i in range(50)], pa.int32())
    pq.write_table(pa.table({"id": ids}), tmp_path / "t.parquet", row_group_size=10)

    def batches(collate: Any) -> list[Any]:
        with DataLoader(make_batch_reader(f"file://{tmp_path}", shuffle_row_groups=False), 7, collate) as loader:
            return [batch["id"] for batch in loader]

    cut, collated = batches(decimal_friendly_collate), batches(lambda rows: decimal_friendly_collate(rows))
    assert [batch.dtype for batch in cut] == [batch.dtype for batch in collated]
    assert {batch.dtype for batch in cut} == {torch.int32, torch.float64}
    assert all(torch.equal(one.nan_to_num(-1), other.nan_to_num(-1)) for one, other in zip(cut, collated, strict=True))


@pytest.mark.parametrize("capacity", [0, 5])
@pytest.mark.parametrize("kind", [DataLoader, BatchedDataLoader])
def test_readers_of_a_mixture_may_have_their_fields_in_another_order(
    kind: Any, capacity: int, tmp_path: pathlib.Path
) -> None:
    readers = []
    for name, order in (("x", ["a", "b"]), ("y", ["b", "a"])):
        (tmp_path / name).mkdir()
        table = pa.table({"a": range(5), "b": range(0, 5000, 1000)}).select(order)
        pq.write_table(table, tmp_path / name / "t.parquet")
        readers.append(make_batch_reader(f"file://{tmp_path / name}"))
    with kind(WeightedSamplingReader(readers, [0.5, 0.5]), 3, shuffling_queue_capacity=capacity) as loader:
        batches = list(loader)
    assert len(batches) > 1
    assert all(torch.equal(batch["a"] * 1000, batch["b"]) for batch in batches)


def test_a_shuffled_batch_pins_no_other(table: str) -> None:
    for kind in (DataLoader, BatchedDataLoader):
        with kind(make_batch_reader(table, ["id", "vector"]), 8, shuffling_queue_capacity=20) as loader:
            for batch in loader:
                assert all(part.untyped_storage().nbytes() == part.nbytes for part in batch.values())


def test_lists_of_another_length_in_the_next_row_group(tmp_path: pathlib.Path) -> None:
    lists = pa.array([[float(i)] * (2 if i < 5 else 3) for i in range(10)], pa.list_(pa.float32()))
    pq.write_table(pa.table({"list": lists}), tmp_path / "t.parquet", row_group_size=5)

    def loader(batch_size: int) -> Any:
        return DataLoader(make_batch_reader(f"file://{tmp_path}"), batch_size, shuffling_queue_capacity=20)

    with loader(1) as one:
        assert sorted(batch["list"].tolist()[0] for batch in one) == sorted(lists.to_pylist())
    with pytest.raises(RuntimeError, match="equal size"), loader(10) as all_of_them:
        list(all_of_them)


def test_collate() -> None:
    rows = [{"a": Decimal(i), "b": np.float32(i), "c": np.arange(2), "d": "x", "e": (1, 2.5)} for i in range(3)]
    made = decimal_friendly_collate(rows)
    assert made["a"] == [Decimal(0), Decimal(1), Decimal(2)]
    assert made["b"].dtype == torch.float32
    assert made["c"].tolist() == [[0, 1]] * 3
    assert made["d"] == ["x"] * 3
    assert [part.tolist() for part in made["e"]] == [[1] * 3, [2.5] * 3]


def test_weighted_sampling(at: At) -> None:
    np.random.seed(1)
    readers = [make_reader(at(CODECS), ["id"], num_epochs=None, seed=seed) for seed in (1, 2)]
    with WeightedSamplingReader(readers, [9, 1]) as mixed, DataLoader(mixed, batch_size=10) as loader:
        batches = iter(loader)
        drawn = [int(row) for _ in range(20) for row in next(batches)["id"]]
    assert len(drawn) == 200
    assert not mixed.last_row_consumed


def test_a_converters_reader_is_stopped_if_no_loader_is_made(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from bowstring.petastorm.spark import _served
    from bowstring.petastorm.spark.spark_dataset_converter import TorchDatasetContextManager

    directory = tempfile.TemporaryDirectory()
    monkeypatch.setattr(_served, "fetched", lambda url: (directory, [f"{table}/t.parquet"]))

    def no_loader(**given: Any) -> Any:
        raise ZeroDivisionError

    # `rows` is no parameter of a reader: it fails before there is one.
    for kargs, make, error in [({}, no_loader, ZeroDivisionError), ({"rows": 1}, None, TypeError)]:
        opened = TorchDatasetContextManager(["grpc://127.0.0.1:9/t"], 10, kargs, 0, make)
        with pytest.raises(error), opened:
            pass
        assert not pathlib.Path(directory.name).exists()
        assert error is TypeError or opened.reader.stopped
        pathlib.Path(directory.name).mkdir()
    directory.cleanup()
