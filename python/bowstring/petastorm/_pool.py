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
    """Calls ``work`` on the items of ``feed``, a few ahead on ``workers`` threads; with none, in :meth:`next` itself."""

    def __init__(self, feed: Callable[[], A | None], work: Callable[[A], B], workers: int) -> None:
        self._feed, self._work = feed, work
        self._ahead = workers + 2  # Petastorm's own bound on row groups in flight
        self._pool = ThreadPoolExecutor(workers, "bowstring-petastorm") if workers else None
        self._waiting: deque[Future[B]] = deque()
        self._fed: A | None = None
        self._ended = False

    def next(self) -> B | None:
        """The next result; ``None`` at the end."""
        if self._pool is None:
            if self._fed is None:
                self._fed = self._feed()
            # Kept until its work is done, so that an interrupt in between does not lose it.
            result = None if self._fed is None else self._work(self._fed)
            self._fed = None
            return result
        while not self._ended and len(self._waiting) < self._ahead:
            fed = self._feed()
            if fed is None:
                self._ended = True
            else:
                self._waiting.append(self._pool.submit(self._work, fed))
        if not self._waiting:
            return None
        result = self._waiting[0].result()
        self._waiting.popleft()
        return result

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
