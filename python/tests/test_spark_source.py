"""Spark's data source: frames to servers and directories in two phases, and back, with the same rows and types."""

from __future__ import annotations

import datetime
import os
import pathlib
import pickle
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import bowstring
import bowstring.spark
import pytest
from bowstring.flight import Connection, attempt_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyspark", reason="PySpark is not installed")

from bowstring.spark.types import conform  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PySpark's own
    pytest.mark.timeout(400),
]

SOAK = os.environ.get("BOWSTRING_SOAK") == "1"
WAIT = 200.0
EVERYTHING = """
    id, cast(id % 7 as tinyint) tiny, cast(id as smallint) small, cast(id as int) plain, cast(id as float) / 3 real,
    id / 7 as fine, id % 2 = 0 as even, if(id % 3 = 0, null, concat('row ', id)) word, cast(concat('b', id) as binary) bytes,
    cast(id as decimal(12, 3)) / 8 as price, cast(id as decimal(38, 10)) wide, date'2020-02-28' + cast(id as int) day,
    timestamp'2020-03-29 00:30:00.123456' + make_interval(0, 0, 0, 0, 0, 0, id * 600) instant,
    timestamp_ntz'2020-03-29 02:30:00.000001' wall, array(id, null, -id) numbers,
    if(id % 4 = 0, null, array(array(cast(id as float)), array())) nested,
    map('a', named_struct('deep', array(id, id + 1)), 'none', null) pairs,
    if(id % 5 = 0, null, named_struct('x', id, 'y', named_struct('z', cast(null as string)))) record
"""


@pytest.fixture(scope="module")
def server() -> Iterator[bowstring.flight.Server]:
    with bowstring.flight.Server(put="memory", memory_budget="1GiB") as server:
        yield server


@pytest.fixture(autouse=True)
def registered(spark: Any) -> None:
    bowstring.spark.register(spark)


@pytest.fixture
def place(request: pytest.FixtureRequest, server: bowstring.flight.Server, tmp_path: pathlib.Path) -> str:
    """A new dataset on a server, or in a directory."""
    name = re.sub("[^a-z]+", "-", request.node.name).strip("-")
    return f"{server.url}/{name}" if request.param == "server" else str(tmp_path / "dataset")


both = pytest.mark.parametrize("place", ["server", "directory"], indirect=True)


def write(frame: Any, url: str, mode: str = "append", **options: Any) -> None:
    frame.write.format("bowstring").options(**options).mode(mode).save(url)


def read(spark: Any, url: str, **options: Any) -> Any:
    return spark.read.format("bowstring").options(**options).load(url)


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


