"""Damaged files without checksums: refused, or read as pyarrow reads them, never with other values.

A crash is easy to see; a wrong number is not. So files of many encodings are damaged in a few bytes of the footer, the page
headers and the levels, and the result is compared with pyarrow's reading of the same bytes.
"""

from __future__ import annotations

import collections
import itertools
import os
import pathlib
import select
import subprocess
import sys
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from test_against_pyarrow import COLUMNS, Rng, check, encoding

SOAK = os.environ.get("BOWSTRING_SOAK") == "1"
CASES = int(os.environ.get("BOWSTRING_TEST_CASES", "3000" if SOAK else "300"))
GIVEN = os.environ.get("BOWSTRING_TEST_SEED")
PER_FILE = 25
ROWS = 60


class Oracle:
    """pyarrow in another process, restarted when a file crashes it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.target = folder / "oracle.arrow"
        self.start()

    def start(self) -> None:
        """Starts the process."""
        script = pathlib.Path(__file__).with_name("damage_oracle.py")
        self.process = subprocess.Popen(
            [sys.executable, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def read(self, path: pathlib.Path) -> pa.Table | str:
        """Returns the table, or the reason that there is none."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path} {self.target}\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], 30)
        line = self.process.stdout.readline().strip() if ready else ""
        if line == "ok":
            return pa.ipc.open_file(pa.BufferReader(self.target.read_bytes())).read_all()
        if not line:
            self.stop()
            self.start()
        return line or "pyarrow died"

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


STRUCT = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])


def member(rng: Rng) -> dict[str, Any] | None:
    """Returns a struct that may be null or contain a null."""
    if rng.random() < 0.2:
        return None
    return {"a": int(rng.integers(9)), "b": None if rng.random() < 0.3 else "x" * int(rng.integers(4))}


def nested(rng: Rng, count: int) -> pa.Array:
    """Structs with nulls at every depth."""
    return pa.array([member(rng) for _ in range(count)], STRUCT)


def listed(rng: Rng, count: int) -> pa.Array:
    """Lists of structs; each leaf encodes the length of its list."""
    lists = [None if rng.random() < 0.1 else [member(rng) for _ in range(rng.integers(4))] for _ in range(count)]
    return pa.array(lists, pa.list_(STRUCT))


def lists_within(rng: Rng, count: int) -> pa.Array:
    """Structs with lists, some of whose items are null."""
    items = [
        None
        if rng.random() < 0.1
        else {"l": [None if rng.random() < 0.2 else int(n) for n in rng.integers(0, 9, rng.integers(4))], "c": at}
        for at in range(count)
    ]
    return pa.array(items, pa.struct([("l", pa.list_(pa.int64())), ("c", pa.int32())]))


def moments(rng: Rng, count: int) -> pa.Array:
    """Times written with 96 bits."""
    return pa.array(rng.integers(-(10**15), 10**15, count), pa.timestamp("us"), mask=rng.random(count) < 0.1)


