"""Random filters on random datasets, against a judge that uses neither the engine nor Arrow: row by row, in Python.

The datasets have everything that lets a reader skip: statistics, page indexes, sorted ranges, directories such as ``part=2``.
They also have what makes skipping go wrong: nulls, NaN, signed zeros, structs, lists, columns that some files lack or store as
another type.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SOAK = os.environ.get("BOWSTRING_SOAK") == "1"
CASES = int(os.environ.get("BOWSTRING_TEST_CASES", "1000" if SOAK else "20"))
GIVEN = os.environ.get("BOWSTRING_TEST_SEED")
FILTERS = 12
Rng = np.random.Generator
Row = dict[str, Any]
Judge = Callable[[Row], bool | None]

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
WORDS = ["", "a", "aa", "aaaaaaaab", "b", "größe", "it's", "z\U0010ffff"]
UNSIGNED = [0, 1, 2, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
FLOATS = [float("-inf"), -2.5, -0.0, 0.0, 0.1, 1.0, 3.0, float("inf")]
MOMENTS = [EPOCH + datetime.timedelta(hours=18 * at) for at in range(-4, 4)]
DECIMALS = [decimal.Decimal(at * 125).scaleb(-2) for at in range(-4, 4)]
# The values of each column: eight in ascending order.
POOLS: dict[str, list[Any]] = {
    "i": list(range(-4, 4)),
    "u": UNSIGNED,
    "f64": FLOATS,
    "f32": [float(np.float32(value)) for value in FLOATS],
    "s": sorted(WORDS, key=str.encode),
    "b": [False] * 4 + [True] * 4,
    "day": [datetime.date(1970, 1, 5) + datetime.timedelta(days=at) for at in range(8)],
    "ts": MOMENTS,
    "dec": DECIMALS,
    "n.x": list(range(8)),
    "n.deep.y": sorted(WORDS, key=str.encode),
    "late": list(range(8)),
}
# Columns that files store as different types.
KINDS: dict[str, list[pa.DataType]] = {
    "i": [pa.int64(), pa.int32(), pa.int8()],
    "u": [pa.uint64()],
    "f64": [pa.float64()],
    "f32": [pa.float32()],
    "s": [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())],
    "b": [pa.bool_()],
    "day": [pa.date32()],
    "ts": [pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")],
    "dec": [pa.decimal128(12, 2), pa.decimal128(20, 2)],
    "late": [pa.int16()],
}
STRUCT = pa.struct([("x", pa.int32()), ("deep", pa.struct([("y", pa.string())]))])


# ---- the judge -----------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Returns a value that Python compares exactly with its column's literals; texts as their bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return (value - EPOCH.date()) // datetime.timedelta(microseconds=1)
    return value


def cell(row: Row, column: str) -> Any:
    """Returns the value; None if it or a struct around it is null."""
    found: Any = row
    for name in column.split("."):
        found = None if found is None else found[name]
    return found


def compared(column: str, op: str, literal: Any) -> Judge:
    """A comparison with a value, unknown for a null."""
    with_literal: dict[str, Callable[[Any], bool]] = {
        "=": lambda value: value == literal,
        "!=": lambda value: value != literal,
        "<": lambda value: value < literal,
        "<=": lambda value: value <= literal,
        ">": lambda value: value > literal,
        ">=": lambda value: value >= literal,
    }
    decide = with_literal[op]

    def judge(row: Row) -> bool | None:
        value = cell(row, column)
        return None if value is None else bool(decide(plain(value)))

    return judge


def member(column: str, literals: list[Any]) -> Judge:
    """True if the value is among the literals."""

    def judge(row: Row) -> bool | None:
        value = cell(row, column)
        return None if value is None else any(plain(value) == literal for literal in literals)

    return judge


def inverted(inner: Judge) -> Judge:
    """NOT: unknown stays unknown."""

    def judge(row: Row) -> bool | None:
        found = inner(row)
        return None if found is None else not found

    return judge


def joined(inner: list[Judge], ends: bool) -> Judge:
    """AND, decided by one False, or OR, decided by one True; otherwise unknown if one part is unknown."""

    def judge(row: Row) -> bool | None:
        found = [part(row) for part in inner]
        if ends in found:
            return ends
        return None if None in found else not ends

    return judge


def split(column: str, low: float, high: float) -> Judge:
    """Petastorm's ``in_pseudorandom_split``."""

    def judge(row: Row) -> bool | None:
        value = cell(row, column)
        if value is None:
            return None
        bucket = int(hashlib.md5(str(value).encode("utf-8")).hexdigest(), 16) % sys.maxsize
        return bool(low * (sys.maxsize - 1) <= bucket < high * (sys.maxsize - 1))

    return judge


# ---- random filters --------------------------------------------------------------------------------------------------


def pick(rng: Rng, values: list[Any]) -> Any:
    """Returns one of them."""
    return values[int(rng.integers(len(values)))]


