"""Spark and bowstring: a data source, data frames to training ranks without files, barrier gangs, inference.

* :func:`register`: ``df.write.format("bowstring")`` and ``spark.read.format("bowstring")``, to and from servers and directories.
* :func:`serve`: a data frame to training ranks, straight from the executors' memory.
* :func:`gang`: rank, peers and GPUs of a barrier task.
* :func:`predict`: a model over a data frame.
* :func:`convert`: ``bowstring.convert`` on executors: a dataset or a data frame into any format.

PySpark is imported when one of them is called. ``docs/spark.md`` is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bowstring.spark.barrier import SparkGang, gang
    from bowstring.spark.conversion import convert
    from bowstring.spark.handle import Handle, serve
    from bowstring.spark.inference import predict
    from bowstring.spark.ranks import RankLoader, connect
    from bowstring.spark.source import register

__all__ = ["Handle", "RankLoader", "SparkGang", "connect", "convert", "gang", "predict", "register", "serve"]

_HOMES = {
    "Handle": "handle",
    "RankLoader": "ranks",
    "SparkGang": "barrier",
    "connect": "ranks",
    "convert": "conversion",
    "gang": "barrier",
    "predict": "inference",
    "register": "source",
    "serve": "handle",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
