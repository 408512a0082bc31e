"""Rows to deliver, by their values.

Petastorm calls ``do_include`` once per row. The predicates here also have ``_mask``, which takes columns and is called once per row
group; ``do_include`` stays for user classes, also those derived from the predicates here, and for direct calls.
"""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = [
    "PredicateBase",
    "in_intersection",
    "in_lambda",
    "in_negate",
    "in_pseudorandom_split",
    "in_reduce",
    "in_set",
    "mask_of",
]


class PredicateBase(ABC):
    """Chooses rows; subclasses may be the user's."""

    @abstractmethod
    def get_fields(self) -> set[str]:
        """Names of the fields that it uses."""

    @abstractmethod
    def do_include(self, values: Any) -> Any:
        """True to deliver the row with these values, by name."""

    def _mask(self, columns: Mapping[str, Sequence[Any]]) -> list[bool]:
        names = list(columns)
        return [
            bool(self.do_include(dict(zip(names, row, strict=True)))) for row in zip(*columns.values(), strict=True)
        ]


def mask_of(predicate: PredicateBase, columns: Mapping[str, Sequence[Any]]) -> list[bool]:
    """One boolean per row; ``columns`` holds the values of each field of :meth:`PredicateBase.get_fields`."""
    of_columns, of_row = (
        next(base for base in type(predicate).__mro__ if name in vars(base)) for name in ("_mask", "do_include")
    )
    # A subclass that overrides do_include alone means the rows that it accepts.
    by_column: Any = of_columns if issubclass(of_columns, of_row) else PredicateBase
    return list(by_column._mask(predicate, columns))


class in_set(PredicateBase):
    """The value of a field is one of some values."""

    def __init__(self, inclusion_values: Iterable[Any], predicate_field: str) -> None:
        self._inclusion_values = set(inclusion_values)
        self._predicate_field = predicate_field

    def get_fields(self) -> set[str]:
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        return values[self._predicate_field] in self._inclusion_values

    def _mask(self, columns: Mapping[str, Sequence[Any]]) -> list[bool]:
        return list(map(self._inclusion_values.__contains__, columns[self._predicate_field]))


class in_intersection(PredicateBase):
    """A list field holds at least one of some values."""

    def __init__(self, inclusion_values: Iterable[Any], _predicate_field: str) -> None:
        self._inclusion_values = list(inclusion_values)
        self._predicate_field = _predicate_field

    def get_fields(self) -> set[str]:
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        return self._holds(values[self._predicate_field])

    def _holds(self, value: Any) -> bool:
        if not isinstance(value, Iterable):
            raise ValueError(f"in_intersection needs a list in {self._predicate_field}, got {type(value).__name__}")
        return bool(np.isin(np.asarray(value), self._inclusion_values).any())

    def _mask(self, columns: Mapping[str, Sequence[Any]]) -> list[bool]:
        return list(map(self._holds, columns[self._predicate_field]))


class in_lambda(PredicateBase):
    """A function of some fields.

    With ``make_reader`` it is called once per row with values, with ``make_batch_reader`` once per row group with pandas Series.

    :param predicate_fields: the fields, in the order of the function's arguments.
    :param predicate_func: the function.
    :param state_arg: passed after the fields, if not ``None``.
    """

    def __init__(
        self, predicate_fields: list[str], predicate_func: Callable[..., Any], state_arg: Any | None = None
    ) -> None:
        if not isinstance(predicate_fields, list):
            raise ValueError("predicate_fields must be a list of field names")
        self._predicate_fields = predicate_fields
        self._predicate_func = predicate_func
        self._state_arg = state_arg

    def get_fields(self) -> set[str]:
        return set(self._predicate_fields)

    def do_include(self, values: Any) -> Any:
        state = () if self._state_arg is None else (self._state_arg,)
        return self._predicate_func(*(values[field] for field in self._predicate_fields), *state)

    def _mask(self, columns: Mapping[str, Sequence[Any]]) -> list[bool]:
        state = () if self._state_arg is None else (self._state_arg,)
        arguments = [columns[field] for field in self._predicate_fields]
        # Not map(), which takes a StopIteration of the function's for the end of the rows.
        return [bool(self._predicate_func(*row, *state)) for row in zip(*arguments, strict=True)]


class in_negate(PredicateBase):
    """The opposite of another predicate."""

    def __init__(self, predicate: PredicateBase) -> None:
        if not isinstance(predicate, PredicateBase):
            raise ValueError("in_negate needs a predicate derived from PredicateBase")
        self._predicate = predicate

    def get_fields(self) -> set[str]:
        return self._predicate.get_fields()

    def do_include(self, values: Any) -> bool:
        return not self._predicate.do_include(values)

    def _mask(self, columns: Mapping[str, Sequence[Any]]) -> list[bool]:
        return [not included for included in mask_of(self._predicate, columns)]


class in_reduce(PredicateBase):
    """Several predicates combined by a function of the list of their results, such as ``all`` or ``any``."""

    def __init__(self, predicate_list: Sequence[PredicateBase], reduce_func: Callable[[list[Any]], Any]) -> None:
        if not all(isinstance(predicate, PredicateBase) for predicate in predicate_list):
            raise ValueError("in_reduce needs predicates derived from PredicateBase")
        self._predicate_list = predicate_list
        self._reduce_func = reduce_func

    def get_fields(self) -> set[str]:
        return set().union(*(predicate.get_fields() for predicate in self._predicate_list))

    def do_include(self, values: Any) -> Any:
        return self._reduce_func([predicate.do_include(values) for predicate in self._predicate_list])

    def _mask(self, columns: Mapping[str, Sequence[Any]]) -> list[bool]:
        own = ({name: columns[name] for name in predicate.get_fields()} for predicate in self._predicate_list)
        masks = [mask_of(p, columns) for p, columns in zip(self._predicate_list, own, strict=True)]
        return [bool(self._reduce_func(list(row))) for row in zip(*masks, strict=True)]


class in_pseudorandom_split(PredicateBase):
    """One of several parts of the dataset, the same in every run: a field's MD5 decides.

    :param fraction_list: the size of each part, in fractions of the whole.
    :param subset_index: number of the part.
    :param predicate_field: the field whose text is hashed; rows of equal values stay together.
    """

    def __init__(self, fraction_list: Sequence[float], subset_index: int, predicate_field: str) -> None:
        if subset_index >= len(fraction_list):
            raise ValueError(f"subset_index {subset_index} is out of range: there are {len(fraction_list)} fractions")
        self._predicate_field = predicate_field
        # Sums from the left in this order, so that the borders are Petastorm's to the bit.
        borders = [sum(fraction_list[: end + 1]) for end in range(len(fraction_list))]
        low = borders[subset_index - 1] if subset_index else 0
        self._low = low * (sys.maxsize - 1)
        self._high = borders[subset_index] * (sys.maxsize - 1)

    def get_fields(self) -> set[str]:
        return {self._predicate_field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        if self._predicate_field not in values:
            raise ValueError(f"in_pseudorandom_split: the row lacks {self._predicate_field}")
        return self._within(values[self._predicate_field])

    def _within(self, value: Any) -> bool:
        digest = hashlib.md5(str(value).encode(), usedforsecurity=False).hexdigest()
        return self._low <= int(digest, 16) % sys.maxsize < self._high

    def _mask(self, columns: Mapping[str, Sequence[Any]]) -> list[bool]:
        return list(map(self._within, columns[self._predicate_field]))
