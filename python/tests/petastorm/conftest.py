"""Datasets that Petastorm wrote, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from .datasets import folder


@pytest.fixture
def at() -> Callable[[str], str]:
    """URL of a dataset by name."""
    return lambda name: f"file://{folder(name)}"


@pytest.fixture
def expected() -> Callable[[str], dict[str, Any]]:
    """What a dataset holds."""
    return lambda name: dict(json.loads(folder(f"{name}.expected.json").read_text()))
