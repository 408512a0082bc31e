"""Loops that everybody writes. Each takes what opens a loader, and says what it got, so that loaders can be compared.

`open()` opens a loader over `ROWS` rows in file order, and `open(rows)` one over fewer; `ids` are the row numbers of a batch.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from itertools import chain, count, islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BATCH = 8
# The last step has fewer rows, as torch's has.
ROWS = 12 * BATCH + 5
FEW = 3 * BATCH + 2

Open = Callable[..., Any]
Ids = Callable[[Any], list[int]]


def write(directory: pathlib.Path) -> Callable[[int], pathlib.Path]:
    """Files of 0, 1, 2, ... by their number of rows."""

    def path(rows: int) -> pathlib.Path:
        return directory / f"{rows}.parquet"

    for rows in (ROWS, FEW):
        pq.write_table(pa.table({"id": pa.array(range(rows), pa.int64())}), path(rows), row_group_size=30)
    return path


def numbers(batch: Any) -> list[int]:
    """The ids of a batch that is a dictionary of arrays."""
    return [int(number) for number in batch["id"]]


def reference(rows: int = ROWS) -> Any:
    """torch's own loader."""
    import torch

    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(rows)), batch_size=BATCH)


def reference_ids(batch: Any) -> list[int]:
    """The ids of a batch of torch's own loader."""
    return [int(number) for number in batch[0]]


def epochs(open: Open, ids: Ids) -> Any:
    loader = open()
    return [[ids(batch) for batch in loader] for _ in range(3)]


def lengths(open: Open, ids: Ids) -> Any:
    loader = open()
    return len(loader), sum(1 for _ in loader), len(list(loader)), len(loader)


def a_look_at_a_batch(open: Open, ids: Ids) -> Any:
    loader = open()
    looked = [ids(next(iter(loader))) for _ in range(3)]
    return looked, [[ids(batch) for batch in loader] for _ in range(2)]


def a_break(open: Open, ids: Ids) -> Any:
    loader, found = open(), []
    for _ in range(3):
        for batch in loader:
            found.append(ids(batch))
            if len(found) % 5 == 4:
                break
    return found, [ids(batch) for batch in loader]


def a_break_at_the_last_batch(open: Open, ids: Ids) -> Any:
    loader, found = open(), []
    for _ in range(3):
        for step, batch in enumerate(loader):
            found.append(ids(batch))
            if step + 1 == len(loader):
                break
    return found


def steps_are_counted(open: Open, ids: Ids) -> Any:
    """As benchmarks do: an epoch is so many steps."""
    loader, found = open(), []
    for _ in range(3):
        for step, batch in enumerate(loader, 1):
            found.append((step, ids(batch)))
            if step == 6:
                break
    return found


def islices(open: Open, ids: Ids) -> Any:
    loader = open()
    return [[ids(batch) for batch in islice(loader, most)] for most in (3, 0, 13, 20, 1)]


def a_zip_with_a_range(open: Open, ids: Ids) -> Any:
    loader = open()
    return [[ids(batch) for batch, _ in zip(loader, range(4))] for _ in range(3)]  # noqa: B905


def a_zip_of_two(open: Open, ids: Ids) -> Any:
    """The shorter one ends the longer one, which has taken one more."""
    many, few = open(), open(FEW)
    found = [[(ids(a), ids(b)) for a, b in zip(many, few)] for _ in range(2)]  # noqa: B905
    return found, [ids(batch) for batch in many], [ids(batch) for batch in few]


def a_zip_that_repeats_the_shorter_one(open: Open, ids: Ids) -> Any:
    many, few = open(), open(FEW)

    def for_ever() -> Iterator[Any]:
        while True:
            yield from few

    return [[(ids(a), ids(b)) for a, b in zip(many, for_ever())] for _ in range(2)]  # noqa: B905


def next_until_it_stops(open: Open, ids: Ids) -> Any:
    loader = open()
    batches, found = iter(loader), []
    for _ in range(30):
        try:
            batch = next(batches)
        except StopIteration:
            found.append([])
            batches = iter(loader)
            batch = next(batches)
        found.append(ids(batch))
    return found


