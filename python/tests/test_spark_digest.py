"""The number of rows: a function of their values, whatever arrays they are parts of."""

from __future__ import annotations

import random
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from bowstring.spark.digest import digest  # noqa: E402
from bowstring.spark.store import Store, StoreOptions  # noqa: E402

MAP = pa.map_(pa.string(), pa.int32())
ROWS: list[tuple[Any, list[Any]]] = [
    (pa.int64(), [1, None, 3, 4, None, 6]),
    (pa.bool_(), [True, None, False, True, None, True]),
    (pa.string(), ["a", "bc", "", "def", "g", "h"]),
    (pa.string(), ["a", None, "", "def", None, "h"]),
    (pa.binary(3), [b"abc", b"def", None, b"ghi", b"jkl", b"mno"]),
    (MAP, [[("a", 1)], None, [("b", 2), ("c", None)], [], None, [("d", 4)]]),
    (MAP, [[("a", 1)], [("b", 2), ("c", 3)], [], [], [("d", 4)], [("e", 5)]]),
    (pa.list_(MAP), [[[("a", 1)], None], None, [], [[("b", 2)]], [[], []], [None]]),
    (pa.struct([("m", MAP)]), [{"m": [("a", 1)]}, None, {"m": None}, {"m": []}, {"m": [("b", 2)]}, {"m": None}]),
    (pa.map_(pa.int8(), MAP), [[(1, [("a", 1)])], None, [(2, None), (3, [])], [], [(4, [("b", 2)])], None]),
]


@pytest.mark.parametrize(
    ("kind", "values"), ROWS, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_a_slice_has_the_number_of_its_rows(kind: Any, values: list[Any]) -> None:
    whole = pa.array(values, kind)
    for first in range(len(values)):
        for end in range(first, len(values) + 1):
            sliced = pa.record_batch({"x": whole.slice(first, end - first)})
            alone = pa.record_batch({"x": pa.array(values[first:end], kind)})
            assert digest(sliced) == digest(alone), (first, end)


def test_other_rows_have_another_number() -> None:
    numbers = {
        digest(pa.record_batch({"x": pa.array([value], kind)})) for kind, values in ROWS[5:7] for value in values
    }
    assert len(numbers) == 7


def test_the_number_of_rows_stays() -> None:
    """Ranks compare the numbers of two computations, which may run other versions."""
    random_ = random.Random(1)
    number = 0
    for kind, values in ROWS:
        rows = random_.sample(values, 5)
        number = digest(pa.record_batch({"x": pa.array(rows, kind)}), number)
    assert number == 1_681_166_102


def test_the_number_of_a_part_tells_how_its_rows_are_filed() -> None:
    """The order of ranks depends on the files: a state must not resume over the same rows in others."""

    def number(memory: int, rows: int) -> int:
        options = StoreOptions(memory, None, "127.0.0.1:0", {}, {})
        table = pa.table({"id": pa.array(range(rows), pa.int64())})
        with Store(options, "127.0.0.1") as store:
            store.fill(table.schema, table.to_batches(max_chunksize=1000))
            return store.digest

    large, small = 1 << 30, 16 << 20  # files of 32 MiB and of 1 MiB at most
    assert number(large, 300_000) != number(small, 300_000)
    assert number(large, 100_000) == number(small, 100_000), "one file"
