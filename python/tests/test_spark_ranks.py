"""A rank's loader of a hand-off through errors, Ctrl-C and threads: driver and executors are in this process, without Spark."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402
from bowstring.flight import Server  # noqa: E402
from bowstring.spark import RankLoader, connect, spilled  # noqa: E402
from bowstring.spark.meeting import Meeting, MeetingServer  # noqa: E402
from conftest import package_environment  # noqa: E402

pytestmark = pytest.mark.timeout(120)

ROWS = 100


@contextlib.contextmanager
def handing(
    directory: pathlib.Path, world_size: int, **options: Any
) -> Iterator[tuple[MeetingServer, list[dict[str, Any]]]]:
    """A driver, and two parts with 100 rows each, which it does not serve yet."""
    for part in range(2):
        pq.write_table(pa.table({"id": range(part * ROWS, (part + 1) * ROWS)}), directory / f"{part}.parquet")
    meeting = Meeting(world_size, {"batch_size": 10, "seed": 1, "shuffle": True, **options}, 600, 60)
    door = dict.fromkeys(("token", "tls_cert", "tls_key", "client_ca"))
    with (
        Server({str(part): str(directory / f"{part}.parquet") for part in range(2)}) as executor,
        MeetingServer(meeting, "127.0.0.1:0", **door) as serving,
    ):
        yield serving, [{"rows": ROWS, "digest": part, "url": f"{executor.url}/{part}"} for part in range(2)]


def hand(serving: MeetingServer, generation: int, parts: list[dict[str, Any]]) -> None:
    """One task serves."""
    serving.change("begin", generation)
    serving.change("post", generation, 0, 1, parts, time.monotonic())


@pytest.fixture
def driver(tmp_path: pathlib.Path) -> Iterator[MeetingServer]:
    """Two parts with 100 rows each, for one rank."""
    with handing(tmp_path, 1) as (serving, parts):
        hand(serving, 0, parts)
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


def forever(loader: RankLoader) -> None:
    while True:
        ids(iter(loader))


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


def test_a_rank_finds_the_next_generation_while_it_opens(tmp_path: pathlib.Path) -> None:
    """An executor dies as a rank opens: it does not wait its whole timeout for the address of the dead."""
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))  # without listen(): connections are refused
        with handing(tmp_path, 1) as (serving, parts):
            hand(serving, 0, [parts[0], {**parts[1], "url": f"grpc://127.0.0.1:{gone.getsockname()[1]}/1"}])
            timer = threading.Timer(2, hand, (serving, 1, parts))
            timer.start()
            began = time.monotonic()
            with connect(serving.url, rank=0, timeout=90) as loader:
                assert time.monotonic() - began < 30
                assert sorted(ids(iter(loader))) == list(range(2 * ROWS))
            timer.join()


def test_a_rank_comes_back_after_it_closed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    action: Callable[..., Any] = MeetingServer.do_action

    def counted(self: MeetingServer, context: Any, asked: Any) -> Any:
        calls.append(asked.type)
        return action(self, context, asked)

    monkeypatch.setattr(MeetingServer, "do_action", counted)
    with handing(tmp_path, 2) as (serving, parts):
        hand(serving, 0, parts)
        other = connect(serving.url, rank=1, timeout=60)
        for _ in range(2):
            with connect(serving.url, rank=0, timeout=60) as loader:
                assert len(ids(iter(loader))) == ROWS
                calls.clear()
                time.sleep(3)
                assert calls.count("spark.rank") < 8, "a heartbeat waits for news"
        with connect(serving.url, rank=0, timeout=60) as loader:
            other.close()
            assert not serving.over, "rank 0 has not finished"
            assert len(ids(iter(loader))) == ROWS
        assert serving.over
        with pytest.raises(bowstring.RemoteError, match="all ranks have closed their loaders"):
            connect(serving.url, rank=0, timeout=60)


def test_two_processes_with_one_rank_are_an_error(tmp_path: pathlib.Path) -> None:
    here = f"{socket.gethostname()}:{os.getpid()}"
    with handing(tmp_path, 2) as (serving, parts):
        hand(serving, 0, parts)
        older = connect(serving.url, rank=0, timeout=60)
        next(iter(older))
        newer = connect(serving.url, rank=0, timeout=60)
        with pytest.raises(bowstring.RemoteError, match=f"rank 0 is here twice: {here} and then {here}; give each"):
            forever(older)
        older.close()
        assert not serving.over
        assert len(ids(iter(newer))) == ROWS, "the newer one has the rank"
        newer.close()


def test_a_new_process_takes_the_place_of_a_dead_one() -> None:
    meeting = Meeting(2, {}, 600, 60)
    assert not meeting.arrive(0, "first", "host:1")
    assert not meeting.arrive(0, "first", "host:1")
    assert meeting.rank(0, 1.0, "first")["state"] == "waiting"
    assert meeting.arrive(0, "second", "host:2")
    assert meeting.rank(0, 2.0, "second")["state"] == "waiting"
    # Its last heartbeat was on its way; it takes nothing back.
    assert not meeting.arrive(0, "first", "host:1")
    assert meeting.rank(0, 3.0, "first") == {
        "state": "failed",
        "why": "rank 0 is here twice: host:1 and then host:2; give each process a rank of its own",
    }
    assert meeting.seen == {0: 2.0}
    meeting.leave(0, "first")
    assert meeting.done == set()
    # Ranks of the version before have no ids.
    assert not meeting.arrive(0, None, "None")
    assert meeting.rank(0, 4.0)["state"] == "waiting"
    meeting.leave(0, None)
    assert meeting.done == {0}
    assert not meeting.arrive(5, "other", "host:3")
    assert meeting.rank(5, 4.0, "other")["state"] == "failed"


@pytest.mark.parametrize("name", ["LANES", "FILTER", "COLUMNS", "ORDER_VERSION", "TAIL"])
def test_a_variable_of_one_rank_does_not_change_its_rows(
    driver: MeetingServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"BOWSTRING_{name}", "3")
    with pytest.raises(bowstring.ConfigError, match=f"BOWSTRING_{name} is set here") as error:
        connect(driver.url, rank=0, timeout=60)
    assert error.value.option == name.lower()
    monkeypatch.delenv(f"BOWSTRING_{name}")
    monkeypatch.setenv("BOWSTRING_SEED", "7")  # the hand-off has a seed
    monkeypatch.setenv("BOWSTRING_PREFETCH", "3")
    with connect(driver.url, rank=0, timeout=60) as loader:
        assert len(ids(iter(loader))) == 2 * ROWS


@pytest.mark.parametrize("kept", [2, 3, 100, 101, 102])
def test_a_filter_may_keep_fewer_rows_of_a_part_than_there_are_ranks(tmp_path: pathlib.Path, kept: int) -> None:
    """Such a part has a step with repeated rows, as one of so few rows would."""
    with handing(tmp_path, 3, filter=f"id < {kept}") as (serving, parts), contextlib.ExitStack() as stack:
        hand(serving, 0, parts)
        loaders = [stack.enter_context(connect(serving.url, rank=rank, timeout=60)) for rank in range(3)]
        assert {loader.rows for loader in loaders} == {kept}
        assert len({len(loader) for loader in loaders}) == 1
        assert {number for loader in loaders for number in ids(iter(loader))} == set(range(kept))


SPILLING = """
import sys, time
import pyarrow as pa
from bowstring.flight.server import Server
from bowstring.spark import spilled

