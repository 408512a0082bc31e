"""Runs each fuzz target for a time, and measures it: runs, corpus, findings, lines that its corpus reaches in the code it drives.

    python scripts/fuzz.py --seconds 600                         all targets
    python scripts/fuzz.py --seconds 60 --targets pickle,npy     two of them
    python scripts/fuzz.py --seconds 0                           coverage of the corpora that are there

With nightly and cargo-fuzz, libFuzzer looks for inputs that reach new code and keeps them in fuzz/corpus. Otherwise the stable
driver (`tests/it/fuzzed.rs`) changes seeds at random. Coverage comes from llvm-cov: the stable driver, compiled with counters in
the crate itself, runs seeds and corpus of one target. Arguments after `--` go to cargo, as the selection of packages and features.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUZZ = ROOT / "fuzz"
# The files that each target drives: beginnings of paths below src/.
DRIVES = {
    "action": [
        "flight/gang/wire",
        "flight/gang/call",
        "flight/gang/registry",
        "flight/gang/reading",
        "flight/gang/group",
    ],
    "certificate": ["plan/certificate", "plan/audit", "plan/rollback"],
    "config": ["flight/server/catalog/config", "flight/server/catalog/file", "flight/server/access/auth"],
    "delta": ["dataset/delta/", "dataset/table/"],
    "descriptor": ["flight/request", "flight/server/catalog/entry"],
    "filter": ["dataset/filter/"],
    "footer": [
        "dataset/footer",
        "dataset/outline",
        "dataset/thrift",
        "dataset/shape",
        "dataset/layout",
        "dataset/pages",
        "page/",
    ],
    "iceberg": ["dataset/iceberg/", "dataset/table/"],
    "image": ["codec/image/"],
    "index": ["dataset/index", "dataset/packed"],
    "mds": ["convert/formats/mds/"],
    "npy": ["codec/npy/"],
    "options": ["pipeline/option", "document"],
    "pickle": ["dataset/petastorm/"],
    "position": ["flight/wire"],
    "rows": ["convert/formats/csv", "convert/formats/jsonl", "convert/formats/ipc", "convert/read/", "convert/values/"],
    "state_json": ["plan/state"],
    "tar": ["convert/formats/tar"],
    "tfrecord": ["convert/formats/tfrecord", "convert/formats/frames", "convert/formats/example"],
    "ticket": ["flight/ticket"],
}


@dataclass
class Outcome:
    """What one target did."""

    target: str
    runs: int = 0
    seconds: float = 0.0
    corpus: int = 0
    new: int = 0
    findings: int = 0
    lines: int = 0
    covered: int = 0

    def row(self) -> str:
        reached = f"{100 * self.covered / self.lines:.0f} % of {self.lines:,}" if self.lines else "-"
        rate = f"{self.runs / self.seconds:,.0f}" if self.seconds else "-"
        files = ", ".join(f"`{part}`" for part in DRIVES[self.target])
        return (
            f"| `{self.target}` | {self.seconds / 60:.1f} | {self.runs:,} | {rate} | {self.corpus:,} | {self.new:,} | "
            f"{self.findings} | {reached} | {files} |"
        )


HEAD = "| target | minutes | runs | runs/s | corpus | new | findings | lines reached | of `src/` |\n" + "|---" * 9 + "|"


def files(directory: Path) -> set[str]:
    """The names in a directory, which may be missing."""
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


def is_guided() -> bool:
    """Whether libFuzzer can be used."""
    try:
        tried = subprocess.run(["cargo", "+nightly", "fuzz", "--version"], capture_output=True, check=False)
    except OSError:
        return False
    return tried.returncode == 0


def guided(target: str, seconds: int, sanitizer: str) -> Outcome:
    """Runs a target under libFuzzer."""
    corpus, artifacts = FUZZ / "corpus" / target, FUZZ / "artifacts" / target
    corpus.mkdir(parents=True, exist_ok=True)
    before, known = files(corpus), files(artifacts)
    command = [
        "cargo",
        "+nightly",
        "fuzz",
        "run",
        "--sanitizer",
        sanitizer,
        target,
        str(corpus),
        str(FUZZ / "seeds" / target),
    ]
    limits = [f"-max_total_time={seconds}", "-timeout=10", "-print_final_stats=1"]
    # Targets that a user would stop by a signal print what they read; it is not needed.
    run = subprocess.run(
        [*command, "--", *limits], cwd=ROOT, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", run.stderr))
    took = re.findall(r"Done \d+ runs in (\d+) second", run.stderr)
    findings = files(artifacts) - known
    if run.returncode and not findings:
        sys.exit(f"{target}: {' '.join(command)} ended with {run.returncode}:\n{run.stderr[-2000:]}")
    for name in sorted(findings):
        print(f"{target}: FOUND {artifacts / name}", flush=True)
    runs = int(stats.get("number_of_executed_units", 0))
    rate = int(stats.get("average_exec_per_sec", 0))
    took_seconds = float(took[0]) if took else (runs / rate if rate else 0.0)
    return Outcome(target, runs, took_seconds, len(files(corpus)), len(files(corpus) - before), len(findings))


class Driver:
    """The stable driver, with or without counters."""

    def __init__(self, selection: list[str], *, counted: bool) -> None:
        env = dict(os.environ)
        if counted:
            env["RUSTC_WORKSPACE_WRAPPER"] = str(ROOT / "scripts" / "covered.sh")
        command = ["cargo", "test", *selection, "--test", "it", "--no-run", "--message-format=json-render-diagnostics"]
        built = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
        made = [json.loads(line) for line in built.stdout.splitlines()]
        self.binary = next(one["executable"] for one in made if one.get("executable") and one["target"]["name"] == "it")

    def run(self, target: str, seconds: int, corpus: Path | None = None, profile: Path | None = None) -> Outcome:
        """Runs a target: for `seconds`, or once over seeds and corpus."""
        env = {**os.environ, "BOWSTRING_FUZZED": target}
        env |= {"BOWSTRING_FUZZED_SECONDS": str(seconds)} if seconds else {"BOWSTRING_FUZZED_INPUTS": "0"}
        if corpus is not None:
            env["BOWSTRING_FUZZED_CORPUS"] = str(corpus)
        if profile is not None:
            env["LLVM_PROFILE_FILE"] = str(profile)
        # From the time of the day, so that each run tries other inputs.
        env.setdefault("BOWSTRING_SEED", str(int(time.time())) if seconds else "1")
        command = [self.binary, "fuzzed::no_input_made_from_seeds_breaks_a_target", "--exact", "--nocapture"]
        run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, errors="replace", check=False)
        told = re.search(rf"^{target}: (\d+) inputs in ([\d.]+) s", run.stdout, re.MULTILINE)
        if run.returncode or not told:
            print(f"{target}: FOUND\n{run.stdout[-2000:]}{run.stderr[-2000:]}", flush=True)
            return Outcome(target, findings=1)
        return Outcome(target, int(told[1]), float(told[2]))


def tool(name: str) -> str:
    """The path of an LLVM tool that belongs to the compiler."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    for path in Path(sysroot).glob(f"lib/rustlib/*/bin/{name}"):
        return str(path)
    sys.exit(f"coverage needs {name} of the compiler: rustup component add llvm-tools; or give --no-coverage")


def cover(driver: Driver, outcome: Outcome, corpus: Path) -> None:
    """Measures which lines seeds and corpus of a target reach in the files that it drives."""
    with tempfile.TemporaryDirectory() as place:
        raw, merged = Path(place) / "raw", Path(place) / "merged"
        (corpus / outcome.target).mkdir(parents=True, exist_ok=True)
        outcome.findings += driver.run(outcome.target, 0, corpus, raw).findings
        if not raw.exists():
            return
        subprocess.run([tool("llvm-profdata"), "merge", "-sparse", str(raw), "-o", str(merged)], check=True)
        command = [tool("llvm-cov"), "export", "--summary-only", f"--instr-profile={merged}", driver.binary]
        shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for file in shown["data"][0]["files"]:
        _, _, inside = file["filename"].rpartition("/src/")
        if file["filename"].startswith(str(ROOT / "src")) and inside.startswith(tuple(DRIVES[outcome.target])):
            outcome.lines += file["summary"]["lines"]["count"]
            outcome.covered += file["summary"]["lines"]["covered"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="of each target")
    parser.add_argument("--targets", default="", help="names, separated by commas")
    parser.add_argument("--driver", choices=["libfuzzer", "stable"], help="libfuzzer where it can be had")
    parser.add_argument("--sanitizer", default="address", help="of libFuzzer: address, none, ...")
    parser.add_argument("--no-coverage", action="store_true")
    parser.add_argument("selection", nargs="*", help="cargo's selection for the stable driver")
    given = parser.parse_args()
    known = sorted(path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs"))
    if set(known) != set(DRIVES):
        sys.exit(f"DRIVES names other targets than fuzz/fuzz_targets: {sorted(set(known) ^ set(DRIVES))}")
    wanted = [name for name in given.targets.split(",") if name] or known
    if unknown := sorted(set(wanted) - set(known)):
        sys.exit(f"no such target: {', '.join(unknown)}; there are {', '.join(known)}")
    kind = given.driver or ("libfuzzer" if is_guided() else "stable")
    if kind == "stable" and not given.driver:
        print("no cargo-fuzz for nightly (cargo install cargo-fuzz): seeds are changed at random", flush=True)
    if not given.no_coverage:
        tool("llvm-cov")
    outcomes = []
    plain = Driver(given.selection, counted=False) if kind == "stable" and given.seconds else None
    for target in wanted:
        if plain is not None:
            outcome = plain.run(target, given.seconds)
        elif given.seconds:
            outcome = guided(target, given.seconds, given.sanitizer)
        else:
            outcome = Outcome(target)
        outcome.corpus = len(files(FUZZ / "corpus" / target))
        outcomes.append(outcome)
        print(f"{target}: {outcome.runs:,} runs in {outcome.seconds:.0f} s, {outcome.findings} findings", flush=True)
    if not given.no_coverage:
        counted = Driver(given.selection, counted=True)
        for outcome in outcomes:
            cover(counted, outcome, FUZZ / "corpus")
    total = sum(outcome.findings for outcome in outcomes)
    day = datetime.now(timezone.utc).date()
    print(
        f"\n{day}, {len(outcomes)} of {len(known)} targets, {given.seconds} s each, {kind}, {total} findings\n\n{HEAD}"
    )
    print("\n".join(outcome.row() for outcome in outcomes))
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
