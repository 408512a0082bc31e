"""Memory is reused only after its readers: slow readers on side streams, batches dropped at once, in every fence mode.

A control reads on a stream that the loader was never given, which `device_fence="stream"` does not cover: it must go wrong.
"""

from __future__ import annotations

from typing import Any

import bowstring
from common import Settings, busy, forever, loader, numbers, stage, torch_has_cuda

ROWS, WIDTH, BATCH = 512, 4096, 16
SLOW = 3_000_000  # cycles, some 1.5 ms


def torch_wrong(settings: Settings, fence: str, count: int, more: Any, *, ungiven: bool = False) -> tuple[int, int]:
    """Counts batches and wrong ones, read by torch on two side streams in turn after a delay.

    With ``ungiven`` batches are taken on another stream than the one that reads them.
    """
    import torch

    gpu = settings.is_gpu
    device = settings.device if gpu else "cpu"
    options = {} if settings.device == "cpu" else {"device_slots": 3, "device_fence": fence}
    batches = loader(settings, numbers(settings, ROWS, WIDTH, "int64"), BATCH, columns="array", **options)
    streams = [torch.cuda.Stream() for _ in range(2)] if gpu else [None, None]
    wrong = torch.zeros(2, dtype=torch.int64, device=device)
    rows = torch.arange(ROWS, device=device).reshape(-1, BATCH, 1)
    synchronize = torch.cuda.synchronize if gpu else lambda: None
    synchronize()
    source, seen = forever(batches), 0
    while seen < count and (more() or seen < 8):
        side = seen % 2
        if ungiven:
            batch = next(source)
            streams[side].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(streams[side]):
            if not ungiven:
                batch = next(source)
            if gpu:
                torch.cuda._sleep(SLOW)
            wrong[side] += (batch["array__values"].reshape(BATCH, WIDTH) != rows[seen % len(rows)]).any()
        # The only references are dropped while the stream still sleeps.
        del batch
        seen += 1
    synchronize()
    batches.close()
    return seen, int(wrong.sum())


def jax_wrong(settings: Settings, fence: str, count: int, more: Any) -> tuple[int, int]:
    """The same through JAX, which names no stream of its own."""
    import jax
    import jax.numpy as jnp

    given = {"batch_size": BATCH, "columns": "array", "tail": "drop", "shuffle": False, "rank": 0, "world_size": 1}
    data = numbers(settings, ROWS, WIDTH, "int32")
    batches = bowstring.Loader(str(data), **given, device=settings.device, device_slots=3, device_fence=fence)
    steps = ROWS // BATCH

    @jax.jit
    def check(array: Any, number: Any) -> Any:
        slow = jax.lax.fori_loop(0, 200, lambda _, x: jnp.sin(x) + 1e-9, jnp.ones((512, 512)))
        wanted = number * BATCH + jnp.arange(BATCH)[:, None]
        return (array.reshape(BATCH, WIDTH) != wanted).any() | (slow.sum() < 0)

    source, results = forever(batches), []
    while len(results) < count and more():
        array = jax.dlpack.from_dlpack(next(source)["array__values"])
        results.append(check(array, len(results) % steps))
        del array
    wrong = sum(bool(result) for result in results)
    batches.close()
    return len(results), wrong


def run(settings: Settings) -> dict[str, Any]:
    """Counts wrong batches by framework and fence mode, and those of the control."""
    modes = ("stream", "context", "sync")
    for dtype in ("int64", "int32"):
        numbers(settings, ROWS, WIDTH, dtype)  # written before the clock starts
    count = settings.pick(2500, 40)
    result: dict[str, Any] = {}
    for mode in modes:
        with busy(settings.seconds / 6) as more:
            result[f"torch {mode}"] = torch_wrong(settings, mode, count, more)
    if torch_has_cuda() and settings.device != "cpu":
        for mode in modes:
            with busy(settings.seconds / 8) as more:
                try:
                    result[f"jax {mode}"] = jax_wrong(settings, mode, count // 4, more)
                except Exception as error:  # JAX is missing or has no GPU: the rest still counts
                    result[f"jax {mode}"] = f"{type(error).__name__}: {error}"[:300]
        with busy(settings.seconds / 10) as more:
            result["control: stream not given"] = torch_wrong(settings, "stream", 400, more, ungiven=True)
    counted = {name: pair for name, pair in result.items() if isinstance(pair, tuple) and "control" not in name}
    required = {name: pair for name, pair in counted.items() if name.startswith("torch")}
    control = result.get("control: stream not given")
    return {
        "ok": all(seen > 0 and wrong == 0 for seen, wrong in required.values()) and (control is None or control[1] > 0),
        "seen_and_wrong": result,
        "batches": sum(seen for seen, _ in counted.values()),
    }


if __name__ == "__main__":
    stage(run)
