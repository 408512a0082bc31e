"""Writing to a server: tasks put Arrow batches by DoPut, the driver commits all of them at once.

A task's commit message is the token of what it staged. An attempt that failed, or that was not the first to end, has a token that
nobody commits, so no row comes twice. An abort closes the write: stragglers of other executors are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bowstring.errors import ClosedError, ConfigError
from bowstring.flight import Address, Connection, attempt_of
from bowstring.spark.options import SourceOptions
from bowstring.spark.task import Attempt, new_write
from bowstring.spark.types import conform, stored_schema

__all__ = ["ServerStreamWriter", "ServerWriter"]


@dataclass
class Staged(WriterCommitMessage):
    """What one attempt staged."""

    write: str
    """The write that it belongs to."""
    token: dict[str, Any] | None
    """For the commit; ``None`` if nothing is to be committed."""
    rows: int
    """Rows staged."""


class _Target:
    """Where a writer writes to."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.address = Address.parse(options.url)
        self.dataset = self.address.named()
        self.options = options
        self.schema = stored_schema(schema)

    def connect(self) -> Connection:
        """A connection to the server."""
        return Connection(self.address.server, self.options.storage, timeout=self.options.timeout)

    def stage(self, write: str, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Stages the rows of one attempt."""
        command = attempt_of(self.dataset, write, attempt.task, attempt.attempt)
        with self.connect() as connection:
            found = connection.put(command, self.schema, (conform(batch, self.schema) for batch in batches))
        return Staged(write, found["token"], found["rows"])


def _tokens(messages: Sequence[WriterCommitMessage | None]) -> list[dict[str, Any]]:
    return [message.token for message in messages if isinstance(message, Staged) and message.token is not None]


class ServerWriter(DataSourceArrowWriter):
    """One job's writes."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        self.target = _Target(options, schema)
        self.write_id = new_write()
        self.mode = options.mode(overwrite)
        self.exists = options.exists(overwrite)
        self.skip = False
        if self.exists in ("error", "ignore"):
            with self.target.connect() as connection:
                self.skip = connection.exists(self.target.dataset)
            if self.skip and self.exists == "error":
                raise ConfigError(f"option if_exists: {self.target.address} exists", option="if_exists")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stages one attempt at one task."""
        if self.skip:
            return Staged(self.write_id, None, sum(0 for _ in iterator))
        return self.target.stage(self.write_id, Attempt.current(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Makes all tasks' rows visible at once."""
        tokens = _tokens(messages)
        if self.skip:
            return
        with self.target.connect() as connection:
            if not tokens:  # a frame without partitions still makes a dataset
                command = attempt_of(self.target.dataset, self.write_id, 0, 0)
                tokens = [connection.put(command, self.target.schema, [])["token"]]
            try:
                connection.commit(self.target.dataset, self.write_id, self.mode, tokens)
            except ConfigError:
                # Somebody else made the dataset while the tasks ran.
                if self.exists != "ignore" or not connection.exists(self.target.dataset):
                    raise
                connection.abort(self.target.dataset, self.write_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Removes what was staged, and refuses what stragglers stage yet."""
        with self.target.connect() as connection:
            connection.abort(self.target.dataset, self.write_id)


class ServerStreamWriter(DataSourceStreamArrowWriter):
    """A micro-batch is one commit, whose name is made of the query and the batch's number: repeating it changes nothing."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        if options.if_exists in ("error", "ignore"):
            raise ConfigError("option if_exists: a stream appends, or replaces in mode complete", option="if_exists")
        self.target = _Target(options, schema)
        self.mode = options.mode(overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stages one attempt at one task of a micro-batch."""
        attempt = Attempt.current()
        write = attempt.stream_write()
        try:
            return self.target.stage(write, attempt, iterator)
        except ClosedError as error:
            if "committed" not in str(error):
                raise
            # The micro-batch was committed, and its checkpoint lost.
            return Staged(write, None, 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Makes the micro-batch visible, unless it is already."""
        writes = {message.write for message in messages if isinstance(message, Staged)}
        tokens = _tokens(messages)
        if len(tokens) < len(messages):  # committed before, see `write`
            return
        with self.target.connect() as connection:
            for write in writes:
                connection.commit(self.target.dataset, write, self.mode, tokens)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Leaves what was staged for the next try at this micro-batch, whose commit removes it; else it expires at the server.

        Ending the write would refuse that next try, which must have the same name.
        """
