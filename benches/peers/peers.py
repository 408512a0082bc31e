# Measures one contender in this process and prints one JSON line; run.py starts a fresh process for each measurement.
# Epoch 0 is checked in full and gives the time to the first batch; the epochs after it are timed with a cheap check.

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import importlib.util
import json
import os
import pathlib
import resource
import sys
import time
from typing import Any

# sys.path[0] is this folder, because this runs as a script.
import columns  # noqa: F401
import lists  # noqa: F401
import photos  # noqa: F401
import recsys  # noqa: F401
from contender import CONTENDERS, Contender, Job, version

PROBE = {"recsys": 20, "recsys-snappy": 20, "tokens": 0, "fixed": 0}
SHAPES = {"recsys": (39,), "recsys-snappy": (39,), "tokens": (512,), "fixed": (1024,)}
DTYPES = {"recsys": "float32", "recsys-snappy": "float32", "photos": "uint8", "tokens": "int32", "fixed": "float32"}
# Random crops differ between contenders: their channel means may differ by this much (of 255). Catches wrong channel
# order, wrong range and empty images.
MEAN_TOLERANCE = 6.0


class Mismatch(Exception):
    """A contender delivered something other than the dataset."""


def cpu_seconds() -> float:
    """User and system time of this process, its threads, and its finished children."""
    both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def peak_rss() -> int:
    """Peak resident bytes of this process. Not ru_maxrss, which starts at the parent's peak."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def machine_busy() -> float:
    """CPU seconds that all processes of the machine have used since boot."""
    fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq = (int(field) for field in fields[:7])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def close(found: float, wanted: float, what: str) -> None:
    """Checks equality, except for the rounding of float64 sums in another order."""
    if abs(found - wanted) > 1e-3 + 1e-9 * abs(wanted):
        raise Mismatch(f"{what} is {found!r}, not {wanted!r}")


class Totals:
    """Totals of the rows delivered in an epoch, to compare with expected.json."""

    def __init__(self, contender: Contender, expected: dict[str, Any], full: bool) -> None:
        self.contender, self.task, self.expected, self.full = contender, contender.task, expected, full
        self.rows = self.aux = self.batches = 0
        self.probe = self.total = self.cross = 0.0
        self.sums: Any = 0.0

    def add(self, matrix: Any, aux: Any) -> None:
        """Counts a batch: a few microseconds, or all of it if the check is a full one."""
        if isinstance(matrix, dict):
            self.add_columns(matrix, aux)
            return
        x, y = matrix.numpy(), aux.numpy()
        self.batches += 1
        self.rows += len(x)
        self.aux += int(y.sum())
        if self.task in PROBE:
            self.probe += float(x[:, PROBE[self.task]].sum(dtype="float64"))
        if self.full:
            self.inspect(x, y)

    def add_columns(self, delivered: dict[str, Any], label: Any) -> None:
        """As :meth:`add`, of a dict of columns."""
        wanted = self.expected["sums"]
        self.batches += 1
        self.rows += len(label)
        self.aux += int(label.sum())
        if set(delivered) != set(wanted) or any(len(column) != len(label) for column in delivered.values()):
            raise Mismatch(f"a batch has {sorted(delivered)}, of {len(label)} rows")
        if self.full:
            sums = {name: float(column.numpy().sum(dtype="float64")) for name, column in delivered.items()}
            self.sums = {name: (self.sums or {}).get(name, 0.0) + total for name, total in sums.items()}
            self.cross += float((delivered["f00"].numpy() * label.numpy()).sum(dtype="float64"))

    def inspect(self, x: Any, y: Any) -> None:
        """Sums everything, and checks shape, type and layout."""
        shape = SHAPES.get(self.task)
        shapes = [(len(y), *shape)] if shape else [(len(y), 224, 224, 3), (len(y), 3, 224, 224)]
        if x.shape not in shapes or y.shape != (len(y),) or x.dtype.name != DTYPES[self.task]:
            raise Mismatch(f"a batch is {x.dtype}{list(x.shape)} with {list(y.shape)}, not {DTYPES[self.task]}{shapes}")
        if self.contender.contiguous and not x.flags.c_contiguous:
            raise Mismatch(f"a matrix is not contiguous: strides {x.strides}")
        if self.task == "photos":
            self.sums = self.sums + x.sum(axis=(0, 1, 2) if x.shape[-1] == 3 else (0, 2, 3), dtype="float64")
        elif self.task.startswith("recsys"):
            self.sums = self.sums + x.sum(axis=0, dtype="float64")
            self.cross += float((x[:, PROBE[self.task]] * y).sum(dtype="float64"))
        else:
            self.total += float(x.sum(dtype="float64"))

    def check(self) -> None:
        """Raises Mismatch unless the epoch delivered every row once."""
        wanted = self.expected
        if self.rows != wanted["rows"]:
            raise Mismatch(f"{self.rows} rows were delivered, not {wanted['rows']}")
        close(self.aux, wanted["aux_sum"], "the sum of labels, ids or lengths")
        if self.task in PROBE:
            close(self.probe, wanted["probe_sum"], f"the sum of column {PROBE[self.task]}")
        if not self.full:
            return
        if self.task.startswith("columns"):
            for name, total in wanted["sums"].items():
                close(self.sums[name], total, f"the sum of column {name}")
            close(self.cross, wanted["cross"], "the sum of label times f00 (rows mixed up?)")
        elif self.task == "photos":
            for channel, (found, mean) in enumerate(zip(self.sums, wanted.get("channel_means", ()), strict=False)):
                found /= self.rows * 224 * 224
                if abs(found - mean) > MEAN_TOLERANCE:
                    raise Mismatch(f"the mean of channel {channel} is {found:.1f}, not about {mean:.1f}")
        elif self.task.startswith("recsys"):
            for column, (found, total) in enumerate(zip(self.sums, wanted["sums"], strict=True)):
                close(found, total, f"the sum of column {column}")
            close(self.cross, wanted["cross"], "the sum of label times column 20 (rows mixed up?)")
        else:
            close(self.total, wanted["total"], "the sum of all values")


def measure(contender: Contender, job: Job, expected: dict[str, Any], epochs: int) -> dict[str, Any]:
    """One checked epoch, then `epochs` timed ones."""
    imported = peak_rss()
    start, first = time.perf_counter(), None
    epoch = contender.open(job)
    totals = Totals(contender, expected, full=True)
    for matrix, aux in epoch(0):
        first = first or time.perf_counter() - start
        totals.add(matrix, aux)
    totals.check()
    del matrix, aux
    gc.collect()

    wall, cpu, busy = time.perf_counter(), cpu_seconds(), machine_busy()
    for number in range(1, epochs + 1):
        totals = Totals(contender, expected, full=False)
        for matrix, aux in epoch(number):
            totals.add(matrix, aux)
        totals.check()
        del matrix, aux
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    others = (machine_busy() - busy - cpu) / wall
    return {
        "rows": epochs * expected["rows"],
        "batches": totals.batches,
        "wall_s": wall,
        "cpu_s": cpu,
        "first_batch_s": first,
        "peak_rss": peak_rss(),
        "imports_rss": imported,
        "peak_rss_children": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "others_cores": max(0.0, others),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task")
    parser.add_argument("--name")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print every contender in words")
    args = parser.parse_args()
    if args.list:
        print(json.dumps([describe(contender) for contender in CONTENDERS.values()]))
        return 0
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    contender = CONTENDERS[args.task, args.name]
    versions, missing = import_all(contender)
    if missing:
        print(json.dumps({"missing": missing}))
        return 0
    limit_threads(args.threads)
    file = args.data / f"{contender.dataset.partition('_')[0]}.expected.json"
    expected = json.loads(file.read_text())[contender.dataset]
    job = Job(args.task, args.data, args.batch, args.threads, expected["rows"])
    try:
        found = measure(contender, job, expected, args.epochs)
    except Mismatch as mismatch:
        print(f"{contender.name} on {contender.task}: {mismatch}", file=sys.stderr)
        return 3
    print(json.dumps({"versions": versions, **found}))
    return 0


def limit_threads(threads: int) -> None:
    """Sets limits that environment variables do not cover."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].set_cpu_count(threads)
        sys.modules["pyarrow"].set_io_thread_count(threads)


def describe(contender: Contender) -> dict[str, Any]:
    """The contender in plain words."""
    return {f.name: getattr(contender, f.name) for f in dataclasses.fields(contender) if f.name != "open"}


def import_all(contender: Contender) -> tuple[list[str], str | None]:
    """Imports the contender's modules; returns their versions, or the missing one.

    Only of this contender: some peers cannot live in one process (polars and TensorFlow each bring an LLVM).
    """
    versions = []
    for module in contender.modules:
        try:
            loaded = importlib.import_module(module)
            if module == "turbo":
                loaded.library()
            else:
                versions += [found for found in [version(module)] if found not in versions]
        except Exception as error:
            return versions, f"{module}: {type(error).__name__}: {error}".splitlines()[0]
    if "pyarrow" in sys.modules and importlib.util.find_spec("pandas"):
        # pyarrow imports it at the first conversion if it is installed, as it is here for `datasets`.
        importlib.import_module("pandas")
    return versions, None


if __name__ == "__main__":
    sys.exit(main())
