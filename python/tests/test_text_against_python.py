"""Random tables as text, written by Python's `json` and `csv`, compared with the result of a conversion.

The output equals the input, or the conversion fails with an error that names the place. A table whose columns each have
one kind never fails.
"""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
import os
import pathlib
import random
import string
from collections.abc import Callable
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SOAK = os.environ.get("BOWSTRING_SOAK") == "1"
CASES = 600 if SOAK else 60
PARTS = 4
UTC = dt.timezone.utc
Make = Callable[[random.Random], Any]


def text(rng: random.Random) -> str:
    letters = string.ascii_letters + string.digits + " ,;\"'\\/\t\n\r\u00e9\u4e2d\U0001f600\x00\x7f"
    return "".join(rng.choice(letters) for _ in range(rng.randrange(12)))


def number(rng: random.Random) -> float:
    value = rng.choice([rng.random(), rng.uniform(-1e9, 1e9), rng.uniform(-1, 1) * 10.0 ** rng.randrange(-300, 300)])
    return rng.choice([value, round(value, 3), float(rng.randrange(-9, 9)), 5e-324, -0.0])


def instant(rng: random.Random) -> dt.datetime:
    value = dt.datetime(1, 1, 1) + dt.timedelta(seconds=rng.randrange(315_537_897_599))
    return value.replace(microsecond=rng.choice([0, 500_000, rng.randrange(1_000_000)]))


KINDS: dict[str, Make] = {
    "integer": lambda rng: rng.choice([rng.randrange(-99, 99), rng.randrange(-(2**63), 2**63)]),
    "unsigned": lambda rng: rng.randrange(2**64),
    "float": number,
    "boolean": lambda rng: rng.random() < 0.5,
    "text": text,
}
NESTED: dict[str, Make] = {
    "list": lambda rng: [rng.choice([None, rng.randrange(2**40)]) for _ in range(rng.randrange(4))],
    "object": lambda rng: {key: text(rng) for key in "ab" if rng.random() < 0.7} | {"c": [number(rng)]},
}
DATED: dict[str, Make] = {
    "date": lambda rng: instant(rng).date().isoformat(),
    "instant": lambda rng: instant(rng).isoformat(sep=rng.choice("T ")),
    "zulu": lambda rng: instant(rng).replace(tzinfo=UTC).isoformat(),
}
# Each of these, in a column of another kind, once led to a silently changed value.
ODD: list[Any] = [3.7, "7", 2**53 + 1, 2**64 + 1, -(2**63) - 1, True, "no", "on", "01234", 1e308, None, [1], {"z": 1}]
ODD += [
    "2024-06-01T23:30:00-05:00",
    "2024-06-01T23:30:00",
    "2024-06-01T23:30:00.123456789",
    "2023-02-29",
    "1e400",
    "+7",
    "",
]


def table(rng: random.Random, kinds: dict[str, Make], odd: bool) -> list[dict[str, Any]]:
    """Makes rows whose columns each have one kind, with some nulls, and perhaps one value of another kind."""
    columns = {f"{kind}{at}": kind for at, kind in enumerate(rng.choices(sorted(kinds), k=rng.randrange(1, 5)))}
    # Types are inferred from the first thousand rows.
    rows = [{name: kinds[kind](rng) for name, kind in columns.items()} for _ in range(rng.choice([3, 40, 1100]))]
    for row in rows[1:]:
        for name in columns:
            if rng.random() < 0.1:
                row[name] = None
    if odd:
        rng.choice(rows[-2:])[rng.choice(sorted(columns))] = rng.choice(ODD)
    return rows


