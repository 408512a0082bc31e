"""Rows of all streams to one model: a micro-batch runs when it is full, or its oldest row has waited long enough.

Streams take turns, so that one with many rows waiting does not keep the others' for long.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
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
        # By stream; the next micro-batch begins with the first.
        self._waiting: OrderedDict[Stream, deque[_Waiting]] = OrderedDict()
        self._rows = 0
        self._bytes = 0
        self._closed = False
        self.batches = 0
        """Micro-batches given to the model."""
        self.rows = 0
        """Rows given to the model."""
        self._thread = threading.Thread(target=self._run, name="bowstring-model", daemon=True)
        self._thread.start()

    def room(self, stream: Stream) -> None:
        """Waits until more rows of a stream may come. The first may always: they do not wait for those of others."""
        with self._changed:
            while (
                stream in self._waiting
                and (self._rows >= self._max_rows or self._bytes >= self.max_bytes)
                and not self._closed
            ):
                self._changed.wait(1.0)

    def put(self, stream: Stream, first: int, batch: pa.RecordBatch, size: int) -> None:
        """Queues rows for prediction, which came in a message of ``size`` bytes; those of one stream come in order."""
        with self._changed:
            is_first = not self._waiting
            self._waiting.setdefault(stream, deque()).append(_Waiting(stream, first, batch, time.monotonic(), size))
            self._rows += batch.num_rows
            self._bytes += size
            # Between its first row and its last, a micro-batch waits only for the deadline.
            if is_first or self._is_full():
                self._changed.notify_all()

    def drop(self, stream: Stream) -> int | None:
        """Forgets the waiting rows of a stream, and returns the number of the first; ``None`` if none wait."""
        with self._changed:
            queue = self._waiting.pop(stream, None)
            if queue is None:
                return None
            self._rows -= sum(one.batch.num_rows for one in queue)
            self._bytes -= sum(one.bytes for one in queue)
            self._changed.notify_all()
            return queue[0].first

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
                since = min((queue[0].since for queue in self._waiting.values()), default=None)
                left = since + self._deadline - time.monotonic() if since is not None else None
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            if self._closed:
                return []
            return self._taken()

    def _taken(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        left = self.batch_size
        turns = list(self._waiting)
        while left and turns:
            share = max(1, left // len(turns))
            again = []
            for stream in turns:
                if not left:
                    break
                # One that is passed over, for rows of another schema, begins the next micro-batch.
                if taken and not self._waiting[stream][0].batch.schema.equals(taken[0].batch.schema):
                    continue
                left -= self._take(stream, min(share, left), taken)
                if stream in self._waiting:
                    again.append(stream)
            turns = again
        self._rows -= self.batch_size - left
        self._changed.notify_all()
        return taken

    def _take(self, stream: Stream, most: int, taken: list[_Waiting]) -> int:
        """Moves rows of one schema from a stream's queue to ``taken``, and returns their number; its next turn is the last."""
        queue = self._waiting[stream]
        self._waiting.move_to_end(stream)
        left = most
        while left and queue and queue[0].batch.schema.equals((taken or queue)[0].batch.schema):
            first = queue[0]
            if first.batch.num_rows <= left:
                taken.append(queue.popleft())
                self._bytes -= first.bytes
            else:
                taken.append(_Waiting(stream, first.first, first.batch.slice(0, left), first.since, 0))
                first.first += left
                first.batch = first.batch.slice(left)
            left -= taken[-1].batch.num_rows
        if not queue:
            del self._waiting[stream]
        return most - left

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
