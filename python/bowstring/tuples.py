"""Filters as tuples, ``[("label", ">=", 3)]``, with the values that pyarrow and Petastorm take and JSON has not."""

from __future__ import annotations

import math
from typing import Any

from bowstring.comparisons import (
    Unsayable,
    column_of,
    compared,
    is_decimal,
    is_nan,
    is_special,
    listed,
    literal,
    number_of,
    text_in,
)
from bowstring.errors import ConfigError
from bowstring.ranges import MOST

__all__ = ["with_plain_values"]

_SIGNS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def with_plain_values(filter_: Any) -> Any:
    """The tuples with numbers for decimals and texts for bytes; all of them as one text where JSON lacks a number.

    What is no such list is returned as it is, for Rust to say what is wrong.

    :raises ConfigError: for a value that no filter can hold.
    """
    if not isinstance(filter_, (list, tuple)):
        return filter_
    try:
        plain = _plain(filter_)
        return _any(plain) if _needs_text(plain) else plain
    except Unsayable as error:
        raise ConfigError(f"option filter: {error}", option="filter") from None
    except _OtherwiseWrong:
        return filter_


class _OtherwiseWrong(Exception):
    """Rust names what is wrong with these tuples."""


def _is_tuple(node: Any) -> bool:
    return isinstance(node, (list, tuple)) and bool(node) and isinstance(node[0], str)


def _plain(node: Any) -> Any:
    if not isinstance(node, (list, tuple)):
        return node
    if _is_tuple(node):
        return [*node[:2], *map(_value, node[2:])]
    return [_plain(one) for one in node]


def _value(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return text_in(bytes(value))
    if is_decimal(value):
        return number_of(value)
    if isinstance(value, (list, tuple)):
        return [_value(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return frozenset(map(_value, value))
    # Arrays, and scalars of NumPy: those of floats, objects and bytes may hold such values.
    if hasattr(value, "tolist") and getattr(getattr(value, "dtype", None), "kind", "O") in "fOS":
        return _value(value.tolist())
    return value


def _needs_text(node: Any) -> bool:
    if isinstance(node, (list, frozenset)):
        return any(map(_needs_text, node))
    if is_special(node):
        return True
    # Those of the text have 128 bits.
    return isinstance(node, int) and not -MOST - 1 <= node <= 2 * MOST + 1 and abs(node) < 1 << 127


def _any(outer: Any) -> str:
    if _is_tuple(outer):
        return _text(outer)
    if outer and isinstance(outer[0], list) and not _is_tuple(outer[0]):
        return " or ".join(f"({_all(inner)})" for inner in outer)
    return _all(outer)


def _all(tuples: Any) -> str:
    if not isinstance(tuples, list) or not tuples:
        raise _OtherwiseWrong
    return " and ".join(f"({_text(one)})" for one in tuples)


def _text(one: Any) -> str:
    if not _is_tuple(one) or len(one) != 3 or not isinstance(one[1], str):
        raise _OtherwiseWrong
    column, sign = column_of([one[0]]), " ".join(one[1].lower().split())
    if sign in _SIGNS:
        return compared(column, _SIGNS[sign], _scalar(one[2]))
    if sign not in ("in", "not in", "overlaps", "split") or not isinstance(one[2], (list, frozenset)) or not one[2]:
        raise _OtherwiseWrong
    values = [_scalar(value) for value in one[2]]
    if sign == "overlaps":
        return _overlapping(one[0], values)
    if sign == "split":
        return _split(one[0], values)
    if any(is_special(value) and math.isnan(value) for value in values):
        raise Unsayable(
            f"the list of '{sign}' of column {one[0]!r} has NaN, which equals nothing here, and each NaN in pyarrow; leave it out. "
            f"The text {is_nan(column)} selects NaNs"
        )
    any_of = " or ".join(listed(column, values))
    return any_of if sign == "in" else f"not ({any_of})"


def _overlapping(name: str, values: list[Any]) -> str:
    for value in values:
        if is_special(value):
            raise Unsayable(f"the list of 'overlaps' of column {name!r} has {value}, which no text has; leave it out")
    return f"{column_of([name])} overlaps ({', '.join(map(literal, values))})"


def _split(name: str, bounds: list[Any]) -> str:
    numbers = [bound for bound in bounds if not isinstance(bound, (bool, str))]
    if len(bounds) != 2 or len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1] <= 1:
        raise _OtherwiseWrong
    return f"split({column_of([name])}, {', '.join(map(literal, bounds))})"


def _scalar(value: Any) -> Any:
    from bowstring.options import plain

    value = value if _needs_text(value) else plain(value)
    if not isinstance(value, (str, int, float)):
        raise _OtherwiseWrong
    return value
