"""The shapes of a reader's output: rows, windows of rows, or one batch per row group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bowstring.petastorm._batches import Array, column_of, out_of_frame
from bowstring.petastorm._feed import Piece
from bowstring.petastorm._frames import frame_of, transformed
from bowstring.petastorm._options import Settings
from bowstring.petastorm._plan import part_rows
from bowstring.petastorm._source import Columns, Source
from bowstring.petastorm._values import values_of
from bowstring.petastorm.codecs import CompressedImageCodec
from bowstring.petastorm.ngram import NGram
from bowstring.petastorm.predicates import PredicateBase, in_intersection, in_pseudorandom_split, in_set, mask_of
from bowstring.petastorm.unischema import Unischema, UnischemaField

__all__ = ["BatchShape", "RowShape", "Shape"]

# Rows of a row group made at once, unless all are needed: scalars, arrays, images. While one piece is converted to
# rows, and goes through the user's functions, the next ones are decoded; and small pieces reuse memory.
_ROWS, _ARRAYS, _IMAGES = 1024, 256, 16


class Shape(ABC):
    """Conversion of row groups to the reader's samples."""

    def __init__(self, stored: Unischema, schema: Unischema, settings: Settings) -> None:
        self.stored = stored
        self.schema = schema
        self.settings = settings
        self.fields: list[UnischemaField] = list(stored.fields.values())
        """Columns to read."""
        self.calls_user = settings.transform is not None and settings.transform.func is not None
        self.max_rows: int | None = None
        """Most rows at once; ``None`` if whole row groups are needed."""
        # Parts of one row group must share an order, or rows would be lost; without a seed it is drawn here.
        self._salt = int(np.random.RandomState().randint(1 << 31))
        self._running = np.random.RandomState(settings.seed)

    @abstractmethod
    def convert(self, source: Source, columns: Columns) -> dict[str, Any]:
        """Columns as this package's own values, by field."""

    @abstractmethod
    def mask(self, predicate: PredicateBase, source: Source, columns: Columns, made: dict[str, Any]) -> Sequence[bool]:
        """Mask of the rows that the predicate accepts; ``made`` is what :meth:`convert` made of ``columns``."""

    @abstractmethod
    def finish(self, piece: Piece[dict[str, Any]]) -> deque[Any]:
        """Rows or batches to yield."""

    def ordered(self, piece: Piece[Any]) -> Piece[Any]:
        """The piece with the order of its rows, if that is random.

        It is drawn here, piece after piece as they are read: on the threads of :meth:`finish` the draws would overtake each other.
        """
        if not self.settings.shuffle_rows:
            return piece
        return replace(piece, order=self._order(piece.group, len(next(iter(piece.data.values()), ()))))

    def taken(self, piece: Piece[Any], rows: int, overlap: int = 0) -> Array | None:
        """Rows to yield, in order; ``None`` for all in file order."""
        settings = self.settings
        order: Array | None = piece.order
        if settings.parts > 1:
            first, end = part_rows(rows, piece.part, settings.parts, overlap)
            order = (np.arange(rows) if order is None else order)[first:end]
        if piece.mask is not None:
            mask = np.asarray(piece.mask, dtype=bool)
            order = np.flatnonzero(mask) if order is None else order[mask[order]]
        return order

    def _order(self, group: int, rows: int) -> Array:
        seed = self.settings.seed
        if self.settings.parts > 1 and (seed is None or self.settings.batched):
            return np.random.RandomState([self._salt if seed is None else seed, group]).permutation(rows)
        if self.settings.batched:
            return self._running.permutation(rows)
        return np.random.RandomState(seed).permutation(rows)