def until(true: Callable[[], bool], seconds: float = 120.0) -> bool:
    """Waits for a condition that stragglers of a failed job may still change."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def executor(worker: int) -> int:
    """Returns the JVM whose daemon started a Python worker, if executors are separate processes."""
    process = worker
    for _ in range(2):
        status = pathlib.Path(f"/proc/{process}/status").read_text()
        process = int(status.partition("PPid:")[2].split()[0])
    assert b"CoarseGrainedExecutorBackend" in pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    return process


def failing(how: str, always: bool) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Tasks 1 and 3 end in the middle of their rows, in the first attempt or in all. With executors, task 1 kills its own."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        those = (1,) if how == "executor" else (1, 3)
        fails = context.partitionId() in those and (always or context.attemptNumber() == 0)
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if fails and how == "raise":
                raise RuntimeError("this task was to fail")
            if fails:
                os.kill(executor(os.getpid()) if how == "executor" else os.getpid(), signal.SIGKILL)
                time.sleep(WAIT)  # until the daemon notices that its executor is gone
            yield batch.slice(batch.num_rows // 2)

    return work


def test_each_thread_and_session_writes_once_it_has_registered(spark: Any, tmp_path: pathlib.Path) -> None:
    """Spark finds a format in the session that is active in a thread, and a new thread has none."""
    url = str(tmp_path / "rows")

    def work() -> None:
        bowstring.spark.register(spark)
        write(spark.range(5), url)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result(WAIT)
    other = spark.newSession()
    bowstring.spark.register(other)
    write(other.range(5, 8), url)
    bowstring.spark.register(spark)
    write(spark.range(8, 10), url)
    assert ids(read(spark, url)) == list(range(10))


@both
def test_rows_and_types_come_back(spark: Any, place: str) -> None:
    frame = spark.range(0, 40, numPartitions=3).selectExpr(*_columns())
    write(frame, place)
    found = read(spark, place)
    types = [(field.name, field.dataType.simpleString()) for field in frame.schema]
    assert [(field.name, field.dataType.simpleString()) for field in found.schema] == types
    assert _sorted(found) == _sorted(frame)
    chosen = read(spark, place, columns="word,id", filter="id >= 38 and word is not null")
    assert chosen.columns == ["word", "id"]
    assert [tuple(row) for row in chosen.collect()] == [("row 38", 38)]
    write(frame, place)
    assert ids(read(spark, place)) == sorted([*range(40)] * 2)
    with bowstring.Loader(place, batch_size=16, columns=["id", "real"], rank=0, world_size=1) as loader:
        assert loader.rows == 80


def _columns() -> list[str]:
    depth, columns, start = 0, [], 0
    for at, letter in enumerate(EVERYTHING):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            columns.append(EVERYTHING[start:at])
            start = at + 1
    return [*columns, EVERYTHING[start:]]


def _sorted(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: row.id)


@both
def test_save_modes(spark: Any, place: str) -> None:
    frame = spark.range(0, 5, numPartitions=2)
    write(frame, place, if_exists="error")
    with pytest.raises(Exception, match="exists"):
        write(frame, place, if_exists="error")
    write(spark.range(7), place, if_exists="ignore")
    assert ids(read(spark, place)) == [*range(5)]
    write(spark.range(5, 8), place, "overwrite")
    assert ids(read(spark, place)) == [5, 6, 7]
    write(spark.range(0), place, "overwrite")
    assert ids(read(spark, place)) == []
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        frame.write.format("bowstring").save(place)


@both
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_retried_tasks_write_no_row_twice(spark: Any, place: str, how: str) -> None:
    frame = spark.range(0, 400, numPartitions=4)
    for turn in range(20 if SOAK else 1):
        write(frame.mapInArrow(failing(how, always=False), "id long"), f"{place}-{turn}")
        assert ids(read(spark, f"{place}-{turn}")) == [*range(400)], turn


@both
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_an_aborted_write_leaves_nothing(spark: Any, place: str, server: bowstring.flight.Server, how: str) -> None:
    frame = spark.range(0, 400, numPartitions=4)
    write(frame, place)
    before = _left(server, place)
    with pytest.raises(Exception, match="this task was to fail" if how == "raise" else "Python worker"):
        write(frame.mapInArrow(failing(how, always=True), "id long"), place, "overwrite")
    assert until(lambda: _left(server, place) == before)
    assert ids(read(spark, place)) == [*range(400)]


@both
@pytest.mark.parametrize("which", ["some", "all"])
def test_an_aborted_micro_batch_leaves_nothing(
    spark: Any, place: str, server: bowstring.flight.Server, which: str, tmp_path: pathlib.Path
) -> None:
    """Successful tasks have staged their rows when others fail; if all fail, nothing tells which attempt it was."""
    source, fails = tmp_path / "source", tmp_path / "fails"
    spark.range(0, 400, numPartitions=4).write.parquet(str(source))

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if fails.exists() and (which == "all" or context.partitionId() in (1, 3)):
            time.sleep(1)  # the other tasks have finished
            raise RuntimeError("this task was to fail")

    def run() -> None:
        stream = spark.readStream.schema("id long").parquet(str(source)).repartition(4).mapInArrow(work, "id long")
        query = stream.writeStream.format("bowstring").option("checkpointLocation", f"{tmp_path}/checkpoint")
        assert query.trigger(availableNow=True).start(place).awaitTermination(300)

    before = _left(server, place)
    fails.touch()
    with pytest.raises(Exception, match="this task was to fail"):
        run()
    assert until(lambda: _left(server, place) == before)
    fails.unlink()
    run()
    assert ids(read(spark, place)) == [*range(400)]
    assert "://" in place or not _left(server, place)


def _left(server: bowstring.flight.Server, place: str) -> int | list[str]:
    """Returns what is left beside the visible data: the server's bytes, or hidden directories."""
    if "://" in place:
        return _written(server)
    return [path.name for path in pathlib.Path(place).parent.iterdir() if path.name.startswith(".")]


def _written(server: bowstring.flight.Server) -> int:
    with Connection(server.url) as connection:
        return int(connection.action("stats", {})["written_bytes"])


