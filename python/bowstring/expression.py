"""Filters of pyarrow, ``pc.field("label") >= 3``, as the text that Rust reads.

pyarrow does not show the parts of an expression, only its text, in which a name and a value can look alike. So the parsed text is
built again from pyarrow's own functions, and only an expression equal to the given one counts as understood.
"""

from __future__ import annotations

import datetime
import re
from typing import Any

from bowstring.errors import UnsupportedError

__all__ = ["is_expression", "text_of"]

# Deeper than any hand-written filter; the filter's own grammar has the same limit.
_DEPTH = 100
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<time>\d{4}-\d\d-\d\d(?:\ \d\d:\d\d:\d\d(?:\.\d+)?)?)
    | (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)
    | (?P<nested>FieldRef\.Nested\((?:FieldRef\.Name\(\w+\)\ ?)+\))
    | (?P<name>[A-Za-z_]\w*)
    | (?P<mark>==|!=|<=|>=|<|>|[(){},:=\[\]])
    )""",
    re.VERBOSE,
)
_COMPARED = {"==": "=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def is_expression(value: Any) -> bool:
    """True for a ``pyarrow.compute.Expression``, without importing pyarrow."""
    return type(value).__name__ == "Expression" and type(value).__module__.startswith("pyarrow")


def text_of(expression: Any) -> str:
    """The text of a filter that selects the same rows as ``expression``.

    :raises UnsupportedError: for conditions that a filter cannot express, or that pyarrow's text leaves ambiguous.
    """
    shown = str(expression)
    for floats in (False, True):
        try:
            text, again = _Reader(shown, floats).whole()
        except _Strange:
            continue
        if again.equals(expression):
            return text
    raise UnsupportedError(
        f"filter {shown[:200]} cannot be read as a filter; comparisons of a column with a value, isin, is_null, is_valid, "
        "&, | and ~ can. Write it as text instead: filter=\"label >= 3 and country in ('de', 'us')\"",
        option="filter",
    )


class _Strange(Exception):
    """The text is not understood."""


class _Reader:
    """Parses the text of an expression; each part is a pair of a filter's text and the equivalent pyarrow expression."""

    def __init__(self, text: str, floats: bool) -> None:
        import pyarrow.compute

        self.compute = pyarrow.compute
        # A float without digits after the point is written like an integer.
        self.floats = floats
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise _Strange
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        self.at = 0

    def whole(self) -> tuple[str, Any]:
        found = self.condition(0)
        if self.at != len(self.tokens):
            raise _Strange
        return found

    def next(self, text: str | None = None) -> tuple[str, str]:
        if self.at >= len(self.tokens) or text not in (None, self.tokens[self.at][1]):
            raise _Strange
        self.at += 1
        return self.tokens[self.at - 1]

    def condition(self, depth: int) -> tuple[str, Any]:
        if depth > _DEPTH:
            raise _Strange
        kind, token = self.next()
        if token == "(":
            return self.pair(depth)
        if kind == "name" and self.at < len(self.tokens) and self.tokens[self.at][1] == "(":
            return self.call(token, depth)
        if kind in ("name", "nested"):
            return self.column(kind, token)
        raise _Strange

    def pair(self, depth: int) -> tuple[str, Any]:
        """Two conditions, or a column and a value."""
        left = self.condition(depth + 1)
        word = self.next()[1]
        if word in ("and", "or"):
            right = self.condition(depth + 1)
            self.next(")")
            both = left[1] & right[1] if word == "and" else left[1] | right[1]
            return f"({left[0]} {word} {right[0]})", both
        if word not in _COMPARED:
            raise _Strange
        text, value = self.literal()
        self.next(")")
        column = left[1]
        compared = {
            "==": column.__eq__,
            "!=": column.__ne__,
            "<": column.__lt__,
            "<=": column.__le__,
            ">": column.__gt__,
            ">=": column.__ge__,
        }
        return f"({left[0]} {_COMPARED[word]} {text})", compared[word](value)

    def call(self, name: str, depth: int) -> tuple[str, Any]:
        self.next("(")
        inner, expression = self.condition(depth + 1)
        if name == "invert":
            self.next(")")
            return f"(not {inner})", ~expression
        if name == "is_valid":
            self.next(")")
            return f"({inner} is not null)", expression.is_valid()
        if name == "is_null":
            for token in (",", "{", "nan_is_null", "=", "false", "}", ")"):
                self.next(token)
            return f"({inner} is null)", expression.is_null()
        if name != "is_in":
            raise _Strange
        for token in (",", "{", "value_set", "="):
            self.next(token)
        self.next()
        for token in (":", "["):
            self.next(token)
        texts: list[str] = []
        values: list[Any] = []
        while self.tokens[self.at : self.at + 1] != [("mark", "]")]:
            if texts:
                self.next(",")
            text, value = self.literal()
            texts.append(text)
            values.append(value)
        for token in ("]", ",", "null_matching_behavior", "=", "MATCH", "}", ")"):
            self.next(token)
        if not texts:
            raise _Strange
        # A null is in no list, for which pyarrow gives false rather than null.
        return f"({inner} in ({', '.join(texts)}) and {inner} is not null)", expression.isin(values)

    def column(self, kind: str, token: str) -> tuple[str, Any]:
        path = re.findall(r"FieldRef\.Name\((\w+)\)", token) if kind == "nested" else [token]
        return ".".join(f'"{name}"' for name in path), self.compute.field(*path)

    def literal(self) -> tuple[str, Any]:
        kind, token = self.next()
        if kind == "string":
            value = re.sub(r"\\(.)", r"\1", token[1:-1])
            return "'" + value.replace("'", "''") + "'", value
        if kind == "number":
            number: float = float(token) if self.floats or not re.fullmatch(r"-?\d+", token) else int(token)
            return token, number
        if kind == "time":
            read = datetime.datetime.fromisoformat(token)
            return f"'{token}'", read if " " in token else read.date()
        if token in ("true", "false"):
            return token, token == "true"
        raise _Strange
