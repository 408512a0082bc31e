"""Another tenant holds the GPU's memory: the error is clear, and everything works once there is room."""

from __future__ import annotations

from typing import Any

import bowstring
from common import Settings, loader, need, numbers, stage

MIB = 1 << 20


def run(settings: Settings) -> dict[str, Any]:
    """Returns the text of the error."""
    import torch

    need(settings.is_gpu, "a GPU's memory is filled")
    free, _ = torch.cuda.mem_get_info()
    # All but 96 MiB; the loader's four slots want 256.
    tenant = torch.empty(free - 96 * MIB, dtype=torch.uint8, device=settings.device)
    data = numbers(settings, 512, MIB, "uint8")
    said = None
    try:
        ours = loader(settings, data, 64, columns="array")
        for batch in ours:
            del batch
    except bowstring.Error as error:
        said = f"{type(error).__name__}: {error}"
    del tenant
    torch.cuda.empty_cache()
    after = sum(1 for _ in loader(settings, data, 64, columns="array"))
    return {"ok": said is not None and "MEMORY" in said.upper() and after == 8, "error": said, "batches_after": after}


if __name__ == "__main__":
    stage(run)
