"""Random data through conversions, compared with the format's own reader: pyarrow, NumPy, TensorFlow.

``verify`` compares bowstring with bowstring; here another library reads. Every test's name has a seed.
"""

from __future__ import annotations

import datetime
import os
import pathlib
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SOAK = os.environ.get("BOWSTRING_SOAK") == "1"
SEEDS = range(40 if SOAK else 4)
Rng = np.random.Generator


def some(rng: Rng, kind: pa.DataType, count: int, nulls: bool) -> pa.Array:
    """Returns random values of a type, some of them null."""
    value: list[Any]
    if pa.types.is_boolean(kind):
        value = [bool(bit) for bit in rng.integers(0, 2, count)]
    elif pa.types.is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        value = [int(x) for x in rng.integers(info.min, info.max, count, dtype=info.dtype, endpoint=True)]
    elif pa.types.is_floating(kind):
        value = [float(np.float32(x)) for x in rng.normal(size=count) * 10.0 ** rng.integers(-20, 20, count)]
    elif pa.types.is_string(kind):
        value = ["é" * int(n) + str(n) for n in rng.integers(0, 9, count)]
    elif pa.types.is_binary(kind):
        value = [rng.bytes(int(n)) for n in rng.integers(0, 30, count)]
    elif pa.types.is_timestamp(kind):
        value = [int(x) for x in rng.integers(-(10**9), 10**10, count)]
    elif pa.types.is_date32(kind):
        value = [datetime.date(1970, 1, 1) + datetime.timedelta(days=int(n)) for n in rng.integers(-9999, 9999, count)]
    else:
        value = [some(rng, kind.value_type, int(n), False).to_pylist() for n in rng.integers(0, 5, count)]
    if nulls:
        value = [None if rng.random() < 0.1 else cell for cell in value]
    return pa.array(value, kind)


