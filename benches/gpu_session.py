"""The whole verification on a GPU, in three parts of at most ten minutes each.

    python benches/gpu_session.py --part A --out gpu-out     facts, bits, reuse, frameworks, graphs, bus, sanitizer, a full GPU
    python benches/gpu_session.py --part B --out gpu-out     decoding, ResNet-50 fed in several ways, plain batches, nvJPEG, a soak
    python benches/gpu_session.py --part C --out gpu-out     tables of 40 columns, how far ahead to prepare
    python benches/gpu_session.py --only bits,h2d --scale 0.5     two stages, each in half of its seconds
    python benches/gpu_session.py --dry-run                  every stage on the CPU, on little data: a smoke test
    python benches/gpu_session.py --dry-run --fake DIR       the same with device="cuda:0" over the fake driver in DIR

It needs bowstring's wheel, torch and NumPy, and uses what else is installed (JAX and TensorFlow with CUDA, torchvision,
pyarrow, compute-sanitizer). Each stage is a process of its own with a time limit and writes JSON at its end, so that
measurements survive later failures; ``session.json`` holds all of it. Exit code 1: a stage failed or its figures do not pass.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STAGES = Path(__file__).resolve().parent / "gpu_stages"
sys.path.insert(0, str(STAGES))
from common import PHOTOS, torch_has_cuda, write  # noqa: E402

# Part, name, file, seconds of work, environment.
PLAN: tuple[tuple[str, str, str, int, dict[str, str]], ...] = (
    ("A", "facts", "facts", 20, {}),
    ("A", "bits", "bits", 70, {}),
    ("A", "reuse", "reuse", 130, {}),
    ("A", "jax", "frameworks", 22, {"GPU_FRAMEWORK": "jax"}),
    ("A", "tensorflow", "frameworks", 22, {"GPU_FRAMEWORK": "tensorflow"}),
    ("A", "capture", "capture", 25, {}),
    ("A", "h2d", "h2d", 70, {}),
    ("A", "crowded", "crowded", 20, {}),
    ("A", "sanitizer", "sanitizer", 100, {}),
    ("B", "decode", "decode", 45, {}),
    ("B", "train-synthetic", "train", 45, {"GPU_FEED": "synthetic"}),
    # In a palindromic order, so that changes of the machine affect both alike.
    ("B", "train-ours-1", "train", 50, {"GPU_FEED": "ours"}),
    ("B", "train-torch-1", "train", 60, {"GPU_FEED": "torch"}),
    ("B", "train-torch-2", "train", 60, {"GPU_FEED": "torch"}),
    ("B", "train-ours-2", "train", 50, {"GPU_FEED": "ours"}),
    ("B", "train-ours-host", "train", 40, {"GPU_FEED": "ours_host"}),
    ("B", "tabular", "tabular", 40, {}),
    ("B", "nvjpeg", "nvjpeg", 30, {}),
    ("B", "soak", "soak", 60, {}),
    ("C", "columns", "columns", 90, {}),
    ("C", "prefetch", "prefetch", 60, {}),
)
# A stage works for its seconds; importing, opening and writing data need some more. After that it is killed.
GRACE = 1.25
OPENING = 30
DRY_SECONDS = 10
DRY_LIMIT = 240


def run_stage(name: str, file: str, seconds: int, extra: dict[str, str], args: argparse.Namespace) -> dict[str, Any]:
    """Runs one stage and returns its document, even if the stage fails."""
    result = args.out / f"{name}.json"
    result.unlink(missing_ok=True)
    given = {
        "device": args.device,
        "dry": args.dry_run,
        "seconds": DRY_SECONDS if args.dry_run else seconds * args.scale,
        "data": str(args.data),
        "photos": str(args.photos),
        "result": str(result),
    }
    environment = {**os.environ, **extra}
    if args.fake:
        environment["LD_LIBRARY_PATH"] = f"{args.fake}:{environment.get('LD_LIBRARY_PATH', '')}"
    limit = DRY_LIMIT if args.dry_run else max(seconds * args.scale * GRACE, seconds * args.scale + OPENING)
    began = time.perf_counter()
    document: dict[str, Any]
    try:
        done = subprocess.run(
            [sys.executable, str(STAGES / f"{file}.py"), json.dumps(given)],
            capture_output=True,
            text=True,
            timeout=limit,
            env=environment,
            check=False,
        )
        said = (done.stdout + done.stderr)[-4000:]
        if done.returncode == 0 and result.exists():
            document = json.loads(result.read_text())
            if document.get("ok") is False:
                document["said"] = said
        else:
            document = {"ok": False, "error": f"exit code {done.returncode}", "said": said}
    except subprocess.TimeoutExpired as error:
        tail = error.stdout or b""
        text = tail.decode(errors="replace") if isinstance(tail, bytes) else tail
        document = {"ok": False, "error": f"killed after {limit:.0f} s", "said": text[-4000:]}
    document["wall_seconds"] = round(time.perf_counter() - began, 2)
    write(result, document)
    return document


def verdicts(stages: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Draws conclusions from several stages together."""

    def value(name: str, key: str) -> Any:
        return stages.get(name, {}).get(key)

    def mean(names: tuple[str, ...], key: str) -> float | None:
        found = [v for v in (value(name, key) for name in names) if isinstance(v, (int, float))]
        return sum(found) / len(found) if found else None

    ceiling, stalled = value("train-synthetic", "photos_per_s"), value("train-synthetic", "stalled")
    feeds = {
        "ours": ("train-ours-1", "train-ours-2"),
        "torch": ("train-torch-1", "train-torch-2"),
        "ours on the host": ("train-ours-host",),
    }
    found: dict[str, Any] = {}
    for feed, names in feeds.items():
        rate, gaps = mean(names, "photos_per_s"), mean(names, "stalled")
        if rate and ceiling:
            found[feed] = {
                "part_of_the_ceiling": rate / ceiling,
                "extra_stall": None if gaps is None else gaps - (stalled or 0),
            }
    decoded = value("decode", "photos_per_s") or {}
    if decoded and ceiling:
        found["decoding_over_the_ceiling"] = max(decoded.values()) / ceiling
    return found


