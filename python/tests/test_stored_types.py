"""Columns in their stored type, against pyarrow."""

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
