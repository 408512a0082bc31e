"""Petastorm's metadata for Parquet that is there already: schema, and row groups of its files. It needs pyarrow, but no Spark.

python -m bowstring.petastorm.etl.petastorm_generate_metadata --dataset_url file:///data/photos --unischema_class mine.PhotoSchema
"""

from __future__ import annotations

import argparse
import pydoc
from collections.abc import Sequence
from typing import Any

from bowstring.petastorm import _document, _options
from bowstring.petastorm.errors import PetastormMetadataError
from bowstring.petastorm.etl._footer import SCHEMA_KEY, Folder
from bowstring.petastorm.etl.dataset_metadata import get_schema_from_dataset_url
from bowstring.petastorm.unischema import Unischema

__all__ = ["generate_petastorm_metadata", "main"]


def generate_petastorm_metadata(
    spark: Any,
    dataset_url: str,
    unischema_class: str | None = None,
    use_summary_metadata: bool = False,
    hdfs_driver: str = "libhdfs3",
) -> None:
    """Rewrites ``_common_metadata``: schema and row groups. Other entries stay, and row-group indexes if the files are the same.

    :param spark: without effect; may be ``None``. It is not stopped, as Petastorm does.
    :param dataset_url: URL of the dataset.
    :param unischema_class: full name of a :class:`Unischema`, such as ``package.module.Schema``; the dataset's own by default.
    :param use_summary_metadata: without effect: row groups are counted in the files' footers.
    :param hdfs_driver: deprecated, without effect.
    """
    if use_summary_metadata:
        _options.renamed("use_summary_metadata", "row groups are counted in the files' footers; leave it out")
    schema = _located(unischema_class) if unischema_class else _stored(dataset_url, hdfs_driver)
    Folder(dataset_url).describe({SCHEMA_KEY: _document.metadata(schema)})


def _located(name: str) -> Unischema:
    schema = pydoc.locate(name)
    if not isinstance(schema, Unischema):
        raise ValueError(f"{name} is {type(schema).__name__}, not a Unischema of bowstring.petastorm")
    return schema


def _stored(url: str, hdfs_driver: str) -> Unischema:
    try:
        return get_schema_from_dataset_url(url, hdfs_driver=hdfs_driver)
    except PetastormMetadataError as error:
        raise ValueError(f"{url} has no schema of Petastorm's: name one with unischema_class") from error


def _main(args: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(prog="petastorm_generate_metadata", description=__doc__)
    parser.add_argument("--dataset_url", required=True, help="URL of the dataset")
    parser.add_argument("--unischema_class", help="full name of a Unischema; the dataset's own by default")
    parser.add_argument("--use-summary-metadata", action="store_true", help="without effect")
    for name in ("--master", "--spark-driver-memory", "--hdfs-driver"):
        parser.add_argument(name, help="without effect: there is no Spark here")
    found = parser.parse_args(args)
    generate_petastorm_metadata(None, found.dataset_url, found.unischema_class, found.use_summary_metadata)


def main() -> None:
    """The command."""
    _main(None)


if __name__ == "__main__":
    main()
