"""Trains a small network on the 40 shipped photos, stops in the middle of an epoch, and resumes from the checkpoint.

    python examples/train_torch.py [--epochs N]

The loader's position is saved beside the weights. The second half does the same as a fresh process: a new loader, a new network,
`load_state_dict` on both. The batches that follow, and the weights at the end, are the same to the bit.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import tempfile
import time

import torch
from bowstring import Image
from bowstring.torch import DataLoader

PHOTOS = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "imagenet40.parquet"
SIDE = 64
MEAN_STD = "imagenet"


def open_loader(*, train: bool) -> DataLoader:
    if train:
        image = Image(SIDE, crop="random_resized", scale=(0.35, 1.0), flip=True, dtype="float32", normalize=MEAN_STD)
    else:
        image = Image(SIDE, crop="center", dtype="float32", normalize=MEAN_STD)
    return DataLoader(PHOTOS, batch_size=8, columns=["image", "label"], images={"image": image}, shuffle=train, seed=7)


class Net(torch.nn.Sequential):
    """Three convolutions, for 1000 classes as in ImageNet."""

    def __init__(self) -> None:
        def block(inputs: int, outputs: int) -> list[torch.nn.Module]:
            return [
                torch.nn.Conv2d(inputs, outputs, 3, padding=1),
                torch.nn.GroupNorm(4, outputs),
                torch.nn.ReLU(),
                torch.nn.MaxPool2d(2),
            ]

        layers = [*block(3, 16), *block(16, 32), *block(32, 64)]
        super().__init__(*layers, torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(1024, 1000))


class Run:
    """A network, its optimizer and its loader: the contents of a checkpoint."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=2e-3)
        self.loader = open_loader(train=True)

    def save(self, path: pathlib.Path) -> None:
        parts = {"net": self.net, "optimizer": self.optimizer, "data": self.loader}
        torch.save({name: part.state_dict() for name, part in parts.items()}, path)

    def load(self, path: pathlib.Path) -> None:
        checkpoint = torch.load(path)
        self.net.load_state_dict(checkpoint["net"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.loader.load_state_dict(checkpoint["data"])

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        loss = torch.nn.functional.cross_entropy(self.net(batch["image"]), batch["label"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train(self, epochs: int, checkpoint: tuple[int, int, pathlib.Path] | None = None) -> dict[tuple[int, int], str]:
        """Trains up to `epochs`; returns the digests of all batches by (epoch, step)."""
        digests = {}
        while (epoch := self.loader.epoch) < epochs:
            losses = []
            for batch in self.loader:
                losses.append(self.step(batch))
                digests[epoch, self.loader.step] = digest(batch)
                if checkpoint is not None and checkpoint[:2] == (epoch, self.loader.step):
                    self.save(checkpoint[2])
                    print(f"          checkpoint after step {self.loader.step} of epoch {epoch}")
            print(f"epoch {epoch:3}  loss {sum(losses) / len(losses):.3f}  ({len(losses)} steps)")
        return digests

    def evaluate(self) -> float:
        with torch.no_grad(), open_loader(train=False) as photos:
            losses = [torch.nn.functional.cross_entropy(self.net(batch["image"]), batch["label"]) for batch in photos]
        return torch.stack(losses).mean().item()


def digest(batch: dict[str, torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(batch[name].numpy().tobytes() for name in sorted(batch))).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    epochs = parser.parse_args().epochs
    stop_at = (epochs // 2, 2)
    started = time.perf_counter()

    first = Run()
    print(f"{first.loader.rows} photos, {len(first.loader)} steps per epoch")
    before = first.evaluate()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "checkpoint.pt"
        expected = first.train(epochs, (*stop_at, path))
        after = first.evaluate()
        print(f"loss on the photos: {before:.3f} before, {after:.3f} after {epochs} epochs")
        assert after < before, "training did not reduce the loss"

        print("a new network and a new loader go on from the checkpoint")
        second = Run()
        second.load(path)
        found = second.train(epochs)
    assert found == {place: text for place, text in expected.items() if place > stop_at}, "other batches"
    same = all(torch.equal(a, b) for a, b in zip(first.net.parameters(), second.net.parameters(), strict=True))
    assert same, "other weights"
    print(f"the same {len(found)} batches, the same weights, to the bit; {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
