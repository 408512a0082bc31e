"""Comparisons of a column with values of Python, in the text that Rust reads.

That text has no infinite number and no NaN. A comparison with one of them is said by others, which select the same floats.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decimal import Decimal

__all__ = [
    "MIRRORED",
    "Unsayable",
    "column_of",
    "compared",
    "is_decimal",
    "is_nan",
    "is_special",
    "listed",
    "literal",
    "number_of",
    "text_in",
]

# The largest float; below it are all of fewer bits, and beyond it is only infinity.
_MOST = "1.7976931348623157e308"
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Signs from the other side; the others stay."""


class Unsayable(Exception):
    """A value that no filter can hold; the text says why, and what to do."""


def column_of(path: Iterable[str]) -> str:
    """The column at ``path``, from the outermost name on."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in path)


def compared(column: str, sign: str, value: Any) -> str:
    """One comparison; all of it binds closer than ``not`` and ``and``."""
    return f"({_beyond(column, sign, value)})" if is_special(value) else f"{column} {sign} {literal(value)}"


def listed(column: str, values: Iterable[Any]) -> list[str]:
    """Conditions one of which holds where ``column`` equals one of ``values``, of which none is NaN."""
    values = list(values)
    finite = [literal(value) for value in values if not is_special(value)]
    beyond = [compared(column, "=", value) for value in values if is_special(value)]
    return [f"{column} in ({', '.join(finite)})", *beyond] if finite else beyond


def literal(value: Any) -> str:
    """A value that is not special, as the text of a filter has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        # A shorter text may be that of another integer.
        return f"{value:.1f}" if abs(value) < 1 << 127 else repr(value)
    return repr(value) if isinstance(value, (int, float)) else "'" + str(value).replace("'", "''") + "'"


def is_nan(column: str) -> str:
    """True for NaN, which is neither above zero nor not."""
    return f"(not ({column} <= 0) and not ({column} > 0))"


def is_special(value: Any) -> bool:
    """True for a float that no literal can hold."""
    return isinstance(value, float) and not math.isfinite(value)


def is_decimal(value: Any) -> bool:
    """True for a ``decimal.Decimal``."""
    # Who has one has imported its module.
    decimal = sys.modules.get("decimal")
    return decimal is not None and isinstance(value, decimal.Decimal)


def number_of(value: Decimal) -> int | float | str:
    """A decimal as a number, which all numbers compare with, where that is exact; else its digits, for columns of decimals."""
    if not value.is_finite():
        return math.nan if value.is_nan() else float(value)
    digits = format(value, "f")
    if value == value.to_integral_value():
        return int(value) if abs(value) < 1 << 127 else digits
    near = float(digits)
    # To a decimal column a float is the shortest number that it stands for.
    return near if type(value)(repr(near)) == value else digits


def text_in(value: bytes) -> str:
    """The text that equals ``value`` byte for byte.

    :raises Unsayable: if there is none.
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Unsayable(
            f"{value[:20]!r} is no UTF-8, and a filter is text; compare it with rows that are read"
        ) from None


def _beyond(column: str, sign: str, value: float) -> str:
    never = f"{column} <= 0 and {column} > 0"  # and unknown for a null
    if math.isnan(value):
        return f"not ({never})" if sign == "!=" else never
    if value < 0:
        equal, finite = f"{column} < -{_MOST}", f"{column} >= -{_MOST}"
        sign = MIRRORED.get(sign, sign)
    else:
        equal, finite = f"{column} > {_MOST}", f"{column} <= {_MOST}"
    said = {"!=": f"not ({equal})", "<": finite, "<=": f"{finite} or {equal}", ">": never}
    return said.get(sign, equal)