place = spilled.made(sys.argv[1])
server = Server(listen="127.0.0.1:0", put=place)
server.write("rows").stage(pa.table({"id": [1]}).to_reader())
print(place, flush=True)
time.sleep(600)
"""


def test_spilled_rows_of_a_killed_task_are_removed_by_the_next_one(tmp_path: pathlib.Path) -> None:
    of_others = tmp_path / "bowstring-spill-others" / ".bowstring"
    of_others.mkdir(parents=True)
    (of_others / "_lock").touch()
    os.utime(of_others.parent, (1, 1))
    command = [sys.executable, "-c", SPILLING, str(tmp_path)]
    with subprocess.Popen(command, env=package_environment(), stdout=subprocess.PIPE, text=True) as task:
        try:
            assert task.stdout is not None
            place = pathlib.Path(task.stdout.readline().strip())
            os.utime(place, (1, 1))
            spilled.made(str(tmp_path))
            assert place.exists(), "its task lives"
        finally:
            task.kill()
    young = pathlib.Path(spilled.made(str(tmp_path)))
    assert not place.exists()
    assert young.exists()
    assert of_others.exists()
    with pytest.raises(bowstring.ConfigError, match=r"option spill: .*nowhere is not a directory"):
        spilled.made(str(tmp_path / "nowhere"))


def test_errors_that_come_again_are_told_from_those_of_lost_tasks() -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    from bowstring.spark.handle import _refused

    text = "Job aborted: ...\nTraceback (most recent call last):\n  File ...\nbowstring.errors.{}\n\tat org.apache..."
    for certain in (
        "LimitError: rows of a task do not fit into 9 bytes: raise memory, or set spill",
        "ConfigError: option spill: /nowhere is not a directory",
        "UnsupportedError: column 'x': string to int32",
        "NullsError: column 'x' has 3 nulls, and its schema says NOT NULL",
    ):
        assert _refused(Exception(text.format(certain))) == f"Spark's job failed: {certain}"
    for passing in (
        "LimitError: 9 clients are served",
        "StoreError: no space left",
        "RemoteError: the driver has not answered",
    ):
        assert _refused(Exception(text.format(passing))) is None
    assert _refused(Exception("PythonException: ... ValueError: of a user's function")) is None
    # Each is what another attempt at a job of a stopped session ends with, or the first one.
    for stopped in (
        "org.apache.spark.SparkException: Job 3 cancelled because SparkContext was shut down",
        "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
        "'NoneType' object has no attribute 'setCallSite'",
    ):
        assert _refused(Exception(stopped)) == "Spark's session was stopped before the ranks were done"
