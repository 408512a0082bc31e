"""Ranks that are tasks of a barrier stage: their numbers, the addresses of the others, their GPUs."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from bowstring.errors import ConfigError

__all__ = ["SparkGang", "gang"]


@dataclass(frozen=True)
class SparkGang:
    """A barrier task's place among its peers."""

    rank: int
    """This task, from 0."""
    world_size: int
    """Tasks of the stage."""
    addresses: tuple[str, ...]
    """The hosts of all tasks, in rank order."""
    local_rank: int
    """Number of this task among those on its host, from 0."""
    local_size: int
    """Tasks on its host."""
    gpus: tuple[str, ...]
    """Addresses of the GPUs that Spark gave to this task."""
    attempt: int
    """Attempt at the stage, from 0."""

    def barrier(self) -> None:
        """Waits until all tasks have arrived. It takes about a second, so do not call it in every step."""
        _context().barrier()

    def all_gather(self, message: str = "") -> list[str]:
        """The messages of all tasks, in rank order. It takes about a second."""
        return list(_context().allGather(message))

    def environment(self) -> dict[str, str]:
        """Variables from which loaders, ``torch.distributed``, Horovod and programs for MPI take their rank.

        Rank 0 finds a free port on its host, which all tasks receive, so all of them must call this::

            os.environ.update(bowstring.spark.gang().environment())
            torch.distributed.init_process_group("gloo")
        """
        port = _free_port() if self.rank == 0 else 0
        port = int(self.all_gather(str(port))[0])
        place = {
            "RANK": self.rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.local_size,
            "MASTER_ADDR": self.addresses[0],
            "MASTER_PORT": port,
        }
        for launcher in ("HOROVOD", "OMPI_COMM_WORLD"):
            place |= {f"{launcher}_RANK": self.rank, f"{launcher}_SIZE": self.world_size}
            place |= {f"{launcher}_LOCAL_RANK": self.local_rank, f"{launcher}_LOCAL_SIZE": self.local_size}
        if self.gpus:
            place["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        return {name: str(value) for name, value in place.items()}


def _context() -> Any:
    from pyspark import BarrierTaskContext, TaskContext

    if TaskContext.get() is None:
        raise ConfigError("gang() runs in a task of a barrier stage: rdd.barrier() or mapInArrow(barrier=True)")
    try:
        context = BarrierTaskContext.get()
        context.getTaskInfos()
    except Exception as error:
        raise ConfigError(
            f"this task is in no barrier stage: rdd.barrier() or mapInArrow(barrier=True) ({error})"
        ) from None
    return context


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def gang() -> SparkGang:
    """The place of this barrier task. Attributes are cheap; the documentation of methods that wait says so."""
    context = _context()
    infos = context.getTaskInfos()
    hosts = tuple(info.address.rpartition(":")[0] or info.address for info in infos)
    rank = context.partitionId()
    gpus = context.resources().get("gpu")
    return SparkGang(
        rank=rank,
        world_size=len(hosts),
        addresses=hosts,
        local_rank=hosts[:rank].count(hosts[rank]),
        local_size=hosts.count(hosts[rank]),
        gpus=() if gpus is None else tuple(gpus.addresses),
        attempt=context.attemptNumber(),
    )
