"""Writing with Spark and converting data frames, if PySpark is installed; the real Petastorm reads the result if there is one."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import subprocess
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import bowstring
import bowstring.spark
import numpy as np
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

import pyarrow as pa
import pyarrow.parquet as pq
from bowstring.flight import Address, Connection
from bowstring.petastorm import make_reader
from bowstring.petastorm.codecs import CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from bowstring.petastorm.etl.dataset_metadata import materialize_dataset
from bowstring.petastorm.spark import _sources, make_spark_converter
from bowstring.petastorm.spark_utils import dataset_as_rdd
from bowstring.petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PySpark's own
    pytest.mark.timeout(300),
]


@pytest.fixture(autouse=True)
def cache(spark: Any, tmp_path: pathlib.Path) -> None:
    spark.conf.set("bowstring.converter.cacheDir", f"file://{tmp_path}/cache")


def schema() -> Unischema:
    from pyspark.sql.types import DecimalType, IntegerType

    return Unischema(
        "Mine",
        [
            UnischemaField("id", np.int32, (), ScalarCodec(IntegerType()), False),
            UnischemaField("price", Decimal, (), ScalarCodec(DecimalType(10, 2)), False),
            UnischemaField("flag", np.bool_, (), None, False),
            UnischemaField("word", np.str_, (), None, True),
            UnischemaField("matrix", np.float32, (None, 3), NdarrayCodec(), True),
            UnischemaField("packed", np.int16, (2,), CompressedNdarrayCodec(), False),
        ],
    )


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "price": Decimal(number) / 4,
        "flag": number % 2 == 0,
        "word": None if number == 3 else f"w{number}",
        "matrix": None if number == 2 else np.full((number % 3, 3), number, np.float32),
        "packed": np.array([number, -number], np.int16),
    }


READ_BY_PETASTORM = """
import json, sys, petastorm
with petastorm.make_reader(sys.argv[1], reader_pool_type="dummy", shuffle_row_groups=False) as reader:
    rows = list(reader)
arrays = [[row.matrix is None or row.matrix.tolist(), row.packed.tolist()] for row in rows]
scalars = [[int(row.id), str(row.price), bool(row.flag), row.word] for row in rows]
print(json.dumps([one + other for one, other in zip(scalars, arrays)]))
"""


def test_written_and_read(spark: Any, tmp_path: pathlib.Path) -> None:
    url, mine = f"file://{tmp_path}/dataset", schema()
    with materialize_dataset(spark, url, mine, row_group_size_mb=1):
        rows = [dict_to_spark_row(mine, row(number)) for number in range(10)]
        spark.createDataFrame(rows, mine.as_spark_schema()).coalesce(1).write.parquet(url)
    assert spark.sparkContext._jsc.hadoopConfiguration().get("parquet.block.size") is None
    with make_reader(url, shuffle_row_groups=False) as reader:
        found = [
            [int(r.id), str(r.price), bool(r.flag), r.word, r.matrix is None or r.matrix.tolist(), r.packed.tolist()]
            for r in reader
        ]
    assert [values[0] for values in found] == list(range(10))
    assert found[4] == [4, "1.00", True, "w4", [[4.0] * 3], [4, -4]]
    assert [values[3] for values in found[2:5]] == ["w2", None, "w4"]
    assert dataset_as_rdd(url, spark, [mine.id, mine.packed]).count() == 10
    python = os.environ.get("PETASTORM_PYTHON")
    if python is not None:
        done = subprocess.run([python, "-c", READ_BY_PETASTORM, url], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout.strip().splitlines()[-1]) == found


def test_nothing_is_stored_after_an_error(spark: Any, tmp_path: pathlib.Path) -> None:
    with pytest.raises(KeyError), materialize_dataset(spark, f"file://{tmp_path}/dataset", schema()):
        raise KeyError("mine")
    assert not (tmp_path / "dataset").exists()


def test_converter(spark: Any) -> None:
    pytest.importorskip("torch")

    def frame() -> Any:
        return spark.range(100).selectExpr("id", "cast(id as double) / 3 as x", "array(cast(id as double), 1.5D) as v")

    converter = make_spark_converter(frame())
    assert len(converter) == 100
    assert make_spark_converter(frame()).cache_dir_url == converter.cache_dir_url
    with converter.make_torch_dataloader(batch_size=30, num_epochs=1, shuffle_row_groups=False) as loader:
        batches = list(loader)
    assert [len(batch["id"]) for batch in batches] == [30, 30, 30, 10]
    assert str(batches[0]["x"].dtype) == str(batches[0]["v"].dtype) == "torch.float32"
    assert batches[0]["v"].shape == (30, 2)
    folder = pathlib.Path(converter.cache_dir_url.removeprefix("file://"))
    assert folder.exists()
    converter.delete()
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="compression_codec"):
        make_spark_converter(frame(), compression_codec="rar")
    with pytest.raises(ValueError, match="float32"):
        make_spark_converter(frame(), dtype="float16")


def test_a_slash_at_the_end_of_the_cache_stores_nothing_twice(spark: Any, tmp_path: pathlib.Path) -> None:
    first = make_spark_converter(spark.range(7))
    spark.conf.set("bowstring.converter.cacheDir", f"file://{tmp_path}/cache/")
    assert make_spark_converter(spark.range(7)).cache_dir_url == first.cache_dir_url
    assert len(list((tmp_path / "cache").iterdir())) == 1
    first.delete()


def test_frames_that_differ_in_names_are_stored_each(spark: Any) -> None:
    """Spark's ``sameSemantics`` holds for them."""
    frame = spark.range(3).selectExpr("id as x", "id + 10 as y")
    pytest.importorskip("torch")
    found = {}
    for columns in (("x as feature", "y as label"), ("x as label", "y as feature")):
        converter = make_spark_converter(frame.selectExpr(*columns))
        with converter.make_torch_dataloader(batch_size=3, num_epochs=1) as loader:
            [batch] = loader
        found[columns[0]] = sorted(batch["feature"].tolist())
        again = make_spark_converter(frame.selectExpr(*columns))
        assert again.cache_dir_url == converter.cache_dir_url
    assert found == {"x as feature": [0, 1, 2], "x as label": [10, 11, 12]}


