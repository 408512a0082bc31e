"""A frame from Spark to 4 ranks: bowstring's hand-off against "write Parquet, wait for _SUCCESS, read it".

    python benches/peers/spark_pairs.py [--repeats 3] [--rows 400000]

Both take turns in one Spark session, over the same frame, 4 ranks in threads of one process each time. A run's clock starts
when the call to Spark is made and ends when the last rank has its last batch; the first batch counts when every rank has one.
The reader of the files is Petastorm if PETASTORM_PYTHON names an interpreter that has it, else bowstring.petastorm, which is
faster. Medians are printed as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

RANKS = 4
WIDTH = 64
READER = """
import json, sys, threading, time
from petastorm import make_batch_reader
url, ranks = sys.argv[1], int(sys.argv[2])
firsts, rows = [], []
def rank(number):
    count = 0
    with make_batch_reader(url, cur_shard=number, shard_count=ranks, num_epochs=1, workers_count=2) as reader:
        for batch in reader:
            if not count:
                firsts.append(time.time())
            count += len(batch.id)
    rows.append(count)
threads = [threading.Thread(target=rank, args=(number,)) for number in range(ranks)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps({"first": max(firsts), "end": time.time(), "rows": sum(rows)}))
"""


def ranks(work: Callable[[int], tuple[float, int]]) -> dict[str, float]:
    """Time of the last rank's first batch, time of the end, and the rows of all."""
    found: list[tuple[float, int]] = []
    threads = [threading.Thread(target=lambda rank=rank: found.append(work(rank))) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"first": max(first for first, _ in found), "end": time.time(), "rows": sum(rows for _, rows in found)}


def handed(frame: Any, batch: int) -> dict[str, float]:
    """bowstring.spark.serve."""
    import bowstring
    import bowstring.spark

    lists = {"x": bowstring.Padded(WIDTH)}
    options = {"batch_size": batch, "tail": "pad", "lists": lists}
    with bowstring.spark.serve(frame, RANKS, memory="4GiB", **options) as handle:

        def rank(number: int) -> tuple[float, int]:
            first, rows = 0.0, 0
            with handle.loader(number) as loader:
                for one in loader:
                    first = first or time.time()
                    rows += int(one["_mask"].sum())
            return first, rows

        found = ranks(rank)
        handle.wait()
    return found


def by_files(frame: Any, directory: pathlib.Path) -> dict[str, float]:
    """Parquet written by Spark, read once `_SUCCESS` exists."""
    shutil.rmtree(directory, ignore_errors=True)
    frame.write.parquet(str(directory))
    while not (directory / "_SUCCESS").exists():
        time.sleep(0.01)
    python = os.environ.get("PETASTORM_PYTHON")
    if python is not None:
        command = [python, "-c", READER, f"file://{directory}", str(RANKS)]
        return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    from bowstring.petastorm import make_batch_reader

    def rank(number: int) -> tuple[float, int]:
        first, rows = 0.0, 0
        options = {"cur_shard": number, "shard_count": RANKS, "num_epochs": 1, "workers_count": 2}
        with make_batch_reader(f"file://{directory}", **options) as reader:
            for one in reader:
                first = first or time.time()
                rows += len(one.id)
        return first, rows

    return ranks(rank)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=1024)
    arguments = parser.parse_args()
    import bowstring
    from pyspark.sql import SparkSession

    package = str(pathlib.Path(bowstring.__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{RANKS}]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.memory", "4g").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    numbers = f"transform(sequence(1, {WIDTH}), i -> cast(hash(id, i) as float))"
    frame = session.range(0, arguments.rows, numPartitions=RANKS).selectExpr("id", f"{numbers} x", "id % 10 label")
    reader = "petastorm" if "PETASTORM_PYTHON" in os.environ else "bowstring.petastorm"
    with tempfile.TemporaryDirectory() as directory:
        contenders: dict[str, Callable[[], dict[str, float]]] = {
            "bowstring": lambda: handed(frame, arguments.batch),
            f"files, {reader}": lambda: by_files(frame, pathlib.Path(directory) / "files"),
        }
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        # The first turn warms up the JVM and Spark's workers, and is not counted.
        for turn in range(arguments.repeats + 1):
            for name, contender in contenders.items():
                begun = time.time()
                found = contender()
                assert found["rows"] == arguments.rows, (name, found)
                if turn:
                    whole = found["end"] - begun
                    runs[name].append({"first_s": found["first"] - begun, "rows_s": arguments.rows / whole})
    for name, measured in runs.items():
        medians = {key: round(statistics.median(run[key] for run in measured), 3) for key in measured[0]}
        print(json.dumps({"name": name, "rows": arguments.rows, "cpus": os.cpu_count(), **medians}), flush=True)


if __name__ == "__main__":
    main()
