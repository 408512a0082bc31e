"""Spark's types by name, for schemas that are read without Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from bowstring.petastorm._lazy import needed

__all__ = ["SparkType", "parsed", "real", "type_name"]


@dataclass(frozen=True)
class SparkType:
    """Stands for ``pyspark.sql.types.<name>(*arguments)``."""

    name: str
    arguments: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({','.join(map(str, self.arguments))})"


def parsed(text: str) -> SparkType:
    """From ``LongType``, ``LongType()`` or ``DecimalType(10,9)``."""
    match = re.fullmatch(r"(\w+)(?:\(([\d\s,]*)\))?", text)
    if match is None:
        return SparkType(text)
    return SparkType(match[1], tuple(int(part) for part in (match[2] or "").split(",") if part.strip()))


def type_name(spark_type: Any) -> str:
    """The class name of a type of either kind."""
    return spark_type.name if isinstance(spark_type, SparkType) else type(spark_type).__name__


def real(spark_type: Any) -> Any:
    """PySpark's own object."""
    if not isinstance(spark_type, SparkType):
        return spark_type
    types = needed("pyspark.sql.types", "a Spark type")
    return getattr(types, spark_type.name)(*spark_type.arguments)
