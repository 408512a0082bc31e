"""Schemas, codecs and the metadata written for Petastorm's and for bowstring's readers."""

from __future__ import annotations

import pathlib
import pickletools
from decimal import Decimal
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.petastorm import _document, make_batch_reader, make_reader
from bowstring.petastorm._spark_types import SparkType, parsed
from bowstring.petastorm.codecs import CompressedNdarrayCodec, NdarrayCodec, ScalarCodec
from bowstring.petastorm.errors import DecodeFieldError, PetastormMetadataError
from bowstring.petastorm.etl import _pickled
from bowstring.petastorm.etl._footer import SCHEMA_KEY, Folder
from bowstring.petastorm.etl.dataset_metadata import (
    get_schema,
    get_schema_from_dataset_url,
    infer_or_load_unischema,
    load_row_groups,
)
from bowstring.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer
from bowstring.petastorm.etl.rowgroup_indexing import build_rowgroup_index, get_row_group_indexes
from bowstring.petastorm.selectors import SingleIndexSelector
from bowstring.petastorm.unischema import Unischema, UnischemaField, insert_explicit_nulls

SCHEMA = Unischema(
    "Written",
    [
        UnischemaField("id", np.int64, (), ScalarCodec(SparkType("LongType")), False),
        UnischemaField("flag", np.bool_, (), ScalarCodec(SparkType("BooleanType")), False),
        UnischemaField("word", np.str_, (), ScalarCodec(SparkType("StringType")), True),
        UnischemaField("price", Decimal, (), ScalarCodec(SparkType("DecimalType", (8, 2))), False),
        UnischemaField("matrix", np.float32, (None, 3), NdarrayCodec(), True),
        UnischemaField("packed", np.int16, (2,), CompressedNdarrayCodec(), False),
    ],
)
ROWS = [
    {
        "id": np.int64(i),
        "flag": np.bool_(i % 2),
        "word": None if i % 4 == 0 else f"word {i % 3}",
        "price": Decimal(i) / 4,
        "matrix": None if i == 3 else np.full((i % 3, 3), i, np.float32),
        "packed": np.array([i, -i], np.int16),
    }
    for i in range(20)
]


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    """20 rows in row groups of 5, with Petastorm's metadata."""
    encoded = [
        {
            name: None
            if row[name] is None
            else bytes(field.codec.encode(field, row[name]))
            if isinstance(field.codec, (NdarrayCodec, CompressedNdarrayCodec))
            else row[name]
            for name, field in SCHEMA.fields.items()
        }
        for row in ROWS
    ]
    types = {"id": pa.int64(), "flag": pa.bool_(), "word": pa.string(), "price": pa.decimal128(8, 2)}
    columns = {name: pa.array([row[name] for row in encoded], types.get(name, pa.binary())) for name in SCHEMA.fields}
    pq.write_table(pa.table(columns), tmp_path / "part-0.parquet", row_group_size=5)
    folder = Folder(f"file://{tmp_path}")
    folder.describe({SCHEMA_KEY: _document.metadata(SCHEMA)})
    return f"file://{tmp_path}"


def test_written_rows_are_read_back(url: str) -> None:
    with make_reader(url, shuffle_row_groups=False) as reader:
        assert list(reader.schema.fields.values()) == list(SCHEMA.fields.values())
        assert [str(field.codec) for field in reader.schema.fields.values()] == [
            str(f.codec) for f in SCHEMA.fields.values()
        ]
        rows = list(reader)
    for row, wanted in zip(rows, ROWS, strict=True):
        for name, value in wanted.items():
            assert (
                np.array_equal(getattr(row, name), value)
                if isinstance(value, np.ndarray)
                else getattr(row, name) == value
            )
    assert type(rows[0].flag) is np.bool_
    assert [row.matrix.shape for row in rows if row.matrix is not None][:3] == [(0, 3), (1, 3), (2, 3)]


def test_a_damaged_value_is_named(url: str, tmp_path: pathlib.Path) -> None:
    table = pq.read_table(tmp_path / "part-0.parquet")
    cells = [cell if row != 7 else b"no array" for row, cell in enumerate(table["matrix"].to_pylist())]
    damaged = table.set_column(table.schema.get_field_index("matrix"), "matrix", pa.array(cells, pa.binary()))
    pq.write_table(damaged, tmp_path / "part-0.parquet", row_group_size=5)
    with make_reader(url, shuffle_row_groups=False) as reader, pytest.raises(DecodeFieldError, match="matrix"):
        list(reader)