def test_a_cache_with_a_percent_sign_in_its_name_is_deleted(spark: Any, tmp_path: pathlib.Path) -> None:
    """Hadoop writes to ``a%20b``, and other data may be in ``a b``."""
    spark.conf.set("bowstring.converter.cacheDir", f"file://{tmp_path}/a%20b")
    converter = make_spark_converter(spark.range(5))
    assert len(list((tmp_path / "a%20b").iterdir())) == 1
    converter.delete()
    assert not list((tmp_path / "a%20b").iterdir())


def test_converter_of_a_directory(spark: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/mine"
    spark.range(20).write.parquet(url)
    spark.conf.unset("bowstring.converter.cacheDir")
    converter = make_spark_converter(url)
    assert (converter.cache_dir_url, len(converter)) == (url, 20)
    pytest.importorskip("torch")
    with converter.make_torch_dataloader(batch_size=30, num_epochs=1) as loader:
        assert sorted(next(iter(loader))["id"].tolist()) == list(range(20))
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "15")
    with pytest.raises(ValueError, match="dbfs:/x"):
        make_spark_converter(url)


def test_a_converter_has_the_rows_of_the_present_files(spark: Any, tmp_path: pathlib.Path) -> None:
    data = str(tmp_path / "data")
    spark.range(5).coalesce(1).write.parquet(data)
    old = spark.read.parquet(data)
    first = make_spark_converter(old)
    assert make_spark_converter(spark.read.parquet(data)).cache_dir_url == first.cache_dir_url
    spark.range(5, 9).coalesce(1).write.mode("append").parquet(data)
    assert len(make_spark_converter(spark.read.parquet(data))) == 9
    assert make_spark_converter(old).cache_dir_url == first.cache_dir_url
    # In its place, under its own name.
    for file in pathlib.Path(data).glob("part-*.parquet"):
        pq.write_table(pa.table({"id": range(50, 57)}), file)
        (file.parent / f".{file.name}.crc").unlink()
    assert len(make_spark_converter(spark.read.parquet(data))) == 14


