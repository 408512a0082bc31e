"""`bowstring.torch`: torch tensors over the batch's own memory, alone and inside torch's DataLoader."""

from __future__ import annotations

import contextlib
import gc
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from bowstring import Image
from bowstring.torch import DataLoader, Dataset
from conftest import run_python


def test_kept_tensors_share_memory_and_stay_valid(numbers: pathlib.Path) -> None:
    loader = DataLoader(numbers, batch_size=25, shuffle=False)
    native = loader._native.next(dict)
    assert native is not None
    tensors = {name: value for name, value in native.items() if isinstance(value, bowstring.Tensor)}
    assert tensors.keys() >= {"id", "x", "tags__values"}
    for tensor in tensors.values():
        ours = torch.from_dlpack(tensor)
        assert ours.data_ptr() == tensor.data_ptr
        assert ours.data_ptr() % 64 == 0
    kept = list(loader)
    loader.close()
    del loader, native, tensors, tensor, ours
    gc.collect()
    # Fresh slabs would overwrite the kept ones if those had been returned to the pool.
    with DataLoader(numbers, batch_size=25) as other:
        for _ in range(4):
            list(other)
    assert torch.equal(torch.cat([batch["id"] for batch in kept]), torch.arange(100))
    assert kept[3]["name"] == [f"row {row}" for row in range(75, 100)]


def test_tensors_of_one_batch_share_one_slab(photos: pathlib.Path) -> None:
    image = Image(48, crop="random_resized", flip=True, dtype="bfloat16", normalize="imagenet")
    with DataLoader(photos, batch_size=8, columns=["image", "label"], images={"image": image}) as loader:
        batch = next(iter(loader))
    assert batch["image"].dtype == torch.bfloat16
    assert batch["image"].shape == (8, 3, 48, 48)
    assert batch["image"].is_contiguous()
    assert batch["image"].float().std() > 0.1
    distance = abs(batch["label"].data_ptr() - batch["image"].data_ptr())
    assert distance <= batch["image"].nbytes + 256
    batch["image"].mul_(2)


def test_inside_torchs_dataloader(numbers: pathlib.Path) -> None:
    dataset = Dataset(numbers, batch_size=10, shuffle=False, columns=["id"])
    loader = torch.utils.data.DataLoader(dataset, batch_size=None)
    assert len(loader) == len(dataset) == 10
    seen = torch.cat([batch["id"] for batch in loader])
    assert torch.equal(seen, torch.arange(100))
    iterator = iter(loader)
    next(iterator)
    state = dataset.state_dict()
    other = Dataset(numbers, batch_size=10, shuffle=False, columns=["id"])
    other.load_state_dict(state)
    assert (other.epoch, other.step) == (1, 1)
    assert torch.equal(next(iter(other))["id"], next(iterator)["id"])


def test_worker_processes_are_refused(numbers: pathlib.Path) -> None:
    dataset = Dataset(numbers, batch_size=10)
    for context, error in (("fork", bowstring.ConfigError), ("spawn", bowstring.UnsupportedError)):
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=context)
        with pytest.raises(error, match="num_workers=0"):
            next(iter(loader))


class Rows(Dataset):
    """A dataset of the user's, of single rows."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in super().__iter__():
            for number in batch["id"]:
                yield {"id": number}


def test_rows_of_a_subclass_may_be_stacked(numbers: pathlib.Path) -> None:
    dataset = Rows(numbers, batch_size=10, columns=["id"])
    found = [batch["id"].tolist() for batch in torch.utils.data.DataLoader(dataset, batch_size=4)]
    assert [len(rows) for rows in found] == [4] * 25
    assert sorted(row for rows in found for row in rows) == list(range(100))


class Chained(Dataset):
    """The same, without a generator of its own."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return itertools.chain.from_iterable(({"id": number} for number in batch["id"]) for batch in super().__iter__())


