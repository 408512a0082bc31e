"""Executors in separate processes: everything that Spark runs here, and rows that are exact after such a process is killed."""

from __future__ import annotations

import os
import pathlib
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import bowstring.spark
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason="PySpark is not installed")
import pyarrow as pa
from test_spark_serve import ROWS, SOAK, WAIT, epochs, exact, frame, parts, ranks, serve, through
from test_spark_source import executor, failing, ids, read, write

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PySpark's own
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def spark(spark_sessions: Callable[..., Any]) -> Any:
    """Two executors with two slots each."""
    try:
        session = spark_sessions(
            "local-cluster[2,2,1024]",
            **{
                "spark.executor.memory": "1g",
                # A new executor starts within seconds after one is lost; Spark would look for its slots after 15.
                "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
            },
        )
        session.range(0, 4, numPartitions=4).collect()
    except Exception as error:
        pytest.skip(f"Spark's local-cluster does not start here: {error}")
    bowstring.spark.register(session)
    return session


@pytest.mark.parametrize("run", range(20 if SOAK else 1))
def test_rows_are_exact_after_an_executor_is_killed(spark: Any, run: int) -> None:
    random_ = random.Random(run)
    print("seed", run)
    with serve(spark, 2, df=frame(spark, 4)) as handle:
        executors = {executor(int(part["process"].rpartition(":")[2])) for part in parts(handle)}
        assert len(executors) == 2

        def again(_: Any) -> list[Any]:
            parts(handle, generation=1)  # the tasks ran a second time
            return []

        def kill() -> None:
            os.kill(random_.choice(sorted(executors)), signal.SIGKILL)

        found = through(handle, 2, random_.randrange(1, 15), kill, again)
        handle.wait(WAIT)
    exact(found)


def test_rows_of_tasks_are_the_same_after_an_executor_is_killed(spark: Any, tmp_path: pathlib.Path) -> None:
    """With ``tasks`` the rows cross a shuffle, which yields them as they arrive from other executors."""
    frame(spark, 4).write.parquet(str(tmp_path / "rows"))
    rows = spark.read.parquet(str(tmp_path / "rows"))
    options: dict[str, Any] = {"df": rows, "tasks": 2, "timeout": WAIT}
    computed = []
    for _ in range(6):
        with serve(spark, 2, **options) as handle:
            computed.append([(part["rows"], part["digest"]) for part in parts(handle)])
    assert computed[1:] == computed[:-1], "a state of one job belongs to the rows of the next"
    with serve(spark, 2, **options) as handle:
        victim = executor(int(parts(handle)[0]["process"].rpartition(":")[2]))
        found = through(handle, 2, 5, lambda: os.kill(victim, signal.SIGKILL))
        handle.wait(WAIT)
    exact(found)


@pytest.mark.parametrize("_run", range(20 if SOAK else 1))
def test_writes_are_exact_after_an_executor_is_killed(spark: Any, tmp_path: pathlib.Path, _run: int) -> None:
    rows = spark.range(0, 400, numPartitions=4).mapInArrow(failing("executor", always=False), "id long")
    with bowstring.flight.Server(put="memory", memory_budget="256MiB") as server:
        for place in (f"{server.url}/rows", str(tmp_path / "rows")):
            write(rows, place)
            assert ids(read(spark, place)) == [*range(400)], place
    assert [path.name for path in tmp_path.iterdir()] == ["rows"], "what the killed ones wrote is removed"


def test_a_gang_spans_executors(spark: Any) -> None:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            pass
        gang = bowstring.spark.gang()
        here = f"{gang.rank}/{gang.world_size} {gang.local_rank} {gang.environment()['MASTER_PORT']}"
        process = executor(os.getpid())
        yield pa.record_batch({"process": [process], "everyone": [",".join(gang.all_gather(here))]})

    found = spark.range(0, 8, numPartitions=4).mapInArrow(work, "process long, everyone string", barrier=True).collect()
    assert len({row.process for row in found}) == 2
    [everyone] = {row.everyone for row in found}
    said = [one.split() for one in everyone.split(",")]
    assert [one[:2] for one in said] == [[f"{rank}/4", f"{rank}"] for rank in range(4)]
    assert len({port for _, _, port in said}) == 1


def test_models_and_shards(spark: Any, tmp_path: pathlib.Path) -> None:
    rows = frame(spark, 4).select("id", "x", "word")
    scored = bowstring.spark.predict(
        rows, lambda: lambda batch: {"double": batch["x"] * 2}, batch_size=50, columns=["x"], schema="double float"
    )
    assert [(row.id, row.double) for row in scored.collect()] == [(number, float(number)) for number in range(ROWS)]
    report = bowstring.spark.convert(spark, rows, str(tmp_path / "shards"), to="mds", shards=4)
    assert (report.rows, report.files) == (ROWS, 4)
    assert bowstring.convert(tmp_path / "shards", tmp_path / "again", from_format="mds", to="parquet").rows == ROWS


def test_epochs_from_two_executors(spark: Any) -> None:
    with serve(spark, 2, df=frame(spark, 4)) as handle:

        def work(rank: int) -> Any:
            with handle.loader(rank) as loader:
                return epochs(loader, 2)

        exact(ranks(2, work))
        handle.wait(WAIT)
