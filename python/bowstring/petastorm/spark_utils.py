"""A dataset as a Spark RDD of decoded rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bowstring.errors import UnsupportedError
from bowstring.petastorm.etl.dataset_metadata import get_schema_from_dataset_url
from bowstring.petastorm.unischema import UnischemaField
from bowstring.petastorm.utils import decode_row

__all__ = ["dataset_as_rdd"]


def dataset_as_rdd(
    dataset_url: str,
    spark_session: Any,
    schema_fields: Sequence[UnischemaField] | None = None,
    hdfs_driver: str = "libhdfs3",
) -> Any:
    """The rows of a dataset that Petastorm wrote, as named tuples.

    :param dataset_url: its URL.
    :param spark_session: a classic session; Spark Connect has no RDDs.
    :param schema_fields: fields to read; all by default.
    :param hdfs_driver: deprecated, without effect.
    """
    if not hasattr(spark_session, "_jsc"):
        raise UnsupportedError(
            "dataset_as_rdd needs a classic Spark session: Spark Connect has no RDDs; "
            "read the dataset with spark.read.parquet(), and decode rows in mapInArrow()"
        )
    schema = get_schema_from_dataset_url(dataset_url, hdfs_driver=hdfs_driver)
    frame = spark_session.read.parquet(dataset_url)
    if schema_fields is not None:
        schema = schema.create_schema_view(schema_fields)
        frame = frame.select(*(field.name for field in schema_fields))
    return frame.rdd.map(lambda row: schema.make_namedtuple(**decode_row(row.asDict(), schema)))
