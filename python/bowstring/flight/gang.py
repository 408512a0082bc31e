"""Ranks that start together, meet at barriers, and restart together: like Spark's barrier execution mode, for training."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from bowstring import _native, ranks
from bowstring.errors import Error
from bowstring.options import dumped
from bowstring.ranges import seconds, whole

__all__ = ["Gang", "Member"]


@dataclass(frozen=True)
class Member:
    """One rank of a gang, by its own description."""

    rank: int
    share: tuple[int, int]
    """Its share of the data, and the number of shares."""
    address: str
    device: str
    host: str


class Gang:
    """A rank's membership in a gang, which a server holds.

    The constructor waits until all ranks have joined, or names the missing ones. From then on all belong to one *generation*: when
    a rank is lost, all barriers and loaders end at once with :class:`bowstring.FencedError`, and all ranks join again.

    A generation reads one plan: a loader over other files or with other options is a :class:`bowstring.MismatchError`. Read
    validation data without the gang, with ``rank=gang.share[0], world_size=gang.share[1]``.

    >>> with Gang("grpc://data:8815", "run-7") as gang:  # doctest: +SKIP
    ...     loader = bowstring.torch.DataLoader("grpc://data:8815/photos", batch_size=32, gang=gang)
    ...     for batch in loader:
    ...         ...
    ...         token = gang.ack(loader.epoch, loader.step - 1)  # goes into the checkpoint

    A loader of the gang begins with the step after :attr:`resume`: the position of ``token``, which the checkpoint has, or
    without one the last step that all ranks had acknowledged.

    :param url: the server, ``grpc://host:port``.
    :param name: the gang's name: one for each run.
    :param rank: this rank; the default comes from the process group or the launcher's environment, as for a loader.
    :param world_size: number of ranks.
    :param share: ``(share, shares)`` if groups of ranks get the same batches (tensor, pipeline or context parallel).
    :param address: this rank's address for other ranks, for :meth:`members`.
    :param device: this rank's device, for :meth:`members`.
    :param token: the result of :meth:`ack` in the loaded checkpoint; all ranks give the same one, or none.
    :param timeout: seconds to wait for the other ranks.
    :param storage_options: ``token``, ``token_file``, ``ca``, ``cert``, ``key``, ``server_name``, as for a loader.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        share: tuple[int, int] | None = None,
        address: str = "",
        device: str = "",
        token: str | None = None,
        timeout: float = 600.0,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        import socket  # a tenth of the import of the package

        options = {
            "name": name,
            "rank": rank,
            "world_size": world_size,
            **ranks.options(rank, world_size),
            "share": share,
            "address": address,
            "device": device,
            "host": socket.gethostname(),
            "token": token,
            "timeout": seconds("timeout", timeout),
            "storage_options": dict(storage_options or {}),
        }
        self._native = _native.Gang(url, dumped(options))

    @property
    def name(self) -> str:
        """The gang's name."""
        return self._native.name

    @property
    def rank(self) -> int:
        """This rank."""
        return self._native.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._native.world_size

    @property
    def share(self) -> tuple[int, int]:
        """This rank's share of the data, and the number of shares."""
        return self._native.share

    @property
    def generation(self) -> int:
        """The generation: one more for each start of the gang."""
        return self._native.generation

    @property
    def resume(self) -> tuple[int, int] | None:
        """The last ``(epoch, step)`` that all ranks had acknowledged when the gang formed; ``None`` at the very start."""
        return self._native.resume

    def check(self) -> None:
        """Raises :class:`bowstring.FencedError` if this process is no longer a member."""
        self._native.check()

    def barrier(self, timeout: float = 600.0) -> None:
        """Waits until all ranks have called it."""
        self._native.barrier(seconds("timeout", timeout))

    def all_gather(self, message: bytes, timeout: float = 600.0) -> list[bytes]:
        """The messages of all ranks, in rank order; at most 1 MiB each."""
        return self._native.all_gather(message, seconds("timeout", timeout))

    def members(self) -> list[Member]:
        """All members, in rank order."""
        found = json.loads(self._native.members())["members"]
        return [Member(m["rank"], (m["share"]["rank"], m["share"]["of"]), **m["info"]) for m in found]

    def ack(self, epoch: int, step: int) -> str:
        """Acknowledges ``step`` of ``epoch`` and all before it. The result goes into the checkpoint, as ``token``."""
        return self._native.ack(whole("epoch", epoch), whole("step", step))

    def leave(self) -> None:
        """Leaves after the work is done. Leaving by an exception, or disappearing, makes the others start again."""
        self._native.leave()

    def __enter__(self) -> Gang:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._native.leave()
        else:
            # The exception says more than a failed call would; the others learn by the lease.
            with contextlib.suppress(Error):
                self._native.leave(f"{kind.__name__}: {error}"[:200])
