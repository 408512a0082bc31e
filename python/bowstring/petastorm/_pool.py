"""The user's functions on threads, with results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["Ordered"]

A = TypeVar("A")
B = TypeVar("B")


class Ordered(Generic[A, B]):
    """Calls ``work`` on the items of ``feed``, a few ahead on ``workers`` threads; with none, in :meth:`next` itself.

    An interrupt between any two steps loses no item. ``feed`` returns the same item until ``kept`` is called, which happens
    once or more when the item is held here.
    """

    def __init__(
        self, feed: Callable[[], A | None], work: Callable[[A], B], workers: int, kept: Callable[[], None]
    ) -> None:
        self._feed, self._work, self._kept = feed, work, kept
        self._ahead = workers + 2  # Petastorm's own bound on row groups in flight
        self._pool = ThreadPoolExecutor(workers, "bowstring-petastorm") if workers else None
        self._waiting: deque[Future[B]] = deque()
        self._fed: A | None = None
        self._future: Future[B] | None = None
        self._ended = False

    def next(self) -> B | None:
        """The next result; ``None`` at the end."""
        if self._pool is None:
            # Kept until its work is done, so that an interrupt in between does not lose it.
            fed = self._take()
            result = None if fed is None else self._work(fed)
            self._fed = None
            return result
        while not self._ended and len(self._waiting) < self._ahead:
            self._submit(self._pool)
        if not self._waiting:
            return None
        result = self._waiting[0].result()
        # Not popleft(): Python looks for interrupts when a call returns, and the result would be lost.
        del self._waiting[0]
        return result

    def _take(self) -> A | None:
        if self._fed is None:
            self._fed = self._feed()
        if self._fed is not None:
            self._kept()
        return self._fed

    def _submit(self, pool: ThreadPoolExecutor) -> None:
        """Passes the next item to the threads. Each step is kept, so that the next call resumes an interrupted one."""
        if self._future is None:
            fed = self._take()
            if fed is None:
                self._ended = True
                return
            self._future = pool.submit(self._work, fed)
        self._fed = None
        if not self._waiting or self._waiting[-1] is not self._future:
            self._waiting.append(self._future)
        self._future = None

    def __len__(self) -> int:
        return len(self._waiting)

    def again(self) -> None:
        """Resumes after the end, when the feed has more."""
        self._ended = False

    def close(self) -> None:
        """Lets running calls end and drops the others."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Waits for running calls."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
