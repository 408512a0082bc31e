"""A reader without a dataset: endless rows from a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from types import TracebackType
from typing import Any

import numpy as np

from bowstring.petastorm.unischema import Unischema

__all__ = ["ReaderMock", "schema_data_generator_example"]


class ReaderMock:
    """Yields rows of a schema for ever.

    :param schema: the schema.
    :param schema_data_generator: makes the values of one row, by field, of the schema.
    :param ngram: must be ``None``.
    """

    def __init__(
        self, schema: Unischema, schema_data_generator: Callable[[Unischema], Mapping[str, Any]], ngram: Any = None
    ) -> None:
        if ngram is not None:
            raise ValueError("ReaderMock has no NGram")
        self.schema = schema
        self.schema_data_generator = schema_data_generator
        self.ngram = None
        self.batched_output = False
        self.last_row_consumed = False

    def fetch(self) -> Any:
        """One row."""
        return self.schema.make_namedtuple(**self.schema_data_generator(self.schema))

    def __iter__(self) -> ReaderMock:
        return self

    def __next__(self) -> Any:
        return self.fetch()

    def next(self) -> Any:
        """The next row."""
        return self.fetch()

    def __enter__(self) -> ReaderMock:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Does nothing: there is nothing to stop."""

    def join(self) -> None:
        """Does nothing: there is nothing to wait for."""


def schema_data_generator_example(schema: Unischema) -> dict[str, Any]:
    """Zeros of each field's type and shape; axes of any length have 10."""

    def zero(dtype: Any, shape: tuple[int | None, ...]) -> Any:
        if dtype is Decimal:
            return Decimal("0.0")
        return np.zeros(tuple(10 if axis is None else axis for axis in shape), dtype)

    return {name: zero(field.numpy_dtype, field.shape) for name, field in schema.fields.items()}