def test_stragglers_of_an_aborted_write_are_refused(server: bowstring.flight.Server, tmp_path: pathlib.Path) -> None:
    from bowstring.spark.directory import Place

    schema = pa.schema([("id", pa.int64())])
    with Connection(server.url) as connection:
        connection.abort("late", "w")
        with pytest.raises(bowstring.ClosedError, match="aborted"):
            connection.put(attempt_of("late", "w", 0, 0), schema, [])
    place = Place(tmp_path / "late", "w")
    place.open()
    with pytest.raises(bowstring.ClosedError):
        _written_late(place)
    assert list(tmp_path.iterdir()) == []


def _written_late(place: Any) -> None:
    with place.guarded():
        late = place.attempt("0")
        place.remove()
        late.mkdir(parents=True)


def test_commits_may_be_repeated(server: bowstring.flight.Server, tmp_path: pathlib.Path) -> None:
    from bowstring.spark.directory import Place

    schema = pa.schema([("id", pa.int64())])
    with Connection(server.url) as connection:
        staged = connection.put(attempt_of("twice", "w", 0, 0), schema, [pa.record_batch({"id": [1, 2]})])
        for _ in range(2):
            connection.commit("twice", "w", "append", [staged["token"]])
        assert connection.rows("twice").total == 2
        assert connection.drop("twice")
        connection.commit("twice", "w", "append", [staged["token"]])
        assert not connection.exists("twice"), "a commit that was made brings nothing back"
    for _ in range(2):
        place = Place(tmp_path / "twice", "w")
        place.open()
        attempt = place.attempt("0")
        attempt.mkdir()
        (attempt / "part-00000.parquet").touch()
        assert place.publish([attempt], replace=False, create=False)
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_a_commit_of_many_tasks_fits_into_a_request(server: bowstring.flight.Server) -> None:
    def tokens(count: int) -> list[dict[str, int]]:
        return [{"task": task, "attempt": 0, "number": (1 << 48) - task} for task in range(count)]

    with Connection(server.url) as connection:
        with pytest.raises(bowstring.NotFoundError, match="attempt 0 of task 0"):
            connection.commit("many", "w", "append", tokens(60_000))
        with pytest.raises(
            bowstring.LimitError, match=r"100,000 tasks are too many for one commit; .*coalesce"
        ) as error:
            connection.commit("many", "w", "append", tokens(100_000))
        assert error.value.option == "action_bytes"


def test_tables_of_a_catalogue_are_refused_with_the_remedy(spark: Any, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "rows")
    write(spark.range(3), path)
    spark.sql(f"CREATE TABLE catalogued (id bigint) USING bowstring OPTIONS (path '{path}')")
    try:
        for statement in ("SELECT * FROM catalogued", "INSERT INTO catalogued SELECT 1"):
            with pytest.raises(Exception, match=r"option path: .*CREATE TEMPORARY VIEW name USING bowstring"):
                spark.sql(statement).collect()
    finally:
        spark.sql("DROP TABLE catalogued")
    spark.sql(f"CREATE TEMPORARY VIEW viewed USING bowstring OPTIONS (path '{path}')")
    try:
        assert ids(spark.table("viewed")) == [0, 1, 2]
    finally:
        spark.sql("DROP VIEW viewed")


def test_filters_are_pushed_down_where_they_mean_the_same(spark: Any, server: bowstring.flight.Server) -> None:
    from bowstring.spark import filters
    from pyspark.sql import datasource as source

    schema = spark.sql("select 1L id, 'a' word, 1.5D x, true b, date'2020-01-01' day").schema
    pushed = [
        source.GreaterThan(("id",), 3),
        source.Not(source.EqualTo(("word",), "it's")),
        source.GreaterThan(("x",), 1.0),  # NaN is greatest in Spark
        source.In(("id",), (1, 2)),
        source.In(("id",), (1, None)),
        source.IsNotNull(("x",)),
        source.LessThanOrEqual(("day",), datetime.date(2020, 1, 2)),
        source.EqualTo(("b",), True),
        source.StringContains(("word",), "a"),
        source.EqualTo(("id",), 1.5),
        source.EqualTo(("a", "b"), 1),
    ]
    told = filters.text(filters.known(pushed, schema))
    assert told == (
        """("id" > 3) and (not ("word" = 'it''s')) and ("id" in (1, 2)) and ("x" is not null) """
        """and ("day" <= '2020-01-02') and ("b" = true)"""
    )
    url = f"{server.url}/pushed"
    write(spark.range(0, 100, numPartitions=2).selectExpr("id", "concat('w', id) word"), url)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        found = read(spark, url, pushdown="true").filter("id > 90 and word like 'w9%' and id % 2 = 0")
        assert ids(found) == [92, 94, 96, 98]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@both
