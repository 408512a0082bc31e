"""The loader's options: from keywords and the environment to the one JSON document that Rust reads.

Types, defaults and checks live in Rust; this only lays them out. A keyword that is not given is looked up as ``BOWSTRING_<NAME>``,
and then left to its default.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from bowstring.columns import Fill, Image, NGram, Pack, Padded
from bowstring.errors import ConfigError

__all__ = ["Filter", "Mode", "Url", "document", "plain", "size"]

Url: TypeAlias = "str | os.PathLike[str]"
Mode: TypeAlias = Literal["create", "replace", "append"]
Filter: TypeAlias = "str | Sequence[tuple[str, str, Any]] | Sequence[Sequence[tuple[str, str, Any]]]"

# Options that Rust keeps in a struct of their own.
_OF_COLUMNS = ("columns", "exclude", "nulls", "lists", "pack", "images", "arrow", "cast", "row_id")
# Options that only make sense together: one that is given keeps the environment from setting the other.
_TOGETHER = ({"batch_size", "global_batch_size"}, {"rank", "world_size"})
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}{ending}": 1024 ** (n + 1) for n, letter in enumerate("kmgt") for ending in ("", "ib")}
_UNITS |= {f"{letter}b": 1000 ** (n + 1) for n, letter in enumerate("kmgt")}


def size(value: int | str) -> int:
    """Bytes, from a number or from text such as ``512MiB`` or ``1.5 GB``."""
    if not isinstance(value, str):
        return int(value)
    match = re.fullmatch(r"([0-9]+\.?[0-9]*)\s*([a-z]*)", value.strip().lower())
    if match is None or match[2] not in _UNITS:
        problem = f"{value!r} is no size; write e.g. 512MiB"
        raise ConfigError(f"option memory_budget: {problem}", option="memory_budget")
    return int(float(match[1]) * _UNITS[match[2]])


def _truth(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _pairs(text: str) -> dict[str, str]:
    return dict(_pair(pair) for pair in _names(text))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(text)
    return key.strip(), value


def _word_or_json(text: str) -> Any:
    return text if re.fullmatch(r"[A-Za-z_]\w*", text) else json.loads(text)


# How text becomes an option; what is not here stays text.
_READERS: dict[str, Callable[[str], Any]] = {
    "batch_size": int,
    "global_batch_size": int,
    "columns": _names,
    "exclude": _names,
    "nulls": _word_or_json,
    "lists": _word_or_json,
    "pack": json.loads,
    "images": json.loads,
    "cast": json.loads,
    "arrow": _names,
    "row_id": _truth,
    "decode": _truth,
    "shuffle": _truth,
    "seed": int,
    "lanes": int,
    "window_rows": int,
    "order_version": int,
    "weights": lambda text: [float(weight) for weight in _names(text)],
    "rank": int,
    "world_size": int,
    "memory_budget": size,
    "threads": int,
    "prefetch": int,
    "device_slots": int,
    "device_overflow": _truth,
    "timeout": float,
    "selector": json.loads,
    "ngram": json.loads,
    "storage_options": _pairs,
    "limits": json.loads,
}


def _from_environment(names: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``names`` that are not ``given`` but in the environment."""
    skipped = given.keys() | set().union(*(group for group in _TOGETHER if group & given.keys()))
    found = {}
    for name in names:
        variable = f"BOWSTRING_{name.upper()}"
        text = os.environ.get(variable)
        if text is None or name in skipped:
            continue
        try:
            found[name] = _READERS.get(name, str)(text)
        except (KeyError, ValueError):
            raise ConfigError(f"option {name}: {variable}={text!r} cannot be read", option=name) from None
    return found


def plain(value: Any) -> Any:
    """JSON's types. What Rust reads as text is text: dates, decimals, and numbers that JSON lacks."""
    if isinstance(value, (Fill, Image, NGram, Pack, Padded)):
        return plain(value.options())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, os.PathLike)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=repr)
    if hasattr(value, "item"):  # a NumPy scalar
        return plain(value.item())
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        return [plain(item) for item in value]
    raise TypeError(f"an option cannot hold a {type(value).__name__}: {value!r}")


def _packs(pack: Any) -> Any:
    if not isinstance(pack, Mapping):
        return pack
    return [
        {"name": name, **(columns.options() if isinstance(columns, Pack) else {"columns": columns})}
        for name, columns in pack.items()
    ]


def document(url: Url | Sequence[Url], given: Mapping[str, Any]) -> str:
    """The options as JSON. Those that are ``None`` count as not given, and are looked up in the environment."""
    names = list(given)
    given = {name: value for name, value in given.items() if value is not None}
    options = {**_from_environment(names, given), **given}
    if "memory_budget" in options:
        options["memory_budget"] = size(options["memory_budget"])
    if "pack" in options:
        options["pack"] = _packs(options["pack"])
    for one in ("columns", "exclude", "arrow"):
        if isinstance(options.get(one), str):
            options[one] = [options[one]]
    columns = {name: options.pop(name) for name in _OF_COLUMNS if name in options}
    urls = [url] if isinstance(url, (str, os.PathLike)) else list(url)
    return json.dumps(plain({"urls": urls, **options, "columns": columns}), allow_nan=False)
