"""JAX's and TensorFlow's loaders on the GPU: batches equal the CPU's bit for bit, and memory is reused only after its readers.

``GPU_FRAMEWORK`` is ``jax`` or ``tensorflow``. Without the framework or a GPU for it, the stage is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import bowstring
import numpy as np
from common import Settings, busy, forever, need, numbers, photos, stage

ROWS, WIDTH, BATCH = 512, 4096, 16


def jax_tools(settings: Settings) -> tuple[Any, Callable[[Any], Any], Callable[[Any, int], Any]]:
    """Returns the loader, a copy to a host array, and a slow check of a batch of known rows with a lazy result."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax
    except ImportError:
        need(False, "JAX is not installed")
    import bowstring.jax
    import jax.numpy as jnp

    if settings.device != "cpu":
        try:
            jax.local_devices(backend="cuda")
        except RuntimeError:
            need(False, "JAX has no GPU here: its package for CUDA is not installed")

    @jax.jit
    def wrong(array: Any, number: Any) -> Any:
        slow = jax.lax.fori_loop(0, 200, lambda _, x: jnp.sin(x) + 1e-9, jnp.ones((512, 512)))
        wanted = number * BATCH + jnp.arange(BATCH)[:, None]
        return (array.reshape(BATCH, WIDTH) != wanted).any() | (slow.sum() < 0)

    return bowstring.jax.Loader, np.asarray, wrong


def tensorflow_tools(settings: Settings) -> tuple[Any, Callable[[Any], Any], Callable[[Any, int], Any]]:
    """The same for TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import tensorflow as tf
    except ImportError:
        need(False, "TensorFlow is not installed")
    import bowstring.tensorflow

    gpus = tf.config.list_physical_devices("GPU")
    need(settings.device == "cpu" or gpus, "TensorFlow has no GPU here: its package for CUDA is not installed")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)

    def wrong(array: Any, number: int) -> Any:
        slow = tf.ones((512, 512))
        for _ in range(50):
            slow = tf.sin(slow) + 1e-9
        wanted = tf.cast(number * BATCH + tf.range(BATCH)[:, None], array.dtype)
        return tf.reduce_any(tf.reshape(array, (BATCH, WIDTH)) != wanted) | (tf.reduce_sum(slow) < 0)

    return bowstring.tensorflow.Loader, lambda array: array.numpy(), wrong


def run(settings: Settings) -> dict[str, Any]:
    """Counts compared and wrong batches, and those of the reuse stress by fence mode."""
    framework = os.environ.get("GPU_FRAMEWORK", "jax")
    loader, on_host, check = {"jax": jax_tools, "tensorflow": tensorflow_tools}[framework](settings)
    given = {"rank": 0, "world_size": 1, "tail": "drop", "shuffle": False}
    there = {} if settings.device == "cpu" else {"device": settings.device, "device_slots": 3}
    compared = wrong = 0
    for dtype in ("uint8", "int32", "float16", "float32"):
        data = str(numbers(settings, settings.pick(128, 24), 37, dtype, random=True))
        pair = [loader(data, batch_size=7, columns="array", **given, **place) for place in (there, {})]
        for found, expected in zip(*pair, strict=True):
            compared += 1
            wrong += any(on_host(found[name]).tobytes() != on_host(expected[name]).tobytes() for name in expected)
    for dtype in ("uint8", "bfloat16", "float32"):
        image = bowstring.Image(settings.pick(97, 9), dtype=dtype, normalize=None if dtype == "uint8" else "imagenet")
        options: dict[str, Any] = {
            **given,
            "batch_size": 16,
            "columns": "image",
            "images": {"image": image},
            "tail": "pad",
        }
        folder = str(photos(settings, 1))
        for found, expected in zip(loader(folder, **options, **there), loader(folder, **options), strict=True):
            compared += 1
            wrong += any(on_host(found[name]).tobytes() != on_host(expected[name]).tobytes() for name in expected)
    data = str(numbers(settings, ROWS, WIDTH, "int32"))
    reuse: dict[str, tuple[int, int]] = {}
    for mode in ("default", "context", "sync"):
        fence = {} if mode == "default" or settings.device == "cpu" else {"device_fence": mode}
        batches = loader(data, batch_size=BATCH, columns="array", **given, **there, **fence)
        source, results = forever(batches), []
        with busy(settings.seconds / 5) as more:
            while len(results) < settings.pick(600, 40) and (more() or len(results) < 8):
                batch = next(source)
                results.append(check(batch["array__values"], len(results) % (ROWS // BATCH)))
                # The only references are dropped while the framework may still read.
                del batch
        reuse[mode] = (len(results), sum(bool(result) for result in results))
        batches.close()
    good = compared > 0 and wrong == 0 and all(seen > 0 and bad == 0 for seen, bad in reuse.values())
    return {"ok": good, "framework": framework, "compared": compared, "wrong": wrong, "reuse_seen_and_wrong": reuse}


if __name__ == "__main__":
    stage(run)
