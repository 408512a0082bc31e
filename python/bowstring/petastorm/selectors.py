"""Row groups to read, by the indexes that the dataset stores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bowstring.petastorm.etl import RowGroupIndexerBase

__all__ = ["IntersectIndexSelector", "RowGroupSelectorBase", "SingleIndexSelector", "UnionIndexSelector"]


class RowGroupSelectorBase(ABC):
    """Chooses row groups; subclasses may be the user's."""

    @abstractmethod
    def get_index_names(self) -> list[str]:
        """Names of the indexes that it uses."""

    @abstractmethod
    def select_row_groups(self, index_dict: Mapping[str, RowGroupIndexerBase]) -> set[int]:
        """Ordinals of the row groups, counted over files sorted by path."""


class SingleIndexSelector(RowGroupSelectorBase):
    """Row groups that hold any of some values, by one index."""

    def __init__(self, index_name: str, values_list: Iterable[Any]) -> None:
        self._index_name = index_name
        self._values_to_select = values_list

    def get_index_names(self) -> list[str]:
        return [self._index_name]

    def select_row_groups(self, index_dict: Mapping[str, RowGroupIndexerBase]) -> set[int]:
        index = index_dict[self._index_name]
        return set().union(*(index.get_row_group_indexes(value) for value in self._values_to_select))


class _Several(RowGroupSelectorBase):
    def __init__(self, single_index_selectors: Sequence[SingleIndexSelector]) -> None:
        self._single_index_selectors = single_index_selectors

    def get_index_names(self) -> list[str]:
        return [name for selector in self._single_index_selectors for name in selector.get_index_names()]

    def _selected(self, index_dict: Mapping[str, RowGroupIndexerBase]) -> list[set[int]]:
        return [selector.select_row_groups(index_dict) for selector in self._single_index_selectors]


class IntersectIndexSelector(_Several):
    """Row groups that all selectors choose."""

    def select_row_groups(self, index_dict: Mapping[str, RowGroupIndexerBase]) -> set[int]:
        return set.intersection(*self._selected(index_dict))


class UnionIndexSelector(_Several):
    """Row groups that any selector chooses."""

    def select_row_groups(self, index_dict: Mapping[str, RowGroupIndexerBase]) -> set[int]:
        return set().union(*self._selected(index_dict))
