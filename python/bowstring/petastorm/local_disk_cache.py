"""Petastorm's cache on local disk, by name only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bowstring.errors import UnsupportedError
from bowstring.petastorm.cache import CacheBase

__all__ = ["LocalDiskCache", "check_size"]


def check_size(size_limit_bytes: int, expected_row_size_bytes: int, shards: int) -> None:
    """Refuses a cache that could hold fewer than five rows per shard, with Petastorm's exception."""
    if size_limit_bytes / shards < 5 * expected_row_size_bytes:
        raise ValueError(
            "Condition 'size_limit_bytes / shards < 5 * expected_row_size_bytes' needs to hold, otherwise hardly anything is kept: "
            f"a cache of {size_limit_bytes} bytes in {shards} shards holds fewer than 5 rows of "
            f"{expected_row_size_bytes} bytes each: raise the size limit"
        )


class LocalDiskCache(CacheBase):
    """Refused: it would store rows in a form that runs code when it is read.

    Readers accept ``cache_type="local-disk"`` and decode again instead.
    """

    def __init__(
        self,
        path: str,
        size_limit_bytes: int,
        expected_row_size_bytes: int,
        shards: int = 6,
        cleanup: bool = True,
        **settings: Any,
    ) -> None:
        check_size(size_limit_bytes, expected_row_size_bytes, shards)
        raise UnsupportedError(
            "LocalDiskCache kept pickled rows, which bowstring neither writes nor reads; copy the dataset to a local path, "
            f"or pass diskcache.FanoutCache({path!r}) to code of your own"
        )

    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        return fill_cache_func()

    def cleanup(self) -> None:
        """Nothing is kept."""
