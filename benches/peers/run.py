# bowstring against its peers: every measurement in a fresh process, contenders taking turns, medians at the end.
# Prints a table per task and writes bench-out/peers.json. Figures count on a quiet machine only; the noise is recorded.

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

BATCH = {
    "columns": 8_192,
    "columns-snappy": 8_192,
    "columns-spark": 8_192,
    "recsys": 16_384,
    "recsys-snappy": 16_384,
    "photos": 64,
    "tokens": 1_024,
    "fixed": 1_024,
}
# Timed epochs of a run, if the default takes less than a second or two.
EPOCHS = {
    "columns": 3,
    "columns-snappy": 3,
    "columns-spark": 3,
    "photos": 3,
    "recsys": 6,
    "recsys-snappy": 6,
    "tokens": 4,
    "fixed": 6,
}
# Weight of a row in the table: the key in expected.json, the divisor, the unit.
UNIT = {
    "columns": ("rows", 1e6, "M rows"),
    "columns-snappy": ("rows", 1e6, "M rows"),
    "columns-spark": ("rows", 1e6, "M rows"),
    "recsys": ("rows", 1e6, "M rows"),
    "recsys-snappy": ("rows", 1e6, "M rows"),
    "photos": ("rows", 1, "photos"),
    "tokens": ("items", 1e6, "M tokens"),
    "fixed": ("bytes", 1e9, "GB"),
}
# A run is called quiet when everything else on the machine used less than this much of one core.
QUIET = 0.12
LIMIT_S = 1800


def environment(threads: int) -> dict[str, str]:
    """Environment of the measured processes: the thread count by every name that a peer knows, no network, quiet logs."""
    names = (
        "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS POLARS_MAX_THREADS RAYON_NUM_THREADS LANCE_CPU_THREADS "
        "TOKIO_WORKER_THREADS TF_NUM_INTRAOP_THREADS TF_NUM_INTEROP_THREADS"
    )
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, **quiet, **dict.fromkeys(names.split(), str(threads))}


def python(*arguments: str, threads: int) -> subprocess.CompletedProcess[str]:
    """Runs a script of this folder with this interpreter."""
    command = [sys.executable, str(HERE / arguments[0]), *arguments[1:]]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(threads), timeout=LIMIT_S, check=False
    )


def selected(contenders: list[dict[str, Any]], only: list[str]) -> list[dict[str, Any]]:
    """Contenders whose task, name or task:name is requested; bowstring stays in every remaining task."""
    if not only:
        return contenders

    def asked(contender: dict[str, Any]) -> bool:
        task, name = contender["task"], contender["name"]
        return bool({task, name, f"{task}:{name}"} & set(only))

    wanted = [contender for contender in contenders if asked(contender)]
    tasks = {contender["task"] for contender in wanted}
    return [c for c in contenders if c in wanted or (c["name"] == "bowstring" and c["task"] in tasks)]


