"""Indexes of row groups: build and read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from bowstring.petastorm import _metadata, _options
from bowstring.petastorm._source import Source, numbered
from bowstring.petastorm._values import values_of
from bowstring.petastorm.errors import PetastormMetadataError
from bowstring.petastorm.etl import RowGroupIndexerBase, _pickled
from bowstring.petastorm.etl._footer import INDEX_KEY, ROW_GROUPS_KEY, Folder
from bowstring.petastorm.etl.dataset_metadata import metadata_of

__all__ = ["PieceInfo", "build_rowgroup_index", "get_row_group_indexes"]


class PieceInfo(NamedTuple):
    """A row group, as Petastorm described it to Spark's executors."""

    piece_index: int
    path: str
    row_group: int
    partition_keys: Any


def build_rowgroup_index(
    dataset_url: str, spark_context: Any, indexers: Sequence[RowGroupIndexerBase], hdfs_driver: str = "libhdfs3"
) -> None:
    """Indexes all row groups and stores the indexes beside the dataset.

    :param dataset_url: a dataset that Petastorm wrote.
    :param spark_context: not needed, since bowstring reads the columns itself; may be ``None``.
    :param indexers: the indexes to build: :class:`SingleFieldIndexer`, :class:`FieldNotNullIndexer`.
    :param hdfs_driver: deprecated, without effect.
    """
    url = dataset_url.rstrip("/")
    place, _ = _options.location(url, hdfs_driver=hdfs_driver)
    metadata = _metadata.load(str(place.urls))
    if metadata is None:
        raise PetastormMetadataError(f"{url} was not written by Petastorm: there is nowhere to keep an index")
    names = dict.fromkeys(name for indexer in indexers for name in indexer.column_names)
    fields = [metadata.schema.fields[name] for name in names]
    source = Source(place, fields, stored=False)
    try:
        # As Petastorm numbers them: over all files, including row groups without rows.
        counts = source.row_group_counts
        first = numbered(counts)
        source.start([(group, 0) for group in range(len(source.groups))])
        while True:
            found = source.next(
                lambda columns: [values_of(field, columns, source.units.get(field.name)) for field in fields]
            )
            if found is None:
                break
            (group, _), _, lists = found
            path, ordinal, _ = source.groups[group]
            rows = [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
            for indexer in indexers:
                indexer.build_index(rows, first[path] + ordinal)
    finally:
        source.close()
    # With the counts, so that the numbers are not misread when files are added later.
    index = _pickled.indexes({indexer.index_name: indexer for indexer in indexers})
    Folder(url).add({INDEX_KEY: index, ROW_GROUPS_KEY: json.dumps(counts).encode()})


def get_row_group_indexes(dataset: Any) -> dict[str, RowGroupIndexerBase]:
    """The stored indexes by name.

    :param dataset: a URL or path, or a ``pyarrow.parquet.ParquetDataset``.
    """
    metadata = metadata_of(dataset)
    if metadata is None or not metadata.indexes:
        raise ValueError("the dataset has no index of row groups; build one with build_rowgroup_index")
    return metadata.indexes
