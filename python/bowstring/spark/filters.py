"""Spark's pushed filters as bowstring's, if both select the same rows."""

from __future__ import annotations

import datetime
import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import datasource as source
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

__all__ = ["Condition", "expression", "known", "text"]

# Floats are not compared here: in Spark NaN is greater than all numbers and equal to itself.
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_OPERATORS: dict[type[source.Filter], str] = {
    source.EqualTo: "=",
    source.GreaterThan: ">",
    source.GreaterThanOrEqual: ">=",
    source.LessThan: "<",
    source.LessThanOrEqual: "<=",
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


# Letters of all conditions: a server takes requests of up to 2 MiB, unless it is told otherwise.
_LONGEST = 1 << 20


@dataclass(frozen=True)
class Condition:
    """A condition on one column."""

    column: str
    """Its name."""
    operator: str
    """``null``, ``in``, or a comparison."""
    value: Any
    """The value to compare with."""
    negated: bool
    """True for the negated condition."""


def known(filters: Sequence[source.Filter], schema: StructType) -> list[Condition]:
    """Those of ``filters`` that mean the same here. Spark applies all of them again, so omitted ones only cost speed."""
    found: list[Condition] = []
    room = _LONGEST
    for one in (_one(item, schema) for item in filters):
        if one is not None and (length := len(_text(one))) <= room:
            found.append(one)
            room -= length
    return found


def text(conditions: Sequence[Condition]) -> str:
    """All conditions together, in the syntax of ``docs/filter.md``."""
    return " and ".join(f"({_text(one)})" for one in conditions)


def expression(conditions: Sequence[Condition]) -> Any:
    """All conditions together, as a pyarrow expression; ``None`` for no condition."""
    found = None
    for one in conditions:
        column = pc.field(one.column)
        if one.operator == "null":
            made = column.is_null()
        elif one.operator == "in":
            made = column.isin(list(one.value))
        else:
            made = _COMPARE[one.operator](column, one.value)
        made = ~made if one.negated else made
        found = made if found is None else found & made
    return found


def _text(one: Condition) -> str:
    column = json.dumps(one.column, ensure_ascii=False)
    if one.operator == "null":
        return f"{column} is not null" if one.negated else f"{column} is null"
    if one.operator == "in":
        made = f"{column} in ({', '.join(_literal(value) for value in one.value)})"
    else:
        made = f"{column} {one.operator} {_literal(one.value)}"
    return f"not ({made})" if one.negated else made


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"'{value}'" if isinstance(value, datetime.date) else str(value)


def _one(item: source.Filter, schema: StructType) -> Condition | None:
    if isinstance(item, source.Not):
        inside = _one(item.child, schema)
        return None if inside is None else replace(inside, negated=not inside.negated)
    attribute: tuple[str, ...] = getattr(item, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in schema.names:
        return None
    [column] = attribute
    if '"' in column or "\\" in column:
        return None
    if isinstance(item, (source.IsNull, source.IsNotNull)):
        return Condition(column, "null", None, isinstance(item, source.IsNotNull))
    kind = schema[column].dataType
    if isinstance(item, source.In):
        values = tuple(item.value)
        alike = bool(values) and all(_alike(value, kind) for value in values)
        return Condition(column, "in", values, False) if alike else None
    name, value = _OPERATORS.get(type(item)), getattr(item, "value", None)
    return Condition(column, name, value, False) if name is not None and _alike(value, kind) else None


def _alike(value: object, kind: DataType) -> bool:
    """True if a column of ``kind`` compares with ``value`` as in Spark."""
    if isinstance(kind, BooleanType):
        return isinstance(value, bool)
    if isinstance(kind, StringType):
        # Other collations have other orders.
        return isinstance(value, str) and kind.simpleString() == "string"
    if isinstance(kind, DateType):
        return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    return isinstance(kind, _INTEGERS) and isinstance(value, int) and not isinstance(value, bool)
