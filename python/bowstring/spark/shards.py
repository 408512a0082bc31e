"""A data frame as shards of another format: every task converts its partition, the driver publishes all at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bowstring.errors import ConfigError
from bowstring.spark.directory import Place, local
from bowstring.spark.task import Attempt, new_write
from bowstring.spark.types import conform, stored_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Shards", "convert"]

# Formats whose datasets are files that lie side by side.
_FORMATS = ("tfrecord", "webdataset", "arrow", "parquet", "jsonl", "csv")


@dataclass(frozen=True)
class Shards:
    """What was written."""

    rows: int
    """Rows of all partitions."""
    files: int
    """Shards."""
    bytes: int
    """Their bytes."""


def convert(df: Any, url: str, *, format: str, if_exists: str = "error", **options: Any) -> Shards:
    """Writes a data frame as shards of TFRecord, WebDataset, Arrow or Parquet, which appear at once or not at all.

    >>> bowstring.spark.convert(df, "/data/clicks-tfrecord", format="tfrecord")  # doctest: +SKIP

    Every task writes its partition through :func:`bowstring.convert`; tasks that fail leave nothing.

    :param df: the frame.
    :param url: a directory that all executors see.
    :param format: ``tfrecord``, ``webdataset``, ``arrow``, ``parquet``, ``jsonl`` or ``csv``.
    :param if_exists: ``error`` or ``replace``.
    :param options: other options of :func:`bowstring.convert`: ``target_file_size``, ``shards`` (of each task), ``columns``, ...
    """
    if format not in _FORMATS:
        raise ConfigError(f"option format: {format!r} is none of {', '.join(_FORMATS)}", option="format")
    if if_exists not in ("error", "replace"):
        raise ConfigError(f"option if_exists: {if_exists!r} is neither error nor replace", option="if_exists")
    path = local(url)
    if if_exists == "error" and path.exists():
        raise ConfigError(f"option if_exists: {path} exists", option="if_exists")
    place = Place(path, new_write())
    place.open()
    try:
        work = _task(str(path), place.write, stored_schema(df.schema), format, options)
        found = [(row[0], json.loads(row[1])) for row in df.mapInArrow(work, "at string, said string").collect()]
        success = _together([said for _, said in found], format, stored_schema(df.schema))
        if not place.publish_flat(sorted(Path(at) for at, _ in found), json.dumps(success), if_exists == "replace"):
            raise ConfigError(f"option if_exists: {path} appeared meanwhile", option="if_exists")
    finally:
        place.remove()
    return Shards(success["rows"], success["files"], success["bytes"])


def _together(said: list[dict[str, Any]], format: str, schema: pa.Schema) -> dict[str, Any]:
    """What all tasks' ``_SUCCESS`` say as one: the types are how the dataset is read again."""
    if not said:
        raise ConfigError(f"the frame has no rows, and {format} has no files without ({', '.join(schema.names)})")
    names = hashlib.sha256("".join(sorted(one["fingerprint"] for one in said)).encode()).hexdigest()
    sums = {name: sum(one[name] for one in said) for name in ("rows", "files", "bytes")}
    return {**said[0], **sums, "fingerprint": names, "source": "spark"}


def _task(
    path: str, write: str, schema: pa.Schema, format: str, options: dict[str, Any]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What one task does."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from bowstring.convert import convert as converted

        place = Place(local(path), write)
        at = place.attempt(Attempt.current().unique())
        source = at.with_name(f"{at.name}.rows.arrow")
        rows = 0
        with place.guarded():
            with pa.OSFile(str(source), "wb") as file, pa.ipc.new_file(file, schema) as writer:
                for batch in batches:
                    writer.write_batch(conform(batch, schema))
                    rows += batch.num_rows
            if rows:
                converted(source, at, from_format="arrow", to=format, **options)
            source.unlink()
        if rows == 0:
            return
        yield pa.record_batch({"at": [str(at)], "said": [(at / "_SUCCESS").read_text()]})

    return work