class Twice(Rows):
    """Each row of a batch, and then each of them once more."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in Dataset.__iter__(self):
            yield from ({"id": number} for _ in range(2) for number in batch["id"])


@pytest.mark.parametrize("kind", [Rows, Chained])
@pytest.mark.parametrize("stacked", [4, 5, 10, 20])
def test_stacked_rows_have_a_state_at_the_ends_of_batches(kind: Any, stacked: int, numbers: pathlib.Path) -> None:
    """Within a batch, the rows that torch has not taken yet would be lost."""
    dataset = kind(numbers, batch_size=10, columns=["id"])
    loader = torch.utils.data.DataLoader(dataset, batch_size=stacked)
    seen, states = [], {}
    for _ in range(2):
        for batch in loader:
            seen += batch["id"].tolist()
            if len(seen) % 10 == 0:
                states[len(seen)] = dataset.state_dict()
            else:
                with pytest.raises(bowstring.UnsupportedError, match=r"the others would be lost.*batch_size=None"):
                    dataset.state_dict()
    assert len(states) == 200 // np.lcm(10, stacked)
    for taken, state in states.items():
        again = kind(numbers, batch_size=10, columns=["id"])
        again.load_state_dict(state)
        rest = [
            row
            for _ in range(2)
            for batch in torch.utils.data.DataLoader(again, batch_size=4)
            for row in batch["id"].tolist()
        ]
        assert rest[: 200 - taken] == seen[taken:]
    # A state that is loaded is at its place, wherever the pass was.
    next(iter(loader))
    dataset.load_state_dict(states[20])
    assert dataset.state_dict()["step"] == 2


def test_a_subclass_that_repeats_rows_has_no_state_within_an_epoch(numbers: pathlib.Path) -> None:
    dataset = Twice(numbers, batch_size=10, columns=["id"])
    batches = iter(torch.utils.data.DataLoader(dataset, batch_size=20))
    for _ in range(3):
        next(batches)
        with pytest.raises(bowstring.UnsupportedError, match="the others would be lost"):
            dataset.state_dict()
    assert len(list(batches)) == 7
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["step"]) == (1, 0)


class Keeping(Dataset):
    """Single rows, with the rest of the batch in the state."""

    def __init__(self, *urls: Any, **options: Any) -> None:
        super().__init__(*urls, **options)
        self.rest: list[int] = []

    def __iter__(self) -> Iterator[int]:
        batches = super().__iter__()
        while True:
            while self.rest:
                yield self.rest.pop(0)
            try:
                self.rest = next(batches)["id"].tolist()
            except StopIteration:
                return

    def state_dict(self) -> dict[str, Any]:
        return {"base": super().state_dict(), "rest": list(self.rest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["base"])
        self.rest = state["rest"]


class Whole(Dataset):
    """Its batches, for a collate_fn that takes them out of torch's list."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (batch["id"] for batch in super().__iter__())


@pytest.mark.parametrize(
    ("kind", "options"),
    [(Keeping, {"batch_size": 6}), (Whole, {"batch_size": 1, "collate_fn": lambda batches: batches[0]})],
)
def test_a_subclass_that_keeps_what_is_under_way_has_a_state(
    kind: Any, options: dict[str, Any], numbers: pathlib.Path
) -> None:
    def opened() -> Any:
        return kind(numbers, batch_size=10, columns=["id"])

    def rows(dataset: Any) -> Iterator[list[int]]:
        return (batch.tolist() for batch in torch.utils.data.DataLoader(dataset, **options))

    whole = [row for batch in rows(opened()) for row in batch]
    dataset, seen = opened(), []
    for number, batch in enumerate(rows(dataset)):
        seen += batch
        if number == 2:
            break
    again = opened()
    again.load_state_dict(dataset.state_dict())
    assert seen + [row for batch in rows(again) for row in batch] == whole


