"""Days and times on the calendar that ended in 1582, as Spark 2 writes them, and later versions in mode LEGACY."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

__all__ = ["long_column", "old_column"]

_VERSION, _LEGACY, _LEGACY_LONG = (
    b"org.apache.spark." + key for key in (b"version", b"legacyDateTime", b"legacyINT96")
)
# The first versions of Spark that write the calendar of today unless they say otherwise.
_PROLEPTIC, _PROLEPTIC_LONG = (3, 0), (3, 1)
# Days from 1970-01-01 to 1582-10-15, and seconds to 1900-01-01: older ones are other days, or have other offsets.
_FIRST_DAY, _FIRST_SECOND = -141_427, -2_208_988_800
_PER_SECOND = {"milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}


def old_column(footer: Any, columns: Collection[str]) -> str | None:
    """The first of ``columns`` that has such a value, by the statistics of ``footer``, a ``pyarrow.parquet.FileMetaData``."""
    if not _is_legacy(footer, _PROLEPTIC, _LEGACY):
        return None
    first = {at: least for at in range(len(footer.schema)) if (least := _first(footer.schema.column(at))) is not None}
    for number in range(footer.num_row_groups if first else 0):
        group = footer.row_group(number)
        for at, least in first.items():
            chunk = group.column(at)
            known = chunk.statistics if chunk.path_in_schema.split(".")[0] in columns else None
            if known is not None and known.has_min_max and known.min_raw < least:
                return str(chunk.path_in_schema)
    return None


def long_column(footer: Any, columns: Collection[str]) -> str | None:
    """The first of ``columns`` that may have such times of 96 bits, which have no order, and so no statistics."""
    if not _is_legacy(footer, _PROLEPTIC_LONG, _LEGACY_LONG):
        return None
    for leaf in map(footer.schema.column, range(len(footer.schema))):
        if leaf.physical_type == "INT96" and leaf.path.split(".")[0] in columns:
            return str(leaf.path)
    return None


def _is_legacy(footer: Any, proleptic: tuple[int, int], key: bytes) -> bool:
    """True if a Spark of before the version ``proleptic`` wrote it, or a later one that says so by ``key``."""
    said = footer.metadata or {}
    version = re.match(rb"(\d+)(?:\.(\d+))?", said.get(_VERSION, b""))
    return version is not None and (key in said or (int(version[1]), int(version[2] or 0)) < proleptic)


def _first(leaf: Any) -> int | None:
    """The first value of a column of days or times of 64 bits that no calendar changes."""
    kind = leaf.logical_type.type
    if kind == "DATE":
        return _FIRST_DAY
    if kind == "TIMESTAMP" and leaf.physical_type == "INT64":
        return _FIRST_SECOND * _PER_SECOND[json.loads(leaf.logical_type.to_json())["timeUnit"]]
    return None
