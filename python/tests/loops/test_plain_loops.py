"""Common loops over the loaders of NumPy and torch, local and remote: the same results as with torch's own loader."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import pytest
import torch
from bowstring.torch import DataLoader, Dataset
from habits import BATCH, FEW, HABITS, ROWS, numbers, reference, reference_ids, write


@pytest.fixture(scope="module", params=["numpy", "torch", "remote", "mixture", "in torch's"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    path = write(tmp_path_factory.mktemp("loops"))
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": False}
    kind = request.param
    if kind == "remote":
        with bowstring.flight.Server({str(rows): path(rows) for rows in (ROWS, FEW)}) as server:
            yield lambda rows=ROWS: DataLoader(f"{server.url}/{rows}", **options)
    elif kind == "mixture":
        yield lambda rows=ROWS: DataLoader([path(rows)], weights=[1], **options)
    elif kind == "in torch's":
        yield lambda rows=ROWS: torch.utils.data.DataLoader(Dataset(path(rows), **options), batch_size=None)
    else:
        loader: Any = bowstring.Loader if kind == "numpy" else DataLoader
        yield lambda rows=ROWS: loader(path(rows), **options)


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_habit(habit: Callable[..., Any], opened: Callable[..., Any]) -> None:
    assert habit(opened, numbers) == habit(reference, reference_ids)


class Locked:
    """A lock around torch's own iterator, which is not thread-safe."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.lock = batches, threading.Lock()

    def __iter__(self) -> Locked:
        return self

    def __next__(self) -> Any:
        with self.lock:
            return next(self.batches)


def taken_by_threads(batches: Any, ids: Callable[[Any], list[int]]) -> list[list[int]]:
    found: list[list[int]] = []

    def take() -> None:
        found.extend(map(ids, batches))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return sorted(found)


def test_three_threads_over_one_iterator(opened: Callable[..., Any]) -> None:
    loader, other = opened(), reference()
    lock = Locked if isinstance(loader, torch.utils.data.DataLoader) else iter
    for _ in range(20):
        expected = taken_by_threads(Locked(iter(other)), reference_ids)
        assert taken_by_threads(lock(iter(loader)), numbers) == expected
        assert len(expected) == len(loader)


def test_set_epoch_before_each_loop(tmp_path: pathlib.Path) -> None:
    """As with torch's sampler for several ranks: each epoch has its own order, the same one each time."""
    path = write(tmp_path)
    sampler: Any = torch.utils.data.DistributedSampler(range(ROWS), num_replicas=1, rank=0)
    theirs = torch.utils.data.DataLoader(torch.arange(ROWS), batch_size=BATCH, sampler=sampler)
    ours = DataLoader(path(ROWS), batch_size=BATCH, shuffle=True)

    def orders(loader: Any, setter: Any, ids: Callable[[Any], list[int]]) -> list[list[list[int]]]:
        found = []
        for epoch in (0, 1, 1, 0, 2, 2):
            setter.set_epoch(epoch)
            found.append([ids(batch) for batch, _ in zip(loader, range(4 + 9 * (epoch < 2)), strict=False)])
        # After iter() too, before the first batch is taken.
        batches = iter(loader)
        setter.set_epoch(1)
        return [*found, [ids(batch) for batch in batches]]

    def same(found: list[list[list[int]]]) -> list[tuple[bool, int]]:
        return [(one == other, len(one)) for one in found for other in found]

    assert same(orders(ours, ours, numbers)) == same(orders(theirs, sampler, lambda batch: batch.tolist()))
