"""Writes src/cli/pictures.parquet, the data of `bowstring demo`: 40 pictures drawn by code. Needs Pillow, numpy and pyarrow.

    python scripts/pictures.py

They are photos to a decoder: JPEG of different sizes, with edges, gradients and noise, four of them grey. Nobody holds
rights in them.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

OUT = Path(__file__).resolve().parent.parent / "src" / "cli" / "pictures.parquet"
KINDS = ("rings", "stripes", "tiles", "hills", "clouds")
COUNT, PER_ROW_GROUP = 40, 8
Floats = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def height(kind: str, x: Floats, y: Floats, random: np.random.Generator) -> Floats:
    """What is drawn, as numbers from 0 to 1."""
    turn = random.uniform(0, np.pi)
    along, across = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    often = random.uniform(4, 10)
    if kind == "rings":
        return 0.5 + 0.5 * np.sin(often * 4 * np.hypot(x - random.uniform(), y - random.uniform()))
    if kind == "stripes":
        return (np.floor(along * often) % 2) * 0.8 + 0.1
    if kind == "tiles":
        return ((np.floor(along * often) + np.floor(across * often)) % 2) * 0.7 + 0.15
    if kind == "hills":
        waves = (np.sin(often * along * k + random.uniform(0, 6)) / k for k in (1, 2, 3, 5))
        return (y + 0.15 * sum(waves) > 0.5) * 0.6 + 0.4 * (1 - y)
    small = random.uniform(size=(6, 6))
    cloud = Image.fromarray((small * 255).astype(np.uint8)).resize(x.shape[::-1], Image.Resampling.BICUBIC)
    return np.asarray(cloud, np.float64) / 255


def picture(number: int) -> bytes:
    """One picture as JPEG."""
    random = np.random.default_rng(number)
    width, tall = (int(random.integers(256, 385)) for _ in range(2))
    y, x = np.mgrid[0:tall, 0:width] / max(tall, width)
    drawn = height(KINDS[number % len(KINDS)], x, y, random)[..., None]
    dark, light = random.uniform(0, 110, 3), random.uniform(130, 255, 3)
    pixels = dark + (light - dark) * drawn + random.normal(0, 2.5, (tall, width, 1))
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8), "RGB")
    if number % 10 == 9:
        image = image.convert("L")
    made = io.BytesIO()
    image.save(made, "JPEG", quality=75)
    return made.getvalue()


def main() -> None:
    numbers = range(COUNT)
    labels = pa.array([number % len(KINDS) for number in numbers], pa.int64())
    table = pa.table({"image": pa.array([picture(number) for number in numbers], pa.binary()), "label": labels})
    pq.write_table(table, OUT, row_group_size=PER_ROW_GROUP, compression="none", store_schema=False)
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
