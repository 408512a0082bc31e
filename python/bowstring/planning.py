"""The reads and memory of a run, computed from footers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypedDict

from bowstring import _native, display
from bowstring.credentials import provider
from bowstring.filesystem import through
from bowstring.options import NAMES, document, urls_of
from bowstring.ranges import fraction
from bowstring.tails import settled
from bowstring.words import refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bowstring.options import Url

__all__ = ["plan"]


class _World(TypedDict):
    """The reads of one number of ranks in an epoch."""

    world_size: int
    global_batch_size: int
    lanes: int
    times_read: float
    bytes: int
    row_groups: int
    shared_row_groups: int
    imbalance: float
    memory: int | None
    first_batch_bytes: int


class World(_World, total=False):
    """As :class:`_World`; with ``first_batch_seconds`` if a rate is given."""

    first_batch_seconds: float


class Reading(TypedDict):
    """The result of :func:`plan`."""

    row_groups: int
    units: int
    asked: World
    worlds: list[World]
    advice: list[str]


class _Plan(dict[str, Any]):
    """A :class:`Reading` that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        """For notebooks: the reads for each number of ranks, and the advice."""
        header = ("ranks", "global batch", "lanes", "times read", "bytes", "memory of a rank")
        worlds = [self["asked"], *self["worlds"]]
        rows = [
            (
                f"{world['world_size']:,}",
                f"{world['global_batch_size']:,}",
                f"{world['lanes']:,}",
                f"{world['times_read']:.2f}",
                f"{world['bytes']:,}",
                "" if world["memory"] is None else f"{world['memory']:,}",
            )
            for world in worlds
        ]
        caption = (
            f"bowstring.plan: {self['row_groups']:,} row groups, {self['units']:,} units; the first line is this run"
        )
        return display.table(caption, header, rows, [display.lines(self["advice"])])


def plan(url: Url | Sequence[Url], *, rate: float | None = None, **options: Any) -> Reading:
    """The reads of all ranks of a run together, from footers alone, as in ``bowstring plan``.

    ``row_groups`` are those of the files; ``units`` are shuffled, dealt to ranks and read: these row groups, or ranges of pages
    of large ones if files have a page index. ``asked`` is the world of ``world_size`` ranks, ``worlds`` are others, from 1 to
    4,096 ranks: with as many rows per rank if ``batch_size`` is given, else with the same ``global_batch_size``. Each has
    ``lanes``, the number of times that all ranks together fetch the data (``times_read``), the units read and those of them
    that several ranks decode (``row_groups``, ``shared_row_groups``), the ``memory`` that a rank needs and its fetches before
    the first batch, both in bytes. ``advice`` names changes if the data are read 1.25 times or more.

    :param url: as for :class:`Loader`.
    :param rate: bytes that a rank reads per second, for ``first_batch_seconds``.
    :param options: those of :class:`Loader`.
    """
    options.pop("gang", None)
    provided = provider(options.pop("credential_provider", None))
    filesystem = options.pop("filesystem", None)
    if filesystem is not None:
        # Addresses of the store are valid for as long as it is kept.
        url, _store = through(filesystem, urls_of(url), {**options, "credential_provider": provided})
    options["tail"] = settled(options.get("tail"), options.pop("drop_last", None))
    refuse(name for name in sorted(options) if name not in NAMES)
    made = _Plan(json.loads(_native.plan(document(url, {**dict.fromkeys(NAMES), **options}), provided)))
    found: Reading = made  # type: ignore[assignment]  # a document of that shape
    if rate is not None:
        rate = fraction("rate", rate, 1e18)
        for world in (found["asked"], *found["worlds"]):
            world["first_batch_seconds"] = world["first_batch_bytes"] / rate
    return found
