"""The loader's options: from keywords and the environment to the one JSON document that Rust reads.

Types, defaults and checks live in Rust; this only assembles them. A keyword that is not given is looked up as ``BOWSTRING_<NAME>``,
and then left to its default.
"""

from __future__ import annotations

import datetime
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from bowstring import _native
from bowstring.columns import Fill, Image, NGram, Pack, Padded, Vector
from bowstring.columns import names as names_of
from bowstring.comparisons import is_decimal
from bowstring.errors import ConfigError
from bowstring.ranges import MOST, shown, whole
from bowstring.tuples import with_plain_values

__all__ = [
    "NAMES",
    "TABLE",
    "Filter",
    "Mode",
    "Url",
    "document",
    "dumped",
    "filter_of",
    "from_environment",
    "is_server",
    "plain",
    "size",
    "urls_of",
]

Url: TypeAlias = "str | os.PathLike[str]"
Mode: TypeAlias = Literal["create", "replace", "append"]
# Or a ``pyarrow.compute.Expression``, which pyarrow has no types for.
Filter: TypeAlias = "str | Sequence[tuple[str, str, Any]] | Sequence[Sequence[tuple[str, str, Any]]]"

TABLE: tuple[dict[str, Any], ...] = tuple(_native.option_table())
"""Every option in Rust's table: name, values, default, variable, sentence."""
NAMES = tuple(entry["name"] for entry in TABLE if entry["name"] != "urls")
"""The keywords of a loader, except ``url`` and ``gang``."""

# Options that Rust keeps in a struct of their own.
_OF_COLUMNS = tuple(entry["name"] for entry in TABLE if entry["of_columns"])
# Options whose variables are for all loaders of a job, and which one of a server leaves to the server.
_LEFT_TO_A_SERVER = tuple(entry["name"] for entry in TABLE if entry["left_to_a_server"])
# Options that only make sense together: a given one prevents the environment from setting the other.
_TOGETHER = ({"batch_size", "global_batch_size"}, {"rank", "world_size"})


def size(value: int | str, option: str = "memory_budget") -> int:
    """Bytes, from a number or from text such as ``512MiB`` or ``1.5 GB``; errors name ``option``."""
    if not isinstance(value, str):
        return whole(option, value)
    try:
        return int(json.loads(_native.option_from_text("memory_budget", value, "")))
    except ConfigError as error:
        raise ConfigError(str(error).replace("memory_budget", option, 1), option=option) from None


def is_server(url: str) -> bool:
    """True if ``url`` names a server rather than a place in a store."""
    return url.startswith(("grpc://", "grpc+tcp://", "grpc+tls://"))


def urls_of(url: Url | Sequence[Url]) -> list[str]:
    """The addresses that ``url`` is, or that it has; an iterator is read here and nowhere else.

    :raises ConfigError: if something else is among them.
    """
    given: Any = url
    several = isinstance(given, Iterable) and not isinstance(given, (str, bytes, bytearray, os.PathLike))
    found: list[Any] = list(given) if several else [given]
    for one in found:
        if not isinstance(one, (str, os.PathLike)):
            problem = f"{shown(one)} is a {type(one).__name__}, where an address is a text or a path"
            raise ConfigError(f"option url: {problem}", option="url")
    return [os.fspath(one) for one in found]


