"""The null items of lists. A mask names only rows, so a row group that has any is read once more, with its nulls filled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bowstring import _native
from bowstring.errors import ClosedError, SourceChangedError

__all__ = ["FILL", "Holes", "Lists", "holed", "key", "null_lists"]

Array = npt.NDArray[Any]

FILL = 1
"""What nulls are filled with; below a mask they are zero."""


def key(name: str) -> str:
    """Where the mask of a column's null items is, among its row group's columns."""
    return f"{name}\0holes"


def null_lists(valid: Array | None, ends: Array) -> Array | None:
    """The mask of the lists that are not null, from that of those without nulls: a list with a null item has a length."""
    if valid is None:
        return None
    whole: Array = valid | (np.diff(ends) > 0)
    return None if whole.all() else whole


def holed(values: Array, holes: Array) -> Array:
    """A copy of ``values`` with nulls as pandas has them: NaN, which makes integers floats, NaT, or ``None``."""
    made: Array
    if values.dtype.kind in "iu":
        made = values.astype(np.float64)
    else:
        made = values.copy() if values.dtype.kind in "fM" else values.astype(object)
    nulls = {"f": np.nan, "M": np.datetime64("NaT")}
    made[holes] = nulls.get(made.dtype.kind)
    return made


class Lists(NamedTuple):
    """Lists of a piece, as a column with a mask has them."""

    values: Array
    ends: Array
    valid: Array


class Holes:
    """The null items of all lists of a source.

    :param opening: opens these columns of the same data, with nulls filled with :data:`FILL`, in the same pieces.
    """

    def __init__(self, opening: Callable[[Sequence[str]], _native.RowGroups]) -> None:
        self._opening = opening
        self._opened: Future[_native.RowGroups] = Future()
        """Cancelled if it is closed before it has opened."""
        self._opener: threading.Thread | None = None
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._last: tuple[int, int] | None = None
        """The row group and first row of the piece that was read last."""

    def of(
        self, names: Sequence[str], group: tuple[str, int, int], first: int, lists: Mapping[str, Lists]
    ) -> dict[str, Array]:
        """The masks of null items, by column, of the piece of ``group`` from row ``first`` on.

        :param names: the columns that may have any, which are read together.
        """
        opened = self._open(names)
        path, ordinal, _ = group
        # Not by the number in the source, which a file that was added meanwhile shifts.
        number = self._numbers.get(group)
        if number is None:
            raise _changed(path, ordinal)
        if self._last is None or self._last[0] != number or self._last[1] >= first:
            opened.start([number])
        # Not known while it reads: after an interrupt it starts again.
        self._last = None

        def masks(_: int, at: int, columns: Any) -> dict[str, Array | None]:
            # Pieces before it come to nothing.
            found = lists if at == first else {}
            return {name: _null_items(of, *_filled(name, columns)) for name, of in found.items()}

        while not (found := opened.next(masks)):
            if found is None:
                raise _changed(path, ordinal)
        self._last = number, first
        made = {name: mask for name, mask in found.items() if mask is not None}
        if other := next((name for name in found if name not in made), None):
            raise _changed(path, ordinal, other)
        return made

    def _open(self, names: Sequence[str]) -> _native.RowGroups:
        if self._opener is None and not self._opened.cancelled():
            # On a thread of its own, so that whoever closes this waits for no store.
            opener = threading.Thread(target=self._serve, args=(names,), name="bowstring-petastorm-holes")
            opener.start()
            self._opener = opener
        try:
            opened = self._opened.result()
        except CancelledError:
            raise ClosedError("the reader was closed") from None
        if not self._numbers:
            self._numbers = {group: number for number, group in enumerate(opened.groups)}
        return opened

    def _serve(self, names: Sequence[str]) -> None:
        try:
            opened = self._opening(names)
        except BaseException as error:
            failure = error
            _settle(lambda: self._opened.set_exception(failure))
            return
        if not _settle(lambda: self._opened.set_result(opened)):
            opened.close()

    def close(self) -> None:
        """Stops everything at once; what is about to open closes when it has."""
        if not self._opened.cancel() and self._opened.exception() is None:
            self._opened.result().close()


def _settle(settle: Callable[[], None]) -> bool:
    """False if it was cancelled, or is settled already."""
    try:
        settle()
    except InvalidStateError:
        return False
    return True


def _filled(name: str, columns: Any) -> tuple[Array, Array]:
    return columns[f"{name}__values"].numpy(), columns[f"{name}__offsets"].numpy()


def _null_items(lists: Lists, filled: Array, ends: Array) -> Array | None:
    """The mask of null items; ``None`` if ``filled`` are not the same lists."""
    lengths = np.diff(lists.ends)
    values = lists.values
    if not np.array_equal(lengths, np.diff(ends)) or values.shape != filled.shape:
        return None
    holes: Array = _each(values == 0) & _each(filled == FILL)
    same = values == filled
    if values.dtype.kind in "fM":
        same |= (values != values) & (filled != filled)  # NaN and NaT
    # A list with a null is masked, and no other is, but for null lists.
    before = np.concatenate([[0], np.cumsum(holes)])[lists.ends.astype(np.int64) - int(lists.ends[0])]
    agree = np.array_equal(np.diff(before) > 0, ~lists.valid & (lengths > 0))
    return holes if agree and (holes | _each(same)).all() else None


def _changed(path: str, ordinal: int, column: str | None = None) -> SourceChangedError:
    place = f"row group {ordinal}" if column is None else f"row group {ordinal}, column {column}"
    return SourceChangedError(
        f"file {path} changed during the run: {place}, read again for null items of lists, is not what it was; reopen the dataset "
        "to plan over the new data",
        file=path,
        row_group=ordinal,
        column=column,
    )


def _each(same: Array) -> Array:
    """One truth for each item; bytes of one length are rows of numbers."""
    return np.asarray(same.all(axis=1)) if same.ndim > 1 else same