def test_schemas(url: str, tmp_path: pathlib.Path) -> None:
    assert get_schema(url).fields == SCHEMA.fields
    assert get_schema(pq.ParquetDataset(tmp_path)).fields == SCHEMA.fields
    assert get_schema_from_dataset_url(url).fields == SCHEMA.fields
    assert infer_or_load_unischema(str(tmp_path)).fields == SCHEMA.fields
    assert [rows for _, _, rows in load_row_groups(url)] == [5] * 4
    (tmp_path / "_common_metadata").unlink()
    with pytest.raises(PetastormMetadataError, match="materialize_dataset"):
        get_schema(url)
    assert list(infer_or_load_unischema(str(tmp_path)).fields) != []


def test_indexes(url: str) -> None:
    build_rowgroup_index(
        url, None, [SingleFieldIndexer("by_word", "word"), FieldNotNullIndexer("has_matrix", "matrix")]
    )
    found = get_row_group_indexes(url)
    assert sorted(found) == ["by_word", "has_matrix"]
    wanted = {row["id"].item() // 5 for row in ROWS if row["word"] == "word 1"}
    assert found["by_word"].get_row_group_indexes("word 1") == wanted
    assert found["has_matrix"].get_row_group_indexes(None) == {0, 1, 2, 3}
    assert get_schema(url).fields == SCHEMA.fields
    with make_reader(
        url, rowgroup_selector=SingleIndexSelector("by_word", ["word 1"]), shuffle_row_groups=False
    ) as reader:
        assert [int(row.id) // 5 for row in reader][::5] == sorted(wanted)


def test_an_index_keeps_what_bowstring_wrote_beside_it(tmp_path: pathlib.Path) -> None:
    pq.write_table(pa.table({"id": range(6), "v": [[float(i)] * 3 for i in range(6)]}), tmp_path / "src.parquet")
    bowstring.convert(tmp_path / "src.parquet", tmp_path / "data", to="petastorm")
    before = pq.read_metadata(tmp_path / "data" / "_common_metadata").metadata
    url = f"file://{tmp_path}/data"
    build_rowgroup_index(url, None, [SingleFieldIndexer("by_id", "id")])
    after = pq.read_metadata(tmp_path / "data" / "_common_metadata").metadata
    assert after[SCHEMA_KEY] == before[SCHEMA_KEY]
    with make_reader(url, rowgroup_selector=SingleIndexSelector("by_id", [5]), shuffle_row_groups=False) as reader:
        assert [int(row.id) for row in reader] == list(range(6))


def test_only_known_names_are_written() -> None:
    index = SingleFieldIndexer("ix", "id")
    index.build_index([{"id": 5}, {"id": 1 << 40}, {"id": "text"}], 2)
    names = set()
    for written in (_document.metadata(SCHEMA), _pickled.indexes({"ix": index, "nn": FieldNotNullIndexer("nn", "id")})):
        for opcode, argument, _ in pickletools.genops(written):
            if opcode.name == "GLOBAL":
                names.add(argument.partition(" ")[0].partition(".")[0])
    assert names == {"petastorm", "pyspark", "numpy", "decimal", "collections", "builtins", "copy_reg", "__builtin__"}


@pytest.mark.parametrize("bad", [UnischemaField("x", object, (), None), UnischemaField("x", np.int8, (), object())])  # type: ignore[arg-type]
def test_fields_unknown_to_readers_are_refused(bad: UnischemaField) -> None:
    with pytest.raises(bowstring.Error):
        _document.metadata(Unischema("Bad", [bad]))


@pytest.mark.parametrize("codec", [NdarrayCodec(), CompressedNdarrayCodec()])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        np.array([["a", "bcd"]]),
        np.array([b"", b"\0x"]),
        np.array(["2020-01-01", "2021-06-01"], "M8[s]"),
        np.zeros((0, 3), np.float16),
        np.array(True),
    ],
)
def test_arrays_by_hand(codec: Any, array: Any) -> None:
    field = UnischemaField("x", array.dtype.type, (None,) * array.ndim, codec)
    back = codec.decode(field, bytes(codec.encode(field, array)))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert (back == array).all()
    assert back.flags.writeable


def npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"cos\nsystem\n"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 1048576), }"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (__import__('os'),), }"),
        npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }", b"12345678"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", b"12345678"),
        b"\x93NUMPY\x02\x00\xff\xff\xff\x7f",
    ],
)
def test_hostile_arrays(data: bytes) -> None:
    field = UnischemaField("x", np.float64, (None,), NdarrayCodec())
    with pytest.raises(DecodeFieldError):
        NdarrayCodec().decode(field, data)
    with pytest.raises(DecodeFieldError):
        CompressedNdarrayCodec().decode(field, data)


