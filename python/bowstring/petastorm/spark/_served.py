"""Data frames in a bowstring server instead of a cache directory: written by Spark, fetched by processes that make loaders."""

from __future__ import annotations

import os
import tempfile
from typing import Any

__all__ = ["count", "delete", "fetched", "write"]


def _connection(url: str) -> tuple[Any, str]:
    from bowstring.flight import Address, Connection

    address = Address.parse(url)
    return Connection(address.server), address.named()


def write(frame: Any, url: str) -> None:
    """Stores ``frame`` as the dataset at ``url``."""
    from bowstring.spark.source import register

    register(frame.sparkSession)
    frame.write.format("bowstring").mode("append").option("if_exists", "error").save(url)


def count(url: str) -> int:
    """Rows of a dataset."""
    connection, dataset = _connection(url)
    with connection:
        return int(connection.rows(dataset).total)


def delete(url: str) -> None:
    """Removes a dataset, if it exists."""
    connection, dataset = _connection(url)
    with connection:
        connection.drop(dataset)


def fetched(url: str) -> tuple[tempfile.TemporaryDirectory[str], list[str]]:
    """The dataset as local Parquet, for readers that access it at random: the directory, and URLs of its files.

    Petastorm's readers address row groups. Batches straight from the server are ``bowstring.torch.DataLoader(url)``.
    """
    import pyarrow.parquet as pq

    directory = tempfile.TemporaryDirectory(prefix="bowstring-converter-")
    path = os.path.join(directory.name, "part-00000.parquet")
    try:
        connection, dataset = _connection(url)
        with connection:
            rows = connection.rows(dataset)
            with pq.ParquetWriter(path, rows.schema, compression="none") as writer:
                for batch in rows:
                    writer.write_batch(batch)
    except BaseException:
        directory.cleanup()
        raise
    return directory, [f"file://{path}"]
