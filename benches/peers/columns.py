# Tables unchanged: 40 nullable columns in 8 files, delivered as a dict of torch tensors, nulls as 0.
# `columns` is zstd and `columns-snappy` snappy, both by pyarrow; `columns-spark` is Spark's default, if Java is installed.

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from contender import Batches, Epoch, Job, contender

IN_ORDER = "none: file order"
TASKS = ("columns", "columns-snappy", "columns-spark")


def parts(job: Job) -> list[pathlib.Path]:
    """The files of the task."""
    return sorted((job.data / (job.task if "-" in job.task else "columns-zstd")).glob("*.parquet"))


def each(name: str, modules: str, **words: Any) -> Callable[[Callable[[Job], Epoch]], Callable[[Job], Epoch]]:
    """Registers a reader for all three."""

    def register(function: Callable[[Job], Epoch]) -> Callable[[Job], Epoch]:
        for task in TASKS:
            needed = f"{modules} jvm" if task == "columns-spark" else modules
            contender(task, name, needed, dataset="columns", **words)(function)
        return function

    return register


def bowstring_loader(job: Job, shuffle: bool) -> Epoch:
    import bowstring
    import bowstring.torch

    loader = bowstring.torch.DataLoader(
        str(parts(job)[0].parent),
        batch_size=job.batch,
        nulls=bowstring.Fill(0),
        shuffle=shuffle,
        threads=job.threads,
        rank=0,
        world_size=1,
    )

    def epoch(number: int) -> Batches:
        loader.set_epoch(number)
        for batch in loader:
            yield batch, batch["label"]

    return epoch


@each("bowstring", "bowstring.torch torch", shuffle="rows, over row groups and windows")
def bowstring_shuffled(job: Job) -> Epoch:
    return bowstring_loader(job, shuffle=True)


@each("bowstring, in order", "bowstring.torch torch", shuffle=IN_ORDER)
def bowstring_in_order(job: Job) -> Epoch:
    return bowstring_loader(job, shuffle=False)


def sliced(columns: dict[str, Any], rows: int, batch: int) -> Batches:
    """Views of NumPy columns as tensors, a batch at a time."""
    import torch

    for at in range(0, rows, batch):
        made = {name: torch.from_numpy(column[at : at + batch]) for name, column in columns.items()}
        yield made, made["label"]


def frames(order: list[pathlib.Path]) -> Iterator[Any]:
    import polars as pl

    for path in order:
        yield pl.read_parquet(path).fill_null(0)


def arrays(frame: Any) -> dict[str, Any]:
    """Columns as NumPy arrays, without a copy."""
    return {name: frame[name].to_numpy() for name in frame.columns}


@each("polars", "polars torch numpy", shuffle=IN_ORDER)
def polars(job: Job) -> Epoch:
    """A file at a time; batches are views of its columns."""

    def epoch(number: int) -> Batches:
        for frame in frames(parts(job)):
            yield from sliced(arrays(frame), len(frame), job.batch)

    return epoch


@each("polars, shuffled", "polars torch numpy", shuffle="files, and rows within one")
def polars_shuffled(job: Job) -> Epoch:
    """A file at a time, each column taken in random order: `numpy.take` is faster than a gather of the frame."""
    import numpy as np

    def epoch(number: int) -> Batches:
        order, rng = parts(job), np.random.default_rng(number)
        random.Random(number).shuffle(order)
        for frame in frames(order):
            rows = rng.permutation(len(frame))
            yield from sliced(
                {name: column.take(rows) for name, column in arrays(frame).items()}, len(frame), job.batch
            )

    return epoch


@each("pyarrow", "pyarrow.dataset torch numpy", shuffle=IN_ORDER)
def pyarrow(job: Job) -> Epoch:
    """A scan of the directory; the last batch of a row group is short."""
    import pyarrow.dataset as ds
    import torch

    def epoch(number: int) -> Batches:
        for batch in ds.dataset(parts(job)[0].parent).to_batches(batch_size=job.batch):
            columns = zip(batch.schema.names, batch.columns, strict=True)
            filled = {name: column.fill_null(0) if column.null_count else column for name, column in columns}
            made = {name: torch.from_numpy(column.to_numpy()) for name, column in filled.items()}
            yield made, made["label"]

    return epoch
