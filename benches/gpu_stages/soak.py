"""A run at full speed with restarted epochs, loops left early and errors in the consumer: memory, files and threads stay flat."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from statistics import median
from typing import Any

import bowstring
from common import Settings, busy, loader, photos, stage, synchronize

MIB = 1 << 20


def sizes(settings: Settings) -> dict[str, int]:
    """Returns the resources that the process holds now, without free memory that the allocator keeps for each thread."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    found = {
        "rss": int(status["VmRSS"].split()[0]) << 10,
        "threads": int(status["Threads"]),
        "files": len(os.listdir("/proc/self/fd")),
    }
    if settings.is_gpu:
        import torch

        free, total = torch.cuda.mem_get_info()
        found["gpu"] = total - free
    return found


def run(settings: Settings) -> dict[str, Any]:
    """Records the resources of the process over time, and their growth."""
    folder = photos(settings, settings.pick(20, 1))
    image = bowstring.Image(settings.pick(224, 16), layout="chw", dtype="bfloat16", normalize="imagenet")
    series: list[dict[str, int]] = []
    seen = rounds = 0
    with busy(settings.seconds * 0.8) as more:
        while more() or rounds < 4:
            source = loader(settings, folder, 16, columns="image", images={"image": image}, shuffle=True)
            for epoch in range(3):
                source.set_epoch(epoch)
                with contextlib.suppress(ZeroDivisionError):
                    for number, batch in enumerate(source):
                        seen += 1
                        if number == 5 and epoch == 0:
                            break
                        if number == 7 and epoch == 1:
                            raise ZeroDivisionError(len(batch))
            source.close()
            rounds += 1
            synchronize(settings)
            series.append(sizes(settings))
    # The first quarter is the warm-up of pools and caches; single values vary with threads that are just ending.
    quarter = max(len(series) // 4, 1)
    early, late = series[quarter : 2 * quarter] or series, series[-quarter:]
    growth = {name: median([one[name] for one in late]) - median([one[name] for one in early]) for name in late[0]}
    allowed = {"rss": 64 * MIB, "gpu": 64 * MIB, "threads": 6, "files": 8}
    good = all(growth[name] <= allowed[name] for name in growth)
    return {"ok": good, "batches": seen, "rounds": rounds, "growth": growth, "first": series[0], "last": series[-1]}


if __name__ == "__main__":
    stage(run)
