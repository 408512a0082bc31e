"""The licences of everything that the wheel and the binary contain, as one text: what their licences ask of whoever passes them on.

    python scripts/notices.py --output python/THIRD-PARTY-NOTICES.txt

It reads Cargo.lock as scripts/sbom.py does, and takes the texts from the archives of the crates, also of C that they vendor. A
text that several have is printed once. The same Cargo.lock makes the same bytes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from sbom import SHIPPED, command, metadata, shipped

TEXT = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense|readme\.ijg|patents)([-_.].*)?$", re.IGNORECASE)
# Vendored sources lie one or two directories down; deeper are test data.
DEEPEST = 2
SKIPPED = {"tests", "test", "benches", "examples", "fuzz", "testdata"}
RULE = "=" * 100


def texts(crate: Path) -> dict[str, str]:
    """The licence texts of a crate by their path in it."""
    found = {}
    for path in sorted(crate.rglob("*")):
        inside = path.relative_to(crate)
        if (
            len(inside.parts) > DEEPEST
            or SKIPPED & set(inside.parts)
            or not TEXT.match(path.name)
            or not path.is_file()
        ):
            continue
        if path.suffix in {".rs", ".py", ".c", ".h", ".go", ".html", ".toml", ".hbs"}:
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found[inside.as_posix()] = "\n".join(line.rstrip() for line in lines).strip()
    return found


def licence(package: dict[str, Any]) -> str:
    """What a crate says of its licence."""
    said: str = package["license"] or "see its text"
    return said.replace("/", " OR ")


def document(features: list[str]) -> str:
    """The whole."""
    found = metadata(features)
    packages = {package["id"]: package for package in found["packages"]}
    crates = [packages[node] for node in shipped(found) if packages[node]["name"] not in SHIPPED]
    crates.sort(key=lambda crate: (crate["name"], crate["version"]))
    by_text: dict[str, list[str]] = defaultdict(list)
    without = []
    for crate in crates:
        own = texts(Path(crate["manifest_path"]).parent)
        name = f"{crate['name']} {crate['version']}"
        for path, text in own.items():
            by_text[text].append(name if "/" not in path else f"{name} ({path})")
        if not own:
            without.append(
                f"{name}: {licence(crate)}; {', '.join(crate['authors']) or 'its authors'}; {crate['repository']}"
            )
    parts = [
        "bowstring is under the Apache License 2.0. It contains, or is built with, the crates below, each under its own licence.\n",
        *(f"{crate['name']} {crate['version']}: {licence(crate)}" for crate in crates),
    ]
    for text, names in sorted(by_text.items(), key=lambda one: one[1]):
        parts += ["", RULE, ", ".join(sorted(set(names))), RULE, "", text]
    if without:
        parts += ["", RULE, "Their archives have no text of the licence that they name:", RULE, "", *without]
    return "\n".join(parts) + "\n"


def made(features: list[str]) -> tuple[str, str]:
    """The text, and its size."""
    text = document(features)
    return text, f"{len(text.encode())} bytes"


if __name__ == "__main__":
    command(__doc__, made)
