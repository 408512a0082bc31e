"""The columns of a batch, known before the first one is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bowstring import _native, display

__all__ = ["Field", "Schema"]


@dataclass(frozen=True)
class Field:
    """One delivered column. It may be several arrays of the batch: see :attr:`names`."""

    name: str
    dtype: str | None
    """Element type of a tensor by NumPy's name; ``None`` for Arrow columns."""
    arrow: str | None
    """Arrow type of text, binary, lists of them, and columns named in ``arrow``. ``None`` for tensors."""
    dims: tuple[str | int | tuple[str, int], ...]
    """Axes: ``"batch"``, a length, ``"ragged"``, ``"sparse"``, ``"any"``, or ``("padded", length)``.

    ``"sparse"`` are the columns of a sparse matrix: as ``"ragged"``, and ``<name>__indices`` holds the column of each value.
    """
    unit: str | None
    """Unit of dates, times and durations, with the time zone if there is one: ``"us, UTC"``."""
    classes: tuple[str, ...] | None
    """Names of the classes that its integers stand for, if the dataset has them (Hugging Face's ``ClassLabel``)."""
    valid: bool
    """A mask ``<name>__valid`` comes with it."""
    names: tuple[str, ...]
    """Names of its arrays in a batch."""


class Schema(Mapping[str, Field]):
    """The columns of each batch by name. ``_mask`` of padded batches is not among them.

    >>> pyarrow.schema(loader.schema)  # doctest: +SKIP

    Arrow libraries read it as an Arrow schema with one field per column, as a server sends it: tensors of several axes are
    ``arrow.fixed_shape_tensor``, ragged columns large lists; a column with a mask is nullable. What :meth:`Batch.to_pyarrow`
    makes may have other types (booleans, masked packs) and more fields (``x__lengths``, ``x__indices``): to write batches, take
    the schema of the first one. ``str()`` gives one line per column.
    """

    def __init__(self, native: _native.Loader) -> None:
        self._native = native
        self._fields = {field["name"]: _field(field) for field in native.fields}

    def __getitem__(self, name: str) -> Field:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __arrow_c_schema__(self) -> Any:
        """The Arrow schema, as a PyCapsule."""
        return self._native.arrow_schema()

    def __str__(self) -> str:
        return self._native.schema

    def __repr__(self) -> str:
        return f"<bowstring.Schema: {self}>"

    def _table(self, caption: str, below: Iterable[str] = ()) -> str:
        """The columns as an HTML table under ``caption``; ``below`` as in ``display.table``."""
        header = ("name", "type", "axes", "unit", "mask", "arrays in a batch")
        return display.table(caption, header, [_row(field) for field in self.values()], below)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return self._table(f"bowstring.Schema of {len(self)} columns")


def _row(field: Field) -> tuple[str, ...]:
    def axis(dim: str | int | tuple[str, int]) -> str:
        return f"<={dim[1]}" if isinstance(dim, tuple) else "B" if dim == "batch" else str(dim)

    kind = field.dtype if field.dtype is not None else f"arrow {field.arrow}"
    axes = f"[{', '.join(map(axis, field.dims))}]"
    mask = f"{field.name}__valid" if field.valid else ""
    return field.name, kind, axes, field.unit or "", mask, ", ".join(field.names)


def _field(document: Mapping[str, Any]) -> Field:
    dims = tuple(("padded", dim["padded"]) if isinstance(dim, dict) else dim for dim in document["dims"])
    return Field(
        name=document["name"],
        dtype=document["dtype"],
        arrow=document["arrow"],
        dims=dims,
        unit=document["unit"],
        classes=None if document["classes"] is None else tuple(document["classes"]),
        valid=document["valid"],
        names=tuple(document["names"]),
    )
