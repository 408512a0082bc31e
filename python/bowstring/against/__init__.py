"""``bowstring bench --against torch``: another loader beside bowstring, on the same columns and batches, in turns.

Each loader has a process of its own, which opens the data once and then runs a round whenever it is told to, so that no two measure
at the same time. The first round of each is not counted: it starts worker processes and brings files into the page cache.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from bowstring.against.report import Comparison, Round, text

__all__ = ["ROUNDS", "run"]

ROUNDS = 3
"""Rounds of each loader that count."""

# Options that mean the same to both loaders, and those of bowstring alone that change neither columns nor values.
_SHARED = {"urls", "columns", "exclude", "images", "nulls", "batch_size", "shuffle", "seed", "threads", "timeout"}
_OWN = {"lanes", "window_rows", "order_version", "memory_budget", "prefetch", "limits", "index"}


class Refused(Exception):
    """The comparison cannot be made; the text says why and what to do."""

    def __init__(self, problem: str, code: int = 2) -> None:
        super().__init__(problem)
        self.code = code


@dataclass
class Contender:
    """A loader in a process of its own."""

    name: str
    process: subprocess.Popen[str]
    rounds: list[Round] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    def hear(self) -> dict[str, Any]:
        """The next message of the process. It ends each wait of its own: both loaders have deadlines."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Refused(f"{self.name} ended with exit code {self.process.wait()}", 1)
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise Refused(f"{self.name}: {message['error']}", message["code"])
        return message

    def go(self) -> Round:
        """Runs one round."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return Round(**self.hear())


def run(comparison: str) -> int:
    """Measures as the JSON of the command line says, prints the table, and returns the exit code."""
    asked = json.loads(comparison)
    try:
        found = measured(asked)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    if asked["json"]:
        print(json.dumps(found.document(), indent=2))
    elif not asked["quiet"]:
        print(text(found))
    return 0


def options_of(asked: dict[str, Any]) -> dict[str, Any]:
    """The options as keywords of a loader, of which the other loader has a counterpart or which do not concern it."""
    options = dict(asked["options"])
    columns = options.pop("columns", None)
    options |= columns if isinstance(columns, dict) else {"columns": columns} if columns else {}
    options["batch_size"] = options.get("batch_size") or asked["batch_size"]
    for name in options:
        if name not in _SHARED | _OWN:
            raise Refused(
                f"option {name}: the comparison is of whole columns in batches; leave {name} out, "
                f"or measure bowstring alone, without --against"
            )
    for url in options["urls"]:
        if "://" in url and not url.startswith("file://"):
            raise Refused(f"{url}: the comparison is of local files; measure bowstring alone, without --against")
    return options


def measured(asked: dict[str, Any]) -> Comparison:
    """All rounds of all loaders."""
    options = options_of(asked)
    workers = options.get("threads") or len(os.sched_getaffinity(0))
    about = {"options": options, "epochs": asked["epochs"], "steps": asked["steps"]}
    contenders: list[Contender] = []
    try:
        for name, more in (
            ("bowstring", {"loader": "bowstring"}),
            (f"torch, {workers} worker{'s' * (workers > 1)}", {"loader": "torch", "workers": workers}),
            ("torch, no workers", {"loader": "torch", "workers": 0}),
        ):
            process = subprocess.Popen(
                [sys.executable, "-m", "bowstring.against"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            contenders.append(Contender(name, process))
            assert process.stdin is not None
            process.stdin.write(json.dumps({**about, **more}) + "\n")
            process.stdin.flush()
        for contender in contenders:
            contender.about = contender.hear()
        for number in range(ROUNDS + 1):
            for contender in contenders:
                progress(f"round {number} of {ROUNDS}: {contender.name}", asked["json"] or asked["quiet"])
                contender.rounds.append(contender.go())
        progress("", asked["json"] or asked["quiet"])
    finally:
        for contender in contenders:
            contender.process.kill()
            contender.process.communicate()
    whole = asked["steps"] is None
    if whole:
        agree(contenders)
    ours = contenders[0].about
    return Comparison(
        columns=ours["columns"],
        batch_size=options["batch_size"],
        shuffled=options.get("shuffle", True),
        same_rows=whole,
        images=ours["images"],
        versions={name: version for one in contenders for name, version in one.about["versions"].items()},
        loaders={one.name: median(one.rounds[1:]) for one in contenders},
        rounds=ROUNDS,
        cpus=len(os.sched_getaffinity(0)),
    )


def agree(contenders: list[Contender]) -> None:
    """Checks that all delivered the same rows: their number, and the sum of each column."""
    ours = contenders[0].rounds[0]
    for other in contenders[1:]:
        theirs = other.rounds[0]
        if ours.rows != theirs.rows:
            raise Refused(
                f"bowstring delivers {ours.rows:,} rows and {other.name} {theirs.rows:,}: they read other files", 3
            )
        for name, (sum_, size) in ours.sums.items():
            their = theirs.sums.get(name, (0, 0))
            exact = isinstance(sum_, int)
            if their[0] != sum_ if exact else abs(their[0] - sum_) > 1e-6 * max(size, their[1]):
                raise Refused(f"column {name} sums to {sum_} from bowstring and to {their[0]} from {other.name}", 3)


def median(rounds: list[Round]) -> Round:
    """The median of each figure."""
    return Round(
        rows=rounds[0].rows,
        seconds=statistics.median(one.seconds for one in rounds),
        first=statistics.median(one.first for one in rounds),
        cpu=statistics.median(one.cpu for one in rounds),
    )


def progress(what: str, quiet: bool) -> None:
    """Says on a terminal what is going on, on one line."""
    if not quiet and sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)
