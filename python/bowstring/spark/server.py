"""Writing to a server: tasks put Arrow batches by DoPut, the driver commits all of them at once.

A task's commit message is the token of its staged rows. The token of an attempt that failed, or that was not the first to end,
is never committed, so no row comes twice. An abort closes the write: stragglers of other executors are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bowstring.errors import ConfigError
from bowstring.flight import Address, Connection, attempt_of
from bowstring.spark.footers import with_spark_row
from bowstring.spark.options import SourceOptions
from bowstring.spark.task import Attempt, new_write, tries
from bowstring.spark.types import conform, stored_schema

__all__ = ["ServerStreamWriter", "ServerWriter"]


@dataclass
class Staged(WriterCommitMessage):
    """The staged rows of one attempt."""

    write: str
    """The write that it belongs to."""
    token: dict[str, Any] | None
    """Token for the commit; ``None`` if nothing is to be committed."""
    rows: int
    """Rows staged."""
    once: str | None = None
    """The micro-batch; one attempt at it is committed."""


class _Target:
    """The destination of a writer."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.address = Address.parse(options.url)
        self.dataset = self.address.named()
        self.options = options
        self.schema = with_spark_row(stored_schema(schema), schema)

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


def _tried(messages: Sequence[WriterCommitMessage | None]) -> set[tuple[str, str | None]]:
    return {(message.write, message.once) for message in messages if isinstance(message, Staged)}


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
                # The dataset was created by others while the tasks ran.
                if self.exists != "ignore" or not connection.exists(self.target.dataset):
                    raise
                connection.abort(self.target.dataset, self.write_id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Removes staged rows, and refuses later ones of stragglers."""
        if self.skip:
            return
        with self.target.connect() as connection:
            connection.abort(self.target.dataset, self.write_id)


class ServerStreamWriter(DataSourceStreamArrowWriter):
    """A micro-batch is one commit, whose name is made of the query and the batch's number. Each attempt is a write of its own.

    So an attempt can be ended without refusing the next one; the server commits one of them.
    """

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        options.exists_of_stream(overwrite)
        self.target = _Target(options, schema)
        self.write_id = new_write(options.checkpoints)
        self.mode = options.mode(overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stages one attempt at one task of a micro-batch."""
        attempt = Attempt.current()
        once = attempt.once()
        return replace(self.target.stage(self.write_id, attempt, iterator), once=once)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Makes the micro-batch visible, unless it is already."""
        with self.target.connect() as connection:
            for write, once in _tried(messages):
                connection.commit(self.target.dataset, write, self.mode, _tokens(messages), once=once)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Removes the rows that this attempt and earlier ones staged, and refuses later ones of their stragglers."""
        checkpoints = self.target.options.checkpoints
        with self.target.connect() as connection:
            if checkpoints is not None:
                connection.abort_all(self.target.dataset, tries(checkpoints))
                return
            for write, _ in _tried(messages):
                connection.abort(self.target.dataset, write)
