"""The process of one loader: reads what to load from its input, then runs a round for each further line, and writes its figures."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import multiprocessing
import os
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from bowstring.errors import ConfigError, Error

Epoch = Callable[[], Iterable[dict[str, Any]]]


def cpu_seconds() -> float:
    """User and system time of this process and of its living workers."""
    tick = os.sysconf("SC_CLK_TCK")
    spent = time.process_time()
    for worker in multiprocessing.active_children():
        # The program's name, in parentheses, may hold spaces.
        fields = pathlib.Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        spent += (int(fields[11]) + int(fields[12])) / tick
    return spent


def amount(column: Any) -> tuple[int | float, float]:
    """The sum of a column of a batch, and that of its magnitudes: of texts and bytes the sum of their lengths."""
    import torch

    if isinstance(column, list):
        return sum(map(len, column)), 0.0
    if column.is_floating_point():
        column = torch.nan_to_num(column.to(torch.float64))
        return float(column.sum()), float(column.abs().sum())
    return int(column.to(torch.int64).sum()), 0.0


def of_bowstring(options: dict[str, Any]) -> tuple[Epoch, dict[str, Any]]:
    """bowstring's loader."""
    from bowstring.torch import DataLoader

    options = dict(options)
    loader: Any = DataLoader(options.pop("urls"), rank=0, world_size=1, **options)
    about = {"columns": len(loader.peek()), "images": bool(options.get("images"))}
    return (lambda: loader), about


def of_torch(options: dict[str, Any], workers: int) -> tuple[Epoch, dict[str, Any]]:
    """torch's loader over pyarrow."""
    import torch.utils.data

    from bowstring.against.rowgroups import RowGroups

    # Views of Arrow's memory are read-only, and nobody here writes.
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    dataset = RowGroups(options)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=workers > 0,
        timeout=float(options.get("timeout", 600)) if workers else 0,
    )
    return (lambda: loader), {"columns": len(dataset.names), "images": bool(dataset.photos)}


def rounds(epoch: Epoch, epochs: int, steps: int | None, photos: set[str]) -> Iterable[dict[str, Any]]:
    """The figures of each round. The sums of the first are taken outside of all measured rounds."""
    counting = True
    while True:
        sums: dict[str, tuple[int | float, float]] = {}
        rows, first = 0, 0.0
        start, cpu = time.perf_counter(), cpu_seconds()
        batches = itertools.chain.from_iterable(epoch() for _ in range(epochs))
        for batch in itertools.islice(batches, steps):
            first = first or time.perf_counter() - start
            rows += len(next(iter(batch.values())))
            if counting:
                for name, column in batch.items():
                    if name not in photos:
                        before, more = sums.get(name, (0, 0.0)), amount(column)
                        sums[name] = (before[0] + more[0], before[1] + more[1])
        seconds = time.perf_counter() - start
        yield {"rows": rows, "seconds": seconds, "first": first, "cpu": cpu_seconds() - cpu, "sums": sums}
        counting = False


def main() -> None:
    """Speaks in lines of JSON over standard input and output."""
    # What a library prints must not get between the lines.
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        said.write(json.dumps(message) + "\n")
        said.flush()

    asked = json.loads(sys.stdin.readline())
    options = asked["options"]
    try:
        packages = ["torch", "pyarrow", *(["pillow"] if options.get("images") else [])]
        versions = {}
        for package in packages:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                raise ConfigError(f"option against: this needs {package}: pip install {' '.join(packages)}") from None
        if asked["loader"] == "bowstring":
            epoch, about = of_bowstring(options)
        else:
            epoch, about = of_torch(options, asked["workers"])
        say({**about, "versions": versions})
        figures = iter(rounds(epoch, asked["epochs"], asked["steps"], set(options.get("images") or ())))
        for _ in sys.stdin:
            say(next(figures))
    except (Error, OSError, RuntimeError, ValueError) as error:
        say({"error": str(error), "code": 2 if isinstance(error, ConfigError) else 3})


if __name__ == "__main__":
    main()
