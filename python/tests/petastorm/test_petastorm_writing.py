"""Schemas, codecs and the metadata that is written for Petastorm's and for bowstring's readers."""

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
from bowstring.petastorm import _document, make_reader
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
    folder.add({SCHEMA_KEY: _document.metadata(SCHEMA)})
    folder.add_row_groups()
    return f"file://{tmp_path}"


def test_what_is_written_is_read(url: str) -> None:
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
def test_what_no_reader_would_know_is_refused(bad: UnischemaField) -> None:
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
