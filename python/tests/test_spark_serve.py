"""From Spark's executors to ranks: each row once, in equal steps, through slow and killed ranks and tasks, without files."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import bowstring.spark
import pytest
from bowstring.flight import Connection

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason="PySpark is not installed")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PySpark's own
    pytest.mark.timeout(400),
]

SOAK = os.environ.get("BOWSTRING_SOAK") == "1"
ROWS = 603
WAIT = 200.0

RANK = """
import json, os, sys, time
import bowstring.spark
url, rank, state, pause = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
with bowstring.spark.connect(url, rank=rank, timeout=200) as loader:
    if os.path.exists(state):
        loader.load_state_dict(json.load(open(state)))
    while loader.epoch < 2:
        epoch = loader.epoch
        for batch in loader:
            ids = batch["id"][batch["_mask"]].tolist()
            print(json.dumps([epoch, loader.step, ids]), flush=True)
            # After the last step of an epoch the loader is at the end of it still; the state says so.
            with open(state + ".new", "w") as file:
                json.dump(loader.state_dict(), file)
            os.replace(state + ".new", state)
            time.sleep(pause)
"""


def frame(spark: Any, tasks: int = 3) -> Any:
    return spark.range(0, ROWS, numPartitions=tasks).selectExpr(
        "id", "cast(id as float) / 2 x", "concat('row ', id) word", "array(id, id + 1) pair"
    )


def ranks(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Runs `work` for each rank in its own thread."""
    found: list[Any] = [None] * count

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def epochs(loader: Any, count: int, pause: float = 0.0) -> list[list[list[int]]]:
    """Returns the ids of each step of some epochs."""
    found = []
    for _ in range(count):
        steps = []
        for batch in loader:
            numbers = batch["id"][batch["_mask"]].tolist()
            steps.append(numbers)
            assert (batch["x"] * 2 == batch["id"]).all()
            assert list(batch["word"])[: len(numbers)] == [f"row {number}" for number in numbers]
            time.sleep(pause)
        assert len(steps) == len(loader)
        found.append(steps)
    return found


def exact(found: list[list[list[list[int]]]]) -> None:
    """Checks that each epoch has every row once, and the same steps on all ranks."""
    for epoch in zip(*found, strict=True):
        assert len({len(steps) for steps in epoch}) == 1
        assert sorted(number for steps in epoch for step in steps for number in step) == list(range(ROWS))


def serve(spark: Any, world_size: int = 4, **options: Any) -> Any:
    given: dict[str, Any] = {
        "batch_size": 20,
        "seed": 5,
        "lists": {"pair": bowstring.Padded(2)},
        "timeout": WAIT,
        "patience": WAIT,
        "tail": "pad",
        **options,
    }
    df = given.pop("df", None)
    return bowstring.spark.serve(frame(spark) if df is None else df, world_size, **given)


def parts(handle: Any, generation: int = 0, **storage: str) -> list[dict[str, Any]]:
    """Returns the addresses at which the tasks of a generation serve."""
    with Connection(handle.url, storage) as driver:
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            told = driver.action("spark.rank", {"rank": 0, "wait": 1})
            if told["state"] == "ready" and told["generation"] >= generation:
                return list(told["parts"])
            assert told["state"] != "failed", told
    raise AssertionError("Spark does not serve")


def test_a_job_refused_by_spark_is_reported_once(spark: Any) -> None:
    """A barrier stage cannot follow coalesce(), however often it is submitted."""
    with bowstring.spark.serve(frame(spark, 4).coalesce(1), 1, batch_size=10) as handle:
        with pytest.raises(bowstring.RemoteError, match=r"Spark refuses the job: .*coalesce\(\).*tasks=") as caught:
            handle.wait(WAIT)
        assert "submitted" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_type_that_arrow_lacks_is_named(spark: Any) -> None:
    df = spark.range(8).selectExpr("id", "make_interval(1, 2, 3) AS span")
    with (
        serve(spark, 1, df=df) as handle,
        pytest.raises(
            bowstring.RemoteError, match=r"the driver failed: UnsupportedError: column 'span' is .*CalendarIntervalType"
        ),
    ):
        handle.wait(WAIT)


