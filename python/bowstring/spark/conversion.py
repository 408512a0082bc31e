"""`bowstring.convert` with tasks on executors: each converts its part of the source, the driver publishes all at once.

```text
  .clicks-mds.bowstring-convert/      beside the destination, as of every conversion
    attempts/1f0c.../000003x0x9f3a/      output of one attempt at one task of this source and these options
    attempts/1f0c.../000003x0x9f3a.done  its description: it is complete
  .clicks-mds.bowstring-spark-77ab/   the rows of a data frame, until they are converted
```
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bowstring import _native
from bowstring.convert import Report, in_this_process, options_json, report_of
from bowstring.errors import ConfigError
from bowstring.spark.directory import Place, local
from bowstring.spark.frame import map_in_arrow
from bowstring.spark.task import Attempt, new_write
from bowstring.spark.types import conform, stored_schema
from bowstring.writer import DatasetWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["convert"]

_DONE = ".done"


def convert(
    spark: SparkSession,
    src: Any,
    dst: str,
    *,
    to: str | None = None,
    from_format: str | None = None,
    resume: bool = False,
    **options: Any,
) -> Report:
    """Converts ``src`` into a directory at ``dst``, which appears at once or not at all, as :func:`bowstring.convert` does.

    >>> bowstring.spark.convert(spark, "s3://bucket/shards", "/data/photos", to="parquet")  # doctest: +SKIP
    >>> bowstring.spark.convert(spark, df, "/data/clicks-mds", to="mds")  # doctest: +SKIP

    Tasks that fail are tried again by Spark. If the job fails, ``resume=True`` runs only the remaining tasks; not for data frames.

    :param spark: the session.
    :param src: a dataset of any format that the driver and all executors see; or a data frame, whose rows are first written
        beside ``dst``.
    :param dst: a directory that the driver and all executors see.
    :param to: the format of the destination, if its name does not give it.
    :param from_format: the format of the source, if its names do not give it.
    :param resume: continue an interrupted conversion to the same place.
    :param options: other options of :func:`bowstring.convert`, except ``jobs`` and ``shuffle``. ``memory_budget`` is that of each
        task (256 MiB). Tasks write a file each: a smaller ``target_file_size`` makes more of them. ``verify`` reads on the driver.
    """
    path = local(dst)
    if refused := {"jobs", "shuffle"} & options.keys():
        why = {
            "jobs": "a task is one thread; a smaller target_file_size makes more tasks",
            "shuffle": "rows are sorted on one machine; shuffle while training",
        }
        raise ConfigError(f"option {min(refused)}: {why[min(refused)]}", option=min(refused))
    options = {"memory_budget": 256 << 20, **options}
    if not hasattr(src, "mapInArrow"):
        src = os.path.expanduser(src)
        src = src if "://" in src else os.path.abspath(src)
        return _converted(spark, src, path, resume, from_format=from_format, to=to, **options)
    if resume or from_format is not None:
        name = "resume" if resume else "from_format"
        raise ConfigError(f"option {name}: the source is a data frame", option=name)
    with _staged(src, path, options_json(from_format="parquet", to=to, **options)) as rows:
        return _converted(spark, str(rows), path, None, from_format="parquet", to=to, **options)


def _converted(
    spark: SparkSession, src: str, path: Path, resume: bool | None, *, to: str | None, **options: Any
) -> Report:
    """``resume`` is None if no conversion can be continued."""
    conversion = _native.Conversion(src, path, options_json(to=to, resume=bool(resume), **options))
    try:
        if left := conversion.tasks():
            attempts = Path(conversion.attempts())
            # Each task is one thread. Secrets of the driver's environment stay there: a task reads its own.
            text = options_json(to=conversion.to(), jobs=1, environment=(), **options)
            work = _task(src, text, conversion.fingerprint(), str(attempts), left)
            try:
                found = spark.range(0, len(left), numPartitions=len(left)).mapInArrow(work, "at string, worked string")
                for at, worked in found.collect():
                    conversion.adopt(worked, at)
            except BaseException:
                if resume is not None:
                    for done in attempts.glob(f"*{_DONE}"):
                        conversion.adopt(done.read_text(), done.with_suffix(""))
                raise
        return report_of(conversion.finish())
    finally:
        conversion.close()


def _task(
    src: str, options: str, fingerprint: str, attempts: str, left: list[int]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The body of one task, for the number in its rows."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                at = Path(attempts, Attempt.current().unique())
                worked = _native.convert_task(src, at, in_this_process(options), fingerprint, left[number])
                part = at.with_suffix(".part")
                part.write_text(worked)
                part.rename(at.with_suffix(_DONE))
                yield pa.record_batch({"at": [str(at)], "worked": [worked]})

    return work


@contextmanager
def _staged(df: Any, path: Path, options: str) -> Iterator[Path]:
    """The rows of ``df`` as a Parquet dataset that executors see, while the context lasts, if they suit ``options``."""
    place = Place(path, new_write())
    place.open()
    try:
        schema = stored_schema(df.schema)
        # A dataset without rows: an existing destination, or a type that the format cannot hold, is detected before Spark computes.
        empty = place.attempt("empty")
        with DatasetWriter(empty, schema) as writer:
            writer.write(schema.empty_table())
        _native.Conversion(str(empty), path, options).close()
        work = _stage(str(path), place.write, schema)
        attempts = [Path(at) for (at,) in map_in_arrow(df, work, "at string").collect()]
        yield place.gathered(sorted(attempts) or [empty])
    finally:
        place.remove()


def _stage(path: str, write: str, schema: pa.Schema) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        place = Place(local(path), write)
        at = place.attempt(Attempt.current().unique())
        # Read once and removed: not worth compressing.
        with place.guarded(), DatasetWriter(at, schema, compression="none") as writer:
            for batch in batches:
                writer.write(conform(batch, schema))
        yield pa.record_batch({"at": [str(at)]})

    return work