def test_a_converter_knows_files_of_other_file_systems(spark: Any, tmp_path: pathlib.Path) -> None:
    """Here of ``viewfs``, which shows a local directory as a file system of Hadoop."""
    conf = spark._jsc.hadoopConfiguration()
    conf.set("fs.viewfs.mounttable.shown.link./data", f"file://{tmp_path}/shown")
    data, local = "viewfs://shown/data/of one", tmp_path / "shown" / "of one"
    spark.range(6).repartition(3).write.parquet(str(local))

    def touch(seconds: float) -> None:
        for file in local.glob("*.parquet"):
            os.utime(file, (seconds, seconds))

    touch(5.25)
    first = make_spark_converter(spark.read.parquet(data))
    assert make_spark_converter(spark.read.parquet(data)).cache_dir_url == first.cache_dir_url
    pq.write_table(pa.table({"id": range(50, 57)}), local / "part-more.parquet")
    touch(6.25)
    second = make_spark_converter(spark.read.parquet(data))
    assert len(second) == 13
    # One file alone, in its place.
    one = make_spark_converter(spark.read.parquet(f"{data}/part-more.parquet"))
    assert len(one) == 7
    assert make_spark_converter(spark.read.parquet(f"{data}/part-more.parquet")).cache_dir_url == one.cache_dir_url
    pq.write_table(pa.table({"id": range(3)}), local / "part-more.parquet")
    touch(7.25)
    assert len(make_spark_converter(spark.read.parquet(f"{data}/part-more.parquet"))) == 3
    # As of a store whose times are whole seconds, and which has no tags.
    touch(8.0)
    urls = {make_spark_converter(spark.read.parquet(data)).cache_dir_url for _ in range(2)}
    assert len(urls) == 2
    for gone in (f"{data}/part-gone.parquet".replace(" ", "%20"), "nofs://bucket/a.parquet"):
        with pytest.raises(_sources.UnknownError, match=f"size and time of {gone} "):
            _sources._stamped_away(spark, [gone])


def test_a_converter_knows_files_behind_caches_and_subqueries(spark: Any, tmp_path: pathlib.Path) -> None:
    data = str(tmp_path / "data")

    def cached() -> Any:
        return spark.read.parquet(data).cache()

    def counted() -> Any:
        return spark.sql(f"SELECT id FROM range(100) WHERE id < (SELECT count(*) FROM parquet.`{data}`)")

    spark.range(5).coalesce(1).write.parquet(data)
    for load in (cached, counted):
        old = load()
        first = make_spark_converter(old)
        assert make_spark_converter(load()).cache_dir_url == first.cache_dir_url
        old.unpersist()
        spark.range(5).coalesce(1).write.mode("append").parquet(data)
        new = load()
        assert len(make_spark_converter(new)) == len(first) + 5
        new.unpersist()


def test_a_converter_of_rows_that_spark_took_from_a_cache_is_not_one_of_the_files(
    spark: Any, tmp_path: pathlib.Path
) -> None:
    data = str(tmp_path / "data")
    spark.range(5).coalesce(1).write.parquet(data)
    old = spark.read.parquet(data).cache()
    assert old.count() == 5
    # Not by Spark, which would drop its cache.
    pq.write_table(pa.table({"id": range(5, 9)}), pathlib.Path(data) / "part-more.parquet")
    assert len(make_spark_converter(spark.read.parquet(data))) == 5
    old.unpersist()
    assert len(make_spark_converter(spark.read.parquet(data))) == 9


def test_a_converter_is_used_again_for_rows_that_spark_holds(spark: Any, tmp_path: pathlib.Path) -> None:
    for frame in (
        spark.createDataFrame([(1, "a"), (2, "b")], "id long, word string"),
        spark.range(6).selectExpr("id", "rand(3) x").localCheckpoint(),
        spark.sql("WITH one AS (SELECT id FROM range(4)) SELECT * FROM one UNION ALL SELECT * FROM one"),
    ):
        assert make_spark_converter(frame).cache_dir_url == make_spark_converter(frame).cache_dir_url


