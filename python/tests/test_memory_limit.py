"""A loader under a limit of the kernel: its budget, a fifth more, and what an idle process has."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import package_environment

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from chaos.disks import Memory

BUDGET = 128 << 20
SOAK = "BOWSTRING_SOAK" in os.environ
# The dataset is 20 times the budget; a tenth of it without the soak.
FILES = 80 if SOAK else 8
# It is read again until so many minutes are over.
MINUTES = float(os.environ.get("BOWSTRING_SOAK_MINUTES", "60" if SOAK else "0"))
# Bytes by which the second half of that time may exceed the first. Which batches are in flight at the same time differs.
GROWTH = 8 << 20
# Descriptors and threads by which it may.
FEW = 2

LIMITED = """
import gc, os, pathlib, sys, time
import bowstring

data, photos, group, limit, usage, budget, seconds = *sys.argv[1:6], int(sys.argv[6]), float(sys.argv[7])


def resident(*kinds):
    return sum(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(kinds))


# Without the pages of programs, of which more are used with time.
OWN = ("RssAnon", "RssShmem")


# Threads, pools and modules that stay are there before the limit is.
with bowstring.Loader(photos, batch_size=4, images={"image": {"size": 32}}) as loader:
    next(iter(loader))
gc.collect()
pathlib.Path(group, "cgroup.procs").write_text(str(os.getpid()))
idle = resident(*OWN)
pathlib.Path(limit).write_text(str(resident("VmRSS") + budget * 6 // 5))
rows = total = most = epochs = 0
began, halves = time.monotonic(), [0, 0]
# The most descriptors and threads at the end of an epoch, in each half of the time. Threads that wait for files come and go.
ends = [(0, 0), (0, 0)]
with bowstring.Loader(data, batch_size=4096, memory_budget=budget, lanes=4, window_rows=100_000) as loader:
    while epochs == 0 or time.monotonic() - began < seconds:
        for step, batch in enumerate(loader):
            rows += len(batch["id"])
            total += int(batch["id"].sum())
            if step % 50 == 0:
                # A trainer that is late: everything ahead of it is as full as it gets.
                time.sleep(0.2)
            used = resident(*OWN) - idle
            most = max(most, used)
            half = min(1, int(2 * (time.monotonic() - began) / max(seconds, 1)))
            halves[half] = max(halves[half], used)
        epochs += 1
        now = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
        ends[half] = tuple(map(max, ends[half], now))
        assert rows == epochs * loader.rows, (rows, epochs, loader.rows)
    print(rows, total, most, loader.stats()["memory"]["peak"], epochs, *halves, *ends[0], *ends[1])
"""


@pytest.fixture
def group() -> Iterator[Memory]:
    """A group of processes whose memory can be limited."""
    made = Memory.made(f"bowstring-test-{os.getpid()}")
    if made is None:
        pytest.skip("no cgroup of memory can be made here (it needs root)")
    yield made
    with contextlib.suppress(OSError):
        made.close()


@pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux's")
@pytest.mark.timeout(900 + 60 * MINUTES)
def test_an_epoch_stays_within_a_limit_of_the_kernel(group: Memory, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows, groups = 100_000, 4
    cells = {f"x{number}": rng.standard_normal(rows, dtype=np.float32) for number in range(19)}
    table = pa.table({"id": np.arange(rows, dtype=np.int64), **cells})
    first = tmp_path / "data" / "0000.parquet"
    first.parent.mkdir()
    with pq.ParquetWriter(first, table.schema, compression="zstd") as writer:
        for _ in range(groups):
            writer.write_table(table, row_group_size=rows)
    for number in range(1, FILES):
        (first.parent / f"{number:04}.parquet").hardlink_to(first)
    photos = Path(__file__).parents[2] / "fixtures" / "imagenet40.parquet"
    paths = (first.parent, photos, group.path, group.limit, group.usage, BUDGET, 60 * MINUTES)
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, paths)],
        env=package_environment(),
        capture_output=True,
        text=True,
        timeout=600 + 60 * MINUTES,
        check=False,
    )
    assert group.kills() == 0, "the kernel killed it"
    assert run.returncode == 0, run.stderr
    read, total, most, told, epochs, first_half, second_half, *ends = map(int, run.stdout.split())
    print(f"{epochs} epochs of {FILES} files in {MINUTES:.0f} minutes: {most >> 20} MiB at most")
    print(f"memory in the halves: {first_half >> 20} and {second_half >> 20} MiB; descriptors and threads: {ends}")
    assert read == epochs * rows * groups * FILES
    assert total == epochs * groups * FILES * (rows * (rows - 1) // 2)
    if MINUTES > 0:
        assert second_half <= first_half + GROWTH, f"{first_half >> 20} MiB, then {second_half >> 20} MiB"
        assert ends[2] <= ends[0] + FEW, f"{ends[0]} descriptors, then {ends[2]}"
        assert ends[3] <= ends[1] + FEW, f"{ends[1]} threads, then {ends[3]}"
    # What the loader itself counts is within its budget, and what the kernel counts is little more.
    assert told <= BUDGET
    assert most <= BUDGET * 115 // 100, f"{most >> 20} MiB more than idle, of which {told >> 20} MiB are counted"