def warm(folder: pathlib.Path) -> None:
    """Reads every file once, so that all contenders find it in the page cache."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 24):
                    pass


def once(contender: dict[str, Any], data: pathlib.Path, args: argparse.Namespace) -> dict[str, Any]:
    """One measurement: figures, or `missing`, or `failed`."""
    task, name = contender["task"], contender["name"]
    options = {
        "--task": task,
        "--name": name,
        "--data": str(data),
        "--batch": str(args.batch or BATCH[task]),
        "--threads": str(args.threads),
        "--epochs": str(args.epochs or EPOCHS.get(task, 1)),
    }
    try:
        done = python("peers.py", *(word for option in options.items() for word in option), threads=args.threads)
    except subprocess.TimeoutExpired:
        return {"failed": f"no end after {LIMIT_S} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return dict(json.loads(lines[-1]))
    errors = done.stderr.strip().splitlines() or ["no message"]
    return {"failed": f"exit {done.returncode}: {errors[-1]}"}


def measure(
    contenders: list[dict[str, Any]], data: pathlib.Path, args: argparse.Namespace
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str], dict[str, str]]:
    """Takes turns: A B C, B C A, C A B, ... Runs by contender, and skipped or failed ones with reasons."""
    runs: dict[str, list[dict[str, Any]]] = {c["name"]: [] for c in contenders}
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for cycle in range(args.repeats):
        turn = cycle % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            name = contender["name"]
            if name in skipped or name in failed:
                continue
            found = once(contender, data, args)
            if "missing" in found:
                skipped[name] = found["missing"]
                print(f"  {name}: skipped, {found['missing']}", flush=True)
            elif "failed" in found:
                failed[name] = found["failed"]
                print(f"  {name}: FAILED, {found['failed']}", flush=True)
            else:
                runs[name].append({"cycle": cycle, **found})
                noise = "" if found["others_cores"] < QUIET else f"  (others used {found['others_cores']:.2f} cores)"
                print(f"  {cycle + 1}/{args.repeats} {name}: {found['wall_s']:.2f} s{noise}", flush=True)
    return {name: found for name, found in runs.items() if found}, skipped, failed


def per_row(task: str, expected: dict[str, Any]) -> float:
    """Units of the table in a row."""
    key, divisor, _ = UNIT[task]
    return float(expected[key]) / float(expected["rows"]) / divisor


def summary(task: str, runs: dict[str, list[dict[str, Any]]], unit: float) -> dict[str, dict[str, float]]:
    """Medians, and the median over cycles of bowstring's rate divided by the contender's in the same cycle."""

    def rate(run: dict[str, Any], seconds: str) -> float:
        return float(run["rows"]) * unit / max(float(run[seconds]), 1e-9)

    found = {}
    for name, own in runs.items():
        middle = {
            "per_wall_s": statistics.median(rate(run, "wall_s") for run in own),
            "per_cpu_s": statistics.median(rate(run, "cpu_s") for run in own),
            "first_batch_s": statistics.median(run["first_batch_s"] for run in own),
            "peak_mb": statistics.median(max(run["peak_rss"], run["peak_rss_children"]) for run in own) / 1e6,
            "imports_mb": statistics.median(run["imports_rss"] for run in own) / 1e6,
            "others_cores": statistics.median(run["others_cores"] for run in own),
            "quiet_runs": sum(run["others_cores"] < QUIET for run in own),
            "runs": len(own),
        }
        for base in ("bowstring", "bowstring, in order"):
            pairs = [(a, b) for a in runs.get(base, []) for b in own if a["cycle"] == b["cycle"]]
            for seconds in ("wall_s", "cpu_s"):
                ratios = [rate(a, seconds) / rate(b, seconds) for a, b in pairs]
                if ratios:
                    middle[f"{base} over this, {seconds}"] = statistics.median(ratios)
        found[name] = middle
    return found


def table(task: str, medians: dict[str, dict[str, float]], contenders: list[dict[str, Any]]) -> str:
    """The task's table, fastest per CPU second first."""
    words = {c["name"]: c for c in contenders}
    unit = UNIT[task][2]
    head = ["contender", f"{unit}/s", f"{unit}/CPU s", "x wall", "x CPU", "first s", "peak MB", "quiet", "shuffle"]
    lines = [head]
    for name, m in sorted(medians.items(), key=lambda item: -item[1]["per_cpu_s"]):
        ratios = [m.get(f"bowstring over this, {seconds}") for seconds in ("wall_s", "cpu_s")]
        lines.append(
            [
                name,
                f"{m['per_wall_s']:.3g}",
                f"{m['per_cpu_s']:.3g}",
                *("" if name == "bowstring" or r is None else f"{r:.2f}" for r in ratios),
                f"{m['first_batch_s']:.2f}",
                f"{m['peak_mb']:.0f}",
                f"{m['quiet_runs']:.0f}/{m['runs']:.0f}",
                words[name]["shuffle"],
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    out = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    out.insert(1, "-" * max(len(line) for line in out))
    out += [f"  {name}: {words[name]['note']}" for name in medians if words[name]["note"]]
    return "\n".join(out)


def machine() -> dict[str, Any]:
    """The environment of the measurement."""
    model = platform.processor()
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="bowstring against its peers")
    parser.add_argument("--only", nargs="+", default=[], help="tasks, contenders or task:contender")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="threads and cores of each contender")
    parser.add_argument("--epochs", type=int, help="timed epochs of a run; default 3 to 6, by task")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the rows")
    parser.add_argument("--batch", type=int, help="rows per batch instead of each task's default")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench-out" / "peers.json")
    args = parser.parse_args()

    listed = python("peers.py", "--list", threads=args.threads)
    if listed.returncode:
        print(listed.stderr, file=sys.stderr)
        return 1
    contenders = selected(json.loads(listed.stdout.strip().splitlines()[-1]), args.only)
    if not contenders:
        print(f"nothing is called {' or '.join(args.only)}", file=sys.stderr)
        return 2
    tasks = list(dict.fromkeys(contender["task"] for contender in contenders))
    sets = list(dict.fromkeys(task.partition("-")[0] for task in tasks))
    made = python("data.py", "--scale", str(args.scale), "--tasks", *sets, threads=args.threads)
    print(made.stdout, end="", flush=True)
    if made.returncode:
        print(made.stderr, file=sys.stderr)
        return 1
    data = ROOT / "bench-out" / "peers" / ("full" if args.scale == 1 else f"scale-{args.scale:g}")
    warm(data)

    report: dict[str, Any] = {"machine": machine(), "arguments": {**vars(args), "out": str(args.out.name)}, "tasks": {}}
    bad = False
    for task in tasks:
        own = [contender for contender in contenders if contender["task"] == task]
        expected = json.loads((data / f"{task.partition('-')[0]}.expected.json").read_text())[own[0]["dataset"]]
        print(f"{task}: {expected['rows']} rows, batches of {args.batch or BATCH[task]}, {args.threads} threads")
        runs, skipped, failed = measure(own, data, args)
        medians = summary(task, runs, per_row(task, expected))
        bad = bad or bool(failed)
        report["tasks"][task] = {
            "rows": expected["rows"],
            "batch": args.batch or BATCH[task],
            "unit": UNIT[task][2],
            "contenders": own,
            "versions": {name: found[0]["versions"] for name, found in runs.items()},
            "medians": medians,
            "runs": runs,
            "skipped": skipped,
            "failed": failed,
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1))
        print(f"\n{table(task, medians, own)}")
        versions = sorted({v for found in runs.values() for v in found[0]["versions"]})
        print(f"  versions: {', '.join(versions)}\n", flush=True)
    where = report["machine"]
    print(f"{where['cpu']}, {where['cores']} cores, {where['memory_gb']} GB, Python {where['python']}")
    print("x wall, x CPU: bowstring's rate over this one's, median of pairs taken in the same cycle.")
    print("quiet: runs during which everything else on the machine used less than 12 % of a core.")
    print(f"all runs: {args.out}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
