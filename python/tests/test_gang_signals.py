"""A rank that is interrupted, dropped or cut off from its server: who learns of it, how soon, and who continues meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import pytest
from test_flight import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server("--drain-grace", "1")
    yield server
    server.stop()


def joined(server: Server, name: str, world: int) -> list[bowstring.flight.Gang]:
    members: dict[int, bowstring.flight.Gang] = {}

    def join(rank: int) -> None:
        members[rank] = bowstring.flight.Gang(server.url(), name, rank=rank, world_size=world, timeout=30)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [members[rank] for rank in range(world)]


class Interrupted:
    """Sends Ctrl-C after a delay."""

    def __init__(self, after: float) -> None:
        self.at = 0.0
        self._timer = threading.Timer(after, self._press)
        self._timer.start()

    def _press(self) -> None:
        self.at = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)


class Ticks:
    """Measures the longest pause of the other Python threads."""

    def __enter__(self) -> Ticks:
        self.longest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.01):
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()


def test_ctrl_c_in_a_barrier_leaves_at_once_and_the_other_ranks_learn_of_it(server: Server) -> None:
    first, second, third = joined(server, "interrupted", 3)
    told: list[tuple[float, str]] = []

    def wait() -> None:
        try:
            second.barrier(timeout=60)
        except bowstring.FencedError as error:
            told.append((time.monotonic(), str(error)))

    other = threading.Thread(target=wait)
    other.start()
    interrupted = Interrupted(0.5)
    with pytest.raises(KeyboardInterrupt), first:  # noqa: PT012
        try:
            first.barrier(timeout=60)
        finally:
            raised = time.monotonic()
    left = time.monotonic()
    other.join(30)
    assert raised - interrupted.at < 6
    assert left - interrupted.at < 9
    assert told, "the other rank was not told"
    assert told[0][0] - interrupted.at < 9
    assert "rank 0 failed: KeyboardInterrupt" in told[0][1]
    with pytest.raises(bowstring.FencedError):
        third.barrier(timeout=60)


def test_an_interrupted_barrier_can_be_repeated_and_an_interrupted_join_gives_its_place_back(server: Server) -> None:
    first, second = joined(server, "repeated", 2)
    interrupted = Interrupted(0.3)
    with pytest.raises(KeyboardInterrupt):
        first.barrier(timeout=60)
    assert time.monotonic() - interrupted.at < 6
    # The server notices a moment later.
    time.sleep(1)
    with pytest.raises(bowstring.TimeoutError, match="rank 0"):
        second.barrier(timeout=0.5)
    other = threading.Thread(target=second.barrier, args=(30,))
    other.start()
    first.barrier(timeout=30)
    other.join(30)
    interrupted = Interrupted(0.3)
    with pytest.raises(KeyboardInterrupt):
        bowstring.flight.Gang(server.url(), "given up", rank=0, world_size=2, timeout=60)
    assert time.monotonic() - interrupted.at < 6
    time.sleep(1)
    assert [member.rank for member in joined(server, "given up", 2)] == [0, 1]


def ends(call: Callable[..., object], *arguments: object) -> None:
    """Makes a call whose result does not matter: the peer may come back while the call is given up."""
    with contextlib.suppress(bowstring.Error):
        call(*arguments)


def test_calls_and_drops_let_other_threads_run() -> None:
    server = Server("--drain-grace", "1")
    try:
        first, second = joined(server, "dropped", 2)
        waiting = threading.Thread(target=ends, args=(first.barrier, 60))
        waiting.start()
        time.sleep(0.3)
        os.kill(server.process.pid, signal.SIGSTOP)
        with Ticks() as ticks:
            # One thread waits at a barrier, another leaves, and the server does not answer.
            leaving = threading.Thread(target=ends, args=(first._native.leave, "failed"))
            leaving.start()
            time.sleep(0.2)
            begin = time.monotonic()
            assert (first.rank, first.world_size, first.share, first.name) == (0, 2, (0, 2), "dropped")
            assert time.monotonic() - begin < 0.5
            begin = time.monotonic()
            del second
            assert time.monotonic() - begin < 3
        assert ticks.longest < 0.7
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
        server.stop()
    waiting.join(30)
    leaving.join(30)
