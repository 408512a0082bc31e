"""Petastorm's loaders for PyTorch: batches of tensors from a reader.

``bowstring.torch.DataLoader`` is the native form: it makes batches in Rust, shuffles rows over the whole dataset and resumes.
"""

from __future__ import annotations

import decimal
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data.dataloader import default_collate

from bowstring.petastorm._shuffling import BatchQueue, BatchShuffle, ColumnShuffle, RowQueue, RowShuffle
from bowstring.ranges import MOST, whole

__all__ = ["BatchedDataLoader", "DataLoader", "InMemBatchedDataLoader", "LoaderBase", "decimal_friendly_collate"]

_LOG = logging.getLogger(__name__)
L = TypeVar("L", bound="LoaderBase")

# Element types that torch lacked, and the next larger ones that Petastorm used instead.
_PROMOTED = {np.dtype("uint16"): np.int32, np.dtype("uint32"): np.int64, np.dtype("bool"): np.uint8}


def _sanitized(row: Mapping[str, Any]) -> dict[str, Any]:
    """Values that torch accepts: unsigned and boolean ones promoted, :class:`TypeError` for strings and nulls."""
    return {name: _promoted(name, value) for name, value in row.items()}


def _promoted(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "SUO":
            raise TypeError(
                f"field {name} is an array of {value.dtype}, which torch has not: leave it out or transform it"
            )
        wider = _PROMOTED.get(value.dtype)
        return value if wider is None else value.astype(wider)
    if value is None:
        raise TypeError(f"field {name} is None, which torch has not: fill it with a TransformSpec, or drop such rows")
    return np.uint8(value) if isinstance(value, np.bool_) else value


def decimal_friendly_collate(batch: Sequence[Any]) -> Any:
    """torch's ``default_collate``, but decimals and strings stay lists."""
    first = batch[0]
    if isinstance(first, (decimal.Decimal, str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return {key: decimal_friendly_collate([row[key] for row in batch]) for key in first}
    if isinstance(first, Sequence):
        return [decimal_friendly_collate(values) for values in zip(*batch, strict=True)]
    if isinstance(first, (np.number, np.bool_)) or (isinstance(first, np.ndarray) and _alike(batch)):
        # The same tensors that default_collate makes, without a tensor for each row.
        return torch.from_numpy(np.stack(batch) if isinstance(first, np.ndarray) else np.array(batch))
    return default_collate(list(batch))


def _alike(batch: Sequence[Any]) -> bool:
    first = batch[0]
    return first.dtype.kind in "biuf" and all(
        isinstance(value, np.ndarray) and value.dtype == first.dtype and value.shape == first.shape for value in batch
    )


class LoaderBase(ABC):
    """Shared by loaders over a reader: one pass at a time, and a new pass resets the reader."""

    reader: Any

    def __init__(self) -> None:
        self._in_iter: bool | None = None
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._error is not None:
            raise RuntimeError(f"the last pass failed with {self._error!r}; make a new reader and loader")
        if self._in_iter:
            raise RuntimeError(
                "You must finish a full pass of Petastorm DataLoader before making another pass from the beginning: "
                "a pass is under way; finish it, or make a new reader and loader"
            )
        if self._in_iter is not None:
            self.reader.reset()
            _LOG.warning("a new pass over the loader resets its reader; num_epochs of the reader is faster")
        self._in_iter = True
        try:
            yield from self._iter_impl()
        except Exception as error:
            self._error = error
            _LOG.error("the pass over the loader failed: %r", error)
            raise
        finally:
            self._in_iter = False

    @abstractmethod
    def _iter_impl(self) -> Iterator[Any]:
        """One pass."""

    def __enter__(self: L) -> L:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.reader.stop()
        self.reader.join()


class DataLoader(LoaderBase):
    """Collates rows to batches; the last one may be smaller.

    :param reader: a reader of either kind.
    :param batch_size: rows per batch.
    :param collate_fn: makes a batch of a list of rows, which are dictionaries.
    :param shuffling_queue_capacity: rows to draw from; 0 keeps the reader's order.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int = 1,
        collate_fn: Callable[[list[Any]], Any] = decimal_friendly_collate,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        super().__init__()
        self.reader = reader
        self.batch_size = whole("batch_size", batch_size, 1)
        self.collate_fn = collate_fn
        self.shuffling_queue_capacity = whole("shuffling_queue_capacity", shuffling_queue_capacity)

    def _iter_impl(self) -> Iterator[Any]:
        capacity = self.shuffling_queue_capacity
        if self.reader.batched_output and self.collate_fn is decimal_friendly_collate:
            # The reader's arrays are sliced or drawn from, without making rows.
            columns: BatchQueue | ColumnShuffle = BatchQueue(self.batch_size, _collated)
            if capacity > 0:
                columns = ColumnShuffle(capacity, self.batch_size, _collated)
            yield from _batches((_sanitized(sample._asdict()) for sample in self.reader), columns)
            return
        rows = RowShuffle(capacity) if capacity > 0 else RowQueue()
        batch: list[Any] = []
        for sample in self.reader:
            row = _sanitized(sample._asdict())
            rows.add(_rows_of(row) if self.reader.batched_output else (row,))
            yield from self._full(rows, batch, ended=False)
        yield from self._full(rows, batch, ended=True)
        if batch:
            yield self.collate_fn(batch)

    def _full(self, rows: RowQueue | RowShuffle, batch: list[Any], *, ended: bool) -> Iterator[Any]:
        while taken := rows.take(self.batch_size - len(batch), ended=ended):
            batch += taken
            if len(batch) == self.batch_size:
                yield self.collate_fn(batch.copy())
                batch.clear()


def _batches(
    blocks: Iterable[Mapping[str, Any]], rows: BatchQueue | BatchShuffle | ColumnShuffle
) -> Iterator[dict[str, Any]]:
    """Batches by field from blocks by field."""
    names: list[str] = []
    for block in blocks:
        # Readers of a mixture may have their fields in another order.
        names = names or list(block)
        rows.add([block[name] for name in names])
        while rows.ready(ended=False):
            yield dict(zip(names, rows.take(), strict=True))
    while rows.ready(ended=True):
        yield dict(zip(names, rows.take(), strict=True))


def _collated(pieces: Sequence[Any]) -> Any:
    """Pieces of one field's rows as a tensor with its own memory, like :func:`decimal_friendly_collate` of the rows."""
    if len({piece.shape[1:] for piece in pieces}) > 1:
        return decimal_friendly_collate([row for piece in pieces for row in piece])
    # A copy, whose bytes are in this machine's order.
    values = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))


def _rows_of(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    names = list(columns)
    return (dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True))


class BatchedDataLoader(LoaderBase):
    """Batches without single rows: tensors are sliced, joined and shuffled as a whole.

    :param reader: a reader of either kind.
    :param batch_size: rows per batch; the last one may be smaller.
    :param transform_fn: makes a tensor of an array with one entry per row; ``torch.as_tensor`` by default.
    :param shuffling_queue_capacity: rows to draw from; 0 keeps the reader's order.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        super().__init__()
        self.reader = reader
        self.batch_size = whole("batch_size", batch_size, 1)
        self.transform_fn = transform_fn or torch.as_tensor
        self.shuffling_queue_capacity = whole("shuffling_queue_capacity", shuffling_queue_capacity)

    def _iter_impl(self) -> Iterator[dict[str, Any]]:
        rows: BatchQueue | BatchShuffle = BatchQueue(self.batch_size)
        if self.shuffling_queue_capacity > 0:
            rows = BatchShuffle(self.shuffling_queue_capacity, self.batch_size)
        blocks = _blocks(self.reader, self.transform_fn, rows.missing)
        yield from _batches(
            ({name: torch.as_tensor(column) for name, column in block.items()} for block in blocks), rows
        )


def _blocks(reader: Any, transform: Callable[[Any], Any], missing: Callable[[], int]) -> Iterator[dict[str, Any]]:
    """The reader's items as tensors by field; single rows in groups as large as the next batch needs."""
    if reader.batched_output:
        for sample in reader:
            yield {name: transform(values) for name, values in _sanitized(sample._asdict()).items()}
        return
    rows: list[dict[str, Any]] = []
    for sample in reader:
        rows.append(_sanitized(sample._asdict()))
        if len(rows) >= missing():
            yield _block(rows, transform)
            rows = []
    if rows:
        yield _block(rows, transform)


def _block(rows: Sequence[Mapping[str, Any]], transform: Callable[[Any], Any]) -> dict[str, Any]:
    if transform is not torch.as_tensor:
        # The user's function sees lists of one value, as with Petastorm.
        return {name: torch.cat([torch.as_tensor(transform([row[name]])) for row in rows]) for name in rows[0]}
    return {name: _tensor(name, [row[name] for row in rows]) for name in rows[0]}


def _tensor(name: str, values: Sequence[Any]) -> Any:
    if isinstance(values[0], np.ndarray):
        if len({value.shape for value in values}) > 1:
            raise RuntimeError(f"field {name} has arrays of several shapes, which do not make one tensor")
        return torch.from_numpy(np.stack(values))
    array = np.array(values)
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"field {name} holds {type(values[0]).__name__}, which torch has not: leave it out or transform it"
        )
    return torch.from_numpy(array)


