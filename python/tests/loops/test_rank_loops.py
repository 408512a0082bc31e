"""Processes of one process group: each gets its share, and options that contradict the group are an error."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from habits import ROWS, write

SPAWNED = """
import json, os, pathlib, sys

import bowstring
import torch
import torch.distributed
import torch.multiprocessing
from bowstring.torch import DataLoader

path, folder = sys.argv[1:3]


def refused(*loader, **variables):
    os.environ.update(variables)
    try:
        opened(*loader)
        return ""
    except bowstring.ConfigError as error:
        return str(error)
    finally:
        for name in variables:
            del os.environ[name]


def opened(kind=DataLoader, **options):
    with kind(path, batch_size=8, shuffle=False, **options) as loader:
        return loader.rank, loader.world_size, [batch["id"].tolist() for batch in loader]


def work(rank):
    before = opened()
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = {"before": before, "torch": opened(), "numpy": opened(bowstring.Loader)}
    sampler = torch.utils.data.DistributedSampler(range(101), shuffle=False)
    theirs = torch.utils.data.DataLoader(torch.arange(101), batch_size=8, sampler=sampler)
    found["theirs"] = [batch.tolist() for batch in theirs]
    found["given"] = opened(rank=2, world_size=3)[:2]
    found["same"] = refused(RANK=str(rank), WORLD_SIZE="2")
    found["other"] = refused(RANK="0", WORLD_SIZE="4")
    found["half"] = refused(SLURM_PROCID="1")
    os.environ |= {"BOWSTRING_RANK": "1", "BOWSTRING_WORLD_SIZE": "3"}
    found["ours"] = opened()[:2]
    for name in ("BOWSTRING_RANK", "BOWSTRING_WORLD_SIZE"):
        del os.environ[name]
    torch.distributed.barrier()
    shared = DataLoader(path, batch_size=8, shuffle=False)
    torch.distributed.destroy_process_group()
    found["after"] = opened()[:2]
    found["left"] = len(list(shared))
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store{rank}", rank=0, world_size=1)
    try:
        list(shared)
    except bowstring.ConfigError as error:
        found["remade"] = str(error)
    pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=2)
"""


@pytest.mark.timeout(150)
def test_spawned_processes_share_the_rows(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path)(ROWS)
    program = tmp_path / "spawned.py"
    program.write_text(SPAWNED)
    package = str(pathlib.Path(bowstring.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, program, path, tmp_path]
    subprocess.run(command, env=environment, check=True, timeout=120)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, one in enumerate(found):
        assert one["before"][:2] == one["after"] == [0, 1]
        assert one["left"] == 7
        assert f"became rank 0 of 1, and reads the rows of rank {rank} of 2" in one["remade"]
        assert one["torch"] == one["numpy"]
        assert one["torch"][:2] == [rank, 2]
        assert list(map(len, one["torch"][2])) == list(map(len, one["theirs"])) == [8] * 6 + [3]
        assert (one["given"], one["ours"]) == ([2, 3], [1, 3])
        assert (one["same"], one["half"]) == ("", "")
        for part in (f"rank {rank} of 2", "rank 0 of 4", "torchrun (RANK=0, WORLD_SIZE=4)", "give rank and world_size"):
            assert part in one["other"], one["other"]
    rows = [row for one in found for step in one["torch"][2] for row in step]
    assert set(rows) == set(range(ROWS)) == {row for one in found for step in one["theirs"] for row in step}
    # 101 rows on two ranks: one comes twice.
    assert len(rows) == ROWS + 1


ACCELERATED = """
import json, sys, warnings
warnings.simplefilter("ignore")
import bowstring
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from bowstring.torch import DataLoader

# Three do not divide the thirteen steps of an epoch.
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
model = accelerator.prepare(torch.nn.Linear(1, 1))


def looped(batches, ids):
    found = []
    for batch in batches:
        with accelerator.accumulate(model):
            rows = accelerator.gather_for_metrics(ids(batch))
            accelerator.backward(model(torch.ones(1, 1)).mean())
            found.append([accelerator.sync_gradients, accelerator.gradient_state.end_of_dataloader, rows.tolist()])
    return found


def run(loader, few, ids):
    loader, few = accelerator.prepare(loader, few)
    found = [looped(loader, ids) for _ in range(2)]
    # An inner loop, and steps that are skipped.
    for step, batch in enumerate(loader):
        if step == 11:
            found.append(looped(few, ids))
        with accelerator.accumulate(model):
            found.append(accelerator.sync_gradients)
    found.append(looped(skip_first_batches(loader, 5), ids))
    return found


def own(rows):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(rows)), batch_size=4)


def ours(rows):
    return DataLoader(f"{sys.argv[1]}/{rows}.parquet", batch_size=4, shuffle=False)


said = ""
try:
    prepare_data_loader(ours(104), put_on_device=False)
except bowstring.ConfigError as error:
    said = str(error)
def once(loader):
    # Shapes may differ, so what is gathered are lists.
    loader = accelerator.prepare(loader)
    return [accelerator.gather_for_metrics(batch["id"].tolist(), use_gather_object=True) for batch in loader]


result = {}
for many, few in ((104, 32), (101, 27), (103, 25)):
    theirs = run(own(many), own(few), lambda batch: batch[0])
    result[many] = {"theirs": theirs, "ours": run(ours(many), ours(few), lambda batch: batch["id"])}
result["even"] = once(DataLoader(f"{sys.argv[1]}/25.parquet", batch_size=4, shuffle=False, tail="even"))
print()
print(json.dumps({**result, "said": said, "kind": torch.distributed.get_backend()}))
accelerator.end_training()
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_of_accelerate_see_the_same_as_with_its_own_loader(
    world: int, tmp_path: pathlib.Path, ranks: Callable[..., list[Any]]
) -> None:
    """Also if the last step has a remainder that does not divide: each row is gathered once."""
    pytest.importorskip("accelerate")
    for rows in (104, 32, 101, 27, 103, 25):
        pq.write_table(
            pa.table({"id": pa.array(range(rows), pa.int64())}), tmp_path / f"{rows}.parquet", row_group_size=30
        )
    for one in ranks(ACCELERATED, tmp_path, world=world):
        assert one["kind"] == "gloo"
        assert "shared among the ranks again" in one["said"]
        for rows in (104, 101, 103):
            ours = one[str(rows)]["ours"]
            theirs = one[str(rows)]["theirs"]
            # After skipped steps, Accelerate's own loader does not cut the last step.
            assert ours[:-1] == theirs[:-1], rows
            assert ours[-1][:-1] == theirs[-1][:-1], rows
            assert [row for step in ours[-1] for row in step[2]] == list(range(5 * 4 * world, rows))
            steps = -(-rows // (4 * world))
            assert [step[0] for step in ours[0]] == [n % 3 == 0 or n == steps for n in range(1, steps + 1)]
            assert [row for step in ours[0] for row in step[2]] == list(range(rows))
        assert [row for step in one["even"] for row in step] == list(range(25))