class Left:
    """Single rows of batches, with those that are left as its state: torchdata saves it beside the dataset's."""

    def __init__(self, batches: Iterator[dict[str, Any]]) -> None:
        self.batches, self.left = batches, []

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.left:
            self.left = next(self.batches)["id"].tolist()
        return self.left.pop(0)

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}


class Leaving(Dataset):
    def __iter__(self) -> Iterator[int]:
        return Left(super().__iter__())


def test_an_iterator_with_a_state_stays_that_of_torchs_loader(numbers: pathlib.Path) -> None:
    dataset = Leaving(numbers, batch_size=10, shuffle=False, columns=["id"])
    batches: Any = iter(torch.utils.data.DataLoader(dataset, batch_size=4))
    assert next(batches).tolist() == [0, 1, 2, 3]
    assert batches._dataset_fetcher.dataset_iter.state_dict() == {"left": [4, 5, 6, 7, 8, 9]}
    assert dataset.state_dict()["step"] == 1


def test_a_pass_that_stacked_rows_says_nothing_of_the_next_one(numbers: pathlib.Path) -> None:
    dataset = Rows(numbers, batch_size=10, columns=["id"])
    next(iter(torch.utils.data.DataLoader(dataset, batch_size=4)))
    dataset.set_epoch(0)
    next(dataset.batches())
    assert dataset.state_dict()["step"] == 1


def test_a_loader_inside_torchs_dataloader_is_refused(numbers: pathlib.Path) -> None:
    loader = DataLoader(numbers, batch_size=10, columns=["id"])
    for options in ({}, {"batch_size": 4, "shuffle": True}, {"batch_size": None}):
        with pytest.raises(bowstring.UnsupportedError, match=r"bowstring\.torch\.Dataset\(url"):
            next(iter(torch.utils.data.DataLoader(loader, **options)))
    with pytest.raises(bowstring.UnsupportedError, match="split by a filter"):
        torch.utils.data.Subset(loader, [0])[0]
    assert len(list(loader)) == 10


@pytest.mark.parametrize("tail", ["short", "pad", "repeat", "drop", "even"])
def test_batches_of_unequal_ranks_are_told_once(
    numbers: pathlib.Path, caplog: pytest.LogCaptureFixture, tail: Any
) -> None:
    def of_ranks(rows: int) -> list[tuple[int, ...]]:
        caplog.clear()
        options: dict[str, Any] = {"global_batch_size": rows, "tail": tail, "world_size": 3, "columns": ["id"]}
        loaders = [DataLoader(numbers, rank=rank, **options) for rank in range(3)]
        for _ in range(2):
            steps = [tuple(len(batch["id"]) for batch in step) for step in zip(*loaders, strict=True)]
        return steps

    assert of_ranks(23)[0] == (8, 8, 7)
    told = [record for record in caplog.records if "option global_batch_size: 23 rows" in record.getMessage()]
    assert [record.levelname for record in told] == ([] if tail == "even" else ["WARNING"] * 3)
    assert all("give a multiple of 3" in record.getMessage() for record in told)
    # Where they are equal, so is the last step but under `even`.
    steps = of_ranks(24)
    assert tail == "even" or all(len(set(rows)) == 1 for rows in steps)
    assert not [record for record in caplog.records if "global_batch_size" in record.getMessage()]


def test_the_sampler_of_a_loader_that_was_resumed_in_a_later_epoch_keeps_its_place(numbers: pathlib.Path) -> None:
    """A framework repeats a short loader within its own epoch, and sets that one after a resume."""
    with DataLoader(numbers, batch_size=10, columns=["id"]) as loader:
        list(loader)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = next(batches)["id"].tolist()
    with DataLoader(numbers, batch_size=10, columns=["id"]) as again:
        again.load_state_dict(state)
        again.sampler.set_epoch(0)
        assert (again.epoch, again.step) == (1, 1)
        assert next(iter(again))["id"].tolist() == expected
        again.sampler.set_epoch(0)
        assert (again.epoch, again.step) == (0, 0)
        again.load_state_dict(state)
        again.set_epoch(0)
        assert (again.epoch, again.step) == (0, 0)


