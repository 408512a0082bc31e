"""The judge of a job: finds lost, doubled, wrong and foreign rows in the journals of its ranks.

It shares no code with bowstring.

The rule. A life is a generation of the gang, or a start of all ranks by the launcher; it begins at a position, epoch and step.
Steps that earlier lives made at or after that position are rolled back: the model that learnt from them is gone with the process,
or was reset. The final model learnt from the remaining steps, which must have each id once per epoch. Further rules:

- all ranks of a life begin at one position;
- a rank makes no step twice in one life;
- a step that all ranks of the gang acknowledged is never rolled back;
- no rank acknowledges a step in a generation after a newer one has begun.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from chaos.journal import Event
from chaos.rows import Ids

Position = tuple[int, int]


@dataclass
class Verdict:
    """The outcome for the rows of one job."""

    epochs: int = 0
    steps: int = 0
    rows: int = 0
    rolled_back: int = 0
    lives: int = 0
    lost: int = 0
    doubled: int = 0
    foreign: int = 0
    wrong: int = 0
    findings: list[str] = field(default_factory=list)
    bad_epochs: set[int] = field(default_factory=set)

    @property
    def exact(self) -> bool:
        return not (self.lost or self.doubled or self.foreign or self.wrong or self.findings)


@dataclass
class Life:
    """One life, of all ranks together."""

    starts: set[Position] = field(default_factory=set)
    begun: float = float("inf")
    steps: dict[tuple[Position, int], list[int]] = field(default_factory=dict)
    acked: dict[int, Position] = field(default_factory=dict)
    late: float = 0.0
    """Time at which the last successful acknowledgement was requested."""


def lives_of(journals: Sequence[Sequence[Event]], verdict: Verdict) -> dict[int, Life]:
    """Collects the lives from the events of all ranks."""
    lives: dict[int, Life] = defaultdict(Life)
    for rank, events in enumerate(journals):
        for event in events:
            if event["e"] == "life":
                life = lives[event["life"]]
                life.starts.add((event["start"][0], event["start"][1]))
                life.begun = min(life.begun, event["t"])
            elif event["e"] == "step":
                life = lives[event["life"]]
                key = ((event["epoch"], event["step"]), rank)
                if key in life.steps:
                    verdict.findings.append(f"rank {rank} made {key[0]} twice in life {event['life']}")
                life.steps[key] = event["ids"]
            elif event["e"] == "ack":
                life = lives[event["life"]]
                life.acked[rank] = max(life.acked.get(rank, (0, -1)), (event["epoch"], event["step"]))
                life.late = max(life.late, event["asked"])
            elif event["e"] == "wrong":
                verdict.wrong += event["rows"]
    return lives


def judged(journals: Sequence[Sequence[Event]], ids: Ids, until: int) -> Verdict:
    """Judges the epochs before `until`, each of which must have all `ids`. Later epochs are incomplete, but have no id twice."""
    verdict = Verdict()
    lives = lives_of(journals, verdict)
    verdict.lives = len(lives)
    kept: dict[tuple[Position, int], list[int]] = {}
    committed: Position = (0, -1)
    former: tuple[int, Life] | None = None
    for number, life in sorted(lives.items()):
        if len(life.starts) != 1:
            verdict.findings.append(f"life {number} begins at {sorted(life.starts)}")
        start = min(life.starts, default=(0, 0))
        if start <= committed:
            verdict.findings.append(f"life {number} begins at {start}, though all ranks had acknowledged {committed}")
        if former and former[1].late > life.begun:
            verdict.findings.append(f"generation {former[0]} acknowledged a step after {number} had begun")
        before = len(kept)
        kept = {key: rows for key, rows in kept.items() if key[0] < start}
        verdict.rolled_back += before - len(kept)
        kept |= life.steps
        if len(life.acked) == len(journals):
            committed = max(committed, min(life.acked.values()))
        former = (number, life)
    verdict.steps = len(kept)
    by_epoch: dict[int, list[int]] = defaultdict(list)
    for ((epoch, _), _), rows in kept.items():
        by_epoch[epoch] += rows
    verdict.epochs = until
    for epoch in sorted({*by_epoch, *range(until)}):
        got, times = np.unique(np.asarray(by_epoch.get(epoch, []), dtype=np.int64), return_counts=True)
        lost = int(np.setdiff1d(ids, got).size) if epoch < until else 0
        doubled, foreign = int((times - 1).sum()), int(np.setdiff1d(got, ids).size)
        verdict.rows += int(times.sum())
        verdict.lost += lost
        verdict.doubled += doubled
        verdict.foreign += foreign
        if lost or doubled or foreign:
            verdict.bad_epochs.add(epoch)
    return verdict
