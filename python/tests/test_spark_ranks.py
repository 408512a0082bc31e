"""A rank's loader of a hand-off through errors, Ctrl-C and threads: driver and executors are in this process, without Spark."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402
from bowstring.flight import Server  # noqa: E402
from bowstring.spark import RankLoader, connect  # noqa: E402
from bowstring.spark.meeting import Meeting, MeetingServer  # noqa: E402

pytestmark = pytest.mark.timeout(120)

ROWS = 100


@pytest.fixture
def driver(tmp_path: pathlib.Path) -> Iterator[MeetingServer]:
    """Two parts with 100 rows each, for one rank."""
    for part in range(2):
        pq.write_table(pa.table({"id": range(part * ROWS, (part + 1) * ROWS)}), tmp_path / f"{part}.parquet")
    meeting = Meeting(1, {"batch_size": 10, "seed": 1, "shuffle": True}, 600, 60)
    door = dict.fromkeys(("token", "tls_cert", "tls_key", "client_ca"))
    with (
        Server({str(part): str(tmp_path / f"{part}.parquet") for part in range(2)}) as executor,
        MeetingServer(meeting, "127.0.0.1:0", **door) as serving,
    ):
        parts = [{"rows": ROWS, "digest": part, "url": f"{executor.url}/{part}"} for part in range(2)]
        serving.change("begin", 0)
        serving.change("post", 0, 0, 1, parts, time.monotonic())
        yield serving


@pytest.fixture
def loader(driver: MeetingServer) -> Iterator[RankLoader]:
    loader = connect(driver.url, rank=0, timeout=60)
    yield loader
    loader.close()


class Raising:
    """A stream of a part that raises once: before a batch is taken from the part, or after it."""

    def __init__(self, stream: Iterator[Any], error: BaseException, after: bool) -> None:
        self._stream, self._error, self._after = stream, error, after

    def __next__(self) -> Any:
        if self._after:
            next(self._stream)
        raise self._error


def ids(batches: Iterator[dict[str, Any]]) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, bowstring.NullsError, ValueError])
def test_an_iterator_goes_on_after_an_error(loader: RankLoader, kind: type[BaseException], after: bool) -> None:
    whole = ids(iter(loader))
    assert sorted(whole) == list(range(2 * ROWS))
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "step": 0})
    batches = iter(loader)
    begun = ids(next(batches) for _ in range(5))
    loader._streams = [Raising(stream, kind("once"), after) for stream in loader._streams]  # type: ignore[misc]
    with pytest.raises(kind, match="once"):
        next(batches)
    assert (loader.epoch, loader.step) == (0, 5)
    assert begun + ids(batches) == whole
    assert (loader.epoch, loader.step) == (1, 0)
    assert next(batches, None) is None


def test_an_interrupt_before_the_batch_is_handed_over_takes_no_step(loader: RankLoader) -> None:
    class Turn:
        """A lock after whose release Python notices Ctrl-C."""

        def __init__(self) -> None:
            self._lock, self._times = threading.RLock(), 1

        def __enter__(self) -> None:
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()
            self._times -= 1
            if self._times == 0:
                raise KeyboardInterrupt

    whole = ids(iter(loader))
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "step": 0})
    batches = iter(loader)
    loader._turn = Turn()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert (loader.epoch, loader.step) == (0, 0)
    assert ids(iter(loader)) == whole


def test_threads_share_an_iterator(loader: RankLoader) -> None:
    batches, found, errors = iter(loader), [], []

    def take() -> None:
        try:
            for batch in batches:
                found.extend(batch["id"].tolist())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert sorted(found) == list(range(2 * ROWS))


def test_a_ranks_own_errors_wait_for_no_driver(loader: RankLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(loader, "_newer", lambda generation: asked.append(generation))
    for error in (bowstring.WideIntegersError("wide"), bowstring.CorruptError("damaged")):
        batches = iter(loader)
        next(batches)
        loader._streams = [Raising(stream, error, False) for stream in loader._streams]  # type: ignore[misc]
        with pytest.raises(type(error)):
            next(batches)
    assert asked == []
    loader._streams = [Raising(stream, bowstring.RemoteError("gone"), False) for stream in [iter(())] * 2]  # type: ignore[misc]
    with pytest.raises(bowstring.RemoteError, match="gone"):
        next(batches)
    assert asked == [0]


def test_a_closed_loader_says_so(driver: MeetingServer) -> None:
    loader = connect(driver.url, rank=0, timeout=60)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(bowstring.ClosedError, match="the loader was closed"):
        next(batches)


def test_loaders_of_parts_before_one_that_fails_are_closed(
    driver: MeetingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    part: Callable[..., Any] = RankLoader._part

    def one_fails(self: RankLoader, told: Any, of: Any) -> Any:
        if opened:
            raise bowstring.ConfigError("the second part")
        opened.append(part(self, told, of))
        return opened[-1]

    monkeypatch.setattr(RankLoader, "_part", one_fails)
    with pytest.raises(bowstring.ConfigError, match="the second part"):
        connect(driver.url, rank=0, timeout=60)
    with pytest.raises(bowstring.ClosedError):
        next(iter(opened[0]))
