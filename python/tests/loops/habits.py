"""Common training loops. Each takes a function that opens a loader and returns the rows it got, so that loaders can be compared.

`open()` opens a loader over `ROWS` rows in file order, and `open(rows)` one over fewer; `ids` are the row numbers of a batch.
"""

from __future__ import annotations

import asyncio
import pathlib
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import (
    accumulate,
    chain,
    count,
    cycle,
    dropwhile,
    islice,
    pairwise,
    takewhile,
    tee,
    zip_longest,
)
from queue import Queue
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BATCH = 8
# The last step has fewer rows, as with torch.
ROWS = 12 * BATCH + 5
FEW = 3 * BATCH + 2

Open = Callable[..., Any]
Ids = Callable[[Any], list[int]]


def write(directory: pathlib.Path) -> Callable[[int], pathlib.Path]:
    """Writes files of 0, 1, 2, ... by their number of rows."""

    def path(rows: int) -> pathlib.Path:
        return directory / f"{rows}.parquet"

    for rows in (ROWS, FEW):
        pq.write_table(pa.table({"id": pa.array(range(rows), pa.int64())}), path(rows), row_group_size=30)
    return path


def numbers(batch: Any) -> list[int]:
    """Returns the ids of a batch that is a dictionary of arrays."""
    return [int(number) for number in batch["id"]]


def reference(rows: int = ROWS) -> Any:
    """torch's own loader."""
    import torch

    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(rows)), batch_size=BATCH)


def reference_ids(batch: Any) -> list[int]:
    """Returns the ids of a batch of torch's own loader."""
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
    """As in benchmarks: an epoch is a fixed number of steps."""
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
    """The shorter one ends the longer one, which has already taken one batch more."""
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
    """A whole validation from time to time, and one that is cut short."""
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
    """`any` and `in` leave their iterator right after the match."""
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


def a_progress_bar(open: Open, ids: Ids) -> Any:
    """As in tqdm: a wrapper of the loader that knows its length."""

    class Bar:
        def __init__(self, inner: Any) -> None:
            self.inner, self.done = inner, 0

        def __len__(self) -> int:
            return len(self.inner)

        def __iter__(self) -> Iterator[Any]:
            for one in self.inner:
                self.done += 1
                yield one

    bar = Bar(open())
    found = [[ids(batch) for batch in bar], [ids(batch) for batch in islice(bar, 2)], [ids(batch) for batch in bar]]
    return found, bar.done, len(bar)


def an_index_into_a_list(open: Open, ids: Ids) -> Any:
    batches = list(open())
    return ids(batches[7]), ids(batches[-1]), [ids(batch) for batch in reversed(batches[::4])]


def a_sentinel(open: Open, ids: Ids) -> Any:
    batches = iter(open())
    return [ids(batch) for batch in iter(lambda: next(batches, None), None)]


def a_while_with_a_default(open: Open, ids: Ids) -> Any:
    loader, found = open(), []
    for _ in range(2):
        batches = iter(loader)
        while (batch := next(batches, None)) is not None:
            found.append(ids(batch))
    return found


def an_else_of_a_loop(open: Open, ids: Ids) -> Any:
    loader, found = open(), []
    for wanted in (30, 1000, 2):
        for batch in loader:
            if wanted in ids(batch):
                found.append("found")
                break
        else:
            found.append("not there")
    return found, len(list(loader))


def early_stopping(open: Open, ids: Ids) -> Any:
    """Validation ends training after some rounds without improvement."""
    train, valid, found = open(), open(FEW), []
    scores = iter([5, 3, 4, 4, 1])
    best, bad = 100, 0
    for epoch in range(5):
        found.append((epoch, len([ids(batch) for batch in train]), len([ids(batch) for batch in valid])))
        score = next(scores)
        best, bad = (score, 0) if score < best else (best, bad + 1)
        if bad == 2:
            break
    return found, [ids(batch) for batch in train]


def a_warm_up_before_the_clock(open: Open, ids: Ids) -> Any:
    """Benchmarks skip the first batches."""
    loader = open()
    for step, _ in enumerate(loader):
        if step == 2:
            break
    return sum(len(ids(batch)) for batch in loader), [ids(batch) for batch in islice(loader, 3, 9)]


