"""Petastorm's interpretation of the types of plain Parquet."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bowstring.petastorm._infer import element, from_types
from bowstring.petastorm._plan import Plan, part_rows
from bowstring.petastorm.unischema import Unischema


@pytest.mark.parametrize(
    ("arrow", "wanted"),
    [
        ("Int32", (np.int32, ())),
        ("UInt8", (np.uint8, ())),
        ("Utf8View", (np.str_, ())),
        ("Decimal128(10, 2)", (Decimal, ())),
        ('Timestamp(µs, "UTC")', (np.datetime64, ())),
        ("Timestamp(Microsecond, None)", (np.datetime64, ())),
        ("List(Int32)", (np.int32, (None,))),
        ("List(non-null Float32, field: 'element')", (np.float32, (None,))),
        ("LargeList(LargeUtf8)", (np.str_, (None,))),
        ("List(List(Int32))", None),
        ('List(Struct("x": Int32))', None),
        ('Struct("a": Int32)', None),
        ("UInt32", None),
        ("Float16", None),
        ("Time64(µs)", None),
    ],
)
def test_types(arrow: str, wanted: Any) -> None:
    assert element(arrow) == wanted


def test_schema_of_columns() -> None:
    columns = [("x", "Int64", True), ("s", 'Struct("a": Int32)', False)]
    with pytest.warns(UserWarning, match="'s'.*left out"):
        schema = from_types(columns, [("day", np.str_)])
    assert [(field.name, field.nullable) for field in schema.fields.values()] == [("day", False), ("x", True)]


def test_from_arrow() -> None:
    arrow = pa.schema(
        [
            pa.field("a", pa.uint8(), nullable=False),
            pa.field("b", pa.list_(pa.string())),
            pa.field("c", pa.decimal128(9, 2)),
            pa.field("d", pa.timestamp("us")),
            pa.field("e", pa.uint64()),
        ]
    )
    with pytest.warns(UserWarning, match="'e'"):
        schema = Unischema.from_arrow_schema(arrow)
    found = [(f.name, f.numpy_dtype, f.shape, f.nullable) for f in schema.fields.values()]
    assert found == [
        ("a", np.uint8, (), False),
        ("b", np.str_, (None,), True),
        ("c", Decimal, (), True),
        ("d", np.datetime64, (), True),
    ]
    with pytest.raises(ValueError, match="columns e"):
        Unischema.from_arrow_schema(arrow, omit_unsupported_fields=False)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("parts", [1, 2, 3, 50])
def test_parts_cover_a_row_group(rows: int, parts: int) -> None:
    bounds = [part_rows(rows, part, parts, overlap=0) for part in range(parts)]
    assert [row for first, end in bounds for row in range(first, end)] == list(range(rows))
    wider = [part_rows(rows, part, parts, overlap=2) for part in range(parts)]
    assert all(end <= other <= min(end + 2, rows) for (_, end), (_, other) in zip(bounds, wider, strict=True) if end)


def test_epochs() -> None:
    plan = Plan([3, 5, 8], parts=1, epochs=3, shuffle=True, seed=1)
    first = plan.stretch(1)
    assert sorted(first) == [(3, 0), (5, 0), (8, 0)]
    assert len(plan.stretch(100)) == 6
    assert plan.stretch(1) == []
    plan.reset()
    assert len(plan.stretch(100)) == 9
    assert Plan([], parts=1, epochs=None, shuffle=True, seed=1).stretch(10) == []
    assert len(Plan([1], parts=2, epochs=None, shuffle=False, seed=None).stretch(256)) == 256
