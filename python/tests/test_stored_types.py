"""Columns in their stored type, and columns that cannot be null below ones that can: against pyarrow."""

from __future__ import annotations

import decimal
import os
import pathlib
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from bowstring import Fill, Loader
from conftest import needs_pyarrow

CASES = 400 if os.environ.get("BOWSTRING_SOAK") == "1" else 40
GIVEN = os.environ.get("BOWSTRING_TEST_SEED")
SEEDS = [int(GIVEN)] if GIVEN else list(range(CASES))
Rng = np.random.Generator

# Each with numbers that it holds exactly, as stored.
STORED: list[tuple[pa.DataType, list[float]]] = [
    (pa.decimal128(9, 2), [0, -7, 0.1, 1.25, 9999999.99]),
    (pa.decimal128(38, 0), [0, 2**62, -3]),
    (pa.decimal256(60, 9), [0, 0.5, -(2**53)]),
    (pa.date32(), [0, -1, 20_000]),
    (pa.timestamp("us"), [0, -1, 10**15]),
    (pa.timestamp("ms", "Europe/Berlin"), [0, 10**12]),
    (pa.time32("ms"), [0, 86_399_999]),
    (pa.time64("us"), [0, 5]),
    (pa.duration("ns"), [0, -5]),
    (pa.bool_(), [0, 1]),
    (pa.int8(), [0, -128]),
    (pa.uint64(), [0, 2**62]),
    (pa.float32(), [0, 0.5, -1]),
]


def stored(kind: pa.DataType, number: float) -> pa.Scalar:
    """Returns the value of `kind` that is stored as `number`; a decimal of that value."""
    if pa.types.is_decimal(kind):
        return pa.scalar(decimal.Decimal(str(number)), kind)
    if pa.types.is_boolean(kind):
        return pa.scalar(bool(number))
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array([number], width).cast(kind)[0]
    return pa.scalar(number, kind)


@needs_pyarrow(15, "filling nulls of decimals")
@pytest.mark.parametrize("seed", SEEDS)
def test_nulls_of_stored_types_are_filled(seed: int, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(seed)
    columns, fills, expected = {}, {}, {}
    rows = int(rng.integers(1, 60))
    for at, (kind, numbers) in enumerate(STORED):
        values = [stored(kind, numbers[pick]) for pick in rng.integers(0, len(numbers), rows)]
        gone = rng.random(rows) < rng.choice([0, 0.3, 1])
        array = pa.array([None if null else value.as_py() for value, null in zip(values, gone, strict=True)], kind)
        number = numbers[rng.integers(len(numbers))]
        within = rng.random() < 0.3
        name = f"s{at}.x" if within else f"c{at}"
        columns[name.split(".")[0]] = pa.StructArray.from_arrays([array], ["x"]) if within else array
        fills[name] = Fill(number) if rng.random() < 0.5 else number
        expected[name] = pc.fill_null(array, stored(kind, number))
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=int(rng.integers(1, 60)))
    loader = Loader(path, batch_size=rows, shuffle=False, arrow=list(fills), nulls=fills)
    batch: Any = next(iter(loader))
    for name, array in expected.items():
        note = f"BOWSTRING_TEST_SEED={seed}: {name} of {array.type}, {fills[name]}"
        assert batch[name].type == array.type, note
        assert batch[name].to_pylist() == array.to_pylist(), note


def test_what_cannot_be_filled_is_refused_by_name_and_type(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"d": pa.array([None], pa.decimal128(5, 2)), "n": pa.nulls(1)}), path)
    refused = [
        ("d", Fill("x"), r'column d: "x" is not a value of type Decimal128\(5, 2\)'),
        ("d", 0.125, r"column d: 0.125 is not a value of type Decimal128\(5, 2\)"),
        ("d", 10_000, r"column d: 10000 is not a value of type"),
        ("n", 0, r"column n: as type Null.*mask"),
    ]
    for name, fill, said in refused:
        with pytest.raises(bowstring.ConfigError, match=said):
            Loader(path, batch_size=1, columns=[name], arrow=[name], nulls=fill)


def strict(rng: Rng, depth: int) -> tuple[pa.DataType, pa.DataType]:
    """Returns a random type with members that cannot be null, and the same with ones that can."""
    shape = rng.integers(5) if depth else 4
    if shape < 2:
        members = [(f"m{at}", *strict(rng, depth - 1), bool(rng.random() < 0.4)) for at in range(rng.integers(1, 4))]
        return (
            pa.struct([pa.field(name, kind, nullable) for name, kind, _, nullable in members]),
            pa.struct([pa.field(name, lax) for name, _, lax, _ in members]),
        )
    if shape == 4:
        kind = [pa.int32(), pa.string(), pa.bool_(), pa.float64()][rng.integers(4)]
        return kind, kind
    inner, lax = strict(rng, depth - 1)
    item = pa.field("item", inner, bool(rng.random() < 0.6))
    return (pa.list_(item, 2), pa.list_(lax, 2)) if shape == 2 else (pa.list_(item), pa.list_(lax))


