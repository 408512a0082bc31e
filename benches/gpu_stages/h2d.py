"""Copies to the GPU: torch's own pinned memory as the ceiling, pageable memory, and the loader's page-locked memory."""

from __future__ import annotations

import time
from typing import Any

from common import Clock, Settings, busy, loader, median, need, numbers, stage

MIB = 1 << 20
ROW = 1 * MIB


def copies(sources: dict[str, Any], device: str, times: int) -> dict[str, float]:
    """Returns GB/s of copies of each source, by the median; the sources take turns, so that all meet the same machine."""
    import torch

    clock = Clock(True)
    target = torch.empty_like(next(iter(sources.values())), device=device)
    taken: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(times + 3):
        for name, source in sources.items():
            first = clock.mark()
            target.copy_(source.reshape(target.shape), non_blocking=True)
            taken[name].append(clock.between(first, clock.mark()))
    return {name: target.nbytes / (median(seconds[3:]) or 1.0) / 1e9 for name, seconds in taken.items()}


def run(settings: Settings) -> dict[str, Any]:
    """Measures GB/s by size, and the ratio of the loader's memory to the ceiling."""
    import torch

    need(settings.is_gpu, "a bus to a GPU is measured")
    table: dict[str, dict[str, float | None]] = {}
    with busy(settings.seconds * 0.8) as more:
        for size in (1, 4, 16, 64, 256):
            if not more():
                break
            nbytes = size * MIB
            data = numbers(settings, 512, ROW, "uint8")
            ours = loader(settings, data, size, columns="array", device="pinned")
            batch = next(iter(ours))["array__values"]
            pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            row: dict[str, float | None] = dict(
                copies({"torch pinned": pinned, "bowstring pinned": batch}, settings.device, 40)
            )
            row |= copies({"pageable": torch.empty(nbytes, dtype=torch.uint8).fill_(1)}, settings.device, 5)
            del pinned, batch
            ours.close()
            # Through the ring: bounded by decoding as well, so not the ceiling of the bus.
            ring = loader(settings, data, size, columns="array")
            for _ in ring:  # warm-up: allocates the slots, fills the page cache
                pass
            torch.cuda.synchronize()
            began, seen = time.perf_counter(), 0
            for batch in ring:
                seen += batch["array__values"].nbytes
            torch.cuda.synchronize()
            row["loader end to end"] = seen / (time.perf_counter() - began) / 1e9
            del batch
            ring.close()
            table[f"{size} MiB"] = row
    large = [row for name, row in table.items() if int(name.split()[0]) >= 16]
    ratios = [(row["bowstring pinned"] or 0) / (row["torch pinned"] or 1) for row in large]
    return {"ok": bool(ratios) and min(ratios) >= 0.97, "gb_per_s": table, "ratios_at_16_mib_and_more": ratios}


if __name__ == "__main__":
    stage(run)