def one_batch_is_learned_by_heart(open: Open, ids: Ids) -> Any:
    loader = open()
    batch = next(iter(loader))
    again = [ids(batch) for _ in range(5)]
    return again, [ids(batch) for batch in loader]


def comprehensions(open: Open, ids: Ids) -> Any:
    loader = open()
    by_step = {step: ids(batch) for step, batch in enumerate(loader)}
    return by_step, {len(ids(batch)) for batch in loader}, [number for batch in loader for number in ids(batch)]


def epochs_in_one_chain(open: Open, ids: Ids) -> Any:
    loader = open(FEW)
    return [ids(batch) for batch in chain.from_iterable(loader for _ in range(3))]


def a_cycle(open: Open, ids: Ids) -> Any:
    """itertools.cycle keeps the batches of its first pass."""
    loader = open(FEW)
    return [ids(batch) for batch in islice(cycle(loader), 10)], [ids(batch) for batch in loader]


def a_tee(open: Open, ids: Ids) -> Any:
    loader = open()
    ahead, behind = tee(loader)
    next(ahead)
    return [(ids(a), ids(b)) for a, b in zip(behind, ahead)], [ids(batch) for batch in loader]  # noqa: B905


def neighbours(open: Open, ids: Ids) -> Any:
    return [(ids(a), ids(b)) for a, b in pairwise(open())]


def a_zip_to_the_longest(open: Open, ids: Ids) -> Any:
    many, few = open(), open(FEW)
    found = [(a and ids(a), b and ids(b)) for a, b in zip_longest(many, few)]
    return found, [ids(batch) for batch in few], [ids(batch) for batch in many]


def while_they_are_small(open: Open, ids: Ids) -> Any:
    loader = open()
    small = [ids(batch) for batch in takewhile(lambda batch: ids(batch)[0] < 40, loader)]
    return small, [ids(batch) for batch in dropwhile(lambda batch: ids(batch)[0] < 40, loader)]


def chosen_ones(open: Open, ids: Ids) -> Any:
    loader = open()
    even = [ids(batch) for batch in filter(lambda batch: ids(batch)[0] % 16 == 0, loader)]
    return even, [ids(batch) for step, batch in enumerate(loader) if step % 5 == 1]


def folded(open: Open, ids: Ids) -> Any:
    loader = open()
    sums = list(accumulate(loader, lambda total, batch: total + sum(ids(batch)), initial=0))
    return sums, reduce(lambda total, batch: total - ids(batch)[0], loader, 0)


def groups_of_batches(open: Open, ids: Ids) -> Any:
    """Micro-batches: taken in groups of a fixed size, the last one smaller."""
    loader, found = open(), []
    for _ in range(2):
        batches = iter(loader)
        while group := list(islice(batches, 4)):
            found.append([ids(batch) for batch in group])
    return found


def the_last_ones(open: Open, ids: Ids) -> Any:
    loader = open()
    return [ids(batch) for batch in deque(loader, maxlen=2)], [ids(batch) for batch in deque(loader, maxlen=1)]


def a_queue_from_a_thread(open: Open, ids: Ids) -> Any:
    loader, found = open(), []
    for _ in range(2):
        queue: Queue[Any] = Queue(2)

        def fill(queue: Queue[Any] = queue) -> None:
            for batch in loader:
                queue.put(batch)
            queue.put(None)

        thread = Thread(target=fill)
        thread.start()
        while (batch := queue.get(timeout=60)) is not None:
            found.append(ids(batch))
        thread.join(60)
    return found


def an_executor(open: Open, ids: Ids) -> Any:
    loader = open()
    with ThreadPoolExecutor(3) as pool:
        return [list(pool.map(ids, loader)) for _ in range(2)]


def an_event_loop(open: Open, ids: Ids) -> Any:
    loader = open()

    async def loop() -> list[list[int]]:
        batches, found = iter(loader), []
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            found.append(ids(batch))
        return found

    return [asyncio.run(loop()) for _ in range(2)]


def an_iterator_is_handed_over(open: Open, ids: Ids) -> Any:
    """A function trains a number of steps from an iterator, and leaves the rest to the next one."""

    def trained(batches: Iterator[Any], steps: int) -> list[list[int]]:
        return [ids(next(batches)) for _ in range(steps)]

    loader = open()
    batches = iter(loader)
    return (
        trained(batches, 4),
        trained(batches, 7),
        trained(batches, 2),
        next(batches, "over"),
        trained(iter(loader), 3),
    )


