# Lists to tensors: `tokens` are lists of 1 to 512 int32 padded to [B, 512] with lengths [B]; `fixed` are vectors of
# 1,024 float32 to [B, 1024] with ids [B].

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from contender import Batches, Epoch, Job, contender
from data import TOKENS_MAX, WIDTH
from recsys import IN_ORDER, WINDOWS, real_rows

# ---- tokens --------------------------------------------------------------------------------------------------------


def pad(batches: Iterator[Any]) -> Batches:
    """Record batches to padded matrices and lengths.

    A copy per row into zeroed memory: with 256 values a row it was faster than a numpy boolean mask (by a third), and
    several times faster than `masked_scatter_`, `pad_sequence` and torch's nested tensors.
    """
    import numpy as np
    import torch

    for batch in batches:
        column = batch.column("tokens")
        offsets, values = column.offsets.to_numpy(), column.values.to_numpy()
        out = np.zeros((len(column), TOKENS_MAX), np.int32)
        bounds = offsets.tolist()
        for row, (start, end) in enumerate(itertools.pairwise(bounds)):
            out[row, : end - start] = values[start:end]
        yield torch.from_numpy(out), torch.from_numpy(np.diff(offsets))


def bowstring_tokens(job: Job, shuffle: bool) -> Epoch:
    import bowstring
    import bowstring.torch

    loader = bowstring.torch.DataLoader(
        str(job.data / "tokens.parquet"),
        batch_size=job.batch,
        lists={"tokens": bowstring.Padded(TOKENS_MAX)},
        shuffle=shuffle,
        tail="pad",
        threads=job.threads,
        rank=0,
        world_size=1,
    )

    def epoch(number: int) -> Batches:
        loader.set_epoch(number)
        for batch in loader:
            yield real_rows(batch, batch["tokens"], batch["tokens__lengths"])

    return epoch


@contender("tokens", "bowstring", "bowstring.torch torch", shuffle=WINDOWS)
def bowstring_tokens_shuffled(job: Job) -> Epoch:
    return bowstring_tokens(job, shuffle=True)


@contender("tokens", "bowstring, in order", "bowstring.torch torch", shuffle=IN_ORDER)
def bowstring_tokens_in_order(job: Job) -> Epoch:
    return bowstring_tokens(job, shuffle=False)


@contender("tokens", "pyarrow", "pyarrow.parquet torch numpy", shuffle=IN_ORDER)
def pyarrow_tokens(job: Job) -> Epoch:
    import pyarrow.parquet as pq

    return lambda number: pad(pq.ParquetFile(job.data / "tokens.parquet").iter_batches(job.batch))


@contender("tokens", "lance", "lance torch numpy", shuffle=IN_ORDER, note="reads its own format")
def lance_tokens(job: Job) -> Epoch:
    import lance

    return lambda number: pad(lance.dataset(job.data / "tokens.lance").to_batches(batch_size=job.batch))


@contender("tokens", "datasets", "datasets torch numpy", shuffle=IN_ORDER, note="reads its Arrow copy, memory-mapped")
def hugging_face_tokens(job: Job) -> Epoch:
    """The Arrow format and the same padding as the others; its torch format makes a tensor per row."""
    import datasets

    table = datasets.load_from_disk(str(job.data / "tokens.hf")).with_format("arrow")

    def batches() -> Iterator[Any]:
        for part in table.iter(batch_size=job.batch):
            yield from part.combine_chunks().to_batches()

    return lambda number: pad(batches())


# ---- fixed ---------------------------------------------------------------------------------------------------------


def views(batches: Iterator[Any]) -> Batches:
    """Record batches to matrices without a copy."""
    import torch

    for batch in batches:
        vectors = torch.from_numpy(batch.column("vector").flatten().to_numpy()).view(-1, WIDTH)
        yield vectors, torch.from_numpy(batch.column("id").to_numpy())


def bowstring_fixed(job: Job, shuffle: bool) -> Epoch:
    import bowstring.torch

    loader = bowstring.torch.DataLoader(
        str(job.data / "fixed.parquet"),
        batch_size=job.batch,
        shuffle=shuffle,
        tail="pad",
        threads=job.threads,
        rank=0,
        world_size=1,
    )

    def epoch(number: int) -> Batches:
        loader.set_epoch(number)
        for batch in loader:
            yield real_rows(batch, batch["vector"], batch["id"])

    return epoch


@contender("fixed", "bowstring", "bowstring.torch torch", shuffle=WINDOWS)
def bowstring_fixed_shuffled(job: Job) -> Epoch:
    return bowstring_fixed(job, shuffle=True)


@contender("fixed", "bowstring, in order", "bowstring.torch torch", shuffle=IN_ORDER)
def bowstring_fixed_in_order(job: Job) -> Epoch:
    return bowstring_fixed(job, shuffle=False)


@contender("fixed", "pyarrow", "pyarrow.parquet torch", shuffle=IN_ORDER)
def pyarrow_fixed(job: Job) -> Epoch:
    import pyarrow.parquet as pq

    return lambda number: views(pq.ParquetFile(job.data / "fixed.parquet").iter_batches(job.batch))


@contender("fixed", "polars", "polars torch", shuffle=IN_ORDER)
def polars_fixed(job: Job) -> Epoch:
    import polars as pl
    import torch

    def epoch(number: int) -> Batches:
        for frame in pl.scan_parquet(job.data / "fixed.parquet").collect_batches(
            chunk_size=job.batch, maintain_order=True
        ):
            vectors = frame["vector"].to_numpy(writable=True)
            yield torch.from_numpy(vectors), frame["id"].to_torch()

    return epoch


@contender("fixed", "lance", "lance torch", shuffle=IN_ORDER, note="reads its own format")
def lance_fixed(job: Job) -> Epoch:
    import lance

    return lambda number: views(lance.dataset(job.data / "fixed.lance").to_batches(batch_size=job.batch))


@contender(
    "fixed",
    "datasets",
    "datasets torch",
    shuffle=IN_ORDER,
    note="views of its memory-mapped Arrow copy: nothing is read or copied until used",
)
def hugging_face_fixed(job: Job) -> Epoch:
    import datasets

    table = datasets.load_from_disk(str(job.data / "fixed.hf")).with_format("arrow")

    def batches() -> Iterator[Any]:
        for part in table.iter(batch_size=job.batch):
            yield from part.to_batches()

    return lambda number: views(batches())
