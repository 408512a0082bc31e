"""The meeting point of Spark's tasks and the ranks: a small Flight server in the driver.

Tasks report their address; ranks ask for it, and from then on talk to the tasks directly. Both send heartbeats, and when
one stops, the others are notified. The state is :class:`Meeting`, with the clock as an argument; :class:`MeetingServer` is
its wire: actions with JSON.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pyarrow.flight as flight

from bowstring.endpoint import Endpoint, answer

__all__ = ["Meeting", "MeetingServer"]

# Longest wait of a long poll, in seconds.
_POLL = 5.0


@dataclass
class Meeting:
    """The state of one hand-off."""

    world_size: int
    """Ranks."""
    loader: dict[str, Any]
    """Options of the ranks' loaders."""
    timeout: float
    """Seconds for all ranks to arrive."""
    patience: float
    """Seconds that a rank may be silent."""
    generation: int = -1
    """Number of the serving submission of the job, from 0."""
    parts: list[dict[str, Any]] | None = None
    """The addresses of the rows; ``None`` while the tasks of this generation gather them."""
    failed: str | None = None
    """The reason why it cannot continue."""
    done: set[int] = field(default_factory=set)
    """Ranks that have finished."""
    seen: dict[int, float] = field(default_factory=dict)
    """Time of each rank's last heartbeat."""
    here: dict[int, tuple[str, str]] = field(default_factory=dict)
    """The loader that has each rank: its id, and its process."""
    replaced: dict[str, str] = field(default_factory=dict)
    """Loaders whose rank another one has taken, by id: what they are told if they still live."""
    ready_at: float | None = None
    """Time when the rows were first ready."""
    posted: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """The stores of this generation, by task."""

    @property
    def over(self) -> bool:
        """True once no rank needs the rows."""
        return self.failed is not None or len(self.done) == self.world_size

    def begin(self, generation: int) -> None:
        """Begins a submission of the job; the rows of the previous one are gone."""
        self.generation, self.parts, self.posted = generation, None, {}

    def post(self, generation: int, task: int, tasks: int, parts: list[dict[str, Any]], now: float) -> None:
        """Records that a task of a generation serves. The rows are ready when all do."""
        if generation != self.generation:
            return
        self.posted[task] = parts
        if len(self.posted) == tasks:
            self.parts = [part for task in sorted(self.posted) for part in self.posted[task]]
            self.ready_at = self.ready_at or now

    def arrive(self, rank: int, loader: str | None, process: str) -> bool:
        """Gives the rank to the loader that calls, if it is new: the process of the one before is dead, or has closed it.

        If it still lives, it is told so at its next heartbeat. ``True`` if the rank was another loader's.

        :param loader: its id; ``None`` for a loader of the version before, which has none.
        """
        if self.over or not 0 <= rank < self.world_size:
            return False
        before = self.here.get(rank)
        if loader is None or loader in self.replaced or (before is not None and loader == before[0]):
            return False
        self.here[rank] = (loader, process)
        self.done.discard(rank)
        if before is None:
            return False
        twice = f"rank {rank} is here twice: {before[1]} and then {process}"
        self.replaced[before[0]] = f"{twice}; give each process a rank of its own"
        return True

    def leave(self, rank: int, loader: str | None) -> None:
        """Records that a rank's loader was closed."""
        if 0 <= rank < self.world_size and loader not in self.replaced:
            self.done.add(rank)

    def rank(self, rank: int, now: float, loader: str | None = None) -> dict[str, Any]:
        """The answer to the heartbeat of a rank's loader."""
        if not 0 <= rank < self.world_size:
            return {"state": "failed", "why": f"rank {rank} is not one of the {self.world_size} that were announced"}
        if loader in self.replaced:
            return {"state": "failed", "why": self.replaced[loader]}
        if self.failed is not None:
            return {"state": "failed", "why": self.failed}
        if self.over and loader is not None and self.here.get(rank, ("", ""))[0] != loader:
            why = "all ranks have closed their loaders, which ends Spark's job; keep one open, or call serve() again"
            return {"state": "failed", "why": why}
        self.seen[rank] = now
        if self.parts is None:
            return {"state": "waiting", "generation": self.generation}
        ready = {"state": "ready", "generation": self.generation, "parts": self.parts}
        return {**ready, "loader": self.loader, "world_size": self.world_size}

    def check(self, now: float) -> None:
        """Ends it if a rank is missing for too long."""
        if self.over or self.ready_at is None:
            return
        missing = sorted(set(range(self.world_size)) - self.seen.keys())
        waited = now - self.ready_at
        if missing and waited > self.timeout:
            self.failed = f"rank {missing[0]} did not come within {waited:.0f} s (option timeout)"
        for rank, last in sorted(self.seen.items()):
            if rank not in self.done and now - last > self.patience:
                self.failed = self.failed or f"rank {rank} was silent for {now - last:.0f} s (option patience)"


