# The datasets of the peer comparison and the copies that peers need, made deterministically under bench-out/peers/.
# A dataset is complete when its expected.json is written, a copy when it has its name; existing ones are not made again.

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import pathlib
import shutil
import tarfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED = 20261121

# Rows at scale 1.
ROWS = {"columns": 4_194_304, "recsys": 4_000_000, "photos": 1_000, "tokens": 1_000_000, "fixed": 200_000}
ROW_GROUP = {"columns": 131_072, "recsys": 262_144, "tokens": 65_536, "fixed": 16_384}
# Rows for the peers that read row by row (about 0.1M rows/s): enough for a rate. The first rows of the first row group.
PART_ROWS = 200_000
PHOTO_ROW_GROUP_BYTES = 32 << 20
TAR_SHARDS = 8

FEATURES = [f"f{i:02}" for i in range(39)]
FLOATS, IDS = 20, 15  # f00-f19 float32, f20-f34 int64, f35-f38 int32
TOKENS_MAX, VOCABULARY = 512, 32_000
WIDTH = 1024


def folder(scale: float) -> pathlib.Path:
    """The directory of the datasets of a scale."""
    return ROOT / "bench-out" / "peers" / ("full" if scale == 1 else f"scale-{scale:g}")


def rows_of(task: str, scale: float) -> int:
    """Rows of a task at a scale."""
    return max(64, int(ROWS[task] * scale))


