# A contender: a named way to turn one dataset into training batches, with its requirements and promises.
# The harness (peers.py) imports the modules first, so that imports are not timed, then opens and iterates.

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import pathlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# Two arrays of one framework (torch or tensorflow) per step: the matrix, and the label or length of each row.
Batches = Iterator[tuple[Any, Any]]
# Called once per epoch; the number feeds the order.
Epoch = Callable[[int], Batches]


@dataclasses.dataclass(frozen=True)
class Job:
    """Parameters that every contender of a task gets."""

    task: str
    data: pathlib.Path
    batch: int
    threads: int
    # Rows that must be delivered per epoch.
    rows: int


@dataclasses.dataclass(frozen=True)
class Contender:
    """One way to do a task."""

    task: str
    name: str
    open: Callable[[Job], Epoch]
    # Modules that must be importable; the first one is the peer itself.
    modules: tuple[str, ...]
    # Order of the rows, in words.
    shuffle: str
    # Key in expected.json of the rows that it must deliver (some copies hold fewer rows).
    dataset: str
    # Note that readers of the table need to judge the figure.
    note: str
    # True if matrices must be row-major and contiguous.
    contiguous: bool


CONTENDERS: dict[tuple[str, str], Contender] = {}


def contender(
    task: str, name: str, modules: str, *, shuffle: str, dataset: str = "", note: str = "", contiguous: bool = True
) -> Callable[[Callable[[Job], Epoch]], Callable[[Job], Epoch]]:
    """Registers a function that opens a dataset and returns the epoch function."""

    def register(function: Callable[[Job], Epoch]) -> Callable[[Job], Epoch]:
        made = Contender(task, name, function, tuple(modules.split()), shuffle, dataset or task, note, contiguous)
        CONTENDERS[task, name] = made
        return function

    return register


# The distribution that holds a module, if the names differ.
DISTRIBUTIONS = {"lance": "pylance", "cv2": "opencv-python-headless", "turbojpeg": "PyTurboJPEG", "PIL": "pillow"}


def version(module: str) -> str:
    """The version of an importable module, as `name version`."""
    top = module.partition(".")[0]
    for name in (module, top):
        found = getattr(importlib.import_module(name), "__version__", None)
        if found:
            return f"{name} {found}"
    try:
        return f"{top} {importlib.metadata.version(DISTRIBUTIONS.get(top, top))}"
    except importlib.metadata.PackageNotFoundError:
        return f"{module} (no version)"


def shuffled(items: Iterable[Any], epoch: int) -> list[Any]:
    """The items in an order drawn from the epoch number."""
    order = list(items)
    random.Random(epoch).shuffle(order)
    return order
