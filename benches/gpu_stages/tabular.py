"""Large plain batches with next to no work on the GPU: bytes a second from Parquet to the GPU."""

from __future__ import annotations

import time
from typing import Any

from common import Settings, busy, forever, loader, numbers, stage, synchronize

MIB = 1 << 20


def run(settings: Settings) -> dict[str, Any]:
    """Measures GB/s by batch size."""
    rates: dict[str, float] = {}
    sizes = settings.pick((64, 128, 256), (1,))
    for dtype, width in (("float32", MIB // 4), ("int64", MIB // 8)):
        data = numbers(settings, settings.pick(1024, 8), width, dtype)
        for size in sizes:
            source = loader(settings, data, size, columns="array")
            batches, seen = forever(source), 0
            for _ in range(settings.pick(4, 1)):
                batch = next(batches)
            synchronize(settings)
            began = time.perf_counter()
            with busy(settings.seconds / (2 * len(sizes) + 1)) as more:
                while more():
                    batch = next(batches)
                    batch["array__values"].sum()
                    seen += batch["array__values"].nbytes
            del batch
            synchronize(settings)
            rates[f"{dtype}, {size} MiB"] = seen / (time.perf_counter() - began) / 1e9
            source.close()
    return {"ok": min(rates.values()) > 0, "gb_per_s": rates}


if __name__ == "__main__":
    stage(run)
