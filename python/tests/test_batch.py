"""`bowstring.Batch`: one batch as NumPy's, torch's and Arrow's, with documented copies only, and its notebook view."""

from __future__ import annotations

import base64
import gc
import io
import json
import math
import pathlib
import re
from html.parser import HTMLParser
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring import Image, Loader, NGram, arrays
from bowstring.writer import DatasetWriter, Stored
from conftest import EVERY_KIND, PHOTOS, needs_pyarrow
from test_device import run


def addresses(array: Any) -> set[int]:
    """Returns the addresses of an Arrow array's buffers."""
    return {buffer.address for buffer in array.buffers() if buffer is not None}


def test_a_pass_of_batches_is_the_pass_of_the_loader(kinds: pathlib.Path) -> None:
    options = {**EVERY_KIND, "cast": {}, "tail": "pad"}
    with Loader(kinds, **options) as one, Loader(kinds, **options) as other:
        for expected, batch in zip(one, other.batches(), strict=True):
            assert isinstance(batch, bowstring.Batch)
            assert list(batch) == list(expected)
            assert batch.rows == 8
            found = batch.to_numpy()
            for name, value in expected.items():
                np.testing.assert_array_equal(found[name], value)
        assert one.state_dict() == other.state_dict()
        state = other.state_dict()
        previewed = other.preview()
        assert other.state_dict() == state, "a look moves nothing"
        np.testing.assert_array_equal(previewed["id"].numpy(), next(other.batches())["id"].numpy())
        assert set(other.schema) == set(previewed.schema)
        with pytest.raises(KeyError):
            previewed["no such column"]


