"""JPEG decoding by nvJPEG: ``decoder="nvjpeg"`` against the CPU, in speed and in pixels, and torchvision's nvJPEG alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import bowstring
from common import Settings, busy, forever, loader, median, need, photos, stage, synchronize

# Tolerated mean difference of a photo's bytes from the CPU's: in general, and where the CPU decodes at 1/2 to 1/8 (docs/gpu.md).
TOLERANCE, TOLERANCE_OF_DRAFTS = 1.5, 4.0


def opened(settings: Settings, image: bowstring.Image, batch: int, **options: Any) -> Any:
    """Opens a loader of the photos alone."""
    folder = photos(settings, settings.pick(100, 1))
    return loader(settings, folder, batch, columns="image", images={"image": image}, **options)


def difference(settings: Settings, image: bowstring.Image) -> float:
    """Returns the greatest mean difference of a photo."""
    import torch

    pair = [opened(settings, replace(image, decoder=decoder), 20) for decoder in ("cpu", "nvjpeg")]
    most = 0.0
    for (one, other), _ in zip(zip(*pair, strict=True), range(2), strict=False):
        differ = (one["image"].to(torch.int16) - other["image"].to(torch.int16)).abs()
        most = max(most, float(differ.float().mean(dim=(1, 2, 3)).max()))
    for each in pair:
        each.close()
    return most


def rate(settings: Settings, image: bowstring.Image, seconds: float) -> tuple[float, dict[str, Any]]:
    """Measures photos a second; returns them with the loader's device counters."""
    batches = opened(settings, image, settings.pick(256, 8), shuffle=True)
    seen, began = 0, None
    with busy(seconds) as more:
        for batch in forever(batches):
            if began is None:
                synchronize(settings)
                began = time.perf_counter()  # the first batch is the warm-up
            else:
                seen += len(batch["image"])
            if seen and not more():
                break
    synchronize(settings)
    found = seen / (time.perf_counter() - began) if began else 0.0
    counted = batches.stats()["device"]
    batches.close()
    return found, counted


def ours(settings: Settings) -> dict[str, Any]:
    """Measures bowstring's decoding, on the CPU and by nvJPEG."""
    pixels = bowstring.Image(settings.pick(224, 48), crop="random_resized", flip=True, draft=False)
    try:
        differ = difference(settings, pixels)
    except bowstring.DeviceError as error:
        need("nvJPEG was not found" not in str(error), str(error))
        raise
    drafts = difference(settings, replace(pixels, draft=True))
    training = replace(pixels, draft=True, dtype="bfloat16", normalize="imagenet")
    rates: dict[str, list[float]] = {"cpu": [], "nvjpeg": []}
    refused, by = 0, None
    # In a palindromic order, so that changes of the machine affect both alike.
    for decoder in ("cpu", "nvjpeg", "nvjpeg", "cpu"):
        found, counted = rate(settings, replace(training, decoder=decoder), settings.seconds / 10)
        rates[decoder].append(found)
        refused, by = refused + counted["refused"], counted["decoder"] or by
    return {
        "ok": differ <= TOLERANCE and drafts <= TOLERANCE_OF_DRAFTS and refused == 0,
        "decoded_by": by,
        "differ": differ,
        "differ_from_drafts": drafts,
        "refused": refused,
        "photos_per_s": {decoder: median(found) for decoder, found in rates.items()},
    }


def torchvisions(settings: Settings) -> dict[str, Any]:
    """Measures torchvision's decoder alone, by batch size and threads: whole images, neither cropped nor resized."""
    if not settings.is_gpu:
        return {"skipped": "torch sees no GPU"}
    try:
        import pyarrow.parquet
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError as error:
        return {"skipped": str(error)}
    cells = pyarrow.parquet.read_table(settings.photos, columns=["image"])["image"].to_pylist()
    encoded = [torch.frombuffer(bytearray(cell), dtype=torch.uint8) for cell in cells]
    rates: dict[str, float | str] = {}
    for batch in (64, 256):
        group = (encoded * (batch // len(encoded) + 1))[:batch]
        for threads in (1, 4):

            def decode(_: int, group: Any = group) -> int:
                decode_jpeg(group, mode=ImageReadMode.RGB, device=settings.device)
                return len(group)

            try:
                decode(0)
                synchronize(settings)
                began, seen = time.perf_counter(), 0
                with ThreadPoolExecutor(threads) as pool, busy(settings.seconds / 16) as more:
                    while more():
                        seen += sum(pool.map(decode, range(threads)))
                synchronize(settings)
                rates[f"batch {batch}, {threads} threads"] = seen / (time.perf_counter() - began)
            except RuntimeError as error:
                rates[f"batch {batch}, {threads} threads"] = str(error)[:200]
    return {"photos_per_s": rates}


def run(settings: Settings) -> dict[str, Any]:
    """Measures both, one after the other."""
    need(settings.device.startswith("cuda"), "nvJPEG needs a GPU")
    return {**ours(settings), "torchvision": torchvisions(settings)}


if __name__ == "__main__":
    stage(run)
