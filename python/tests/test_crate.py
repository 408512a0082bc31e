"""The published parts: the crate's files, its features in its documentation, and the licences of the wheel's contents."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
needs_cargo = pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo to ask")


@needs_cargo
def test_the_crate_has_its_sources_and_nothing_else() -> None:
    command = ["cargo", "package", "--locked", "--offline", "--package", "bowstring", "--list", "--allow-dirty"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=100).stdout.split(
        "\n"
    )
    others = {line for line in listed if line and not re.match(r"(src/|examples/\w+\.rs$|benches/\w+\.rs$)", line)}
    made = {".cargo_vcs_info.json", "Cargo.toml", "Cargo.toml.orig", "Cargo.lock"}
    assert others - made == {"README.md", "LICENSE", "CHANGELOG.md"}
    assert "src/cli/pictures.parquet" in listed, "the data of the demo"


def test_every_feature_is_in_the_documentation() -> None:
    cargo = (ROOT / "Cargo.toml").read_text()
    features = re.search(r"^\[features\]\n(.*?)^\[", cargo, re.MULTILINE | re.DOTALL)
    assert features is not None
    names = set(re.findall(r"^(\w+) = \[", features[1], re.MULTILINE)) - {"default"}
    default = re.search(r"^default = \[(.*)\]$", features[1], re.MULTILINE)
    assert default is not None
    told = dict(re.findall(r"^//! \| `(\w+)` \| (yes|no) \|", (ROOT / "src" / "lib.rs").read_text(), re.MULTILINE))
    assert told == {name: "yes" if f'"{name}"' in default[1] else "no" for name in names}


def test_docs_rs_shows_every_feature_but_the_one_that_builds_c() -> None:
    cargo = (ROOT / "Cargo.toml").read_text()
    lib = (ROOT / "src" / "lib.rs").read_text()
    (shown,) = re.findall(r"^\[package.metadata.docs.rs\]\nfeatures = \[(.*)\]$", cargo, re.MULTILINE)
    optional = set(re.findall(r"^//! \| `(\w+)` \| no \|", lib, re.MULTILINE))
    assert set(re.findall(r'"(\w+)"', shown)) == optional - {"turbo"}
    assert 'rustdoc-args = ["--cfg", "docsrs"]' in cargo
    assert "#![cfg_attr(docsrs, feature(doc_cfg))]" in lib, "on docs.rs alone: no stable compiler has it"


@needs_cargo
def test_the_notices_have_a_text_for_every_crate(tmp_path: Path) -> None:
    for name in ("one", "other"):
        script = [sys.executable, str(ROOT / "scripts" / "notices.py"), "--output", str(tmp_path / name)]
        subprocess.run(script, cwd=tmp_path, check=True, capture_output=True, timeout=100)
    text = (tmp_path / "one").read_text()
    assert text == (tmp_path / "other").read_text()
    head, rest = text.split("=" * 100, 1)
    crates = re.findall(r"^(\S+) (\d\S+): ", head, re.MULTILINE)
    assert len(crates) >= 100
    for name, version in crates:
        assert f"{name} {version}" in rest, name
    assert not {"proptest", "criterion"} & {name for name, _ in crates}, "those of tests are not shipped"
    # C libraries bundled by crates.
    for vendored in ("turbojpeg-sys", "zstd-sys", "aws-lc-sys"):
        assert re.search(rf"{vendored} \S+ \(\S+\)", rest), vendored
    for words in ("Independent JPEG Group", "Apache License", "Permission is hereby granted"):
        assert words in rest


def test_the_project_takes_the_notices_in() -> None:
    project = (ROOT / "python" / "pyproject.toml").read_text()
    assert 'license-files = ["LICENSE", "THIRD-PARTY-NOTICES*"]' in project
    assert (ROOT / "python" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_all_means_every_extra() -> None:
    project = (ROOT / "python" / "pyproject.toml").read_text()
    part = project.split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = re.findall(r"^(\w+) = \[", part, re.MULTILINE)
    every = re.search(r'^all = \["bowstring\[(.*)\]"\]$', part, re.MULTILINE)
    assert every is not None
    assert every[1].split(",") == sorted(set(extras) - {"all"})
