"""Checks of numeric options: of those used only in Python, and of those that a native call could not accept.

A number out of range, NaN, and a value that is no number are errors that name the option and its value.
"""

from __future__ import annotations

import operator
from typing import Any

from bowstring.errors import ConfigError

__all__ = ["LONGEST", "MOST", "fraction", "seconds", "shown", "whole"]

MOST = (1 << 63) - 1
"""Greatest whole number of any option without a bound of its own."""
LONGEST = 1e9
"""Most seconds of any wait: about 30 years."""
_SHOWN = 64


def shown(value: Any) -> str:
    """``value`` as shown in an error: never long, and never a failure itself."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 256:
        # Python itself refuses to format numbers of more than a few thousand digits.
        return f"{'-' if value < 0 else ''}(a number of about {round(value.bit_length() * 0.30103)} digits)"
    text = repr(value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def whole(option: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """``value`` as a whole number from ``least`` to ``most``."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        problem = f"{shown(value)} is not a whole number from {least} to {most}"
        raise ConfigError(f"option {option}: {problem}", option=option)
    return number


def _real(value: Any) -> float | None:
    if isinstance(value, (bool, str, bytes)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def seconds(option: str, value: Any, most: float = LONGEST, *, unit: str = "seconds", zero: bool = False) -> float:
    """``value`` as a time above zero, or with ``zero`` at least that."""
    number = _real(value)
    if number is None or not (number >= 0 if zero else number > 0) or not number <= most:
        least = "from 0" if zero else "above 0"
        problem = f"{shown(value)} is not a number of {unit} {least}, at most {most:.0f}"
        raise ConfigError(f"option {option}: {problem}", option=option)
    return number


def fraction(option: str, value: Any, most: float) -> float:
    """``value`` as a number above zero and at most ``most``."""
    number = _real(value)
    if number is None or not 0 < number <= most:
        raise ConfigError(f"option {option}: {shown(value)} is not a number above 0, at most {most:.0f}", option=option)
    return number
