"""A long run: endless epochs over a small dataset, local and from a server, checked for growth.

    make long-run LONG_SECONDS=300

Each epoch's rows are counted and added up, and every so often an epoch's order is compared with that of a loader that begins at
that epoch: the order of epoch 1,000 must be the same after 999 others. Sixty times a run memory, descriptors, threads and
the latency of a step are noted. It fails if one of them grows: memory of the second half by more than ``--most-mib``,
descriptors or threads by more than their pools fluctuate, the median latency of a step by more than half.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SAMPLES = 60
FILES = 8
# Threads that wait for files, and the descriptors of the files, come and go.
BREATH = 8


@dataclass
class Sample:
    """State of the process at one moment, and the steps since the last sample."""

    seconds: float
    epochs: int
    steps: int
    rss_mib: float
    descriptors: int
    threads: int
    p50_us: float
    p99_us: float


def made(root: Path, rows: int) -> str:
    """A dataset of small rows."""
    root.mkdir()
    each = rows // FILES
    for file in range(FILES):
        ids = np.arange(file * each, (file + 1) * each)
        table = pa.table(
            {"id": ids, "x": (ids % 97).astype(np.float32), "word": [f"w{n % 1000}" for n in ids.tolist()]}
        )
        pq.write_table(table, root / f"part-{file}.parquet", row_group_size=max(1, each // 4))
    return str(root)


def rss_mib() -> float:
    """Memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def digest_of(loader: Any, epoch: int) -> str:
    """The order of an epoch, from a loader that begins there."""
    loader.set_epoch(epoch)
    seen = hashlib.blake2b(digest_size=16)
    for batch in loader:
        seen.update(batch["id"].tobytes())
    return seen.hexdigest()


class Run:
    """Loaders of one dataset, read in turns, and their records."""

    def __init__(self, sources: dict[str, dict[str, Any]], rows: int, check_every: int) -> None:
        self.options = sources
        self.loaders = {name: bowstring.Loader(**options) for name, options in sources.items()}
        self.rows, self.check_every = rows, check_every
        self.epochs = self.steps = self.checked = 0
        self.latencies: list[float] = []

    def epoch(self) -> None:
        """One epoch of each loader: every row once, and now and then in the order of the plan."""
        for name, loader in self.loaders.items():
            number, count, total = loader.epoch, 0, 0
            seen = hashlib.blake2b(digest_size=16)
            before = time.perf_counter()
            for batch in loader:
                now = time.perf_counter()
                self.latencies.append(now - before)
                ids = batch["id"]
                count, total = count + len(ids), total + int(ids.sum())
                seen.update(ids.tobytes())
                self.steps += 1
                before = time.perf_counter()
            if (count, total) != (self.rows, self.rows * (self.rows - 1) // 2):
                raise SystemExit(f"{name}: epoch {number} had {count} rows that add up to {total}")
            if number % self.check_every == 0:
                with bowstring.Loader(**self.options[name]) as fresh:
                    if digest_of(fresh, number) != seen.hexdigest():
                        raise SystemExit(f"{name}: epoch {number} is not what the plan says")
                self.checked += 1
        self.epochs += 1

    def sample(self, seconds: float) -> Sample:
        """The current state, and the latencies since the last sample."""
        gc.collect()
        ordered = sorted(self.latencies)
        self.latencies = []
        middle, late = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
        found = (rss_mib(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
        return Sample(round(seconds, 1), self.epochs, self.steps, *found, round(middle * 1e6, 1), round(late * 1e6, 1))

    def close(self) -> None:
        """Ends the loaders."""
        for loader in self.loaders.values():
            loader.close()


def growth(samples: list[Sample], most_mib: float) -> dict[str, Any]:
    """Differences of the second half from the first, and those that are excessive."""
    # Warming up in the first tenth is no growth.
    warm = samples[len(samples) // 10 :]
    first, second = warm[: len(warm) // 2], warm[len(warm) // 2 :]

    def median(part: list[Sample], of: str) -> float:
        return statistics.median(getattr(sample, of) for sample in part)

    change = {of: median(second, of) - median(first, of) for of in ("rss_mib", "descriptors", "threads")}
    ratio = median(second, "p50_us") / median(first, "p50_us")
    wrong = [of for of in ("descriptors", "threads") if change[of] > BREATH]
    wrong += ["rss_mib"] if change["rss_mib"] > most_mib else []
    wrong += ["p50_us"] if ratio > 1.5 else []
    return {**{of: round(value, 2) for of, value in change.items()}, "p50_ratio": round(ratio, 3), "grew": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long it runs")
    parser.add_argument("--rows", type=int, default=25_600, help="rows of the dataset")
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a step")
    parser.add_argument("--most-mib", type=float, default=8.0, help="growth of memory that is still none")
    parser.add_argument("--check-every", type=int, default=100, help="hold every so many epochs against the plan")
    parser.add_argument("--output", type=Path, help="write all samples there, as JSON")
    given = parser.parse_args()
    rows = given.rows // FILES * FILES
    with tempfile.TemporaryDirectory(prefix="bowstring-long-run-") as directory:
        data = made(Path(directory, "data"), rows)
        options = {"batch_size": given.batch_size, "columns": ["id", "x"], "seed": 7}
        if rows % given.batch_size:
            parser.error(f"--rows {rows} must be a multiple of --batch-size {given.batch_size}")
        with bowstring.flight.Server({"data": data}, memory_budget="256MiB") as server:
            sources = {
                "local": {"url": data, "memory_budget": "256MiB", **options},
                "served": {"url": f"{server.url}/data", "memory_budget": "256MiB", **options},
            }
            run = Run(sources, rows, given.check_every)
            started = time.monotonic()
            samples: list[Sample] = []
            while (now := time.monotonic() - started) < given.seconds:
                run.epoch()
                if now >= given.seconds * len(samples) / SAMPLES:
                    samples.append(run.sample(now))
            samples.append(run.sample(time.monotonic() - started)) if run.latencies else None
            run.close()
    if len(samples) < 10:
        raise SystemExit(f"{len(samples)} samples say nothing: give more --seconds, or fewer --rows")
    for sample in samples[:: max(1, len(samples) // 12)]:
        print(json.dumps(asdict(sample)))
    report = {
        "seconds": samples[-1].seconds,
        "epochs": run.epochs,
        "steps": run.steps,
        "epochs_held_against_the_plan": run.checked,
        "first": asdict(samples[len(samples) // 10]),
        "last": asdict(samples[-1]),
        "second_half_against_first": growth(samples, given.most_mib),
    }
    print(json.dumps(report, indent=2))
    if given.output is not None:
        given.output.write_text(
            json.dumps({**report, "samples": [asdict(sample) for sample in samples]}, indent=2) + "\n"
        )
    if report["second_half_against_first"]["grew"]:
        sys.exit(f"grew: {', '.join(report['second_half_against_first']['grew'])}")


if __name__ == "__main__":
    main()
