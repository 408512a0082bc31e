"""Petastorm's converter: a Spark data frame, stored as Parquet, to loaders of PyTorch and TensorFlow."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from bowstring.errors import ConfigError, StoreError
from bowstring.options import is_server
from bowstring.paths import shown
from bowstring.petastorm._lazy import needed
from bowstring.petastorm.reader import Reader, make_batch_reader
from bowstring.petastorm.spark import _materialize, _served, _sources
from bowstring.petastorm.spark._materialize import register_delete_dir_handler

__all__ = ["SparkDatasetConverter", "make_spark_converter", "register_delete_dir_handler"]

_LOG = logging.getLogger(__name__)
_CODECS = ("uncompressed", "bzip2", "gzip", "lz4", "snappy", "deflate")
_FILE_WAIT_S = 30.0
# Files below this size are slow to read one by one from a remote store.
_SMALL_FILE = 50 * 1024 * 1024
_RANKS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


_ROW_GROUP_BYTES = 32 * 1024 * 1024


def make_spark_converter(
    df: Any,
    parquet_row_group_size_bytes: int = _ROW_GROUP_BYTES,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
) -> SparkDatasetConverter:
    """Stores a data frame in the cache directory and returns a factory of loaders over it.

    The directory is Spark's setting ``petastorm.spark.converter.parentCacheDirUrl`` or ``bowstring.converter.cacheDir``; data
    stored there are deleted at exit. It may be a bowstring server that accepts writes, ``grpc://host:port``: the frame then
    needs no file system that Spark and the trainer share.

    :param df: the data frame; an equal one is stored once, if its plan tells that the rows are the same. Or the URL of a directory
        of Parquet, used unchanged, and deleted by :meth:`SparkDatasetConverter.delete` only.
    :param parquet_row_group_size_bytes: size of row groups; not for a server.
    :param compression_codec: of Parquet; none by default; not for a server.
    :param dtype: precision of columns of floats and of arrays of them, not deeper: ``float32``, ``float64``; ``None`` leaves them.
    """
    if isinstance(df, str):
        return _of_directory(df)
    codec = (compression_codec or "uncompressed").lower()
    if codec not in _CODECS:
        raise RuntimeError(f"compression_codec must be None or one of {', '.join(_CODECS)}, got {compression_codec!r}")
    cache = _cache_dir(df.sparkSession)
    if is_server(cache):
        of_files = {
            "parquet_row_group_size_bytes": parquet_row_group_size_bytes != _ROW_GROUP_BYTES,
            "compression_codec": compression_codec is not None,
        }
        for name in [name for name, given in of_files.items() if given]:
            problem = (
                f"a server stores the rows in its own way; leave it out, or set a directory instead of {shown(cache)}"
            )
            raise ConfigError(f"option {name}: {problem}", option=name)
    url = _materialize.cached(df, cache, parquet_row_group_size_bytes, codec, dtype)
    if is_server(url):
        return SparkDatasetConverter(url, [url], _served.count(url))
    return _of_stored(df.sparkSession, url)


def _of_stored(session: Any, url: str) -> SparkDatasetConverter:
    stored = session.read.parquet(url)
    files = sorted(stored.inputFiles())
    _hint_at_size(files)
    return SparkDatasetConverter(url, files, stored.count())


def _of_directory(url: str) -> SparkDatasetConverter:
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        # As the file system that DBFS is mounted at.
        if url.startswith("dbfs:/"):
            url = "file:/dbfs/" + url.removeprefix("dbfs:").lstrip("/")
        if not url.startswith(("file:/dbfs/", "file:///dbfs/")):
            raise ValueError(f"on Databricks a directory is given as dbfs:/x or file:/dbfs/x, got {url!r}")
    return _of_stored(needed("pyspark.sql", "make_spark_converter()").SparkSession.builder.getOrCreate(), url)


def _cache_dir(session: Any) -> str:
    for name in (SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, "bowstring.converter.cacheDir"):
        url = session.conf.get(name, None)
        if url:
            return str(url)
    raise ValueError(f"set Spark's option {SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF} to a directory's URL")


def _hint_at_size(files: list[str]) -> None:
    sizes = sorted(os.path.getsize(path) for path in map(_sources.local_path, files) if path and os.path.exists(path))
    if len(sizes) > 1 and sizes[len(sizes) // 2] < _SMALL_FILE:
        _LOG.warning("half of the %d files have less than %d MB: coalesce() the frame", len(sizes), _SMALL_FILE >> 20)


class SparkDatasetConverter:
    """A stored data frame. It may be sent to other processes and makes loaders there.

    :param cache_dir_url: the directory.
    :param file_urls: its Parquet files.
    :param dataset_size: its rows.
    """

    PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"

    def __init__(self, cache_dir_url: str, file_urls: list[str], dataset_size: int) -> None:
        self.cache_dir_url = cache_dir_url
        self.file_urls = file_urls
        self.dataset_size = dataset_size

    def __len__(self) -> int:
        return self.dataset_size

    def make_torch_dataloader(
        self,
        batch_size: int = 32,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Callable[..., Any] | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> TorchDatasetContextManager:
        """A context manager that gives a loader of torch tensors.

        :param batch_size: rows per batch.
        :param num_epochs: passes over the data; without end by default.
        :param workers_count: see :func:`make_batch_reader`.
        :param shuffling_queue_capacity: rows to draw from; 0 keeps the order.
        :param data_loader_fn: makes the loader; ``bowstring.petastorm.pytorch.DataLoader`` by default.
        :param petastorm_reader_kwargs: other parameters of :func:`make_batch_reader`.
        """
        arguments = _reader_arguments(petastorm_reader_kwargs, num_epochs, workers_count)
        return TorchDatasetContextManager(
            self.file_urls, batch_size, arguments, shuffling_queue_capacity, data_loader_fn
        )

    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> TFDatasetContextManager:
        """A context manager that gives a ``tf.data.Dataset``.

        :param batch_size: rows per batch (32).
        :param prefetch: batches ahead; TensorFlow decides by default.
        :param num_epochs: passes over the data; without end by default.
        :param workers_count: see :func:`make_batch_reader`.
        :param shuffling_queue_capacity: rows to draw from; none keeps the order.
        :param petastorm_reader_kwargs: other parameters of :func:`make_batch_reader`.
        """
        arguments = _reader_arguments(petastorm_reader_kwargs, num_epochs, workers_count)
        return TFDatasetContextManager(self.file_urls, batch_size, prefetch, arguments, shuffling_queue_capacity)

    def delete(self) -> None:
        """Deletes the stored data."""
        _materialize.forget(self.cache_dir_url)


def _reader_arguments(given: dict[str, Any], num_epochs: int | None, workers_count: int | None) -> dict[str, Any]:
    arguments = {**given, "num_epochs": num_epochs}
    if workers_count is not None:
        arguments["workers_count"] = workers_count
    for names in _RANKS:
        rank, size = (os.environ.get(name) for name in names)
        if rank is not None and size is not None:
            shard = (given.get("cur_shard"), given.get("shard_count"))
            if shard != (int(rank), int(size)):
                _LOG.warning(
                    "cur_shard and shard_count are %s, but the launcher says rank %s of %s: ranks may see the same rows",
                    shard,
                    rank,
                    size,
                )
            break
    return arguments


def _wait_for(urls: list[str]) -> None:
    """Waits for files that a shared file system does not show yet."""
    end = time.monotonic() + _FILE_WAIT_S
    missing = [path for path in map(_sources.local_path, urls) if path is not None]
    while missing := [path for path in missing if not os.path.exists(path)]:
        if time.monotonic() > end:
            raise StoreError(f"{len(missing)} files, such as {missing[0]}, did not appear within {_FILE_WAIT_S:.0f} s")
        time.sleep(0.1)


class _Opened:
    """A reader over the files while the ``with`` block lasts."""

    def __init__(self, parquet_file_url_list: list[str], petastorm_reader_kwargs: dict[str, Any]) -> None:
        self.parquet_file_url_list = parquet_file_url_list
        self.petastorm_reader_kwargs = petastorm_reader_kwargs
        self.reader: Reader
        self._fetched: tempfile.TemporaryDirectory[str] | None = None

    def _open(self) -> None:
        given = self.parquet_file_url_list
        if is_server(given[0]):
            self._fetched, given = _served.fetched(given[0])
        _wait_for(given)
        local = [_sources.local_path(url) for url in given]
        urls = [url if path is None else f"file://{path}" for url, path in zip(given, local, strict=True)]
        self.reader = make_batch_reader(urls, **self.petastorm_reader_kwargs)

    @contextmanager
    def _closed_if_it_fails(self) -> Iterator[None]:
        """For ``__enter__``: the block is left without :meth:`__exit__` if that fails."""
        try:
            yield
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if hasattr(self, "reader"):
            self.reader.stop()
            self.reader.join()
        if self._fetched is not None:
            self._fetched.cleanup()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, exc_traceback: TracebackType | None
    ) -> None:
        self._close()


class TorchDatasetContextManager(_Opened):
    """The result of :meth:`SparkDatasetConverter.make_torch_dataloader`."""

    def __init__(
        self,
        parquet_file_url_list: list[str],
        batch_size: int,
        petastorm_reader_kwargs: dict[str, Any],
        shuffling_queue_capacity: int,
        data_loader_fn: Callable[..., Any] | None,
    ) -> None:
        super().__init__(parquet_file_url_list, petastorm_reader_kwargs)
        self.batch_size = batch_size
        self.shuffling_queue_capacity = shuffling_queue_capacity
        self.data_loader_fn = data_loader_fn

    def __enter__(self) -> Any:
        from bowstring.petastorm.pytorch import DataLoader

        make: Callable[..., Any] = self.data_loader_fn or DataLoader
        with self._closed_if_it_fails():
            self._open()
            self.loader = make(
                reader=self.reader, batch_size=self.batch_size, shuffling_queue_capacity=self.shuffling_queue_capacity
            )
        return self.loader


class TFDatasetContextManager(_Opened):
    """The result of :meth:`SparkDatasetConverter.make_tf_dataset`."""

    def __init__(
        self,
        parquet_file_url_list: list[str],
        batch_size: int | None,
        prefetch: int | None,
        petastorm_reader_kwargs: dict[str, Any],
        shuffling_queue_capacity: int | None,
    ) -> None:
        super().__init__(parquet_file_url_list, petastorm_reader_kwargs)
        self.batch_size = batch_size
        self.prefetch = prefetch
        self.shuffling_queue_capacity = shuffling_queue_capacity

    def __enter__(self) -> Any:
        import importlib

        from bowstring.petastorm.tf_utils import make_petastorm_dataset

        tf = importlib.import_module("tensorflow")
        with self._closed_if_it_fails():
            self._open()
            dataset = make_petastorm_dataset(self.reader).unbatch()
        if self.shuffling_queue_capacity:
            dataset = dataset.shuffle(self.shuffling_queue_capacity)
        return dataset.batch(self.batch_size or 32).prefetch(
            tf.data.AUTOTUNE if self.prefetch is None else self.prefetch
        )