def groups(task: str, scale: float) -> Iterator[tuple[int, int]]:
    """Index and rows of each row group."""
    rows = rows_of(task, scale)
    size = ROW_GROUP[task] if scale == 1 else -(-rows // 8)
    for index, start in enumerate(range(0, rows, size)):
        yield index, min(size, rows - start)


def has(module: str) -> bool:
    """True if a module can be found."""
    return importlib.util.find_spec(module) is not None


# ---- columns -------------------------------------------------------------------------------------------------------

COLUMN_FILES = 8
# Number of float columns with nulls, 15 % each.
WITH_NULLS = 4


def columns_part(index: int, rows: int) -> pa.Table:
    """One file: a label, 13 float32, and 26 int64 ids of up to 40 bits, 10 to 10**7 of them, skewed. All nullable."""
    rng = np.random.default_rng([SEED, 4, index])
    columns: dict[str, pa.Array] = {"label": pa.array(rng.integers(0, 2, rows, dtype=np.int32))}
    for j in range(13):
        values = rng.lognormal(0, 2, rows).astype(np.float32)
        columns[f"f{j:02}"] = pa.array(values, mask=rng.random(rows) < 0.15 if j < WITH_NULLS else None)
    for j in range(26):
        vocabulary = 10 ** (1 + j % 7)
        ids = (rng.pareto(1.1, rows) * vocabulary / 50).astype(np.int64) % vocabulary
        columns[f"c{j:02}"] = pa.array((ids * 2_654_435_761) & ((1 << 40) - 1))
    return pa.table(columns)


def make_columns(out: pathlib.Path, scale: float) -> dict[str, Any]:
    """columns-zstd/ and columns-snappy/, each of 8 files."""
    rows = rows_of("columns", scale)
    sums: dict[str, float] = {}
    label_sum, cross, done = 0, 0.0, 0
    for index in range(COLUMN_FILES):
        size = rows * (index + 1) // COLUMN_FILES - rows * index // COLUMN_FILES
        table = columns_part(index, size)
        for codec in ("zstd", "snappy"):
            folder = out / f"columns-{codec}"
            folder.mkdir(exist_ok=True)
            path = folder / f"part-{index:05}.parquet"
            pq.write_table(table, path, compression=codec, row_group_size=ROW_GROUP["columns"])
        filled = {name: table[name].fill_null(0).to_numpy() for name in table.column_names}
        for name, column in filled.items():
            sums[name] = sums.get(name, 0.0) + float(column.sum(dtype=np.float64))
        cross += float((filled["f00"] * filled["label"]).sum(dtype=np.float64))
        label_sum, done = label_sum + int(filled["label"].sum()), done + size
    return {"columns": {"rows": done, "aux_sum": label_sum, "sums": sums, "cross": cross}}


def spark_copy(source: pathlib.Path, path: pathlib.Path) -> None:
    """The same rows as Spark writes them by default: snappy, row groups of 128 MB."""
    from pyspark.sql import SparkSession

    settings = {"spark.ui.enabled": "false", "spark.driver.memory": "4g"}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        spark.read.parquet(str(source)).coalesce(COLUMN_FILES).write.parquet(str(path))
    finally:
        spark.stop()


# ---- recsys --------------------------------------------------------------------------------------------------------


def recsys_schema() -> pa.Schema:
    """One int64 label, 20 float32, 15 int64 ids and 4 int32 counts, all required: 224 bytes a row."""
    types = [pa.float32()] * FLOATS + [pa.int64()] * IDS + [pa.int32()] * (len(FEATURES) - FLOATS - IDS)
    fields = [pa.field("label", pa.int64(), nullable=False)]
    return pa.schema(fields + [pa.field(n, t, nullable=False) for n, t in zip(FEATURES, types, strict=True)])


def recsys_group(index: int, rows: int) -> pa.Table:
    """One row group: continuous floats, log counts (few distinct values), skewed ids of small to large vocabularies."""
    rng = np.random.default_rng([SEED, 1, index])
    columns: list[np.ndarray] = [(rng.random(rows) < 0.03).astype(np.int64)]
    for j in range(FLOATS):
        if j < FLOATS // 2:
            columns.append(rng.standard_normal(rows, dtype=np.float32))
        else:
            columns.append(np.log1p(rng.geometric(0.5 / j, rows)).astype(np.float32))
    for j in range(IDS):
        # Below 2**24, so that an id is exact as float32.
        vocabulary = int(10 ** (1.5 + 4.5 * j / (IDS - 1)))
        columns.append((vocabulary * rng.random(rows) ** 3).astype(np.int64))
    columns += [rng.poisson(2 + 5 * j, rows).astype(np.int32) for j in range(len(FEATURES) - FLOATS - IDS)]
    return pa.table(columns, schema=recsys_schema())


def recsys_expected(tables: Iterator[pa.Table]) -> dict[str, Any]:
    """Rows and sums that every contender must reproduce."""
    sums, label_sum, cross, rows = np.zeros(len(FEATURES)), 0, 0.0, 0
    for table in tables:
        label = table["label"].to_numpy()
        sums += [table[name].to_numpy().astype(np.float32).sum(dtype=np.float64) for name in FEATURES]
        cross += float((table[FEATURES[FLOATS]].to_numpy() * label).sum())
        label_sum += int(label.sum())
        rows += table.num_rows
    return {"rows": rows, "aux_sum": label_sum, "probe_sum": sums[FLOATS], "sums": sums.tolist(), "cross": cross}


def make_recsys(out: pathlib.Path, scale: float) -> dict[str, Any]:
    """recsys-zstd.parquet, recsys-snappy.parquet."""
    paths = {codec: out / f"recsys-{codec}.parquet" for codec in ("zstd", "snappy")}
    writers = {codec: pq.ParquetWriter(path, recsys_schema(), compression=codec) for codec, path in paths.items()}
    for index, rows in groups("recsys", scale):
        table = recsys_group(index, rows)
        for writer in writers.values():
            writer.write_table(table, row_group_size=rows)
    for writer in writers.values():
        writer.close()
    file = pq.ParquetFile(paths["zstd"])
    found = {"recsys": recsys_expected(file.read_row_group(i) for i in range(file.num_row_groups))}
    found["recsys_part"] = recsys_expected(iter([recsys_part(file)]))
    return found


def recsys_part(file: pq.ParquetFile) -> pa.Table:
    """The first rows, for the peers that read row by row."""
    return file.read_row_group(0).slice(0, PART_ROWS)


def recsys_tfrecord(source: pathlib.Path, path: pathlib.Path) -> None:
    """One tf.Example per row with one feature per column, as spark-tensorflow-connector writes them."""
    import tensorflow as tf

    table = recsys_part(pq.ParquetFile(source))
    names = table.column_names
    with tf.io.TFRecordWriter(str(path)) as writer:
        for values in zip(*(table[name].to_pylist() for name in names), strict=True):
            example = tf.train.Example()
            feature = example.features.feature
            for name, value in zip(names, values, strict=True):
                if isinstance(value, float):
                    feature[name].float_list.value.append(value)
                else:
                    feature[name].int64_list.value.append(value)
            writer.write(example.SerializeToString())


# ---- photos --------------------------------------------------------------------------------------------------------


def photo_source() -> pathlib.Path:
    """A Parquet file with `image` (JPEG bytes) and `label`: $BOWSTRING_PHOTOS, else the shipped fixture."""
    given = os.environ.get("BOWSTRING_PHOTOS")
    return pathlib.Path(given) if given else ROOT / "fixtures" / "imagenet40.parquet"


def make_photos(out: pathlib.Path, scale: float) -> dict[str, Any]:
    """photos.parquet (image column uncompressed, row groups of about 32 MB) and tar shards."""
    source = pq.read_table(photo_source(), columns=["image", "label"])
    images, labels = source["image"].to_pylist(), source["label"].to_pylist()
    rows = rows_of("photos", scale)
    picks = [i % len(images) for i in range(rows)]
    schema = pa.schema([pa.field("image", pa.binary(), nullable=False), pa.field("label", pa.int64(), nullable=False)])
    with pq.ParquetWriter(out / "photos.parquet", schema, compression="none", use_dictionary=False) as writer:
        start = 0
        while start < rows:
            end, size = start, 0
            while end < rows and (end == start or size + len(images[picks[end]]) <= PHOTO_ROW_GROUP_BYTES):
                size += len(images[picks[end]])
                end += 1
            part = [[images[i] for i in picks[start:end]], [labels[i] for i in picks[start:end]]]
            writer.write_table(pa.table(part, schema=schema), row_group_size=end - start)
            start = end
    for shard in range(TAR_SHARDS):
        with tarfile.open(out / f"photos-{shard}.tar", "w") as tar:
            for row in range(shard, rows, TAR_SHARDS):
                for suffix, content in (("jpg", images[picks[row]]), ("cls", str(labels[picks[row]]).encode())):
                    entry = tarfile.TarInfo(f"{row:06}.{suffix}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
    label_sum = sum(labels[i] for i in picks)
    found = {"rows": rows, "aux_sum": label_sum, "bytes": sum(len(images[i]) for i in picks), "source": len(images)}
    if has("PIL"):
        found["channel_means"] = photo_means([images[i] for i in picks])
    return {"photos": found}


def photos_tfrecord(source: pathlib.Path, path: pathlib.Path) -> None:
    """One tf.Example per photo."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as records:
        for batch in pq.ParquetFile(source).iter_batches(64):
            for image, label in zip(batch["image"].to_pylist(), batch["label"].to_pylist(), strict=True):
                example = tf.train.Example()
                example.features.feature["image"].bytes_list.value.append(image)
                example.features.feature["label"].int64_list.value.append(label)
                records.write(example.SerializeToString())


def photo_means(images: list[bytes]) -> list[float]:
    """Mean of R, G and B over random resized crops, drawn as by the contenders."""
    import random

    import PIL.Image
    from photos import crop_box

    rng, total = random.Random(SEED), np.zeros(3)
    for image in images:
        with PIL.Image.open(io.BytesIO(image)) as photo:
            rgb = photo.convert("RGB")
        x, y, w, h = crop_box(rgb.width, rgb.height, rng)
        total += np.asarray(rgb.resize((32, 32), PIL.Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))).mean((0, 1))
    return [float(mean) for mean in total / len(images)]


# ---- tokens and fixed vectors --------------------------------------------------------------------------------------


def tokens_group(index: int, rows: int) -> pa.Table:
    """Lists of 1 to 512 token ids (mean 256.5), skewed like text; dictionary pages hold them in 15 bits."""
    rng = np.random.default_rng([SEED, 2, index])
    lengths = rng.integers(1, TOKENS_MAX + 1, rows)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    values = (1 + (VOCABULARY - 1) * rng.random(offsets[-1], dtype=np.float32) ** 3).astype(np.int32)
    item = pa.field("element", pa.int32(), nullable=False)
    column = pa.ListArray.from_arrays(offsets, values, type=pa.list_(item))
    return pa.Table.from_arrays([column], schema=pa.schema([pa.field("tokens", column.type, nullable=False)]))


def make_tokens(out: pathlib.Path, scale: float) -> dict[str, Any]:
    """tokens.parquet, in zstd."""
    path, writer = out / "tokens.parquet", None
    total = count = first = rows = 0
    for index, size in groups("tokens", scale):
        table = tokens_group(index, size)
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table, row_group_size=size)
        column = table["tokens"].chunk(0)
        values, offsets = column.values.to_numpy(), column.offsets.to_numpy()
        total, count, rows = total + int(values.sum(dtype=np.int64)), count + len(values), rows + size
        first += int(values[offsets[:-1]].sum(dtype=np.int64))
    assert writer is not None
    writer.close()
    return {"tokens": {"rows": rows, "aux_sum": count, "probe_sum": first, "total": total, "items": count}}


def make_fixed(out: pathlib.Path, scale: float) -> dict[str, Any]:
    """fixed.parquet: an id and a fixed-size list of 1024 float32, PLAIN and uncompressed."""
    item = pa.field("element", pa.float32(), nullable=False)
    vector = pa.list_(item, WIDTH)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("vector", vector, nullable=False)])
    path = out / "fixed.parquet"
    total, probe, rows = 0.0, 0.0, 0
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for index, size in groups("fixed", scale):
            rng = np.random.default_rng([SEED, 3, index])
            values = rng.standard_normal(size * WIDTH, dtype=np.float32)
            ids = np.arange(rows, rows + size, dtype=np.int64)
            lists = pa.FixedSizeListArray.from_arrays(values, type=vector)
            writer.write_table(pa.Table.from_arrays([pa.array(ids), lists], schema=schema), row_group_size=size)
            total, rows = total + float(values.sum(dtype=np.float64)), rows + size
            probe += float(values[::WIDTH].sum(dtype=np.float64))
    aux = rows * (rows - 1) // 2
    return {"fixed": {"rows": rows, "aux_sum": aux, "probe_sum": probe, "total": total, "bytes": rows * WIDTH * 4}}


# ---- copies --------------------------------------------------------------------------------------------------------


def lance_copy(source: pathlib.Path, path: pathlib.Path) -> None:
    """The same rows as a Lance dataset, with the writer's defaults."""
    import lance

    file = pq.ParquetFile(source)
    lance.write_dataset(pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(65_536)), str(path))


def arrow_copy(source: pathlib.Path, path: pathlib.Path) -> None:
    """The same rows as the Arrow files that `datasets` maps into memory."""
    import datasets

    cache = path.with_suffix(".cache")
    datasets.disable_progress_bars()
    datasets.Dataset.from_parquet(str(source), cache_dir=str(cache)).save_to_disk(str(path))
    shutil.rmtree(cache)


# The copies of each task: source, copy, the module of its format, and the function that makes it.
COPIES = {
    "columns": [("columns-zstd", "columns-spark", "pyspark", spark_copy)],
    "recsys": [
        ("recsys-zstd.parquet", "recsys.lance", "lance", lance_copy),
        ("recsys-zstd.parquet", "recsys.hf", "datasets", arrow_copy),
        ("recsys-zstd.parquet", "recsys.tfrecord", "tensorflow", recsys_tfrecord),
    ],
    "photos": [("photos.parquet", "photos.tfrecord", "tensorflow", photos_tfrecord)],
    "tokens": [
        ("tokens.parquet", "tokens.lance", "lance", lance_copy),
        ("tokens.parquet", "tokens.hf", "datasets", arrow_copy),
    ],
    "fixed": [
        ("fixed.parquet", "fixed.lance", "lance", lance_copy),
        ("fixed.parquet", "fixed.hf", "datasets", arrow_copy),
    ],
}


MAKERS = {
    "columns": make_columns,
    "recsys": make_recsys,
    "photos": make_photos,
    "tokens": make_tokens,
    "fixed": make_fixed,
}


def prepare(tasks: list[str], scale: float) -> pathlib.Path:
    """Makes missing datasets and copies; returns the folder."""
    out = folder(scale)
    out.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        done = out / f"{task}.expected.json"
        if not done.exists():
            print(f"making {task} at scale {scale:g} in {out.relative_to(ROOT)}", flush=True)
            found = MAKERS[task](out, scale)
            done.write_text(json.dumps(found, indent=1))
        for source, name, module, make in COPIES[task]:
            copy, part = out / name, out / f"part-{name}"
            if copy.exists() or not has(module) or (module == "pyspark" and not shutil.which("java")):
                continue
            print(f"making {name}", flush=True)
            for left in (part, part.with_suffix(".cache")):
                shutil.rmtree(left, ignore_errors=True)
            make(out / source, part)
            part.rename(copy)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the rows, for trying things out")
    args = parser.parse_args()
    prepare(args.tasks, args.scale)


if __name__ == "__main__":
    main()
