"""compute-sanitizer over a loader without torch: kernels, arguments of calls, leaks. It cannot detect wrong reuse of memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import Settings, need, numbers, photos, stage

PROGRAM = """
import json, sys
import bowstring
given = json.loads(sys.argv[1])
image = bowstring.Image(61, layout="chw", dtype="bfloat16", normalize="imagenet")
seen = 0
for url, options in ((given["photos"], {"images": {"image": image}, "columns": "image"}), (given["numbers"], {"columns": "array"})):
    loader = bowstring.Loader(url, batch_size=8, rank=0, world_size=1, device=given["device"], device_slots=3, **options)
    for _ in range(3):
        for batch in loader:
            seen += 1
            del batch
    loader.close()
print("batches", seen)
"""


def run(settings: Settings) -> dict[str, Any]:
    """Returns the findings of the tool; passes if there are none."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    need(settings.is_gpu, "the tool needs a GPU")
    need(Path(tool).exists(), "compute-sanitizer is not installed")
    given = json.dumps(
        {
            "photos": str(photos(settings, 1)),
            "numbers": str(numbers(settings, 64, 1000, "float32")),
            "device": settings.device,
        }
    )
    command = [tool, "--tool", "memcheck", "--leak-check", "full", "--error-exitcode", "9"]
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, given],
        capture_output=True,
        text=True,
        timeout=settings.seconds,
        check=False,
    )
    said = done.stdout + done.stderr
    need("Device not supported" not in said, "compute-sanitizer refuses this machine: Device not supported")
    return {"ok": done.returncode == 0 and "batches" in said, "exit": done.returncode, "tail": said[-3000:]}


if __name__ == "__main__":
    stage(run)
