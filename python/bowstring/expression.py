"""Filters of pyarrow, ``pc.field("label") >= 3``, as the text that Rust reads.

pyarrow shows the parts of an expression only in what it pickles: a record batch with the values, whose metadata have the calls and
columns in order.
"""

from __future__ import annotations

import ctypes
import datetime
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bowstring.arrays import pyarrow_for
from bowstring.comparisons import (
    MIRRORED,
    Unsayable,
    column_of,
    compared,
    is_decimal,
    is_nan,
    listed,
    number_of,
    text_in,
)
from bowstring.errors import UnsupportedError

__all__ = ["text_of"]

_SIGNS = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_WORDS = {"and_kleene": "and", "or_kleene": "or"}
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9
# Of a set with a null: the null equals nulls, or is left out.
_MATCH, _SKIP = 0, 1


def text_of(expression: Any) -> str:
    """The text of a filter that selects the same rows as ``expression``.

    :raises UnsupportedError: for conditions that a filter cannot express; it names the part.
    """
    try:
        return _condition(_Reader(expression).whole()).text
    except Unsayable as error:
        shown = " ".join(str(expression).split())
        shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
        raise UnsupportedError(f"filter {shown} cannot be read as a filter: {error}", option="filter") from None


@dataclass
class _Column:
    text: str


@dataclass
class _Value:
    scalar: Any


@dataclass
class _Condition:
    """Conditions, all with the same word between them."""

    parts: list[str]
    word: str = ""

    @property
    def text(self) -> str:
        return f" {self.word} ".join(self.parts)


@dataclass
class _Call:
    name: str
    operands: list[Any] = field(default_factory=list)
    options: Any = None


class _Reader:
    """Builds the condition from the innermost calls outwards, without recursion: a chain of ``&`` is as deep as it is long."""

    def __init__(self, expression: Any) -> None:
        pyarrow = pyarrow_for("a filter of pyarrow")
        try:
            pickled = expression.__reduce__()[1][0]
        except (pyarrow.ArrowException, NotImplementedError) as error:
            why = f"pyarrow does not tell its parts ({error}); name columns: pc.field('label')"
            raise Unsayable(why) from None
        self.types = pyarrow.types
        self.values = pyarrow.ipc.open_file(pickled).get_batch(0)
        self.steps = _pairs(self.values.schema)

    def whole(self) -> Any:
        open_ = [_Call("")]
        for step, said in self.steps:
            here = open_[-1]
            if step == "call":
                open_.append(_Call(said))
            elif step == "end":
                open_.pop()
                open_[-1].operands.append(self.made(here))
            elif step == "options":
                here.options = self.value(said)
            elif step == "literal":
                here.operands.append(_Value(self.value(said)))
            elif step == "field_ref":
                here.operands.append(_Column(column_of([said])))
            elif step == "nested_field_ref":
                path = [next(self.steps)[1] for _ in range(int(said))]
                here.operands.append(_Column(column_of(path)))
            else:
                raise Unsayable(f"this version of pyarrow pickles a part {step!r}, which is unknown; write it as text")
        [found] = open_[0].operands
        return found

    def value(self, at: str) -> Any:
        return self.values.column(int(at))[0]

    def made(self, call: _Call) -> _Condition:
        name, operands = call.name, call.operands
        if name in _WORDS:
            return _joined(_WORDS[name], operands)
        if name in _SIGNS:
            return _Condition([self.comparison(_SIGNS[name], *operands)])
        if name == "invert":
            return _Condition([f"not ({_condition(operands[0]).text})"])
        made: dict[str, Callable[[str, Any], _Condition]] = {
            "is_valid": lambda column, _: _Condition([f"{column} is not null"]),
            "is_nan": lambda column, _: _Condition([is_nan(column)]),
            "is_null": _is_null,
            "is_in": self.membership,
        }
        if name not in made:
            instead = {"and_": "write &", "or_": "write |", "cast": "compare the column itself"}.get(name, "")
            instead = instead or "store what it gives as a column"
            raise Unsayable(
                f"it calls {name}, and a filter has comparisons of a column with a value, isin, is_null, is_valid, is_nan, &, | "
                f"and ~; {instead}, or write the filter as text"
            )
        if not isinstance(operands[0], _Column):
            raise Unsayable(f"{name} is of something else than a column; apply it to columns")
        return made[name](operands[0].text, call.options)

    def comparison(self, sign: str, left: Any, right: Any) -> str:
        if isinstance(left, _Value) and isinstance(right, _Column):
            left, right, sign = right, left, MIRRORED.get(sign, sign)
        if not isinstance(left, _Column) or not isinstance(right, _Value):
            between = " and ".join(_NAMES[type(one)] for one in (left, right))
            raise Unsayable(f"it compares {between}; a filter compares a column with a value")
        if not right.scalar.is_valid:
            raise Unsayable("nothing equals null; write is_null() or is_valid()")
        return compared(left.text, sign, self.plain(right.scalar))

    def membership(self, column: str, options: Any) -> _Condition:
        behaviour = options["null_matching_behavior"].as_py()
        if behaviour not in (_MATCH, _SKIP):
            raise Unsayable("is_in has a null_matching_behavior that a filter has not; write isin")
        scalars = list(options["value_set"].values)
        values = [self.plain(scalar) for scalar in scalars if scalar.is_valid]
        parts = listed(column, [value for value in values if value == value])
        if any(value != value for value in values):
            parts.append(is_nan(column))  # which equals itself here, and nowhere else
        if behaviour == _MATCH and not all(scalar.is_valid for scalar in scalars):
            return _Condition([*parts, f"{column} is null"], "or")
        # A null is in no list, for which pyarrow gives false rather than null.
        one = f"({' or '.join(parts)})" if parts else f"{column} is null"
        return _Condition([one, f"{column} is not null"], "and")

    def plain(self, scalar: Any) -> Any:
        """A scalar that is not null, as Python has it; times as their text, to the nanosecond."""
        types, kind = self.types, scalar.type
        if types.is_dictionary(kind):
            return self.plain(scalar.value)
        if types.is_date(kind):
            return _instant(scalar, _DAY if types.is_date32(kind) else _NANOSECONDS["ms"])
        if types.is_timestamp(kind):
            return _instant(scalar, _NANOSECONDS[kind.unit], "" if kind.tz is None else "Z")
        if types.is_time(kind):
            return _clock(scalar.value * _NANOSECONDS[kind.unit])
        value: Any = None if types.is_duration(kind) else scalar.as_py()
        if isinstance(value, bytes):
            return text_in(value)
        if is_decimal(value):
            return number_of(value)
        if types.is_floating(kind):
            return float(value)
        if isinstance(value, (bool, int, str)):
            return value
        raise Unsayable(f"it has a value of type {kind}, which no filter has")


