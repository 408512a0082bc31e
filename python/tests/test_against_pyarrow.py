"""Random tables, written by pyarrow in every form that it supports, compared with the loader's batches, to the last bit.

The reader is fast because it has its own code for pages. These tests try what other writers may do to a page.
"""

from __future__ import annotations

import decimal
import itertools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import bowstring
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import needs_pyarrow

SOAK = os.environ.get("BOWSTRING_SOAK") == "1"
CASES = 1500 if SOAK else 60
PARTS = 4
NUMBERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
NUMBERS += [pa.float16(), pa.float32(), pa.float64(), pa.bool_()]
Rng = np.random.Generator
Bits = npt.NDArray[Any]


def numbers(rng: Rng, kind: pa.DataType, count: int) -> Bits:
    """Returns values that are unique, that repeat, or that ascend."""
    shape = rng.integers(3)
    if pa.types.is_boolean(kind):
        return rng.random(count) < [0.5, 0.001, 1.0][shape]
    dtype = np.dtype(kind.to_pandas_dtype())
    if shape == 1:
        return rng.integers(0, 5, count).astype(dtype)
    if pa.types.is_floating(kind):
        return rng.standard_normal(count).astype(dtype)
    if shape == 2:
        return np.arange(count).astype(dtype)
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, count, dtype=dtype, endpoint=True)


def nulls(rng: Rng, count: int) -> Bits:
    """Returns a random mask of nulls."""
    return rng.random(count) < rng.choice([0, 0, 0.01, 0.3, 0.99, 1])


def flat(rng: Rng, count: int) -> pa.Array:
    """A column of numbers or booleans."""
    kind = NUMBERS[rng.integers(len(NUMBERS))]
    return pa.array(numbers(rng, kind, count), kind, mask=nulls(rng, count))


def moment(rng: Rng, count: int) -> pa.Array:
    """A column of times."""
    kinds = [pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.time64("us"), pa.duration("ns")]
    return pa.array(rng.integers(0, 86_400, count), pa.int64(), mask=nulls(rng, count)).cast(
        kinds[rng.integers(len(kinds))]
    )


def text(rng: Rng, count: int) -> pa.Array:
    """A column of text or bytes."""
    words = ["", "a", "bow", "string " * 5]
    values = [
        None if none else words[at] for none, at in zip(nulls(rng, count), rng.integers(0, 4, count), strict=True)
    ]
    kind = [pa.string(), pa.binary(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())][rng.integers(4)]
    return pa.array(values, pa.string()).cast(kind)


def exact(rng: Rng, count: int) -> pa.Array:
    """A column of decimals that a float64 holds."""
    values = [
        None if none else decimal.Decimal(int(value)).scaleb(-2)
        for none, value in zip(nulls(rng, count), rng.integers(-(10**9), 10**9, count), strict=True)
    ]
    return pa.array(values, pa.decimal128(int(rng.integers(12, 38)), 2))


def lists(rng: Rng, count: int) -> pa.Array:
    """Lists of numbers: empty, of one length, or null."""
    kind = NUMBERS[rng.integers(len(NUMBERS))]
    most, least = (4, 4) if rng.random() < 0.3 else (int(rng.choice([1, 6, 40])), int(rng.integers(2)))
    none = nulls(rng, count) if rng.random() < 0.3 else np.zeros(count, bool)
    lengths = np.where(none, 0, rng.integers(min(least, most), most + 1, count))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    values = pa.array(numbers(rng, kind, int(lengths.sum())), kind)
    return pa.ListArray.from_arrays(offsets, values, mask=pa.array(none))


def fixed(rng: Rng, count: int) -> pa.Array:
    """Fixed-size lists: short ones, and ones long enough to stay in their pages."""
    kind = NUMBERS[rng.integers(len(NUMBERS))]
    width = int(rng.integers(1, 40) if rng.random() < 0.7 else rng.integers(128, 700))
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers(rng, kind, count * width), kind), width)


COLUMNS: list[Callable[[Rng, int], pa.Array]] = [flat, flat, flat, lists, fixed, moment, text, exact]


