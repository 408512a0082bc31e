"""The dataset as this package reads it: row groups by number, decoded by bowstring."""

from __future__ import annotations

import itertools
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias, TypeVar

import numpy as np

from bowstring import _native
from bowstring.errors import CorruptError
from bowstring.options import document
from bowstring.petastorm import _files, _infer
from bowstring.petastorm._holes import FILL, Holes, Lists, key
from bowstring.petastorm.codecs import ScalarCodec
from bowstring.petastorm.errors import DecodeFieldError, TimeRangeError
from bowstring.petastorm.unischema import Unischema, UnischemaField

__all__ = ["Columns", "Location", "Source", "numbered", "partition_values"]

T = TypeVar("T")
Columns: TypeAlias = "Mapping[str, _native.Tensor | _native.ArrowArray]"


class Location:
    """A dataset's location and options, common to every opening of it."""

    def __init__(self, urls: str | Sequence[str], *, store: _native.OwnStore | None = None, **options: Any) -> None:
        self._store = store
        """The store of its addresses, which is there as long as this."""
        self.urls = urls
        """As given: a file may be listed twice."""
        self._distinct = urls if isinstance(urls, str) else _files.distinct(urls)
        self.options = options

    def open(
        self,
        columns: Iterable[str] | None = None,
        arrow: Iterable[str] = (),
        max_rows: int | None = None,
        fill: int | None = None,
    ) -> _native.RowGroups:
        """Opens it, with nulls as masks, or filled. ``arrow`` names columns that come in their stored type."""
        # Options that are None are looked up in the environment, which may affect how to read, but not what.
        given = {**self.options, "nulls": "mask"}
        if fill is not None:
            # Its row groups are asked for one at a time.
            given |= {"nulls": {"fill": fill}, "prefetch": 1}
        chosen = {"columns": list(columns) if columns is not None else None, "arrow": list(arrow)}
        given |= {name: names for name, names in chosen.items() if names}
        return _native.RowGroups(document(self._distinct, given), max_rows)

    def infer(self) -> Unischema:
        """The schema of plain Parquet, as Petastorm sees it."""
        opened = self.open()
        partitions = partition_values(opened.groups)
        columns = opened.stored
        opened.close()
        # Integers if all values are, else text, as the columns have been opened.
        types = {name: arrow_type for name, arrow_type, _ in columns}
        kinds = ((name, np.int64 if types.get(name) == "Int64" else np.str_) for name in partitions)
        return _infer.from_types((column for column in columns if column[0] not in partitions), kinds)


def partition_values(groups: Iterable[tuple[str, int, int]]) -> dict[str, list[str | None]]:
    """The values of ``key=value`` directories, one per row group; ``None`` is null, or a missing key in a file's path."""
    keys = [_keys(path) for path, _, _ in groups]
    names = dict.fromkeys(name for of in keys for name in of)
    return {name: [of.get(name) for of in keys] for name in names}


def _keys(path: str) -> dict[str, str | None]:
    """Keys and values of the directories of one path; of a duplicate key the first value."""
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if name and equals:
            null = value == "__HIVE_DEFAULT_PARTITION__"
            found.setdefault(urllib.parse.unquote(name), None if null else urllib.parse.unquote(value))
    return found


def numbered(counts: Mapping[str, int]) -> dict[str, int]:
    """The number of the first row group of each file, as indexes of row groups count them."""
    paths = sorted(counts)
    firsts = itertools.accumulate((counts[path] for path in paths), initial=0)
    return dict(zip(paths, firsts, strict=False))


class Source:
    """Row groups of a dataset, with the columns of some fields."""

    def __init__(
        self, location: Location, fields: Sequence[UnischemaField], *, stored: bool, max_rows: int | None = None
    ) -> None:
        names = [field.name for field in fields]
        self.fields = list(fields)
        self._lists = [field.name for field in fields if field.codec is None and field.shape]
        self._holes = Holes(lambda lists: location.open(lists, max_rows=max_rows, fill=FILL))
        self._native = location.open(names, [f.name for f in fields if _as_stored(f, stored)], max_rows)
        self.groups = self._native.groups
        self.row_group_counts = self._native.row_group_counts
        """Row groups of each file, including those without rows, which ``groups`` omits."""
        self.units = {field["name"]: _unit(field["unit"]) for field in self._native.fields}
        self._entries: Sequence[tuple[int, int]] = ()
        self._at = -1

    def start(self, entries: Sequence[tuple[int, int]]) -> None:
        """Begins with these ``(row group, part)``. Parts are the caller's: a row group is read for each."""
        self._entries, self._at = entries, -1
        self._native.start([group for group, _ in entries])

    def next(self, convert: Callable[[Columns], T]) -> tuple[tuple[int, int], int, T] | None:
        """The entry, the first row within the row group, and the result of ``convert`` on the columns, which it must copy."""
        try:
            found = self._native.next(
                lambda group, first, columns: (group, first, self._made(convert, group, first, columns))
            )
        except CorruptError as error:
            if error.column is None:
                raise
            raise DecodeFieldError(str(error)) from error
        if found is None:
            return None
        group, first, made = found
        if first == 0:
            self._at += 1
            # Row groups without rows yield nothing.
            while self._entries[self._at][0] != group:
                self._at += 1
        return self._entries[self._at], first, made

    def _made(self, convert: Callable[[Columns], T], group: int, first: int, columns: Columns) -> T:
        try:
            return convert(self._with_holes(group, first, columns))
        except TimeRangeError as error:
            path, ordinal, _ = self.groups[group]
            raise error.at(path, ordinal, first) from None

    def _with_holes(self, group: int, first: int, columns: Columns) -> Columns:
        """``columns`` and the masks of the null items of lists, where there are any."""
        found: dict[str, Lists] = {}
        names = []
        for name in self._lists:
            mask: Any = columns.get(f"{name}__valid")
            values: Any = columns.get(f"{name}__values")
            # Arrow's arrays have their nulls.
            if mask is None or values is None or isinstance(values, _native.ArrowArray):
                continue
            names.append(name)
            valid, ends = mask.numpy(), columns[f"{name}__offsets"].numpy()  # type: ignore[union-attr]
            if not valid.all() and np.diff(ends)[~valid].any():
                found[name] = Lists(values.numpy(), ends, valid)
        if not found:
            return columns
        masks: Any = self._holes.of(names, self.groups[group], first, found)
        return {**columns, **{key(name): mask for name, mask in masks.items()}}

    def stats(self) -> dict[str, Any]:
        """Counters of the native stages."""
        return self._native.stats()

    def close(self) -> None:
        """Stops everything at once."""
        self._native.close()
        self._holes.close()


def _unit(unit: str | None) -> str | None:
    """NumPy's unit of a time column: ``us`` for ``us, UTC``, ``D`` for days."""
    short = unit.partition(",")[0] if unit else None
    return "D" if short == "days" else short


def _as_stored(field: UnischemaField, stored: bool) -> bool:
    """True if a column must come in Parquet's type, rather than as a tensor.

    Decimals, which NumPy lacks; arrays of text and times, whose exact type is only in their headers; and with
    ``stored`` everything that a codec would decode.
    """
    if field.numpy_dtype is Decimal:
        return True
    if field.codec is None or isinstance(field.codec, ScalarCodec):
        return False
    return stored or np.dtype(field.numpy_dtype).kind in "SUmM"
