"""Batches in daily use: text that equals text, keys in the order of columns, errors that are known when a loader is opened."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring import Fill, Image, Loader, Padded, Vector
from conftest import ROOT, needs_pyarrow

FEATURES = ROOT / "fixtures" / "features"


@pytest.fixture
def words(tmp_path: pathlib.Path) -> pathlib.Path:
    kinds = ["cat", "dog", "fox"]
    table = pa.table(
        {
            "x": np.arange(12, dtype=np.float32),
            "word": [kinds[row % 3] for row in range(12)],
            "id": np.arange(12),
            "raw": [bytes([row]) * row for row in range(12)],
            "tags": [[f"t{n}" for n in range(row % 3)] for row in range(12)],
            "list": [list(range(row % 3)) for row in range(12)],
            "maybe": [None if row == 7 else f"m{row}" for row in range(12)],
        }
    )
    pq.write_table(table, tmp_path / "words.parquet", row_group_size=5)
    return tmp_path / "words.parquet"


def test_text_equals_text(words: pathlib.Path) -> None:
    batch = next(iter(Loader(words, batch_size=12, shuffle=False, nulls="mask")))
    assert isinstance(batch["word"], np.ndarray)
    assert (batch["word"] == "cat").tolist() == [True, False, False] * 4
    assert sum(s == "cat" for s in batch["word"]) == 4
    assert [{"cat": 0, "dog": 1, "fox": 2}[s] for s in batch["word"]] == [0, 1, 2] * 4
    assert np.unique(batch["word"]).tolist() == ["cat", "dog", "fox"]
    assert batch["raw"][3] == b"\3\3\3"
    assert batch["tags"].shape == (12,)
    assert batch["tags"][5] == ["t0", "t1"]
    assert batch["maybe"].tolist() == [None if row == 7 else f"m{row}" for row in range(12)]
    filled = next(iter(Loader(words, batch_size=12, shuffle=False, nulls=Fill("?"), columns="maybe")))
    assert filled["maybe"][7] == "?"
    assert next(iter(Loader(words, batch_size=5, shuffle=False, columns="word", filter="id < 0 or id > 9")))[
        "word"
    ].tolist()[:2] == ["dog", "fox"]


def test_text_in_torch_is_a_list(words: pathlib.Path) -> None:
    torch = pytest.importorskip("bowstring.torch")
    loader = torch.DataLoader(words, batch_size=12, shuffle=False, nulls="mask", arrow=["r?w"])
    batch = next(iter(loader))
    assert batch["word"] == ["cat", "dog", "fox"] * 4
    assert batch["tags"][:3] == [[], ["t0"], ["t0", "t1"]]
    assert batch["maybe"][6:9] == ["m6", None, "m8"]
    assert isinstance(batch["raw"], pa.Array), "arrow= asks for it"
    assert batch["raw"][2].as_py() == b"\2\2"


@needs_pyarrow(14, "taking arrays of others")
@pytest.mark.parametrize("arrow", ["word", "w*", ["id", "word"]])
def test_arrow_is_kept_where_requested(words: pathlib.Path, arrow: Any) -> None:
    batch = next(iter(Loader(words, batch_size=12, shuffle=False, arrow=arrow, exclude="maybe")))
    assert isinstance(batch["word"], pa.Array)
    assert batch["word"].type == pa.large_string()
    assert isinstance(batch["raw"], np.ndarray)


def test_keys_are_in_the_order_of_columns(words: pathlib.Path) -> None:
    columns = ["word", "id", "maybe", "list", "tags", "x"]
    options: dict[str, Any] = {"columns": columns, "nulls": {"maybe": "mask"}, "row_id": True, "tail": "pad"}
    batch = next(iter(Loader(words, batch_size=5, **options)))
    listed = ["list__values", "list__offsets"]
    assert list(batch) == ["word", "id", "maybe", "maybe__valid", *listed, "tags", "x", "_row_id", "_mask"]
    batch = next(
        iter(Loader(words, batch_size=5, **{**options, "lists": {"list": Padded(2)}, "columns": columns[::-1]}))
    )
    assert list(batch) == [
        "x",
        "tags",
        "list",
        "list__lengths",
        "maybe",
        "maybe__valid",
        "id",
        "word",
        "_row_id",
        "_mask",
    ]
    assert list(next(iter(Loader(words, batch_size=5, exclude=["maybe", "list"], tail="drop")))) == [
        "x",
        "word",
        "id",
        "raw",
        "tags",
    ]


def test_nulls_are_reported_when_the_loader_is_opened(words: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(bowstring.NullsError, match=r"maybe \(1 null in 1 row group\)") as caught:
        Loader(words, batch_size=4)
    error = caught.value
    assert not isinstance(error, bowstring.CorruptError)
    assert isinstance(error, ValueError)
    assert (error.file, error.row_group, error.column, error.row) == ("words.parquet", 1, "maybe", 2)
    assert error.option == "nulls"
    assert "mask" in str(error)
    assert len(list(Loader(words, batch_size=4, filter="id != 7"))) == 3
    table = pq.read_table(words).select(["id", "maybe"])
    pq.write_table(table, tmp_path / "mute.parquet", row_group_size=5, write_statistics=False)
    iterator = iter(Loader(tmp_path / "mute.parquet", batch_size=4, shuffle=False))
    next(iterator)
    with pytest.raises(bowstring.NullsError) as caught:
        next(iterator)
    assert (caught.value.row_group, caught.value.column, caught.value.row) == (1, "maybe", 2)


def test_vectors_of_spark() -> None:
    batch = next(iter(Loader(FEATURES / "vectors_mixed.parquet", batch_size=20, shuffle=False)))
    assert (batch["features"].shape, batch["features"].dtype) == ((20, 3), np.float64)
    assert batch["features"][4].tolist() == [0, 4, 0]
    sparse = FEATURES / "vectors_sparse.parquet"
    dense = next(iter(Loader(sparse, batch_size=20, shuffle=False, cast={"features": "float32"})))["features"]
    csr = next(iter(Loader(sparse, batch_size=20, shuffle=False, lists={"features": "csr"})))
    rows = Loader(sparse, batch_size=20, lists={"features": "csr"}).schema["features"]
    assert rows.dims == ("batch", "sparse")
    assert rows.names == ("features__values", "features__offsets", "features__indices")
    made = np.zeros((20, 1000), np.float32)
    for row in range(20):
        here = slice(*csr["features__offsets"][row : row + 2])
        made[row, csr["features__indices"][here]] = csr["features__values"][here]
    assert (made == dense).all()
    assert made.sum() == 20 + sum(range(20)) / 4
    with pytest.raises(bowstring.CorruptError, match="no vector of 4 numbers"):
        next(iter(Loader(FEATURES / "vectors_dense.parquet", batch_size=2, lists={"features": Vector(4)})))
    with pytest.raises(bowstring.UnsupportedError, match="variant"):
        Loader(FEATURES / "variant.parquet", batch_size=2)


def test_features_of_hugging_face() -> None:
    url = FEATURES / "huggingface.parquet"
    loader = Loader(url, batch_size=12, shuffle=False, images={"image": Image()})
    assert loader.classes == {"label": ["cat", "dog", "fox"]}
    batch = next(iter(loader))
    assert list(batch)[:3] == ["image", "label", "text"]
    assert batch["image"].shape == (12, 3, 5, 4)
    assert batch["image"][7].max() == 7
    assert next(iter(Loader(url, batch_size=12, shuffle=False)))["image"][0].startswith(b"\x89PNG")
    described = json.loads(pq.read_schema(url).metadata[b"huggingface"])["info"]["features"]["label"]
    assert described["names"] == loader.classes["label"]


def test_integers_of_128_bits_are_their_bytes() -> None:
    url = FEATURES / "int128.parquet"
    batch = next(iter(Loader(url, batch_size=2, shuffle=False, nulls="mask")))
    assert [int.from_bytes(bytes(row), "little", signed=True) for row in batch["x"]] == [1, -2]
    assert [int.from_bytes(bytes(row), "little", signed=True) for row in batch["s.y"]] == [1, 2]
    rest = next(iter(Loader(url, batch_size=2, shuffle=False, nulls="mask", exclude=["x", "s"])))
    assert rest["id"].tolist() == batch["id"].tolist() == [1, 2]
    # What else polars says beside Parquet's schema is heeded.
    assert Loader(url, batch_size=2, columns=["t"], nulls="mask").schema["t"].unit == "us, Europe/Berlin"


def test_a_column_called_as_the_mask_is_a_column_where_there_is_none(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3], "_mask": [True, False, True]}), path)
    batch = next(iter(Loader(path, batch_size=3, shuffle=False)))
    assert (list(batch), batch["_mask"].tolist()) == (["a", "_mask"], [True, False, True])
    options: dict[str, Any]
    for options in ({"tail": "pad"}, {"mask": True}):
        with pytest.raises(bowstring.ConfigError, match="two columns of the batch would be called _mask"):
            Loader(path, batch_size=3, **options)
        batch = next(iter(Loader(path, batch_size=3, shuffle=False, exclude=["_mask"], **options)))
        assert batch["_mask"].tolist() == [True, True, True]
