"""Large plain batches with next to no work on the GPU: bytes a second from Parquet to the GPU, and where they are lost.

Beside the GPU's rates stand those to page-locked and to ordinary host memory, the CPU seconds that each GB took, and the
rate of reading the same files into memory.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import Settings, busy, forever, loader, numbers, stage, synchronize

MIB = 1 << 20


def reading(folder: Path, threads: int) -> float:
    """Returns GB/s of reading the files of ``folder`` from the page cache, each thread into memory of its own."""
    files = sorted(folder.glob("*.parquet"))
    shares = [files[number::threads] for number in range(min(threads, len(files)))]

    def read(share: list[Path], memory: bytearray) -> int:
        seen = 0
        for file in share:
            with file.open("rb", buffering=0) as source:
                while got := source.readinto(memory):
                    seen += got
        return seen

    memories = [bytearray(8 * MIB) for _ in shares]
    with ThreadPoolExecutor(len(shares)) as pool:
        sum(pool.map(read, shares, memories))  # warm-up
        began = time.perf_counter()
        seen = sum(pool.map(read, shares, memories))
    return seen / (time.perf_counter() - began) / 1e9


def run(settings: Settings) -> dict[str, Any]:
    """Measures GB/s by element type, batch size and place."""
    rates: dict[str, float] = {}
    cpu_seconds: dict[str, tuple[float, float]] = {}
    bottlenecks: dict[str, str] = {}
    files: dict[str, float] = {}
    sizes = settings.pick((64, 256), (1,))
    places = ("cpu", "pinned", settings.device) if settings.is_gpu else (settings.device,)
    cases = [
        (dtype, width, size, place)
        for dtype, width in (("float32", MIB // 4), ("int64", MIB // 8))
        for size in sizes
        for place in (places if dtype == "float32" else places[-1:])
    ]
    for dtype, width, size, place in cases:
        data = numbers(settings, settings.pick(1024, 8), width, dtype)
        if not files:
            files = {f"{threads} threads": reading(data, threads) for threads in (1, 4)}
        name = f"{dtype}, {size} MiB, {place}"
        source = loader(settings, data, size, columns="array", device=place)
        batches, seen = forever(source), 0
        for _ in range(settings.pick(4, 1)):
            batch = next(batches)
        synchronize(settings)
        began, before = time.perf_counter(), os.times()
        with busy(settings.seconds / (len(cases) + 2)) as more:
            while more():
                batch = next(batches)
                if place not in ("cpu", "pinned"):
                    batch["array__values"].sum()
                seen += batch["array__values"].nbytes
        synchronize(settings)
        after = os.times()
        rates[name] = seen / (time.perf_counter() - began) / 1e9
        if seen:
            cpu_seconds[name] = tuple(  # type: ignore[assignment]
                round((late - early) / seen * 1e9, 3) for early, late in zip(before[:2], after[:2], strict=True)
            )
        bottlenecks[name] = source.stats()["bottleneck"] or "nothing"
        del batch
        source.close()
    return {
        "ok": min(rates.values()) > 0,
        "gb_per_s": rates,
        "user_and_system_seconds_per_gb": cpu_seconds,
        "bottlenecks": bottlenecks,
        "reading_files_gb_per_s": files,
    }


if __name__ == "__main__":
    stage(run)
