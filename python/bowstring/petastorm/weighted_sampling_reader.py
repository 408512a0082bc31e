"""Several readers, mixed at random."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

__all__ = ["WeightedSamplingReader"]


class WeightedSamplingReader:
    """Takes each sample from one of the readers, drawn by probability (from NumPy's global random state, as Petastorm does).

    It ends with the first reader that ends. ``bowstring.Loader([url, ...], weights=[...])`` is the native form, with a seed.

    :param readers: two or more readers of the same fields.
    :param probabilities: one each; they are scaled to a sum of 1.
    """

    def __init__(self, readers: Sequence[Any], probabilities: Sequence[float]) -> None:
        if len(readers) <= 1:
            raise ValueError(f"two or more readers are needed, got {len(readers)}")
        if len(readers) != len(probabilities):
            raise ValueError(f"{len(readers)} readers need as many probabilities, got {len(probabilities)}")
        first = readers[0]
        for other in readers[1:]:
            if first.batched_output != other.batched_output:
                raise ValueError("readers of rows and readers of batches (batched_output) cannot be mixed")
            if set(first.schema.fields) != set(other.schema.fields):
                raise ValueError("all readers should have the same schema, i.e. fields of the same names")
            if (first.ngram is None) != (other.ngram is None) or (
                first.ngram is not None and first.ngram != other.ngram
            ):
                raise ValueError("all readers must have the same ngram")
        self._readers = list(readers)
        weights = np.asarray(probabilities, np.float64)
        if not (weights >= 0).all() or not 0 < weights.sum() < np.inf:
            raise ValueError(f"probabilities must be 0 or more, finite, and not all 0, got {list(probabilities)}")
        self._upper = np.cumsum(weights / weights.sum())
        self.batched_output: bool = first.batched_output
        self.ngram = first.ngram
        self.schema = first.schema

    def __len__(self) -> int:
        return sum(len(reader) for reader in self._readers)

    def __iter__(self) -> WeightedSamplingReader:
        return self

    def __next__(self) -> Any:
        # Rounding may leave the last bound a little below 1.
        drawn = int(np.searchsorted(self._upper, np.random.random(), side="right"))
        return next(self._readers[min(drawn, len(self._readers) - 1)])

    def next(self) -> Any:
        """The next sample."""
        return self.__next__()

    @property
    def last_row_consumed(self) -> bool:
        """True if any of the readers has ended."""
        return any(reader.last_row_consumed for reader in self._readers)

    def stop(self) -> None:
        """Stops all readers."""
        for reader in self._readers:
            reader.stop()

    def join(self) -> None:
        """Waits until all readers have stopped."""
        for reader in self._readers:
            reader.join()

    def __enter__(self) -> WeightedSamplingReader:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.stop()
        self.join()
