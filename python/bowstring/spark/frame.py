"""Data frames of users."""

from __future__ import annotations

from typing import Any

from bowstring.errors import ConfigError

__all__ = ["check_frame"]


def check_frame(df: Any) -> None:
    """Checks that ``df`` is a frame of ``pyspark.sql``, classic or of Connect.

    :raises ConfigError: for one of pandas, or of the pandas API on Spark.
    """
    if not hasattr(df, "sparkSession"):
        kind = f"{type(df).__module__}.{type(df).__qualname__}"
        problem = f"a {kind} is no DataFrame of pyspark.sql; give spark.createDataFrame(df), or df.to_spark()"
        raise ConfigError(f"option df: {problem}", option="df")
