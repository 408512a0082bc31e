"""Compares batches on the device with the CPU's bit for bit: every element type, padded lists, photos as normalised planes."""

from __future__ import annotations

from typing import Any

import bowstring
from common import Settings, busy, lists, loader, numbers, photos, stage

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


def bits(tensor: Any) -> Any:
    """Returns the bytes of a tensor, on the host."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def compare(found: Any, expected: Any, epochs: int, more: Any) -> tuple[int, int]:
    """Compares two loaders over the same data; returns the number of batches and of wrong ones."""
    import torch

    compared = wrong = 0
    for _ in range(epochs):
        for one, other in zip(found, expected, strict=True):
            if not more():
                return compared, wrong
            same = one.keys() == other.keys() and all(
                one[name].dtype == other[name].dtype
                and one[name].shape == other[name].shape
                and torch.equal(bits(one[name]), bits(other[name]))
                for name in other
                if isinstance(other[name], torch.Tensor)
            )
            compared, wrong = compared + 1, wrong + (not same)
    return compared, wrong


def run(settings: Settings) -> dict[str, Any]:
    """Counts compared and wrong batches, by case."""
    import torch  # noqa: F401 - loaded before the clock starts

    cases: dict[str, dict[str, int]] = {}
    cpu = Settings(**{**vars(settings), "device": "cpu"})
    with busy(settings.seconds) as more:
        for number, dtype in enumerate(DTYPES):
            # Odd widths: rows are not aligned to anything.
            data = numbers(settings, settings.pick(512, 24), 37 + 2 * number, dtype, random=True)
            options = {"columns": "array", "tail": "pad", "shuffle": True, "seed": number}
            for batch in settings.pick((1, 7, 64, 100), (1, 7)):
                pair = [loader(one, data, batch, **options) for one in (settings, cpu)]
                compared, wrong = compare(*pair, epochs=1, more=more)
                cases[f"{dtype}, batch {batch}"] = {"compared": compared, "wrong": wrong}
        # Lists within one block, of several blocks, and of many.
        for length in settings.pick((17, 32, 300, 5000), (17, 300)):
            data = lists(settings, settings.pick(256, 24), length + length // 8)
            for dtype in DTYPES:
                for cut in ("right", "left"):
                    padded = bowstring.Padded(length, fill=101, truncate=cut, left=cut == "left")
                    options = {"lists": padded, "cast": {"list": dtype}, "tail": "pad", "shuffle": True}
                    pair = [loader(one, data, settings.pick(48, 7), **options) for one in (settings, cpu)]
                    compared, wrong = compare(*pair, epochs=1, more=more)
                    cases[f"{dtype}, {cut} padded to {length}"] = {"compared": compared, "wrong": wrong}
        folder = photos(settings, settings.pick(3, 1))
        for size in settings.pick((32, 33, 224, (97, 131)), (8, 9)):
            for dtype in ("uint8", "float16", "bfloat16", "float32"):
                normalize = None if dtype == "uint8" else "imagenet"
                image = bowstring.Image(size, layout="chw", dtype=dtype, normalize=normalize)
                # 40 photos a file: the last batch is padded, with zeros on both sides.
                options = {"columns": "image", "images": {"image": image}, "tail": "pad", "shuffle": True}
                pair = [loader(one, folder, settings.pick(32, 16), **options) for one in (settings, cpu)]
                compared, wrong = compare(*pair, epochs=settings.pick(3, 1), more=more)
                cases[f"photos {size} {dtype}"] = {"compared": compared, "wrong": wrong}
    compared = sum(case["compared"] for case in cases.values())
    wrong = sum(case["wrong"] for case in cases.values())
    return {"ok": compared > 0 and wrong == 0, "compared": compared, "wrong": wrong, "cases": cases}


if __name__ == "__main__":
    stage(run)
