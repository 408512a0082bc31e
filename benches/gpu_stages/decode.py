"""The loader alone, to the host: photos a second by number of threads."""

from __future__ import annotations

import os
import time
from typing import Any

import bowstring
from common import Settings, loader, photos, stage


def run(settings: Settings) -> dict[str, Any]:
    """Measures photos a second, and their ratio to linear scaling from one thread."""
    folder = photos(settings, settings.pick(500, 1))
    image = bowstring.Image(224, crop="random_resized", flip=True)
    counts = [n for n in (1, 2, 4, 8, 16, 32) if n <= settings.pick(len(os.sched_getaffinity(0)), 1)]
    rates: dict[int, float] = {}
    cpu = Settings(**{**vars(settings), "device": "cpu"})
    for threads in counts:
        ours = loader(
            cpu, folder, 64 if not settings.dry else 8, columns="image", images={"image": image}, threads=threads
        )
        seen, began = 0, None
        limit = time.perf_counter() + settings.seconds / (len(counts) + 1)
        for batch in ours:
            if began is None:
                began = time.perf_counter()  # the first batch is the warm-up
                continue
            seen += len(batch["image"])
            if time.perf_counter() > limit:
                break
        rates[threads] = seen / (time.perf_counter() - began) if began and seen else 0.0
        ours.close()
    most = max(rates)
    part = rates[most] / (most * rates[1]) if rates[1] else None
    return {"ok": rates[most] > 0, "photos_per_s": rates, "part_of_perfect_scaling": part}


if __name__ == "__main__":
    stage(run)
