"""Petastorm's helpers: a reader without a dataset, functions in a separate process, values outside the schema."""

from __future__ import annotations

import operator
import os
import pathlib
import shutil
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bowstring.errors import ConfigError
from bowstring.petastorm import make_reader
from bowstring.petastorm.etl import petastorm_generate_metadata
from bowstring.petastorm.etl._footer import INDEX_KEY, ROW_GROUPS_KEY
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
PLAIN = Unischema("plain", [UnischemaField("id", np.int32, (), None, False)])


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


def test_functions_run_in_a_separate_process() -> None:
    assert run_in_subprocess(operator.mul, 6, 7) == 42
    assert run_in_subprocess(int, "z", base=36) == 35
    assert run_in_subprocess(os.getpid) != os.getpid()


@pytest.mark.parametrize("given", [{"parquet_row_group_size_bytes": 5}, {"compression_codec": "snappy"}])
def test_a_server_takes_no_options_of_files(given: dict[str, Any]) -> None:
    from bowstring.petastorm.spark import make_spark_converter

    session = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: "grpc://127.0.0.1:9"))
    with pytest.raises(ConfigError, match=next(iter(given))):
        make_spark_converter(SimpleNamespace(sparkSession=session), **given)


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


def test_metadata_of_existing_files(tmp_path: pathlib.Path, at: Callable[[str], str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    copied = tmp_path / "dataset"
    shutil.copytree(folder(CODECS), copied)
    before = parquet.read_schema(copied / "_common_metadata").metadata
    url = f"file://{copied}"
    petastorm_generate_metadata._main(["--dataset_url", url])
    after = parquet.read_schema(copied / "_common_metadata").metadata
    assert after[INDEX_KEY] == before[INDEX_KEY]
    moved = next(copied.rglob("*.parquet"))
    moved.rename(moved.with_name("zzz.parquet"))
    with pytest.warns(UserWarning, match="index of row groups is dropped"):
        petastorm_generate_metadata._main(["--dataset_url", url])
    after = parquet.read_schema(copied / "_common_metadata").metadata
    assert b"zzz.parquet" in after[ROW_GROUPS_KEY]
    assert INDEX_KEY not in after
    with make_reader(url, ["id"]) as reader:
        assert sorted(int(row.id) for row in reader) == list(range(40))
    (copied / "_common_metadata").unlink()
    with pytest.raises(ValueError, match="unischema_class"):
        petastorm_generate_metadata.generate_petastorm_metadata(None, url)
    with pytest.raises(ValueError, match="not a Unischema"):
        petastorm_generate_metadata.generate_petastorm_metadata(None, url, "os.path.join")


def test_metadata_of_a_schema_by_name(tmp_path: pathlib.Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"id": pa.array([1, 2], pa.int32())}), tmp_path / "a.parquet", row_group_size=1)
    url = f"file://{tmp_path}"
    petastorm_generate_metadata.generate_petastorm_metadata(None, url, f"{__name__}.PLAIN")
    with make_reader(url, shuffle_row_groups=False) as reader:
        assert [int(row.id) for row in reader] == [1, 2]
        assert list(reader.schema.fields) == ["id"]


FORKED = """
import os, sys
from bowstring.petastorm.spark import _materialize


class Schema(tuple):
    json = lambda self: "[]"


class Frame:
    sparkSession, schema, write = None, Schema(), property(lambda self: self)
    semanticHash, select = lambda self: 1, lambda self, _: self
    option, parquet = lambda self, *_: self, lambda self, _: None


_materialize.register_delete_dir_handler(lambda url: print("deleted", flush=True))
_materialize.cached(Frame(), "file:///tmp", 1, "snappy", None)
if os.fork() == 0:
    sys.exit(0)
os.wait()
"""


def test_a_forked_child_deletes_no_frame_of_its_parent(script: Callable[..., Any]) -> None:
    out, errors = script(FORKED).communicate(timeout=60)
    assert out == "deleted\n", errors
