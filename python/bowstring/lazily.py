"""Names of a package whose modules are imported when they are first named."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["named"]


def named(package: str, homes: Mapping[str, str], name: str) -> Any:
    """What ``__getattr__`` of a package returns: ``name`` of the module that ``homes`` has for it, or a module of that name."""
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module = importlib.import_module(homes[name])
    found = module if homes[name].rpartition(".")[2] == name else getattr(module, name)
    setattr(sys.modules[package], name, found)
    return found
