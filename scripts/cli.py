"""Writes docs/cli.md, the page of the command line, from what the command says of itself, or checks that it was made from that.

    python scripts/cli.py            writes the page; needs a built package
    python scripts/cli.py --check    fails where the page is another

Options of datasets and loaders have a page of their own (docs/options.md): here they are one line of each verb that takes them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cli.md"
HEAD = """# Command line

Look up every verb of `bowstring` with its options. `bowstring VERB --help` says the same, and `bowstring man DIR` writes man pages.

The binary has this command line, and so has the Python package, as `bowstring` and as `python -m bowstring`. The verbs share their
[exit codes](../README.md#command-line). `scripts/cli.py` writes this page, and a test compares it with the command.
"""
# Sections of help whose options are those of docs/options.md, and where that page has them.
SHARED = {"Dataset:": ("Dataset", "Columns"), "Loader:": ("Order, ranks and resources",)}


def said(*verb: str) -> str:
    """The help of a verb, in an environment that sets no option."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BOWSTRING_")}
    command = [sys.executable, "-m", "bowstring", *verb, "--help"]
    environment = {**clean, "PYTHONPATH": str(ROOT / "python"), "NO_COLOR": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


def verbs(text: str) -> list[str]:
    """The verbs that a help lists."""
    _, _, listed = text.partition("\nCommands:\n")
    found = re.findall(r"^  ([a-z-]+) ", listed.partition("\n\n")[0], re.MULTILINE)
    return [verb for verb in found if verb != "help"]


def documented(headings: tuple[str, ...]) -> list[str]:
    """The flags of the options below some headings of docs/options.md."""
    parts = (ROOT / "docs" / "options.md").read_text("utf-8").split("\n## ")
    tables = [part for part in parts if part.partition("\n")[0] in headings]
    names = [name for table in tables for name in re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)]
    # Addresses are no flag.
    return [name.replace("_", "-") for name in names if name != "urls"]


def flag(line: str) -> str:
    """The option that a line of help is about."""
    found = re.match(r" +(?:-\w, )?--([a-z-]+)", line)
    return found[1] if found else ""


def shortened(text: str) -> tuple[str, list[str]]:
    """A help without the options that have a page of their own, and what it has of them."""
    parts, shared = [], []
    for part in text.rstrip().split("\n\n"):
        heading, _, options = part.partition("\n")
        if heading in SHARED:
            known = documented(SHARED[heading])
            lines = options.split("\n")
            taken = [flag(line) for line in lines if flag(line) in known]
            whose = f"a {heading.removesuffix(':').lower()}"
            if set(taken) == set(known):
                shared.append(f"all of {whose}")
            elif taken:
                shared.append(", ".join(f"`--{name}`" for name in taken) + f" of {whose}")
            kept = [line for line in lines if flag(line) not in {*known, "options"}]
            if not kept:
                continue
            part = "\n".join([heading, *kept])
        parts.append(re.sub(r"[ \t]+$", "", part, flags=re.MULTILINE))
    return "\n\n".join(parts), shared


def section(verb: tuple[str, ...]) -> list[str]:
    """The part of the page about a verb, and about those below it."""
    text = said(*verb)
    shown, shared = shortened(text)
    part = f"{'#' * (1 + len(verb))} {' '.join(verb)}\n\n```text\n{shown}\n```\n"
    if shared:
        part += f"\nOf the [options](options.md) it has {', and '.join(shared)}. `--options FILE` reads them from a JSON file.\n"
    return [part, *(one for below in verbs(text) for one in section((*verb, below)))]


def main() -> None:
    made = "\n".join([HEAD, *(part for verb in verbs(said()) for part in section((verb,)))])
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(made, "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != made:
        sys.exit(f"{PAGE.relative_to(ROOT)} is not what the command says; run python scripts/cli.py")


if __name__ == "__main__":
    main()
