"""Shared by all stages: settings, data written without another library, and a device that falls back to the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = ROOT / "fixtures" / "imagenet40.parquet"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Settings:
    """Settings of one stage."""

    device: str
    """``cuda:0``, or ``cpu`` in a dry run."""
    dry: bool
    """True to try only the steps, on little data; the figures of a dry run mean nothing."""
    seconds: float
    """Seconds that the stage may work; it is killed some time later."""
    data: Path
    """Directory for data, written once for all stages."""
    photos: Path
    """A Parquet file with a column ``image`` of JPEGs."""

    @property
    def is_gpu(self) -> bool:
        """True if there is a GPU that torch can use."""
        return self.device.startswith("cuda") and torch_has_cuda()

    def pick(self, real: Any, dry: Any) -> Any:
        """Returns ``real``, or ``dry`` in a dry run."""
        return dry if self.dry else real


class Skipped(Exception):
    """The stage cannot run here, for the reason in its text. Not a failure."""


def torch_has_cuda() -> bool:
    """Returns true if torch sees a GPU."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def need(condition: Any, why: str) -> None:
    """Skips the stage with ``why`` unless ``condition``."""
    if not condition:
        raise Skipped(why)


def stage(run: Callable[[Settings], dict[str, Any]]) -> None:
    """Runs one stage as a program: settings from argv, one JSON document to the file named there."""
    given = json.loads(sys.argv[1])
    target = Path(given.pop("result"))
    settings = Settings(**{**given, "data": Path(given["data"]), "photos": Path(given["photos"])})
    began = time.perf_counter()
    try:
        # A stage decides for itself whether its figures pass: `ok`.
        document: dict[str, Any] = {"ok": None, **run(settings)}
    except Skipped as why:
        document = {"ok": None, "skipped": str(why)}
    document["seconds"] = round(time.perf_counter() - began, 2)
    write(target, document)


def write(path: Path, document: Any) -> None:
    """Writes a JSON file atomically."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1, default=str))
    partial.replace(path)


# ---- data: written with NumPy and bowstring alone ------------------------------------------------------------------


def photos(settings: Settings, copies: int) -> Path:
    """Makes a dataset of ``copies`` times the photos: links to one file, so that the page cache holds it."""
    folder = settings.data / f"photos-{copies}"
    if not folder.exists():
        building = Path(f"{folder}.{os.getpid()}")
        building.mkdir(parents=True)
        for number in range(copies):
            try:
                os.link(settings.photos, building / f"{number:05}.parquet")
            except OSError:
                shutil.copyfile(settings.photos, building / f"{number:05}.parquet")
        building.rename(folder)
    return folder


def numbers(settings: Settings, rows: int, width: int, dtype: str, *, random: bool = False) -> Path:
    """Makes a dataset with a column ``array`` of ``width`` elements: all of row ``i`` are ``i``, wrapped, or random bits.

    Batches deliver it as ``array__values``, one row after another, and ``array__offsets``.
    """
    import bowstring

    folder = settings.data / f"{dtype}-{rows}-{width}{'-random' if random else ''}"
    if not folder.exists():
        source = Path(f"{folder}.{os.getpid()}")
        source.mkdir(parents=True)
        dice = np.random.default_rng(7)
        for row in range(rows):
            if random:
                array = dice.integers(0, 256, width * np.dtype(dtype).itemsize, np.uint8).view(dtype)
            else:
                array = np.full(width, np.array(row).astype(dtype))
            np.save(source / f"{row:08}.npy", array)
        bowstring.convert(source, folder, from_format="numpy", to="parquet", compression="none", rows_per_group=64)
        shutil.rmtree(source)
    return folder


def lists(settings: Settings, rows: int, longest: int) -> Path:
    """Makes a dataset with a column ``list`` of up to ``longest`` integers below 100 a row, a seventh of them empty."""
    import bowstring

    folder = settings.data / f"lists-{rows}-{longest}"
    if not folder.exists():
        source = Path(f"{folder}.{os.getpid()}.jsonl")
        dice = np.random.default_rng(7)
        lengths = dice.integers(1, longest + 1, rows) * (np.arange(rows) % 7 != 3)
        lines = [json.dumps({"list": dice.integers(0, 100, int(length)).tolist()}) for length in lengths]
        source.write_text("".join(f"{line}\n" for line in lines))
        bowstring.convert(source, folder, from_format="jsonl", to="parquet", compression="none", rows_per_group=64)
        source.unlink()
    return folder


# ---- loaders -------------------------------------------------------------------------------------------------------


def loader(settings: Settings, url: Path, batch: int, **options: Any) -> Any:
    """Opens a ``bowstring.torch.DataLoader`` on the device of the stage; if torch has no GPU, batches are copied to the host."""
    import bowstring.torch

    given: dict[str, Any] = {"batch_size": batch, "rank": 0, "world_size": 1, "tail": "drop", "shuffle": False}
    if settings.device != "cpu":
        given |= {"device": settings.device, "device_slots": 4, "device_fence": "stream"}
    given |= options
    if str(given.get("device", "cpu")).startswith("cuda") and not torch_has_cuda():
        return landed()(str(url), **given)
    return bowstring.torch.DataLoader(str(url), **given)


def landed() -> Any:
    """A loader for the fake driver: batches go to the device and are copied back, because torch does not know the device."""
    import torch
    from bowstring.base import BaseLoader

    class Landed(BaseLoader[Any]):
        def _array(self, tensor: Any) -> Any:
            return torch.from_dlpack(tensor.cpu())

    return Landed


def forever(batches: Any) -> Iterator[Any]:
    """Yields epoch after epoch."""
    while True:
        yield from batches


# ---- time ----------------------------------------------------------------------------------------------------------


class Clock:
    """Marks on the current stream of a GPU, or on the host's clock."""

    def __init__(self, gpu: bool) -> None:
        self.gpu = gpu

    def mark(self) -> Any:
        """Marks a point in the work queued so far."""
        if not self.gpu:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, first: Any, second: Any) -> float:
        """Returns the seconds between two marks; waits for both."""
        if not self.gpu:
            return float(second - first)
        second.synchronize()
        return float(first.elapsed_time(second)) / 1e3


def synchronize(settings: Settings) -> None:
    """Waits for the GPU, if there is one."""
    if settings.is_gpu:
        import torch

        torch.cuda.synchronize()


def median(values: list[float]) -> float | None:
    """The median, or None without values."""
    return statistics.median(values) if values else None


@contextlib.contextmanager
def busy(limit: float) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns true until ``limit`` seconds have passed."""
    end = time.perf_counter() + limit
    yield lambda: time.perf_counter() < end