def batches_for_ever(open: Open, ids: Ids) -> Any:
    loader = open(FEW)

    def for_ever() -> Iterator[Any]:
        while True:
            yield from loader

    batches = for_ever()
    found = [ids(next(batches)) for _ in range(11)]
    batches.close()
    return found, [ids(batch) for batch in loader]


def steps_are_skipped_by_hand(open: Open, ids: Ids) -> Any:
    """As in scripts that resume without a state."""
    loader, found = open(), []
    for epoch in range(2):
        for step, batch in enumerate(loader):
            if epoch == 0 and step < 5:
                continue
            found.append(ids(batch))
    return found


def a_state_in_the_middle(open: Open, ids: Ids) -> Any:
    """With the loader's own state, or by skipping."""
    loader, found = open(), []
    for batch in loader:
        found.append(ids(batch))
        if len(found) == 5:
            break
    if hasattr(loader, "load_state_dict"):
        other = open()
        other.load_state_dict(loader.state_dict())
        rest = iter(other)
    else:
        other = loader
        rest = islice(loader, 5, None)
    found += [ids(batch) for batch in rest]
    return found, [ids(batch) for batch in other]


def two_that_restart_alone(open: Open, ids: Ids) -> Any:
    """As in a GAN, or with labelled and unlabelled rows: each restarts at its end."""
    loaders = [open(), open(FEW)]
    batches, found = [iter(loader) for loader in loaders], []
    for _ in range(20):
        for number, loader in enumerate(loaders):
            try:
                batch = next(batches[number])
            except StopIteration:
                batches[number] = iter(loader)
                batch = next(batches[number])
            found.append((number, ids(batch)))
    return found


def round_robin_until_all_are_over(open: Open, ids: Ids) -> Any:
    left, found = [iter(open(FEW)), iter(open()), iter(open(FEW))], []
    while left:
        for batches in list(left):
            batch = next(batches, None)
            if batch is None:
                left.remove(batches)
            else:
                found.append(ids(batch))
    return found


def tasks_by_chance(open: Open, ids: Ids) -> Any:
    chance, loaders = random.Random(7), {"a": open(), "b": open(FEW)}
    batches, found = {name: iter(loader) for name, loader in loaders.items()}, []
    for _ in range(25):
        name = chance.choice(sorted(loaders))
        batch = next(batches[name], None)
        if batch is None:
            batches[name] = iter(loaders[name])
            batch = next(batches[name])
        found.append((name, ids(batch)))
    return found


def an_iterator_of_an_iterator(open: Open, ids: Ids) -> Any:
    loader = open()
    batches = iter(loader)
    same = iter(batches) is batches
    first = ids(next(iter(batches)))
    return same, first, [ids(batch) for batch in batches], [ids(batch) for batch in iter(iter(loader))]


def a_schedule_over_all_steps(open: Open, ids: Ids) -> Any:
    """A learning rate that ends with the last step of the last epoch."""
    loader, rates, rows = open(), [], 0
    total = 3 * len(loader)
    for _ in range(3):
        for batch in loader:
            rows += len(ids(batch))
            rates.append(1 - (len(rates) + 1) / total)
    return rates[-1], len(rates) == total, rows


def a_checkpoint_every_so_many_steps(open: Open, ids: Ids) -> Any:
    loader, kept, step = open(), [], 0
    for epoch in range(3):
        for batch in loader:
            step += 1
            if step % 7 == 0:
                kept.append((epoch, step, ids(batch)[0]))
    return kept


def one_ahead(open: Open, ids: Ids) -> Any:
    """As in libraries that need to know which batch is the last."""
    loader = open()

    def marked() -> Iterator[tuple[Any, bool]]:
        batches = iter(loader)
        try:
            batch = next(batches)
        except StopIteration:
            return
        for following in batches:
            yield batch, False
            batch = following
        yield batch, True

    return [[(ids(batch), last) for batch, last in marked()] for _ in range(2)]


