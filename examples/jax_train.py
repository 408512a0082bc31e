"""Trains a small network in JAX on the 40 shipped photos over two devices, stops within an epoch, and resumes.

    python examples/jax_train.py [--epochs N]

Each batch is one global array, split over the devices by its rows; with more processes (`jax.distributed.initialize`) each reads
its own share, and nothing else here changes. The resumed run must end with the same weights, to the bit.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
from bowstring import Image
from bowstring.jax import Loader
from jax.sharding import NamedSharding, PartitionSpec

PHOTOS = __file__.replace("examples/jax_train.py", "fixtures/imagenet40.parquet")
SIDE = 32


def open_loader(mesh: Any) -> Loader:
    image = Image(SIDE, crop="random_resized", scale=(0.35, 1.0), flip=True, dtype="float32", normalize="imagenet")
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    columns = {"columns": ["image", "label"], "images": {"image": image}}
    return Loader(PHOTOS, global_batch_size=8, seed=7, sharding=sharding, **columns)


def new_weights() -> dict[str, Any]:
    first, second = jax.random.split(jax.random.key(7))
    inputs = 3 * SIDE * SIDE
    return {
        "hidden": jax.random.normal(first, (inputs, 64)) / inputs**0.5,
        "output": jax.random.normal(second, (64, 1000)) / 8,
    }


def loss_of(weights: dict[str, Any], batch: dict[str, Any]) -> Any:
    pixels = batch["image"].reshape(len(batch["image"]), -1)
    scores = jax.nn.log_softmax(jax.nn.relu(pixels @ weights["hidden"]) @ weights["output"])
    hit = jax.nn.one_hot(batch["label"], 1000)
    return -(scores * hit * batch["_mask"][:, None]).sum() / batch["_mask"].sum()


@jax.jit
def step(weights: dict[str, Any], batch: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    loss, slope = jax.value_and_grad(loss_of)(weights, batch)
    return jax.tree.map(lambda weight, by: weight - 0.05 * by, weights, slope), loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    epochs = parser.parse_args().epochs
    started = time.perf_counter()
    jax.config.update("jax_num_cpu_devices", 2)  # two devices on a machine with only a CPU
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=auto)

    loader, weights = open_loader(mesh), new_weights()
    print(f"{len(loader)} steps per epoch on {jax.device_count()} devices")
    losses, checkpoint = [], None
    for epoch in range(epochs):
        for batch in loader:
            weights, loss = step(weights, batch)
            losses.append(float(loss))
            if (epoch, loader.step) == (epochs // 2, 2):
                # With Orbax: JsonSave(loader.get_state()), or the loader itself as a checkpointable.
                checkpoint = (weights, loader.get_state())
                print(f"a checkpoint after step {loader.step} of epoch {epoch}")
    first, last = (sum(part) / len(loader) for part in (losses[: len(loader)], losses[-len(loader) :]))
    print(f"loss {first:.3f} in the first epoch, {last:.3f} in the last")
    assert last < first, "training did not reduce the loss"

    assert checkpoint is not None
    again, state = checkpoint
    loader = open_loader(mesh)
    loader.set_state(state)
    for _ in range(loader.epoch, epochs):
        for batch in loader:
            again, _ = step(again, batch)
    same = jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), weights, again))
    assert same, "other weights"
    print(f"resumed, and the same weights to the bit; {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
