"""Tables of other systems, known by the files of their logs: their directories hold more than their rows."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from bowstring.spark.listing import opened, stored, walked

__all__ = ["is_table", "log_of"]

_DELTA, _HUDI, _ICEBERG = "_delta_log", ".hoodie", "metadata"
_METADATA = (".metadata.json", ".metadata.json.gz")


def _system(names: Iterable[str]) -> str | None:
    """The system that has its log among ``names``, which are relative to a directory; by the rules of loaders."""
    for name in names:
        *parents, file = name.split("/")
        if _HUDI in parents:
            return "Hudi"
        if parents[-1:] == [_DELTA]:
            return "Delta Lake"
        if parents[-1:] == [_ICEBERG] and file.endswith(_METADATA):
            return "Iceberg"
    return None


def is_table(place: str) -> bool:
    """True if there is a table anywhere below a path or a store's URL: whose log pyarrow does not read."""
    from pyarrow import fs  # takes long, and writers do not need it

    system, base = opened(place)
    if system.get_file_info(base).type == fs.FileType.File:
        return False
    is_local = isinstance(system, fs.LocalFileSystem)
    found = filter(os.path.isfile, walked(base)) if is_local else stored(system, base)
    start = len(base.rstrip("/")) + 1
    return _system(path[start:] for path in found) is not None


def log_of(path: Path) -> str | None:
    """The system whose table a directory itself is."""
    logs = [path / name for name in (_DELTA, _HUDI, _ICEBERG)]
    return _system(f"{log.name}/{file.name}" for log in logs if log.is_dir() for file in log.iterdir())