def test_every_row_once_in_equal_steps(spark: Any) -> None:
    with serve(spark) as handle:

        def work(rank: int) -> Any:
            with handle.loader(rank) as loader:
                assert (loader.rows, loader.world_size, loader.rank) == (ROWS, 4, rank)
                found = epochs(loader, 2)
                state = loader.state_dict()
                loader.set_epoch(1)
                assert epochs(loader, 1) == found[1:], "an epoch is replayed as it was"
                loader.load_state_dict({**state, "epoch": 0, "step": 4})
                assert epochs_from(loader) == found[0][4:], "a position is reached again"
                return found

        found = ranks(4, work)
        handle.wait(WAIT)
    exact(found)
    assert found[0][0] != found[0][1], "epochs are shuffled"


def test_no_row_is_repeated_without_a_tail(spark: Any) -> None:
    frame = spark.range(0, 10, numPartitions=2)
    with bowstring.spark.serve(frame, 4, batch_size=2, timeout=WAIT, patience=WAIT) as handle:

        def work(rank: int) -> list[list[int]]:
            with handle.loader(rank) as loader:
                return [batch["id"].tolist() for batch in loader]

        found = ranks(4, work)
        handle.wait(WAIT)
    assert len({len(steps) for steps in found}) == 1
    assert sorted(number for steps in found for step in steps for number in step) == list(range(10))


def test_a_frame_without_partitions_has_no_steps(spark: Any) -> None:
    with bowstring.spark.serve(spark.range(3).filter("false"), 1, batch_size=2, timeout=WAIT) as handle:
        with handle.loader(0) as loader:
            assert (len(loader), loader.rows, list(loader)) == (0, 0, [])
        handle.wait(WAIT)


def epochs_from(loader: Any) -> list[list[int]]:
    return [batch["id"][batch["_mask"]].tolist() for batch in loader]


def test_a_slow_rank_keeps_memory_within_its_budget(spark: Any) -> None:
    budget = 64 << 20
    with serve(spark, memory=budget) as handle:
        places = parts(handle)
        used: list[int] = []
        ended = threading.Event()

        def watch() -> None:
            connections = [Connection(part["url"]) for part in places]
            while not ended.is_set():
                used.extend(one.action("stats", {})["memory"]["used"] for one in connections)
                ended.wait(0.2)

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()

        def work(rank: int) -> Any:
            with handle.loader(rank) as loader:
                return epochs(loader, 1, pause=0.1 if rank == 0 else 0.01)

        found = ranks(4, work)
        ended.set()
        watching.join(60)
        handle.wait(WAIT)
    exact(found)
    assert used
    assert max(used) <= budget


class Created:
    """Records the names of all files created below a directory, by inotify."""

    CREATE, MOVED_TO = 0x100, 0x80

    def __init__(self, root: pathlib.Path) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.at = self.libc.inotify_init1(os.O_NONBLOCK)
        if self.at < 0:
            pytest.skip("the system gives no inotify instance")
        self.paths: dict[int, pathlib.Path] = {}
        # Spark looks for a block on disk by creating the directory it would be in.
        for blocks in root.glob("blockmgr-*"):
            for number in range(64):
                (blocks / f"{number:02x}").mkdir(exist_ok=True)
        for path in [root, *root.rglob("*")]:
            if path.is_dir():
                watch = self.libc.inotify_add_watch(self.at, os.fsencode(path), self.CREATE | self.MOVED_TO)
                self.paths[watch] = path

    def read(self) -> list[str]:
        found = []
        while True:
            try:
                events = os.read(self.at, 1 << 16)
            except BlockingIOError:
                return found
            while events:
                watch, _, _, length = (int.from_bytes(events[n : n + 4], "little") for n in (0, 4, 8, 12))
                name = events[16 : 16 + length].rstrip(b"\0").decode()
                found.append(str(self.paths[watch] / name))
                events = events[16 + length :]

    def close(self) -> None:
        os.close(self.at)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Rank:
    """A rank in a separate process."""

    def __init__(self, url: str, rank: int, directory: pathlib.Path, pause: float = 0.0) -> None:
        self.arguments = [url, str(rank), str(directory / f"state-{rank}"), str(pause)]
        self.directory = directory
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(pathlib.Path(bowstring.__file__).parents[1]),
            "TMPDIR": str(self.directory),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self.directory,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        self.lines.append(self.process.stdout.readline())
        return self.lines[-1]

    def kill(self) -> None:
        self.process.kill()
        # `line` has read ahead: `communicate` alone would lose lines in the stream's buffer.
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        self.process.communicate()
        # The last line may be incomplete.
        self.lines += [line for line in out.splitlines(keepends=True) if line.endswith("\n")]

    def end(self) -> dict[tuple[int, int], list[int]]:
        """Returns ids by epoch and step; a repeated step must have had the same ones."""
        out, error = self.process.communicate(timeout=WAIT)
        assert self.process.returncode == 0, error
        found: dict[tuple[int, int], list[int]] = {}
        for line in [*self.lines, *out.splitlines()]:
            epoch, step, numbers = json.loads(line)
            assert found.setdefault((epoch, step), numbers) == numbers
        return found