class InMemBatchedDataLoader:
    """Batches of the first rows of a reader, which are held in memory over all epochs.

    :param reader: a reader of either kind; it is stopped once the rows are loaded.
    :param batch_size: rows per batch; the last one of an epoch may be smaller.
    :param transform_fn: makes a tensor of an array with one entry per row; ``torch.as_tensor`` by default.
    :param num_epochs: number of passes over the rows.
    :param seed: of the order; each epoch has its own.
    :param rows_capacity: most rows to load.
    :param shuffle: random order.
    """

    def __init__(
        self,
        reader: Any,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        num_epochs: int = 1,
        seed: int = 0,
        rows_capacity: int = 1024,
        shuffle: bool = False,
    ) -> None:
        self._batch_size = whole("batch_size", batch_size, 1)
        self._num_epochs = whole("num_epochs", num_epochs)
        self._seed = whole("seed", seed, -MOST - 1, 2 * MOST + 1)
        self._shuffle = shuffle
        self._in_iter = False
        self._columns = _loaded(reader, transform_fn or torch.as_tensor, whole("rows_capacity", rows_capacity, 1))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._in_iter:
            raise RuntimeError(
                "InMemBatchedDataLoader couldn't be used multiple times: give num_epochs for more passes over the rows"
            )
        self._in_iter = True
        rows = len(next(iter(self._columns.values()), ()))
        for epoch in range(self._num_epochs):
            if self._shuffle:
                generator = torch.Generator()
                generator.manual_seed(self._seed + epoch)
                order = torch.randperm(rows, generator=generator)
            else:
                order = torch.arange(rows)
            for start in range(0, rows, self._batch_size):
                some = order[start : start + self._batch_size]
                yield {name: column[some] for name, column in self._columns.items()}

    def __enter__(self) -> InMemBatchedDataLoader:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        pass


def _loaded(reader: Any, transform: Callable[[Any], Any], capacity: int) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    rows = 0

    def missing() -> int:
        return capacity - rows

    for block in _blocks(reader, transform, missing):
        parts.append(block)
        rows += len(next(iter(block.values()), ()))
        if rows >= capacity:
            break
    reader.stop()
    reader.join()
    names = list(parts[0]) if parts else []
    return {name: torch.cat([torch.as_tensor(part[name]) for part in parts])[:capacity] for name in names}
