"""Rows of all streams to one model: a micro-batch runs when it is full, or its oldest row has waited long enough."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from bowstring.inference.arrays import compact, joined
from bowstring.inference.streams import Failed, Stream

__all__ = ["Batcher"]

# Most characters of an error that are kept for clients.
_MOST_SHOWN = 2000


@dataclass
class _Waiting:
    stream: Stream
    first: int
    batch: pa.RecordBatch
    since: float
    bytes: int
    """Bytes of the message that the rows came in, which is in memory until its last row is taken."""


class Batcher:
    """A thread that runs a model.

    :param model: maps rows to as many rows of answers.
    :param batch_size: most rows of a micro-batch.
    :param deadline: most seconds that a row waits for others.
    :param max_rows: rows that wait for the model; more wait with their clients.
    :param max_bytes: bytes of messages with such rows; more wait with their clients.
    :param answered: called after the answers of each micro-batch.
    """

    def __init__(
        self,
        model: Callable[[pa.RecordBatch], pa.RecordBatch],
        batch_size: int,
        deadline: float,
        max_rows: int,
        max_bytes: int,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._model = model
        self.batch_size = batch_size
        """Most rows of a micro-batch."""
        self._deadline = deadline
        self._max_rows = max_rows
        self.max_bytes = max_bytes
        """Most bytes of a message."""
        self._answered = answered
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._rows = 0
        self._bytes = 0
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
            while (self._rows >= self._max_rows or self._bytes >= self.max_bytes) and not self._closed:
                self._changed.wait(1.0)

    def put(self, stream: Stream, first: int, batch: pa.RecordBatch, size: int) -> None:
        """Queues rows for prediction, which came in a message of ``size`` bytes; those of one stream come in order."""
        with self._changed:
            self._waiting.append(_Waiting(stream, first, batch, time.monotonic(), size))
            self._rows += batch.num_rows
            self._bytes += size
            # Between its first row and its last, a micro-batch waits only for the deadline.
            if len(self._waiting) == 1 or self._is_full():
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread; queued rows are not predicted."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(30)

    def _is_full(self) -> bool:
        """True if a micro-batch need not wait: it has its rows, or no more may come."""
        return self._rows >= self.batch_size or self._bytes >= self.max_bytes

    def _gather(self) -> list[_Waiting]:
        """The rows of the next micro-batch; none at the end."""
        with self._changed:
            while not self._closed:
                if self._is_full():
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
        room = self.batch_size
        while self._waiting and room:
            first = self._waiting[0]
            if taken and not first.batch.schema.equals(taken[0].batch.schema):
                break
            if first.batch.num_rows <= room:
                taken.append(self._waiting.popleft())
                self._bytes -= first.bytes
            else:
                taken.append(_Waiting(first.stream, first.first, first.batch.slice(0, room), first.since, 0))
                first.first += room
                first.batch = first.batch.slice(room)
            room -= taken[-1].batch.num_rows
        self._rows -= self.batch_size - room
        self._changed.notify_all()
        return taken

    def _run(self) -> None:
        while not self._closed:
            taken: list[_Waiting] = []
            # Whatever happens to the rows of one micro-batch, the next one gets its answers.
            try:
                taken = self._gather()
                self._answer(taken)
                self._answered()
            except BaseException as error:
                for one in taken:
                    one.stream.fail(f"the server failed: {_shown(error)}")

    def _answer(self, taken: list[_Waiting]) -> None:
        # Rows of one stream are adjacent and in order, so that each stream has one answer per micro-batch.
        streams: dict[int, list[_Waiting]] = {}
        for one in taken:
            if one.stream.failed is not None and not one.stream.again:
                continue
            streams.setdefault(id(one.stream), []).append(one)
        # Rows of a stream whose last ones failed run alone, so that one client does not make the others' run twice each time.
        together = [rows for rows in streams.values() if not rows[0].stream.failing]
        done = len(together) > 1 and self._predict(together) is None
        for rows in streams.values():
            if not done or rows[0].stream.failing:
                rows[0].stream.failing = not self._alone(rows)

    def _alone(self, rows: list[_Waiting]) -> bool:
        """Predicts rows of one stream: together, else message by message. Those that fail have their failure as answer."""
        if self._closed:
            return True
        error = self._predict([rows])
        if error is None:
            return True
        if len(rows) > 1:
            failed = [one for one in rows if not self._alone([one])]
            return not failed
        rows[0].stream.answer(rows[0].first, Failed(rows[0].batch.num_rows, f"the model failed: {_shown(error)}"))
        return False

    def _predict(self, streams: list[list[_Waiting]]) -> BaseException | None:
        """Predicts rows together, and passes each stream its answers; or returns the error, and none has answers."""
        try:
            batch = joined([one.batch for rows in streams for one in rows])
            self.batches += 1
            self.rows += batch.num_rows
            answers = self._model(batch)
            at, found = 0, []
            for rows in streams:
                count = sum(one.batch.num_rows for one in rows)
                found.append(compact(answers.slice(at, count)))
                at += count
        except BaseException as error:  # of the user's function: even an exit must not end the thread
            return error
        for rows, answer in zip(streams, found, strict=True):
            rows[0].stream.answer(rows[0].first, answer)
        return None


def _shown(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_MOST_SHOWN]
    except BaseException:  # the text, too, comes from the user's code
        return type(error).__name__