def written(table: pa.Table, directory: pathlib.Path, rng: Rng) -> dict[str, Any]:
    """Writes ``table`` as one to three files, the first or last of which may be empty; returns the options used."""
    rows, many = table.num_rows, int(rng.integers(1, 4))
    edges = [0, *sorted(rng.integers(0, rows + 1, many - 1).tolist()), rows]
    options: dict[str, Any] = {}
    for number, (first, end) in enumerate(itertools.pairwise(edges)):
        options = {
            "row_group_size": int(rng.integers(1, rows + 1)) if rng.random() < 0.3 else max(rows // 5, 1),
            "compression": str(rng.choice(["none", "snappy", "zstd", "gzip", "lz4", "brotli"])),
            "use_dictionary": bool(rng.integers(2)),
            "data_page_version": str(rng.choice(["1.0", "2.0"])),
            "data_page_size": int(rng.choice([64, 1000, 20_000, 1 << 20])),
            "write_batch_size": int(rng.choice([1, 10, 1024])),
            "dictionary_pagesize_limit": int(rng.choice([100, 5000, 1 << 20])),
            "write_statistics": bool(rng.random() < 0.8),
            "write_page_index": bool(rng.integers(2)),
            "write_page_checksum": bool(rng.integers(2)),
        }
        if not options["use_dictionary"] and rng.random() < 0.5:
            encodings = {field.name: encoding(field.type, rng) for field in table.schema}
            options["column_encoding"] = {name: found for name, found in encodings.items() if found is not None}
        pq.write_table(table.slice(first, end - first), directory / f"{number}.parquet", **options)
    return options


def encoding(kind: pa.DataType, rng: Rng) -> str | None:
    """Returns an encoding that pyarrow can write for columns of ``kind``; None leaves the choice to pyarrow."""
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return str(rng.choice(["PLAIN", "BYTE_STREAM_SPLIT"]))
    if pa.types.is_integer(kind):
        return str(rng.choice(["PLAIN", "BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED"]))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return str(rng.choice(["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]))
    return None


def filters(rng: Rng) -> tuple[str | None, Any]:
    """Returns a filter as text, and pyarrow's expression of it."""
    key, at = int(rng.integers(1000)), float(rng.standard_normal())
    k, f = pc.field("key"), pc.field("f")
    choices: list[tuple[str | None, Any]] = [
        (None, None),
        (None, None),
        (f"key < {key}", k < key),
        (f"key >= {key} and f > {at}", (k >= key) & (f > at)),
        (f"f <= {at} or key in (1, 2, 3, {key})", (f <= at) | k.isin([1, 2, 3, key])),
        (f"not (key between {key} and {key + 100})", ~((k >= key) & (k <= key + 100))),
        ("f is null", f.is_null()),
        (f"f is not null and not (f > {at})", f.is_valid() & ~(f > at)),
    ]
    return choices[rng.integers(len(choices))]


def check(name: str, batch: dict[str, Any], here: Bits, expected: pa.Array) -> None:
    """Checks that the rows ``here`` of a batch hold the values ``expected``."""
    kind = expected.type
    valid = whole(expected)
    if f"{name}__valid" in batch:
        np.testing.assert_array_equal(np.asarray(batch[f"{name}__valid"])[here], valid, name)
    else:
        assert valid.all(), f"{name} has nulls, and no mask"
    if pa.types.is_dictionary(kind):
        return check(name, batch, here, expected.cast(kind.value_type))
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        assert batch[name][here].tolist() == expected.to_pylist(), name
        return None
    if pa.types.is_decimal(kind):
        # The nearest float64; pyarrow's cast does not always give it.
        nearest = [None if value is None else float(value) for value in expected.to_pylist()]
        expected, kind = pa.array(nearest, pa.float64()), pa.float64()
    if pa.types.is_list(kind) and (pa.types.is_string(kind.value_type) or pa.types.is_binary(kind.value_type)):
        # A null list is delivered as an empty one, as elsewhere.
        found = batch[name][here].tolist()
        assert found == [one or [] for one in expected.to_pylist()], name
        return None
    if pa.types.is_list(kind):
        values, lengths = expected.flatten(), np.asarray(pc.list_value_length(expected).fill_null(0))
        if name in batch:
            found = np.asarray(batch[name])[here]
            np.testing.assert_array_equal(np.asarray(batch[f"{name}__lengths"])[here], lengths, name)
            kept = np.arange(found.shape[1]) < lengths[:, None]
            assert not found[~kept].any(), f"{name}: padding is zero"
            found = found[kept]
        else:
            offsets = np.asarray(batch[f"{name}__offsets"])
            np.testing.assert_array_equal(np.diff(offsets)[here], lengths, name)
            row_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
            found = np.asarray(batch[f"{name}__values"])[here[row_of]]
        return same(name, found, values)
    found = np.asarray(batch[name])[here]
    if pa.types.is_fixed_size_list(kind):
        return same(name, found.reshape(-1), expected.flatten())
    assert not found[~valid].any(), f"{name}: a null is zero"
    return same(name, found[valid], expected.drop_null())


def whole(array: pa.Array) -> Bits:
    """Returns the rows that are not null, lists only with all their items."""
    valid = np.array(array.is_valid())
    if pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type):
        items = np.asarray(array.flatten().is_valid())
        valid[np.asarray(pc.list_parent_indices(array))[~items]] = False
    return valid


def same(name: str, found: Bits, expected: pa.Array) -> None:
    """Checks that both have the same bits; those of a null are zero."""
    if pa.types.is_temporal(expected.type):
        expected = expected.cast(pa.int64())
    there = np.asarray(expected.is_valid())
    bits = expected.drop_null().to_numpy(zero_copy_only=False)
    bits = bits.astype(bool) if pa.types.is_boolean(expected.type) else bits
    if not there.all():
        few, bits = bits, np.zeros(len(expected), bits.dtype)
        bits[there] = few
    assert (found.dtype, found.shape) == (bits.dtype, bits.shape), name
    assert found.tobytes() == bits.tobytes(), f"{name}: other values"


def case(seed: int, directory: pathlib.Path) -> None:
    """Reads one table once, by one to three ranks."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 4000)) if rng.random() < 0.9 else int(rng.integers(4000, 40_000))
    made = {f"c{at}": COLUMNS[rng.integers(len(COLUMNS))](rng, rows) for at in range(rng.integers(1, 6))}
    key = rng.integers(0, 1000, rows).astype(np.int32)
    made["key"] = pa.array(np.sort(key) if rng.random() < 0.5 else key)
    made["f"] = pa.array(np.where(rng.random(rows) < 0.05, np.nan, rng.standard_normal(rows)), mask=nulls(rng, rows))
    table = pa.table(made)
    how = written(table, directory, rng)
    text, expression = filters(rng)
    numbered = table.append_column("row", pa.array(range(rows)))
    wanted = numbered if expression is None else ds.dataset(numbered).to_table(filter=expression)
    world = int(rng.integers(1, 4))
    options: dict[str, Any] = {"batch_size": int(rng.integers(1, 300)), "shuffle": bool(rng.integers(2)), "seed": seed}
    if rng.random() < 0.5:
        options["lists"] = bowstring.Padded(40)
    note = f"seed {seed}: {how}, filter {text}, world {world}, {options}, {table.schema.types}"
    try:
        seen: list[int] = []
        steps = set()
        for rank in range(world):
            loader = bowstring.Loader(
                directory, **options, rank=rank, world_size=world, tail="pad", row_id=True, filter=text, nulls="mask"
            )
            with loader:
                steps.add(len(loader))
                assert sum(1 for _ in loader) == len(loader)
                for batch in loader:
                    here = np.asarray(batch["_mask"])
                    ids = np.asarray(batch["_row_id"])[here]
                    seen += ids.tolist()
                    for name in made:
                        check(name, batch, here, table[name].combine_chunks().take(pa.array(ids)))
        assert sorted(seen) == sorted(wanted["row"].to_pylist()), "rows"
        assert len(steps) == 1, "all ranks make the same steps"
    except Exception as error:
        raise AssertionError(f"{note}: {error}") from error


@needs_pyarrow(15, "writing checksums of pages")
@pytest.mark.timeout(1800 if SOAK else 120)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_tables_are_delivered_as_pyarrow_wrote_them(part: int, tmp_path: pathlib.Path) -> None:
    given = os.environ.get("BOWSTRING_TEST_SEED")
    first = int(given) if given else int.from_bytes(os.urandom(4), "little")
    for number in range(part, 1 if given else CASES, PARTS):
        directory = tmp_path / str(number)
        directory.mkdir()
        print(f"repeat with: BOWSTRING_TEST_SEED={first + number} pytest python/tests/test_against_pyarrow.py -k '0'")
        case(first + number, directory)
        for path in directory.iterdir():
            path.unlink()


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_file_without_rows_does_no_harm(dictionary: bool, version: str, tmp_path: pathlib.Path) -> None:
    # Without a dictionary, pyarrow writes no page for a column without rows, and gives 0 as its first byte.
    table = pa.table({"a": [1, 2], "b": [True, False], "s": ["x", "y"], "l": [[1.0], [2.0, 3.0]]})
    options: dict[str, Any] = {"use_dictionary": dictionary, "data_page_version": version}
    pq.write_table(table.slice(0, 0), tmp_path / "0.parquet", **options)
    with bowstring.Loader(tmp_path, batch_size=2) as loader:
        assert (len(loader), loader.rows, list(loader)) == (0, 0, [])
    pq.write_table(table, tmp_path / "1.parquet", **options)
    pq.write_table(table.slice(0, 0), tmp_path / "2.parquet", **options)
    with bowstring.Loader(tmp_path, batch_size=2, shuffle=False) as loader:
        assert [batch["a"].tolist() for batch in loader] == [[1, 2]]
