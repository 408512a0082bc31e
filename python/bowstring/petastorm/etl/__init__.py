"""Metadata of datasets: schema, row groups, indexes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["RowGroupIndexerBase"]


class RowGroupIndexerBase(ABC):
    """Says in which row groups a value occurs."""

    @abstractmethod
    def __add__(self, other: Any) -> Any:
        """Both together."""

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
        """Takes in the rows of one row group."""
