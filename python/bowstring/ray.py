"""A datasource for Ray Data: its read tasks are the ranks of one plan, so that together they read each row once.

>>> rows = bowstring.ray.read("clicks/*.parquet", columns=["user_*", "label"], filter="label >= 3")  # doctest: +SKIP

Within Ray Train a loader needs none of this: in a worker, it finds its rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import ReadTask
from ray.data.extensions import ArrowTensorArray

from bowstring import _native
from bowstring.arrays import Column, arrow, columns_of, numpy_array
from bowstring.base import BaseLoader
from bowstring.errors import ConfigError
from bowstring.options import Url, urls_of
from bowstring.ranges import whole

__all__ = ["Datasource", "read"]

# Options that would determine the rows of a task, or deliver something other than single rows.
_OURS = ("rank", "world_size", "gang", "global_batch_size", "tail", "drop_last", "ngram")


def read(url: Url | Sequence[Url], *, override_num_blocks: int | None = None, **options: Any) -> Any:
    """A ``ray.data.Dataset`` of the rows of ``url``.

    :param override_num_blocks: number of reading tasks; Ray's choice by default.
    :param options: those of :class:`Datasource`.
    """
    blocks = override_num_blocks
    blocks = None if blocks is None else whole("override_num_blocks", blocks, 1, (1 << 31) - 1)
    return ray.data.read_datasource(Datasource(url, **options), override_num_blocks=blocks)


class Datasource(ray.data.Datasource):  # type: ignore[misc]  # Ray's types are not looked at
    """For ``ray.data.read_datasource``: each row once, over any number of tasks, and over retries of a task.

    Tensors with several axes are Ray's tensor columns, ragged columns are lists. A task whose files are no longer those that were
    planned over fails with :class:`bowstring.MismatchError`, instead of reading other rows than its neighbours.

    :param url: as for :class:`bowstring.Loader`.
    :param batch_size: rows of a block.
    :param options: the other options of :class:`bowstring.Loader`, except those that assign rows, ``ngram`` and
        ``bad_rows="skip"``. ``bad_rows`` is ``error`` unless given, whatever a server's catalogue has.
        Each task has row groups of its own, unless ``shuffle=False`` requests file order, in which each reads its part of every
        row group. A task decodes in one thread unless ``threads`` is given.
    """

    def __init__(self, url: Url | Sequence[Url], *, batch_size: int = 4096, **options: Any) -> None:
        asked = {**options, "drop_last": options.get("drop_last") or None}
        for name in _OURS:
            if asked.get(name) is not None:
                raise ConfigError(f"option {name}: Ray's read tasks share the rows among themselves", option=name)
        # Always named: a server does not show its catalogue's choice, which may replace rows.
        bad_rows = options.get("bad_rows") or os.environ.get("BOWSTRING_BAD_ROWS") or "error"
        if bad_rows == "skip":
            problem = "skip replaces a bad row by another one, which Ray's read tasks deliver as well"
            raise ConfigError(f"option bad_rows: {problem}; use 'zero', or leave it as 'error'", option="bad_rows")
        self._url = urls_of(url)
        self._options = {"threads": 1, "tail": "pad", "batch_size": batch_size, **options, "bad_rows": bad_rows}

    def estimate_inmemory_data_size(self) -> int | None:
        """Unknown before decoding."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """A task for each rank of a world of ``parallelism``."""
        options = {**self._options, "world_size": parallelism}
        if options.get("shuffle") is not False:
            # As many lanes as tasks: then no two tasks read the same row group, except at the borders of their parts.
            options.setdefault("lanes", parallelism)
        with _Loader(self._url, **options, rank=0) as loader:
            _columns(loader)
            state, rows = loader.state_dict(), loader.rows
        batch = int(self._options["batch_size"])
        steps, rest = divmod(rows, batch * parallelism)
        tasks = []
        for rank in range(parallelism):
            own = steps * batch + rest // parallelism + (rank < rest % parallelism)
            metadata = BlockMetadata(num_rows=own, size_bytes=None, exec_stats=None, input_files=None)
            blocks = partial(_blocks, self._url, {**options, "rank": rank}, state)
            tasks.append(ReadTask(blocks, metadata, per_task_row_limit=per_task_row_limit))
        return tasks


class _Loader(BaseLoader[Any]):
    def _array(self, tensor: _native.Tensor) -> Any:
        return numpy_array(tensor)

    def _text(self, name: str, array: _native.ArrowArray) -> Any:
        # Ray's blocks are Arrow.
        return arrow(array)


def _blocks(url: Any, options: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[Any]:
    """The body of a read task."""
    with _Loader(url, **options) as loader:
        columns = _columns(loader)
        # Fails if this is not the plan of the other tasks.
        loader.load_state_dict(state)
        for batch in loader:
            block = _table(columns, batch)
            if block.num_rows:
                yield block


def _columns(loader: _Loader) -> list[Column]:
    """The loader's columns, unless they are of windows, by a server's catalogue or the environment."""
    columns = columns_of(loader._native)
    if any(len(column.leading) > 1 for column in columns):
        problem = "Ray's read tasks share single rows, and these are windows of rows"
        where = "look for it in the server's catalogue and in BOWSTRING_NGRAM"
        raise ConfigError(f"option ngram: {problem}; {where}", option="ngram")
    return columns


def _table(columns: Iterable[Column], batch: Mapping[str, Any]) -> Any:
    """The batch without the padding at its end."""
    import pyarrow

    rows = int(batch["_mask"].sum())
    found: dict[str, Any] = {}
    for column in columns:
        if column.name == "_mask":
            continue
        for part in column.parts:
            rest = part.removeprefix(column.name)
            if rest in ("__values", "__indices"):
                found[column.name if rest == "__values" else part] = _lists(column, batch, rows, part)
            elif not rest.startswith("__offsets"):
                value = batch[part]
                found[part] = _cells(value[:rows]) if column.arrow is None or rest else arrow(value)[:rows]
    return pyarrow.table(found)


def _lists(column: Column, batch: Mapping[str, Any], rows: int, part: str) -> Any:
    import pyarrow

    values = _cells(batch[part])
    for level in reversed(range(column.ragged)):
        offsets = batch[f"{column.name}__offsets_{level}" if level else f"{column.name}__offsets"]
        values = pyarrow.LargeListArray.from_arrays(offsets, values)
    return values[:rows]


def _cells(values: Any) -> Any:
    import pyarrow

    if values.dtype.name == "bfloat16":
        values = values.astype("float32")
    return pyarrow.array(values) if values.ndim == 1 else ArrowTensorArray.from_numpy(values)