def test_schema_by_hand() -> None:
    assert SCHEMA.id is SCHEMA.fields["id"]
    view = SCHEMA.create_schema_view([SCHEMA.matrix, "id|word"])
    assert list(view.fields) == ["matrix", "id", "word"]
    row = {"id": 1, "flag": True, "price": Decimal(1), "packed": None}
    insert_explicit_nulls(SCHEMA, row)
    assert row["word"] is None
    with pytest.raises(ValueError, match="flag is missing"):
        insert_explicit_nulls(SCHEMA, {"id": 1})
    with pytest.raises(ValueError, match="does not belong"):
        SCHEMA.create_schema_view([UnischemaField("other", np.int8, ())])
    with pytest.warns(UserWarning, match="hides behind"):
        Unischema("Clash", [UnischemaField("fields", np.int8, ())])
    assert parsed("DecimalType(10, 9)") == SparkType("DecimalType", (10, 9))
    assert "UnischemaField('id', int64, (), ScalarCodec(LongType()), False)" in str(SCHEMA)


X = Unischema("X", [UnischemaField("x", np.int64, (), None, False)])


def one_row(path: pathlib.Path, *values: int) -> None:
    pq.write_table(pa.table({"x": pa.array(values, pa.int64())}, pa.schema([pa.field("x", pa.int64(), False)])), path)


@pytest.fixture
def holed(tmp_path: pathlib.Path) -> str:
    """Writes rows 1 to 4 in files of one row group each, and a row group without rows after the first."""
    for number, values in enumerate([(1,), (), (2,), (3,), (4,)]):
        one_row(tmp_path / f"part-{number}.parquet", *values)
    assert pq.read_metadata(tmp_path / "part-1.parquet").num_row_groups == 1
    Folder(f"file://{tmp_path}").describe({SCHEMA_KEY: _document.metadata(X)})
    return f"file://{tmp_path}"


def selected(url: str, value: Any) -> list[int]:
    with make_reader(url, rowgroup_selector=SingleIndexSelector("by_x", [value]), num_epochs=1) as reader:
        rows = [int(row.x) for row in reader]
    native = bowstring.Loader(
        url, batch_size=1, shuffle=False, tail="pad", selector={"index": "by_x", "values": [value]}
    )
    assert [row for batch in native for row in batch["x"].tolist()] == rows
    return rows


def test_an_index_counts_row_groups_without_rows(holed: str) -> None:
    build_rowgroup_index(holed, None, [SingleFieldIndexer("by_x", "x")])
    stored = get_row_group_indexes(holed)["by_x"]
    assert {value: stored.get_row_group_indexes(value) for value in (1, 2, 3, 4)} == {1: {0}, 2: {2}, 3: {3}, 4: {4}}
    assert [selected(holed, value) for value in (1, 2, 3, 4)] == [[1], [2], [3], [4]]


def test_an_index_without_stored_counts(holed: str, tmp_path: pathlib.Path) -> None:
    build_rowgroup_index(holed, None, [SingleFieldIndexer("by_x", "x")])
    schema = pq.read_schema(tmp_path / "_common_metadata")
    kept = {key: value for key, value in schema.metadata.items() if b"num_row_groups" not in key}
    pq.write_metadata(schema.with_metadata(kept), tmp_path / "_common_metadata")
    assert [selected(holed, value) for value in (1, 2, 3, 4)] == [[1], [2], [3], [4]]


def test_an_index_of_other_files_is_refused_and_dropped(holed: str, tmp_path: pathlib.Path) -> None:
    build_rowgroup_index(holed, None, [SingleFieldIndexer("by_x", "x")])
    one_row(tmp_path / "part-00.parquet", 9)
    with pytest.raises(ValueError, match="build_rowgroup_index"):
        make_reader(holed, rowgroup_selector=SingleIndexSelector("by_x", [2]), num_epochs=1)
    with pytest.raises(bowstring.MismatchError, match="build_rowgroup_index"):
        bowstring.Loader(holed, batch_size=1, selector={"index": "by_x", "values": [2]})
    with pytest.warns(UserWarning, match="index of row groups is dropped"):
        Folder(holed).describe({SCHEMA_KEY: _document.metadata(X)})
    with pytest.raises(ValueError, match="no index"):
        get_row_group_indexes(holed)
    build_rowgroup_index(holed, None, [SingleFieldIndexer("by_x", "x")])
    assert [selected(holed, value) for value in (9, 2)] == [[9], [2]]
    # The same files: nothing is lost.
    Folder(holed).describe({SCHEMA_KEY: _document.metadata(X)})
    assert selected(holed, 3) == [3]


