"""Conversions whose tasks run on executors: every format, the same result as a local conversion, nothing lost or torn by kills."""

from __future__ import annotations

import functools
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import bowstring.spark
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyspark", reason="PySpark is not installed")

from bowstring.spark import conversion  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PySpark's own
    pytest.mark.timeout(400),
]

FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "fixtures"
SOAK = "BOWSTRING_SOAK" in os.environ


def hidden(directory: pathlib.Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


def frame(spark: Any) -> Any:
    return spark.range(0, 90, numPartitions=3).selectExpr("id", "cast(id as float) x", "concat('row ', id) word")


@pytest.mark.parametrize(
    "to", ["parquet", "petastorm", "arrow", "csv", "jsonl", "tfrecord", "webdataset", "mds", "datasets"]
)
def test_a_frame_into_every_format_of_rows(spark: Any, tmp_path: pathlib.Path, to: str) -> None:
    url = tmp_path / "rows"
    report = bowstring.spark.convert(spark, frame(spark), str(url), to=to, shards=3, verify=True)
    assert (report.rows, report.files, report.to_format, report.verified) == (90, 3, to, True)
    frame(spark).write.parquet(str(tmp_path / "spark"))
    assert bowstring.verify(tmp_path / "spark", url, a_format="parquet", b_format=to)
    with pytest.raises(bowstring.ConfigError, match="overwrite"):
        bowstring.spark.convert(spark, frame(spark), str(url), to=to)
    again = bowstring.spark.convert(spark, frame(spark).where("id < 10"), str(url), to=to, overwrite=True)
    assert (again.rows, again.unchanged) == (10, False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows", "spark"]


@pytest.mark.parametrize("to", ["csv", "json"])
def test_trees_that_spark_partitions_keep_their_columns(spark: Any, tmp_path: pathlib.Path, to: str) -> None:
    places = ["K\u00f6ln/Deutz", "a b=c%", "2024-01-01", None]
    values = [(number, f"row {number}", 7 + number % 2, places[number % 4]) for number in range(40)]
    written = spark.createDataFrame(values, "id long, word string, month int, place string")
    url = tmp_path / to
    written.write.partitionBy("month", "place").option("header", True).format(to).save(str(url))
    for number, convert in enumerate([bowstring.convert, functools.partial(bowstring.spark.convert, spark)]):
        out = tmp_path / f"out-{number}"
        report = convert(str(url), str(out), to="parquet", verify=True)
        assert (report.rows, report.from_format) == (40, "jsonl" if to == "json" else to)
        table = pq.read_table(out)
        assert table.schema.names == ["id", "word", "month", "place"]
        assert table.schema.field("month").type == pa.int64()
        found = [tuple(row.values()) for row in table.to_pylist()]
        assert sorted(found, key=lambda row: row[0]) == values


def test_files_of_rows_have_unique_names(spark: Any, tmp_path: pathlib.Path) -> None:
    """Formats that name rows, or write a file for each, from several tasks."""
    arrays = frame(spark).selectExpr("array(id) x")
    several = {"target_file_size": 1, "verify": True}
    report = bowstring.spark.convert(spark, arrays, str(tmp_path / "arrays"), to="numpy", **several)
    assert (report.rows, report.files, report.tasks) == (90, 90, 3)
    photos = spark.read.parquet(str(FIXTURES / "imagenet40.parquet")).select("image").repartition(3)
    report = bowstring.spark.convert(spark, photos, str(tmp_path / "images"), to="images", **several)
    assert (report.rows, report.files, report.tasks) == (40, 40, 3)
    bowstring.spark.convert(spark, frame(spark), str(tmp_path / "tars"), to="webdataset", shards=3)
    # Read as shards of another writer, which have keys.
    (tmp_path / "tars" / "_SUCCESS").unlink()
    bowstring.convert(tmp_path / "tars", tmp_path / "keys", to="parquet")
    keys = pq.read_table(tmp_path / "keys").column("__key__").to_pylist()
    assert len(keys) == len(set(keys)) == 90


@pytest.mark.parametrize(
    ("source", "format"),
    [
        ("convert/webdataset", "webdataset"),
        ("convert/mds/zstd", "mds"),
        ("spark43_parquet/many_rowgroups", "parquet"),
        ("petastorm/petastorm_legacy_0.7.6", "petastorm"),
    ],
)
def test_a_dataset_converts_on_executors_as_it_does_locally(
    spark: Any, tmp_path: pathlib.Path, source: str, format: str
) -> None:
    src, there, here = FIXTURES / source, tmp_path / "there", tmp_path / "here"
    report = bowstring.spark.convert(spark, src, str(there), to="arrow", shards=2)
    assert report.from_format == format
    assert bowstring.convert(src, here, to="arrow", shards=2).rows == report.rows > 0
    names = sorted(path.name for path in here.iterdir())
    assert sorted(path.name for path in there.iterdir()) == names
    for name in names:
        if not name.startswith("_"):
            assert (here / name).read_bytes() == (there / name).read_bytes(), name
    # A second run does nothing.
    assert bowstring.spark.convert(spark, str(src), str(there), to="arrow", shards=2).unchanged
    assert hidden(tmp_path) == []


def test_impossible_conversions_are_refused_before_tasks_start(spark: Any, tmp_path: pathlib.Path) -> None:
    to = str(tmp_path / "rows")
    for options, match in [
        ({"to": "lance"}, "lance"),
        ({"to": "csv", "jobs": 2}, "jobs"),
        ({"to": "csv", "shuffle": 1}, "shuffle"),
        ({"to": "csv", "resume": True}, "resume"),
        ({"to": "csv", "from_format": "csv"}, "from_format"),
        ({"to": "csv", "shards": 0}, "shards"),
        ({"to": "csv", "nonsense": 1}, "nonsense"),
    ]:
        with pytest.raises(bowstring.ConfigError, match=match):
            bowstring.spark.convert(spark, frame(spark), to, **options)
    never = "assert_true(false, 'no row is computed') is null never"
    with pytest.raises(bowstring.UnsupportedError, match="pair"):
        bowstring.spark.convert(spark, frame(spark).selectExpr("array(id) pair", never), to, to="csv")
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    with pytest.raises(bowstring.ConfigError, match="overwrite"):
        bowstring.spark.convert(spark, frame(spark).selectExpr("id", never), str(full), to="csv")
    with pytest.raises(bowstring.Error):
        bowstring.spark.convert(spark, frame(spark).selectExpr("id", never), str(full / "file"), to="csv")
    (full / "file").unlink()
    full.rmdir()
    with pytest.raises(bowstring.NotFoundError):
        bowstring.spark.convert(spark, tmp_path / "nothing", to, to="csv")
    with pytest.raises(bowstring.ConfigError, match="directory that all executors see"):
        bowstring.spark.convert(spark, frame(spark), "s3://bucket/rows", to="csv")
    assert os.listdir(tmp_path) == []


def test_a_frame_without_rows_has_its_columns(spark: Any, tmp_path: pathlib.Path) -> None:
    for number, rows in enumerate([frame(spark).where("id < 0"), spark.createDataFrame([], "id long, word string")]):
        report = bowstring.spark.convert(spark, rows, str(tmp_path / str(number)), to="parquet")
        assert report.rows == 0
        assert set(report.schema) == set(rows.columns)


def test_nothing_is_left_when_a_task_fails(spark: Any, tmp_path: pathlib.Path) -> None:
    rows = frame(spark).selectExpr("id", "assert_true(id < 80) is null x")
    with pytest.raises(Exception, match="is not true"):
        bowstring.spark.convert(spark, rows, str(tmp_path / "rows"), to="jsonl")
    # Attempts that Spark did not wait for have no directory to write to.
    end = time.monotonic() + 30
    while os.listdir(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert os.listdir(tmp_path) == []


def writers(attempts: pathlib.Path) -> Iterator[int]:
    """Yields processes that have a file open below ``attempts``."""
    for process in pathlib.Path("/proc").iterdir():
        try:
            # Java has many files open, but is not a worker.
            looked_at = process.name.isdigit() and (process / "comm").read_text().strip() != "java"
            files = [os.readlink(file) for file in (process / "fd").iterdir()] if looked_at else []
        except OSError:
            continue
        if any(file.startswith(f"{attempts}/") for file in files):
            yield int(process.name)


def lines(directory: pathlib.Path, files: int, each: int = 20_000) -> pathlib.Path:
    """Writes JSON Lines that keep a task busy for a while."""
    directory.mkdir()
    for number in range(files):
        rows = range(number * each, (number + 1) * each)
        text = "".join(f'{{"id": {row}, "word": "row {row}", "x": [{row}.5, 2.0, 3.0]}}\n' for row in rows)
        (directory / f"{number}.jsonl").write_text(text)
    return directory


@pytest.mark.parametrize("_run", range(20 if SOAK else 1))
def test_rows_are_exact_after_a_task_is_killed(spark: Any, tmp_path: pathlib.Path, _run: int) -> None:
    each = 150_000 if SOAK else 50_000
    src = lines(tmp_path / "lines", 4, each=each)
    killed: list[int] = []

    def kill(attempts: pathlib.Path, over: threading.Event) -> None:
        while not killed and not over.is_set():
            for victim in writers(attempts):
                # Only workers have these files open, the driver has none.
                assert victim != os.getpid()
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
                break

    # Tasks may finish before the test finds them writing: then it tries again.
    for number in range(5):
        to, over = tmp_path / f"rows{number}", threading.Event()
        attempts = tmp_path / f".{to.name}.bowstring-convert" / "attempts"
        killing = threading.Thread(target=kill, args=(attempts, over), daemon=True)
        killing.start()
        report = bowstring.spark.convert(spark, src, str(to), to="mds", shards=4)
        over.set()
        killing.join(60)
        if killed:
            break
    assert killed
    assert report.rows == 4 * each
    assert bowstring.verify(src, to, a_format="jsonl", b_format="mds")
    assert hidden(tmp_path) == []


def test_resume_does_the_remaining_work(spark: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src, to = lines(tmp_path / "lines", 4), str(tmp_path / "rows")
    task = conversion._task

    def failing(*given: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
        work, left = task(*given), given[-1]

        def some(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                if 3 in (left[number] for number in batch.column(0).to_pylist()):
                    raise RuntimeError("task 3 was to fail")
                yield from work(iter([batch]))

        return some

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "_task", failing)
        for resume in (False, True):
            with pytest.raises(Exception, match="task 3 was to fail"):
                bowstring.spark.convert(spark, src, to, to="arrow", shards=4, resume=resume)
            assert not (tmp_path / "rows").exists()
    with pytest.raises(bowstring.ConfigError, match="an interrupted conversion"):
        bowstring.spark.convert(spark, src, to, to="arrow", shards=4)
    report = bowstring.spark.convert(spark, src, to, to="arrow", shards=4, resume=True)
    assert (report.rows, report.tasks, report.resumed_tasks) == (80_000, 4, 3)
    assert bowstring.verify(src, to, a_format="jsonl", b_format="arrow")
    assert hidden(tmp_path) == []