def from_environment(names: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``names`` that are set in the environment and not ``given``."""
    skipped = given.keys() | set().union(*(group for group in _TOGETHER if group & given.keys()))
    ours = {variable: text for variable, text in os.environ.items() if variable.startswith("BOWSTRING_")}
    for variable in sorted(ours):
        problem = _native.misspelt_variable(variable)
        if problem is not None:
            raise ConfigError(problem)
    found = {}
    for name in names:
        variable = f"BOWSTRING_{name.upper()}"
        if variable in ours and name not in skipped:
            found[name] = json.loads(_native.option_from_text(name, ours[variable], f"{variable}: "))
    return found


def plain(value: Any) -> Any:
    """Converts to JSON's types. Values that Rust reads as text become text: dates, decimals, and numbers that JSON lacks."""
    if isinstance(value, (Fill, Image, NGram, Pack, Padded, Vector)):
        return plain(value.options())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int) and not -MOST - 1 <= value <= 2 * MOST + 1:
        return shown(value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, os.PathLike) or is_decimal(value):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=repr)
    if isinstance(value, type):
        return _element(value)
    if hasattr(value, "tolist"):  # an array of NumPy or of a library like it, or one of its scalars
        if type(value).__module__ == "numpy" and value.dtype.kind == "M":
            # Nanoseconds would become bare integers, and texts of hours, months and years are no times or dates.
            unit = {"h": "s", "m": "s", "M": "D", "Y": "D"}.get(value.dtype.name[-2])
            value = (value if unit is None else value.astype(f"datetime64[{unit}]")).astype(str)
        return plain(value.item() if getattr(value, "ndim", 1) == 0 else value.tolist())
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        return [plain(item) for item in value]
    return _element(value)


def _element(value: Any) -> str:
    """The name of an element type of NumPy or torch, and of a device of torch; all else is no value of any option."""
    if isinstance(value, type) and value.__module__.partition(".")[0] in ("numpy", "ml_dtypes"):
        return value.__name__
    library = type(value).__module__.partition(".")[0]
    if library == "numpy" or (library == "torch" and type(value).__name__ in ("dtype", "device")):
        return str(value).removeprefix("torch.")
    raise TypeError(f"{shown(value)} is a {type(value).__name__}, which no option holds")


def _named(option: str, value: Any) -> Any:
    """As :func:`plain`; errors name ``option``."""
    try:
        return plain(value)
    except TypeError as error:
        raise ConfigError(f"option {option}: {error}", option=option) from None


def _packs(pack: Any) -> Any:
    if not isinstance(pack, Mapping):
        return pack
    return [{"name": name, **_packed(columns)} for name, columns in pack.items()]


def _packed(columns: Any) -> Mapping[str, Any]:
    if isinstance(columns, Pack):
        return columns.options()
    return columns if isinstance(columns, Mapping) else {"columns": names_of(columns)}


def document(url: Url | Sequence[Url], given: Mapping[str, Any]) -> str:
    """The options as JSON. Those that are ``None`` count as not given, and are looked up in the environment.

    Rust tells given options from others by this: a server's catalogue overrides defaults that are not here.
    """
    urls = [os.path.expanduser(one) for one in urls_of(url)]
    is_served = any(map(is_server, urls))
    names = [name for name in given if not (is_served and name in _LEFT_TO_A_SERVER)]
    given = {name: value for name, value in given.items() if value is not None}
    options = {**from_environment(names, given), **given}
    for one in ("memory_budget", "cache_bytes", "cache_ahead"):
        if one in options:
            options[one] = size(options[one], one)
    for one in ("cache", "mounts", "index"):
        if isinstance(options.get(one), (str, os.PathLike)):
            options[one] = os.path.expanduser(options[one])
    if "filter" in options:
        options["filter"] = filter_of(options["filter"])
    if "pack" in options:
        options["pack"] = _packs(options["pack"])
    for one in ("columns", "exclude", "arrow", "cache_peers"):
        if isinstance(options.get(one), str):
            options[one] = [options[one]]
    columns = {name: _named(name, options.pop(name)) for name in _OF_COLUMNS if name in options}
    return dumped({"urls": urls, **options, "columns": columns})


def filter_of(given: Any) -> Any:
    """A filter in a form that Rust reads."""
    # An expression of pyarrow, told without importing pyarrow.
    if type(given).__name__ == "Expression" and type(given).__module__.startswith("pyarrow"):
        from bowstring.expression import text_of

        return text_of(given)
    return with_plain_values(given)


def dumped(options: Mapping[str, Any]) -> str:
    """Options as JSON, those that are ``None`` left out, which Rust reads and checks."""
    given = {name: _named(name, value) for name, value in options.items() if value is not None}
    return json.dumps(given, allow_nan=False)