def test_a_stream_writes_each_micro_batch_once(spark: Any, place: str, tmp_path: pathlib.Path) -> None:
    """The last commit is replayed from the checkpoint repeatedly, as after drivers that died just before recording it."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    for part in range(2):
        spark.range(part * 10, part * 10 + 10, numPartitions=2).write.parquet(str(source / f"{part}"))

    def run() -> None:
        stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 2).parquet(f"{source}/*")
        query = stream.writeStream.format("bowstring").option("checkpointLocation", str(checkpoint))
        query = query.trigger(availableNow=True).start(place)
        assert query.awaitTermination(300)

    run()
    assert ids(read(spark, place)) == [*range(20)]
    for _ in range(20 if SOAK else 1):
        commits = checkpoint / "commits"
        for path in [commits / "1", commits / ".1.crc"]:
            path.unlink(missing_ok=True)
        run()
        assert ids(read(spark, place)) == [*range(20)]


def test_loaders_and_spark_agree_on_the_dates_of_directories(spark: Any, tmp_path: pathlib.Path) -> None:
    days = [datetime.date(2026, 1, 31), datetime.date(1969, 12, 31), None]
    frame = spark.createDataFrame([(row, days[row % 3]) for row in range(30)], "id long, day date")
    frame.coalesce(1).write.partitionBy("day").parquet(str(tmp_path / "days"))
    options: dict[str, Any] = {"batch_size": 30, "shuffle": False, "nulls": {"day": "mask"}}
    read = spark.read.parquet(str(tmp_path / "days"))
    expected = {row.id: row.day for row in read.collect()}
    with bowstring.Loader(tmp_path / "days", partitioning="dates", **options) as loader:
        batch = next(iter(loader))
        found = batch["day"].astype("M8[D]").tolist()
        assert {
            int(i): day if valid else None
            for i, day, valid in zip(batch["id"], found, batch["day__valid"], strict=True)
        } == expected
        order = batch["id"].tolist()
    with bowstring.Loader(tmp_path / "days", partitioning="dates", filter="day > '2026-01-01'", **options) as loader:
        assert loader.rows == read.where("day > '2026-01-01'").count() == 10
    # Text as before unless dates are requested, in the same order.
    with bowstring.Loader(tmp_path / "days", **options) as loader:
        batch = next(iter(loader))
        assert set(batch["day"]) == {"2026-01-31", "1969-12-31", None}
        assert batch["id"].tolist() == order


def test_a_partition_of_dates_has_the_type_that_spark_gives_it(spark: Any, tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "days")
    columns = ("id", "date'2024-02-28' + cast(id % 3 as int) day", "concat('2024-02-', id % 2 + 29) code")
    frame = spark.range(6).selectExpr(*columns, "if(id = 5, null, date'2024-01-01') hole")
    # 2024-02-30 is not a date, so that column is text.
    frame.write.partitionBy("day", "code", "hole").parquet(path)
    theirs, ours = spark.read.parquet(path), read(spark, path)
    assert dict(ours.dtypes) == dict(theirs.dtypes) == {"id": "bigint", "day": "date", "code": "string", "hole": "date"}
    names = ["id", "day", "code", "hole"]
    assert ours.select(names).sort("id").collect() == theirs.select(names).sort("id").collect()
    # Read by bowstring, to cover the filter.
    some = read(spark, path, filter="id >= 4").select(names).sort("id")
    assert dict(some.dtypes)["day"] == "date"
    assert some.collect() == theirs.select(names).filter("id >= 4").sort("id").collect()


def reader_of(path: pathlib.Path) -> Any:
    """Returns the reader that Spark uses for the directory."""
    from bowstring.spark import read
    from bowstring.spark.options import SourceOptions

    options = SourceOptions.read({"path": str(path)})
    return read.reader(options, read.schema(options))


def test_a_rewritten_directory_is_not_a_mixture(tmp_path: pathlib.Path) -> None:
    def write(tag: str) -> None:
        for number in range(2):
            pq.write_table(pa.table({"v": [f"{tag} {number}"] * 3}), tmp_path / f"part-0000{number}.parquet")

    write("old")
    reader = reader_of(tmp_path)
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions()]
    assert [value for batch in reader.read(parts[0]) for value in batch.column(0).to_pylist()] == ["old 0"] * 3
    begun = iter(reader.read(parts[1]))
    assert next(begun).column(0).to_pylist() == ["old 1"] * 3
    write("newer")
    for rest in (begun, iter(reader.read(parts[1]))):
        with pytest.raises(bowstring.SourceChangedError, match="rows were added, or it was written anew"):
            list(rest)


@pytest.mark.parametrize(
    "added",
    [
        {"id": [9]},
        {"id": [9], "x": pa.nulls(1)},
        {"id": [9], "x": pa.array([1], pa.int8())},
        {"id": [9], "x": ["text"]},
    ],
)
def test_a_read_of_a_directory_has_the_rows_and_columns_that_were_there_when_it_was_planned(
    tmp_path: pathlib.Path, added: dict[str, Any]
) -> None:
    rows = [{"id": 1, "x": 1 << 40}, {"id": 2, "x": 3}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "m.parquet", row_group_size=1)
    early, late = reader_of(tmp_path), reader_of(tmp_path)
    parts = early.partitions()
    pq.write_table(pa.table(added), tmp_path / "a.parquet")  # before the other file
    assert [row for part in parts for batch in early.read(part) for row in batch.to_pylist()] == rows
    with pytest.raises(bowstring.SourceChangedError, match="rows were added"):
        late.partitions()


def test_rows_read_by_an_own_server_have_no_deadline_and_are_for_their_task_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bowstring.flight import Connection
    from bowstring.spark import read
    from bowstring.spark.options import SourceOptions

    class Kept(Connection):
        def __init__(self, url: str, storage_options: Any, **more: Any) -> None:
            urls.append(url)
            super().__init__(url, storage_options, **{"timeout": 1, **more})

    urls: list[str] = []
    monkeypatch.setattr(read, "Connection", Kept)
    monkeypatch.setenv("BOWSTRING_TOKEN", "a-token-for-another-server")
    pq.write_table(pa.table({"id": range(20_000)}), tmp_path / "a.parquet", row_group_size=100)
    options = SourceOptions.read({"path": str(tmp_path), "filter": "id >= 0", "parts": "1"})
    reader = read.reader(options, read.schema(options))
    batches = iter(reader.read(reader.partitions()[0]))
    rows = next(batches).num_rows
    with Connection(urls[-1], {"token": "a-token-that-is-a-guess"}) as other, pytest.raises(bowstring.Error):
        other.rows("files")
    time.sleep(1.5)  # the task is slow
    assert rows + sum(batch.num_rows for batch in batches) == 20_000


def test_a_deadline_is_reported_with_its_seconds(tmp_path: pathlib.Path) -> None:
    from bowstring.flight import Connection

    pq.write_table(pa.table({"id": range(1_000_000)}), tmp_path / "a.parquet", row_group_size=1000)
    with (
        bowstring.flight.Server({"x": str(tmp_path)}) as server,
        Connection(server.url, timeout=2) as connection,
        pytest.raises(bowstring.TimeoutError, match=r"DoGet at .*: took longer than timeout \(2 s\)"),
    ):
        all(time.sleep(0.05) is None for _ in connection.rows("x"))
    with pytest.raises(bowstring.ConfigError, match="no port from 1 to 65535"):
        Connection("grpc://127.0.0.1:99999")


def test_times_of_int96_may_be_of_any_year(tmp_path: pathlib.Path) -> None:
    times = [datetime.datetime(9999, 12, 31, 23, 59, 59), datetime.datetime(2024, 1, 1), datetime.datetime(1, 1, 1)]
    table = pa.table({"t": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    reader = reader_of(tmp_path)
    found = [
        value for part in reader.partitions() for batch in reader.read(part) for value in batch.column(0).to_pylist()
    ]
    assert found == [time.replace(tzinfo=datetime.timezone.utc) for time in times]


def test_times_of_int96_are_instants_in_columns_of_any_name_and_kind(tmp_path: pathlib.Path) -> None:
    import pyarrow.dataset as ds
    from bowstring.spark.instants import with_instants

    time = pa.timestamp("us")
    kinds = {
        "a.t": (time, datetime.datetime(2026, 1, 1)),
        "a": (pa.struct([("n.o", pa.int64()), ("t.u", time)]), {"n.o": 1, "t.u": datetime.datetime(2026, 1, 1)}),
        "large": (pa.large_list(time), [datetime.datetime(2026, 1, 1)]),
        "fixed": (pa.list_(time, 1), [datetime.datetime(2026, 1, 1)]),
    }
    table = pa.table({name: pa.array([value], kind) for name, (kind, value) in kinds.items()})
    pq.write_table(
        table.append_column("id", pa.array([1])), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True
    )
    files = list(ds.dataset(tmp_path, format="parquet").get_fragments())
    found = with_instants(table.schema, files)
    instant = pa.timestamp("us", "UTC")
    assert found.types == [
        instant,
        pa.struct([("n.o", pa.int64()), ("t.u", instant)]),
        pa.large_list(instant),
        pa.list_(instant, 1),
    ]
    # Without times, no file is asked.
    plain = pa.schema([("id", pa.int64())])
    assert with_instants(plain, iter(lambda: pytest.fail("it was asked"), None)) == plain


def test_the_converter_takes_columns_with_dots(spark: Any) -> None:
    from bowstring.petastorm.spark import _materialize

    frame = spark.createDataFrame([(1.5, 2.5)], "`a.b` double, `c``d` double")
    found = _materialize._in_precision(frame, "float32")
    assert found.dtypes == [("a.b", "float"), ("c`d", "float")]


@pytest.mark.parametrize("options", [{}, {"filter": "id > 0"}])
def test_times_of_int96_are_instants(spark: Any, tmp_path: pathlib.Path, options: dict[str, str]) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        told = "timestamp'2026-07-01 12:00:00 UTC'"
        frame = spark.range(3).selectExpr(
            "id", f"{told} t", f"array({told}) list", f"named_struct('a', {told}) s", "timestamp_ntz'2026-07-01' n"
        )
        frame.coalesce(1).write.parquet(f"{tmp_path}/d")
        theirs = spark.read.parquet(f"{tmp_path}/d")
        ours = read(spark, f"{tmp_path}/d", **options)
        assert [(field.name, field.dataType) for field in ours.schema] == [
            (field.name, field.dataType) for field in theirs.schema
        ]
        condition = options.get("filter", "true")
        assert sorted(map(repr, ours.collect())) == sorted(map(repr, theirs.where(condition).collect()))
        assert ours.where(f"t >= {told}").count() == theirs.where(condition).count()
        assert ours.where(f"t < {told}").count() == 0
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
        spark.conf.unset("spark.sql.parquet.outputTimestampType")


def test_nulls_in_a_column_that_has_none_by_its_schema_are_named() -> None:
    """As of ``spark.read.schema("id long NOT NULL")``."""
    batch = pa.record_batch({"word": ["a", None], "id": [1, None]})
    wanted = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with pytest.raises(bowstring.NullsError, match="'id' has 1 nulls, and its schema says NOT NULL"):
        conform(batch, wanted)
    assert conform(batch.slice(0, 1), wanted).to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("name", ["A", "c"])
def test_a_field_within_a_column_that_is_not_there_is_named(name: str) -> None:
    """As of ``spark.read.schema("st struct<A:long>")``: a cast would make it null."""
    batch = pa.record_batch({"st": [[{"a": 1, "b": 2}]]})
    kind = pa.struct([("a", pa.int64()), (name, pa.int64())])
    with pytest.raises(bowstring.NotFoundError, match=f"column 'st' has no field '{name}'"):
        conform(batch, pa.schema([("st", pa.list_(kind))]))
    some = pa.list_(pa.struct([("b", pa.int64())]))
    assert conform(batch, pa.schema([("st", some)])).to_pylist() == [{"st": [{"b": 2}]}]


def test_unsupported_requests_are_reported(spark: Any, tmp_path: pathlib.Path) -> None:
    for url, options, word in [
        ("grpc://127.0.0.1:1", {}, "names no dataset"),
        ("s3://bucket/x", {}, "a directory that all executors see"),
        (str(tmp_path / "x"), {"if_exists": "maybe"}, "is not one of append"),
    ]:
        with pytest.raises(Exception, match=word):
            write(spark.range(1), url, **options)
    with pytest.raises(Exception, match="not found"):
        read(spark, str(tmp_path / "nothing")).count()
    with pytest.raises(bowstring.RemoteError, match=r"127\.0\.0\.1:1"):
        Connection("grpc://127.0.0.1:1", timeout=20).rows("x")
