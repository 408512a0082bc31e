"""A loader's batches by their steps, for libraries that take a loader apart and rebuild it.

Accelerate's ``skip_first_batches`` makes a ``torch.utils.data.DataLoader`` of a loader's ``dataset``, ``batch_sampler`` and
``collate_fn``. Those here yield the loader's own batches: the sampler lists the steps of a pass, the dataset has the batch of each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from torch.utils.data import random_split

from bowstring.base import Rows
from bowstring.errors import ConfigError, UnsupportedError
from bowstring.underway import Underway

if TYPE_CHECKING:
    from bowstring.torch import DataLoader

__all__ = ["Batches", "Step", "Steps", "no_random_split", "no_rows_by_number", "only", "shared_again"]


def no_rows_by_number(name: str) -> NoReturn:
    """The error for access to single rows of ``name``."""
    raise UnsupportedError(
        f"a {name} yields whole batches in order and has no rows by number, so random_split, Subset and samplers cannot work on "
        "it; split by a filter instead: filter='split(id, 0, 0.8)' and filter='split(id, 0.8, 1)'",
        option="filter",
    )


def no_random_split(name: str) -> None:
    """For ``__len__`` of ``name``, the only method that ``random_split`` calls: its parts would fail when a row is taken."""
    if sys._getframe(2).f_code is random_split.__code__:
        no_rows_by_number(name)


def shared_again() -> NoReturn:
    """The error for a caller that would share one rank's batches among all ranks."""
    problem = "batches are this rank's own already, and would be shared among the ranks again"
    hint = "hand a bowstring.torch.DataLoader to Accelerator.prepare or Accelerator.prepare_data_loader, which leave it as it is"
    raise ConfigError(f"option world_size: {problem}; {hint}", option="world_size")


class Step(NamedTuple):
    """A step of an epoch."""

    epoch: int
    number: int


class Batches(Rows):
    """The rows of one epoch, as their number and as the batches of :class:`Steps`."""

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader.rows)
        self._loader = loader

    def __len__(self) -> int:
        no_random_split("bowstring.torch.DataLoader")
        return super().__len__()

    def __getitem__(self, step: Step) -> dict[str, Any]:
        if not isinstance(step, Step):
            no_rows_by_number("bowstring.torch.DataLoader")
        native = self._loader._native
        if (native.epoch, native.step) != step:
            native.load_state(native.state_at(*step))
        batch = native.next(self._loader._batch)
        if batch is None:
            raise UnsupportedError(f"epoch {step.epoch} has no step {step.number}")
        return batch


class Steps:
    """The steps of a pass, each a list of one. Skipping some of them costs nothing: their batches are not made.

    To iterate over all of them is to skip the epoch; ``len`` counts them.
    """

    # Accelerate's ``join_uneven_inputs`` reads and sets it. It changes nothing: ranks have equal steps under any tail.
    even_batches = True

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[Step]]:
        self._loader._still_its_rank()
        native = self._loader._native
        native.begin(self._loader._batch)
        epoch, first, steps = native.epoch, native.step, native.steps
        underway = Underway(self._loader)
        try:
            for step in self._steps(epoch, first, steps):
                underway.begin()
                yield step
        finally:
            # Also of a loop that is left.
            underway.end()

    def _steps(self, epoch: int, first: int, steps: int) -> Iterator[list[Step]]:
        for number in range(first, steps):
            yield [Step(epoch, number)]
        native = self._loader._native
        if first < steps and (native.epoch, native.step) == (epoch, first):
            # All of them were skipped.
            native.load_state(native.state_at(epoch, steps))
        if (native.epoch, native.step) == (epoch, steps):
            # Consumes the end of the epoch, as a loop over the loader does.
            native.next(self._loader._batch)

    def __len__(self) -> int:
        return self._loader._native.steps

    def set_epoch(self, epoch: int) -> None:
        """As the loader's: Hugging Face's Trainer has only these steps left when it sets the epoch that it resumes in."""
        self._loader.set_epoch(epoch)

    @property
    def batch_size(self) -> int:
        """Rows of a step.

        :raises ConfigError: on one of several ranks, because the caller would divide this rank's rows among all.
        """
        if self._loader.world_size > 1:
            shared_again()
        return self._loader.batch_size

    @property
    def drop_last(self) -> bool:
        """True if the incomplete last step is dropped."""
        return self._loader.drop_last


def only(batches: list[Any]) -> Any:
    """The batch of a list of one."""
    (batch,) = batches
    return batch
