"""A Spark job hands a frame to four training ranks, each in its own process, without files in between.

    python examples/spark_to_torch.py spark 127.0.0.1:8820 &
    for rank in 0 1 2 3; do python examples/spark_to_torch.py rank 127.0.0.1:8820 $rank & done

Either side may be started first. Without arguments, the script starts all five.
"""

from __future__ import annotations

import os
import pathlib
import random
import socket
import subprocess
import sys
import time


def spark(listen: str) -> None:
    """Runs Spark's side."""
    import bowstring.spark
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    columns = ["id", "cast(array(rand(1), rand(2)) as array<float>) features", "cast(id % 2 as float) label"]
    frame = session.range(0, 10_000, numPartitions=4).selectExpr(*columns)
    lists = {"features": bowstring.Padded(2)}
    with bowstring.spark.serve(frame, world_size=4, batch_size=100, seed=1, listen=listen, lists=lists) as handle:
        handle.wait()


def rank(address: str, number: int) -> None:
    """Runs one rank."""
    import bowstring.spark
    import torch
    from bowstring.torch import DataLoader

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with bowstring.spark.connect(f"grpc://{address}", rank=number, loader=DataLoader) as loader:
        for _ in range(2):
            for batch in loader:
                loss = torch.nn.functional.mse_loss(model(batch["features"])[:, 0], batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"rank {number}: {len(loader)} steps of {loader.rows} rows, loss {loss.item():.3f}", flush=True)


def start() -> None:
    """Starts all five, in any order."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    sides = [["spark", address], *(["rank", address, str(number)] for number in range(4))]
    random.shuffle(sides)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    running = [subprocess.Popen([sys.executable, __file__, *side], env=environment) for side in sides]
    try:
        while any(process.poll() is None for process in running):
            failed = [side for process, side in zip(running, sides, strict=True) if process.poll()]
            if failed:
                raise SystemExit(f"failed: {failed}")
            time.sleep(0.1)
    finally:
        for process in running:
            process.kill()


if __name__ == "__main__":
    package = pathlib.Path(__file__).resolve().parents[1] / "python"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    if sys.argv[1:2] == ["spark"]:
        spark(sys.argv[2])
    elif sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2], int(sys.argv[3]))
    else:
        start()
