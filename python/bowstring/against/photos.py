"""Images of a batch by Pillow, in its fastest way: JPEG at a fraction of its size where that suffices, crop and resize in one."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from bowstring.errors import ConfigError

__all__ = ["Photos"]

_DEFAULTS = {
    "layout": "chw",
    "dtype": "uint8",
    "channels": 3,
    "flip": False,
    "normalize": None,
    "crop": "none",
    "size": None,
}
_AREA, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


class Photos:
    """One column of images, by the options that bowstring gets for it."""

    def __init__(self, name: str, options: Any) -> None:
        given = dict(options) if isinstance(options, Mapping) else {"size": options}
        crop = given.get("crop", "none")
        drawn = crop.get("random_resized") if isinstance(crop, Mapping) else {} if crop == "random_resized" else None
        known = set(given) <= set(_DEFAULTS) and given.get("channels", 3) == 3 and given.get("size") is not None
        known = known and given.get("dtype", "uint8") in ("uint8", "float32")
        if not known or (drawn is None and crop not in ("none", "center")):
            raise ConfigError(
                f"option images: the comparison knows size, crop, flip, normalize, layout and dtype (uint8, float32), "
                f'such as --images \'{{"{name}": {{"size": 224}}}}\'; measure other options of {name} without --against'
            )
        size: Any = given["size"]
        self.height: int
        self.width: int
        self.height, self.width = (size, size) if isinstance(size, int) else size
        self.center, self.drawn = crop == "center", drawn
        self.flip = float(given.get("flip", False)) / (2 if given.get("flip") is True else 1)
        self.float = given.get("dtype") == "float32"
        self.first = given.get("layout", "chw") == "chw"
        normal = given.get("normalize")
        if normal == "imagenet":
            normal = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
        self.normal = normal

    def decoded(self, cells: Any) -> torch.Tensor:
        """The batch of the encoded images in an Arrow array."""
        from PIL import Image

        pixels = np.empty((len(cells), self.height, self.width, 3), np.uint8)
        for at, cell in enumerate(cells):
            with Image.open(io.BytesIO(cell.as_buffer())) as image:
                width, height = image.size
                left, top, right, bottom = self.box(width, height)
                # libjpeg then decodes at 1/2, 1/4 or 1/8, if the part that is taken remains as large as the result.
                part = max(self.width / (right - left), self.height / (bottom - top))
                image.draft("RGB", (math.ceil(width * part), math.ceil(height * part)))
                scaled = image.size[0] / width, image.size[1] / height
                box = (left * scaled[0], top * scaled[1], right * scaled[0], bottom * scaled[1])
                rgb = image if image.mode == "RGB" else image.convert("RGB")
                rgb = rgb.resize((self.width, self.height), Image.Resampling.BILINEAR, box=box)
            if self.flip and random.random() < self.flip:
                rgb = rgb.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            pixels[at] = np.asarray(rgb)
        batch = torch.from_numpy(pixels)
        if self.first:
            batch = batch.permute(0, 3, 1, 2).contiguous()
        if not self.float:
            return batch
        batch = batch.to(torch.float32).div_(255)
        if self.normal is not None:
            shape = (1, 3, 1, 1) if self.first else (1, 1, 1, 3)
            batch = batch.sub_(torch.tensor(self.normal["mean"]).view(shape)).div_(
                torch.tensor(self.normal["std"]).view(shape)
            )
        return batch

    def box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the part that is taken: all of it, the largest centred one, or a random one."""
        if self.drawn is not None:
            low, high = (math.log(side) for side in self.drawn.get("ratio", _RATIO))
            for _ in range(10):
                area = width * height * random.uniform(*self.drawn.get("scale", _AREA))
                ratio = math.exp(random.uniform(low, high))
                w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
                if 0 < w <= width and 0 < h <= height:
                    left, top = random.randint(0, width - w), random.randint(0, height - h)
                    return left, top, left + w, top + h
        if not self.center and self.drawn is None:
            return 0, 0, width, height
        scale = min(width / self.width, height / self.height)
        side = self.width * scale / 2, self.height * scale / 2
        return width / 2 - side[0], height / 2 - side[1], width / 2 + side[0], height / 2 + side[1]
