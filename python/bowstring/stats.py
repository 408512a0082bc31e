"""The counters of a loader, as types."""

from __future__ import annotations

from typing import TypedDict

__all__ = ["Cache", "Device", "Memory", "Spent", "Stage", "Stats"]


class Stage(TypedDict):
    """Totals of one stage since the loader was opened."""

    items: int
    """Finished row groups (``read``, ``decode``) or batches (``batch``, ``consumer``)."""
    bytes: int
    """Bytes that came out: as stored (``read``), as Arrow (``decode``), as tensors and Arrow columns (``batch``,
    ``consumer``)."""
    worked_seconds: float
    """Seconds of work, summed over threads; of ``consumer`` seconds outside the loader."""
    waited_seconds: float
    """Seconds of waiting for the stage before or for memory; of ``consumer`` seconds of waiting for a batch."""


class Memory(TypedDict):
    """Memory of one loader, in bytes."""

    budget: int
    used: int
    peak: int


class Cache(TypedDict):
    """Hits and misses of the cache: numbers of byte ranges, and their bytes."""

    hits: int
    hit_bytes: int
    shared: int
    """Ranges that another reader was fetching at the time."""
    shared_bytes: int
    peer_hits: int
    """Ranges that the caches of other hosts had, of ``peer_bytes`` bytes."""
    peer_bytes: int
    peer_failures: int
    """Times that the cache of another host failed, refused or was too slow; the next one or the origin was asked."""
    given: int
    """Ranges fetched from their origin and given to another host, which keeps them for all."""
    misses: int
    """Ranges fetched from their origin, of ``origin_bytes`` bytes."""
    origin_bytes: int
    ahead: int
    """Ranges fetched ahead of their use, of ``ahead_bytes`` bytes; misses or ``peer_hits`` as well, and hits when they are read."""
    ahead_bytes: int
    kept: int
    refused: int
    """Ranges fetched and not kept: everything in the cache is needed sooner."""
    evicted: int
    damaged: int
    """Copies that were damaged, and fetched again."""
    failures: int
    """Times that the disk of the cache failed or was full; the origin was read instead."""
    bypassed: int


class Device(TypedDict):
    """Counters of the copies to a GPU."""

    batches: int
    bytes: int
    allocations: int
    overflows: int
    refused: int
    decoder: str | None
    held: int
    quarantined: int


class Spent(TypedDict):
    """Seconds of the consumer's time by what they went to, since it asked for the first batch."""

    store: float
    """Waits for bytes of the store, or of files of this machine."""
    cache: float
    decode: float
    """Waits for Parquet to become values, or for a thread that does it."""
    transform: float
    """Waits for images to be decoded, cut and resized."""
    batch: float
    """Waits for rows to be gathered into a batch, or for a thread that does it."""
    queue: float
    """Waits while nothing was under way: for memory, mostly."""
    wire: float
    """0: the waits of a served dataset are ``server``."""
    server: float
    """Waits for batches of a server."""
    transfer: float
    """Waits for copies to a GPU."""
    consumer: float
    """Time outside of the loader, in which it was not waited for."""


class _Stats(TypedDict):
    read: Stage
    decode: Stage
    batch: Stage
    consumer: Stage
    rows: int
    copied_per_delivered: float
    seconds: float
    seconds_to_first_batch: float | None
    memory: Memory
    cache: Cache
    spent: Spent
    bottleneck: str | None
    """A name of ``spent``; ``None`` before the first batch was asked for."""
    waiting: float


class Stats(_Stats, total=False):
    """The counters of a loader; ``device`` only if batches are delivered on a GPU."""

    device: Device