class Opening(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Opens a loader in each worker."""

    def __init__(self, path: pathlib.Path, sharded: bool) -> None:
        self.path, self.sharded = path, sharded

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        share = {"rank": info.id, "world_size": info.num_workers} if self.sharded else {}
        for batch in DataLoader(self.path, batch_size=10, columns=["id"], **share):
            yield batch["id"]


def test_loaders_of_several_workers_need_ranks(numbers: pathlib.Path) -> None:
    def seen(workers: int, sharded: bool) -> list[int]:
        dataset = Opening(numbers, sharded)
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=None, num_workers=workers, multiprocessing_context="spawn"
        )
        batches: Any = iter(loader)
        try:
            return sorted(torch.cat(list(batches)).tolist())
        finally:
            # Here, and not in the test that the collector comes in: torch reports workers that end before they are told to.
            with contextlib.suppress(RuntimeError):
                batches._shutdown_workers()

    assert seen(1, False) == seen(2, True) == list(range(100))
    with pytest.raises(bowstring.ConfigError, match="each of 2 worker processes would read all rows"):
        seen(2, False)


SPAWNED = """
import sys
import torch
from torch import distributed, multiprocessing


class Opening(torch.utils.data.IterableDataset):
    def __iter__(self):
        import bowstring

        for batch in bowstring.Loader(sys.argv[1], batch_size=10, columns=["id"]):
            yield batch["id"].tolist()


def work(rank, url):
    sys.argv[1:] = [url]
    distributed.init_process_group("gloo", init_method=f"file://{url}.group", rank=rank, world_size=1)
    options = {"batch_size": None, "num_workers": 1}
    forked = torch.utils.data.DataLoader(Opening(), **options, multiprocessing_context="fork")
    print(sorted(row for rows in forked for row in rows) == list(range(100)))
    try:
        list(torch.utils.data.DataLoader(Opening(), **options, multiprocessing_context="spawn"))
    except Exception as error:
        print(type(error).__name__, "as would the workers of other ranks" in str(error), flush=True)


if __name__ == "__main__":
    multiprocessing.spawn(work, (sys.argv[1],), nprocs=1)
"""


def test_a_worker_of_a_spawned_rank_needs_a_rank(numbers: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """It has neither the process group, which a forked one has, nor a launcher's variables."""
    (tmp_path / "spawned.py").write_text(SPAWNED)
    done = run_python("spawned.py", str(numbers), cwd=tmp_path)
    assert done.stdout.splitlines() == ["True", "ConfigError True"], done.stderr[-4000:]


def test_checkpoints_of_torch(numbers: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with DataLoader(numbers, batch_size=10, columns=["id"]) as loader:
        batches = iter(loader)
        for _, batch in zip(range(3), batches, strict=False):
            last = batch
        torch.save({"data": loader.state_dict()}, tmp_path / "checkpoint.pt")
        rest = [batch["id"].tolist() for batch in batches]
    with DataLoader(numbers, batch_size=10, columns=["id"]) as again:
        again.load_state_dict(torch.load(tmp_path / "checkpoint.pt")["data"])
        assert [batch["id"].tolist() for batch in again] == rest
    assert last["id"].tolist() not in rest


@pytest.mark.parametrize("batch_size", [64, 100, 256, 5000])
def test_batches_in_file_order_are_the_consumers_own(tmp_path: pathlib.Path, batch_size: int) -> None:
    rows = 20_000
    numbers = np.arange(rows)
    table = pa.table(
        {
            "id": numbers,
            "x": pa.array(numbers.astype(np.float32), mask=numbers % 7 == 3),
            "small": numbers.astype(np.int16),
            "flag": numbers % 3 == 0,
        }
    )
    # Row groups that batches end in.
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3_333)
    expected = {name: table[name].to_numpy() for name in table.column_names}
    expected["x"] = np.nan_to_num(expected["x"])
    for world in 1, 3:
        for rank in range(world):
            options = {"rank": rank, "world_size": world, "tail": "even", "memory_budget": "4MiB"}
            with DataLoader(
                tmp_path, batch_size=batch_size, shuffle=False, nulls=bowstring.Fill(0), **options
            ) as loader:
                for _ in range(2):
                    kept = []
                    for batch in loader:
                        taken = batch["id"].numpy().copy()
                        assert taken.tolist() == list(range(taken[0], taken[0] + len(taken)))
                        kept.append((taken, batch))
                        for name, tensor in batch.items():
                            assert np.array_equal(tensor.numpy(), expected[name][taken]), name
                            assert tensor.data_ptr() % 64 == 0, name
                        # As a training step may: neither rows of other batches nor of the next epoch change.
                        batch["id"].neg_()
                        batch["x"].fill_(-1)
                    # All of them at once, in a budget that holds a few.
                    for taken, batch in kept:
                        assert np.array_equal(-batch["id"].numpy(), taken)
                        assert (batch["x"] == -1).all()
                        assert np.array_equal(batch["small"].numpy(), expected["small"][taken])
                    seen = np.concatenate([taken for taken, _ in kept])
                    assert len(np.unique(seen)) == len(seen)
                    assert world > 1 or len(seen) == rows


def test_a_row_that_stands_in_for_a_bad_one_is_as_it_is_stored(tmp_path: pathlib.Path) -> None:
    rows = 640
    x = pa.array(np.ones(rows, np.float32), mask=np.arange(rows) == rows - 1)
    pq.write_table(pa.table({"id": np.arange(rows), "x": x}), tmp_path / "a.parquet")
    with DataLoader(tmp_path, batch_size=64, shuffle=False, bad_rows="skip") as loader:
        for _ in range(2):
            for batch in loader:
                ids, values = batch["id"].tolist(), batch["x"].tolist()
                batch["id"].fill_(-7)
                batch["x"].fill_(-7)
            # The first row of the row group stands in for its last one.
            assert ids[-2:] == [rows - 2, 0]
            assert values[-2:] == [1, 1]


def test_rows_of_no_bytes_are_delivered_in_file_order(tmp_path: pathlib.Path) -> None:
    none = pa.FixedSizeListArray.from_buffers(
        pa.list_(pa.float32(), 0), 0, [None], children=[pa.array([], pa.float32())]
    )
    pq.write_table(pa.table({"id": pa.array([], pa.int64()), "z": none}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": np.arange(128)}), tmp_path / "b.parquet")
    with DataLoader(tmp_path, batch_size=64, shuffle=False, nulls=bowstring.Fill(0)) as loader:
        assert [tuple(batch["z"].shape) for batch in loader] == [(64, 0)] * 2


def test_a_tensor_that_does_not_show_its_memory_is_not_filled(tmp_path: pathlib.Path) -> None:
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "a.parquet")
    freed = torch.zeros(1, dtype=torch.float64)
    freed.untyped_storage().resize_(0)
    wrong = {
        "negated": [torch._neg_view(torch.zeros(1, dtype=torch.float64)), torch.zeros(1).cdouble().conj().imag],
        "conjugate": [torch.zeros(1).cdouble().conj()],
        "without memory": [freed, torch._efficientzerotensor(1, dtype=torch.float64)],
    }
    with DataLoader(tmp_path, batch_size=1, tail="repeat") as loader:
        for told, tensors in wrong.items():
            for tensor in tensors:
                with pytest.raises(bowstring.MismatchError, match=f"the tensor for column x: .*{told}"):
                    loader.next_into({"x": tensor})
        assert loader.step == 0
        own = torch.zeros(1, dtype=torch.float64)
        assert loader.next_into({"x": own}) == {"x": own}
        assert own.tolist() == [1.0]
