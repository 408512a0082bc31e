"""Writing datasets from Arrow data of other libraries, and reading them back."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Iterator
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring import DatasetWriter, Stored
from conftest import needs_pyarrow


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=False)
    return out.getvalue()


def table(rows: int) -> pa.Table:
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3) + i for i in range(rows)]
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "name": [f"row {i}" for i in range(rows)],
            "x": pa.array([npy(array) for array in arrays], pa.binary()),
        }
    )


@needs_pyarrow(14, "giving a schema to others")
def test_cells_are_decoded_as_the_dataset_says(tmp_path: pathlib.Path) -> None:
    data = table(100)
    stored = {"x": Stored("npy", "float32", (2, 3))}
    with DatasetWriter(
        tmp_path / "d", data.schema, stored=stored, rows_per_group=30, compression=("zstd", 3)
    ) as writer:
        writer.write(data.slice(0, 60))
        writer.write(data.slice(60).to_batches()[0])
    assert (tmp_path / "d" / "_SUCCESS").exists()
    assert pq.read_table(tmp_path / "d").equals(data), "plain Parquet for everybody else"
    with bowstring.Loader(tmp_path / "d", batch_size=100, shuffle=False) as loader:
        batch = next(iter(loader))
    assert batch["x"].shape == (100, 2, 3)
    assert (batch["x"][:, 0, 0] == np.arange(100)).all()


@needs_pyarrow(14, "giving a schema to others")
def test_a_block_that_fails_leaves_nothing(tmp_path: pathlib.Path) -> None:
    data = table(10)
    writer = DatasetWriter(tmp_path / "d", data.schema)

    def fails() -> None:
        with writer:
            writer.write(data)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(bowstring.ClosedError):
        writer.write(data)


FORKED = """
import os, sys
import bowstring, pyarrow

rows = pyarrow.table({"id": list(range(1000))})
writer = bowstring.DatasetWriter(sys.argv[1], rows.schema)
writer.write(rows)


def drop():
    global writer
    del writer


def refused():
    try:
        writer.finish()
    except bowstring.ClosedError as error:
        assert "forked" in str(error), error
    else:
        os._exit(3)


