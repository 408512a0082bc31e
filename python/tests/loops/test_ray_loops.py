"""Workers of Ray Train: each finds its rank, and gets as many batches and rows as from torch's own loader prepared by Ray."""

from __future__ import annotations

import json
import pathlib
import warnings
from typing import Any

import pytest
from habits import BATCH, ROWS, write

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.train.torch", reason="Ray Train is not installed: ray[train]")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(200)]


def test_workers_share_the_rows(ray_cluster: None, tmp_path: pathlib.Path) -> None:
    path = str(write(tmp_path)(ROWS))
    folder = str(tmp_path)

    # A local function, so that it is sent by value: workers do not have this file.
    def train(config: dict[str, Any]) -> None:
        import ray.train
        import ray.train.torch
        import torch
        from bowstring.torch import DataLoader

        ours = DataLoader(config["path"], batch_size=config["batch"], shuffle=False)
        found: dict[str, Any] = {"rank": [ours.rank, ours.world_size], "length": len(ours)}
        found["ours"] = [[batch["id"].tolist() for batch in ours] for _ in range(2)]
        rows = torch.utils.data.DataLoader(torch.arange(config["rows"]), batch_size=config["batch"])
        theirs = ray.train.torch.prepare_data_loader(rows)
        found["theirs"] = [[batch.tolist() for batch in theirs] for _ in range(2)]
        context = ray.train.get_context()
        found["context"] = [context.get_world_rank(), context.get_world_size()]
        # A peek at the first batch, a loop left early, and the next epoch.
        looked = ours.peek()["id"].tolist()
        some = [batch["id"].tolist() for _, batch in zip(range(3), ours, strict=False)]
        found["left"] = [looked, some, [batch["id"].tolist() for batch in ours]]
        with open(f"{config['folder']}/{ours.rank}.json", "w") as out:
            json.dump(found, out)
        ray.train.report({"steps": len(ours)})

    trainer = TorchTrainer(
        train,
        train_loop_config={"path": path, "folder": folder, "batch": BATCH, "rows": ROWS},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=folder, name="loops"),
    )
    result = trainer.fit()
    assert result.error is None
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, one in enumerate(found):
        assert one["rank"] == one["context"] == [rank, 2]
        sizes = [8] * 6 + [3]
        assert one["length"] == len(sizes)
        assert [list(map(len, epoch)) for epoch in one["ours"] + one["theirs"]] == [sizes] * 4
        looked, some, rest = one["left"]
        assert (looked, some, rest) == (one["ours"][0][0], one["ours"][0][:3], one["ours"][0])
    for kind in ("ours", "theirs"):
        rows = [row for one in found for step in one[kind][0] for row in step]
        assert set(rows) == set(range(ROWS))
        assert len(rows) == ROWS + 1


@pytest.mark.timeout(240)
def test_workers_of_a_trainer_without_torch_share_the_rows(ray_cluster: None, tmp_path: pathlib.Path) -> None:
    path, folder = str(write(tmp_path)(ROWS)), str(tmp_path)

    def train(config: dict[str, Any]) -> None:
        import bowstring
        import ray.train

        with bowstring.Loader(config["path"], batch_size=8, shuffle=False, tail="even") as loader:
            found = [loader.rank, loader.world_size, [row for batch in loader for row in batch["id"].tolist()]]
        with open(f"{config['folder']}/{ray.train.get_context().get_world_rank()}.json", "w") as out:
            json.dump(found, out)

    trainer = DataParallelTrainer(
        train,
        train_loop_config={"path": path, "folder": folder},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(storage_path=folder, name="plain"),
    )
    assert trainer.fit().error is None
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [one[:2] for one in found] == [[0, 2], [1, 2]]
    assert sorted(row for one in found for row in one[2]) == list(range(ROWS))
