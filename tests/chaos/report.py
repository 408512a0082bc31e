"""The report of a run: a table of the kinds of faults, the audit, and everything as JSON."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Tried:
    """One fault that was tried."""

    kind: str
    what: str
    at: float
    """Seconds since the start of the run."""
    hold: float
    jobs: tuple[str, ...]
    notice: float | None = None
    """Seconds from the fault to the first error that a rank got; none if the ranks saw only a wait, or not even that."""
    recover: float | None = None
    """Seconds from the end of the fault until every rank of its jobs had made eight steps in one life; none if never."""
    stall: float = 0.0
    """The longest that a rank of its jobs was without a step."""
    lag: float = 0.0
    """The longest that the suite itself waited for a processor meanwhile."""
    load: float = 0.0
    """The machine's load average. Where it is above the number of processors, all times are upper bounds."""
    hung: bool = False
    """True if a rank made no step, got no error and began no life for longer than any wait may take."""
    lost: int = 0
    doubled: int = 0
    packets: dict[str, int] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        noticed = "unnoticed" if self.notice is None else f"noticed after {self.notice:.1f} s"
        recovered = "NOT recovered" if self.recover is None else f"recovered in {self.recover:.1f} s"
        return (
            f"{self.at:6.1f} s  {self.kind}: {self.what}; for {self.hold:.1f} s, {noticed}, "
            f"{'HUNG' if self.hung else recovered}, longest stall {self.stall:.1f} s, load {self.load:.1f}"
        )


HEAD = (
    "| fault | tried | lost | doubled | hung | to notice, s | to recover, s | longest stall, s |\n" + "|---" * 8 + "|"
)


def spread(numbers: Iterable[float | None]) -> str:
    """Median and maximum."""
    known = [number for number in numbers if number is not None]
    return f"{statistics.median(known):.1f} / {max(known):.1f} ({len(known)})" if known else "-"


def table(tried: Iterable[Tried]) -> str:
    """One row for each kind of fault: counts, then median / maximum (of how many)."""
    kinds: dict[str, list[Tried]] = defaultdict(list)
    for one in tried:
        kinds[one.kind].append(one)
    lines = [HEAD]
    for kind, of in kinds.items():
        sums = [len(of), sum(one.lost for one in of), sum(one.doubled for one in of), sum(one.hung for one in of)]
        times = [spread(one.notice for one in of), spread(one.recover for one in of), spread(one.stall for one in of)]
        lines.append(f"| {kind} | {' | '.join(map(str, sums))} | {' | '.join(times)} |")
    return "\n".join(lines)


@dataclass
class Report:
    """All of one run."""

    seed: int
    seconds: float
    tried: list[Tried] = field(default_factory=list)
    untried: dict[str, str] = field(default_factory=dict)
    """Maps a kind of fault to the reason why it was not tried."""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    packets: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    machine: str = ""

    def text(self) -> str:
        lines = [
            f"seed {self.seed}, {self.seconds:.0f} s, {len(self.tried)} faults; {self.machine}",
            "",
            table(self.tried),
            "",
        ]
        lines += [f"not tried: {kind}: {why}" for kind, why in self.untried.items()]
        lines += [
            f"{name}: {', '.join(f'{key} {value}' for key, value in of.items())}" for name, of in self.jobs.items()
        ]
        if self.tried:
            lags = sorted(one.lag for one in self.tried)
            loads = sorted(one.load for one in self.tried)
            lines.append(
                f"load {loads[len(loads) // 2]:.1f} in the median; waits for a processor up to {lags[-1]:.2f} s"
            )
        lines.append(f"packets: {', '.join(f'{key} {value:,}' for key, value in self.packets.items())}")
        for one in self.tried:
            if one.notes:
                noted = ", ".join(f"{note} {value:.3g}" for note, value in one.notes.items())
                lines.append(f"{one.kind} at {one.at:.0f} s: {noted}")
        lines += [f"FAILED: {failure}" for failure in self.failures]
        lines.append("each row once per epoch, nobody hung" if not self.failures else "not as it should be")
        return "\n".join(lines)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1, default=sorted))


def joined(paths: Iterable[Path]) -> str:
    """The table of several runs together."""
    tried, seeds = [], []
    for path in paths:
        read = json.loads(path.read_text())
        seeds.append(f"{read['seed']} ({read['seconds']:.0f} s, {len(read['tried'])} faults)")
        tried += [Tried(**one) for one in read["tried"]]
    return f"seeds {', '.join(seeds)}\n\n{table(tried)}"