def an_iterator_at_its_end(open: Open, ids: Ids) -> Any:
    batches = iter(open())
    return [len(list(batches)) for _ in range(3)], [next(batches, None) for _ in range(3)]


def an_iterator_that_is_kept(open: Open, ids: Ids) -> Any:
    batches, found = iter(open()), []
    for batch in batches:
        found.append(ids(batch))
        if len(found) == 5:
            break
    return found, [ids(batch) for batch in batches]


def an_iterator_that_is_dropped_unused(open: Open, ids: Ids) -> Any:
    loader = open()
    for _ in range(3):
        iter(loader)
    return [ids(batch) for batch in loader]


def a_newer_iterator(open: Open, ids: Ids) -> Any:
    loader = open()
    older = iter(loader)
    first = ids(next(older))
    return first, [ids(batch) for batch in iter(loader)]


def nested_loops(open: Open, ids: Ids) -> Any:
    """A whole validation now and then, and one that is cut short."""
    train, valid, found = open(), open(FEW), []
    for _ in range(2):
        for step, batch in enumerate(train):
            found.append(ids(batch))
            if step % 5 == 4:
                found.append([sum(ids(one)[0] for one in valid)])
            if step % 4 == 3:
                for checked, one in enumerate(valid):
                    found.append(ids(one))
                    if checked == 1:
                        break
    return found


def an_error_in_the_loop(open: Open, ids: Ids) -> Any:
    loader, found = open(), []
    try:
        for batch in loader:
            found.append(ids(batch))
            if len(found) == 3:
                raise ArithmeticError
    except ArithmeticError:
        pass
    return found, [ids(batch) for batch in loader]


def a_generator_that_is_left(open: Open, ids: Ids) -> Any:
    loader = open()

    def moved() -> Iterator[list[int]]:
        for batch in loader:
            yield [number + 1 for number in ids(batch)]

    batches = moved()
    first = next(batches)
    batches.close()
    return first, list(moved())


def unpacked(open: Open, ids: Ids) -> Any:
    loader = open()
    first, *rest = loader
    *_, last = loader
    return ids(first), len(rest), ids(last)


def one_after_another(open: Open, ids: Ids) -> Any:
    many, few = open(), open(FEW)
    return [[ids(batch) for batch in chain(few, many, few)] for _ in range(2)]


def mapped(open: Open, ids: Ids) -> Any:
    loader = open()
    return list(map(ids, loader)), max(map(ids, loader)), sum(sum(ids(batch)) for batch in loader)


def stopped_early(open: Open, ids: Ids) -> Any:
    """`any` and `in` leave their iterator where they found what they looked for."""
    loader = open()
    return any(20 in ids(batch) for batch in loader), any(3 in ids(batch) for batch in loader), len(list(loader))


def gradients_are_accumulated(open: Open, ids: Ids) -> Any:
    loader, found, sums = open(), [], 0
    for _ in range(2):
        for step, batch in enumerate(loader, 1):
            sums += sum(ids(batch))
            if step % 4 == 0 or step == len(loader):
                found.append(sums)
                sums = 0
    return found


def steps_without_epochs(open: Open, ids: Ids) -> Any:
    loader, found = open(), []
    steps = count()
    while len(found) < 30:
        for batch in loader:
            if next(steps) >= 30:
                break
            found.append(ids(batch))
    return found, [ids(batch) for batch in loader]


HABITS = [
    epochs,
    lengths,
    a_look_at_a_batch,
    a_break,
    a_break_at_the_last_batch,
    steps_are_counted,
    islices,
    a_zip_with_a_range,
    a_zip_of_two,
    a_zip_that_repeats_the_shorter_one,
    next_until_it_stops,
    an_iterator_at_its_end,
    an_iterator_that_is_kept,
    an_iterator_that_is_dropped_unused,
    a_newer_iterator,
    nested_loops,
    an_error_in_the_loop,
    a_generator_that_is_left,
    unpacked,
    one_after_another,
    mapped,
    stopped_early,
    gradients_are_accumulated,
    steps_without_epochs,
]
