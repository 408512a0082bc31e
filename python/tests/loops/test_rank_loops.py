"""Processes that find each other by a process group: each gets its share, and what contradicts the group is an error."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import bowstring
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
    torch.distributed.destroy_process_group()
    found["after"] = opened()[:2]
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