def a_prefetcher(open: Open, ids: Ids) -> Any:
    """As in Apex: a class that prefetches the next batch."""

    class Prefetcher:
        def __init__(self, loader: Any) -> None:
            self.batches = iter(loader)
            self.load()

        def load(self) -> None:
            try:
                self.coming: Any = next(self.batches)
            except StopIteration:
                self.coming = None

        def next(self) -> Any:
            batch = self.coming
            self.load()
            return batch

    loader, found = open(), []
    for _ in range(2):
        prefetcher = Prefetcher(loader)
        batch = prefetcher.next()
        while batch is not None:
            found.append(ids(batch))
            batch = prefetcher.next()
    return found


def a_sampler_of_steps(open: Open, ids: Ids) -> Any:
    """An epoch is a number of steps unrelated to the loader's epochs."""
    loader, found = open(), []
    batches = iter(loader)
    for _ in range(3):
        for _ in range(6):
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(loader)
                batch = next(batches)
            found.append(ids(batch))
    return found


def sizes_are_counted(open: Open, ids: Ids) -> Any:
    return Counter(len(ids(batch)) for batch in open())


def all_predictions(open: Open, ids: Ids) -> Any:
    loader = open()
    predicted: list[int] = []
    for batch in loader:
        predicted.extend(2 * number for number in ids(batch))
    return predicted, all(ids(batch) for batch in loader)


def blocks_of_epochs(open: Open, ids: Ids) -> Any:
    """As in MLPerf's scripts: some epochs, an evaluation of a few steps, the next epochs."""
    train, valid, found = open(), open(FEW), []
    for _ in range(2):
        for _ in range(2):
            found.append(sum(ids(batch)[0] for batch in train))
        batches = iter(valid)
        found.append([ids(next(batches)) for _ in range(3)])
    return found


def a_benchmark_of_so_many_steps(open: Open, ids: Ids) -> Any:
    """As in DLIO: training steps per epoch by count, evaluation after each, and the totals must be right."""
    train, valid, taken, evaluated = open(), open(FEW), [], []
    for _ in range(3):
        for step, batch in enumerate(train, 1):
            taken.append(ids(batch))
            if step == 10:
                break
        evaluated += [ids(batch) for batch, _ in zip(valid, range(2))]  # noqa: B905
    return taken, evaluated, len(taken)


def a_class_with_a_reset(open: Open, ids: Ids) -> Any:
    """As in readers of older libraries: reset() restarts."""

    class Reader:
        def __init__(self) -> None:
            self.loader = open()
            self.reset()

        def reset(self) -> None:
            self.batches = iter(self.loader)

        def read(self) -> list[int]:
            return ids(next(self.batches))

    reader = Reader()
    first = [reader.read() for _ in range(3)]
    reader.reset()
    reader.reset()
    return first, [reader.read() for _ in range(13)]


def the_largest_by_a_key(open: Open, ids: Ids) -> Any:
    loader = open()
    largest = max(loader, key=lambda batch: ids(batch)[0])
    last = sorted(loader, key=lambda batch: -ids(batch)[0])[0]
    return ids(largest), ids(last), min(map(ids, loader))


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
    a_progress_bar,
    an_index_into_a_list,
    a_sentinel,
    a_while_with_a_default,
    an_else_of_a_loop,
    early_stopping,
    a_warm_up_before_the_clock,
    one_batch_is_learned_by_heart,
    comprehensions,
    epochs_in_one_chain,
    a_cycle,
    a_tee,
    neighbours,
    a_zip_to_the_longest,
    while_they_are_small,
    chosen_ones,
    folded,
    groups_of_batches,
    the_last_ones,
    a_queue_from_a_thread,
    an_executor,
    an_event_loop,
    an_iterator_is_handed_over,
    batches_for_ever,
    steps_are_skipped_by_hand,
    a_state_in_the_middle,
    two_that_restart_alone,
    round_robin_until_all_are_over,
    tasks_by_chance,
    an_iterator_of_an_iterator,
    a_schedule_over_all_steps,
    a_checkpoint_every_so_many_steps,
    one_ahead,
    a_prefetcher,
    a_sampler_of_steps,
    sizes_are_counted,
    all_predictions,
    blocks_of_epochs,
    a_benchmark_of_so_many_steps,
    a_class_with_a_reset,
    the_largest_by_a_key,
]
