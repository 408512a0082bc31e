"""Lays out the pages of the documentation site: docs/ as it is, and the pages of the root beside it, the README as the first one.

    python scripts/site.py dist/pages

Links between pages go on to work, and to pictures; those to other files of the repository lead to where it is published.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/bowstring-data/bowstring/blob/main/"
# Pictures of the README, whose page on an index has no others.
RAW = "https://raw.githubusercontent.com/bowstring-data/bowstring/main/"
PICTURES = ROOT / "docs" / "pictures"
# Pages outside docs/, by their name on the site.
OTHERS = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
    "deploy/README.md": "deploy.md",
    **{
        f"deploy/{name}/README.md": f"deploy-{name}.md"
        for name in ("helm", "kustomize", "kubernetes", "prometheus", "slurm", "ray", "compose")
    },
}
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def pages() -> dict[Path, str]:
    """Each page by its file, with its name on the site."""
    found = {path: path.name for path in sorted((ROOT / "docs").glob("*.md"))}
    return {**found, **{ROOT / source: name for source, name in OTHERS.items()}}


def rewritten(link: str, page: Path, names: dict[Path, str]) -> str:
    """A link of `page` as it is on the site."""
    inside = link.startswith((REPOSITORY, RAW))
    if not inside and (link.startswith("#") or "://" in link):
        return link
    path, _, anchor = link.removeprefix(REPOSITORY).removeprefix(RAW).partition("#")
    target = (ROOT / path if inside else page.parent / path).resolve()
    anchor = f"#{anchor}" if anchor else ""
    # A directory stands for its README.
    for known in (target, target / "README.md"):
        if known in names:
            return names[known] + anchor
    if target.parent == PICTURES:
        return f"pictures/{target.name}"
    return REPOSITORY + target.relative_to(ROOT).as_posix() + anchor


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    names = pages()
    for page, name in names.items():
        text = LINK.sub(lambda found, page=page: rewritten(found[1], page, names), page.read_text("utf-8"))
        (out / name).write_text(text, "utf-8")
    shutil.copytree(PICTURES, out / "pictures", dirs_exist_ok=True)
    for stale in {path.name for path in out.glob("*.md")} - set(names.values()):
        (out / stale).unlink()


if __name__ == "__main__":
    main()
