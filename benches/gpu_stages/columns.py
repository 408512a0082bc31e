"""A table of 40 nullable columns, as pyarrow writes it: rows a second as a dict of tensors, by threads, order and place.

Beside it, on the GPU, pyarrow's scan of the same files with torch's copies from pageable memory, column by column. The sums of
the label are compared.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from common import ROOT, Settings, busy, loader, need, stage, synchronize

FILES = 8
ROW_GROUP = 131_072

sys.path.insert(0, str(ROOT / "benches" / "peers"))


def write_part(folder: Path, index: int, rows: int) -> int:
    """Writes one file and returns the sum of its labels."""
    import data
    import pyarrow.parquet as pq

    table = data.columns_part(index, rows)
    pq.write_table(table, folder / f"part-{index:05}.parquet", compression="zstd", row_group_size=ROW_GROUP)
    return int(table["label"].to_numpy().sum())


def pyarrow_batches(folder: Path, size: int, device: str) -> Iterator[dict[str, Any]]:
    """Scans the files with pyarrow's threads, fills nulls with 0, and copies every column to the device."""
    import pyarrow.dataset as ds
    import torch

    for batch in ds.dataset(folder).to_batches(batch_size=size):
        filled = {name: column.fill_null(0) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        yield {name: torch.from_dlpack(column).to(device) for name, column in filled.items()}


def run(settings: Settings) -> dict[str, Any]:
    """Measures rows a second, whole epochs only, and compares the sum of the labels."""
    need(importlib.util.find_spec("pyarrow"), "needs pyarrow")
    import bowstring

    rows = settings.pick(2 * ROW_GROUP, 1024)
    folder = settings.data / "columns"
    folder.mkdir(parents=True)
    with ProcessPoolExecutor(settings.pick(FILES, 1)) as pool:
        total = sum(pool.map(write_part, [folder] * FILES, range(FILES), [rows] * FILES))
    cores = len(os.sched_getaffinity(0))
    cases: dict[str, tuple[int, dict[str, Any]]] = {}
    for threads in sorted({1, min(4, cores), cores}) if settings.is_gpu else (1,):
        for order, shuffle in (("in order", False), ("shuffled", True)):
            cases[f"host, {order}, {threads} threads"] = (
                8192,
                {"device": "cpu", "threads": threads, "shuffle": shuffle},
            )
    if settings.is_gpu:
        for size in (8192, 65_536):
            for order, shuffle in (("in order", False), ("shuffled", True)):
                cases[f"GPU, {order}, batches of {size}"] = (size, {"shuffle": shuffle})
    each = settings.seconds / (len(cases) + 3)
    rates: dict[str, float] = {}
    cpu_seconds: dict[str, float] = {}
    bottlenecks: dict[str, str] = {}
    wrong: list[str] = []

    def measure(name: str, epochs: Iterator[Iterator[dict[str, Any]]]) -> None:
        began, before, seen = None, os.times(), 0
        with busy(each) as more:
            for number, batches in enumerate(epochs):
                labels = [batch["label"].sum() for batch in batches]
                if int(sum(int(one) for one in labels)) != total:
                    wrong.append(f"{name}, epoch {number}")
                if began is None:  # The first epoch is the warm-up.
                    synchronize(settings)
                    began, before = time.perf_counter(), os.times()
                else:
                    seen += rows * FILES
                if number and not more():
                    break
        took, after = time.perf_counter() - (began or 0), os.times()
        rates[name] = seen / took
        cpu_seconds[name] = round((after.user + after.system - before.user - before.system) / seen * 1e6, 4)

    for name, (size, options) in cases.items():
        ours = loader(settings, folder, size, **{"nulls": bowstring.Fill(0), "tail": "short", **options})

        def epochs(ours: Any = ours) -> Iterator[Iterator[dict[str, Any]]]:
            for number in range(1 << 20):
                ours.set_epoch(number)
                yield iter(ours)

        measure(name, epochs())
        bottlenecks[name] = ours.stats()["bottleneck"] or "nothing"
        ours.close()
    if settings.is_gpu:
        for size in (8192, 65_536):
            again = (pyarrow_batches(folder, size, settings.device) for _ in range(1 << 20))
            measure(f"pyarrow to the GPU, in order, batches of {size}", again)
    return {
        "ok": not wrong,
        "wrong": wrong,
        "rows_per_s": rates,
        "cpu_seconds_per_million_rows": cpu_seconds,
        "bottlenecks": bottlenecks,
    }


if __name__ == "__main__":
    stage(run)
