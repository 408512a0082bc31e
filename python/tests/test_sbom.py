"""The list of bowstring's components: complete, with checksums and licences, and the same bytes each time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo to ask")


def made(path: Path) -> dict[str, Any]:
    script = ROOT / "scripts" / "sbom.py"
    subprocess.run(
        [sys.executable, str(script), "--output", str(path)], check=True, capture_output=True, cwd=path.parent
    )
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_list_has_every_shipped_crate_with_its_checksum_and_licence(tmp_path: Path) -> None:
    found = made(tmp_path / "one.json")
    components = {one["name"]: one for one in found["components"]}
    assert len(found["components"]) >= 100
    assert {"arrow", "parquet", "tonic", "pyo3", "object_store", "bowstring-python"} <= set(components)
    assert not {"proptest", "criterion", "turmoil", "rcgen"} & set(components), "those of tests are not shipped"
    for name, one in components.items():
        assert one["licenses"], name
        assert one["purl"] == f"pkg:cargo/{name}@{one['version']}"
        assert name == "bowstring-python" or len(one["hashes"][0]["content"]) == 64, name
    refs = {one["bom-ref"] for one in found["components"]} | {found["metadata"]["component"]["bom-ref"]}
    for one in found["dependencies"]:
        assert one["ref"] in refs
        assert set(one["dependsOn"]) <= refs
    assert str(ROOT) not in (tmp_path / "one.json").read_text()
    made(tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
