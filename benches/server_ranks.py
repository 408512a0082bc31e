"""The cost of ranks to a server: one plan, W ranks in lockstep, as in data-parallel training, or running free.

    python benches/server_ranks.py [--ranks 1 8 64] [--files 64] [--rows 1000000] [--page-index] [--batch-size 512]
                                   [--steps 200] [--memory-budget 4GiB] [--free] [--shared-memory]
                                   [--servers 1] [--cpu 0.4] [--data DIR]

The data are `--files` files of one row group of `--rows` rows and 20 float32 and int64 columns, zstd, which pyarrow writes, with
a page index if requested; they are hard links of one. Each server is a process of its own on loopback, with `--cpu` of a core to
itself if that is given (by a control group, which root alone may make); all ranks are threads of one client process. `--steps 0`
is a whole epoch, in which decoding ahead of the last step does not weigh. One JSON line for each number of ranks: rows a
second of all ranks together, CPU seconds of the servers and of all ranks per million rows, rows decoded (whole row groups) by
each server and rows delivered, seconds until every rank has its first batch, the peak memory of a server, and, running free, how
many steps the first rank is ahead of the last at most; if a plan does not fit `--memory-budget`, the seconds within which each
rank gets the error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import bowstring
from bowstring.flight import Connection

CGROUP = Path("/sys/fs/cgroup")
PERIOD = 100_000


def write(directory: Path, files: int, rows: int, page_index: bool) -> None:
    """Writes the files, unless they exist."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = directory / "part-00000.parquet"
    if not first.exists():
        random = np.random.default_rng(0)
        columns: dict[str, Any] = {"id": np.arange(rows, dtype=np.int64)}
        for number in range(19):
            # About half of each value's bits are noise.
            columns[f"f{number}"] = random.integers(0, 1 << 16, rows).astype(np.float32) / 256
        pq.write_table(pa.table(columns), first, compression="zstd", row_group_size=rows, write_page_index=page_index)
    for number in range(1, files):
        path = directory / f"part-{number:05}.parquet"
        if not path.exists():
            os.link(first, path)


def cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) // 1024 if found else 0


class Share:
    """Limits one process to a share of a core, by a control group of either version."""

    def __init__(self, name: str, cpu: float) -> None:
        unified = (CGROUP / "cgroup.controllers").exists()
        self.group = (CGROUP if unified else CGROUP / "cpu") / name
        self.group.mkdir(exist_ok=True)
        quota = int(cpu * PERIOD)
        if unified:
            (self.group / "cpu.max").write_text(f"{quota} {PERIOD}")
        else:
            (self.group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (self.group / "cpu.cfs_quota_us").write_text(str(quota))

    def add(self, pid: int) -> None:
        (self.group / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        self.group.rmdir()


def measure(urls: list[str], pids: list[int], ranks: int, args: argparse.Namespace) -> dict[str, Any]:
    """One run of `ranks` ranks."""
    barrier = threading.Barrier(ranks)
    steps = [0] * ranks
    failures: list[str] = []
    failed = [0.0] * ranks
    first = [0.0] * ranks
    started = time.monotonic()
    spread = 0

    def rank(number: int) -> None:
        nonlocal spread
        try:
            options = {"transport": "shared_memory" if args.shared_memory else "tcp"}
            batches = iter(
                bowstring.Loader(
                    urls,
                    batch_size=args.batch_size,
                    rank=number,
                    world_size=ranks,
                    timeout=60,
                    storage_options=options,
                )
            )
            for step in range(args.steps or sys.maxsize):
                batch = next(batches, None)
                if step == 0:
                    first[number] = time.monotonic() - started
                if batch is None:
                    break
                steps[number] = step + 1
                if not args.free:
                    barrier.wait()
                elif step % 16 == 0:
                    spread = max(spread, max(steps) - min(steps))
        except Exception as error:
            failed[number] = time.monotonic() - started
            failures.append(f"rank {number}: {error}")
            barrier.abort()

    cpu, own = cpu_seconds(pids), time.process_time()
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - started
    rows = sum(steps) * args.batch_size
    result: dict[str, Any] = {"ranks": ranks, "served": sum(count > 0 for count in steps)}
    if failures:
        result["failed"] = [text for text in failures if "BrokenBarrier" not in text][:2]
        result["failed_within_s"] = round(max(failed), 2)
    result |= {
        "rows_per_s": round(rows / (seconds - max(first))) if seconds > max(first) else None,
        "server_cpu_s_per_million_rows": round((cpu_seconds(pids) - cpu) / max(rows, 1) * 1e6, 2),
        "clients_cpu_s_per_million_rows": round((time.process_time() - own) / max(rows, 1) * 1e6, 2),
        "decoded_rows": [decoded(url) for url in urls],
        "delivered_rows": rows,
        "first_batch_s": round(max(first), 2),
        "server_peak_mib": max(peak_mib(pid) for pid in pids),
    }
    if args.free:
        result["spread_steps"] = spread
    return result


def decoded(url: str) -> int:
    """Rows that the server has decoded."""
    with Connection(url.rpartition("/")[0]) as connection:
        return int(connection.action("stats", {})["rows_decoded"])


def serve(directory: Path, budget: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "bowstring", "serve", f"rows={directory}"]
    command += ["--listen", "127.0.0.1:0", "--memory-budget", budget]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    for line in server.stderr:
        found = re.search(r"grpc://[\d.]+:\d+", line) or re.search(r"127\.0\.0\.1:\d+", line)
        if found:
            address = found[0].removeprefix("grpc://")
            threading.Thread(target=lambda: [None for _ in server.stderr or ()], daemon=True).start()
            return server, f"grpc://{address}/rows"
    raise SystemExit("the server did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--memory-budget", default="4GiB")
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--shared-memory", action="store_true")
    parser.add_argument("--page-index", action="store_true")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--cpu", type=float)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = args.data or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        write(directory, args.files, args.rows, args.page_index)
        for ranks in args.ranks:
            # Separate servers, so that their peak belongs to this run.
            servers, shares = [], []
            try:
                for number in range(args.servers):
                    servers.append(serve(directory, args.memory_budget))
                    if args.cpu is not None:
                        shares.append(Share(f"server_ranks_{os.getpid()}_{number}", args.cpu))
                        shares[-1].add(servers[-1][0].pid)
                urls, pids = [url for _, url in servers], [server.pid for server, _ in servers]
                print(json.dumps(measure(urls, pids, ranks, args)), flush=True)
            finally:
                for server, _ in servers:
                    server.terminate()
                    server.wait()
                for share in shares:
                    share.remove()


if __name__ == "__main__":
    sys.exit(main())
