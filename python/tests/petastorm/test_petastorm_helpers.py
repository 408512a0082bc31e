"""Petastorm's helpers: a reader without a dataset, functions in a process of their own, values beside the schema."""

from __future__ import annotations

import operator
import os
import pathlib
import shutil
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pytest
from bowstring.petastorm import make_reader
from bowstring.petastorm.test_util.reader_mock import ReaderMock, schema_data_generator_example
from bowstring.petastorm.unischema import Unischema, UnischemaField
from bowstring.petastorm.utils import add_to_dataset_metadata, run_in_subprocess

from .datasets import CODECS, folder

SCHEMA = Unischema(
    "mock",
    [
        UnischemaField("id", np.int32, ()),
        UnischemaField("matrix", np.float32, (2, None)),
        UnischemaField("price", Decimal, ()),
    ],
)


def test_a_reader_without_a_dataset() -> None:
    with ReaderMock(SCHEMA, schema_data_generator_example) as reader:
        row = next(reader)
        assert (row.id.dtype, row.matrix.shape, row.price) == (np.int32, (2, 10), Decimal(0))
        assert reader.next()._fields == ("id", "matrix", "price")
    assert not reader.batched_output
    with pytest.raises(ValueError, match="NGram"):
        ReaderMock(SCHEMA, schema_data_generator_example, ngram=object())


def test_a_mock_feeds_a_loader() -> None:
    pytest.importorskip("torch")
    from bowstring.petastorm.pytorch import DataLoader

    with DataLoader(ReaderMock(SCHEMA, schema_data_generator_example), batch_size=3) as loader:
        assert next(iter(loader))["matrix"].shape == (3, 2, 10)


def test_a_process_of_its_own() -> None:
    assert run_in_subprocess(operator.mul, 6, 7) == 42
    assert run_in_subprocess(int, "z", base=36) == 35
    assert run_in_subprocess(os.getpid) != os.getpid()


def test_values_beside_the_schema(tmp_path: pathlib.Path, at: Callable[[str], str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    copied = tmp_path / "dataset"
    shutil.copytree(folder(CODECS), copied)
    add_to_dataset_metadata(f"file://{copied}", "mine", "value")
    add_to_dataset_metadata(copied, b"other", b"more")
    stored = parquet.read_schema(copied / "_common_metadata").metadata
    assert (stored[b"mine"], stored[b"other"]) == (b"value", b"more")
    with make_reader(f"file://{copied}", ["id"]) as reader:
        assert len(list(reader)) == 40
