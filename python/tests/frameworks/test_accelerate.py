"""Loaders under torch.distributed: Accelerate leaves them as they are, and its checkpoints and torch's DCP keep their position."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import bowstring
import pytest
import torch
from bowstring.torch import DataLoader, Dataset

pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")

RANKS = """
import json, pathlib, sys, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.utils import ParallelismConfig
from bowstring.torch import DataLoader

path, folder = sys.argv[1], pathlib.Path(sys.argv[2])


def loader():
    return DataLoader(path, batch_size=8, columns=["id", "x"], seed=3)


def rows(batches):
    return [batch["id"].tolist() for batch in batches]


accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
mine = loader()
model, optimizer, prepared = accelerator.prepare(model, optimizer, mine)
accelerator.register_for_checkpointing(prepared)
seen, saved = [], False
for epoch in range(2):
    for batch in prepared:
        accelerator.backward(model(batch["x"][:, None]).mean())
        optimizer.step()
        optimizer.zero_grad()
        seen.append(batch["id"].tolist())
        if len(seen) == 4:
            accelerator.save_state(folder / "accelerate")
            dcp.save({"data": prepared, "epoch": torch.tensor(epoch)}, checkpoint_id=folder / "dcp")
accelerator.load_state(folder / "accelerate")
place = [prepared.epoch, prepared.step]
by_accelerate = rows(prepared) + rows(prepared)
other = loader()
dcp.load({"data": other, "epoch": torch.tensor(0)}, checkpoint_id=folder / "dcp")
by_dcp = rows(other) + rows(other)
gathered = accelerator.gather(torch.tensor([len(seen), len(mine)])).tolist()
# On the CPU, Accelerate takes none.
accelerator.state.parallelism_config = ParallelismConfig(tp_size=2)
whole = loader()
found = {"same": prepared is mine, "rank": mine.rank, "seen": seen, "place": place, "gathered": gathered}
found["whole"] = [whole.rank, whole.world_size]
print(json.dumps({**found, "by_accelerate": by_accelerate, "by_dcp": by_dcp, "kind": torch.distributed.get_backend()}))
accelerator.end_training()
"""


@pytest.mark.timeout(150)
def test_two_ranks(kinds: pathlib.Path, tmp_path: pathlib.Path, ranks: Callable[..., list[Any]]) -> None:
    found = ranks(RANKS, kinds, tmp_path)
    with bowstring.Loader(kinds, batch_size=16, columns=["id"], seed=3) as loader:
        want = [batch["id"].tolist() for _ in range(2) for batch in loader]
    assert [a + b for a, b in zip(found[0]["seen"], found[1]["seen"], strict=True)] == want
    for rank, one in enumerate(found):
        assert (one["same"], one["rank"], one["kind"], one["place"]) == (True, rank, "gloo", [0, 4])
        assert one["gathered"] == [14, 7, 14, 7], "equal steps"
        assert one["whole"] == [0, 1], "two processes of one model have the same rows"
        assert one["by_accelerate"] == one["by_dcp"] == one["seen"][4:]
    # Resume on another number of ranks: here, one.
    import torch.distributed.checkpoint as dcp

    with DataLoader(kinds, batch_size=16, columns=["id"], seed=3) as alone:
        dcp.load({"data": alone}, checkpoint_id=tmp_path / "dcp", no_dist=True)
        assert [batch["id"].tolist() for batch in alone] == want[4:7]


@pytest.mark.parametrize("dispatched", [True, False])
def test_a_rank_of_a_dataset_is_not_shared_again(dispatched: bool, kinds: pathlib.Path) -> None:
    from accelerate.data_loader import IterableDatasetShard, prepare_data_loader

    def prepared(world: int) -> Any:
        dataset = Dataset(kinds, batch_size=8, columns=["id"], rank=0, world_size=world)
        if dispatched:
            torchs = torch.utils.data.DataLoader(dataset, batch_size=None)
            return prepare_data_loader(torchs, num_processes=1, process_index=0, put_on_device=True)
        return torch.utils.data.DataLoader(IterableDatasetShard(dataset), batch_size=None)

    assert len(list(prepared(1))) == 13
    with pytest.raises(bowstring.ConfigError, match="shared among the ranks again"):
        next(iter(prepared(2)))


def test_a_dataset_that_is_read_ahead_has_no_state_of_its_own(kinds: pathlib.Path) -> None:
    """In a loader of Accelerate's on one rank: the batch that was read ahead would be lost."""
    from accelerate.data_loader import prepare_data_loader

    dataset = Dataset(kinds, batch_size=8, columns=["id"])
    torchs = torch.utils.data.DataLoader(dataset, batch_size=None)
    prepared = prepare_data_loader(torchs, num_processes=1, process_index=0, put_on_device=True)
    for step, _ in enumerate(prepared):
        if step == 2:
            break
    assert dataset.step == 4
    with pytest.raises(bowstring.UnsupportedError, match=r"reads a batch ahead.*hand a bowstring\.torch\.DataLoader"):
        dataset.state_dict()
    assert len(list(prepared)) == 13
    # As the prepared loader counts: an epoch that was left does not count.
    dataset.load_state_dict({**dataset.state_dict(), "step": 3})
    assert dataset.state_dict()["step"] == 3
    iterator = iter(torchs)
    next(iterator)
    assert dataset.state_dict()["step"] == 4


