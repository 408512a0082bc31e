"""Spark and bowstring: a data source, data frames to training ranks without files, barrier gangs, inference.

* :func:`register`: ``df.write.format("bowstring")`` and ``spark.read.format("bowstring")``, to and from servers and directories.
* :func:`serve`: a data frame to training ranks, straight from the executors' memory.
* :func:`gang`: rank, peers and GPUs of a barrier task.
* :func:`predict`: a model over a data frame.
* :func:`convert`: ``bowstring.convert`` on executors: a dataset or a data frame into any format.

PySpark is imported when one of them is called. ``docs/spark.md`` is the guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bowstring.lazily import named

if TYPE_CHECKING:
    from bowstring.spark.barrier import SparkGang, gang
    from bowstring.spark.conversion import convert
    from bowstring.spark.handle import Handle, serve
    from bowstring.spark.inference import predict
    from bowstring.spark.ranks import RankLoader, connect
    from bowstring.spark.source import register

__all__ = ["Handle", "RankLoader", "SparkGang", "connect", "convert", "gang", "predict", "register", "serve"]

_HOMES = {
    "Handle": "bowstring.spark.handle",
    "RankLoader": "bowstring.spark.ranks",
    "SparkGang": "bowstring.spark.barrier",
    "connect": "bowstring.spark.ranks",
    "convert": "bowstring.spark.conversion",
    "gang": "bowstring.spark.barrier",
    "predict": "bowstring.spark.inference",
    "register": "bowstring.spark.source",
    "serve": "bowstring.spark.handle",
}


def __getattr__(name: str) -> Any:
    return named(__name__, _HOMES, name)
