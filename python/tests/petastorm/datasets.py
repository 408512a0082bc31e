"""Datasets written by Petastorm, and their contents."""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
from decimal import Decimal
from typing import Any

import numpy as np

FIXTURES = pathlib.Path(__file__).resolve().parents[3] / "fixtures"
CODECS = "petastorm_allcodecs_0.13.1"
LEGACY = [f"petastorm_legacy_{version}" for version in ("0.4.0", "0.4.3", "0.6.0", "0.7.6")]


def folder(name: str) -> pathlib.Path:
    """Returns the path of a dataset, or of its expected values with `.expected.json`."""
    return FIXTURES / "petastorm" / name


def same(value: Any, wanted: Any) -> bool:
    """Returns true if a value is the expected one, type and shape included."""
    if wanted is None:
        return value is None
    kind = wanted["kind"]
    if kind == "ndarray":
        return isinstance(value, np.ndarray) and same_array(value, wanted)
    if kind == "decimal":
        return isinstance(value, Decimal) and str(value) == wanted["value"]
    if not isinstance(value, getattr(np, kind)):
        return False
    if kind == "datetime64":
        return bool(value == np.datetime64(wanted["value"]))
    if kind.startswith("float") and not np.isfinite(float(wanted["value"])):
        return bool(np.array_equal(value, float(wanted["value"]), equal_nan=True))
    return bool(value == wanted["value"])


def same_array(value: Any, wanted: Any) -> bool:
    """Compares arrays: element type, shape, and bytes or texts."""
    if value.dtype.str != wanted["dtype"] or list(value.shape) != wanted["shape"]:
        return False
    if "values" in wanted:
        texts = [base64.b64decode(v[4:]) if value.dtype.kind == "S" else v for v in wanted["values"]]
        return bool(value.ravel().tolist() == texts)
    return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest() == wanted["sha256_c_order"]


def runs() -> int:
    """Number of times a test repeats a read: the full count under BOWSTRING_SOAK=1."""
    return 100 if os.environ.get("BOWSTRING_SOAK") == "1" else 10
