"""What a Spark data frame reads, as far as its plan says so surely: two frames with equal plans may read other rows."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator
from typing import Any

from bowstring import paths

__all__ = ["State", "UnknownError", "local_path", "state"]

# Local files, each with its size and time, and the cached data that stand for them.
State = frozenset[tuple[Any, ...]]

_PLANS = "org.apache.spark.sql.catalyst.plans.logical."
_EXECUTION = "org.apache.spark.sql.execution."
# Leaves whose rows are part of the plan, or of a part of the plan that is a leaf elsewhere.
_OWN_ROWS = {_PLANS + name for name in ("LocalRelation", "OneRowRelation", "Range", "CTERelationRef", "UnionLoopRef")}
_RDDS = {_EXECUTION + "LogicalRDD", _EXECUTION + "ExternalRDD"}
# Data that the driver or the executors hold.
_HELD = {"ParallelCollectionRDD", "LocalCheckpointRDD", "ReliableCheckpointRDD", "EmptyRDD"}
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
    return frozenset(cached.union(map(_stamped, files)))


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


def _stamped(name: str) -> tuple[str, int, int]:
    path = local_path(name)
    try:
        found = None if path is None else os.stat(path)
    except OSError:  # of another machine, or gone by now
        found = None
    if found is None:
        raise UnknownError(f"size and time of {name} are not known here")
    return name, found.st_size, found.st_mtime_ns