def literal(rng: Rng, column: str) -> tuple[Any, str]:
    """Returns a literal for the column, as value and as text."""
    value = pick(rng, POOLS[column])
    if isinstance(value, str):
        return value.encode(), "'" + value.replace("'", "''") + "'"
    if isinstance(value, bool):
        return value, str(value).lower()
    if isinstance(value, float):
        value = value if np.isfinite(value) else float(np.sign(value)) * 1e5
        return value, repr(value)
    if isinstance(value, int):
        if abs(value) < 2**53 and rng.random() < 0.25:
            value = value + float(pick(rng, [-0.5, 0.0, 0.5]))
        return value, repr(value)
    if isinstance(value, decimal.Decimal):
        value += decimal.Decimal(int(rng.integers(-1, 2))).scaleb(-3)
        return value, f"'{value:f}'" if rng.random() < 0.5 else f"{value:f}"
    if isinstance(value, datetime.datetime):
        zone = pick(rng, [0, 0, 2, -5])
        there = value.astimezone(datetime.timezone(datetime.timedelta(hours=zone)))
        text = there.strftime("%Y-%m-%dT%H:%M:%S") + ("Z" if zone == 0 else f"{zone:+03d}:00")
        return plain(value), f"'{text}'"
    hours = pick(rng, [0, 0, 6])
    return plain(value) + hours * 3_600_000_000, f"'{value.isoformat()}" + (f" {hours:02d}:00:00'" if hours else "'")


def condition(rng: Rng, part: bool) -> tuple[Judge, str]:
    """Returns a comparison of some kind."""
    if rng.random() < 0.08:
        values = rng.integers(0, 8, int(rng.integers(1, 4))).tolist()

        def overlaps(row: Row) -> bool | None:
            return None if row["l"] is None else any(item in values for item in row["l"])

        return overlaps, f"l overlaps ({', '.join(map(str, values))})"
    if part and rng.random() < 0.15:
        values = rng.integers(0, 4, int(rng.integers(1, 3))).tolist()
        return member("part", values), f"part in ({', '.join(map(str, values))})"
    column = pick(rng, list(POOLS))
    name = f'"{column}"' if rng.random() < 0.1 else column
    kind = rng.random()
    if kind < 0.06 and column in ("i", "u", "s", "n.deep.y"):
        low, high = sorted(rng.random(2).round(2).tolist())
        return split(column, low, high), f"split({column}, {low}, {high})"
    if kind < 0.16:
        null: Judge = lambda row: cell(row, column) is None  # noqa: E731
        return (null, f"{name} is null") if rng.random() < 0.5 else (inverted(null), f"{name} is not null")
    if kind < 0.32:
        literals = [literal(rng, column) for _ in range(rng.integers(1, 5))]
        judge, texts = member(column, [meant for meant, _ in literals]), ", ".join(text for _, text in literals)
        return (judge, f"{name} in ({texts})") if rng.random() < 0.6 else (inverted(judge), f"{name} not in ({texts})")
    if kind < 0.44:
        (low, low_text), (high, high_text) = literal(rng, column), literal(rng, column)
        judge = joined([compared(column, ">=", low), compared(column, "<=", high)], False)
        text = f"between {low_text} and {high_text}"
        return (judge, f"{name} {text}") if rng.random() < 0.6 else (inverted(judge), f"{name} not {text}")
    op, (meant, text) = pick(rng, ["=", "!=", "<", "<=", ">", ">="]), literal(rng, column)
    if rng.random() < 0.2:
        turned = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(op, op)
        return compared(column, op, meant), f"{text} {turned} {name}"
    return compared(column, op, meant), f"{name} {op} {text}"


def tree(rng: Rng, part: bool, depth: int) -> tuple[Judge, str]:
    """Returns a filter."""
    if depth == 0 or rng.random() < 0.3:
        return condition(rng, part)
    if rng.random() < 0.3:
        judge, text = tree(rng, part, depth - 1)
        return inverted(judge), f"not ({text})"
    parts = [tree(rng, part, depth - 1) for _ in range(rng.integers(2, 4))]
    ends = bool(rng.random() < 0.5)
    word = " or " if ends else " and "
    return joined([judge for judge, _ in parts], ends), word.join(f"({text})" for _, text in parts)


# ---- random datasets -------------------------------------------------------------------------------------------------


def cells(rng: Rng, column: str, count: int) -> list[Any]:
    """Returns runs of similar values, which may contain nulls and NaN."""
    found: list[Any] = []
    while len(found) < count:
        first, wide = int(rng.integers(8)), int(rng.integers(1, 4))
        nulls, nans = pick(rng, [0, 0, 0.1, 1]), pick(rng, [0, 0, 0.2, 1]) if column.startswith("f") else 0
        for _ in range(int(rng.integers(1, 60))):
            value = POOLS[column][min(first + int(rng.integers(wide)), 7)]
            value = float("nan") if rng.random() < nans else value
            found.append(None if rng.random() < nulls else value)
    return found[:count]


