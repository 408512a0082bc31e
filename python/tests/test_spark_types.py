"""Types of Spark that Parquet lacks, and nulls around NOT NULL, in the data source."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import bowstring
import bowstring.spark
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyspark", reason="PySpark is not installed")

from bowstring.spark.footers import with_spark_types  # noqa: E402
from bowstring.spark.types import conform, spark_schema, stored_schema  # noqa: E402
from pyarrow.dataset import dataset  # noqa: E402
from pyspark.ml.linalg import Vectors, VectorUDT  # noqa: E402
from pyspark.sql import types  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # PySpark's own
    pytest.mark.timeout(400),
]

ROW = "org.apache.spark.sql.parquet.row.metadata"
COLUMNS = """
    id, array('a', 'A', null)[id] collate UTF8_LCASE word, array(array('a', 'A', null)[id] collate UTF8_LCASE) words,
    named_struct('in', array('a', 'A', null)[id] collate UTF8_LCASE) deep,
    if(id = 2, null, interval '1 02:03:04.000005' day to second) span, interval '03' hour hours
"""
VARIANT = "id, if(id = 1, null, parse_json('{\"a\": [1, null]}')) any, array(parse_json('1'), null) some"


@pytest.fixture(autouse=True)
def registered(spark: Any) -> None:
    bowstring.spark.register(spark)


def read(spark: Any, path: pathlib.Path, **options: Any) -> Any:
    return spark.read.format("bowstring").options(**options).load(str(path))


def rows(frame: Any) -> list[str]:
    return sorted(map(repr, frame.collect()))


def kinds(frame: Any) -> list[tuple[str, str]]:
    """Types without their nullability: a frame of files has all columns nullable."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema]


def test_types_of_sparks_own_come_back(spark: Any, tmp_path: pathlib.Path) -> None:
    data = [(0, Vectors.dense([1.0, 2.0])), (1, Vectors.sparse(4, [1, 3], [5.0, 6.0])), (2, None)]
    vectors = types.StructType([types.StructField("id", types.LongType()), types.StructField("v", VectorUDT())])
    frames = {
        "plain": spark.sql(f"select {COLUMNS} from range(3)"),
        "variant": spark.sql(f"select {VARIANT} from range(3)").coalesce(1),
        "vectors": spark.createDataFrame(data, vectors),
    }
    for name, frame in frames.items():
        ours, theirs = tmp_path / f"{name}-ours", tmp_path / f"{name}-theirs"
        for _ in range(2):
            frame.write.format("bowstring").mode("append").save(str(ours))
        # Spark may put parts of a variant into columns of their own.
        spark.conf.set("spark.sql.variant.inferShreddingSchema", "false")
        try:
            frame.write.parquet(str(theirs))
        finally:
            spark.conf.unset("spark.sql.variant.inferShreddingSchema")
        for path, times in ((ours, 2), (theirs, 1)):
            found = read(spark, path)
            assert kinds(found) == kinds(frame), path
            assert rows(found) == sorted(rows(frame) * times), path
        # Loaders do not read a variant that Spark's footers tell of, so ours do not.
        if name != "variant":
            assert rows(read(spark, theirs, filter="id > 0")) == rows(frame.where("id > 0"))
            by_spark = spark.read.option("recursiveFileLookup", "true").parquet(str(ours))
            assert kinds(by_spark) == kinds(frame)
            assert rows(by_spark) == sorted(rows(frame) * 2)
        assert len(rows(read(spark, ours, filter="id > 0"))) == 4
    path = tmp_path / "plain-theirs"
    assert kinds(read(spark, path, columns="hours,word")) == [kinds(frames["plain"])[at] for at in (5, 1)]


def test_collated_text_compares_as_in_spark_with_pushdown_too(spark: Any, tmp_path: pathlib.Path) -> None:
    frame = spark.range(3).selectExpr("id", "array('a', 'A', 'b')[id] collate UTF8_LCASE word")
    frame.write.parquet(str(tmp_path / "theirs"))
    frame.write.format("bowstring").mode("append").save(str(tmp_path / "ours"))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for path in (tmp_path / "theirs", tmp_path / "ours"):
            for options in ({}, {"pushdown": "true"}):
                assert read(spark, path, **options).where("word = 'a'").count() == 2
                assert read(spark, path, **options).where("word in ('A', 'x') and id < 5").count() == 2
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize("served", [False, True])
def test_a_null_around_a_field_that_is_not_null_is_read(spark: Any, tmp_path: pathlib.Path, served: bool) -> None:
    frame = spark.range(3).selectExpr(
        "id",
        "if(id = 0, named_struct('a', 1, 'b', if(id = 0, named_struct('c', id), null)), null) st",
        "if(id = 1, null, array(named_struct('a', id), if(id = 0, null, named_struct('a', id)))) list",
        "if(id = 2, null, map('k', if(id = 0, named_struct('a', 1), null))) map",
    )
    frame.write.format("bowstring").mode("append").save(str(tmp_path / "rows"))
    reader = spark.read.format("bowstring").schema(frame.schema)
    found = (reader.option("filter", "id >= 0") if served else reader).load(str(tmp_path / "rows"))
    assert rows(found) == rows(frame)


