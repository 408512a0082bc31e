"""Data frames of users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bowstring.errors import ConfigError

__all__ = ["check_frame", "map_in_arrow"]


def check_frame(df: Any) -> None:
    """Checks that ``df`` is a frame of ``pyspark.sql``, classic or of Connect.

    :raises ConfigError: for one of pandas, or of the pandas API on Spark.
    """
    if not hasattr(df, "sparkSession"):
        kind = f"{type(df).__module__}.{type(df).__qualname__}"
        problem = f"a {kind} is no DataFrame of pyspark.sql; give spark.createDataFrame(df), or df.to_spark()"
        raise ConfigError(f"option df: {problem}", option="df")


def map_in_arrow(df: Any, work: Callable[[Iterator[Any]], Iterator[Any]], schema: Any, **options: Any) -> Any:
    """``df.mapInArrow``, where names of columns may have dots and backticks, which PySpark takes for paths into structs."""
    names = list(df.columns)
    if not any("." in name or "`" in name for name in names):
        return df.mapInArrow(work, schema, **options)

    def named(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        def of_frame(batch: Any) -> Any:
            fields = [field.with_name(name) for field, name in zip(batch.schema, names, strict=True)]
            return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))

        return work(map(of_frame, batches))

    return df.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(named, schema, **options)
