"""Datasets written by Petastorm, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from .datasets import folder


@pytest.fixture
def at() -> Callable[[str], str]:
    """Returns the URL of a dataset by name."""
    return lambda name: f"file://{folder(name)}"


@pytest.fixture
def expected() -> Callable[[str], dict[str, Any]]:
    """Returns the expected values of a dataset."""
    return lambda name: dict(json.loads(folder(f"{name}.expected.json").read_text()))
