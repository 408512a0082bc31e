"""Which attempt of which task this process runs."""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass

from bowstring.errors import Error

__all__ = ["Attempt", "new_write"]

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


def new_write() -> str:
    """A name for one write, new each time."""
    return f"spark-{uuid.uuid4().hex}"


@dataclass(frozen=True)
class Attempt:
    """One attempt at one task."""

    task: int
    """The partition."""
    attempt: int
    """Which try at it, from 0."""
    micro_batch: str | None
    """``query-batch`` in Structured Streaming: the same however often the micro-batch is tried, also after a restart."""

    @classmethod
    def current(cls) -> Attempt:
        """Of the task that runs in this process."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise Error("there is no Spark task in this process: this runs on executors only")
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        micro_batch = None if query is None or batch is None else f"spark-{query}-{batch}"
        return cls(context.partitionId(), context.attemptNumber(), micro_batch)

    def stream_write(self) -> str:
        """The name of the write that a micro-batch is."""
        if self.micro_batch is None:
            raise Error("this task belongs to no streaming query: a streaming writer cannot tell its micro-batch")
        return self.micro_batch

    def unique(self) -> str:
        """A name for what this attempt leaves, which no other attempt has."""
        return re.sub(r"[^A-Za-z0-9]", "", f"{self.task:06d}x{self.attempt}x{os.urandom(4).hex()}")
