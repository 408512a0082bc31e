"""Work on a thread of its own, where Ctrl-C never comes: an interrupt of whoever waits for it loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

__all__ = ["Uninterrupted"]

A = TypeVar("A")


class _Call(Generic[A]):
    """One call, and its outcome."""

    def __init__(self, work: Callable[[], A]) -> None:
        self.work = work
        self.begun = threading.Lock()
        self.ended = threading.Lock()
        self.ended.acquire()
        self.is_done = False
        self.result: A | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        # It may have been asked for twice, if an interrupt came in between.
        if not self.begun.acquire(blocking=False):
            return
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error
        self.is_done = True
        self.ended.release()


class Uninterrupted(Generic[A]):
    """Calls ``work`` on a thread of its own, one call at a time.

    The thread holds nothing between calls, so that whoever owns this may be collected; :meth:`close` ends it.
    """

    def __init__(self, work: Callable[[], A]) -> None:
        self._work = work
        self._asked: SimpleQueue[_Call[A] | None] = SimpleQueue()
        self._call: _Call[A] | None = None
        self._thread = threading.Thread(
            target=_serve, args=(self._asked,), name="bowstring-petastorm-rows", daemon=True
        )
        self._thread.start()

    def next(self) -> A | None:
        """The next outcome. After an interrupt, the next call waits for the same one."""
        if self._call is None:
            self._call = _Call(self._work)
        call = self._call
        if not call.is_done:
            self._asked.put(call)
            while not call.is_done:
                call.ended.acquire()
        # Python looks for interrupts when a call returns and when a loop goes back: there are none from here on.
        self._call = None
        if call.error is not None:
            raise call.error
        return call.result

    def close(self) -> None:
        """Lets the thread end after the present call."""
        self._asked.put(None)

    def join(self) -> None:
        """Waits for the thread, after :meth:`close`."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __del__(self) -> None:
        self._asked.put(None)


def _serve(asked: SimpleQueue[_Call[A] | None]) -> None:
    while (call := asked.get()) is not None:
        call.run()
        del call
