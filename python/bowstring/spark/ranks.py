"""A rank's side of a hand-off from Spark: batches from all executors, in one order that all ranks share. Needs no PySpark."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import pyarrow.flight as flight

from bowstring import ranks, tails
from bowstring.base import BaseLoader
from bowstring.errors import (
    ClosedError,
    ConfigError,
    Error,
    MismatchError,
    NotFoundError,
    RemoteError,
    SourceChangedError,
    StoreError,
    TimeoutError,
)
from bowstring.flight import Connection
from bowstring.loader import Loader
from bowstring.ranges import seconds, whole
from bowstring.spark.variables import check_variables

__all__ = ["RankLoader", "connect", "sequence"]

_BEAT = 2.0
# Most seconds until an executor answers a call that costs nothing.
_KNOCK = 10.0
_PREFETCH = 2
# What a rank sees of a lost executor. All others are its own, and the driver knows nothing of them.
_LOST = (ClosedError, NotFoundError, RemoteError, SourceChangedError, StoreError, TimeoutError)


def connect(
    url: str,
    rank: int | None = None,
    *,
    loader: type[BaseLoader[Any]] = Loader,
    storage_options: Mapping[str, str] | None = None,
    timeout: float = 600.0,
    **options: Any,
) -> RankLoader:
    """The batches of one rank from :func:`bowstring.spark.serve` in another process; it waits until Spark serves.

    >>> for batch in bowstring.spark.connect("grpc://driver:8820", rank=3):  # doctest: +SKIP
    ...     train(batch)

    :param url: the driver's address: ``listen`` of ``serve()``.
    :param rank: this rank; the default comes from the process group or the launcher's environment.
    :param loader: the class that makes the batches: :class:`bowstring.Loader`, ``bowstring.torch.DataLoader``.
    :param storage_options: ``token`` (or ``BOWSTRING_TOKEN``), ``ca``, ``cert``, ``key``, ``server_name``.
    :param timeout: seconds to wait for Spark, at the start and when it computes the rows again.
    :param options: this rank's own options: ``threads``, ``memory_budget``, ``prefetch``.
    """
    for name in options:
        if name not in ("threads", "memory_budget", "prefetch"):
            raise ConfigError(f"option {name}: it is the same for all ranks; give it to serve()", option=name)
    return RankLoader(url, rank, loader, dict(storage_options or {}), timeout, options)


def sequence(seed: int, epoch: int, steps: Sequence[int], shuffle: bool) -> list[int]:
    """The part that each step of an epoch is taken from: every part as often as it has steps."""
    order = [part for part, count in enumerate(steps) for _ in range(count)]
    if shuffle and len(steps) > 1:
        random.Random(f"bowstring {seed} {epoch}").shuffle(order)
    return order


def _close(loaders: Sequence[BaseLoader[Any]]) -> None:
    for one in loaders:
        with contextlib.suppress(Error):
            one.close()


class _Pass:
    """An iterator over the batches of a pass. An error, or Ctrl-C, leaves it at its step."""

    def __init__(self, loader: RankLoader, number: int) -> None:
        self._loader, self.number, self.ended = loader, number, False

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> dict[str, Any]:
        return self._loader._take(self)


class RankLoader:
    """One rank's batches: every ``iter()`` is a pass, as of :class:`bowstring.Loader`, and several threads may take from it.

    Each batch comes from one executor, the same one for all ranks, so all make the same number of steps. It sends a heartbeat every
    second, until it is closed.
    """

    def __init__(
        self,
        url: str,
        rank: int | None,
        loader: type[BaseLoader[Any]],
        storage: dict[str, str],
        timeout: float,
        own: dict[str, Any],
    ) -> None:
        # So that the driver tells this loader from another one of the same rank, before, after or beside it.
        self._id, self._process = uuid.uuid4().hex, f"{socket.gethostname()}:{os.getpid()}"
        self._launched: tuple[int, str] | None = None
        if rank is None:
            rank, world_size, why = ranks.rank()
            self._launched = (world_size, why)
        self._rank = whole("rank", rank, 0, (1 << 32) - 1)
        self._kind = loader
        self._storage = storage
        self._timeout = seconds("timeout", timeout)
        self._own = {"prefetch": _PREFETCH, **own}
        self._driver = Connection(url, storage, timeout=60)
        self._lock = threading.Condition()
        self._turn = threading.RLock()  # position and streams: of one thread at a time
        self._told: dict[str, Any] = {"state": "waiting"}
        self._unheard = ""  # error of the last call, if the driver was not reached
        self._loaders: list[BaseLoader[Any]] = []
        self._streams: list[Iterator[dict[str, Any]]] = []
        self._opened = -1
        self._rows_known: list[tuple[int, int]] | None = None
        self._rows = 0
        self._closed = False
        self._epoch = self._step = self._pass = 0
        self._taken = False  # True if a batch of this pass was taken
        self._asked: tuple[int, list[int]] = (-1, [])
        self._beats = threading.Thread(target=self._beat, name="bowstring-beat", daemon=True)
        self._beats.start()
        try:
            self._open()
        except BaseException:
            self._end()
            raise

    # ---- the driver's state -----------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Sends heartbeats, and records the driver's answers."""
        silent = 0.0
        while not self._closed:
            known = {name: self._told.get(name) for name in ("state", "generation")}
            wait = 0.2 if known["state"] == "waiting" and known["generation"] is None else _BEAT
            asked = time.monotonic()
            try:
                me = {"rank": self._rank, "id": self._id, "process": self._process}
                told = self._driver.action("spark.rank", {**me, "wait": wait, **known})
                silent, self._unheard = 0.0, ""
            except Error as error:
                # Before Spark has started, no driver answers. One that requires a token is there, and will always require it.
                silent += max(time.monotonic() - asked, 0.2)
                refused = isinstance(error.__cause__, flight.FlightUnauthenticatedError)
                if silent < self._timeout and not refused:
                    self._unheard = f" ({error})"
                    if not self._closed:
                        time.sleep(0.2)
                    continue
                why = str(error) if refused else f"the driver has not answered for {silent:.0f} s: {error}"
                told = {"state": "failed", "why": why}
            with self._lock:
                self._told = told
                changed = self._opened >= 0 and told.get("generation", self._opened) != self._opened
                opened = list(self._loaders)  # a newer generation's, opened from now on, stay open
                self._lock.notify_all()
            if changed or (told["state"] == "failed" and not self._closed):
                # Ends waits for batches of lost executors.
                _close(opened)
            if told["state"] == "failed":
                return

    def _ready(self, newer_than: int) -> dict[str, Any]:
        """The driver's answer once a newer generation serves."""
        end = time.monotonic() + self._timeout
        with self._lock:
            while True:
                told = self._told
                if told["state"] == "failed":
                    raise RemoteError(f"the hand-off from Spark failed: {told['why']}")
                if told["state"] == "ready" and told["generation"] > newer_than:
                    return told
                left = end - time.monotonic()
                if self._closed:
                    raise ClosedError("the loader was closed")
                if left <= 0:
                    problem = f"Spark did not serve within {self._timeout:.0f} s at {self._driver.server}"
                    raise TimeoutError(problem + self._unheard)
                self._lock.wait(min(left, 1.0))

    # ---- the executors' batches -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Opens the newest generation's parts."""
        while True:
            told = self._ready(self._opened)
            if self._launched is not None and self._launched[0] != told["world_size"]:
                problem = (
                    f"Spark serves {told['world_size']} ranks, here there are {self._launched[0]}: {self._launched[1]}"
                )
                raise ConfigError(f"option rank: {problem}; give the rank", option="rank")
            rows = [(part["rows"], part["digest"]) for part in told["parts"]]
            if self._rows_known not in (None, rows):
                raise MismatchError(
                    "Spark computed the frame again and it has other rows, or another order: the epoch cannot continue; "
                    "make the frame deterministic, or checkpoint it before serve()"
                )
            check_variables(told["loader"])
            loaders: list[BaseLoader[Any]] = []
            try:
                for part in told["parts"]:
                    self._knock(told["generation"], part["url"])
                    loaders.append(self._part(told, part))  # one by one: those before one that fails are closed
            except BaseException as error:
                _close(loaders)
                # They may be gone already; the driver will report it.
                if isinstance(error, (ClosedError, RemoteError, TimeoutError)) and self._newer(told["generation"]):
                    continue
                raise
            with self._lock:
                self._opened, self._rows_known, self._loaders = told["generation"], rows, loaders
            self._options, self._world = told["loader"], told["world_size"]
            self._steps = [len(one) for one in loaders]
            self._rows = sum(one.rows for one in loaders)
            self._streams = []
            return

    def _knock(self, generation: int, url: str) -> None:
        """Waits until an executor answers, or is no longer needed: a loader would wait its whole timeout for one that is gone."""
        end = time.monotonic() + self._timeout
        with Connection(url, self._storage, timeout=min(self._timeout, _KNOCK)) as executor:
            while True:
                try:
                    executor.action("stats", {})
                    return
                except _LOST as error:
                    refused = isinstance(error.__cause__, flight.FlightUnauthenticatedError)
                    if refused or self._newer(generation, _BEAT) or self._closed or time.monotonic() > end:
                        raise

    def _part(self, told: Mapping[str, Any], part: Mapping[str, Any]) -> BaseLoader[Any]:
        options = told["loader"]
        # Each part has a last step of its own: what `short` repeats adds up over parts. With fewer rows than ranks,
        # some ranks would get none.
        if tails.told(options) is None and self._kind._tail == "short" and part["rows"] >= told["world_size"]:
            try:
                return self._loader(told, part, {**options, "tail": "even"})
            except ConfigError as error:
                if error.option != "tail":  # so few may be left by a filter
                    raise
        return self._loader(told, part, options)

    def _loader(self, told: Mapping[str, Any], part: Mapping[str, Any], options: Mapping[str, Any]) -> BaseLoader[Any]:
        return self._kind(
            part["url"],
            rank=self._rank,
            world_size=told["world_size"],
            storage_options=self._storage,
            timeout=self._timeout,
            **options,
            **self._own,
        )

    def _newer(self, generation: int, within: float = 120.0) -> bool:
        """True once another generation comes, or this one is over: the driver learns of a lost executor a little later."""
        end = time.monotonic() + min(self._timeout, within)
        with self._lock:
            while self._told["state"] == "ready" and self._told["generation"] == generation:
                left = end - time.monotonic()
                if left <= 0 or self._closed:
                    return False
                self._lock.wait(min(left, 0.5))
            return True

    def _seek(self) -> None:
        """Moves every part's loader to its position after this loader's steps."""
        order = self._order()
        taken = [0] * len(self._loaders)
        for part in order[: self._step]:
            taken[part] += 1
        for loader, step in zip(self._loaders, taken, strict=True):
            loader.load_state_dict(loader._native.state_at(self._epoch, step))
        self._streams = [iter(loader) for loader in self._loaders]

    def _order(self) -> list[int]:
        if self._asked[0] != self._epoch or not self._asked[1]:
            shuffle = bool(self._options["shuffle"])
            self._asked = (self._epoch, sequence(self._options["seed"], self._epoch, self._steps, shuffle))
        return self._asked[1]

    def _next(self) -> dict[str, Any]:
        while True:
            if self._closed:
                raise ClosedError("the loader was closed")
            if not self._loaders:
                self._open()  # which failed, or was interrupted
            try:
                if not self._streams:
                    self._seek()
                return next(self._streams[self._order()[self._step]])
            except StopIteration:
                raise MismatchError("an executor has fewer batches than it said; this is a bug in bowstring") from None
            except Error as error:
                if self._closed:
                    raise ClosedError("the loader was closed") from error
                if not isinstance(error, _LOST) or not self._newer(self._opened):
                    raise
                self._drop()
                self._open()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """A pass: from the loader's position if nothing was taken since it was opened or moved there, else the next epoch."""
        if self._closed:
            raise ClosedError("the loader was closed")
        with self._turn:
            if self._taken:
                self._go(self._epoch + 1, 0)
            self._pass += 1
            return _Pass(self, self._pass)

    def _take(self, taker: _Pass) -> dict[str, Any]:
        """The next batch of a pass."""
        before: tuple[int, int, bool] | None = None
        batch = None
        try:
            with self._turn:
                if taker.ended:
                    raise StopIteration
                if taker.number != self._pass:
                    raise ClosedError(
                        "this iterator ended when its loader began another pass; take batches from the newest iterator"
                    )
                if self._step >= len(self._order()):
                    taker.ended = True
                    self._go(self._epoch + 1, 0)
                    raise StopIteration
                before = self._epoch, self._step, self._taken
                batch = self._next()
                self._step, self._taken = self._step + 1, True
            return batch
        except BaseException:
            if before is not None:
                with self._turn:
                    if batch is not None and (self._epoch, self._step) == (before[0], before[1] + 1):
                        # Ctrl-C, after the step and before the caller had its batch.
                        self._epoch, self._step, self._taken = before
                    # The parts' loaders may be a batch ahead of this step.
                    self._streams = []
            raise

    def __len__(self) -> int:
        """Steps of one epoch: the same on every rank."""
        return sum(self._steps)

    @property
    def rows(self) -> int:
        """Rows of one epoch over all ranks."""
        return self._rows

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(self._world)

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._epoch

    @property
    def step(self) -> int:
        """Steps of the current epoch already yielded."""
        return self._step

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass: goes to its first step. A loader that was resumed in this very epoch stays in place."""
        with self._turn:
            if whole("epoch", epoch) != self._epoch or self._taken:
                self._go(epoch, 0)

    def _go(self, epoch: int, step: int) -> None:
        self._pass += self._taken
        self._epoch, self._step, self._streams, self._taken = epoch, step, [], False

    def _fingerprint(self) -> int:
        return zlib.crc32(json.dumps([self._rows_known, self._options, self._world], sort_keys=True).encode())

    def state_dict(self) -> dict[str, Any]:
        """The position of this loader: the same on every rank."""
        return {"epoch": self._epoch, "step": self._step, "fingerprint": self._fingerprint()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes to a position that :meth:`state_dict` gave, on any rank, over the same rows."""
        if state_dict["fingerprint"] != self._fingerprint():
            raise MismatchError("the state belongs to other rows or options than Spark serves")
        epoch, step = int(state_dict["epoch"]), int(state_dict["step"])
        if epoch < 0 or not 0 <= step <= len(self):
            raise MismatchError(f"the state is at epoch {epoch}, step {step} of {len(self)}")
        with self._turn:
            self._go(epoch, step)

    def _drop(self) -> None:
        with self._lock:
            loaders, self._loaders, self._streams = self._loaders, [], []
        _close(loaders)

    def _end(self) -> None:
        self._closed = True
        self._drop()
        self._beats.join(30)
        self._driver.close()

    def close(self) -> None:
        """Reports that this rank has finished: once all have, Spark's job ends."""
        if not self._closed:
            # First, so that the heartbeat which the driver answers at once is the last.
            self._closed = True
            with contextlib.suppress(Error):
                self._driver.action("spark.done", {"rank": self._rank, "id": self._id}, timeout=10)
            self._end()

    def __enter__(self) -> RankLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A rank that fails may return in a new process: only one that has finished releases the executors.
        if kind is None:
            self.close()
        else:
            self._end()
