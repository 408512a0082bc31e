"""Writes the drawings of the docs, docs/pictures/*.svg: the concepts, and a plot of the tables of docs/performance.md.

    python scripts/drawings.py            # write them
    python scripts/drawings.py --check    # fail if a file is not what this writes

Each has a background of its own and the colours of both themes, so it is readable wherever it is shown.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "pictures"
# Classes: colours of the light theme, then of the dark one.
COLOURS = {
    "back": ("#ffffff", "#1b1f27"),
    "ink": ("#1f2630", "#e6e9ee"),
    "soft": ("#667080", "#9aa5b5"),
    "line": ("#8a94a3", "#75808f"),
    "bad": ("#c0392b", "#ff7b6b"),
    "a": ("#bfdbfe", "#1e4f8f"),
    "b": ("#fde3b0", "#7a5a14"),
    "c": ("#c9ecd0", "#1f6136"),
    "d": ("#e4d4f7", "#5b3a86"),
    "none": ("#eef0f3", "#2a303a"),
}


def style() -> str:
    """The colours as classes: `a` fills, `ink-s` strokes."""
    light = "".join(f".{name}{{fill:{pair[0]}}}.{name}-s{{stroke:{pair[0]}}}" for name, pair in COLOURS.items())
    dark = "".join(f".{name}{{fill:{pair[1]}}}.{name}-s{{stroke:{pair[1]}}}" for name, pair in COLOURS.items())
    return f"text{{font:14px system-ui,sans-serif}}{light}@media(prefers-color-scheme:dark){{{dark}}}"


@dataclass
class Drawing:
    """One picture of `width` by `height` units; its title and description are for who does not see it."""

    name: str
    width: int
    height: int
    title: str
    description: str
    parts: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, text: str = "", dashed: bool = False
    ) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="{fill} line-s"{dash}/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 5, text, "middle")

    def text(self, x: float, y: float, text: str, anchor: str = "start", fill: str = "ink", bold: bool = False) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{fill}"{weight}>{escape(text)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, arrow: bool = False, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        head = ' marker-end="url(#head)"' if arrow else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="soft-s" stroke-width="1.5"{dash}{head}/>'
        )

    def cross(self, x: float, y: float, size: float = 7) -> None:
        for sign in (1, -1):
            self.parts.append(
                f'<line x1="{x - size:g}" y1="{y - sign * size:g}" x2="{x + size:g}" y2="{y + sign * size:g}" '
                'class="bad-s" stroke-width="3"/>'
            )

    def svg(self) -> str:
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0L8 4L0 8z" class="soft"/></marker>'
        )
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" aria-labelledby="t d">\n<title id="t">{escape(self.title)}</title>\n'
            f'<desc id="d">{escape(self.description)}</desc>\n<style>{style()}</style>\n<defs>{head}</defs>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="8" class="back"/>\n{body}\n</svg>\n'
        )


def order() -> Drawing:
    d = Drawing(
        "order",
        760,
        212,
        "The order is a function",
        "Data, seed and epoch go into a function; the rows of step 0, step 1 and step 1,000,000 come out,"
        " each computed directly.",
    )
    for row, text in enumerate(("dataset", "seed", "epoch")):
        d.box(20, 32 + 46 * row, 110, 32, "none", text)
        d.line(130, 48 + 46 * row, 206, 94, arrow=True)
    d.box(210, 62, 130, 64, "d", "order")
    for row, (step, rows) in enumerate(
        (("step 0", "17 3 9 22"), ("step 1", "5 31 8 14"), ("step 1,000,000", "40 2 19 26"))
    ):
        y = 24 + 56 * row
        d.line(340, 94, 406, y + 16, arrow=True)
        d.text(414, y + 21, step)
        for place, number in enumerate(rows.split()):
            d.box(530 + 50 * place, y, 44, 32, "abcd"[place], number)
    d.text(724, 200, "no step needs the one before", "end", "soft")
    return d


def lanes() -> Drawing:
    d = Drawing(
        "lanes",
        760,
        330,
        "Lanes and windows",
        "Row groups are shuffled and dealt to three lanes. Rows are shuffled within windows of a lane. A "
        "step takes the next rows of every lane, and ranks divide the step.",
    )
    d.text(20, 28, "row groups, shuffled by seed and epoch", bold=True)
    groups = (7, 2, 9, 4, 0, 5, 8, 1, 3)
    for place, number in enumerate(groups):
        d.box(20 + 56 * place, 40, 48, 34, "abc"[place % 3], str(number))
    d.text(20, 116, "dealt to lanes", bold=True)
    d.text(330, 116, "the next rows of every lane", bold=True)
    d.text(620, 116, "ranks", bold=True)
    for lane in range(3):
        y = 130 + 56 * lane
        d.text(20, y + 23, f"lane {lane}")
        for place, number in enumerate(groups[lane::3]):
            d.box(80 + 70 * place, y, 64, 34, "abc"[lane], str(number))
        d.line(290, y + 17, 346, 210, arrow=True)
        d.box(380, 160 + 34 * lane, 130, 34, "abc"[lane], ("17 3 9 22", "5 31 8 14", "40 2 19 26")[lane])
    d.box(350, 150, 170, 122, "none", dashed=True)
    # Drawn again above the frame, which would hide them.
    for lane in range(3):
        d.box(370, 160 + 34 * lane, 130, 34, "abc"[lane], ("17 3 9 22", "5 31 8 14", "40 2 19 26")[lane])
    d.text(435, 292, "one step: the global batch", "middle", "soft")
    d.line(80, 300, 214, 300)
    d.line(80, 294, 80, 306)
    d.line(214, 294, 214, 306)
    d.text(147, 320, "a window: its rows are shuffled", "middle", "soft")
    for rank in range(3):
        d.line(520, 210, 612, 147 + 56 * rank, arrow=True)
        d.box(616, 130 + 56 * rank, 110, 34, "none", f"rank {rank}")
    return d


def budget() -> Drawing:
    d = Drawing(
        "budget",
        760,
        230,
        "The budget",
        "Bytes of files, decoded row groups and finished batches share one number of bytes. Each stage "
        "reserves before it allocates, and waits while the budget is full.",
    )
    stages = (
        ("store", "none"),
        ("bytes of files", "a"),
        ("row groups, decoded", "b"),
        ("batches", "c"),
        ("training", "none"),
    )
    widths = (90, 130, 170, 110, 90)
    x = 20.0
    for place, ((text, fill), width) in enumerate(zip(stages, widths, strict=True)):
        d.box(x, 30, width, 40, fill, text)
        if place < 4:
            d.line(x + width, 50, x + width + 30, 50, arrow=True)
        x += width + 32
    d.text(20, 112, "memory_budget", bold=True)
    d.box(20, 124, 720, 44, "none")
    x = 20.0
    for text, width, fill in (("files", 120, "a"), ("row groups", 290, "b"), ("batches", 150, "c")):
        d.box(x, 124, width, 44, fill, text)
        x += width
    d.text(660, 151, "free", "middle", "soft")
    d.text(
        20,
        200,
        "Each part reserves its bytes before it takes them. While the budget is full, readers wait.",
        fill="soft",
    )
    d.text(20, 220, "A plan that cannot fit is refused when it is opened.", fill="soft")
    return d


def state() -> Drawing:
    d = Drawing(
        "state",
        760,
        250,
        "The state",
        "Four ranks train steps 0 to 2 of epoch 3 and save epoch 3, step 3. Three ranks load it and "
        "continue with step 3, the same global batch.",
    )
    d.text(20, 30, "4 ranks", bold=True)
    d.text(480, 30, "3 ranks", bold=True)
    for step in range(3):
        x = 80 + 84 * step
        d.text(x + 36, 52, f"step {step}", "middle", "soft")
        for rank in range(4):
            d.box(x, 62 + 27 * rank, 72, 27, "abcd"[rank])
    for step in range(3, 6):
        x = 480 + 84 * (step - 3)
        d.text(x + 36, 52, f"step {step}", "middle", "soft")
        for rank in range(3):
            d.box(x, 62 + 36 * rank, 72, 36, "abc"[rank])
    d.line(334, 116, 350, 116)
    d.cross(366, 116)
    d.line(386, 116, 472, 116, arrow=True)
    d.text(20, 122, "ranks")
    d.box(170, 196, 420, 36, "none", 'state: {"epoch": 3, "step": 3, "fingerprint": "9f2c…"}')
    d.line(326, 176, 300, 194, arrow=True)
    d.line(460, 194, 486, 176, arrow=True)
    d.text(740, 30, "the same global batches", "end", "soft")
    return d


def generation() -> Drawing:
    d = Drawing(
        "generation",
        760,
        260,
        "Generations of a gang",
        "Three ranks train together in generation 1. Rank 1 is lost at step 3, and all stop at once. In "
        "generation 2 all join again and go on from step 2, the last that all acknowledged. A process "
        "left over from generation 1 is refused.",
    )
    d.box(80, 34, 280, 150, "none", dashed=True)
    d.box(460, 34, 280, 150, "none", dashed=True)
    d.text(220, 26, "generation 1", "middle", bold=True)
    d.text(600, 26, "generation 2", "middle", bold=True)
    for rank in range(3):
        y = 52 + 44 * rank
        d.text(20, y + 20, f"rank {rank}")
        for step in range(3):
            d.box(92 + 66 * step, y, 58, 30, "abc"[rank], str(step))
        for step in range(2, 6):
            d.box(472 + 66 * (step - 2), y, 58, 30, "abc"[rank], str(step))
        if rank != 1:
            d.line(292, y + 15, 350, y + 15, dashed=True)
    d.cross(316, 111, 9)
    d.line(364, 108, 454, 108, arrow=True)
    d.text(409, 96, "join again", "middle", "soft")
    d.text(220, 206, "a rank is lost: all stop at once", "middle", "soft")
    d.text(600, 206, "from the last step that all acknowledged", "middle", "soft")
    d.line(330, 226, 454, 226, arrow=True, dashed=True)
    d.cross(466, 226)
    d.text(80, 231, "a process of generation 1, only slow")
    d.text(484, 231, "fenced: it receives nothing more", fill="soft")
    return d


def flow() -> Drawing:
    d = Drawing(
        "flow",
        760,
        250,
        "From Parquet to batches",
        "Footers make a plan of rows for each rank. Row groups are read from the store, decoded in Rust "
        "threads into one block of memory per batch, within one byte budget, and handed to the framework "
        "in the process, or to ranks through a server.",
    )
    d.box(20, 30, 130, 40, "none", "footers")
    d.line(150, 50, 196, 50, arrow=True)
    d.box(200, 30, 330, 40, "d", "plan: rows of every step of every rank")
    d.box(188, 100, 354, 100, "back", dashed=True)
    d.line(365, 70, 365, 98, arrow=True)
    d.box(20, 108, 130, 60, "none")
    d.text(85, 134, "Parquet", "middle")
    d.text(85, 153, "S3, HDFS, disks", "middle", "soft")
    d.line(150, 138, 196, 138, arrow=True)
    for x, width, fill, text, more in (
        (200, 96, "a", "read", "row groups"),
        (310, 104, "b", "decode", "Rust threads"),
        (428, 102, "c", "batch", "one block"),
    ):
        d.box(x, 108, width, 60, fill)
        d.text(x + width / 2, 134, text, "middle")
        d.text(x + width / 2, 153, more, "middle")
    d.line(296, 138, 308, 138, arrow=True)
    d.line(414, 138, 426, 138, arrow=True)
    d.text(365, 190, "within one byte budget", "middle", "soft")
    d.line(530, 138, 596, 78, arrow=True)
    d.line(530, 138, 596, 138, arrow=True)
    d.line(530, 138, 596, 198, arrow=True)
    d.box(600, 58, 144, 40, "none", "PyTorch")
    d.box(600, 118, 144, 40, "none", "TensorFlow, JAX")
    d.box(600, 178, 144, 40, "none", "ranks of a server")
    return d


def badges() -> Drawing:
    cargo, package = (ROOT / "Cargo.toml").read_text("utf-8"), (ROOT / "python" / "pyproject.toml").read_text("utf-8")

    def of(text: str, key: str) -> str:
        return re.findall(rf'^{key} = "(?:>=)?([^"]+)"', text, re.MULTILINE)[0]

    shown = (
        ("licence", of(package, "license"), "a"),
        ("Python", of(package, "requires-python") + "+", "b"),
        ("Rust", of(cargo, "rust-version") + "+", "b"),
        ("platform", "Linux", "c"),
        ("version", of(cargo, "version") + ", no release yet", "d"),
    )
    d = Drawing(
        "badges", 0, 24, "Licence, versions and platform", "; ".join(f"{name}: {value}" for name, value, _ in shown)
    )
    x = 0.0
    for name, value, fill in shown:
        for text, colour in ((name, "none"), (value, fill)):
            width = 8.2 * len(text) + 16
            d.box(x, 1, width, 22, colour, text)
            x += width
        x += 8
    d.width = int(x)
    return d


# The task in the table of readers, the unit of its bars, and the peers that are shown.
TASKS = (
    ("1,000 photos, random resized crop to 224, u8", "photos per second", ("tf.data",)),
    ("4M rows, zstd, to `[B, 39]` float32", "M rows per second, zstd", ("polars", "Lance")),
    ("the same, snappy", "M rows per second, snappy", ("polars",)),
    ("1M lists of int32 padded to 512, tokens", "M tokens per second", ("Lance",)),
)


def measured() -> list[tuple[str, list[tuple[str, str]]]]:
    """The bars of the plot, from docs/performance.md: the unit of a task, and who reached which figure."""
    page = (ROOT / "docs" / "performance.md").read_text("utf-8").partition("## Readers")[2]
    rows = [[cell.strip() for cell in row.split("|")] for row in page.splitlines() if row.startswith("| ")]
    bars = []
    for task, unit, peers in TASKS:
        (cells,) = (row[2:5] for row in rows if row[1] == task)
        ours = [
            (f"bowstring, {how}", cell.split()[0])
            for how, cell in zip(("file order", "shuffled"), cells, strict=False)
            if cell
        ]
        theirs = [(peer, re.findall(rf"{re.escape(peer)} ([\d,.]+)", cells[2])[0]) for peer in peers]
        bars.append((unit, ours + theirs))
    return bars


def readers() -> Drawing:
    bars = measured()
    told = "; ".join(f"{unit}: " + ", ".join(f"{name} {figure}" for name, figure in found) for unit, found in bars)
    d = Drawing("readers", 760, 0, "Throughput of readers on 2 cores", told)
    y = 24.0
    for unit, found in bars:
        d.text(20, y, unit, bold=True)
        y += 10
        lengths = [float(figure.replace(",", "")) for _, figure in found]
        for (name, figure), length in zip(found, lengths, strict=True):
            long = 470 * length / max(lengths)
            d.text(180, y + 16, name, "end")
            d.box(190, y, long, 22, {"bowstring, file order": "a", "bowstring, shuffled": "c"}.get(name, "none"))
            d.text(198 + long, y + 16, figure)
            y += 27
        y += 24
    note = "2 cores, medians, before version 3 of the order. Peers: file order; tf.data: a buffer of 1,000 rows."
    d.text(20, y - 6, note, fill="soft")
    d.height = int(y + 8)
    return d


def main() -> int:
    OUT.mkdir(exist_ok=True)
    drawings = {
        f"{d.name}.svg": d.svg()
        for d in (order(), lanes(), budget(), state(), generation(), flow(), badges(), readers())
    }
    if "--check" in sys.argv[1:]:
        found = {path.name: path.read_text("utf-8") for path in OUT.glob("*.svg")}
        wrong = sorted(name for name in found.keys() | drawings.keys() if found.get(name) != drawings.get(name))
        print("\n".join(f"docs/pictures/{name} is not what scripts/drawings.py writes" for name in wrong), end="")
        return 1 if wrong else 0
    for name, text in drawings.items():
        (OUT / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