def test_numpy_and_torch_share_the_memory_of_the_batch(kinds: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    with Loader(kinds, **{**EVERY_KIND, "cast": {}}, arrow="bytes") as loader:
        batch = next(loader.batches())
    arrays, tensors = batch.to_numpy(), batch.to_torch()
    assert list(arrays) == list(tensors) == list(batch)
    for name, value in batch.items():
        if isinstance(value, bowstring.Tensor) and value.nbytes:
            assert arrays[name].ctypes.data == tensors[name].data_ptr() == value.data_ptr
            assert arrays[name].dtype.name == value.dtype
            np.testing.assert_array_equal(arrays[name], tensors[name].numpy())
    assert isinstance(arrays["name"], np.ndarray)
    assert tensors["name"] == arrays["name"].tolist()
    assert isinstance(tensors["bytes"], pa.Array), "arrow= asks for it"
    kept = tensors["id"].clone()
    del batch, arrays
    gc.collect()
    with Loader(kinds, **EVERY_KIND) as other:
        list(other)
    assert torch.equal(tensors["id"], kept), "what was converted may be kept for ever"


def test_bfloat16_becomes_torchs_and_that_of_ml_dtypes(kinds: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with Loader(kinds, batch_size=8, columns=["half"], cast={"half": "bfloat16"}) as loader:
        batch = next(loader.batches())
    assert batch.to_torch()["half"].dtype == torch.bfloat16
    assert batch.to_numpy()["half"].dtype == ml_dtypes.bfloat16
    with pytest.raises(bowstring.UnsupportedError, match="cast the column to float32"):
        batch.to_pyarrow()


@needs_pyarrow(14, "taking arrays of others")
def test_record_batches_of_an_epoch_are_the_table_that_was_read(kinds: pathlib.Path) -> None:
    stored = pq.read_table(kinds)
    nulls = {"maybe": "mask", "name": "mask"}
    options: dict[str, Any] = {"nulls": nulls, "shuffle": False, "exclude": "padded"}
    with Loader(kinds, batch_size=8, **options) as loader:
        table = pa.Table.from_batches([batch.to_pyarrow() for batch in loader.batches()])
    assert table.column_names == [name for name in stored.column_names if name != "padded"]
    for name in table.column_names:
        assert table[name].to_pylist() == stored[name].to_pylist(), name
    assert table.schema.field("maybe").nullable
    assert not table.schema.field("id").nullable
    assert table.schema.field("id").type == pa.int64()
    assert table.schema.field("flag").type == pa.bool_()
    assert table.schema.field("fixed").type == pa.fixed_shape_tensor(pa.int16(), [3])
    assert table.schema.field("deep").type == pa.large_list(pa.large_list(pa.float32()))


@needs_pyarrow(16, "`pyarrow.schema` of another object")
def test_null_lists_of_text_are_nulls_of_a_record_batch(tmp_path: pathlib.Path) -> None:
    columns = {
        "text": pa.array([["a", ""], None, [], ["b", None], [None]], pa.list_(pa.string())),
        "nested": pa.array([[["a"], []], None, [["b"]], [[]], [["c", None]]], pa.list_(pa.list_(pa.string()))),
        "numbers": pa.array([[1, 2], None, [], [3], [4]], pa.list_(pa.int32())),
    }
    pq.write_table(pa.table(columns), tmp_path / "lists.parquet")
    for arrow in ([], ["text", "nested"]):
        with bowstring.Loader(
            tmp_path / "lists.parquet", batch_size=5, shuffle=False, nulls="mask", arrow=arrow
        ) as loader:
            record = next(loader.batches()).to_pyarrow()
        assert {name: record[name].to_pylist() for name in columns} == {
            name: column.to_pylist() for name, column in columns.items()
        }


def test_packs_of_booleans_may_be_null_in_a_record_batch(tmp_path: pathlib.Path) -> None:
    table = pa.table({"a": [True, None, False], "b": [None, True, True]})
    pq.write_table(table, tmp_path / "flags.parquet")
    pack = {"p": bowstring.Pack(["a", "b"], dtype="bool")}
    with bowstring.Loader(
        tmp_path / "flags.parquet", batch_size=3, shuffle=False, pack=pack, columns=["p"], nulls="mask"
    ) as loader:
        record = next(loader.batches()).to_pyarrow()
    assert record["p"].to_pylist() == [[True, None], [None, True], [False, True]]


@pytest.mark.parametrize("dtype", ["bool", "int32", "float16"])
@pytest.mark.parametrize("shape", [(0,), (0, 2), (2, 0), (2, 0, 3), (3, 2)])
def test_cells_without_values_keep_their_shape(tmp_path: pathlib.Path, dtype: Any, shape: tuple[int, ...]) -> None:
    file = io.BytesIO()
    np.save(file, np.ones(shape, dtype))
    table = pa.table({"x": pa.array([file.getvalue(), None, file.getvalue()])})
    with DatasetWriter(tmp_path / "d", table.schema, stored={"x": Stored("npy", dtype, shape)}) as writer:
        writer.write(table)
    with Loader(tmp_path / "d", batch_size=3, shuffle=False, nulls="mask") as loader:
        batch = next(loader.batches())
    assert batch.to_numpy()["x"].shape == (3, *shape)
    record = batch.to_pyarrow()
    record.validate(full=True)
    column = record.column("x")
    storage = column if dtype == "bool" else column.storage
    cell = np.ones(shape if dtype == "bool" else math.prod(shape), dtype).tolist()
    assert storage.to_pylist() == [cell, None, cell]


def test_a_record_batch_shares_the_memory_of_the_batch(kinds: pathlib.Path) -> None:
    with Loader(kinds, **{**EVERY_KIND, "cast": {}}, mask=True, shuffle=False) as loader:
        batch = next(loader.batches())
    record = batch.to_pyarrow()
    assert record.num_rows == batch.rows == 8
    for name in ("id", "half", "fixed", "maybe", "padded", "padded__lengths", "packed", "_row_id"):
        assert batch[name].data_ptr in addresses(record[name]), name
    assert {batch["tags__values"].data_ptr, batch["tags__offsets"].data_ptr} <= addresses(record["tags"])
    assert not [name for name in record.schema.names if name.endswith(("__valid", "__values", "__offsets"))]
    assert record["maybe"].null_count == (~batch["maybe__valid"].numpy()).sum() > 0
    assert record["_mask"].to_pylist() == [True] * 8
    # Other libraries accept the batch itself.
    assert pa.record_batch(batch).equals(record)
    assert pa.schema(batch).equals(record.schema, check_metadata=True)


@needs_pyarrow(20, "writing null lists of one length")
def test_masks_of_every_form_become_nulls(tmp_path: pathlib.Path) -> None:
    rows = range(9)
    table = pa.table(
        {
            "list": pa.array([None if row == 2 else list(range(row)) for row in rows], pa.list_(pa.int32())),
            "cells": pa.array([None if row == 3 else [row, row] for row in rows], pa.list_(pa.float32(), 2)),
            "a": pa.array([None if row == 4 else row for row in rows], pa.float32()),
            "b": pa.array([None if row == 5 else row for row in rows], pa.float32()),
            "flag": pa.array([None if row == 6 else row > 4 for row in rows]),
            "day": pa.array([None if row == 7 else row for row in rows], pa.date32()),
        }
    )
    pq.write_table(table, tmp_path / "nulls.parquet")
    pack = {"pack": ["a", "b"]}
    with Loader(tmp_path / "nulls.parquet", batch_size=9, shuffle=False, nulls="mask", pack=pack) as loader:
        record = next(loader.batches()).to_pyarrow()
        assert record.schema.field("day").metadata == {b"bowstring.unit": b"days"}
    assert record["list"].to_pylist() == table["list"].to_pylist()
    assert record["flag"].to_pylist() == table["flag"].to_pylist()
    assert record["day"].to_pylist() == [None if row == 7 else row for row in rows]
    assert [cell.as_py() for cell in record["cells"].storage] == table["cells"].to_pylist()
    pairs = [list(pair) for pair in zip(table["a"].to_pylist(), table["b"].to_pylist(), strict=True)]
    assert record["pack"].to_pylist() == pairs


def test_padding_rows_of_masked_text_are_null(tmp_path: pathlib.Path) -> None:
    table = pa.table(
        {"text": ["a", None], "bytes": [None, b"b"], "texts": [["a"], None], "day": pa.array([1, None], pa.date32())}
    )
    pq.write_table(table, tmp_path / "nulls.parquet")
    options: dict[str, Any] = {"shuffle": False, "nulls": "mask", "tail": "pad", "arrow": ["day"]}
    with Loader(tmp_path / "nulls.parquet", batch_size=3, **options) as loader:
        record = next(loader.batches()).to_pyarrow()
    for name in table.column_names:
        assert record[name].to_pylist() == [*table[name].to_pylist(), None], name


def test_batches_are_written_with_the_schema_of_the_first(tmp_path: pathlib.Path) -> None:
    pq.write_table(pa.table({"ok": [True, None, False], "text": ["a", None, "b"]}), tmp_path / "in.parquet")
    with Loader(tmp_path / "in.parquet", batch_size=2, shuffle=False, nulls="mask", tail="short") as loader:
        records = [batch.to_pyarrow() for batch in loader.batches()]
        assert pa.schema(loader.schema) != records[0].schema, "booleans have other types in it"
    with pq.ParquetWriter(tmp_path / "out.parquet", records[0].schema) as writer:
        for record in records:
            writer.write_batch(record)
    assert pq.read_table(tmp_path / "out.parquet")["ok"].to_pylist() == [True, None, False]


def test_an_older_pyarrow_is_named(kinds: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**EVERY_KIND, "cast": {}, "arrow": ["name"], "shuffle": False}
    with Loader(kinds, **options) as loader:
        expected = next(iter(loader))["name"]
        monkeypatch.setattr(pa, "__version__", "8.0.0")
        arrays._new_pyarrow.cache_clear()
        try:
            with pytest.raises(ImportError, match=r"record batch needs pyarrow 14 or newer; 8\.0\.0 is installed"):
                next(loader.batches()).to_pyarrow()
            # Everything else goes on, as without pyarrow.
            found = next(iter(loader))["name"]
        finally:
            arrays._new_pyarrow.cache_clear()
    assert isinstance(found, bowstring._native.ArrowArray)
    assert found.to_pylist() == (expected if isinstance(expected, list) else expected.to_pylist())


def test_windows_convert_but_not_to_arrow(numbers: pathlib.Path) -> None:
    ngram = NGram({0: ["id", "name"], 1: ["id", "tags"]}, "id", 5)
    with Loader(numbers, batch_size=6, ngram=ngram, shuffle=False) as loader:
        expected, batch = loader.peek(), loader.preview()
    assert batch.rows == 6
    for name, value in batch.to_numpy().items():
        np.testing.assert_array_equal(value, expected[name])
    with pytest.raises(bowstring.UnsupportedError, match="windows"):
        batch.to_pyarrow()


@needs_pyarrow(14, "taking arrays of others")
def test_sparse_vectors_keep_their_indices() -> None:
    vectors = PHOTOS.parent / "features" / "vectors_sparse.parquet"
    with Loader(vectors, batch_size=20, shuffle=False, lists={"features": "csr"}) as loader:
        batch = next(loader.batches())
    record = batch.to_pyarrow()
    assert batch.rows == record.num_rows == 20
    rows = np.split(batch["features__indices"].numpy(), batch["features__offsets"].numpy()[1:-1])
    assert record["features__indices"].to_pylist() == [row.tolist() for row in rows]
    assert batch["features__indices"].data_ptr in addresses(record["features__indices"])


def test_batches_of_a_gpu_stay_there_in_torch_only(fake_driver: pathlib.Path) -> None:
    found = run(
        """
loader = bowstring.Loader(PHOTOS, device="cuda", **OPTIONS)
host = bowstring.Loader(PHOTOS, **OPTIONS)
batch, expected = next(loader.batches()), next(host.batches())
same = all((batch.to_numpy()[name] == value).all() for name, value in expected.to_numpy().items())
arrow = "skipped"
try:
    import pyarrow
    arrow = batch.to_pyarrow().equals(expected.to_pyarrow())
except ImportError:
    pass
import ctypes
pointer = ctypes.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("number", ctypes.c_int32)]
seen, streams = [], []
class Torch:
    # The legacy default stream.
    cuda_stream = 0
    @staticmethod
    def from_dlpack(given):
        seen.append(DLTensor.from_address(pointer(given, b"dltensor")).kind)
        return given
    @staticmethod
    def current_stream(device):
        streams.append(device)
        return Torch
for module in ("torch", "torch.utils", "torch.utils.dlpack", "torch.cuda"):
    sys.modules[module] = Torch
given = batch.to_torch()
kept = list(given) == list(batch) and streams == ["cuda:0"]
html = batch._repr_html_()
print(json.dumps([same, arrow, kept, sorted(set(seen)), batch.device, html.count("data:image/png"), "on cuda:0" in html]))
""",
        fake_driver,
    )
    assert found == [True, True, True, [2], "cuda:0", 8, True]


class Tags(HTMLParser):
    """The elements of a document, which must be properly nested, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def pictures(html: str) -> list[Any]:
    """Returns the pictures of a document, decoded by Pillow."""
    pillow = pytest.importorskip("PIL.Image")
    found = re.findall(r'src="data:image/png;base64,([^"]*)"', html)
    return [pillow.open(io.BytesIO(base64.b64decode(data))) for data in found]


@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_a_notebook_shows_the_first_images_as_they_were_before_normalize(layout: Any, dtype: Any) -> None:
    normalize = None if dtype == "uint8" else "imagenet"
    plain = {"image": Image(64, layout="hwc")}
    with Loader(PHOTOS, batch_size=16, shuffle=False, columns=["image", "label"], images=plain) as loader:
        expected = loader.peek()["image"]
    images = {"image": Image(64, layout=layout, dtype=dtype, normalize=normalize)}
    with Loader(PHOTOS, batch_size=16, shuffle=False, columns=["im*", "label"], images=images) as loader:
        html = loader.preview()._repr_html_()
    shown = pictures(html)
    assert len(shown) == 8, "so many, however large the batch is"
    assert len(html) < 400_000
    for row, picture in enumerate(shown):
        assert picture.size == (64, 64)
        distance = np.abs(np.asarray(picture, np.int16) - expected[row].astype(np.int16)).max()
        # bfloat16 has 8 bits of precision, for values up to 2.6.
        assert distance <= {"uint8": 0, "bfloat16": 3}.get(dtype, 1), row
    tags = Tags(html)
    assert "[16, 3, 64, 64]" in tags.text or layout == "hwc"
    assert "label" in tags.text


def test_a_large_image_is_shown_small() -> None:
    images = {"image": Image((300, 200))}
    with Loader(PHOTOS, batch_size=4, columns=["image"], images=images) as loader:
        shown = pictures(loader.preview()._repr_html_())
    assert [picture.size for picture in shown] == [(64, 96)] * 4


def test_arrays_that_are_pictures_are_shown_without_options(tmp_path: pathlib.Path) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (3, 6, 7, 3), np.uint8)
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)
    pq.write_table(pa.table({"photo": tensor, "id": range(3)}), tmp_path / "arrays.parquet")
    with Loader(tmp_path / "arrays.parquet", batch_size=3, shuffle=False) as loader:
        shown = pictures(loader.preview()._repr_html_())
    assert [np.asarray(picture).tolist() for picture in shown] == pixels.tolist()


def test_no_text_of_a_dataset_is_markup(tmp_path: pathlib.Path) -> None:
    name = '<script>alert("1")</script>&'
    url = tmp_path / "<b>x.parquet"
    pq.write_table(pa.table({name: [1, 2, 3], "x" * 5000: [1, 2, 3]}), url)
    with Loader(url, batch_size=3) as loader:
        for html in (loader.preview()._repr_html_(), loader._repr_html_(), loader.schema._repr_html_()):
            tags = Tags(html)
            assert {tag for tag, _ in tags.seen} <= {
                "div",
                "table",
                "caption",
                "thead",
                "tbody",
                "tr",
                "th",
                "td",
                "pre",
            }
            assert name in tags.text
            assert len(html) < 5000, "long names are cut"
    assert "<b>" not in loader._repr_html_(), "a closed loader says so, or what it was"


def test_a_wide_table_is_shown_in_part(tmp_path: pathlib.Path) -> None:
    pq.write_table(pa.table({f"c{n}": [1] for n in range(300)}), tmp_path / "wide.parquet")
    with Loader(tmp_path / "wide.parquet", batch_size=1) as loader:
        for html in (loader.preview()._repr_html_(), loader._repr_html_()):
            assert "and 200 more" in html
            assert "c99" in html
            assert "c100" not in html


def test_a_loader_shows_its_place_and_columns(kinds: pathlib.Path) -> None:
    with Loader(kinds, **EVERY_KIND) as loader:
        text = Tags(loader._repr_html_()).text
        assert "100 rows, rank 0 of 1" in text
        assert "maybe__valid" in text
        assert "[B, <=3]" in text
        assert Tags(loader.schema._repr_html_()).text.count("float32") >= 2


def test_a_plan_is_a_dictionary_that_shows_itself(kinds: pathlib.Path) -> None:
    plan = bowstring.plan(kinds, batch_size=8, world_size=2)
    assert json.loads(json.dumps(plan)) == plan
    html = plan._repr_html_()  # type: ignore[attr-defined]
    tags = Tags(html)
    assert sum(tag == "tr" for tag, _ in tags.seen) == 2 + len(plan["worlds"])
    for advice in plan["advice"]:
        assert advice in tags.text


def test_a_batch_of_torchs_loader_is_the_same(kinds: pathlib.Path) -> None:
    torch = pytest.importorskip("bowstring.torch")
    loader = torch.DataLoader(kinds, **EVERY_KIND)
    expected, batch = loader.peek(), loader.preview()
    found = batch.to_torch()
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name] == value if isinstance(value, list) else found[name].equal(value)
    assert repr(batch).startswith("<bowstring.Batch of 8 rows: packed, id, half, ")
