"""One rank: a training loop that joins, reads, commits, and continues from its checkpoint after any failure.

``python -m chaos.rank TASK``, a JSON file. Two kinds:

- ``gang``: a member of a gang. Each step is acknowledged; a fenced rank joins again in the same process.
- ``replicas``: a loader over several servers. Each tenth step is a checkpoint; any error ends the process, and the launcher starts
  all ranks from the last checkpoint that all have, as torchrun does. A step begins when all ranks have begun the one before it,
  as with gradients that are averaged over all ranks.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bowstring
import bowstring.flight
import numpy as np

from chaos import rows
from chaos.journal import Writer

CHECKPOINT = 10
BARRIER = 5


@dataclass(frozen=True)
class Task:
    """The parameters that the launcher gives a rank."""

    kind: str
    rank: int
    world: int
    urls: list[str]
    storage_options: dict[str, str]
    home: str
    life: int
    state: dict[str, Any] | None
    global_batch: int
    pace: float
    timeout: float


def pause(seconds: float) -> None:
    """Sleeps, also under a libfaketime that leaves the monotonic clock alone, with which ``time.sleep`` fails."""
    select.select([], [], [], seconds)


class Lockstep:
    """The steps of all ranks of one life, in memory of this machine: the stand-in for collective operations."""

    def __init__(self, path: Path, rank: int, world: int) -> None:
        self.rank = rank
        self.at = np.memmap(path, dtype=np.int64, mode="r+", shape=(world,))

    def step(self, timeout: float) -> None:
        self.at[self.rank] += 1
        mine, end = int(self.at[self.rank]), time.monotonic() + timeout
        while int(self.at.min()) < mine - 1:
            if time.monotonic() > end:
                raise TimeoutError(f"collective: rank {int(self.at.argmin())} is behind")
            pause(0.002)


def saved(path: Path, what: object, *, sync: bool = False) -> None:
    """Writes a file as a whole or not at all."""
    aside = path.with_suffix(".new")
    with aside.open("w") as file:
        json.dump(what, file)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    aside.rename(path)


class Rank:
    """A rank and its journal."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.home = Path(task.home)
        self.journal = Writer(self.home / f"journal-{task.rank}")

    def options(self) -> dict[str, Any]:
        return {
            "global_batch_size": self.task.global_batch,
            "storage_options": self.task.storage_options,
            "timeout": self.task.timeout,
            "memory_budget": "64MiB",
            "prefetch": 2,
            "threads": 1,
            "seed": 11,
            # Small ones, so that the store is read all through an epoch.
            "lanes": 2,
            "window_rows": 1400,
            # Both deliver each row once: one with smaller batches, the other with padding, which does not count.
            "tail": "even" if self.task.kind == "gang" else "pad",
        }

    def ends(self, epoch: int) -> bool:
        """Returns true if the work is done before `epoch`."""
        end = self.home / "end"
        return end.exists() and epoch >= int(end.read_text())

    def train(self, loader: Any, life: int, committed: Callable[[int, int], None]) -> None:
        """Steps until the end of the run."""
        # Numbers of processes come again within an hour.
        certificate = self.home / "certificates" / f"{self.task.rank}-{loader.certificate()['loader']}.json"
        while loader.step > 0 or not self.ends(loader.epoch):
            for batch in self.batches(loader):
                epoch, step = loader.epoch, loader.step - 1
                if "_mask" in batch:
                    batch = {name: values[batch["_mask"]] for name, values in batch.items()}
                wrong = rows.wrong(batch)
                if wrong:
                    self.journal.write("wrong", life=life, epoch=epoch, step=step, rows=wrong)
                ids = batch["id"].tolist()
                pause(self.task.pace)
                self.journal.write("step", life=life, epoch=epoch, step=step, ids=ids, commit=True)
                saved(certificate, loader.certificate())
                committed(epoch, step)

    def batches(self, loader: Any) -> Iterator[dict[str, Any]]:
        yield from loader

    # ---- a member of a gang --------------------------------------------------------------------------------------------

    def member(self) -> None:
        while not (self.home / "finished").exists():
            try:
                self.generation()
                return
            except bowstring.Error as error:
                self.journal.write("error", error=type(error).__name__, text=str(error)[:300])
            pause(0.05)

    def generation(self) -> None:
        task, url = self.task, self.task.urls[0]
        gang = bowstring.flight.Gang(
            url, "chaos", rank=task.rank, world_size=task.world, timeout=20, storage_options=task.storage_options
        )
        resume = gang.resume
        start = (resume[0], resume[1] + 1) if resume else (0, 0)
        self.journal.write("life", life=gang.generation, start=start)
        with bowstring.Loader(f"{url}/data", gang=gang, **self.options()) as loader:
            if resume:
                state = loader.state_dict()
                state["epoch"], state["step"] = start
                loader.load_state_dict(state)

            def committed(epoch: int, step: int) -> None:
                asked = time.monotonic()
                gang.ack(epoch, step)
                self.journal.write("ack", life=gang.generation, epoch=epoch, step=step, asked=asked)
                if step % BARRIER == BARRIER - 1:
                    gang.barrier(task.timeout)

            self.train(loader, gang.generation, committed)
        gang.barrier(20)
        (self.home / "finished").touch()
        gang.leave()

    # ---- a loader over replicas ----------------------------------------------------------------------------------------

    def reader(self) -> None:
        task = self.task
        lockstep = Lockstep(self.home / f"lockstep-{task.life}", task.rank, task.world)
        with self.opened() as loader:
            if task.state is not None:
                loader.load_state_dict(task.state)
            self.journal.write("life", life=task.life, start=(loader.epoch, loader.step))

            def committed(epoch: int, step: int) -> None:
                if step % CHECKPOINT == CHECKPOINT - 1:
                    saved(
                        self.home / "checkpoints" / f"{task.rank}-{epoch}-{step}.json", loader.state_dict(), sync=True
                    )
                lockstep.step(1.5 * task.timeout)

            self.train(loader, task.life, committed)

    def opened(self) -> Any:
        """Opens a loader at the first server that answers, beginning with this rank's own."""
        task = self.task
        own = (task.rank + task.life) % len(task.urls)
        for tried, url in enumerate([*task.urls[own:], *task.urls[:own]], 1):
            try:
                return bowstring.Loader(f"{url}/data", rank=task.rank, world_size=task.world, **self.options())
            except bowstring.Error as error:
                if tried == len(task.urls):
                    raise
                self.journal.write("elsewhere", error=type(error).__name__, text=str(error)[:300])
        raise AssertionError("no servers")


def main() -> None:
    rank = Rank(Task(**json.loads(Path(sys.argv[1]).read_text())))
    try:
        rank.member() if rank.task.kind == "gang" else rank.reader()
    except Exception as error:
        rank.journal.write("error", error=type(error).__name__, text=str(error)[:300])
        raise
    rank.journal.write("done")


if __name__ == "__main__":
    main()
