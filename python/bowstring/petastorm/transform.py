"""User functions over rows, and their effect on the schema."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from bowstring.petastorm.unischema import Unischema, UnischemaField

__all__ = ["TransformSpec", "edit_field", "transform_schema"]


def edit_field(
    name: str, numpy_dtype: Any, shape: tuple[int | None, ...], nullable: bool = False
) -> tuple[str, Any, tuple[int | None, ...], bool]:
    """One entry of ``edit_fields``."""
    return name, numpy_dtype, shape, nullable


class TransformSpec:
    """A function on loaded data, and its effect on the schema.

    With ``make_reader`` the function takes and returns a row as a dictionary; with ``make_batch_reader`` a ``pandas.DataFrame``
    of a row group. Without a function, fields are only removed or selected.

    :param func: the function, called on threads of the reader; a process pool does not exist.
    :param edit_fields: ``(name, numpy_dtype, shape, nullable)``, or a :class:`UnischemaField`, of each field that it adds or edits.
    :param removed_fields: names of fields that the result lacks.
    :param selected_fields: names of the fields of the result, in this order; not together with ``removed_fields``.
    """

    def __init__(
        self,
        func: Callable[[Any], Any] | None = None,
        edit_fields: Sequence[tuple[str, Any, tuple[int | None, ...], bool] | UnischemaField] | None = None,
        removed_fields: Sequence[str] | None = None,
        selected_fields: Sequence[str] | None = None,
    ) -> None:
        if removed_fields is not None and selected_fields is not None:
            raise ValueError("give removed_fields or selected_fields, not both")
        self.func = func
        self.edit_fields = edit_fields or []
        self.removed_fields = removed_fields or []
        self.selected_fields = selected_fields


def transform_schema(schema: Unischema, transform_spec: TransformSpec) -> Unischema:
    """The schema after the transform: untouched fields, then edited ones; or those selected, in that order."""
    removed = set(transform_spec.removed_fields)
    _warn_unknown("removed_fields", removed - schema.fields.keys())
    gone = removed | {field[0] for field in transform_spec.edit_fields}
    fields = [field for name, field in schema.fields.items() if name not in gone]
    fields += map(_edited, transform_spec.edit_fields)
    if transform_spec.selected_fields is not None:
        by_name = {field.name: field for field in fields}
        _warn_unknown("selected_fields", set(transform_spec.selected_fields) - by_name.keys())
        fields = [by_name[name] for name in transform_spec.selected_fields if name in by_name]
    return Unischema(f"{schema._name}_transformed", fields)


def _edited(field: Any) -> UnischemaField:
    """An entry of ``edit_fields``; values that a function made have no codec."""
    name, numpy_dtype, shape, *rest = field
    # A UnischemaField has its codec in fourth place.
    return UnischemaField(name, numpy_dtype, shape, None, bool(rest[-1]))


def _warn_unknown(option: str, names: set[str]) -> None:
    if names:
        warnings.warn(
            f"{option}: these are not part of the schema, and are ignored: {', '.join(sorted(names))}", stacklevel=3
        )