def rows_of(rng: Rng, count: int, first: int) -> list[Row]:
    """Returns rows as Python values."""
    columns = {column: cells(rng, column, count) for column in POOLS}
    rows = []
    for at in range(count):
        row: Row = {"id": first + at, **{name: columns[name][at] for name in KINDS}}
        y = columns["n.deep.y"][at]
        deep = None if y is None and rng.random() < 0.5 else {"y": y}
        x = columns["n.x"][at]
        row["n"] = None if x is None and rng.random() < 0.5 else {"x": x, "deep": deep}
        items = rng.integers(0, 8, int(rng.integers(3))).tolist()
        row["l"] = None if rng.random() < 0.1 else [None if rng.random() < 0.1 else item for item in items]
        rows.append(row)
    return rows


def written(rng: Rng, directory: pathlib.Path) -> tuple[list[Row], bool]:
    """Writes a dataset of some files; returns its rows in order, and true if its directories are partitions."""
    part = bool(rng.random() < 0.5)
    rows: list[Row] = []
    for number in range(int(rng.integers(1, 4))):
        own = rows_of(rng, int(rng.integers(1, 400)), len(rows))
        fields = [pa.field("id", pa.int64(), nullable=False)]
        fields += [pa.field(name, pick(rng, kinds)) for name, kinds in KINDS.items()]
        fields += [pa.field("n", STRUCT), pa.field("l", pa.list_(pa.int32()))]
        if number > 0 and rng.random() < 0.4:
            fields = [field for field in fields if field.name != "late"]
            own = [{**row, "late": None} for row in own]
        where = directory
        if part:
            key = pick(rng, [None, 0, 1, 2])
            where = directory / f"part={'__HIVE_DEFAULT_PARTITION__' if key is None else key}"
            own = [{**row, "part": key} for row in own]
        where.mkdir(exist_ok=True)
        # The parts are read in the order of their names; ids identify the rows.
        pq.write_table(
            pa.Table.from_pylist([{field.name: row[field.name] for field in fields} for row in own], pa.schema(fields)),
            where / f"{number}.parquet",
            row_group_size=int(pick(rng, [15, 60, 1000])),
            data_page_size=int(pick(rng, [16, 64, 1 << 20])),
            write_batch_size=int(pick(rng, [1, 7, 1024])),
            use_dictionary=bool(rng.integers(2)),
            data_page_version=str(pick(rng, ["1.0", "2.0"])),
            write_page_index=bool(rng.random() < 0.7),
            write_statistics=bool(rng.random() < 0.8),
            compression=str(pick(rng, ["none", "zstd"])),
        )
        rows += own
    keys = {row.get("part") for row in rows}
    return rows, part and keys != {None}


def selected(directory: pathlib.Path, text: str) -> list[int]:
    """Returns the rows that the loader delivers."""
    options: dict[str, Any] = {"batch_size": 256, "columns": ["id"], "shuffle": False, "tail": "pad", "threads": 1}
    with bowstring.Loader(directory, filter=text, **options) as loader:
        return sorted(int(number) for batch in loader for number in batch["id"][batch["_mask"]])


@pytest.mark.timeout(1800 if SOAK else 120)
def test_random_filters_select_what_the_judge_selects(tmp_path: pathlib.Path) -> None:
    first = int(GIVEN) if GIVEN else int.from_bytes(os.urandom(4), "little")
    some = none = unknown = 0
    for number in range(1 if GIVEN else CASES):
        seed = first + number
        repeat = f"repeat with: BOWSTRING_TEST_SEED={seed} pytest python/tests/test_filters_judged.py"
        rng = np.random.default_rng(seed)
        directory = tmp_path / str(number)
        directory.mkdir()
        rows, part = written(rng, directory)
        for _ in range(FILTERS):
            judge, text = tree(rng, part, int(rng.integers(4)))
            verdicts = [judge(row) for row in rows]
            expected = [row["id"] for row, verdict in zip(rows, verdicts, strict=True) if verdict]
            try:
                found = selected(directory, text)
            except bowstring.Error as error:
                raise AssertionError(f"{text}: {error}; {repeat}") from error
            wrong = set(found).symmetric_difference(expected)
            assert found == expected, f"{text}: {len(wrong)} rows, {[rows[at] for at in sorted(wrong)[:2]]}; {repeat}"
            some += 0 < len(expected) < len(rows)
            none += not expected
            unknown += None in verdicts
    print(f"{some} filters selected some rows, {none} none, {unknown} met nulls, from seed {first}")
    # Without enough of these, the test would prove nothing.
    assert GIVEN or min(some, none, unknown) > CASES / 2, (some, none, unknown)