KINDS = [
    pa.int8(),
    pa.uint16(),
    pa.int32(),
    pa.int64(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
]
KINDS += [
    pa.binary(),
    pa.timestamp("ms"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns"),
    pa.date32(),
    pa.list_(pa.int64()),
]
KINDS += [pa.list_(pa.string()), pa.list_(pa.list_(pa.float32()))]


def random_table(rng: Rng) -> pa.Table:
    rows = int(rng.integers(1, 400))
    chosen = rng.choice(len(KINDS), size=int(rng.integers(2, 7)), replace=False)
    columns = {"id": pa.array(range(rows), pa.int64())}
    columns |= {f"c{n}": some(rng, KINDS[n], rows, bool(rng.integers(2))) for n in chosen}
    return pa.table(columns)


def write_arrow(table: pa.Table, path: pathlib.Path, rng: Rng) -> None:
    """Writes a file or a stream, compressed or not, in batches of any size."""
    options = pa.ipc.IpcWriteOptions(compression=[None, "lz4", "zstd"][rng.integers(3)])
    new = pa.ipc.new_file if rng.integers(2) else pa.ipc.new_stream
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=int(rng.integers(1, 100)))


def read_arrow(path: pathlib.Path) -> pa.Table:
    return pa.concat_tables(pa.ipc.open_file(str(file)).read_all() for file in sorted(path.glob("*.arrow")))


@pytest.mark.parametrize("seed", SEEDS)
def test_arrow_to_parquet_and_back(seed: int, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(seed)
    for case in range(5):
        table = random_table(rng)
        src = tmp_path / f"{case}.arrow"
        write_arrow(table, src, rng)
        bowstring.convert(src, tmp_path / f"{case}-parquet", to="parquet", verify=True)
        there = pq.read_table(tmp_path / f"{case}-parquet").sort_by("id")
        assert there.cast(table.schema).equals(table), (seed, case)
        bowstring.convert(tmp_path / f"{case}-parquet", tmp_path / f"{case}-arrow", to="arrow", shuffle=7, verify=True)
        back = read_arrow(tmp_path / f"{case}-arrow").sort_by("id")
        assert back.cast(table.schema).equals(table), (seed, case)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_arrow_file_is_refused_as_pyarrow_refuses_it(seed: int, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(seed)
    whole = tmp_path / "whole.arrow"
    with pa.ipc.new_file(str(whole), pa.schema({"id": pa.int64()})) as writer:
        for _ in range(10):
            writer.write_batch(pa.record_batch({"id": pa.array(range(100), pa.int64())}))
    content = whole.read_bytes()
    for at in rng.integers(9, len(content), 10):
        cut = tmp_path / f"cut-{at}.arrow"
        cut.write_bytes(content[:at])
        with pytest.raises(pa.ArrowInvalid):
            pa.ipc.open_file(str(cut))
        with pytest.raises(bowstring.CorruptError, match="cut"):
            bowstring.convert(cut, tmp_path / f"out-{at}", to="parquet", verify=True)


def test_times_of_seconds_and_dates_are_times_and_dates_for_others(tmp_path: pathlib.Path) -> None:
    values = [-1, 0, None, 1_700_000_000]
    table = pa.table(
        {
            "id": pa.array(range(4), pa.int64()),
            "second": pa.array(values, pa.timestamp("s")),
            "zoned": pa.array(values, pa.timestamp("s", "UTC")),
            "clock": pa.array([0, 1, None, 86_399], pa.time32("s")),
            "day": pa.array([0, -86_400_000, None, 19_000 * 86_400_000], pa.date64()),
            "within": pa.array([[1], None, [], [2, None]], pa.list_(pa.timestamp("s"))),
        }
    )
    kinds = {
        "second": pa.timestamp("ms"),
        "zoned": pa.timestamp("ms", "UTC"),
        "clock": pa.time32("ms"),
        "day": pa.date32(),
        "within": pa.list_(pa.timestamp("ms")),
    }
    src = tmp_path / "src.arrow"
    with pa.ipc.new_file(str(src), table.schema) as file:
        file.write_table(table)
    bowstring.convert(src, tmp_path / "converted", to="parquet", verify=True)
    with bowstring.DatasetWriter(tmp_path / "written", table.schema) as writer:
        writer.write(table)
    for place in [tmp_path / "converted", tmp_path / "written"]:
        (part,) = place.glob("*.parquet")
        # Without Arrow's own schema, as readers in other languages see it.
        logical = [str(column.logical_type) for column in pq.ParquetFile(part).schema]
        assert [kind.split("(")[0] for kind in logical] == [
            "None",
            "Timestamp",
            "Timestamp",
            "Time",
            "Date",
            "Timestamp",
        ]
        found = pq.read_table(part)
        for name, kind in kinds.items():
            assert found.schema.field(name).type.equals(kind) or name == "within", (place, name)
            assert found[name].to_pylist() == table[name].to_pylist(), (place, name)
    # A date with a time of day is not a date.
    odd = pa.Array.from_buffers(pa.date64(), 2, [None, pa.py_buffer(np.array([0, 1], np.int64))])
    with pa.ipc.new_file(str(src), pa.schema({"day": pa.date64()})) as file:
        file.write_table(pa.table({"day": odd}))
    with pytest.raises(bowstring.Error, match="day"):
        bowstring.convert(src, tmp_path / "odd", to="parquet")


def test_petastorm_refuses_times_that_it_would_truncate(tmp_path: pathlib.Path) -> None:
    src = tmp_path / "src.parquet"
    pq.write_table(pa.table({"id": [0, 1], "at": pa.array([1000, 1001], pa.timestamp("ns"))}), src)
    with pytest.raises(bowstring.Error, match=r"column at, row 1"):
        bowstring.convert(src, tmp_path / "out", to="petastorm")
    assert not (tmp_path / "out").exists()
    pq.write_table(pa.table({"id": [0, 1], "at": pa.array([1000, 2000], pa.timestamp("ns"))}), src)
    bowstring.convert(src, tmp_path / "out", to="petastorm", verify=True)
    assert pq.read_table(tmp_path / "out")["at"].cast(pa.int64()).to_pylist() == [1, 2]


@pytest.mark.parametrize("seed", SEEDS)
def test_arrays_are_those_that_numpy_reads(seed: int, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(seed)
    for ending in ["npy", "npz"]:
        src, out = tmp_path / ending, tmp_path / f"{ending}-out"
        src.mkdir()
        kind = ["<i2", "<u4", "<f4", "<f8", "|b1"][rng.integers(5)]
        there = {}
        for row in range(int(rng.integers(1, 30))):
            array = rng.integers(0, 2, rng.integers(0, 5, 2)).astype(kind) if kind == "|b1" else None
            if array is None:
                array = (rng.normal(size=tuple(rng.integers(0, 5, 2))) * 1000).astype(kind)
            there[f"{row:03}"] = array
            path = src / f"{row:03}.{ending}"
            np.save(path, array) if ending == "npy" else np.savez_compressed(path, array)
        bowstring.convert(src, tmp_path / f"{ending}-parquet", to="parquet", verify=True)
        bowstring.convert(tmp_path / f"{ending}-parquet", out, to="numpy", verify=True)
        for name, array in there.items():
            found = np.load(out / f"{name}.{ending}")
            found = found if ending == "npy" else found[found.files[0]]
            assert found.dtype == array.dtype, (seed, name)
            assert np.array_equal(found, array), (seed, name)


@pytest.mark.parametrize("seed", SEEDS)
def test_images_are_those_that_tensorflow_reads(seed: int, tmp_path: pathlib.Path) -> None:
    tf = pytest.importorskip("tensorflow", exc_type=ImportError)
    rng = np.random.default_rng(seed)
    src = tmp_path / "src"
    there = {}
    for number in range(12):
        name = f"{['cat', 'dog'][number % 2]}/{number}.png"
        pixels = rng.integers(0, 256, (*rng.integers(1, 20, 2), 3), dtype=np.uint8)
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_bytes(tf.io.encode_png(pixels).numpy())
        there[name] = pixels
    bowstring.convert(src, tmp_path / "parquet", to="parquet", verify=True)
    rows = pq.read_table(tmp_path / "parquet").to_pylist()
    assert len(rows) == len(there)
    for row in rows:
        found = tf.io.decode_png(row["image"]).numpy()
        assert np.array_equal(found, there[row["path"]]), (seed, row["path"])
        name = row["path"].split("/")[0]
        assert (row["class"], row["label"]) == (name, ["cat", "dog"].index(name))


@pytest.mark.parametrize("seed", SEEDS)
def test_records_are_those_that_tensorflow_reads(seed: int, tmp_path: pathlib.Path) -> None:
    tf = pytest.importorskip("tensorflow", exc_type=ImportError)
    rng = np.random.default_rng(seed)
    src = tmp_path / "src.tfrecord"
    packed = ["", "GZIP", "ZLIB"][rng.integers(3)]
    rows = int(rng.integers(1, 60))
    with tf.io.TFRecordWriter(str(src), packed) as writer:
        for row in range(rows):
            # The first row is a list, so that the sample shows that the column has lists.
            count = 2 if row == 0 else int(rng.integers(0, 4))
            limits = np.iinfo(np.int64)
            feature = {
                "id": tf.train.Feature(int64_list=tf.train.Int64List(value=[row])),
                "big": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[int(rng.integers(limits.min, limits.max))])
                ),
                "many": tf.train.Feature(float_list=tf.train.FloatList(value=rng.normal(size=count))),
                "raw": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"\xff" + rng.bytes(5)])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    bowstring.convert(src, tmp_path / "parquet", to="parquet", verify=True)
    bowstring.convert(tmp_path / "parquet", tmp_path / "again.tfrecord", to="tfrecord", verify=True)
    table = pq.read_table(tmp_path / "parquet").sort_by("id")

    def examples(files: list[str], compression: str) -> list[dict[str, list[Any]]]:
        found = []
        for record in tf.data.TFRecordDataset(files, compression_type=compression):
            parsed = tf.train.Example.FromString(record.numpy()).features.feature
            found.append({name: list(getattr(cell, cell.WhichOneof("kind")).value) for name, cell in parsed.items()})
        return sorted(found, key=lambda example: int(example["id"][0]))

    expected = examples([str(src)], packed)
    for example, row in zip(expected, table.to_pylist(), strict=True):
        found = {name: row[name] if name == "many" else [row[name]] for name in example}
        assert {name: cell or [] for name, cell in found.items()} == example, seed
    files = sorted(str(file) for file in (tmp_path / "again.tfrecord").glob("part-*"))
    assert [(e["id"], e["big"], e["raw"], e["many"]) for e in examples(files, "")] == [
        (e["id"], e["big"], e["raw"], e["many"]) for e in expected
    ]
