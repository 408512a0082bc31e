"""Spark Connect: a client without a JVM or a SparkContext, which supports everything except RDDs and Hadoop's settings."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import bowstring.spark
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason="PySpark is not installed")
import pyarrow as pa
from test_spark_serve import ROWS, WAIT, epochs, exact, frame, parts, serve, through
from test_spark_source import ids, read, write

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PySpark's own
    pytest.mark.timeout(400),
]


@pytest.fixture(scope="module")
def spark(spark_sessions: Callable[..., Any]) -> Iterator[Any]:
    """A client of a Connect server that runs in this process's JVM; the client knows only its port."""
    for name in ("grpc", "grpc_status", "google.rpc", "pandas", "zstandard"):
        if importlib.util.find_spec(name.partition(".")[0]) is None or importlib.util.find_spec(name) is None:
            pytest.skip(f"Spark Connect needs {name}: pip install 'pyspark[connect]'")
    plugin = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    classic = spark_sessions("local[4,3]", **plugin)
    service = getattr(getattr(classic._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    from pyspark.sql import SparkSession

    before = dict(os.environ)
    session = SparkSession.builder.remote(f"sc://127.0.0.1:{service.localPort()}").create()
    assert os.environ["SPARK_CONNECT_MODE_ENABLED"] == "1"
    with pytest.raises(AttributeError):
        _ = session.sparkContext
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(before)


def test_rows_come_back(spark: Any, tmp_path: pathlib.Path) -> None:
    bowstring.spark.register(spark)
    rows = frame(spark)
    with bowstring.flight.Server(put="memory", memory_budget="256MiB") as server:
        for place in (f"{server.url}/rows", str(tmp_path / "rows")):
            write(rows, place, if_exists="error")
            found = read(spark, place)
            assert found.dtypes == rows.dtypes
            assert sorted(found.collect()) == sorted(rows.collect())
            with pytest.raises(Exception, match="exists"):
                write(rows, place, if_exists="error")


def test_a_stream_writes_its_rows(spark: Any, tmp_path: pathlib.Path) -> None:
    bowstring.spark.register(spark)
    spark.range(0, 40, numPartitions=2).write.parquet(str(tmp_path / "source"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "source"))
    with bowstring.flight.Server(put="memory", memory_budget="256MiB") as server:
        query = stream.writeStream.format("bowstring").option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert query.trigger(availableNow=True).start(f"{server.url}/rows").awaitTermination(300)
        assert ids(read(spark, f"{server.url}/rows")) == [*range(40)]


def test_rows_to_ranks_through_a_killed_task(spark: Any) -> None:
    with serve(spark, 2, listen="0.0.0.0:0", insecure=True) as handle:
        assert "0.0.0.0" not in handle.url, "the server's tasks find their client"
        victim = int(parts(handle)[0]["process"].rpartition(":")[2])

        def again(loader: Any) -> list[Any]:
            parts(handle, generation=1)  # the tasks ran a second time
            return epochs(loader, 1)

        found = through(handle, 2, 3, lambda: os.kill(victim, signal.SIGKILL), again)
        handle.wait(WAIT)
    exact(found)


def test_failures_carry_their_reason_and_a_close_ends_the_tasks(spark: Any) -> None:
    wide = frame(spark, 2).selectExpr("*", "randstr(16000, 7) ballast")
    with (
        serve(spark, 1, df=wide, memory="2MiB", attempts=1) as handle,
        pytest.raises(bowstring.RemoteError, match="raise memory, or set spill"),
    ):
        handle.wait(WAIT)

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            threading.Event().wait(WAIT)
            yield batch

    with serve(spark, 1, df=frame(spark).mapInArrow(slowly, frame(spark).schema)) as handle:
        handle.close()  # waits for the job, whose tasks are still running
        with pytest.raises(bowstring.RemoteError, match="the driver closed it"):
            handle.wait(WAIT / 10)


def test_gangs_models_and_shards(spark: Any, tmp_path: pathlib.Path) -> None:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            pass
        gang = bowstring.spark.gang()
        yield pa.record_batch({"everyone": [",".join(gang.all_gather(f"{gang.rank}/{gang.world_size}"))]})

    rows = frame(spark).select("id", "x", "word")
    gangs = rows.mapInArrow(work, "everyone string", barrier=True).collect()
    assert [row.everyone for row in gangs] == ["0/3,1/3,2/3"] * 3
    scored = bowstring.spark.predict(
        rows, lambda: lambda batch: {"double": batch["x"] * 2}, batch_size=50, columns=["x"], schema="double float"
    )
    assert [(row.id, row.double) for row in scored.collect()] == [(number, float(number)) for number in range(ROWS)]
    report = bowstring.spark.convert(spark, rows, str(tmp_path / "shards"), to="mds", shards=3)
    assert (report.rows, report.files) == (ROWS, 3)
    assert bowstring.convert(tmp_path / "shards", tmp_path / "again", from_format="mds", to="parquet").rows == ROWS


def test_features_of_classic_sessions_are_refused(spark: Any, tmp_path: pathlib.Path) -> None:
    from bowstring.petastorm.etl.dataset_metadata import materialize_dataset
    from bowstring.petastorm.spark import make_spark_converter
    from bowstring.petastorm.spark_utils import dataset_as_rdd

    url = f"file://{tmp_path}/dataset"
    with pytest.raises(bowstring.UnsupportedError, match="classic"), materialize_dataset(spark, url, None):
        pass
    with pytest.raises(bowstring.UnsupportedError, match="classic"):
        dataset_as_rdd(url, spark)
    spark.conf.set("petastorm.spark.converter.parentCacheDirUrl", f"file://{tmp_path}/cache")
    converter = make_spark_converter(spark.range(10))
    assert len(converter) == 10
    converter.delete()
    assert not list((tmp_path / "cache").iterdir())
