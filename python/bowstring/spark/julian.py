"""Days and times on the calendar that ended in 1582, as Spark 2 writes them, and later versions in mode LEGACY."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

__all__ = ["old_column"]

_VERSION, _LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacyDateTime"
# Days from 1970-01-01 to 1582-10-15, and seconds to 1900-01-01: older ones are other days, or have other offsets.
_FIRST_DAY, _FIRST_SECOND = -141_427, -2_208_988_800
_PER_SECOND = {"milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}


def old_column(footer: Any, columns: Collection[str]) -> str | None:
    """The first of ``columns`` that has such a value, by the statistics of ``footer``, a ``pyarrow.parquet.FileMetaData``."""
    said = footer.metadata or {}
    major = said.get(_VERSION, b"").split(b".")[0]
    if not major.isdigit() or (int(major) >= 3 and _LEGACY not in said):
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


def _first(leaf: Any) -> int | None:
    """The first value of a column of days or times that no calendar changes. Times of 96 bits have no order."""
    kind = leaf.logical_type.type
    if kind == "DATE":
        return _FIRST_DAY
    if kind == "TIMESTAMP" and leaf.physical_type == "INT64":
        return _FIRST_SECOND * _PER_SECOND[json.loads(leaf.logical_type.to_json())["timeUnit"]]
    return None
