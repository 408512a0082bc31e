"""The figures of a comparison, and its table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Comparison", "Round", "text"]


@dataclass
class Round:
    """What one loader did in one round."""

    rows: int
    seconds: float
    """From the start of the loop to its end."""
    first: float
    """From the start of the loop to the first batch."""
    cpu: float
    """CPU seconds of the process, its threads and its workers."""
    sums: dict[str, tuple[int | float, float]] = field(default_factory=dict)
    """Of each column the sum, and the sum of magnitudes; of the first round only."""


@dataclass
class Comparison:
    """A comparison."""

    columns: int
    batch_size: int
    shuffled: bool
    same_rows: bool
    images: bool
    versions: dict[str, str]
    loaders: dict[str, Round]
    rounds: int
    cpus: int

    def document(self) -> dict[str, Any]:
        """The figures, for ``--json``."""
        loaders = [
            {
                "name": name,
                "rows": one.rows,
                "seconds": one.seconds,
                "rows_per_second": one.rows / one.seconds,
                "rows_per_cpu_second": one.rows / one.cpu if one.cpu else None,
                "seconds_to_first_batch": one.first,
            }
            for name, one in self.loaders.items()
        ]
        names = ("columns", "batch_size", "shuffled", "same_rows", "versions", "rounds", "cpus")
        return {"schema": 1, **{name: getattr(self, name) for name in names}, "loaders": loaders}


def rate(amount: float) -> str:
    """A number of three digits, with its unit."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if amount >= limit:
            return f"{amount / limit:.3g}{unit}" if amount < 999.5 * limit else f"{amount / limit:.0f}{unit}"
    return f"{amount:.3g}" if amount < 999.5 else f"{amount:.0f}"


def text(found: Comparison) -> str:
    """The table, and what it compares."""
    versions = found.versions
    ours = next(iter(found.loaders.values()))
    table = [("loader", "rows/s", "relative", "rows per CPU s", "first batch")]
    for name, one in found.loaders.items():
        speed = one.rows / one.seconds
        table.append(
            (
                name,
                rate(speed),
                f"{speed * ours.seconds / ours.rows:.2f}",
                rate(one.rows / one.cpu) if one.cpu else "-",
                f"{one.first * 1000:,.0f} ms",
            )
        )
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    aligned = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in table]
    lines = ["  " + "  ".join(cells) for cells in aligned]
    what = (
        f"{ours.rows:,} rows of {found.columns} column{'s' * (found.columns != 1)} in batches of {found.batch_size:,}"
    )
    order = (
        "bowstring mixes rows of many row groups; torch's dataset takes row groups at random and mixes the rows of each."
        if found.shuffled
        else "Both in file order; each worker of torch has row groups of its own."
    )
    decoder = f"; Pillow {versions['pillow']} decodes" if found.images else ""
    same = (
        "All delivered the same rows, by their number and the sums of their columns."
        if found.same_rows
        else "With --steps each loader delivers rows of its own choice: only their number is the same."
    )
    notes = [
        f"torch {versions['torch']}: a DataLoader over row groups that pyarrow {versions['pyarrow']} reads{decoder}; "
        "whole batches, and workers are kept.",
        order,
        same,
    ]
    how = "shuffled" if found.shuffled else "in file order"
    head = f"{what}, {how}; medians of {found.rounds} rounds in turns, {found.cpus} CPUs"
    return "\n".join([head, "", *lines, "", *notes])
