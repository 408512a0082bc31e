"""Row groups of Parquet as batches of torch, with pyarrow alone: the fastest plain way that is known to us.

Whole batches come from a dataset, so that nothing is collated; columns are views of Arrow's memory where their type permits; a
worker reads row groups of its own. Shuffled, row groups come in a random order and the rows of each are mixed.
"""

from __future__ import annotations

import fnmatch
import glob
import pathlib
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import IterableDataset, get_worker_info

from bowstring.against.photos import Photos
from bowstring.errors import ConfigError
from bowstring.paths import is_hidden

__all__ = ["RowGroups"]

# NumPy's for plain columns, Arrow's for the rest; both are sliced and taken from in the same way.
Columns = dict[str, Any]


class RowGroups(IterableDataset[dict[str, Any]]):
    """Batches of all row groups of local files."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.batch_size: int = options["batch_size"]
        self.shuffle: bool = options.get("shuffle", True)
        self.seed: int = options.get("seed", 0)
        self.nulls = options.get("nulls")
        self.photos = {name: Photos(name, of) for name, of in (options.get("images") or {}).items()}
        self.passes = 0
        files = found(options["urls"])
        self.pieces = [(path, group) for path in files for group in range(pq.read_metadata(path).num_row_groups)]
        schema = pq.read_schema(files[0])
        wanted, unwanted = options.get("columns") or ["*"], options.get("exclude") or []
        self.names = [
            name
            for pattern in wanted
            for name in fnmatch.filter(schema.names, pattern)
            if not any(fnmatch.fnmatchcase(name, one) for one in unwanted)
        ]
        for name in self.names:
            supported(name, schema.field(name).type)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        mine, of = (worker.id, worker.num_workers) if worker else (0, 1)
        # Text, so that each pass has an order of its own, the same in all workers.
        chance = random.Random(f"{self.seed} {self.passes}")
        self.passes += 1
        pieces = list(self.pieces)
        if self.shuffle:
            chance.shuffle(pieces)
        if worker:
            pa.set_cpu_count(1)
        for columns in self.batches(self.groups(pieces[mine::of], chance, threads=not worker)):
            yield {name: self.delivered(name, column) for name, column in columns.items()}

    def groups(self, pieces: Iterable[tuple[str, int]], chance: random.Random, threads: bool) -> Iterator[Columns]:
        """The columns of each row group."""
        opened: tuple[str, Any] | None = None
        for path, group in pieces:
            if opened is None or opened[0] != path:
                opened = (path, pq.ParquetFile(path, pre_buffer=True))
            table = opened[1].read_row_group(group, self.names, use_threads=threads).combine_chunks()
            columns = {name: self.plain(name, table[name]) for name in self.names}
            if self.shuffle:
                order = np.random.default_rng(chance.getrandbits(64)).permutation(table.num_rows)
                columns = {name: taken(column, order) for name, column in columns.items()}
            yield columns

    def batches(self, groups: Iterable[Columns]) -> Iterator[Columns]:
        """Cuts row groups into batches: views, except where a batch has rows of two."""
        parts: list[Columns] = []
        held = 0
        for columns in groups:
            at, rows = 0, len(columns[self.names[0]])
            while at < rows:
                end = min(rows, at + self.batch_size - held)
                parts.append({name: column[at:end] for name, column in columns.items()})
                held, at = held + end - at, end
                if held == self.batch_size:
                    yield joined(parts)
                    parts, held = [], 0
        if parts:
            yield joined(parts)

    def plain(self, name: str, column: Any) -> Any:
        """A column without nulls, as NumPy's array where its type is plain."""
        array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if array.null_count:
            array = array.fill_null(filling(self.nulls, name))
        if textual(array.type):
            return array
        if pa.types.is_fixed_size_list(array.type):
            return array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), array.type.list_size)
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.int64())
        elif pa.types.is_date32(array.type):
            array = array.cast(pa.int32())
        return array.to_numpy(zero_copy_only=False)

    def delivered(self, name: str, column: Any) -> Any:
        """A column of a batch as bowstring delivers it."""
        if name in self.photos:
            return self.photos[name].decoded(column)
        return column.to_pylist() if isinstance(column, pa.Array) else torch.from_numpy(column)


def found(urls: Iterable[str]) -> list[str]:
    """The files of directories and patterns; hidden names are not data."""
    files: list[str] = []
    for url in urls:
        for place in map(pathlib.Path, sorted(glob.glob(url.removeprefix("file://")))):
            inside = sorted(place.rglob("*.parquet")) if place.is_dir() else [place]
            files += [str(one) for one in inside if not any(map(is_hidden, one.relative_to(place).parts))]
    if not files:
        raise ConfigError(
            f"option against: {', '.join(urls)} has no file that ends in .parquet, which pyarrow is given here"
        )
    return files


def textual(kind: Any) -> bool:
    """Returns true for texts and bytes."""
    is_ = pa.types
    return bool(is_.is_string(kind) or is_.is_large_string(kind) or is_.is_binary(kind) or is_.is_large_binary(kind))


def supported(name: str, kind: Any) -> None:
    """Refuses a column that the two loaders would deliver in different forms."""
    is_ = pa.types
    value = kind.value_type if is_.is_dictionary(kind) or is_.is_fixed_size_list(kind) else kind
    plain = is_.is_integer(value) or is_.is_floating(value) or is_.is_boolean(value)
    if not (plain or textual(value) or is_.is_timestamp(value) or is_.is_date32(value)):
        raise ConfigError(
            f"option against: column {name} is of type {kind}, and the comparison is of numbers, fixed lists of them, texts, "
            f"bytes, dates, times and images; choose others with --columns, or leave it out with --exclude {name}"
        )


def filling(nulls: Any, name: str) -> Any:
    """The value in place of a column's nulls."""
    if isinstance(nulls, Mapping) and set(nulls) != {"fill"}:
        nulls = nulls.get(name, nulls.get("*"))
    value = nulls["fill"] if isinstance(nulls, Mapping) else nulls
    if value is None or value in ("error", "mask"):
        raise ConfigError(
            f"option nulls: the comparison fills the nulls of {name} with a value: --nulls '{{\"{name}\": 0}}'"
        )
    return value


def taken(column: Any, order: Any) -> Any:
    """The values of a column in another order."""
    return column.take(order) if isinstance(column, pa.Array) else column[order]


def joined(parts: list[Columns]) -> Columns:
    """Parts of a batch as one."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: pa.concat_arrays([part[name] for part in parts])
        if isinstance(parts[0][name], pa.Array)
        else np.concatenate([part[name] for part in parts])
        for name in parts[0]
    }
