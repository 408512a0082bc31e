"""Caches of decoded data, for code that brings its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

__all__ = ["CacheBase", "NullCache"]


class CacheBase(ABC):
    """Holds values by key."""

    @abstractmethod
    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        """The value of ``key``; if there is none, ``fill_cache_func`` makes it."""


class NullCache(CacheBase):
    """Holds nothing."""

    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        return fill_cache_func()
