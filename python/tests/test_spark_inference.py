"""Models over frames, gangs of barrier tasks, TorchDistributor."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import bowstring.spark
import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason="PySpark is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PySpark's own
    pytest.mark.timeout(400),
]


def test_columns_may_have_dots_in_their_names(spark: Any, tmp_path: pathlib.Path) -> None:
    frame = spark.range(0, 6, numPartitions=2).selectExpr("id", "id * 3 `a.b`", "id * 5 `c`")
    scored = bowstring.spark.predict(
        frame, lambda: lambda batch: {"y": batch["a.b"] * 2}, batch_size=4, schema="y long"
    )
    rows = [(number, 3 * number, 5 * number) for number in range(6)]
    assert sorted(map(tuple, scored.collect())) == [(*row, 2 * row[1]) for row in rows]
    bowstring.spark.convert(spark, frame, str(tmp_path / "out"), to="jsonl")
    lines = [json.loads(line) for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(tuple(line.values()) for line in lines) == rows
    with bowstring.spark.serve(frame, 1, batch_size=2) as served, served.loader(0) as loader:
        found = [
            tuple(row) for batch in loader for row in zip(*(batch[name] for name in ("id", "a.b", "c")), strict=True)
        ]
    assert sorted(found) == rows


def test_a_model_over_a_frame(spark: Any) -> None:
    frame = spark.range(0, 205, numPartitions=2).selectExpr(
        "id", "cast(id as float) x", "array(id, id + 1) pair", "concat('row ', id) word", "timestamp'2020-01-01' at"
    )

    class Loaded:
        """A model that counts as false, as a container of layers without a layer does."""

        def __init__(self, model: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
            self.model = model

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            return self.model(batch)

        def __len__(self) -> int:
            return 0

    def load() -> Callable[[dict[str, Any]], dict[str, Any]]:
        calls = []

        def model(batch: dict[str, Any]) -> dict[str, Any]:
            calls.append(len(batch["x"]))
            assert isinstance(batch["x"], np.ndarray)
            assert batch["pair"].shape == (len(batch["x"]), 2)
            assert batch.keys() == {"x", "pair"}
            return {
                "double": batch["x"] * 2,
                "sums": np.stack([batch["pair"].sum(axis=1), batch["x"]], axis=1),
                "calls": np.full(len(batch["x"]), len(calls)),
                "size": np.full(len(batch["x"]), len(batch["x"]), np.int16),
            }

        return Loaded(model)

    scored = bowstring.spark.predict(
        frame,
        load,
        batch_size=50,
        columns=["x", "pair"],
        schema="double float, sums array<double>, calls int, size int",
    )
    assert scored.columns == ["id", "x", "pair", "word", "at", "double", "sums", "calls", "size"]
    found = scored.collect()
    assert [(row.id, row.word, row.double, row.sums) for row in found] == [
        (number, f"row {number}", 2.0 * number, [2.0 * number + 1, float(number)]) for number in range(205)
    ]
    assert [row.at for row in found] == [row.at for row in frame.collect()]
    assert [row.calls for row in found[:102]] == [1] * 50 + [2] * 50 + [3] * 2, "one model for each task"
    assert {row["size"] for row in found} == {50, 2, 3}
    with pytest.raises(bowstring.ConfigError, match="a column 'x' already"):
        bowstring.spark.predict(frame, load, batch_size=50, schema="X float")
    with pytest.raises(bowstring.ConfigError, match="option columns"):
        bowstring.spark.predict(frame.select(), load, batch_size=50, schema="x float")


def test_a_gang_of_barrier_tasks(spark: Any) -> None:
    frame = spark.range(0, 8, numPartitions=3)

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            pass
        gang = bowstring.spark.gang()
        variables = gang.environment()
        said = {
            "rank": [gang.rank],
            "world": [gang.world_size],
            "local": [gang.local_rank],
            "hosts": [len(gang.addresses)],
            "gpus": [len(gang.gpus)],
            "everyone": [",".join(gang.all_gather(f"I am {gang.rank}"))],
            "port": [variables["MASTER_PORT"]],
            "horovod": [variables["HOROVOD_RANK"] + "/" + variables["OMPI_COMM_WORLD_SIZE"]],
        }
        yield pa.record_batch(said)

    kind = "rank long, world long, local long, hosts long, gpus long, everyone string, port string, horovod string"
    found = frame.mapInArrow(work, kind, barrier=True).collect()
    together = "I am 0,I am 1,I am 2"
    assert [tuple(row)[:6] for row in found] == [(rank, 3, rank, 3, 0, together) for rank in range(3)]
    assert len({row.port for row in found}) == 1
    assert [row.horovod for row in found] == ["0/3", "1/3", "2/3"]
    with pytest.raises(bowstring.ConfigError, match="barrier stage"):
        bowstring.spark.gang()


def test_torch_distributor(spark: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks started by Spark read one dataset, each its share, and agree on the rows they saw."""
    pytest.importorskip("torch")
    from pyspark.ml.torch.distributor import TorchDistributor

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    url = str(tmp_path / "dataset")
    bowstring.spark.register(spark)
    spark.range(0, 101, numPartitions=2).write.format("bowstring").mode("append").save(url)

    def train(url: str) -> tuple[int, list[int]]:
        import torch
        import torch.distributed as dist
        from bowstring.torch import DataLoader

        dist.init_process_group("gloo")
        mine = torch.zeros(101, dtype=torch.int64)
        with DataLoader(url, batch_size=8, tail="even") as loader:
            for batch in loader:
                mine[batch["id"]] += 1
            steps = len(loader)
        dist.all_reduce(mine)
        dist.destroy_process_group()
        return steps, mine.tolist()

    steps, seen = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(train, url)
    assert steps == 7
    assert seen == [1] * 101
