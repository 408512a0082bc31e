"""Structured Streaming sends rows to a model's server and writes its answers into a dataset, each row once.

    python examples/spark_streaming_inference.py

The model runs with its GPU in a process of its choice (here this one); Spark's tasks send rows to it by Flight, and rows of all
tasks share its micro-batches. A micro-batch of the stream is one commit at the sink.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import bowstring
import bowstring.spark
from bowstring.inference import ModelClient, serve_model


def model(batch: dict[str, Any]) -> dict[str, Any]:
    """Stands for a network."""
    return {"score": batch["x"] * 2 + 1}


def scored(session: Any, source: str, sink: str, checkpoint: str, address: str) -> Any:
    """Builds and starts the query."""

    def ask(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        kept: list[Any] = []

        def sent() -> Iterator[Any]:
            for batch in batches:
                kept.append(batch)
                yield batch.select(["x"])

        with ModelClient(address) as client:
            for answers in client.map(sent()):
                while not kept[0].num_rows:
                    kept.pop(0)
                batch = kept.pop(0)
                yield pa.record_batch([*batch.columns, *answers.columns], names=[*batch.schema.names, "score"])

    stream = session.readStream.schema("id long, x double").parquet(source)
    query = stream.mapInArrow(ask, "id long, x double, score double").writeStream.format("bowstring")
    return query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start(sink)


def main() -> None:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    bowstring.spark.register(session)
    with tempfile.TemporaryDirectory() as directory, serve_model(model, batch_size=256, deadline_ms=20) as server:
        source, sink = f"{directory}/source", f"{directory}/scored"
        for part in range(2):
            rows = session.range(part * 1000, part * 1000 + 1000, numPartitions=2).selectExpr("id", "id / 4 as x")
            rows.write.mode("append").parquet(source)
            scored(session, source, sink, f"{directory}/checkpoint", server.url).awaitTermination()
        with bowstring.Loader(sink, batch_size=2000, shuffle=False, rank=0, world_size=1) as loader:
            batch = next(iter(loader))
        assert sorted(batch["id"].tolist()) == list(range(2000)), "every row once"
        assert (batch["score"] == batch["x"] * 2 + 1).all()
        stats = server.stats()
        print(f"{len(batch['id'])} rows, each once, in {stats['batches']} batches of the model")
    session.stop()


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    package = pathlib.Path(bowstring.__file__).resolve().parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    main()
