"""Rows of all streams to one model: a micro-batch runs when it is full, or its oldest row has waited long enough."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from bowstring.inference.arrays import joined
from bowstring.inference.streams import Stream

__all__ = ["Batcher"]


@dataclass
class _Waiting:
    stream: Stream
    first: int
    batch: pa.RecordBatch
    since: float


class Batcher:
    """A thread that runs a model.

    :param model: maps rows to as many rows of answers.
    :param batch_size: most rows of a micro-batch.
    :param deadline: most seconds that a row waits for others.
    :param max_rows: rows that wait for the model; more wait with their clients.
    """

    def __init__(
        self, model: Callable[[pa.RecordBatch], pa.RecordBatch], batch_size: int, deadline: float, max_rows: int
    ) -> None:
        self._model = model
        self._batch_size = batch_size
        self._deadline = deadline
        self._max_rows = max_rows
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._rows = 0
        self._closed = False
        self.batches = 0
        """Micro-batches given to the model."""
        self.rows = 0
        """Rows given to the model."""
        self._thread = threading.Thread(target=self._run, name="bowstring-model", daemon=True)
        self._thread.start()

    def room(self) -> None:
        """Waits until more rows may come."""
        with self._changed:
            while self._rows >= self._max_rows and not self._closed:
                self._changed.wait(1.0)

    def put(self, stream: Stream, first: int, batch: pa.RecordBatch) -> None:
        """Queues rows for prediction; those of one stream come in order."""
        with self._changed:
            self._waiting.append(_Waiting(stream, first, batch, time.monotonic()))
            self._rows += batch.num_rows
            # Between its first row and its last, a micro-batch waits only for the deadline.
            if len(self._waiting) == 1 or self._rows >= self._batch_size:
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread; queued rows are not predicted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(30)

    def _gather(self) -> list[_Waiting]:
        """The rows of the next micro-batch; none at the end."""
        with self._changed:
            while not self._closed:
                if self._rows >= self._batch_size:
                    break
                left = self._waiting[0].since + self._deadline - time.monotonic() if self._waiting else None
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            if self._closed:
                return []
            return self._taken()

    def _taken(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        room = self._batch_size
        while self._waiting and room:
            first = self._waiting[0]
            if taken and not first.batch.schema.equals(taken[0].batch.schema):
                break
            if first.batch.num_rows <= room:
                taken.append(self._waiting.popleft())
            else:
                taken.append(_Waiting(first.stream, first.first, first.batch.slice(0, room), first.since))
                first.first += room
                first.batch = first.batch.slice(room)
            room -= taken[-1].batch.num_rows
        self._rows -= self._batch_size - room
        self._changed.notify_all()
        return taken

    def _run(self) -> None:
        while taken := self._gather():
            # Rows of one stream are adjacent and in order, so that each stream has one answer per micro-batch.
            streams: dict[int, list[_Waiting]] = {}
            for one in taken:
                streams.setdefault(id(one.stream), []).append(one)
            batch = joined([one.batch for of_stream in streams.values() for one in of_stream])
            self.batches += 1
            self.rows += batch.num_rows
            try:
                answers = self._model(batch)
            except Exception as error:
                for one in taken:
                    one.stream.fail(f"the model failed: {type(error).__name__}: {error}")
                continue
            at = 0
            for of_stream in streams.values():
                rows = sum(one.batch.num_rows for one in of_stream)
                of_stream[0].stream.answer(of_stream[0].first, answers.slice(at, rows))
                at += rows
