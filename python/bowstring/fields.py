"""Fields within the types of columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["lacking"]


def lacking(found: pa.DataType, wanted: pa.DataType) -> str | None:
    """The path of the first field of ``wanted`` that ``found`` lacks, within structs, lists and maps; a cast would make it null."""
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        known = {field.name: field.type for field in found}
        for field in wanted:
            if field.name not in known:
                return str(field.name)
            below = lacking(known[field.name], field.type)
            if below is not None:
                return f"{field.name}.{below}"
        return None
    for before, after in zip(_items(found), _items(wanted), strict=False):
        below = lacking(before, after)
        if below is not None:
            return below
    return None


def _items(kind: pa.DataType) -> list[Any]:
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if hasattr(kind, "value_type") else []