class RowShape(Shape):
    """Named tuples, or windows of them."""

    def __init__(
        self, stored: Unischema, schema: Unischema, settings: Settings, ngram: NGram | None, full: Unischema
    ) -> None:
        super().__init__(stored, schema, settings)
        self.ngram = ngram
        whole = ngram is not None or settings.shuffle_rows or settings.parts > 1 or bool(settings.predicate)
        self.max_rows = None if whole else self._at_once()
        self._times = ngram.timestamp_name if ngram is not None else ""
        if ngram is not None:
            # Read the time even if no offset requests it.
            if self._times not in stored.fields:
                self.fields.append(full.fields[self._times])
            self._schemas = {at: ngram.get_schema_at_timestep(schema, at) for at in ngram.offsets()}

    def _at_once(self) -> int:
        if any(isinstance(field.codec, CompressedImageCodec) for field in self.fields):
            return _IMAGES
        return _ARRAYS if any(field.shape for field in self.fields) else _ROWS

    def convert(self, source: Source, columns: Columns) -> dict[str, list[Any]]:
        return {field.name: values_of(field, columns, source.units.get(field.name)) for field in source.fields}

    def mask(self, predicate: PredicateBase, source: Source, columns: Columns, made: dict[str, Any]) -> Sequence[bool]:
        return mask_of(predicate, {name: made[name] for name in predicate.get_fields()})

    def finish(self, piece: Piece[dict[str, Any]]) -> deque[Any]:
        columns = piece.data
        rows = len(next(iter(columns.values()), ()))
        taken = self.taken(piece, rows, self.ngram.length - 1 if self.ngram is not None else 0)
        if taken is not None:
            wanted = taken.tolist()
            columns = {name: [values[row] for row in wanted] for name, values in columns.items()}
        if self.settings.transform is not None:
            columns = self._transformed(columns)
        if self.ngram is not None:
            return self._windows(columns, self.ngram)
        make = self.schema._get_namedtuple()._make
        names = list(self.schema.fields)
        if not names:
            return deque(make(()) for _ in range(rows if taken is None else len(taken)))
        return deque(map(make, zip(*(columns[name] for name in names), strict=True)))

    def _transformed(self, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        spec = self.settings.transform
        assert spec is not None
        if spec.func is None:
            return columns
        names = list(columns)
        rows = [spec.func(dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]
        wanted = list(self.schema.fields)
        if self.ngram is not None and self._times not in self.schema.fields:
            wanted.append(self._times)
        if rows:
            extra = rows[0].keys() - self.schema.fields.keys() - set(spec.removed_fields) - {self._times}
            if extra and spec.selected_fields is None:
                raise TypeError(
                    f"the transform returned {', '.join(sorted(extra))}, which its schema lacks: name them in edit_fields"
                )
        try:
            return {name: [row[name] for row in rows] for name in wanted}
        except KeyError as error:
            raise TypeError(
                f"the transform returned a row without {error}: name what it removes in removed_fields"
            ) from error

    def _windows(self, columns: dict[str, list[Any]], ngram: NGram) -> deque[Any]:
        starts = ngram.starts(columns[self._times])
        base = ngram.offsets().start
        # One list of rows per offset; windows only point into them.
        rows: dict[int, list[Any]] = {}
        for offset, schema in self._schemas.items():
            make, names = schema._get_namedtuple()._make, list(schema.fields)
            if names:
                at = [start + offset - base for start in starts]
                picked = ([columns[name][row] for row in at] for name in names)
                rows[offset] = list(map(make, zip(*picked, strict=True)))
            else:
                rows[offset] = [make(())] * len(starts)
        offsets = list(rows)
        return deque(dict(zip(offsets, window, strict=True)) for window in zip(*rows.values(), strict=True))


class BatchShape(Shape):
    """One named tuple of arrays."""

    def convert(self, source: Source, columns: Columns) -> dict[str, Array]:
        # Functions of predicates get the nulls of text and lists as they are in a data frame too.
        framed = self._asked() if self.settings.transform is None else {field.name for field in source.fields}
        return {
            field.name: column_of(field, columns, source.units.get(field.name), frame=field.name in framed)
            for field in source.fields
        }

    def _asked(self) -> frozenset[str]:
        """Names of the columns that the predicate is asked with."""
        predicate = self.settings.predicate
        return frozenset(predicate.get_fields()) if predicate else frozenset()

    def mask(self, predicate: PredicateBase, source: Source, columns: Columns, made: dict[str, Any]) -> Sequence[bool]:
        fields = {field.name: field for field in source.fields}

        def values(name: str) -> Sequence[Any]:
            # Integers of a row group with nulls are floats in a frame: 7 would be another value than in the next one.
            if made[name].dtype.kind == "f" and np.dtype(fields[name].numpy_dtype).kind in "iu":
                return values_of(fields[name], columns, source.units.get(name))
            return list(made[name])

        return batch_mask(predicate, {name: made[name] for name in predicate.get_fields()}, values)

    def finish(self, piece: Piece[dict[str, Any]]) -> deque[Any]:
        columns = piece.data
        rows = len(next(iter(columns.values()), ()))
        taken = self.taken(piece, rows)
        if taken is not None:
            columns = {name: values.take(taken, axis=0) for name, values in columns.items()}
            rows = len(taken)
        if not rows:
            return deque()
        if self.settings.transform is not None:
            columns = transformed(frame_of(columns), self.settings.transform, self.schema)
            if not len(next(iter(columns.values()), (0,))):
                return deque()  # as with Petastorm
        elif self.settings.predicate:
            fields = self.schema.fields
            left = {name: out_of_frame(fields[name], columns[name]) for name in self._asked() if name in fields}
            columns = {**columns, **left}
        make = self.schema._get_namedtuple()._make
        return deque([make([columns[name] for name in self.schema.fields])])


def batch_mask(
    predicate: PredicateBase, columns: dict[str, Array], values: Callable[[str], Sequence[Any]]
) -> Sequence[bool]:
    """Mask of the rows of a batch that a predicate accepts. User functions get ``pandas.Series``, as with Petastorm.

    ``values`` gives the values of a field, row by row.
    """
    from bowstring.petastorm.predicates import in_negate, in_reduce

    # A subclass with a do_include of its own is the user's function.
    include = type(predicate).do_include
    if include in (in_set.do_include, in_intersection.do_include, in_pseudorandom_split.do_include):
        return mask_of(predicate, {name: values(name) for name in columns})
    if isinstance(predicate, in_negate) and include is in_negate.do_include:
        return [not included for included in batch_mask(predicate._predicate, columns, values)]
    if isinstance(predicate, in_reduce) and include is in_reduce.do_include:
        masks = [
            batch_mask(each, {name: columns[name] for name in each.get_fields()}, values)
            for each in predicate._predicate_list
        ]
        return [bool(predicate._reduce_func(list(row))) for row in zip(*masks, strict=True)]
    included = np.asarray(predicate.do_include(frame_of(columns)))
    if included.ndim == 0 or len(included) != len(next(iter(columns.values()))):
        raise TypeError(
            "with make_batch_reader the predicate's function gets pandas.Series and must return one truth per row"
        )
    return list(included.astype(bool).tolist())