def exact_steps(found: list[dict[tuple[int, int], list[int]]]) -> None:
    assert len({tuple(sorted(one)) for one in found}) == 1, "equal steps"
    for epoch in range(2):
        numbers = [number for one in found for (at, _), step in one.items() if at == epoch for number in step]
        assert sorted(numbers) == list(range(ROWS))


def test_ranks_start_first_and_no_file_is_made(
    spark: Any, spark_directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Watches every place that Spark, its workers and the ranks may write to, except the ranks' own states."""
    url = f"grpc://127.0.0.1:{free_port()}"
    made = Created(spark_directory)
    running = [Rank(url, rank, tmp_path) for rank in range(4)]
    try:
        made.read()
        with serve(spark, listen=url.removeprefix("grpc://")) as handle:
            found = [rank.end() for rank in running]
            handle.wait(WAIT)
        assert made.read() == []
    finally:
        for rank in running:
            rank.process.kill()
        made.close()
    exact_steps(found)
    assert {path.name for path in tmp_path.iterdir()} == {f"state-{rank}" for rank in range(4)}


@pytest.mark.parametrize("run", range(20 if SOAK else 2))
def test_a_killed_rank_resumes_at_its_position(spark: Any, tmp_path: pathlib.Path, run: int) -> None:
    random_ = random.Random(run)
    print("seed", run)
    with serve(spark) as handle:
        running = [Rank(handle.url, rank, tmp_path, pause=0.01) for rank in range(4)]
        try:
            victim = running[random_.randrange(4)]
            for _ in range(random_.randrange(1, 10)):
                victim.line()
            victim.kill()
            victim.start()
            found = [rank.end() for rank in running]
        finally:
            for rank in running:
                rank.process.kill()
        handle.wait(WAIT)
    exact_steps(found)


def through(
    handle: Any, world: int, at: int, kill: Callable[[], None], then: Callable[[Any], Any] = lambda _: []
) -> Any:
    """Reads an epoch on each rank and calls `kill` after `at` steps; returns each rank's steps and the result of `then`."""
    here = threading.Barrier(world, action=kill)

    def work(rank: int) -> Any:
        with handle.loader(rank, timeout=WAIT) as loader:
            steps = []
            for batch in loader:
                steps.append(batch["id"][batch["_mask"]].tolist())
                if len(steps) == at:
                    here.wait(WAIT)
            return [steps, *then(loader)]

    return ranks(world, work)


@pytest.mark.parametrize("run", range(20 if SOAK else 2))
def test_rows_are_exact_after_a_task_is_killed(spark: Any, run: int) -> None:
    random_ = random.Random(run)
    print("seed", run)
    with serve(spark) as handle:
        victim = int(random_.choice(parts(handle))["process"].rpartition(":")[2])
        found = through(handle, 4, random_.randrange(1, 9), lambda: os.kill(victim, signal.SIGKILL))
        handle.wait(WAIT)
    exact(found)


def slowly(stream: Iterator[Any]) -> None:
    for _ in stream:
        time.sleep(0.2)


def forever(loader: Any) -> None:
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        epochs_from(loader)
        time.sleep(0.05)


def test_other_rows_after_a_task_was_killed_are_an_error(spark: Any, tmp_path: pathlib.Path) -> None:
    changes = tmp_path / "changes"

    def other(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch.slice(1) if changes.exists() else batch

    df = frame(spark)
    with serve(spark, 1, df=df.mapInArrow(other, df.schema), batch_size=5) as handle, handle.loader(0) as loader:
        stream = iter(loader)
        next(stream)
        changes.touch()
        os.kill(int(parts(handle)[0]["process"].rpartition(":")[2]), signal.SIGKILL)
        with pytest.raises(bowstring.MismatchError, match="other rows"):
            slowly(stream)


def test_rows_beyond_the_memory_are_spilled_or_refused(spark: Any, tmp_path: pathlib.Path) -> None:
    wide = frame(spark, 2).selectExpr("*", "randstr(16000, 7) ballast")
    spill = tmp_path / "spill"
    spill.mkdir()
    with serve(spark, 2, df=wide, memory="2MiB", spill=str(spill), columns=["id", "x", "word"]) as handle:
        assert len(parts(handle)) > 2, "a task has two parts: memory and files"
        assert list(spill.iterdir())

        def work(rank: int) -> Any:
            with handle.loader(rank) as loader:
                return epochs(loader, 2)

        exact(ranks(2, work))
        handle.wait(WAIT)
    assert list(spill.iterdir()) == []
    # Another attempt would have the same rows, and compute all of them again.
    for given, why in (
        ({}, "raise memory, or set spill"),
        ({"spill": str(tmp_path / "nowhere")}, "option spill: .*nowhere"),
    ):
        with (
            serve(spark, 2, df=wide, memory="2MiB", **given) as handle,
            pytest.raises(bowstring.RemoteError, match=why) as caught,
        ):
            handle.wait(WAIT)
        assert "submitted" not in str(caught.value)


def test_an_option_that_no_loader_has_is_refused_before_spark_computes(spark: Any) -> None:
    for name, meant in (("colums", "did you mean columns="), ("num_workers", "num_workers is not an option")):
        with pytest.raises(bowstring.UnknownOptionError, match=meant):
            serve(spark, 2, **{name: 1})


def test_missing_and_silent_ranks_end_the_job(spark: Any) -> None:
    with (
        serve(spark, 2, timeout=1.0) as handle,
        pytest.raises(bowstring.RemoteError, match=r"rank 0 did not come within .* \(option timeout\)"),
    ):
        handle.wait(WAIT)
    with serve(spark, 2, patience=5.0) as handle:
        lost = handle.loader(1)
        lost._closed = True  # its heartbeats end, as if the process were gone
        with (
            pytest.raises(bowstring.RemoteError, match=r"rank \d was silent for .* \(option patience\)"),
            handle.loader(0) as loader,
        ):
            forever(loader)
        lost._end()
        with pytest.raises(bowstring.RemoteError, match="silent"):
            handle.wait(WAIT)


def test_every_iter_is_a_pass(spark: Any) -> None:
    with serve(spark, 1, batch_size=30) as handle, handle.loader(0) as loader:
        steps = len(loader)
        older = iter(loader)
        state = loader.state_dict()
        for _ in range(3):
            next(older)
        newer = iter(loader)
        with pytest.raises(bowstring.ClosedError, match="newest iterator"):
            next(older)
        assert (loader.epoch, loader.step) == (1, 0)
        second = [sorted(batch["id"].tolist()) for batch in newer]
        assert (len(second), loader.epoch, loader.step) == (steps, 2, 0)
        loader.load_state_dict({**state, "epoch": 1, "step": 2})
        loader.set_epoch(1)
        assert [sorted(batch["id"].tolist()) for batch in loader] == second[2:]
        next(iter(loader))
        loader.set_epoch(1)
        assert len(list(loader)) == steps
        loader.load_state_dict({**state, "epoch": 1, "step": steps})
        assert [len(list(loader)) for _ in range(2)] == [0, steps]


def test_the_driver_closes(spark: Any) -> None:
    with serve(spark, 1, batch_size=1) as handle:
        loader = handle.loader(0)
        stream = iter(loader)
        next(stream)
        handle.close()
        with pytest.raises(bowstring.RemoteError, match="the driver closed it"):
            forever(loader)
        loader._end()