class MeetingServer(Endpoint):
    """The wire of a :class:`Meeting`."""

    def __init__(self, meeting: Meeting, listen: str, **door: Any) -> None:
        self._meeting = meeting
        self._changed = threading.Condition()
        super().__init__(listen, **door)

    def change(self, what: str, *arguments: Any) -> None:
        """Calls a method of the meeting, and wakes all waiters."""
        with self._changed:
            getattr(self._meeting, what)(*arguments)
            self._changed.notify_all()

    def fail(self, why: str) -> None:
        """Ends it, with a reason that is reported to all."""
        with self._changed:
            self._meeting.failed = self._meeting.failed or why
            self._changed.notify_all()

    @property
    def over(self) -> bool:
        """True once no rank needs the rows."""
        with self._changed:
            return self._meeting.over

    @property
    def failed(self) -> str | None:
        """The reason why it could not continue."""
        with self._changed:
            return self._meeting.failed

    def wait(self, seconds: float) -> bool:
        """Waits up to ``seconds`` until it is over, checking the ranks in between."""
        end = time.monotonic() + seconds
        with self._changed:
            while not self._meeting.over and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(left, 0.5))
                self._meeting.check(time.monotonic())
            if self._meeting.over:
                self._changed.notify_all()
            return self._meeting.over

    def close(self) -> None:
        """Ends the server, and tells all waiters that it is over."""
        self.fail("the driver closed it")
        super().close()

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Answers tasks and ranks."""
        body = json.loads(action.body.to_pybytes())
        calls = {"spark.post": self._post, "spark.task": self._task, "spark.rank": self._rank, "spark.done": self._done}
        if action.type not in calls:
            raise flight.FlightServerError(f"no action {action.type!r} here: {', '.join(calls)}")
        return answer(calls[action.type](body))

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        task, tasks = int(body["task"]), int(body["tasks"])
        self.change("post", int(body["generation"]), task, tasks, list(body["parts"]), time.monotonic())
        return {}

    def _task(self, body: dict[str, Any]) -> dict[str, Any]:
        """Long poll of a task: answers when the task is no longer needed, or after a while."""
        end = time.monotonic() + min(float(body["wait"]), _POLL)
        meeting = self._meeting
        with self._changed:
            while (needed := not meeting.over and meeting.generation == body["generation"]) and (
                left := end - time.monotonic()
            ) > 0:
                self._changed.wait(left)
            return {"needed": needed, "failed": meeting.failed}

    def _rank(self, body: dict[str, Any]) -> dict[str, Any]:
        """Heartbeat and long poll of a rank: waits for news, a generation other than the one it knows, ready or not."""
        end = time.monotonic() + min(float(body["wait"]), _POLL)
        known = (body.get("generation"), body.get("state"))
        rank, loader = int(body["rank"]), body.get("id")
        with self._changed:
            if self._meeting.arrive(rank, loader, str(body.get("process"))):
                self._changed.notify_all()  # the loader that had the rank may wait here
            while True:
                found = self._meeting.rank(rank, time.monotonic(), loader)
                left = end - time.monotonic()
                done = rank in self._meeting.done
                if done or left <= 0 or (found.get("generation"), found["state"]) != known:
                    return found
                self._changed.wait(left)

    def _done(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._changed:
            self._meeting.leave(int(body["rank"]), body.get("id"))
            self._changed.notify_all()
        return {}
