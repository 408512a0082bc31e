"""Messages begin with Petastorm's words, which users' code and tests match on."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.petastorm import make_batch_reader
from bowstring.petastorm.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from bowstring.petastorm.errors import NoDataAvailableError
from bowstring.petastorm.local_disk_cache import LocalDiskCache
from bowstring.petastorm.transform import TransformSpec, transform_schema
from bowstring.petastorm.unischema import Unischema, UnischemaField


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("messages") / "data.parquet"
    pq.write_table(pa.table({"id": list(range(8))}), path, row_group_size=4)
    return f"file://{path}"


def _field(kind: Any, shape: tuple[int, ...], codec: Any) -> Any:
    return UnischemaField("f", kind, shape, codec, False)


def _read_after_stop(url: str) -> None:
    with make_batch_reader(url) as reader:
        next(reader)
    next(reader)


CALLS: list[tuple[type[Exception], str, Callable[[str], Any]]] = [
    (ValueError, "Unknown cache_type", lambda url: make_batch_reader(url, cache_type="bogus")),
    (ValueError, "Unknown reader_pool_type", lambda url: make_batch_reader(url, reader_pool_type="bogus")),
    (RuntimeError, "No fields matching the criteria.*nothing", lambda url: make_batch_reader(url, ["nothing"])),
    (RuntimeError, "Trying to read a sample", _read_after_stop),
    (
        NoDataAvailableError,
        "Number of row-groups in the dataset must be",
        lambda url: make_batch_reader(url, cur_shard=0, shard_count=99),
    ),
    (
        ValueError,
        "Unexpected dimensions",
        lambda _: NdarrayCodec().encode(_field(np.int32, (2,), NdarrayCodec()), np.zeros(3, np.int32)),
    ),
    (
        ValueError,
        "Unexpected type",
        lambda _: CompressedImageCodec("png").encode(
            _field(np.uint8, (2, 2), CompressedImageCodec("png")), np.zeros((2, 2), np.uint16)
        ),
    ),
    (
        ValueError,
        r"Condition 'size_limit_bytes / shards < 5 \* expected_row_size_bytes' needs to hold",
        lambda _: LocalDiskCache("/nowhere", 10, 10),
    ),
    (ValueError, "must be either a string", lambda _: _schema().create_schema_view([3])),
]


def _schema() -> Any:
    return Unischema("s", [_field(np.int32, (), None)])


@pytest.mark.parametrize(("kind", "words", "call"), CALLS, ids=[re.sub(r"\W+", "-", words) for _, words, _ in CALLS])
def test_errors_begin_with_petastorms_words(
    url: str, kind: type[Exception], words: str, call: Callable[[str], Any]
) -> None:
    with pytest.raises(kind, match=words):
        call(url)


def test_scalars_begin_with_petastorms_words() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    codec = ScalarCodec(types.IntegerType())
    with pytest.raises(TypeError, match="Expected a scalar"):
        codec.encode(_field(np.int32, (), codec), [1])
    with pytest.raises(ValueError, match="must be an empty tuple"):
        codec.encode(_field(np.int32, (1,), codec), 1)


def test_warnings_have_petastorms_words(url: str) -> None:
    with pytest.warns(UserWarning, match="not part of the schema.*unknown"):
        transform_schema(_schema(), TransformSpec(None, removed_fields=["unknown"]))
    with pytest.warns(UserWarning, match="Can not create dynamic property"):
        Unischema("s", [UnischemaField("fields", np.int32, (), None, False)])
    with pytest.warns(UserWarning, match="shard_seed was deprecated and will be removed in future versions."):
        make_batch_reader(url, cur_shard=0, shard_count=1, shard_seed=3).stop()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_batch_reader(url).stop()


def test_a_second_pass_fails_in_petastorms_words(url: str) -> None:
    pytest.importorskip("torch")
    from bowstring.petastorm.pytorch import DataLoader, InMemBatchedDataLoader

    with make_batch_reader(url) as reader:
        loader = DataLoader(reader, batch_size=1)
        under_way = iter(loader)
        next(under_way)
        with pytest.raises(
            RuntimeError, match="You must finish a full pass of Petastorm DataLoader before making another"
        ):
            next(iter(loader))
    with make_batch_reader(url) as reader:
        held = InMemBatchedDataLoader(reader, batch_size=2)
        assert list(held)
        with pytest.raises(RuntimeError, match="InMemBatchedDataLoader couldn't be used multiple times"):
            next(iter(held))
