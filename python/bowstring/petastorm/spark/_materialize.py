"""A Spark data frame as Parquet in a cache directory or in a server, once per frame and settings."""

from __future__ import annotations

import atexit
import datetime
import logging
import os
import shutil
import threading
import urllib.parse
import uuid
from collections.abc import Callable
from typing import Any

from bowstring import paths
from bowstring.errors import UnsupportedError
from bowstring.options import is_server
from bowstring.petastorm._lazy import needed
from bowstring.petastorm.spark import _served, _sources

__all__ = ["cached", "forget", "register_delete_dir_handler"]

_LOG = logging.getLogger(__name__)
_lock = threading.Lock()
# Settings and hash of a frame -> frames with that hash, each with what it reads and the directory that holds it.
_known: dict[tuple[Any, ...], list[tuple[Any, _sources.State | None, str]]] = {}


def _delete(url: str) -> None:
    # Not decoded: Hadoop takes the URL of a directory to write to as it stands.
    path = paths.local_path(url)
    if path is not None:
        if os.path.exists(path):
            shutil.rmtree(path)
        return
    if is_server(url):
        _served.delete(url)
        return
    spark = needed("pyspark.sql", "make_spark_converter()").SparkSession.builder.getOrCreate()
    if not hasattr(spark, "_jvm"):
        raise UnsupportedError(
            f"{url} was not deleted: that needs Hadoop's file systems, which Spark Connect does not give its clients; "
            "delete it yourself, in a function given to register_delete_dir_handler()"
        )
    at = spark._jvm.org.apache.hadoop.fs.Path(url)
    at.getFileSystem(spark._jsc.hadoopConfiguration()).delete(at, True)


_handler: Callable[[str], None] = _delete


def register_delete_dir_handler(handler: Callable[[str], None] | None) -> None:
    """Sets the function that deletes a cache directory by its URL; ``None`` for the default one."""
    global _handler
    _handler = handler or _delete


def _delete_at_exit(url: str, process: int) -> None:
    if process != os.getpid():
        return  # a forked child
    if all(url != known for held in _known.values() for _, _, known in held):
        return  # deleted before
    try:
        _handler(url)
    except Exception as error:
        _LOG.warning("cache directory %s was not deleted: %r", url, error)


def cached(frame: Any, parent: str, row_group_bytes: int, codec: str, dtype: str | None) -> str:
    """URL of the directory that holds ``frame``; it is written unless it exists, and deleted at exit."""
    with _lock:
        parent = parent.rstrip("/")
        # Planned anew: a frame keeps its first plan, whatever was cached or written since then.
        frame = frame.select("*")
        # Equal plans have equal hashes, but other plans may have the same hash.
        # Plans are equal to Spark whatever their columns are called.
        key = (frame.semanticHash(), frame.schema.json(), parent, row_group_bytes, codec, dtype)
        try:
            state = _sources.state(frame)
        except _sources.UnknownError as error:
            state = None
            _LOG.info("a data frame is stored anew, whether or not it was stored before: %s", error)
        for known, had, url in _known.get(key, ()):
            same = state is not None and state == had
            if same and known.sparkSession is frame.sparkSession and frame.sameSemantics(known):
                return url
        url = _written(_in_precision(_without_vectors(frame, dtype), dtype), parent, row_group_bytes, codec)
        _known.setdefault(key, []).append((frame, state, url))
        return url


def forget(url: str) -> None:
    """Deletes a directory."""
    with _lock:
        for key, held in list(_known.items()):
            held[:] = [one for one in held if one[-1] != url]
            if not held:
                del _known[key]
    _handler(url)


def _written(frame: Any, parent: str, row_group_bytes: int, codec: str) -> str:
    if not urllib.parse.urlparse(parent).scheme:
        raise ValueError(f"cache directory {parent!r} has no scheme: write file://{parent} for a local one")
    paths.local_path(parent)  # refuses a path that would mean another directory when it is deleted
    application = getattr(getattr(frame.sparkSession, "sparkContext", None), "applicationId", "connect")
    stamp = datetime.datetime.now().strftime("%Y%m%d%H%M%S")
    # Named as in Petastorm, so that directories left behind show their owner.
    url = f"{parent}/{stamp}-appid-{application}-{uuid.uuid4()}"
    if is_server(url):
        _served.write(frame, url)
        atexit.register(_delete_at_exit, url, os.getpid())
        return url
    frame.write.option("compression", codec).option("parquet.block.size", row_group_bytes).parquet(url)
    atexit.register(_delete_at_exit, url, os.getpid())
    return url


def _quoted(name: str) -> str:
    """A column's name for Spark, which takes dots for the way into a structure."""
    return "`" + name.replace("`", "``") + "`"


def _without_vectors(frame: Any, dtype: str | None) -> Any:
    """Vector columns of Spark's two machine-learning libraries as arrays."""
    for field in frame.schema:
        if type(field.dataType).__name__ == "VectorUDT":
            functions = needed("pyspark.ml.functions", "a column of vectors")
            frame = frame.withColumn(
                field.name, functions.vector_to_array(frame[_quoted(field.name)], dtype or "float64")
            )
    return frame


def _in_precision(frame: Any, dtype: str | None) -> Any:
    """Floats, and arrays of them, in one precision."""
    if dtype is None:
        return frame
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be None, 'float32' or 'float64', got {dtype!r}")
    old, new = ("double", "float") if dtype == "float32" else ("float", "double")
    for field in frame.schema:
        kind = field.dataType.simpleString()
        if kind in (old, f"array<{old}>"):
            frame = frame.withColumn(field.name, frame[_quoted(field.name)].cast(kind.replace(old, new)))
    return frame