def test_a_null_in_a_field_that_is_not_null_is_named() -> None:
    inner = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    values: list[tuple[Any, Any, str | None]] = [
        ([{"a": 1}, None], inner, None),
        ([{"a": 1}, {"a": None}], inner, "a"),
        ([[{"a": 1}, None], None], pa.list_(inner), None),
        ([[], [{"a": None}]], pa.list_(inner), "element.a"),
        ([{"x": {"a": None}}, None], pa.struct([pa.field("x", inner, nullable=False)]), "x.a"),
        ([None, {"x": None}], pa.struct([pa.field("x", inner, nullable=False)]), "x"),
        ([[("k", {"a": 1})], None], pa.map_(pa.string(), pa.field("value", inner, nullable=False)), None),
        ([[("k", {"a": None})], None], pa.map_(pa.string(), inner), "value.a"),
        ([[("k", None)], None], pa.map_(pa.string(), pa.field("value", inner, nullable=False)), "value"),
    ]
    for data, kind, name in values:
        if pa.types.is_list(kind):
            kind = pa.list_(pa.field("element", inner))
        loose = pa.array([None, *data], without_not_null(kind))
        wanted = pa.schema([("v", kind)])
        for column in (loose, loose.slice(1)):
            batch = pa.record_batch([column], ["v"])
            if name is None:
                made = conform(batch, wanted)
                made.validate(full=True)
                assert made.schema == wanted
                assert made.to_pylist() == batch.to_pylist()
            else:
                with pytest.raises(bowstring.NullsError, match=f"column 'v' has nulls in {name}, and its schema"):
                    conform(batch, wanted)


def without_not_null(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([(child.name, without_not_null(child.type)) for child in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, without_not_null(kind.item_type))
    return pa.list_(without_not_null(kind.value_type)) if pa.types.is_list(kind) else kind


def told(name: str, kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


OWN_CLASS = {"type": "udt", "pyClass": "antigravity.Point", "serializedClass": "gA==", "sqlType": "string"}
COLLATED = told("v", "string", __COLLATIONS={"v": "spark.UTF8_LCASE"})


@pytest.mark.parametrize(
    ("values", "fields", "why"),
    [
        ([1], [[told("v", "interval year to month")]], "interval year to month.*in Spark's footers"),
        (["x"], [[told("v", OWN_CLASS)]], "class antigravity.Point"),
        (
            [["x"]],
            [[told("v", {"type": "array", "elementType": OWN_CLASS, "containsNull": True})]],
            "class antigravity",
        ),
        ([{"value": b"", "metadata": b"", "typed_value": 1}], [[told("v", "variant")]], "variant.*in Spark's footers"),
        ([1], [[COLLATED]], "string.*in Spark's footers"),
        (["x"], [[told("v", "geometry of tomorrow")]], "geometry of tomorrow"),
        (["x"], [[COLLATED], [told("v", "string")]], "its files do not agree"),
        (["x"], [[COLLATED], None], "its files do not agree"),
        (["x"], [[told("v", "string", __COLLATIONS={"v": "icu.de"})], [COLLATED]], "its files do not agree"),
        (["x"], [[COLLATED], [COLLATED]], None),
        ([1], [[told("v", "integer")], [told("v", "long")]], None),
        (["x"], [[told("v", "type of tomorrow")]], None),
        (["x"], ["damage"], None),
        (["x"], [None], None),
    ],
)
def test_a_type_that_cannot_be_carried_is_plain_and_named(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, values: list[Any], fields: list[Any], why: str | None
) -> None:
    for number, said in enumerate(fields):
        table = pa.table({"v": values, "only": [1]})
        if said is not None:
            table = table.replace_schema_metadata({ROW: json.dumps({"type": "struct", "fields": said})})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    pq.write_table(pa.table({"only": [1]}), tmp_path / "other.parquet")  # says nothing of a column that it lacks
    plain = spark_schema(pa.table({"v": values}).schema)
    found = with_spark_types(plain, dataset(tmp_path).get_fragments())
    carried = [types.StringType("UTF8_LCASE")] if fields == [[COLLATED], [COLLATED]] else [plain["v"].dataType]
    assert [field.dataType for field in found] == carried
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == (why is not None)
    assert why is None or re.search(f"column v comes as .*{why}", said[0])


def test_every_value_may_be_null_where_rows_are_stored() -> None:
    """Arrow has no void that is NOT NULL, which the element of Spark's ``array()`` is."""
    kind = types.ArrayType(types.NullType(), False)
    inside = types.StructType().add("x", types.MapType(types.StringType(), kind, False), False)
    found = stored_schema(types.StructType().add("a", kind, False).add("s", inside))
    assert found.field("a") == pa.field("a", pa.list_(pa.field("element", pa.null())))
    assert found.field("s").type.field("x").type.item_type == found.field("a").type


def test_a_column_of_a_type_that_is_not_stored_is_named() -> None:
    with pytest.raises(bowstring.UnsupportedError, match=r"column 'span' is interval year to month"):
        stored_schema(types.StructType().add("id", "long").add("span", types.YearMonthIntervalType()))
