"""Large plain batches by `prefetch`: GB/s, CPU seconds and page faults, to find how far ahead pays and what it costs."""

from __future__ import annotations

import resource
import time
from typing import Any

from common import Settings, busy, forever, loader, numbers, stage, synchronize

MIB = 1 << 20


def run(settings: Settings) -> dict[str, Any]:
    """Measures batches of 64 MiB of float32 by place and `prefetch`."""
    data = numbers(settings, settings.pick(1024, 8), MIB // 4, "float32")
    size = settings.pick(64, 1)
    places = ("cpu", "pinned", settings.device) if settings.is_gpu else (settings.device,)
    cases = [(place, ahead) for ahead in settings.pick((1, 2, 4, 8, 16, 32), (1, 4)) for place in places]
    found: dict[str, Any] = {}
    for place, ahead in cases:
        source = loader(settings, data, size, columns="array", device=place, prefetch=ahead)
        batches, seen = forever(source), 0
        for _ in range(settings.pick(ahead + 16, 1)):
            batch = next(batches)
        synchronize(settings)
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        with busy(settings.seconds / (len(cases) + 3)) as more:
            while more() or not seen:
                batch = next(batches)
                if place not in ("cpu", "pinned"):
                    batch["array__values"].sum()
                seen += batch["array__values"].nbytes
        synchronize(settings)
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        gigabytes = seen / 1e9
        found[f"{place}, prefetch {ahead}"] = {
            "gb_per_s": round(gigabytes / took, 2),
            "user_s_per_gb": round((after.ru_utime - before.ru_utime) / gigabytes, 3),
            "system_s_per_gb": round((after.ru_stime - before.ru_stime) / gigabytes, 3),
            "faults_per_gb": round((after.ru_minflt - before.ru_minflt) / gigabytes),
            "bottleneck": source.stats()["bottleneck"] or "nothing",
        }
        del batch
        source.close()
    return {"ok": all(one["gb_per_s"] > 0 for one in found.values()), "by_prefetch": found}


if __name__ == "__main__":
    stage(run)