def same(found: Any, wanted: Any) -> bool:
    """True if a value survived: a number as its number, a missing member as null."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(same(found.get(key), wanted.get(key)) for key in {*found, *wanted})
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, bool) or isinstance(found, bool) or isinstance(wanted, str) or wanted is None:
        return type(found) is type(wanted) and found == wanted
    return isinstance(found, (int, float)) and found == wanted


def count(text: str, unit: str) -> int:
    """Returns an ISO instant as an exact count since 1970."""
    body, fraction = text[:19], ""
    rest = text[19:]
    if rest.startswith("."):
        digits = len(rest[1:]) - len(rest[1:].lstrip(string.digits))
        fraction, rest = rest[1 : 1 + digits], rest[1 + digits :]
    zone = dt.datetime.fromisoformat("2000-01-01T00:00:00" + rest.replace("Z", "+00:00")).utcoffset() or dt.timedelta()
    seconds = (dt.datetime.fromisoformat(body) - dt.datetime(1970, 1, 1) - zone) // dt.timedelta(seconds=1)
    digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit]
    assert not fraction[digits:].strip("0"), (text, unit)
    return int(f"{fraction[:digits]:0<{digits}}" or 0) + seconds * 10**digits


def same_cell(column: pa.ChunkedArray, row: int, cell: str) -> bool:
    """True if a value equals a cell of CSV."""
    kind, value = column.type, column[row]
    if not value.is_valid:
        return cell == ""
    if pa.types.is_string(kind):
        return bool(value.as_py() == cell)
    if pa.types.is_timestamp(kind):
        zoned = cell[19:].lstrip("." + string.digits) != ""
        return zoned == (kind.tz is not None) and value.value == count(cell, kind.unit)
    if pa.types.is_date(kind):
        return bool(value.as_py().isoformat() == cell)
    if pa.types.is_boolean(kind):
        return cell.lower() == str(value.as_py()).lower()
    if pa.types.is_integer(kind):
        return str(value.as_py()) == cell
    found = value.as_py()
    if cell.lstrip("-").isdigit():
        return bool(found == int(cell))
    return found == float(cell) or (math.isnan(found) and cell == "nan")


def converted(path: pathlib.Path, out: pathlib.Path, odd: bool) -> pa.Table | None:
    """Returns the result of a conversion of the text; None if it reports the place where it failed."""
    try:
        report = bowstring.convert(path, out, to="parquet", verify=True)
    except (bowstring.CorruptError, bowstring.UnsupportedError) as error:
        # A conflict within the sample is reported by its column, a later one by file and line.
        placed = (path.name in str(error) and "line" in str(error)) or "column" in str(error)
        if not (odd and placed):
            raise
        return None
    assert report.verified
    return pq.read_table(sorted(out.glob("*.parquet")))


def repeat(name: str, seed: int) -> str:
    return f"seed {seed}: BOWSTRING_TEST_SEED={seed} pytest tests/test_text_against_python.py -k {name}"


def seeds(part: int) -> range | list[int]:
    given = os.environ.get("BOWSTRING_TEST_SEED")
    return [int(given)] * (part == 0) if given else range(part * CASES // PARTS, (part + 1) * CASES // PARTS)


@pytest.mark.timeout(1800 if SOAK else 120)
@pytest.mark.parametrize("part", range(PARTS))
def test_json_is_what_python_wrote(part: int, tmp_path: pathlib.Path) -> None:
    refused = 0
    for seed in seeds(part):
        rng = random.Random(seed)
        odd = rng.random() < 0.5
        rows = table(rng, KINDS | NESTED, odd)
        path = tmp_path / f"{seed}.jsonl"
        options = {"ensure_ascii": rng.random() < 0.5, "separators": rng.choice([None, (",", ":"), (" , ", " : ")])}
        path.write_text("".join(json.dumps(row, **options) + "\n" for row in rows), encoding="utf-8", newline="")
        found = converted(path, tmp_path / f"{seed}", odd)
        if found is None:
            refused += 1
            continue
        wanted = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        assert found.num_rows == len(wanted), repeat("json", seed)
        for number, (ours, theirs) in enumerate(zip(found.to_pylist(), wanted, strict=True)):
            assert same(ours, theirs), f"{repeat('json', seed)}: row {number}: {ours} is not {theirs}"
    print(f"json: {len(seeds(part))} tables, {refused} refused, none changed")


@pytest.mark.timeout(1800 if SOAK else 120)
@pytest.mark.parametrize("part", range(PARTS))
def test_csv_is_what_python_wrote(part: int, tmp_path: pathlib.Path) -> None:
    refused = 0
    for seed in seeds(part):
        rng = random.Random(seed)
        odd = rng.random() < 0.5
        rows = table(rng, KINDS | DATED, odd)
        path = tmp_path / f"{seed}.csv"
        quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
        with path.open("w", encoding="utf-8", newline="") as file:
            end = rng.choice(["\n", "\r\n"])
            writer = csv.writer(file, quoting=quoting, lineterminator=end)
            writer.writerow(rows[0])
            for row in rows:
                # Python writes a carriage return without quotes if lines end otherwise, and cannot read that back itself.
                bare = end == "\n"
                writer.writerow(
                    cell.replace("\r", "") if bare and isinstance(cell, str) else cell for cell in row.values()
                )
        # With one column, or with all cells quoted, a null is an empty text in quotes, which is not a number.
        found = converted(path, tmp_path / f"{seed}", odd or len(rows[0]) == 1 or quoting != csv.QUOTE_MINIMAL)
        if found is None:
            refused += 1
            continue
        with path.open(encoding="utf-8", newline="") as file:
            head, *wanted = csv.reader(file)
        assert found.column_names == head, repeat("csv", seed)
        assert found.num_rows == len(wanted), repeat("csv", seed)
        for row, cells in enumerate(wanted):
            for name, cell in zip(head, cells, strict=True):
                why = f"{repeat('csv', seed)}: row {row}, {name}: {found[name][row]!r} is not {cell!r}"
                assert same_cell(found[name], row, cell), why
    print(f"csv: {len(seeds(part))} tables, {refused} refused, none changed")
