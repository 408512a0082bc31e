"""JPEG decoding on the GPU by torchvision's nvJPEG: what a decoder there could give. bowstring does not use it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common import Settings, busy, need, stage, synchronize


def run(settings: Settings) -> dict[str, Any]:
    """Photos a second by batch size and threads."""
    need(settings.is_gpu, "nvJPEG needs a GPU")
    try:
        import pyarrow.parquet
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError as error:
        need(False, f"{error}")
    cells = pyarrow.parquet.read_table(settings.photos, columns=["image"])["image"].to_pylist()
    photos = [torch.frombuffer(bytearray(cell), dtype=torch.uint8) for cell in cells]
    rates: dict[str, float | str] = {}
    for batch in (64, 256):
        group = (photos * (batch // len(photos) + 1))[:batch]
        for threads in (1, 2, 4):

            def decode(_: int, group: Any = group) -> int:
                decode_jpeg(group, mode=ImageReadMode.RGB, device=settings.device)
                return len(group)

            try:
                decode(0)
                synchronize(settings)
                began, seen = time.perf_counter(), 0
                with ThreadPoolExecutor(threads) as pool, busy(settings.seconds / 8) as more:
                    while more():
                        seen += sum(pool.map(decode, range(threads)))
                synchronize(settings)
                rates[f"batch {batch}, {threads} threads"] = seen / (time.perf_counter() - began)
            except RuntimeError as error:
                rates[f"batch {batch}, {threads} threads"] = str(error)[:200]
    return {"ok": any(isinstance(rate, float) for rate in rates.values()), "photos_per_s": rates}


if __name__ == "__main__":
    stage(run)
