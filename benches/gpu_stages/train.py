"""ResNet-50 in bf16, channels last, fed in one of several ways: the environment names it.

``GPU_FEED`` is ``synthetic`` (resident input: the ceiling), ``ours`` (u8 over the bus, normalised on the GPU), ``ours_host``
(normalised on the CPU, f32 over the bus) or ``torch`` (its DataLoader with workers and pinned memory, on the same bytes).
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterator
from typing import Any

import bowstring
from common import IMAGENET, Clock, Settings, busy, forever, loader, median, need, photos, stage, synchronize


def model(settings: Settings) -> Any:
    """ResNet-50, or a small network where torchvision is missing or nothing is measured."""
    import torch

    try:
        if settings.dry:
            raise ImportError
        from torchvision.models import resnet50

        net = resnet50(num_classes=1000)
    except ImportError:
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 7, 4),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(8, 1000),
        )
    device = settings.device if settings.is_gpu else "cpu"
    return net.to(device, memory_format=torch.channels_last)


def synthetic(settings: Settings, batch: int, size: int) -> Iterator[Any]:
    """Repeats one resident batch."""
    import torch

    device = settings.device if settings.is_gpu else "cpu"
    image = (
        torch.rand(batch, 3, size, size, device=device).to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
    )
    while True:
        yield image


def ours(settings: Settings, batch: int, size: int, on_host: bool) -> Iterator[Any]:
    """The batches of bowstring, opened as users do."""
    import torch

    dtype = "float32" if on_host else "bfloat16"
    image = bowstring.Image(size, crop="random_resized", flip=True, layout="chw", dtype=dtype, normalize="imagenet")
    folder = photos(settings, settings.pick(500, 1))
    given = Settings(**{**vars(settings), "device": "cpu"}) if on_host else settings
    source = loader(given, folder, batch, columns="image", images={"image": image}, shuffle=True)
    for found in forever(source):
        value = found["image"]
        if on_host and settings.is_gpu:
            value = value.to(settings.device)
        yield value.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)


def torch_loader(settings: Settings, batch: int, size: int) -> tuple[Iterator[Any], str]:
    """Opens torch's DataLoader over the same JPEGs in memory; returns it with the name of its decoder."""
    import torch

    try:
        import pyarrow.parquet
        from torchvision.transforms import v2
    except ImportError as error:
        need(False, f"{error}")
    cells = pyarrow.parquet.read_table(settings.photos, columns=["image"])["image"].to_pylist()
    try:
        from torchvision.io import ImageReadMode, decode_jpeg

        def decode(cell: bytes) -> Any:
            return decode_jpeg(torch.frombuffer(bytearray(cell), dtype=torch.uint8), mode=ImageReadMode.RGB)

        decode(cells[0])
        decoder = "torchvision.io.decode_jpeg"
    except (ImportError, RuntimeError):
        from PIL import Image

        def decode(cell: bytes) -> Any:
            return v2.functional.pil_to_tensor(Image.open(io.BytesIO(cell)).convert("RGB"))

        decoder = "PIL"
    change = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])

    class Photos(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 20_000

        def __getitem__(self, index: int) -> Any:
            return change(decode(cells[index % len(cells)]))

    device = settings.device if settings.is_gpu else "cpu"
    mean, std = (torch.tensor(values, device=device).reshape(1, 3, 1, 1) * 255 for values in IMAGENET)
    workers = settings.pick(min(16, len(os.sched_getaffinity(0))), 1)
    source = torch.utils.data.DataLoader(
        Photos(),
        batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=settings.is_gpu,
        persistent_workers=True,
        drop_last=True,
    )

    def batches() -> Iterator[Any]:
        for found in forever(source):
            value = found.to(device, non_blocking=True)
            yield ((value - mean) / std).to(torch.bfloat16).contiguous(memory_format=torch.channels_last)

    return batches(), f"{decoder}, {workers} workers"


def run(settings: Settings) -> dict[str, Any]:
    """Measures the median step, photos a second, and the fraction of time that the GPU waited between steps."""
    import torch

    feed = os.environ.get("GPU_FEED", "synthetic")
    batch, size = settings.pick((256, 224), (8, 32))
    note = ""
    if feed == "synthetic":
        source = synthetic(settings, batch, size)
    elif feed in ("ours", "ours_host"):
        source = ours(settings, batch, size, feed == "ours_host")
    else:
        source, note = torch_loader(settings, batch, size)
    net, clock = model(settings), Clock(settings.is_gpu)
    device = settings.device if settings.is_gpu else "cpu"
    rule = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    wanted = torch.randint(0, 1000, (batch,), device=device)
    warm, most = settings.pick((40, 400), (1, 3))
    marks: list[tuple[Any, Any]] = []
    with busy(settings.seconds * 0.7) as more:
        for step in range(warm + most):
            image = next(source)
            first = clock.mark()
            with torch.autocast(torch.device(device).type, torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(net(image), wanted)
            loss.backward()
            rule.step()
            rule.zero_grad(set_to_none=True)
            del image
            if step >= warm:
                marks.append((first, clock.mark()))
            if step > warm + 2 and not more():
                break
        synchronize(settings)
    steps = [clock.between(*pair) for pair in marks]
    gaps = [clock.between(one[1], other[0]) for one, other in itertools.pairwise(marks)]
    total = clock.between(marks[0][0], marks[-1][1])
    return {
        "ok": len(steps) > 1,
        "feed": feed,
        "note": note,
        "model": type(net).__name__,
        "steps": len(steps),
        "median_step_s": median(steps),
        "photos_per_s": batch * len(steps) / total,
        "stalled": sum(gaps) / total,
    }


if __name__ == "__main__":
    stage(run)
