"""What a run would read and hold, before anything but footers is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bowstring import _native
from bowstring.options import NAMES, document
from bowstring.words import refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bowstring.options import Url

__all__ = ["plan"]


def plan(url: Url | Sequence[Url], *, rate: float | None = None, **options: Any) -> dict[str, Any]:
    """What the ranks of a run read together, from footers alone, as ``bowstring plan`` prints it.

    ``asked`` is the world of ``world_size`` ranks, ``worlds`` are others, from 1 to 4,096 ranks: with as many rows per rank
    where ``batch_size`` is given, else with the same ``global_batch_size``. Of each: ``lanes``, how often the data are fetched
    by all ranks together (``times_read``), ``row_groups`` and how many of them several ranks decode (``shared_row_groups``),
    the ``memory`` that a rank needs and what it fetches before its first batch, in bytes. ``advice`` says what to change where
    the data are read 1.25 times or more.

    :param url: as for :class:`Loader`.
    :param rate: bytes that a rank reads per second, for ``first_batch_seconds``.
    :param options: those of :class:`Loader`.
    """
    options.pop("gang", None)
    refuse(name for name in sorted(options) if name not in NAMES)
    found: dict[str, Any] = json.loads(_native.plan(document(url, {**dict.fromkeys(NAMES), **options})))
    if rate:
        for world in (found["asked"], *found["worlds"]):
            world["first_batch_seconds"] = world["first_batch_bytes"] / rate
    return found