def written(rng: Rng, path: pathlib.Path) -> tuple[pa.Table, dict[str, Any]]:
    """Writes a random table; returns it with the options used."""
    makers = [*COLUMNS, nested, listed, listed, lists_within, moments]
    table = pa.table({f"c{at}": makers[rng.integers(len(makers))](rng, ROWS) for at in range(rng.integers(2, 5))})
    # pyarrow reads 96 bits as microseconds here, which does not work for nanoseconds.
    old = rng.random() < 0.5 and pa.timestamp("ns") not in table.schema.types
    options: dict[str, Any] = {
        "row_group_size": int(rng.choice([ROWS, ROWS // 3])),
        "compression": str(rng.choice(["none", "none", "snappy", "zstd"])),
        "use_dictionary": bool(rng.integers(2)),
        "data_page_version": str(rng.choice(["1.0", "2.0"])),
        "data_page_size": int(rng.choice([64, 1 << 20])),
        "write_batch_size": int(rng.choice([10, 1024])),
        "write_statistics": bool(rng.integers(2)),
        "store_schema": not old and bool(rng.random() < 0.3),
        "use_deprecated_int96_timestamps": old,
    }
    if not options["use_dictionary"] and rng.random() < 0.5:
        encodings = {field.name: encoding(field.type, rng) for field in table.schema}
        options["column_encoding"] = {name: found for name, found in encodings.items() if found is not None}
    pq.write_table(table, path, **options)
    return table, options


def damaged(rng: Rng, whole: bytes) -> dict[int, int]:
    """Returns a few changed bytes in the parts where the file describes itself."""
    length = int.from_bytes(whole[-8:-4], "little")
    footer = len(whole) - 8 - length
    metadata = pq.ParquetFile(pa.BufferReader(whole)).metadata
    starts = []
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            starts += [chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset]
    edits: dict[int, int] = {}
    for _ in range(1 if rng.random() < 0.7 else int(rng.integers(2, 4))):
        choice = rng.random()
        if choice < 0.45:
            at = footer + int(rng.integers(length))
        elif choice < 0.9:
            # A page's header, and the levels after it.
            at = starts[rng.integers(len(starts))] + int(rng.integers(48))
        else:
            at = int(rng.integers(4, footer))
        at = min(at, len(whole) - 9)
        old = whole[at]
        near = (old + int(rng.choice([-2, -1, 1, 2]))) % 256
        edits[at] = [old ^ (1 << int(rng.integers(8))), int(rng.integers(256)), near][rng.integers(3)]
    return edits


def edited(whole: bytes, edits: dict[int, int]) -> bytes:
    """Returns the file with these edits."""
    made = bytearray(whole)
    for at, value in edits.items():
        made[at] = value
    return bytes(made)


def delivered(path: pathlib.Path, rows: int) -> dict[str, Any]:
    """Reads everything as one batch."""
    with bowstring.Loader(
        path, batch_size=max(rows, 1), shuffle=False, nulls="mask", threads=1, prefetch=1, timeout=60, decode=False
    ) as loader:
        batches = list(loader)
    assert len(batches) <= 1
    return dict(batches[0]) if batches else {}


def columns(table: pa.Table) -> dict[str, pa.Array]:
    """Returns the leaves by their names in a batch."""
    found: dict[str, pa.Array] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        found.update(leaves(name, column.combine_chunks()))
    return found


def leaves(name: str, array: pa.Array) -> dict[str, pa.Array]:
    """Returns the leaves of a column: of structs their members, of lists of structs lists of their members."""
    kind = array.type
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        lengths = np.asarray(pc.list_value_length(array).fill_null(0))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        members = array.flatten().flatten()
        lists = [pa.ListArray.from_arrays(offsets, part, mask=array.is_null()) for part in members]
        parts = zip(kind.value_type, lists, strict=True)
    elif pa.types.is_struct(kind):
        parts = zip(kind, array.flatten(), strict=True)
    else:
        return {name: array}
    return {at: leaf for field, part in parts for at, leaf in leaves(f"{name}.{field.name}", part).items()}


def matches(batch: dict[str, Any], table: pa.Table) -> None:
    """Checks that the batch holds the values of the table."""
    for name, expected in columns(table).items():
        here = np.ones(len(expected), bool)
        check(name, batch, here, expected)


def one(seed: int, folder: pathlib.Path, oracle: Oracle, seen: collections.Counter[str]) -> None:
    """Damages one file in many ways."""
    rng = np.random.default_rng(seed)
    path = folder / "whole.parquet"
    table, options = written(rng, path)
    whole = path.read_bytes()
    original = oracle.read(path)
    assert isinstance(original, pa.Table), original
    matches(delivered(path, ROWS), original)
    for number in range(PER_FILE):
        edits = damaged(rng, whole)
        # Each has its own name, so that nothing is cached from the last one.
        path = folder / f"{seed}-{number}.parquet"
        path.write_bytes(edited(whole, edits))
        try:
            judge(path, whole, edits, original, oracle, seen)
        except AssertionError as error:
            footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
            where = ", ".join(f"{at}: {whole[at]:#04x} -> {value:#04x}" for at, value in edits.items())
            note = f"seed {seed}, damage {number} at {where} (footer at {footer})"
            raise AssertionError(f"{note}: {options}, {table.schema.types}: {error}") from error
        path.unlink()


def judge(
    path: pathlib.Path,
    whole: bytes,
    edits: dict[int, int],
    original: pa.Table,
    oracle: Oracle,
    seen: collections.Counter[str],
) -> None:
    """Checks that a file is refused, or read as pyarrow reads it, or as if it were undamaged."""
    try:
        batch = delivered(path, ROWS)
    except (bowstring.CorruptError, bowstring.UnsupportedError, bowstring.LimitError):
        seen["refused"] += 1
        return
    theirs = oracle.read(path)
    if isinstance(theirs, str):
        # pyarrow may object to a byte that holds no value, while another changed byte is a value that both readers deliver.
        for count in range(len(edits)):
            for kept in itertools.combinations(edits.items(), count):
                path.write_bytes(edited(whole, dict(kept)))
                part = oracle.read(path)
                if isinstance(part, pa.Table) and differs(batch, part) is None:
                    seen["as before"] += 1
                    return
        if not set(columns(original)) <= {name.removesuffix("__values") for name in batch}:
            # Another name or kind of column, not another value.
            seen["other schema"] += 1
            return
        raise AssertionError(f"pyarrow refuses ({theirs}): {differs(batch, original)}")
    if theirs.schema != original.schema:
        # The file declares other types or names, and declares them once: nothing contradicts them.
        seen["other schema"] += 1
        return
    found = differs(batch, theirs)
    assert found is None, f"pyarrow reads other values: {found}"
    seen["as pyarrow"] += 1


def differs(batch: dict[str, Any], table: pa.Table) -> str | None:
    """Returns the difference between batch and table."""
    try:
        matches(batch, table)
    except (AssertionError, KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        return f"{type(error).__name__} {error}"
    return None


@pytest.mark.timeout(3600 if SOAK else 300)
def test_damage_is_refused_or_read_as_pyarrow_reads_it(tmp_path: pathlib.Path) -> None:
    # The soak tries new damage; other runs try the same every time.
    first = int(GIVEN) if GIVEN else int.from_bytes(os.urandom(4), "little") if SOAK else 1
    oracle, seen = Oracle(tmp_path), collections.Counter[str]()
    try:
        for number in range(1 if GIVEN else CASES // PER_FILE):
            print(f"repeat with: BOWSTRING_TEST_SEED={first + number} pytest python/tests/test_damaged.py")
            one(first + number, tmp_path, oracle, seen)
    finally:
        oracle.stop()
    print(dict(seen))
    assert GIVEN or seen["refused"] > sum(seen.values()) / 10, seen
