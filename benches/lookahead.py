"""A cache that holds a part of the data, with and without fetching ahead: time of an epoch, and when the store gives its bytes.

    python benches/lookahead.py                           128 MB, a store of 20 MB/s and 5 ms, a consumer of 40 MB/s
    python benches/lookahead.py --share 0.25 --repeats 5

The store is an HTTP server that speaks enough of S3 and shares its rate among all connections. The consumer takes the time of its
rate for each batch, as training would. The first epoch fills the cache and is not counted; runs with and without take turns.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python" / "tests"))

GROUPS = 8
"""Row groups of a file, of a megabyte each."""
ROWS = 8
"""Rows of a row group, and of a batch."""

READER = """
import json, sys, time
from bowstring import Loader
options, epochs, pause = json.loads(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
with Loader("s3://bucket/data", batch_size=8, arrow=["data"], **options) as loader:
    for epoch in range(epochs):
        tenths, waits = [], []
        steps = len(loader)
        before = loader.stats()["cache"]["origin_bytes"]
        began = due = time.perf_counter()
        batches = iter(loader)
        for step in range(steps):
            asked = time.perf_counter()
            next(batches)
            waits.append(time.perf_counter() - asked)
            due = max(due, time.perf_counter()) + pause
            time.sleep(max(0.0, due - time.perf_counter()))
            if (step + 1) * 10 // steps > step * 10 // steps:
                now = loader.stats()["cache"]["origin_bytes"]
                tenths.append(now - before)
                before = now
        took = time.perf_counter() - began
        assert next(batches, None) is None
        print(json.dumps({"took": took, "tenths": tenths, "waited": sum(waits), "worst": max(waits)}), flush=True)
"""


def serve(megabytes: int, rate: float, delay: float) -> None:
    """Serves the dataset until standard input ends."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from objects import Objects, Paced

    server = Objects(Paced(rate * 1e6, delay))
    for number in range(megabytes // GROUPS):
        rows = [os.urandom(1_000_000 // ROWS) for _ in range(GROUPS * ROWS)]
        file = io.BytesIO()
        pq.write_table(pa.table({"data": rows}), file, row_group_size=ROWS, compression="none", use_dictionary=False)
        server.content[f"bucket/data/{number:03}.parquet"] = file.getvalue()
    print(server.url, flush=True)
    sys.stdin.read()


def run(url: str, share: float, ahead: str, asked: argparse.Namespace) -> list[dict[str, object]]:
    """The epochs after the first one."""
    with tempfile.TemporaryDirectory() as home:
        options = {
            "cache": f"{home}/cache",
            "cache_bytes": int(share * asked.megabytes * 1.02e6),
            "cache_ahead": ahead,
            "lanes": 1,
            "window_rows": ROWS,
            "memory_budget": "16MiB",
            "storage_options": {"endpoint": url, "access_key_id": "id", "secret_access_key": "s", "allow_http": "true"},
        }
        command = [sys.executable, "-c", READER, json.dumps(options), str(1 + asked.epochs), str(1 / asked.consumer)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in found.stdout.splitlines()][1:]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--store", type=float, default=20, help="MB/s of the store")
    parser.add_argument("--consumer", type=float, default=40, help="MB/s of the consumer")
    parser.add_argument(
        "--share", type=float, nargs="*", default=[0.25, 0.5, 0.75], help="of the data that the cache holds"
    )
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.megabytes, asked.store, 0.005)
        return
    command = [sys.executable, __file__, "--serve", "--megabytes", str(asked.megabytes), "--store", str(asked.store)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    heads = [
        "cache holds",
        "cache_ahead",
        "epoch, s",
        "waited for batches, s",
        "longest wait, s",
        "store's bytes / dataset",
    ]
    print("| " + " | ".join([*heads, "by tenths of the epoch, MB"]) + " |\n|---|---|---|---|---|---|---|")
    for share in asked.share:
        epochs: dict[str, list[dict[str, object]]] = {"0": [], "256MiB": []}
        for _ in range(asked.repeats):
            for ahead, found in epochs.items():
                found.extend(run(url, share, ahead, asked))
        for ahead, found in epochs.items():
            took, waited, worst = (
                statistics.median(each[name] for each in found) for name in ("took", "waited", "worst")
            )
            tenths = [statistics.fmean(each["tenths"][at] for each in found) / 1e6 for at in range(10)]
            shown = ", ".join(f"{tenth:.1f}" for tenth in tenths)
            total = sum(tenths) / asked.megabytes
            print(
                f"| {share:.0%} | {ahead} | {took:.2f} | {waited:.2f} | {worst:.2f} | {total:.2f} | {shown} |",
                flush=True,
            )
    server.terminate()


if __name__ == "__main__":
    main()
