"""Every public callable of Petastorm exists with the same parameters, or its absence has a stated reason."""

from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from .dump_signatures import members, parameters

SIGNATURES = json.loads((pathlib.Path(__file__).parent / "signatures.json").read_text())["callables"]


def ours(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"bowstring.petastorm.{module}"), name)


@pytest.mark.parametrize("path", sorted(SIGNATURES))
def test_signature(path: str) -> None:
    if path.startswith("pytorch"):
        pytest.importorskip("torch")
    wanted = SIGNATURES[path]
    found = ours(path)
    if isinstance(wanted, list):
        assert names(parameters(found)) == names(wanted)
        return
    own = members(found)
    for name, signature in wanted.items():
        if name == "__init__" and len(signature) <= 1 + 2 and "args" in {p[0] for p in signature}:
            continue  # the constructor of object
        assert name in own, f"{path}.{name} is missing"
        if isinstance(signature, list):
            assert names(own[name]) == names(signature), f"{path}.{name}"
        else:
            assert own[name] == signature, f"{path}.{name}"


def names(signature: list[list[Any]]) -> list[tuple[str, str, Any]]:
    """Returns names, kinds and defaults in order."""
    return [(name, kind, default) for name, kind, default in signature]


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys, bowstring.petastorm\n"
        "heavy = {'torch', 'tensorflow', 'pyspark', 'pandas', 'pyarrow', 'cv2', 'pickle'} & set(sys.modules)\n"
        "assert heavy <= {'pickle'}, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nothing_is_unpickled() -> None:
    package = pathlib.Path(importlib.import_module("bowstring.petastorm").__file__ or "").parent
    word = "pickle" + ".load"
    found = [path for path in package.rglob("*.py") if word in path.read_text() or "import pickle" in path.read_text()]
    assert found == []
