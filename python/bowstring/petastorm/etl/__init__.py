"""Metadata of datasets: schema, row groups, indexes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["RowGroupIndexerBase"]


class RowGroupIndexerBase(ABC):
    """Maps values to the row groups in which they occur."""

    @abstractmethod
    def __add__(self, other: Any) -> Any:
        """The union of both."""

    @property
    @abstractmethod
    def index_name(self) -> str:
        """The name that selectors use."""

    @property
    @abstractmethod
    def column_names(self) -> list[str]:
        """The columns that it indexes."""

    @property
    @abstractmethod
    def indexed_values(self) -> list[Any]:
        """The values that occur."""

    @abstractmethod
    def get_row_group_indexes(self, value_key: Any) -> set[int]:
        """Ordinals of the row groups that hold a value."""

    @abstractmethod
    def build_index(self, decoded_rows: Sequence[Mapping[str, Any]], piece_index: int) -> Any:
        """Adds the rows of one row group."""
