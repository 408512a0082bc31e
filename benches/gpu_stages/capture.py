"""Captures and replays a CUDA graph while batches come and go: the capture is complete, and the data are right."""

from __future__ import annotations

import threading
from typing import Any

from common import Settings, busy, forever, loader, need, numbers, stage

ROWS, WIDTH, BATCH = 512, 1024, 16


def run(settings: Settings) -> dict[str, Any]:
    """Counts captures, wrong replays and wrong batches."""
    import torch

    need(settings.is_gpu, "CUDA graphs need a GPU")
    batches = loader(settings, numbers(settings, ROWS, WIDTH, "int64"), BATCH, columns="array", device_slots=4)
    source, static = forever(batches), torch.zeros(BATCH, WIDTH, dtype=torch.int64, device=settings.device)
    kept, stop, dropped = [], threading.Event(), [0]

    def drop() -> None:
        # Another thread drops batches while the graph is captured, as a garbage collector may.
        while not stop.is_set():
            if kept:
                kept.pop()
                dropped[0] += 1

    wrong = captures = seen = 0
    failures: list[str] = []
    thread = threading.Thread(target=drop)
    thread.start()
    try:
        with busy(settings.seconds * 0.8) as more:
            while captures < 50 and more():
                batch = next(source)
                first = seen % (ROWS // BATCH) * BATCH
                seen += 1
                static.copy_(batch["array__values"].reshape(BATCH, WIDTH))
                kept.append(batch)
                del batch
                graph = torch.cuda.CUDAGraph()
                torch.cuda.synchronize()
                try:
                    with torch.cuda.graph(graph):
                        total = static.sum(dim=1) * 2
                except RuntimeError as error:
                    failures.append(str(error)[:300])
                    continue
                captures += 1
                graph.replay()
                torch.cuda.synchronize()
                wanted = 2 * WIDTH * torch.arange(first, first + BATCH, device=settings.device)
                wrong += int((total != wanted).any())
    finally:
        stop.set()
        thread.join()
    batches.close()
    good = captures > 0 and not wrong and not failures
    return {"ok": good, "captures": captures, "wrong": wrong, "failures": failures[:5], "dropped": dropped[0]}


if __name__ == "__main__":
    stage(run)