def test_a_distributed_checkpoint_loads_after_a_pass_was_left(kinds: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """It loads the keys of the loader's own state, so these are always the same."""
    import torch.distributed.checkpoint as dcp

    with DataLoader(kinds, batch_size=16, columns=["id"]) as loader:
        next(iter(loader))
        dcp.save({"data": loader}, checkpoint_id=tmp_path / "none left", no_dist=True)
        next(iter(loader))
        assert loader.state_dict()["left"] == [[0, 1]]
        dcp.save({"data": loader}, checkpoint_id=tmp_path / "one left", no_dist=True)
        dcp.load({"data": loader}, checkpoint_id=tmp_path / "none left", no_dist=True)
        assert (loader.epoch, loader.step) == (0, 1)
    with DataLoader(kinds, batch_size=16, columns=["id"]) as other:
        dcp.load({"data": other}, checkpoint_id=tmp_path / "one left", no_dist=True)
        assert (other.epoch, other.step, other.state_dict()["left"]) == (1, 1, [[0, 1]])
        # One that was saved without the key.
        state = {name: value for name, value in other.state_dict().items() if name != "left"}
        dcp.save({"data": {**state, "step": 2}}, checkpoint_id=tmp_path / "no key", no_dist=True)
        partly = dcp.DefaultLoadPlanner(allow_partial_load=True)
        dcp.load({"data": other}, checkpoint_id=tmp_path / "no key", planner=partly, no_dist=True)
        assert (other.epoch, other.step) == (1, 2)


def test_no_frame_of_python_is_between_a_loop_and_its_pass(tmp_path: pathlib.Path) -> None:
    """In one, an interrupt would cost a batch."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from accelerate import Accelerator
    from accelerate.state import GradientState

    pq.write_table(pa.table({"id": np.arange(64)}), tmp_path / "d.parquet")
    loader = DataLoader(tmp_path, batch_size=8, shuffle=False)
    accelerator = Accelerator(cpu=True)
    state = GradientState()
    found = iter(loader)
    assert type(found) is bowstring._native.Pass
    assert state.active_dataloader is None
    assert [next(found)["id"][0].item() for _ in range(3)] == [0, 8, 16]
    assert state.active_dataloader is loader
    del found
    assert state.active_dataloader is None, "the loop was left"
    found = iter(loader)
    assert [len(batch["id"]) for batch in found] == [8] * 8
    assert state.active_dataloader is None, "it is over"
    loader.close()
    with pytest.raises(bowstring.ClosedError):
        next(iter(loader))
    assert state.active_dataloader is None
    accelerator.end_training()
