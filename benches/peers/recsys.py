# Tables to matrices: 40 columns become float32 [B, 39] (row-major, contiguous) and int64 [B] labels.
# `recsys` is the zstd file, `recsys-snappy` the same rows in snappy; peers with a format of their own are in `recsys`.

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from contender import Batches, Epoch, Job, contender, shuffled
from data import FEATURES, FLOATS

IN_ORDER = "none: file order"
# bowstring's default order.
WINDOWS = "rows, over row groups and windows"


def parquet(job: Job) -> pathlib.Path:
    """The file of the task."""
    return job.data / ("recsys-snappy.parquet" if job.task == "recsys-snappy" else "recsys-zstd.parquet")


def both(name: str, modules: str, **words: Any) -> Callable[[Callable[[Job], Epoch]], Callable[[Job], Epoch]]:
    """Registers a reader of Parquet for both compressions."""

    def register(function: Callable[[Job], Epoch]) -> Callable[[Job], Epoch]:
        contender("recsys-snappy", name, modules, dataset="recsys", **words)(function)
        return contender("recsys", name, modules, dataset="recsys", **words)(function)

    return register


def matrix(columns: list[Any], out: Any = None) -> Any:
    """Columns (numpy) as a float32 matrix (numpy), or into the rows of one.

    Column by column, cast included, a batch at a time: the fastest of eight ways tried (smaller tiles, torch's `stack`,
    a transpose at the end, ...).
    """
    import numpy as np

    out = np.empty((len(columns[0]), len(columns)), np.float32) if out is None else out
    for j, column in enumerate(columns):
        out[:, j] = column
    return out


def row_groups(path: pathlib.Path) -> list[tuple[int, int]]:
    """First row and rows of each row group."""
    import pyarrow.parquet as pq

    found, start, metadata = [], 0, pq.read_metadata(path)
    for i in range(metadata.num_row_groups):
        rows = metadata.row_group(i).num_rows
        found.append((start, rows))
        start += rows
    return found


# ---- bowstring -----------------------------------------------------------------------------------------------------


def bowstring_loader(job: Job, shuffle: bool) -> Epoch:
    import bowstring.torch

    loader = bowstring.torch.DataLoader(
        str(parquet(job)),
        batch_size=job.batch,
        pack={"x": ["f*"]},
        shuffle=shuffle,
        tail="pad",
        threads=job.threads,
        rank=0,
        world_size=1,
    )

    def epoch(number: int) -> Batches:
        loader.set_epoch(number)
        for batch in loader:
            yield real_rows(batch, batch["x"], batch["label"])

    return epoch


def real_rows(batch: dict[str, Any], *arrays: Any) -> tuple[Any, ...]:
    """The arrays without the rows that pad the last batch."""
    mask = batch.get("_mask")
    if mask is None or bool(mask.all()):
        return arrays
    return tuple(array[mask.bool()] for array in arrays)


@both("bowstring", "bowstring.torch torch", shuffle=WINDOWS)
def bowstring_shuffled(job: Job) -> Epoch:
    return bowstring_loader(job, shuffle=True)


@both("bowstring, in order", "bowstring.torch torch", shuffle=IN_ORDER)
def bowstring_in_order(job: Job) -> Epoch:
    return bowstring_loader(job, shuffle=False)


# ---- peers ---------------------------------------------------------------------------------------------------------


@both("polars", "polars torch numpy pyarrow.parquet", shuffle=IN_ORDER)
def polars(job: Job) -> Epoch:
    """A row group at a time: streaming (`collect_batches`) and the whole file at once were tried and are not faster."""
    import polars as pl
    import torch

    def epoch(number: int) -> Batches:
        for start, rows in row_groups(parquet(job)):
            frame = pl.scan_parquet(parquet(job)).slice(start, rows).collect()
            label = frame["label"].to_torch()
            columns = [frame[name].to_numpy() for name in FEATURES]
            for at in range(0, rows, job.batch):
                part = slice(at, at + job.batch)
                yield torch.from_numpy(matrix([column[part] for column in columns])), label[part]

    return epoch


@both("polars, shuffled", "polars torch numpy pyarrow.parquet", shuffle="row groups, and rows within one")
def polars_shuffled(job: Job) -> Epoch:
    """Makes the matrix of a row group and takes its rows in random order, which beats shuffling the columns."""
    import numpy as np
    import polars as pl
    import torch

    def epoch(number: int) -> Batches:
        random = np.random.default_rng(number)
        for start, rows in shuffled(row_groups(parquet(job)), number):
            frame = pl.scan_parquet(parquet(job)).slice(start, rows).collect()
            label = frame["label"].to_numpy()
            columns = [frame[name].to_numpy() for name in FEATURES]
            features = np.empty((rows, len(FEATURES)), np.float32)
            for at in range(0, rows, job.batch):
                part = slice(at, at + job.batch)
                matrix([column[part] for column in columns], features[part])
            order = random.permutation(rows)
            for at in range(0, rows, job.batch):
                part = order[at : at + job.batch]
                yield torch.from_numpy(np.take(features, part, axis=0)), torch.from_numpy(label[part])

    return epoch


