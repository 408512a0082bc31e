"""A dataset's schema: read it, or write it beside Spark's files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bowstring.errors import UnsupportedError
from bowstring.petastorm import _document, _metadata, _options
from bowstring.petastorm._dataset import Dataset
from bowstring.petastorm._source import Location
from bowstring.petastorm.errors import PetastormMetadataError, PetastormMetadataGenerationError
from bowstring.petastorm.etl._footer import SCHEMA_KEY, Folder
from bowstring.petastorm.unischema import Unischema

__all__ = [
    "PetastormMetadataError",
    "PetastormMetadataGenerationError",
    "get_schema",
    "get_schema_from_dataset_url",
    "infer_or_load_unischema",
    "load_row_groups",
    "materialize_dataset",
]

# Hadoop options while a dataset is written. Row groups are checked often, since rows may be large.
_HADOOP = {
    "parquet.summary.metadata.propagate-errors": "true",
    "parquet.block.size.row.check.min": "3",
    "parquet.row-group.size.row.check.min": "3",
}


@contextmanager
def materialize_dataset(
    spark: Any,
    dataset_url: str,
    schema: Unischema,
    row_group_size_mb: int | None = None,
    use_summary_metadata: bool = False,
    filesystem_factory: Callable[[], Any] | None = None,
) -> Iterator[None]:
    """Context for code that writes Parquet with Spark: sets the size of row groups, and stores the schema at the end.

    The result is read by Petastorm and by bowstring. Nothing is stored if the code within raises.

    :param spark: the Spark session.
    :param dataset_url: the destination of the code within.
    :param schema: the schema to store.
    :param row_group_size_mb: size of row groups in MiB.
    :param use_summary_metadata: let Spark write summary files too; row groups are counted either way.
    :param filesystem_factory: makes the file system, of pyarrow's or fsspec's, to store the schema with.
    """
    if not hasattr(spark, "_jsc") and not hasattr(getattr(spark, "sparkContext", None), "_jsc"):
        raise UnsupportedError(
            "materialize_dataset sets Hadoop options and needs a classic Spark session, not Spark Connect"
        )
    options = dict(_HADOOP)
    options["parquet.summary.metadata.level"] = "ALL" if use_summary_metadata else "NONE"
    if row_group_size_mb:
        options["parquet.block.size"] = str(row_group_size_mb * 1024 * 1024)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = {name: hadoop.get(name) for name in options}
    for name, value in options.items():
        hadoop.set(name, value)
    try:
        yield
        folder = Folder(dataset_url, filesystem_factory)
        if not folder.files():
            raise PetastormMetadataGenerationError(f"nothing was written to {dataset_url}")
        folder.describe({SCHEMA_KEY: _document.metadata(schema)})
    finally:
        for name, value in before.items():
            if value is None:
                hadoop.unset(name)
            else:
                hadoop.set(name, value)


def _url_of(dataset: Any) -> str:
    """The folder of a dataset: of its URL or path, or of a ``pyarrow.parquet.ParquetDataset``."""
    if isinstance(dataset, (str, os.PathLike)):
        return os.fspath(dataset)
    paths = getattr(dataset, "paths", None) or getattr(dataset, "files", None)
    if isinstance(paths, str):
        return paths
    if not paths:
        raise TypeError(f"a dataset is given by its URL or as a pyarrow ParquetDataset, got a {type(dataset).__name__}")
    folder = os.path.dirname(os.path.commonpath([os.path.join(path, "") for path in paths]) + "/")
    folder = folder if len(paths) > 1 else os.path.dirname(paths[0])
    while "=" in os.path.basename(folder):
        folder = os.path.dirname(folder)
    return folder


def place_of(dataset: Any) -> Location:
    """The location of a dataset, which a ``pyarrow.parquet.ParquetDataset`` may have on a file system of its own."""
    url = _url_of(dataset)
    filesystem = None if isinstance(dataset, (str, os.PathLike)) else getattr(dataset, "filesystem", None)
    if filesystem is None and "://" not in url:
        url = f"file://{os.path.abspath(url)}"
    return _options.location(url, filesystem=filesystem)[0]


def metadata_of(dataset: Any) -> _metadata.Metadata | None:
    """What Petastorm stored of a dataset, given by its URL or path or as a ``pyarrow.parquet.ParquetDataset``."""
    if isinstance(dataset, (str, os.PathLike)):
        return _metadata.load(os.fspath(dataset))
    place = place_of(dataset)  # holds its file system
    return _metadata.load(str(place.urls))


def _schema(found: _metadata.Metadata | None, url: Any) -> Unischema:
    if found is None:
        raise PetastormMetadataError(
            f"{url} has no schema of Petastorm's; read it as plain Parquet with make_batch_reader or bowstring.Loader, or "
            "write it within materialize_dataset"
        )
    return found.schema


def get_schema(dataset: Any) -> Unischema:
    """The schema that Petastorm stored.

    :param dataset: a URL or path, or a ``pyarrow.parquet.ParquetDataset``.
    :raises PetastormMetadataError: if there is none.
    """
    return _schema(metadata_of(dataset), _url_of(dataset))


def get_schema_from_dataset_url(
    dataset_url_or_urls: str | list[str],
    hdfs_driver: str = "libhdfs3",
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> Unischema:
    """The schema that Petastorm stored at a URL.

    :param filesystem: a file system to read it through, as for :func:`bowstring.petastorm.make_reader`.
    :raises PetastormMetadataError: if there is none.
    """
    place, _ = _options.location(
        dataset_url_or_urls, hdfs_driver=hdfs_driver, storage_options=storage_options, filesystem=filesystem
    )
    is_one = isinstance(place.urls, str)
    found = _metadata.load(str(place.urls), place.options["storage_options"]) if is_one else None
    return _schema(found, dataset_url_or_urls)


def infer_or_load_unischema(dataset: Any) -> Unischema:
    """The schema that Petastorm stored, or would derive from plain Parquet."""
    return Dataset(place_of(dataset)).schema


def load_row_groups(dataset: Any) -> list[tuple[str, int, int]]:
    """File, number within the file, and rows of each row group, in the order in which readers count them."""
    opened = place_of(dataset).open()
    try:
        return opened.groups
    finally:
        opened.close()
