"""The tf.data adapter against `tf.data.Dataset.from_generator` over rows, as commonly written, and over pyarrow's batches.

    python benches/peers/tf_pairs.py [--rows 40000] [--repeats 3]

Every run is a process of its own, contenders take turns, and medians and ratios within a turn are printed as JSON lines. All
deliver batches of 1,024 rows of 10 float32, a label, a list of numbers and a short text, in file order, and the rows are counted.
The first epoch of a run is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

BATCH = 1024
FLOATS = [f"f{n}" for n in range(10)]
SIDES = ("bowstring", "rows", "batches")


def write(path: pathlib.Path, rows: int) -> None:
    """The dataset: plain Parquet, snappy, row groups of 16,384 rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {name: pa.array(rng.random(rows, dtype=np.float32)) for name in FLOATS}
    columns["label"] = pa.array(rng.integers(0, 1000, rows))
    ends = np.concatenate([[0], np.cumsum(rng.integers(1, 9, rows))]).astype(np.int32)
    columns["items"] = pa.ListArray.from_arrays(ends, pa.array(rng.integers(0, 1 << 20, int(ends[-1]))))
    columns["country"] = pa.array(rng.choice(["de", "fr", "us", "jp"], rows))
    pq.write_table(pa.table(columns), path, row_group_size=16_384)


def by_bowstring(path: str) -> Any:
    import bowstring.tensorflow

    return bowstring.tensorflow.dataset(path, batch_size=BATCH, shuffle=False)


def by_rows(path: str) -> Any:
    """One Python dictionary for each row."""
    import pyarrow.parquet as pq
    import tensorflow as tf

    def rows() -> Iterator[dict[str, Any]]:
        for batch in pq.ParquetFile(path).iter_batches(16_384):
            yield from batch.to_pylist()

    spec: dict[str, Any] = {name: tf.TensorSpec([], tf.float32) for name in FLOATS}
    spec["label"] = tf.TensorSpec([], tf.int64)
    spec["items"] = tf.TensorSpec([None], tf.int64)
    spec["country"] = tf.TensorSpec([], tf.string)
    data = tf.data.Dataset.from_generator(rows, output_signature=spec)
    return data.ragged_batch(BATCH).prefetch(tf.data.AUTOTUNE)


def by_batches(path: str) -> Any:
    """A generator of whole batches: pyarrow's columns as NumPy arrays, text as objects."""
    import pyarrow.parquet as pq
    import tensorflow as tf

    def batches() -> Iterator[tuple[Any, ...]]:
        for batch in pq.ParquetFile(path).iter_batches(BATCH):
            items = batch["items"]
            ends = items.offsets.to_numpy() - items.offsets[0].as_py()
            plain = [batch[name].to_numpy() for name in (*FLOATS, "label")]
            yield (*plain, items.flatten().to_numpy(), ends, batch["country"].to_numpy(zero_copy_only=False))

    spec = (*[tf.TensorSpec([None], tf.float32)] * 10, tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64))
    spec += (tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.string))
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)

    def named(*columns: Any) -> dict[str, Any]:
        found = dict(zip((*FLOATS, "label"), columns, strict=False))
        return {**found, "items": tf.RaggedTensor.from_row_splits(columns[11], columns[12]), "country": columns[13]}

    return data.map(named).prefetch(tf.data.AUTOTUNE)


def measure(side: str, path: str, seconds: float) -> dict[str, float]:
    """Rows per second of whole epochs, measured for about ``seconds``."""
    data = {"bowstring": by_bowstring, "rows": by_rows, "batches": by_batches}[side](path)

    def epoch() -> int:
        rows = 0
        for batch in data:
            # Padding does not count.
            rows += int(batch["_mask"].numpy().sum()) if "_mask" in batch else int(batch["label"].shape[0])
        return rows

    expected = epoch()
    started, cpu = time.perf_counter(), cpu_seconds()
    rows = 0
    while time.perf_counter() - started < seconds:
        one = epoch()
        assert one == expected, f"{one} rows in this epoch, {expected} in the first"
        rows += one
    took = time.perf_counter() - started
    return {"rows": expected, "rows_per_s": rows / took, "rows_per_cpu_s": rows / (cpu_seconds() - cpu)}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--side", choices=SIDES, help="one measurement in this process, of --path")
    parser.add_argument("--path")
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(measure(arguments.side, arguments.path, arguments.seconds)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.parquet"
        write(path, arguments.rows)
        turns: list[dict[str, dict[str, float]]] = []
        for _ in range(arguments.repeats):
            turn = {}
            for side in SIDES:
                command = [
                    sys.executable,
                    __file__,
                    "--side",
                    side,
                    "--path",
                    str(path),
                    "--seconds",
                    str(arguments.seconds),
                ]
                quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
                ran = subprocess.run(command, stdout=subprocess.PIPE, env=quiet, check=True, timeout=600, text=True)
                turn[side] = json.loads(ran.stdout.splitlines()[-1])
                assert turn[side]["rows"] == arguments.rows
                print(json.dumps({"side": side, **turn[side]}), flush=True)
            turns.append(turn)
    for name in ("rows_per_s", "rows_per_cpu_s"):
        medians = {side: round(statistics.median(turn[side][name] for turn in turns)) for side in SIDES}
        of = {
            side: round(statistics.median(t["bowstring"][name] / t[side][name] for t in turns), 1) for side in SIDES[1:]
        }
        print(json.dumps({"measure": name, "medians": medians, "bowstring_times": of}))


if __name__ == "__main__":
    main()
