"""What a Spark data frame reads, as far as its plan says so surely: two frames with equal plans may read other rows."""

from __future__ import annotations

import os
import urllib.parse
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from bowstring import paths

__all__ = ["State", "UnknownError", "local_path", "state"]

# Files, each with its size, time and, in a store, its tag, and the cached data that stand for them.
State = frozenset[tuple[Any, ...]]

_PLANS = "org.apache.spark.sql.catalyst.plans.logical."
_EXECUTION = "org.apache.spark.sql.execution."
# Leaves whose rows are part of the plan, or of a part of the plan that is a leaf elsewhere.
_OWN_ROWS = {_PLANS + name for name in ("LocalRelation", "OneRowRelation", "Range", "CTERelationRef", "UnionLoopRef")}
_RDDS = {_EXECUTION + "LogicalRDD", _EXECUTION + "ExternalRDD"}
# Data that the driver or the executors hold.
_HELD = {"ParallelCollectionRDD", "LocalCheckpointRDD", "ReliableCheckpointRDD", "EmptyRDD"}
_HADOOP = "org.apache.hadoop.fs."
_FILES = _EXECUTION + "datasources.HadoopFsRelation"
# Spark's own lists of files. The files of a table format say nothing of its rows: a deletion may leave them all.
_LISTED = _EXECUTION + "datasources.InMemoryFileIndex"
_OF_CATALOG = _EXECUTION + "datasources.CatalogFileIndex"


class UnknownError(Exception):
    """The rows of a frame may change without a sign."""


def local_path(url: str) -> str | None:
    """The path of a ``file:`` URL as Spark names its files."""
    path = paths.local_path(url) if url.startswith("file:") else None
    return None if path is None else urllib.parse.unquote(path)


def state(frame: Any) -> State:
    """What a frame's rows depend on, beside its plan: equal plans with equal states give equal rows.

    Raises :class:`UnknownError` where a plan does not tell.
    """
    if not hasattr(frame, "_jdf"):
        raise UnknownError("Spark Connect does not show what a data frame reads")
    execution = frame._jdf.queryExecution()
    # The plan before optimization: an optimizer may replace a table by numbers that it finds in its metadata.
    files = {name for leaf in _leaves(execution.analyzed()) for name in _listed(leaf, prunes=True)}
    cached = set()
    for leaf in _leaves(execution.optimizedPlan()):
        if _class(leaf) == _EXECUTION + "columnar.InMemoryRelation":
            # The frame keeps the object, so that no other one gets its number.
            number = frame.sparkSession._jvm.java.lang.System.identityHashCode(leaf.cacheBuilder())
            cached.add(("cached", number))
        elif _class(leaf) == _EXECUTION + "datasources.LogicalRelation":
            files.update(_listed(leaf, prunes=False))
    local = {name for name in files if local_path(name) is not None}
    away = _stamped_away(frame.sparkSession, files - local) if files - local else []
    return frozenset(cached.union(map(_stamped, local), away))


def _class(value: Any) -> str:
    return str(value.getClass().getName())


def _items(sequence: Any) -> Iterator[Any]:
    """The items of a sequence of Scala."""
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _leaves(plan: Any) -> Iterator[Any]:
    """The leaves of a plan and of the queries in its expressions."""
    yield from _items(plan.collectLeaves())
    for query in _items(plan.subqueriesAll()):
        yield from _items(query.collectLeaves())


def _listed(leaf: Any, prunes: bool) -> list[str]:
    """The files of a leaf; none of a catalog's table if Spark still ``prunes`` its partitions."""
    kind = _class(leaf)
    if kind in _OWN_ROWS:
        return []
    if kind in _RDDS:
        _check_held(leaf.rdd())
        return []
    if kind != _EXECUTION + "datasources.LogicalRelation":
        raise UnknownError(f"the rows of a {kind} may change without a sign")
    relation = leaf.relation()
    if _class(relation) != _FILES:
        raise UnknownError(f"the rows of a {_class(relation)} may change without a sign")
    index = relation.location()
    if _class(index) not in (_LISTED, _OF_CATALOG):
        raise UnknownError(f"the files of a {_class(index)} do not tell which of their rows count")
    return [] if prunes and _class(index) == _OF_CATALOG else list(index.inputFiles())


def _check_held(rdd: Any) -> None:
    """Raises :class:`UnknownError` for an RDD that is made of other data than Spark holds."""
    seen, waiting = {rdd.id()}, [rdd]
    while waiting:
        one = waiting.pop()
        above = [dependency.rdd() for dependency in _items(one.dependencies())]
        if not above and _class(one).rpartition(".")[2] not in _HELD:
            raise UnknownError(f"the rows of a {_class(one)} may change without a sign")
        for other in above:
            if other.id() not in seen:
                seen.add(other.id())
                waiting.append(other)


def _unknown(name: str) -> UnknownError:
    return UnknownError(f"size and time of {name} are not known here")


def _stamped(name: str) -> tuple[str, int, int]:
    path = local_path(name)
    try:
        found = None if path is None else os.stat(path)
    except OSError:  # of another machine, or gone by now
        found = None
    if found is None:
        raise _unknown(name)
    return name, found.st_size, found.st_mtime_ns


def _stamped_away(spark: Any, names: Iterable[str]) -> list[tuple[Any, ...]]:
    """Files of HDFS and of stores, as Hadoop's file systems list them now."""
    from py4j.java_gateway import is_instance_of
    from py4j.protocol import Py4JError

    jvm = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    tagged = f"{_HADOOP}EtagSource"

    def tag(status: Any) -> str | None:
        try:
            if not is_instance_of(spark.sparkContext._gateway, status, tagged):
                return None
            found = status.getEtag()
            return None if found is None else str(found)
        except Py4JError:  # older than Hadoop 3.3.2
            return None

    def stamped(status: Any) -> tuple[Any, ...]:
        size, time, shown = status.getLen(), status.getModificationTime(), tag(status)
        # Whole seconds do not tell two files of one size that were written in the same one.
        if shown is None and time % 1000 == 0:
            raise _unknown(status.getPath().toUri().toString())
        return size, time, shown

    directories: dict[str, dict[str, Any]] = defaultdict(dict)
    for name in names:
        path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(name))
        directories[name.rpartition("/")[0]][path.getName()] = name, path
    found: list[tuple[Any, ...]] = []
    for wanted in directories.values():
        first, path = next(iter(wanted.values()))
        try:
            system = path.getFileSystem(conf)
            # One request lists many files.
            listed = [system.getFileStatus(path)] if len(wanted) == 1 else system.listStatus(path.getParent())
            statuses = {status.getPath().getName(): status for status in listed}
        except Py4JError as error:  # Hadoop does not have this file system here, or the directory is gone
            raise _unknown(first) from error
        for last, (name, _) in wanted.items():
            if last not in statuses:
                raise _unknown(name)
            found.append((name, *stamped(statuses[last])))
    return found