def value(rng: Rng, kind: pa.DataType, nullable: bool) -> Any:
    """Returns a random value of `kind`."""
    if nullable and rng.random() < 0.25:
        return None
    if pa.types.is_struct(kind):
        return {field.name: value(rng, field.type, field.nullable) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else int(rng.integers(0, 3))
        return [value(rng, kind.value_field.type, kind.value_field.nullable) for _ in range(length)]
    number = int(rng.integers(0, 9))
    return str(number) if pa.types.is_string(kind) else pa.scalar(number).cast(kind).as_py()


def delivered(path: pathlib.Path, rows: int, columns: list[str]) -> dict[str, Any]:
    """Returns everything that the loader delivers, as lists."""
    batch: Any = next(iter(Loader(path, batch_size=rows, shuffle=False, nulls="mask", columns=columns)))
    return {name: values.tolist() for name, values in batch.items()}


X = pa.struct([pa.field("x", pa.int32(), nullable=False)])
PAIRS = [pa.field("l", pa.list_(pa.int32())), pa.field("t", pa.string())]


@pytest.mark.parametrize("other", PAIRS, ids=["a list", "a text"])
def test_null_items_beside_members_that_cannot_be_null(other: pa.Field, tmp_path: pathlib.Path) -> None:
    strictly = pa.list_(pa.struct([other, pa.field("s", X, nullable=False)]), 2)
    filled = {other.name: [1] if other.name == "l" else "a", "s": {"x": 5}}
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"c": pa.array([None, [filled, None], [filled, filled]], strictly)}), path)
    for columns in [[], ["c"], ["c.s.x"]]:
        batch = delivered(path, 3, columns)
        # A list beside it makes ragged lists of all.
        if other.name == "l":
            assert (batch["c.s.x__values"], batch["c.s.x__offsets"]) == ([5, 0, 5, 5], [0, 0, 2, 4])
        else:
            assert batch["c.s.x"] == [[0, 0], [5, 0], [5, 5]]
        assert batch["c.s.x__valid"] == [False, False, True]
    assert delivered(path, 3, [f"c.{other.name}"])[f"c.{other.name}__valid"] == [False, False, True]


@pytest.mark.parametrize("seed", SEEDS)
def test_members_that_cannot_be_null_are_read_like_those_that_can(seed: int, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(seed)
    kind, lax = strict(rng, 4)
    rows = int(rng.integers(1, 9))
    values = [value(rng, kind, True) for _ in range(rows)]
    note = f"BOWSTRING_TEST_SEED={seed}: {kind}: {values}"
    paths = []
    for number, of in enumerate([kind, lax]):
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(pa.table({"c": pa.array(values, of), "id": range(rows)}), paths[-1])
    expected = delivered(paths[1], rows, [])
    assert delivered(paths[0], rows, []) == expected, note
    leaves = list(Loader(paths[0], batch_size=rows, nulls="mask").schema)
    for name in leaves:
        part = delivered(paths[0], rows, [name])
        assert part, note
        assert part == {key: expected[key] for key in part}, f"{note}: {name}"
    # Rows change places, and are read again.
    bowstring.convert(paths[0], tmp_path / "out", to="parquet", shuffle=seed, verify=True)


@pytest.mark.parametrize("kind", [pa.bool_(), pa.float16(), pa.decimal128(5, 1), pa.decimal256(50, 1)], ids=str)
def test_dictionaries_of_values_that_come_without_one(kind: pa.DataType, tmp_path: pathlib.Path) -> None:
    numbers = [1, 0] if kind == pa.bool_() else [1.5, -2.5]
    values = pa.array([stored(kind, number).as_py() for number in numbers], kind)
    packed = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int8()), values)
    path = tmp_path / "a.parquet"
    structs = pa.StructArray.from_arrays([packed], ["d"])
    lists = pa.ListArray.from_arrays([0, 1, 2, 2, 4], pa.DictionaryArray.from_arrays(pa.array([0, 1, 1, 0]), values))
    pq.write_table(pa.table({"id": range(4), "x": packed, "s": structs, "l": lists}), path)
    first, second = numbers
    with Loader(path, batch_size=4, shuffle=False, nulls={"*": Fill(0)}, cast={"*": "float64"}) as loader:
        batch = next(iter(loader))
    assert batch["x"].tolist() == batch["s.d"].tolist() == [first, second, 0, first]
    assert batch["l__values"].tolist() == [first, second, second, first]
    with Loader(
        path, batch_size=4, shuffle=False, columns=["id"], filter="x is not null and s.d is not null"
    ) as loader:
        assert next(iter(loader))["id"].tolist() == [0, 1, 3]
