"""The task and attempt that this process runs."""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from dataclasses import dataclass

from bowstring.errors import Error

__all__ = ["Attempt", "new_write", "tries"]

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


def new_write(checkpoints: str | None = None) -> str:
    """A name for one write, new each time.

    :param checkpoints: of a streaming query, whose writes share a prefix.
    """
    return f"{'spark-' if checkpoints is None else tries(checkpoints)}{uuid.uuid4().hex}"


def tries(checkpoints: str) -> str:
    """The prefix of the names of all writes of a streaming query.

    The commit of a micro-batch knows neither its query nor the tasks' name of the write. Both know the checkpoint directory of the
    query; each query has its own, and has one micro-batch at a time.
    """
    return f"spark-{hashlib.sha256(checkpoints.encode()).hexdigest()[:16]}-"


@dataclass(frozen=True)
class Attempt:
    """One attempt at one task."""

    task: int
    """The partition."""
    attempt: int
    """Attempt at it, from 0."""
    micro_batch: str | None
    """``query-batch`` in Structured Streaming: the same for all attempts at the micro-batch, even after a restart."""

    @classmethod
    def current(cls) -> Attempt:
        """The attempt of the task that runs in this process."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise Error("there is no Spark task in this process: this runs on executors only")
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        micro_batch = None if query is None or batch is None else f"spark-{query}-{batch}"
        return cls(context.partitionId(), context.attemptNumber(), micro_batch)

    def once(self) -> str:
        """The name of the micro-batch that this task belongs to: of all attempts at it, one is committed."""
        if self.micro_batch is None:
            raise Error("this task belongs to no streaming query: a streaming writer cannot tell its micro-batch")
        return self.micro_batch

    def unique(self) -> str:
        """A name for the output of this attempt, which no other attempt has."""
        return re.sub(r"[^A-Za-z0-9]", "", f"{self.task:06d}x{self.attempt}x{os.urandom(4).hex()}")
