"""The real Petastorm against bowstring.petastorm, if PETASTORM_PYTHON names an interpreter that has it."""

from __future__ import annotations

import os
import pathlib

import pytest

from . import side_by_side
from .datasets import FIXTURES


@pytest.mark.timeout(900)
def test_side_by_side(tmp_path: pathlib.Path) -> None:
    python = os.environ.get("PETASTORM_PYTHON")
    if python is None:
        pytest.skip("PETASTORM_PYTHON is not set: no real Petastorm to compare with (see side_by_side.py)")
    pytest.importorskip("pandas")
    side_by_side.make_plain(tmp_path)
    theirs = side_by_side.petastorm_side(python, FIXTURES, str(tmp_path))
    ours = side_by_side.run("bowstring.petastorm", side_by_side.At(str(FIXTURES), str(tmp_path)), "")
    assert len(theirs) >= 200
    differ = {name for name in theirs if not side_by_side.agree(theirs[name], ours[name])}
    assert differ - side_by_side.KNOWN.keys() == set()