def test_a_converter_of_an_rdd_over_files_is_made_anew(spark: Any, tmp_path: pathlib.Path) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("1\n2\n")
    lines = spark.sparkContext.textFile(str(text))
    # `toDF` would take the session that was made last.
    frame = spark.createDataFrame(lines.map(lambda line: (int(line),)), "id long")
    assert len(make_spark_converter(frame)) == 2
    text.write_text("1\n2\n3\n")
    assert len(make_spark_converter(frame)) == 3


def test_a_converter_of_another_source_is_made_anew(
    spark: Any, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark knows no files of bowstring's own format, which is a source of its second interface, as Iceberg is."""
    bowstring.spark.register(spark)
    data = str(tmp_path / "data")
    with caplog.at_level(logging.INFO, "bowstring.petastorm.spark"):
        for total in (3, 6):
            spark.range(3).write.format("bowstring").mode("append").save(data)
            frame = spark.read.format("bowstring").load(data)
            assert len(make_spark_converter(frame)) == total
    assert "DataSourceV2Relation may change without a sign" in caplog.text


class Java:
    """An object of the JVM by its class; other attributes are its methods' results."""

    def __init__(self, name: str, **results: Any) -> None:
        self.name = name
        for method, result in results.items():
            setattr(self, method, lambda result=result: result)

    def getClass(self) -> Any:
        return SimpleNamespace(getName=lambda: self.name)


def scala(*items: Any) -> Any:
    left = list(items)
    return SimpleNamespace(iterator=lambda: SimpleNamespace(hasNext=lambda: bool(left), next=lambda: left.pop(0)))


def over(index: str, *files: str) -> Any:
    """A frame over files behind an index."""
    places = "org.apache.spark.sql.execution.datasources."

    def plan() -> Any:
        relation = Java(f"{places}HadoopFsRelation", location=Java(index, inputFiles=files))
        leaf = Java(f"{places}LogicalRelation", relation=relation)
        return SimpleNamespace(collectLeaves=lambda: scala(leaf), subqueriesAll=lambda: scala())

    execution = SimpleNamespace(analyzed=plan, optimizedPlan=plan)
    return SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: execution))


def test_only_files_that_tell_the_rows_make_a_frame_known(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "a b.parquet"
    file.write_bytes(b"123")
    url = f"file://{tmp_path}/a%20b.parquet"
    listed = "org.apache.spark.sql.execution.datasources."
    for index in ("InMemoryFileIndex", "CatalogFileIndex"):
        state = _sources.state(over(listed + index, url))
        assert state == {(url, 3, file.stat().st_mtime_ns)}
    # A deletion with vectors leaves the files of a Delta table as they are.
    for index in ("org.apache.spark.sql.delta.files.TahoeLogFileIndex", f"{listed}MetadataLogFileIndex"):
        with pytest.raises(_sources.UnknownError, match="which of their rows count"):
            _sources.state(over(index, url))
    with pytest.raises(_sources.UnknownError, match="size and time"):
        _sources.state(over(f"{listed}InMemoryFileIndex", url, f"{url}.gone"))


def test_converter_over_a_server(spark: Any) -> None:
    pytest.importorskip("torch")
    frame = spark.range(100).selectExpr("id", "cast(id as double) / 3 as x", "array(cast(id as double), 1.5D) as v")
    with bowstring.flight.Server(put="memory") as server:
        spark.conf.set("bowstring.converter.cacheDir", server.url)
        converter = make_spark_converter(frame)
        assert len(converter) == 100
        assert converter.cache_dir_url.startswith(server.url)
        with converter.make_torch_dataloader(batch_size=30, num_epochs=2) as loader:
            ids = [number for batch in loader for number in batch["id"].tolist()]
        assert sorted(ids) == sorted([*range(100)] * 2)
        assert str(batch_dtype(converter)) == "torch.float32"
        converter.delete()
        with Connection(server.url) as connection:
            assert connection.action("stats", {})["written_bytes"] == 0
            assert not connection.exists(Address.parse(converter.cache_dir_url).dataset)
        converter.delete()  # already gone, as a directory would be
        again = make_spark_converter(frame)
        assert len(again) == 100, "what was deleted is stored again"
        again.delete()


def batch_dtype(converter: Any) -> Any:
    with converter.make_torch_dataloader(batch_size=30, num_epochs=1) as loader:
        return next(iter(loader))["x"].dtype
