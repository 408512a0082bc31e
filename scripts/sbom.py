"""What bowstring is made of, as CycloneDX 1.5 in JSON: every crate in the wheel and the binary, or needed to build them.

    python scripts/sbom.py --output dist/bowstring.cdx.json

It asks `cargo metadata --locked` and Cargo.lock, and the network only for crates of other systems that were never fetched. The
document has no time and no place in it: the same Cargo.lock makes the same bytes, on every machine.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# What is shipped; the crates of tests and benches are not.
SHIPPED = ("bowstring", "bowstring-python")


def checksums(lock: str) -> dict[tuple[str, str], str]:
    """SHA-256 of each crate's archive, by name and version."""
    found = {}
    for entry in lock.split("[[package]]")[1:]:
        said = dict(re.findall(r'^(name|version|checksum) = "(.*)"$', entry, re.MULTILINE))
        if "checksum" in said:
            found[said["name"], said["version"]] = said["checksum"]
    return found


def metadata(features: list[str]) -> dict[str, Any]:
    """What cargo says of all packages and of how they depend on each other."""
    chosen = ["--features", ",".join(features)] if features else ["--all-features"]
    command = ["cargo", "metadata", "--format-version", "1", "--locked", *chosen]
    done = subprocess.run([*command, "--offline"], cwd=ROOT, check=False, capture_output=True)
    if done.returncode:
        # Crates of other systems are not there until somebody fetches them: a build takes those of its own alone.
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def shipped(found: dict[str, Any]) -> dict[str, list[str]]:
    """The packages that are reached from what is shipped, and what each needs: to run or to be built, not to be tested."""
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    names = {package["id"]: package["name"] for package in found["packages"]}
    left = [node for node in nodes if names[node] in SHIPPED]
    reached: dict[str, list[str]] = {}
    while left:
        at = left.pop()
        if at in reached:
            continue
        kinds = ((dep["pkg"], {kind["kind"] for kind in dep["dep_kinds"]}) for dep in nodes[at]["deps"])
        reached[at] = sorted(package for package, kind in kinds if kind - {"dev"})
        left += reached[at]
    return reached


def component(package: dict[str, Any], sums: dict[tuple[str, str], str]) -> dict[str, Any]:
    """One package, as the document has it."""
    name, version = package["name"], package["version"]
    purl = f"pkg:cargo/{name}@{version}"
    made: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if package["license"]:
        # Cargo's old way to write a choice.
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if (name, version) in sums:
        made["hashes"] = [{"alg": "SHA-256", "content": sums[name, version]}]
    if package["repository"]:
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return made


def document(features: list[str]) -> dict[str, Any]:
    """The whole."""
    found = metadata(features)
    packages = {package["id"]: package for package in found["packages"]}
    sums = checksums((ROOT / "Cargo.lock").read_text())
    reached = shipped(found)
    made = {node: component(packages[node], sums) for node in reached}
    own = next(node for node in reached if packages[node]["name"] == SHIPPED[0])
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**made[own], "type": "application"}},
        "components": sorted((one for node, one in made.items() if node != own), key=lambda one: one["bom-ref"]),
        "dependencies": sorted(
            (
                {"ref": made[node]["bom-ref"], "dependsOn": sorted({made[need]["bom-ref"] for need in needs})}
                for node, needs in reached.items()
            ),
            key=lambda one: str(one["ref"]),
        ),
    }
    content = json.dumps(bom, sort_keys=True)
    return {**bom, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"}


def command(about: str | None, make: Callable[[list[str]], tuple[str, str]]) -> None:
    """The command line of a script: ``make`` gives the text for some features, and what is said of it."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="where it is written; standard output without")
    parser.add_argument("--features", nargs="*", default=[], help="features of the workspace; all by default")
    given = parser.parse_args()
    text, said = make(given.features)
    if given.output is None:
        print(text, end="")
    else:
        given.output.write_text(text)
        print(f"{given.output}: {said}")


def made(features: list[str]) -> tuple[str, str]:
    """The document as text, and its size."""
    found = document(features)
    return json.dumps(found, indent=1, sort_keys=True) + "\n", f"{len(found['components'])} components"


if __name__ == "__main__":
    command(__doc__, made)