def test_metadata_are_written_as_a_whole_or_not(
    url: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (tmp_path / "_common_metadata").read_bytes()

    def killed(_: Any, file: Any) -> None:
        file.write(b"PAR1")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pq, "write_metadata", killed)
        with pytest.raises(KeyboardInterrupt):
            Folder(url).add({b"key": b"value"})
    assert (tmp_path / "_common_metadata").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_common_metadata", "part-0.parquet"]
    Folder(url).add({b"key": b"value"})
    assert pq.read_schema(tmp_path / "_common_metadata").metadata[b"key"] == b"value"


def test_indexed_bytes_and_numbers_without_a_json_form(tmp_path: pathlib.Path) -> None:
    table = pa.table({"b": pa.array([b"x", b"\xff\0"]), "f": pa.array([float("inf"), 1.5]), "t": ["x", "y"]})
    pq.write_table(table, tmp_path / "part.parquet", row_group_size=1)
    fields = [
        UnischemaField("b", np.bytes_, (), None, False),
        UnischemaField("f", np.float64, (), None, False),
        UnischemaField("t", np.str_, (), None, False),
    ]
    url = f"file://{tmp_path}"
    Folder(url).describe({SCHEMA_KEY: _document.metadata(Unischema("Values", fields))})
    build_rowgroup_index(url, None, [SingleFieldIndexer(f"by_{name}", name) for name in "bft"])
    found = get_row_group_indexes(url)
    assert set(found["by_b"].indexed_values) == {b"x", b"\xff\0"}
    assert set(found["by_f"].indexed_values) == {float("inf"), 1.5}
    assert set(found["by_t"].indexed_values) == {"x", "y"}
    with make_reader(url, rowgroup_selector=SingleIndexSelector("by_b", [b"\xff\0"]), num_epochs=1) as reader:
        assert [row.t for row in reader] == ["y"]


def test_a_mark_in_a_file_url_is_refused(tmp_path: pathlib.Path) -> None:
    for name, value in (("train", 1), ("train#2", 7)):
        (tmp_path / name).mkdir()
        one_row(tmp_path / name / "part.parquet", value)
    for end in ("#2", "?", "?x"):
        for use in (make_reader, Folder, lambda url: bowstring.Loader(url, batch_size=1)):
            with pytest.raises(ValueError, match="%23"):
                use(f"file://{tmp_path}/train{end}")
    # A plain path is taken literally.
    Folder(f"{tmp_path}/train#2").describe({SCHEMA_KEY: _document.metadata(X)})
    assert (tmp_path / "train#2" / "_common_metadata").exists()


def test_the_type_of_a_partition_is_the_loaders(tmp_path: pathlib.Path) -> None:
    for value in ("1_0", "07", "-3"):
        (tmp_path / "text" / f"k={value}").mkdir(parents=True)
        one_row(tmp_path / "text" / f"k={value}" / "part.parquet", 1)
        if value != "1_0":
            (tmp_path / "numbers" / f"k={value}").mkdir(parents=True)
            one_row(tmp_path / "numbers" / f"k={value}" / "part.parquet", 1)
    for name, dtype, wanted in (("text", np.str_, ["-3", "07", "1_0"]), ("numbers", np.int64, [-3, 7])):
        with make_batch_reader(f"file://{tmp_path}/{name}", num_epochs=1, shuffle_row_groups=False) as reader:
            assert reader.schema.fields["k"].numpy_dtype is dtype
            assert [value for batch in reader for value in batch.k.tolist()] == wanted


def test_fields_of_pythons_own_types(tmp_path: pathlib.Path) -> None:
    kinds: dict[str, tuple[type, str, list[Any]]] = {
        "number": (int, "LongType", [1, 2]),
        "real": (float, "DoubleType", [1.5, 2.5]),
        "flag": (bool, "BooleanType", [True, False]),
    }
    fields = [
        UnischemaField(name, kind, (), ScalarCodec(SparkType(spark)), False) for name, (kind, spark, _) in kinds.items()
    ]
    pq.write_table(pa.table({name: values for name, (_, _, values) in kinds.items()}), tmp_path / "a.parquet")
    Folder(f"file://{tmp_path}", None).describe({SCHEMA_KEY: _document.metadata(Unischema("Own", fields))})
    with make_reader(f"file://{tmp_path}", shuffle_row_groups=False) as reader:
        rows = list(reader)
    for name, (kind, _, values) in kinds.items():
        found = [getattr(row, name) for row in rows]
        assert (found, {type(value) for value in found}) == (values, {kind})
