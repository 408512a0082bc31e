"""Values of filters, as tuples and as expressions of pyarrow: the same rows as pyarrow's, or an error with a way out."""

from __future__ import annotations

import datetime
import decimal
import functools
import math
import operator
import pathlib
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import dataset

FIELD = pc.field


def instant(second: int, zone: datetime.timezone | None = None) -> datetime.datetime:
    return datetime.datetime(2024, 1, 1, 0, 0, second, second, zone)


FLOATS = [0.1, math.nan, None, -0.0, 1e300, math.inf, -math.inf, 2.5]
TEXTS = ["a", None, "it's", 'q"q', "b\\c", "new\nline", 'a",\n  "b', "é\t"]
SPECIAL = [math.inf, -math.inf, math.nan, 0.0]
SIGNS = ["==", "!=", "<", "<=", ">", ">="]
PYTHONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
VALUES = [
    FIELD("u") == pa.scalar(2**64 - 1, pa.uint64()),
    FIELD("u").isin(pa.array([5, 2**64 - 1], pa.uint64())),
    FIELD("id").isin(list(range(3, 3000))),
    FIELD("id").isin([1, None]),
    ~FIELD("text").isin(["a", None]),
    pc.is_in(FIELD("text"), value_set=pa.array(["a", None]), skip_nulls=True),
    FIELD("text").isin(pa.array([], pa.string())),
    ~FIELD("text").isin(pa.array([], pa.string())),
    FIELD("text").isin(pa.array([None], pa.string())),
    FIELD("text").isin(TEXTS[2:5]),
    *[FIELD("text") == text for text in TEXTS if text is not None],
    FIELD("a b") > 3,
    FIELD("st", 'x"y') == 3,
    pc.scalar(3) < FIELD("id"),
    FIELD("day") == datetime.date(2024, 1, 2),
    FIELD("day").isin([datetime.date(2024, 1, 1), datetime.date(2024, 1, 5)]),
    FIELD("day") > instant(3),
    FIELD("time") > datetime.date(2024, 1, 1),
    FIELD("time").isin([instant(1), instant(4)]),
    FIELD("zoned") == instant(1, datetime.timezone.utc),
    FIELD("zoned").isin([instant(1, datetime.timezone.utc)]),
    FIELD("fine") <= pa.scalar(3001, pa.timestamp("ns")),
    FIELD("clock") == datetime.time(1, 2, 3, 4),
    FIELD("price") == decimal.Decimal("0.1"),
    FIELD("price").isin([decimal.Decimal("0.1"), decimal.Decimal("0.5")]),
    FIELD("price") >= decimal.Decimal("0.3000000000000000001"),
    FIELD("raw") == b"a",
    FIELD("raw").isin([b"a", b"c"]),
    FIELD("real").isin([math.inf, 0.1]),
    ~FIELD("real").isin([math.nan, 0.1]),
    FIELD("real").is_nan(),
    ~FIELD("real").is_nan(),
    FIELD("real").is_null() | FIELD("real").is_nan(),
    functools.reduce(operator.or_, [(FIELD("id") == number) & FIELD("text").is_valid() for number in range(4, 2000)]),
    *[PYTHONS[sign](FIELD(name), value) for sign in SIGNS for value in SPECIAL for name in ("real", "small", "id")],
    *[~PYTHONS[sign](FIELD("real"), value) for sign in SIGNS for value in SPECIAL],
]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight rows with a column of each type that a value of a filter may have."""
    rows = range(8)
    columns = {
        "id": pa.array([None if row == 2 else row for row in rows], pa.int64()),
        "u": pa.array([0, 2**64 - 1, None, 3, 4, 5, 6, 7], pa.uint64()),
        "text": TEXTS,
        "a b": list(rows),
        "st": pa.array([{'x"y': row} for row in rows]),
        "day": [datetime.date(2024, 1, 1) + datetime.timedelta(row) for row in rows],
        "time": pa.array(map(instant, rows), pa.timestamp("us")),
        "zoned": pa.array(map(instant, rows), pa.timestamp("us", "UTC")),
        "fine": pa.array([row * 1000 + 1 for row in rows], pa.timestamp("ns")),
        "clock": [datetime.time(1, 2, 3, row) for row in rows],
        "price": pa.array([decimal.Decimal(row) / 10 for row in rows], pa.decimal128(10, 1)),
        "raw": pa.array([b"a", b"\xff", None, b"", b"b", b"c", b"d", b"e"]),
        "real": FLOATS,
        "small": pa.array(FLOATS, pa.float32()),
        "on": [True, False, None, True] * 2,
        "tags": [[row, 9] for row in rows],
        "row": list(rows),
    }
    path = str(tmp_path_factory.mktemp("kinds") / "kinds.parquet")
    pq.write_table(pa.table(columns), path)
    return path


def selected(data: str, **given: Any) -> list[int]:
    """The rows that a filter selects."""
    try:
        with bowstring.Loader(data, batch_size=8, shuffle=False, tail="short", columns="row", **given) as loader:
            return [int(row) for batch in loader for row in batch["row"]]
    except bowstring.Error as error:
        if "no rows" not in str(error):
            raise
        return []


def test_an_expression_with_any_value_selects_what_pyarrow_selects(kinds: str) -> None:
    rows = dataset(kinds)
    for expression in VALUES:
        expected = rows.to_table(filter=expression)["row"].to_pylist()
        assert selected(kinds, filter=expression) == expected, str(expression)[:300]


TUPLES: list[tuple[str, str, Any]] = [
    ("real", "=", decimal.Decimal("0.1")),
    ("price", "=", decimal.Decimal("0.10")),
    ("price", "in", [decimal.Decimal("0.1"), decimal.Decimal("0.5")]),
    ("price", ">=", decimal.Decimal("0.3000000000000000001")),
    ("id", "<", decimal.Decimal("1E+1")),
    ("raw", "=", b"a"),
    ("raw", "in", {b"a", b"c"}),
    ("text", "=", b"it's"),
    ("real", "in", [math.inf, 0.1]),
    ("real", "=", np.float32("inf")),
    *[("real", sign, value) for sign in SIGNS for value in SPECIAL],
    *[("small", sign, value) for sign in SIGNS for value in SPECIAL],
]


def test_tuples_take_the_values_that_pyarrow_takes(kinds: str) -> None:
    rows = dataset(kinds)
    for one in TUPLES:
        for filter_ in ([one], [[("row", "=", 7)], [one, ("row", "<", 6)]]):
            expected = rows.to_table(filter=pq.filters_to_expression(filter_))["row"].to_pylist()
            assert selected(kinds, filter=filter_) == expected, filter_
    assert selected(kinds, filter=[("u", "<", 2**70), ("real", "not in", [math.inf])]) == [0, 1, 3, 4, 6, 7]
    assert selected(kinds, filter=("real", "<", math.inf)) == [0, 3, 4, 6, 7]


def test_a_null_that_may_be_nan_is_an_error_for_columns_of_any_type(kinds: str) -> None:
    for name in ("real", "text", "day"):
        with pytest.raises(bowstring.UnsupportedError, match=r"has nan_is_null.*write is_null\(\) \| is_nan\(\)"):
            bowstring.Loader(kinds, batch_size=8, filter=FIELD(name).is_null(nan_is_null=True))


def test_infinity_stands_beside_tuples_of_any_operator(kinds: str) -> None:
    finite = ("real", "<", math.inf)
    for one in [
        ("tags", "overlaps", [3, 4]),
        ("tags", "OVERLAPS", {0}),
        ("text", "split", [0, 0.5]),
        ("id", "split", (0.25, 1)),
    ]:
        both = sorted(set(selected(kinds, filter=one)) & set(selected(kinds, filter=finite)))
        assert both, one
        assert selected(kinds, filter=[finite, one]) == both, one
        assert selected(kinds, filter=[[one, finite], [one, finite]]) == both, one


def test_a_decimal_is_a_number_and_its_text_is_str(kinds: str, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "texts.parquet")
    pq.write_table(pa.table({"version": ["1.5", "2.0"], "row": [0, 1]}), path)
    value = decimal.Decimal("1.5")
    with pytest.raises(bowstring.ConfigError, match="version"):
        bowstring.Loader(path, batch_size=8, filter=[("version", "=", value)])
    assert selected(path, filter=[("version", "=", str(value))]) == [0]


@pytest.mark.parametrize(
    ("filter_", "why"),
    [
        ([("raw", "=", b"\xff")], r"b'\\xff' is no UTF-8, and a filter is text"),
        ([("real", "in", [math.nan])], "the list of 'in' of column 'real' has NaN.*leave it out"),
        ([("tags", "overlaps", [math.inf])], "the list of 'overlaps' of column 'tags' has inf"),
        ([("real", "=", math.inf), ("id", "split", [0, 2])], r"tuple 2: 'split' takes \[low, high\]"),
        ([("real", "=", math.inf), ("id", "split", [0, math.nan])], r"tuple 2: 'split' takes \[low, high\]"),
        ([("real", "near", math.nan)], 'unknown operator "near"'),
        ([("real", "=", math.nan), ("row",)], "tuple 2: expected three"),
        ([("id", "<", 10**5000)], "a number of about 5000 digits"),
    ],
)
def test_tuples_that_no_filter_can_say_are_errors_with_a_way_out(kinds: str, filter_: Any, why: str) -> None:
    with pytest.raises(bowstring.ConfigError, match=f"option filter: .*{why}"):
        bowstring.Loader(kinds, batch_size=8, filter=filter_)


def ids(path: pathlib.Path, filter_: Any) -> list[int]:
    """The ids of the rows that a filter selects, in the order of the file."""
    with bowstring.Loader(path, batch_size=9, shuffle=False, columns=["id"], filter=filter_) as loader:
        return [int(one) for batch in loader for one in batch["id"]]


def test_numbers_are_compared_with_all_of_their_digits(tmp_path: pathlib.Path) -> None:
    base = 2**62  # of which the shortest text of the float is that of another integer, 96 higher
    stored = [base - 1, base, base + 50, base + 96, base + 200]
    prices = [decimal.Decimal(f"12345678901234567.{cents}") for cents in (87, 88, 89, 90, 91)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": stored, "price": pa.array(prices, pa.decimal128(20, 2))}), path, row_group_size=2)
    number = float(base)
    for sign, holds in PYTHONS.items():
        wanted = [one for one in stored if holds(one, number)]
        for filter_ in (
            [("id", sign, number)],
            [("id", sign, number), ("id", "<", math.inf)],
            holds(FIELD("id"), number),
            f"id {sign} {base}.0",
            f"id {sign} 4.611686018427387904e18",
        ):
            assert ids(path, filter_) == wanted, filter_
    assert ids(path, [("id", "in", [number])]) == ids(path, FIELD("id").isin([number])) == [base]
    assert ids(path, f"id in ({base + 50}.0, {base + 49}.5)") == [base + 50]
    assert ids(path, f"id > {base + 49}.5") == stored[2:]
    assert ids(path, "price = 12345678901234567.89") == stored[2:3]
    assert ids(path, "price > 12345678901234567.8999999999999999999") == stored[3:]


def test_a_member_of_a_struct_is_no_column_with_a_dot_in_its_name(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"id": [1, 2, 3], "a": [{"b": 10}, {"b": 20}, {"b": 30}], "a.b": [30, 20, 10]})
    pq.write_table(table, path, row_group_size=1)
    for filter_ in (FIELD("a", "b") == 10, '"a"."b" = 10', '"a"."b" = 10 and a.b = 30', FIELD("a", "b") < 20):
        assert ids(path, filter_) == [1], filter_
    for filter_ in ("a.b = 10", '"a.b" = 10', FIELD("a.b") == 10, [("a.b", "=", 10)], 'a.b = 10 and "a"."b" = 30'):
        assert ids(path, filter_) == [3], filter_
    with pytest.raises(bowstring.NotFoundError, match=r'column "a\.c" of the filter'):
        ids(path, FIELD("a", "c") == 10)
    # Without a struct, parts in quotes mean the column of that name, as they always did.
    pq.write_table(table.drop_columns(["a"]), path)
    assert ids(path, '"a"."b" = 10') == [3]
