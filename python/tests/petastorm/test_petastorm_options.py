"""Parameters: honoured, renamed with a warning that names the replacement, or refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bowstring.errors import ConfigError, NotFoundError, UnsupportedError
from bowstring.petastorm import make_batch_reader, make_reader
from bowstring.petastorm._options import normalized, object_store_options
from bowstring.petastorm.local_disk_cache import LocalDiskCache
from bowstring.petastorm.predicates import in_set
from bowstring.petastorm.reader import Reader, normalize_dataset_url_or_urls
from bowstring.petastorm.transform import TransformSpec

from .datasets import CODECS

At = Callable[[str], str]
CACHE = {
    "cache_type": "local-disk",
    "cache_location": "/nowhere",
    "cache_size_limit": 10**9,
    "cache_row_size_estimate": 100,
}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reader_pool_type": "process"}, "use 'thread'"),
        ({"results_queue_size": 10}, "BOWSTRING_MEMORY_BUDGET"),
        ({"pyarrow_serialize": True}, "leave it out"),
        ({"zmq_copy_buffers": False}, "leave it out"),
        ({"hdfs_driver": "libhdfs"}, "no driver"),
        ({"shard_seed": 3, "cur_shard": 0, "shard_count": 2}, "use seed"),
        (CACHE, "local path"),
    ],
)
def test_renamed(options: dict[str, Any], says: str, at: At) -> None:
    category = UserWarning if "shard_seed" in options else DeprecationWarning  # as Petastorm's
    with pytest.warns(category, match=says) as caught:
        reader = make_reader(at(CODECS), ["id"], **options)
    assert caught[0].filename == __file__  # Python shows the warning only in the user's own file
    with reader:
        rows = len(list(reader))
    assert rows == 40 or (0 < rows < 40 and "cur_shard" in options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"reader_pool_type": "fork"}, ValueError),
        ({"cache_type": "memory"}, ValueError),
        ({"cache_type": "local-disk"}, TypeError),
        ({**CACHE, "cache_size_limit": 1000}, ValueError),
        ({"filesystem": object()}, ConfigError),
        ({"num_epochs": 0}, ValueError),
        ({"predicate": 5}, ValueError),
        ({"rowgroup_selector": 5}, ValueError),
        ({"cur_shard": 1}, ValueError),
        ({"schema_fields": 5}, ValueError),
        ({"schema_fields": ["nothing"]}, RuntimeError),
    ],
)
def test_refused(options: dict[str, Any], error: type[Exception], at: At) -> None:
    with pytest.raises(error):
        make_reader(at(CODECS), **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_caches_refuse_some_options(at: At) -> None:
    with pytest.raises(RuntimeError, match="predicate"):
        make_reader(at(CODECS), predicate=in_set({1}, "id"), **CACHE)
    with pytest.raises(RuntimeError, match="shuffle_row_drop_partitions"):
        make_reader(at(CODECS), shuffle_row_drop_partitions=2, **CACHE)


def test_urls() -> None:
    assert normalized("file:///a/b/") == "/a/b"
    assert normalized(["s3://bucket/a", "s3://bucket/b"]) == ["s3://bucket/a", "s3://bucket/b"]
    for bad in ("/a/b", "", 5, None, [], ["s3://a/x", "s3://b/x"], "s3:///x"):
        with pytest.raises(ValueError, match=r"URL|scheme|form"):
            normalized(bad)


def test_storage_options_of_fsspec() -> None:
    given = {"key": "k", "secret": "s", "anon": False, "client_kwargs": {"endpoint_url": "http://localhost:9000"}}
    with pytest.warns(DeprecationWarning, match="key -> aws_access_key_id"):
        found = object_store_options("s3://bucket/x", given)
    assert found == {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_skip_signature": "false",
        "aws_endpoint": "http://localhost:9000",
    }
    assert object_store_options("s3://bucket/x", {"aws_region": "eu-west-1"}) == {"aws_region": "eu-west-1"}
    with pytest.warns(DeprecationWarning, match="profile -> aws_profile"):
        assert object_store_options("s3://bucket/x", {"profile": "lab"}) == {"aws_profile": "lab"}
    with pytest.raises(ConfigError, match="config"):
        object_store_options("s3://bucket/x", {"config": object()})


def test_a_reader_by_its_constructor(at: At) -> None:
    with Reader(None, at(CODECS).removeprefix("file://"), ["id"], shuffle_row_groups=False) as reader:
        assert [int(row.id) for row in reader] == list(range(40))
    with pytest.raises(ConfigError, match="threads of its own"):
        Reader(None, at(CODECS), reader_pool=object())


def test_names_of_0_13(at: At) -> None:
    with make_reader(at(CODECS), ["id"], convert_early_to_numpy=True) as reader:
        assert len(list(reader)) == 40
        reader.cleanup_cache()
    assert normalize_dataset_url_or_urls(["file:///a/", "file:///b"]) == ["file:///a", "file:///b"]
    for bad in ([], None, [5]):
        with pytest.raises(ValueError, match=r"empty|string"):
            normalize_dataset_url_or_urls(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("pool", ["thread", "dummy"])
def test_diagnostics(pool: str, at: At) -> None:
    spec = TransformSpec(lambda row: row)
    with make_reader(at(CODECS), ["id"], reader_pool_type=pool, transform_spec=spec, zmq_copy_buffers=True) as reader:
        assert reader.diagnostics["items_consumed"] == 0
        next(reader)
        found = reader.diagnostics
        assert found["items_consumed"] == found["items_produced"] + found["items_inprocess"] > 0
        list(reader)
        assert reader.diagnostics["items_inprocess"] == reader.diagnostics["output_queue_size"] == 0


def test_a_dataset_that_does_not_exist() -> None:
    with pytest.raises(NotFoundError):
        make_batch_reader("file:///no/such/dataset")


def test_without_successor() -> None:
    with pytest.raises(UnsupportedError, match="local path"):
        LocalDiskCache("/nowhere", 10**9, 100)
    with pytest.raises(ValueError, match="size limit"):
        LocalDiskCache("/nowhere", 100, 100)