def main() -> int:
    """Runs the requested stages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("A", "B", "C"), action="append", help="all if none is given")
    parser.add_argument("--only", help="stages by name, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="times the seconds of each stage")
    parser.add_argument("--out", type=Path, default=Path("gpu-out"))
    parser.add_argument("--data", type=Path, help="where data is written; a temporary directory if not given")
    parser.add_argument("--photos", type=Path, default=PHOTOS, help="a Parquet file with a column `image` of JPEGs")
    parser.add_argument("--device", help="cuda:0, or cpu in a dry run")
    parser.add_argument("--dry-run", action="store_true", help="little data, no figures that mean anything")
    parser.add_argument(
        "--fake", type=Path, help="with --dry-run: a directory with a fake libcuda.so.1, perhaps libnvjpeg.so.12"
    )
    args = parser.parse_args()
    if args.fake and not args.dry_run:
        parser.error("--fake is for --dry-run: no figure over a fake driver means anything")
    args.device = args.device or ("cuda:0" if args.fake or not args.dry_run else "cpu")
    if not args.dry_run and not torch_has_cuda():
        parser.error("torch sees no GPU; use --dry-run to try the stages on the CPU")
    args.out.mkdir(parents=True, exist_ok=True)
    parts, only = args.part or ["A", "B", "C"], args.only.split(",") if args.only else None
    stages: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        args.data = args.data or Path(scratch)
        for part, name, file, seconds, extra in PLAN:
            if part not in parts or (only and name not in only):
                continue
            document = stages[name] = run_stage(name, file, seconds, extra, args)
            why = document.get("skipped") or document.get("error") or ""
            verdict = {True: "passed", False: "FAILED", None: "skipped" if why else "done"}[document["ok"]]
            print(f"{part} {name:18} {verdict:8} {document['wall_seconds']:7.1f} s  {why}", flush=True)
            session = {"dry_run": args.dry_run, "device": args.device, "stages": stages, "verdicts": verdicts(stages)}
            write(args.out / "session.json", session)
    return 1 if any(document["ok"] is False for document in stages.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
