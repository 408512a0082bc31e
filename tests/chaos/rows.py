"""The rows that all ranks train on. The suite writes them; the values of a row follow from its id."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

WIDTH = 768
Ids = npt.NDArray[np.int64]


def ids(rows: int, seed: int) -> Ids:
    """Returns distinct numbers in a random order."""
    return np.random.default_rng(seed).permutation(np.arange(rows, dtype=np.int64) * 7919 + 13)


def values(of: Ids) -> npt.NDArray[np.float32]:
    """Returns the values of each id: ``[rows, WIDTH]``."""
    columns = np.arange(WIDTH, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = of.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) + columns
    top: npt.NDArray[np.uint64] = mixed >> np.uint64(44)
    return top.astype(np.float32)


def write(directory: Path, rows: int, seed: int) -> Ids:
    """Writes the dataset as uneven files; returns its ids in the order of the files."""
    # Imported here because ranks do not need it, and start sooner without it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir(parents=True)
    everything = ids(rows, seed)
    cuts = [0, rows * 3 // 10, rows * 3 // 10 + 1, rows * 6 // 10, rows]
    for number, (start, end) in enumerate(pairwise(cuts)):
        part = everything[start:end]
        x = pa.FixedSizeListArray.from_arrays(pa.array(values(part).reshape(-1)), WIDTH)
        table = pa.table({"id": pa.array(part), "x": x})
        pq.write_table(
            table, directory / f"part-{number}.parquet", row_group_size=700, compression="none", use_dictionary=False
        )
    return everything


def wrong(batch: dict[str, Any]) -> int:
    """Counts the rows of a batch whose values are not those of their ids."""
    got = np.asarray(batch["x"], dtype=np.float32).reshape(len(batch["id"]), -1)
    expected = values(np.asarray(batch["id"], dtype=np.int64))
    return int((got != expected).any(axis=1).sum()) if got.shape == expected.shape else len(batch["id"])