_NAMES = {_Column: "a column", _Value: "a value", _Condition: "a condition"}


def _condition(operand: Any) -> _Condition:
    if isinstance(operand, _Value):
        raise Unsayable("a value is no condition; compare a column with it")
    return operand if isinstance(operand, _Condition) else _Condition([operand.text])


def _joined(word: str, operands: Sequence[Any]) -> _Condition:
    left, right = ([f"({one.text})"] if one.word not in ("", word) else one.parts for one in map(_condition, operands))
    left += right  # in place: a chain of a thousand is made of the left one
    return _Condition(left, word)


def _is_null(column: str, options: Any) -> _Condition:
    if options["nan_is_null"].as_py():
        # The conditions of NaN compare with a number, and the type of the column is not known here.
        raise Unsayable(
            "is_null has nan_is_null, which a filter has not; write is_null() | is_nan() of floats, and is_null() of others"
        )
    return _Condition([f"{column} is null"])


def _instant(scalar: Any, unit: int, zone: str = "") -> str:
    days, clock = divmod(scalar.value * unit, _DAY)
    try:
        day = (datetime.date(1970, 1, 1) + datetime.timedelta(days)).isoformat()
    except OverflowError:
        raise Unsayable(f"{scalar.value} of type {scalar.type} is beyond the years 1 to 9999 of a filter") from None
    return f"{day} {_clock(clock)}{zone}" if clock or zone else day


def _clock(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{rest:09}" if rest else text


def _pairs(schema: Any) -> Iterator[tuple[str, str]]:
    """The metadata of a schema in order, with keys that come again, of which pyarrow gives one: as Arrow's C interface has them."""
    capsule = schema.__arrow_c_schema__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # The third of the pointers that a struct ArrowSchema begins with.
    at = (ctypes.c_void_p * 3).from_address(pointer(capsule, b"arrow_schema"))[2]

    def read(size: int) -> bytes:
        nonlocal at
        assert at is not None
        found = ctypes.string_at(at, size)
        at += size
        return found

    def number() -> int:
        return int(struct.unpack("=i", read(4))[0])

    pairs = [(read(number()).decode(), read(number()).decode()) for _ in range(number() if at else 0)]
    del capsule  # which owns the memory
    return iter(pairs)
