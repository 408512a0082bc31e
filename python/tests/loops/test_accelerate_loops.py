"""Loops with Accelerate over loaders that it prepared: the same number of batches, rows and ends as with torch's own loader."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from habits import BATCH, FEW, HABITS, ROWS, numbers, reference, reference_ids, write

pytest.importorskip("accelerate")
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from bowstring.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore")

Ids = Callable[[Any], list[int]]


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    # Three do not divide the thirteen steps of an epoch.
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    yield accelerator
    accelerator.end_training()
    accelerator.gradient_state._reset_state()


def with_ends(accelerator: Accelerator, batches: Any, ids: Ids) -> list[tuple[bool, bool, list[int]]]:
    """Runs a loop with accumulation; returns for each batch if gradients are taken, if the epoch ends, and the rows for metrics."""
    found, model = [], torch.nn.Linear(1, 1)
    for batch in batches:
        with accelerator.accumulate(model):
            rows = accelerator.gather_for_metrics(torch.tensor(ids(batch)))
            found.append((accelerator.sync_gradients, accelerator.gradient_state.end_of_dataloader, rows.tolist()))
    return found


def epochs_with_ends(accelerator: Accelerator, open: Callable[..., Any], ids: Ids) -> Any:
    loader = accelerator.prepare(open())
    return [with_ends(accelerator, loader, ids) for _ in range(3)], accelerator.gradient_state.in_dataloader


def a_loop_that_was_left(accelerator: Accelerator, open: Callable[..., Any], ids: Ids) -> Any:
    loader = accelerator.prepare(open())
    found = with_ends(accelerator, islice(loader, 5), ids)
    return found, with_ends(accelerator, loader, ids), with_ends(accelerator, loader, ids)


def validation_within_training(accelerator: Accelerator, open: Callable[..., Any], ids: Ids) -> Any:
    """The end of the inner loop does not count as that of the outer one, whose end still comes."""
    train, valid = accelerator.prepare(open(), open(FEW))
    found, model = [], torch.nn.Linear(1, 1)
    for step, batch in enumerate(train):
        with accelerator.accumulate(model):
            found.append((accelerator.sync_gradients, ids(batch)))
        if step in (4, 12):
            found += with_ends(accelerator, valid, ids)
            found.append((accelerator.gradient_state.end_of_dataloader, accelerator.gradient_state.in_dataloader))
    return found


def the_first_steps_are_skipped(accelerator: Accelerator, open: Callable[..., Any], ids: Ids) -> Any:
    loader = accelerator.prepare(open())
    some = skip_first_batches(loader, 5)
    found = [len(some), with_ends(accelerator, some, ids)]
    return [*found, with_ends(accelerator, loader, ids), with_ends(accelerator, loader, ids)]


def more_are_skipped_than_there_are(accelerator: Accelerator, open: Callable[..., Any], ids: Ids) -> Any:
    loader = accelerator.prepare(open())
    found = [ids(batch) for batch in skip_first_batches(loader, 20)]
    return found, [ids(batch) for batch in skip_first_batches(loader, 12)], [ids(batch) for batch in loader]


def all_are_skipped(accelerator: Accelerator, open: Callable[..., Any], ids: Ids) -> Any:
    loader = accelerator.prepare(open())
    return [with_ends(accelerator, skip_first_batches(loader, n), ids) for n in (len(loader), 20)]


def skipped_and_left(accelerator: Accelerator, open: Callable[..., Any], ids: Ids) -> Any:
    loader = accelerator.prepare(open())
    found = [ids(batch) for batch in islice(skip_first_batches(loader, 3), 2)]
    return found, with_ends(accelerator, loader, ids)


def prepared_as_a_function(accelerator: Accelerator, open: Callable[..., Any], ids: Ids) -> Any:
    loader = prepare_data_loader(open(), torch.device("cpu"), num_processes=1, process_index=0, put_on_device=True)
    return len(loader), [with_ends(accelerator, loader, ids) for _ in range(2)]


def prepared_twice(accelerator: Accelerator, open: Callable[..., Any], ids: Ids) -> Any:
    loader = accelerator.prepare_data_loader(accelerator.prepare(open()))
    return accelerator.prepare_data_loader(loader) is loader, with_ends(accelerator, loader, ids)


def the_length_of_the_data(accelerator: Accelerator, open: Callable[..., Any], ids: Ids) -> Any:
    loader = accelerator.prepare(open())
    return len(loader), len(loader.dataset), loader.drop_last, loader.num_workers


LOOPS = [
    epochs_with_ends,
    a_loop_that_was_left,
    validation_within_training,
    the_first_steps_are_skipped,
    more_are_skipped_than_there_are,
    all_are_skipped,
    skipped_and_left,
    prepared_as_a_function,
    prepared_twice,
    the_length_of_the_data,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_loop(loop: Callable[..., Any], accelerator: Accelerator, tmp_path: pathlib.Path) -> None:
    path = write(tmp_path)
    ours = loop(accelerator, lambda rows=ROWS: DataLoader(path(rows), batch_size=BATCH, shuffle=False), numbers)
    assert ours == loop(accelerator, reference, reference_ids)


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_habit(habit: Callable[..., Any], accelerator: Accelerator, tmp_path: pathlib.Path) -> None:
    path = write(tmp_path)
    ours = habit(
        lambda rows=ROWS: accelerator.prepare(DataLoader(path(rows), batch_size=BATCH, shuffle=False)), numbers
    )
    assert ours == habit(reference, reference_ids)


@pytest.mark.parametrize("tail", ["short", "even", "pad", "repeat", "drop"])
def test_metrics_of_every_tail(tail: Any, accelerator: Accelerator, tmp_path: pathlib.Path) -> None:
    """Two rows remain: under `even` the last two steps share ten."""
    loader = accelerator.prepare(DataLoader(write(tmp_path)(FEW), batch_size=BATCH, shuffle=False, tail=tail))
    for _ in range(2):
        gathered = [accelerator.gather_for_metrics(batch["id"]).tolist() for batch in loader]
        assert [row for rows in gathered for row in rows] == list(range(FEW - 2 if tail == "drop" else FEW))
    assert [len(rows) for rows in gathered] == {"even": [8, 8, 5, 5], "drop": [8, 8, 8]}.get(tail, [8, 8, 8, 2])


def test_an_epoch_of_which_all_is_skipped_is_over(accelerator: Accelerator, tmp_path: pathlib.Path) -> None:
    path = write(tmp_path)(FEW)
    with DataLoader(path, batch_size=BATCH) as plain:
        orders = [[numbers(batch) for batch in plain] for _ in range(3)]
    loader = accelerator.prepare(DataLoader(path, batch_size=BATCH))
    assert list(skip_first_batches(loader, len(loader))) == []
    assert [numbers(batch) for batch in loader] == orders[1]
    assert [numbers(batch) for batch in skip_first_batches(loader, 20)] == []
    loader.set_epoch(0)
    assert [numbers(batch) for batch in loader] == orders[0]


def test_a_loop_within_one_over_an_array(accelerator: Accelerator, tmp_path: pathlib.Path) -> None:
    outer = accelerator.prepare(torch.utils.data.DataLoader(np.arange(20), batch_size=4))  # type: ignore[arg-type]
    inner = DataLoader(write(tmp_path)(FEW), batch_size=BATCH)
    assert [len([numbers(batch) for batch in inner]) for _ in outer] == [4] * 5


def test_inputs_of_any_tail_are_joined(
    accelerator: Accelerator, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accelerate does it on GPUs only, and asks every loader that it knows for its `even_batches`."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        monkeypatch.setattr(Accelerator, "multi_device", True)
        options: dict[str, Any] = {"batch_size": BATCH, "tail": "even"}
        loader = accelerator.prepare_data_loader(DataLoader(write(tmp_path)(FEW), **options))
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        with accelerator.join_uneven_inputs([model], even_batches=False):
            for batch in loader:
                model(batch["id"][:, None].float()).mean().backward()
        assert (loader.epoch, loader.step) == (1, 0)
    finally:
        torch.distributed.destroy_process_group()


def test_checkpoints_hold_the_place(accelerator: Accelerator, tmp_path: pathlib.Path) -> None:
    loader = accelerator.prepare_data_loader(DataLoader(write(tmp_path)(ROWS), batch_size=BATCH, shuffle=True))
    orders = [[numbers(batch) for batch in loader] for _ in range(2)]
    loader.set_epoch(0)
    assert [numbers(batch) for batch in islice(loader, 4)] == orders[0][:4]
    accelerator.save_state(str(tmp_path / "state"))
    assert [numbers(batch) for batch in loader] == orders[1]
    accelerator.load_state(str(tmp_path / "state"))
    assert [numbers(batch) for batch in loader] == orders[0][4:]
    # Within an epoch of its own order, while the loader is in another one.
    loader.set_epoch(1)
    assert [numbers(batch) for batch in skip_first_batches(loader, 7)] == orders[1][7:]