for work in (drop, refused, lambda: writer.abort(), lambda: None):
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
writer.write(rows)
print(writer.finish()["rows"])
"""


@needs_pyarrow(14, "giving a schema to others")
def test_forked_children_leave_the_writer_of_their_parent_alone(tmp_path: pathlib.Path, script: Any) -> None:
    out, errors = script(FORKED, tmp_path / "d").communicate(timeout=60)
    assert out == "2000\n", errors
    assert len(pq.read_table(tmp_path / "d")) == 2000


@needs_pyarrow(14, "giving a schema to others")
def test_a_stream_that_breaks_off_is_not_published_in_part(tmp_path: pathlib.Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    ten = pa.record_batch([pa.array(range(10))], schema=schema)

    def breaks() -> Iterator[pa.RecordBatch]:
        yield ten
        raise OSError("the network is down")

    null = pa.record_batch([pa.array([None], pa.int64())], names=["id"])
    for data in (
        pa.RecordBatchReader.from_batches(schema, breaks()),
        pa.Table.from_batches([ten.cast(null.schema), null]),
    ):
        writer = DatasetWriter(tmp_path / "d", schema)
        writer.write(ten)
        with pytest.raises(bowstring.Error):
            writer.write(data)
        with pytest.raises(bowstring.ClosedError, match="start again"):
            writer.write(ten)
        with pytest.raises(bowstring.ClosedError):
            writer.finish()
        assert list(tmp_path.iterdir()) == []


@needs_pyarrow(14, "giving a schema to others")
@pytest.mark.parametrize(
    ("failure", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (ValueError("a row is odd"), bowstring.StoreError)],
    ids=["Ctrl-C", "another exception"],
)
def test_an_exception_in_the_code_that_makes_rows_is_no_damage(
    failure: BaseException, raised: type[BaseException], tmp_path: pathlib.Path
) -> None:
    schema = pa.schema([pa.field("id", pa.int64())])

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([1])], schema=schema)
        raise failure

    writer = DatasetWriter(tmp_path / "d", schema)
    with pytest.raises(raised) as caught:
        writer.write(pa.RecordBatchReader.from_batches(schema, rows()))
    assert raised is KeyboardInterrupt or "a row is odd" in str(caught.value)
    writer.abort()
    assert list(tmp_path.iterdir()) == []


@needs_pyarrow(14, "giving a schema to others")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", ["abort", "finish", "write"])
def test_rows_may_not_call_the_writer_that_takes_them(call: str, tmp_path: pathlib.Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64())])
    one = pa.record_batch([pa.array([1])], schema=schema)
    writer = DatasetWriter(tmp_path / "d", schema)
    refused = []

    def rows() -> Iterator[pa.RecordBatch]:
        yield one
        try:
            getattr(writer, call)(*([one] if call == "write" else []))
        except bowstring.ClosedError as error:
            refused.append(str(error))
            raise

    with pytest.raises(bowstring.Error, match="call it afterwards"):
        writer.write(pa.RecordBatchReader.from_batches(schema, rows()))
    assert len(refused) == 1
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def _buffers(kind: pa.DataType, offsets: list[int], values: bytes, valid: bytes | None = None) -> pa.Array:
    """An array of text or bytes of these buffers, which pyarrow does not look at."""
    bitmap = None if valid is None else pa.py_buffer(valid)
    ends = pa.py_buffer(np.array(offsets, np.int32).tobytes())
    return pa.Array.from_buffers(kind, len(offsets) - 1, [bitmap, ends, pa.py_buffer(values)])


LATIN = pa.array([b"ok", b"caf\xe9"], pa.binary()).view(pa.string())


@needs_pyarrow(14, "giving a schema to others")
@pytest.mark.parametrize(
    ("column", "said"),
    [
        (LATIN, "UTF-8"),
        (pa.ListArray.from_arrays([0, 0, 2], LATIN), "UTF-8"),
        (pa.StructArray.from_arrays([LATIN], names=["s"]), "UTF-8"),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), LATIN), "UTF-8"),
        (pa.DictionaryArray.from_arrays(pa.array([0, 5], pa.int8()), pa.array(["a"]), safe=False), "5"),
        (_buffers(pa.string(), [0, 1 << 20, 3], b"abc"), "1048576"),
        (_buffers(pa.binary(), [0, 3, 1], b"abc"), "3"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_data_that_are_not_what_they_say_are_refused(
    column: pa.Array, said: str, stream: bool, tmp_path: pathlib.Path
) -> None:
    rows = pa.table({"id": [1, 2], "x": column})
    with DatasetWriter(tmp_path / "d", rows.schema) as writer:
        with pytest.raises(bowstring.CorruptError, match="the data cannot be taken over") as refused:
            # An array of structs comes alone, and not as a stream.
            writer.write(rows if stream else pa.StructArray.from_arrays([rows["id"].chunk(0), column], ["id", "x"]))
        assert refused.value.column == "x"
        assert said in str(refused.value)
    assert pq.read_table(tmp_path / "d").num_rows == 0


@needs_pyarrow(14, "giving a schema to others")
def test_what_nulls_and_slices_hide_is_not_looked_at(tmp_path: pathlib.Path) -> None:
    # The second text is null, and its bytes are none.
    hidden = _buffers(pa.string(), [0, 1, 2, 3], b"a\xffb", valid=b"\x05")
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], _buffers(pa.string(), [0, 1, 2, 3], b"ab\xff"))
    rows = pa.table({"text": hidden, "lists": lists, "hour": pa.array([0, 1, 86_400_000], pa.time32("ms"))})
    with DatasetWriter(tmp_path / "d", rows.schema) as writer:
        writer.write(rows.slice(0, 2))
        with pytest.raises(bowstring.CorruptError, match="UTF-8"):
            writer.write(rows.slice(2))
        writer.write(
            rows.select(["text", "hour"]).append_column("lists", pa.array([["c"]] * 3)).select(rows.column_names)
        )
    found = pq.read_table(tmp_path / "d")
    assert found["text"].to_pylist() == ["a", None, "a", None, "b"]
    assert found["lists"].to_pylist() == [["a"], ["b"], ["c"], ["c"], ["c"]]
    assert found["hour"].cast(pa.int32()).to_pylist() == [0, 1, 0, 1, 86_400_000], "sound, although pyarrow refuses it"


@needs_pyarrow(16, "views of text")
def test_views_that_nulls_hide_and_words_that_no_key_names_are_not_looked_at(tmp_path: pathlib.Path) -> None:
    views = pa.array(["a", None, "c"], pa.string_view())
    spoilt = bytearray(views.buffers()[1].to_pybytes())
    spoilt[16:32] = b"\xff" * 16
    hidden = pa.Array.from_buffers(pa.string_view(), 3, [views.buffers()[0], pa.py_buffer(bytes(spoilt))])
    words = _buffers(pa.string(), [0, 1, 2, 3, 4], b"ab\xffd")
    rows = pa.table({"view": hidden, "word": pa.DictionaryArray.from_arrays(pa.array([0, None, 3], pa.int8()), words)})
    with DatasetWriter(tmp_path / "d", rows.schema) as writer:
        writer.write(rows)
        named = pa.DictionaryArray.from_arrays(pa.array([0, 2, 3], pa.int8()), words)
        with pytest.raises(bowstring.CorruptError, match="dictionary is not UTF-8"):
            writer.write(pa.table({"view": hidden, "word": named}))
    found = pq.read_table(tmp_path / "d")
    assert found["view"].cast(pa.string()).to_pylist() == ["a", None, "c"]
    assert found["word"].cast(pa.string()).to_pylist() == ["a", None, "d"]


@needs_pyarrow(16, "tensors of NumPy")
def test_a_tensor_of_numpy_is_one_of_its_shape(tmp_path: pathlib.Path) -> None:
    schema = pa.schema([("x", pa.fixed_shape_tensor(pa.int32(), [2, 2]))])
    values = np.arange(8, dtype=np.int32).reshape(2, 2, 2)
    with DatasetWriter(tmp_path / "d", schema) as writer:
        writer.write(pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(values)}))
        writer.write(pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(range(4), pa.int32()), 4)}))
        turned = np.asfortranarray(values.reshape(8)[:4].reshape(2, 2))[np.newaxis]
        odd = pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int32(), [2, 2], permutation=[1, 0]),
            pa.FixedSizeListArray.from_arrays(pa.array(turned.reshape(4)), 4),
        )
        with pytest.raises(bowstring.MismatchError):
            writer.write(pa.table({"x": odd}))
    assert pq.read_table(tmp_path / "d").num_rows == 3


@needs_pyarrow(14, "giving a schema to others")
def test_a_null_in_place_of_a_row_is_refused(tmp_path: pathlib.Path) -> None:
    schema = pa.schema([("age", pa.int64())])
    people = pa.StructArray.from_arrays([pa.array([31, 99, 45])], names=["age"], mask=pa.array([False, True, False]))
    writer = DatasetWriter(tmp_path / "d", schema)
    for data in (people, pa.chunked_array([people])):
        with pytest.raises(bowstring.NullsError, match="in place of a row") as refused:
            writer.write(data)
        assert refused.value.row == 1
    writer.write(people.slice(2))
    writer.write(pa.chunked_array([people.slice(0, 1)]))
    writer.finish()
    assert pq.read_table(tmp_path / "d")["age"].to_pylist() == [45, 31]


@needs_pyarrow(14, "giving a schema to others")
def test_columns_of_other_members_or_shapes_are_refused(tmp_path: pathlib.Path) -> None:
    place = pa.array([{"lat": 52.5, "lon": 13.4}])
    swapped = pa.array([{"lon": 13.4, "lat": 52.5}])
    other = pa.array([{"lon": 13.4, "alt": 34.0}])
    with DatasetWriter(tmp_path / "d", pa.schema([("gps", place.type)])) as writer:
        with pytest.raises(bowstring.MismatchError, match="alt"):
            writer.write(pa.table({"gps": other}))
        writer.write(pa.table({"gps": swapped}))
    assert pq.read_table(tmp_path / "d")["gps"].to_pylist() == place.to_pylist()

    def tensors(shape: list[int]) -> pa.Table:
        storage = pa.array([[1, 2, 3, 4, 5, 6]], pa.list_(pa.int32(), 6))
        return pa.table({"x": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), shape), storage)})

    with DatasetWriter(tmp_path / "t", tensors([2, 3]).schema) as writer:
        with pytest.raises(bowstring.MismatchError, match=r"\[3,2\]"):
            writer.write(tensors([3, 2]))
        writer.write(tensors([2, 3]))


@needs_pyarrow(14, "giving a schema to others")
def test_misuse_is_named(tmp_path: pathlib.Path) -> None:
    data = table(1)
    with pytest.raises(bowstring.ConfigError, match='no column "y"'):
        DatasetWriter(tmp_path / "d", data.schema, stored={"y": Stored("npy", "float32", (1,))})
    with pytest.raises(bowstring.ConfigError):
        DatasetWriter(tmp_path / "d", data.schema, stored={"x": Stored("tiff", "uint8", (1,))})  # type: ignore[arg-type]
    with pytest.raises(bowstring.ConfigError, match="rows_per_group"):
        DatasetWriter(tmp_path / "d", data.schema, rows_per_group=0)
    writer = DatasetWriter(tmp_path / "d", data.schema)
    with pytest.raises(bowstring.MismatchError):
        writer.write(pa.table({"other": [1]}))
    with pytest.raises(AttributeError):
        writer.write({"id": [1]})
    writer.abort()
    assert not (tmp_path / "d").exists()


@needs_pyarrow(14, "giving a schema to others")
def test_a_dataset_with_a_unischema_is_one_of_petastorm(tmp_path: pathlib.Path) -> None:
    from bowstring.petastorm import make_reader

    # A stand-in for pyspark's own types, which need not be installed.
    from bowstring.petastorm._spark_types import SparkType
    from bowstring.petastorm.codecs import NdarrayCodec, ScalarCodec
    from bowstring.petastorm.unischema import Unischema, UnischemaField

    schema = Unischema(
        "Rows",
        [
            UnischemaField("id", np.int64, (), ScalarCodec(SparkType("LongType")), False),
            UnischemaField("name", np.str_, (), ScalarCodec(SparkType("StringType")), True),
            UnischemaField("x", np.float32, (2, 3), NdarrayCodec(), False),
        ],
    )
    data = table(20)
    with DatasetWriter(tmp_path / "d", data.schema, petastorm=schema, rows_per_group=8) as writer:
        writer.write(data)
    with make_reader(f"file://{tmp_path}/d", shuffle_row_groups=False) as reader:
        rows = list(reader)
    assert [int(row.id) for row in rows] == list(range(20))
    assert rows[7].name == "row 7"
    assert (rows[7].x == np.arange(6, dtype=np.float32).reshape(2, 3) + 7).all()


@needs_pyarrow(14, "giving a schema to others")
@pytest.mark.parametrize("nulls", [False, True])
def test_numbers_that_a_unischema_does_not_hold_are_an_error(tmp_path: pathlib.Path, nulls: bool) -> None:
    from bowstring.petastorm import make_reader
    from bowstring.petastorm.errors import DecodeFieldError
    from bowstring.petastorm.unischema import Unischema, UnischemaField

    fields = [("small", np.int8), ("positive", np.uint8), ("half", np.float16)]
    schema = Unischema("Rows", [UnischemaField(name, kind, (), None, nulls) for name, kind in fields])
    none = [None] if nulls else []
    for number, name in [(127, None), (300, "small"), (-1, "positive")]:
        data = pa.table(
            {
                "small": pa.array([5, number if name != "positive" else 0, *none], pa.int32()),
                "positive": pa.array([5, number if name != "small" else 0, *none], pa.int16()),
                "half": pa.array([0.5, 1.5, *none], pa.float32()),
            }
        )
        with DatasetWriter(tmp_path / "d", data.schema, petastorm=schema, overwrite=True) as writer:
            writer.write(data)
        with make_reader(f"file://{tmp_path}/d", shuffle_row_groups=False) as reader:
            if name is None:
                rows = list(reader)
                assert [(row.small, row.positive, row.half) for row in rows[:2]] == [(5, 5, 0.5), (127, 127, 1.5)]
                assert type(rows[0].small) is np.int8
                assert not nulls or (rows[2].small is None and np.isnan(rows[2].half))
            else:
                with pytest.raises(DecodeFieldError, match=f"field {name} does not decode: {number} does not fit in"):
                    list(reader)


@needs_pyarrow(14, "giving a schema to others")
def test_only_a_bowstring_dataset_is_replaced(tmp_path: pathlib.Path) -> None:
    data = table(3)
    notes = tmp_path / "d" / "chapters" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("years of work")
    with pytest.raises(bowstring.errors.ConfigError, match="overwrite_foreign"):
        DatasetWriter(tmp_path / "d", data.schema, overwrite=True)
    assert notes.exists()
    for rows, foreign in [(3, True), (2, False)]:
        with DatasetWriter(tmp_path / "d", data.schema, overwrite=True, overwrite_foreign=foreign) as writer:
            writer.write(data.slice(0, rows))
        assert pq.read_table(tmp_path / "d").num_rows == rows
        assert not notes.exists()


@needs_pyarrow(14, "giving a schema to others")
@pytest.mark.parametrize("form", ["dictionary", "runs", "list of dictionary", "large dictionary"])
def test_times_in_dictionaries_are_times_to_every_reader(form: str, tmp_path: pathlib.Path) -> None:
    keys = pa.array([0, 1, 0], pa.int32())
    for kind, numbers in {
        pa.timestamp("s", "UTC"): [1_000_000_000, 2_000_000_000],
        pa.time32("s"): [1, 2],
        pa.date64(): [86_400_000 * 20_000, 86_400_000 * 20_001],
    }.items():
        width = pa.int32() if kind == pa.time32("s") else pa.int64()
        values = pa.array(numbers, width).cast(kind)
        column: Any = pa.DictionaryArray.from_arrays(keys, values)
        if form == "large dictionary":
            # What no row has need not fit.
            others = pa.array([2**62] * 5 if kind == pa.timestamp("s", "UTC") else numbers * 3, width).cast(kind)
            column = pa.DictionaryArray.from_arrays(keys, pa.concat_arrays([values, others]))
        if form == "runs":
            column = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int32()), values.take(keys))
        if form == "list of dictionary":
            column = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), column)
        out = tmp_path / str(kind).replace("[", "").replace("]", "")
        with DatasetWriter(out, pa.schema([("at", column.type)])) as writer:
            writer.write(pa.table({"at": column}))
        # By what the file says of itself, without Arrow's schema in it.
        file = pq.ParquetFile(next(out.glob("*.parquet")))
        assert file.schema.column(0).logical_type.type in ("TIMESTAMP", "TIME", "DATE")
        found = pq.read_table(next(out.glob("*.parquet")))["at"].to_pylist()
        plain = values.take(keys).to_pylist()
        assert found == ([[value] for value in plain] if form == "list of dictionary" else plain)
