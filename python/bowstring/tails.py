"""The last, incomplete step of an epoch: the option ``tail``, torch's word for it, and the default of an adapter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bowstring.errors import ConfigError
from bowstring.options import plain

__all__ = ["settled", "told"]


def told(options: Mapping[str, Any]) -> str | None:
    """The tail named by ``options`` (as ``tail`` or ``drop_last``) or the environment, if any."""
    tail = settled(options.get("tail"), options.get("drop_last"))
    return os.environ.get("BOWSTRING_TAIL") if tail is None else tail


def settled(tail: str | None, drop_last: bool | None) -> str | None:
    """``tail``, which may be given as ``drop_last``; ``None`` if neither determines it.

    :raises ConfigError: if the two disagree.
    """
    if drop_last is None:
        return tail
    drop_last = plain(drop_last)
    if not isinstance(drop_last, bool):
        raise ConfigError(f"option drop_last: {drop_last!r} is neither True nor False", option="drop_last")
    # A keyword overrides the environment, but drop_last=False names no tail that could override the environment's.
    other = os.environ.get("BOWSTRING_TAIL") if tail is None and not drop_last else tail
    if other is not None and (other == "drop") != drop_last:
        problem = f"{drop_last}, and tail is {other!r}; give one of the two"
        raise ConfigError(f"option drop_last: {problem}", option="drop_last")
    return "drop" if drop_last else tail