@both(
    "polars, column-major",
    "polars torch pyarrow.parquet",
    shuffle=IN_ORDER,
    note="views of a column-major matrix: less work than asked",
    contiguous=False,
)
def polars_column_major(job: Job) -> Epoch:
    """`DataFrame.to_torch` as documented; each batch is a strided view."""
    import polars as pl

    def epoch(number: int) -> Batches:
        for start, rows in row_groups(parquet(job)):
            frame = pl.scan_parquet(parquet(job)).slice(start, rows).collect()
            features = frame.select(FEATURES).to_torch(dtype=pl.Float32)
            label = frame["label"].to_torch()
            yield from zip(features.split(job.batch), label.split(job.batch), strict=True)

    return epoch


def from_arrow(batches: Iterator[Any]) -> Batches:
    """Record batches to matrices; the columns are viewed without a copy."""
    import torch

    for batch in batches:
        features = matrix([batch.column(name).to_numpy() for name in FEATURES])
        yield torch.from_numpy(features), torch.from_numpy(batch.column("label").to_numpy())


@both("pyarrow", "pyarrow.parquet torch", shuffle=IN_ORDER)
def pyarrow(job: Job) -> Epoch:
    import pyarrow.parquet as pq

    return lambda number: from_arrow(pq.ParquetFile(parquet(job)).iter_batches(job.batch, use_threads=True))


@contender("recsys", "lance", "lance torch", shuffle=IN_ORDER, note="reads its own format")
def lance(job: Job) -> Epoch:
    import lance as module

    return lambda number: from_arrow(module.dataset(job.data / "recsys.lance").to_batches(batch_size=job.batch))


@contender(
    "recsys",
    "lance, shuffled",
    "lance lance.sampler lance.torch.data torch",
    shuffle="batches",
    note="reads its own format",
)
def lance_shuffled(job: Job) -> Epoch:
    """The sampler that Lance offers for training: contiguous batches in random order."""
    import torch
    from lance.sampler import ShardedBatchSampler
    from lance.torch.data import LanceDataset

    def to_tensors(batch: Any, **_: Any) -> Any:
        return next(from_arrow(iter([batch])))

    def epoch(number: int) -> Batches:
        sampler = ShardedBatchSampler(rank=0, world_size=1, randomize=True, seed=number)
        path = str(job.data / "recsys.lance")
        dataset = LanceDataset(path, batch_size=job.batch, sampler=sampler, to_tensor_fn=to_tensors)
        yield from torch.utils.data.DataLoader(dataset, batch_size=None)

    return epoch


@contender("recsys", "datasets", "datasets torch", shuffle=IN_ORDER, note="Arrow format; its Arrow copy, memory-mapped")
def hugging_face(job: Job) -> Epoch:
    """The Arrow format, and the same assembly as pyarrow's."""
    import datasets

    table = datasets.load_from_disk(str(job.data / "recsys.hf")).with_format("arrow")

    def batches() -> Iterator[Any]:
        for part in table.iter(batch_size=job.batch):
            yield from part.combine_chunks().to_batches()

    return lambda number: from_arrow(batches())


@contender(
    "recsys",
    "datasets, torch format",
    "datasets torch",
    shuffle=IN_ORDER,
    dataset="recsys_part",
    note="as its guide for PyTorch says; a part of the rows",
)
def hugging_face_torch(job: Job) -> Epoch:
    """Whole batches; through `DataLoader(dataset)` it goes row by row and is slower still."""
    import datasets
    import torch

    table = datasets.load_from_disk(str(job.data / "recsys.hf")).select(range(job.rows)).with_format("torch")

    def epoch(number: int) -> Batches:
        for batch in table.iter(batch_size=job.batch):
            yield torch.from_numpy(matrix([batch[name].numpy() for name in FEATURES])), batch["label"]

    return epoch


@contender(
    "recsys",
    "datasets, shuffled",
    "datasets torch",
    shuffle="shards, and a buffer of 10,000 rows",
    dataset="recsys_part",
    note="streaming form; a part of the rows",
)
def hugging_face_shuffled(job: Job) -> Epoch:
    import datasets
    import torch

    table = datasets.load_from_disk(str(job.data / "recsys.hf")).select(range(job.rows))
    stream = table.to_iterable_dataset(num_shards=8).with_format("torch")

    def epoch(number: int) -> Batches:
        for batch in stream.shuffle(seed=number, buffer_size=10_000).iter(batch_size=job.batch):
            yield torch.from_numpy(matrix([batch[name].numpy() for name in FEATURES])), batch["label"]

    return epoch


@contender(
    "recsys",
    "tf.data",
    "tensorflow",
    shuffle="a buffer of 65,536 rows",
    dataset="recsys_part",
    note="reads a TFRecord copy of a part of the rows; yields TensorFlow tensors",
)
def tf_data(job: Job) -> Epoch:
    """Whole batches through `parse_example`, the fast way; row by row is several times slower."""
    import tensorflow as tf

    kinds = [tf.float32] * FLOATS + [tf.int64] * (len(FEATURES) - FLOATS)
    spec = {name: tf.io.FixedLenFeature([], kind) for name, kind in zip(FEATURES, kinds, strict=True)}
    spec["label"] = tf.io.FixedLenFeature([], tf.int64)

    def parse(records: Any) -> Any:
        row = tf.io.parse_example(records, spec)
        return tf.stack([tf.cast(row[name], tf.float32) for name in FEATURES], axis=1), row["label"]

    dataset = tf.data.TFRecordDataset(str(job.data / "recsys.tfrecord"))
    dataset = dataset.shuffle(65_536, seed=1, reshuffle_each_iteration=True).batch(job.batch)
    dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    return lambda number: iter(dataset)
