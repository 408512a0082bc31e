"""The two indexes that Petastorm stores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bowstring.petastorm.etl import RowGroupIndexerBase

__all__ = ["FieldNotNullIndexer", "SingleFieldIndexer"]


def _column(name: str, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    if not rows:
        raise ValueError(f"an index of {name} cannot be built from no rows")
    return [row[name] for row in rows]


def _same(one: Any, other: Any) -> None:
    if type(one) is not type(other):
        raise TypeError(f"a {type(other).__name__} cannot be added to a {type(one).__name__}")
    if one.column_names != other.column_names:
        raise ValueError(f"indexes of {one.column_names} and {other.column_names} cannot be added")


class _FieldIndexer(RowGroupIndexerBase):
    """An index of one field."""

    def __init__(self, index_name: str, index_field: str) -> None:
        self._index_name = index_name
        self._column_name = index_field

    @property
    def index_name(self) -> str:
        return self._index_name

    @property
    def column_names(self) -> list[str]:
        return [self._column_name]


class SingleFieldIndexer(_FieldIndexer):
    """The row groups of each value; of each element if the field is an array."""

    def __init__(self, index_name: str, index_field: str) -> None:
        super().__init__(index_name, index_field)
        self._index_data: defaultdict[Any, set[int]] = defaultdict(set)

    def __add__(self, other: SingleFieldIndexer) -> SingleFieldIndexer:
        _same(self, other)
        for value, groups in other._index_data.items():
            self._index_data[value].update(groups)
        return self

    @property
    def indexed_values(self) -> list[Any]:
        return list(self._index_data)

    def get_row_group_indexes(self, value_key: Any) -> set[int]:
        return self._index_data.get(value_key, set())

    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], piece_index: int) -> dict[Any, set[int]]:
        for value in _column(self._column_name, decoded_rows):
            if value is not None:
                for one in value if isinstance(value, np.ndarray) else (value,):
                    # Null items of a list are no values, whichever form they have; nor can NaN be asked for.
                    if one is not None and one == one:
                        self._index_data[one].add(piece_index)
        return self._index_data


class FieldNotNullIndexer(_FieldIndexer):
    """The row groups in which a field is not always null."""

    def __init__(self, index_name: str, index_field: str) -> None:
        super().__init__(index_name, index_field)
        self._index_data: set[int] = set()

    def __add__(self, other: FieldNotNullIndexer) -> FieldNotNullIndexer:
        _same(self, other)
        self._index_data.update(other._index_data)
        return self

    @property
    def indexed_values(self) -> list[Any]:
        return ["Field is Not Null"]

    def get_row_group_indexes(self, value_key: Any = None) -> set[int]:
        return self._index_data

    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], piece_index: int) -> set[int]:
        if any(value is not None for value in _column(self._column_name, decoded_rows)):
            self._index_data.add(piece_index)
        return self._index_data
