"""Conversions against the libraries that own the formats: their files are read, and they read ours."""

from __future__ import annotations

import io
import json
import pathlib
import sys
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS = 50

# The libraries leave open files to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def needs(name: str) -> Any:
    # mosaicml-streaming loads torch, which crashes the process if TensorFlow is already loaded.
    if name == "streaming" and "tensorflow" in sys.modules:
        pytest.skip("TensorFlow and torch do not share a process: run this one with -k streaming")
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


@pytest.fixture
def table(tmp_path: pathlib.Path) -> tuple[pa.Table, pathlib.Path]:
    """Numbers, text, bytes and lists, without nulls."""
    found = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "x": pa.array(np.arange(ROWS, dtype=np.float32) / 3),
            "name": pa.array([f"é {row}" for row in range(ROWS)]),
            "blob": pa.array([bytes([row, 255, 0]) * (row % 3) for row in range(ROWS)]),
            "floats": pa.array([[row / 2] * (row % 3 + 1) for row in range(ROWS)], pa.list_(pa.float32())),
        }
    )
    path = tmp_path / "src.parquet"
    pq.write_table(found, path, row_group_size=7)
    return found, path


def read(path: pathlib.Path) -> pa.Table:
    return pq.read_table(path).sort_by("id")


def test_tensorflow_and_we_read_each_others_records(
    table: tuple[pa.Table, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    tf = needs("tensorflow")
    source, path = table
    for compression in ["none", "gzip"]:
        out = tmp_path / compression
        bowstring.convert(path, out, to="tfrecord", compression=compression)
        files = sorted(str(file) for file in out.glob("part-*"))
        records = tf.data.TFRecordDataset(files, compression_type="GZIP" if compression == "gzip" else "")
        spec = {
            "id": tf.io.FixedLenFeature([], tf.int64),
            "x": tf.io.FixedLenFeature([], tf.float32),
            "name": tf.io.FixedLenFeature([], tf.string),
            "blob": tf.io.FixedLenFeature([], tf.string),
            "floats": tf.io.VarLenFeature(tf.float32),
        }
        found = [tf.io.parse_single_example(record, spec) for record in records]
        assert len(found) == ROWS
        for row in found:
            at = int(row["id"])
            expected = source.slice(at, 1).to_pylist()[0]
            assert float(row["x"]) == expected["x"]
            assert row["name"].numpy().decode() == expected["name"]
            assert row["blob"].numpy() == expected["blob"]
            assert row["floats"].values.numpy().tolist() == expected["floats"]
    theirs = tmp_path / "theirs.tfrecord"
    feature = tf.train.Feature
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for row in source.to_pylist():
            features = {
                "id": feature(int64_list=tf.train.Int64List(value=[row["id"]])),
                "x": feature(float_list=tf.train.FloatList(value=[row["x"]])),
                "name": feature(bytes_list=tf.train.BytesList(value=[row["name"].encode()])),
                "blob": feature(bytes_list=tf.train.BytesList(value=[row["blob"]])),
                "floats": feature(float_list=tf.train.FloatList(value=row["floats"])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    bowstring.convert(theirs, tmp_path / "parquet", to="parquet")
    assert bowstring.verify(path, tmp_path / "parquet")
    found_table = read(tmp_path / "parquet").select(source.column_names)
    assert found_table.to_pydict() == source.to_pydict()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # webdataset leaves open files to the garbage collector
def test_webdataset_and_we_read_each_others_shards(
    table: tuple[pa.Table, pathlib.Path], tmp_path: pathlib.Path
) -> None:
    wds = needs("webdataset")
    source, path = table
    out = tmp_path / "out"
    bowstring.convert(path, out, to="webdataset", shards=3)
    urls = sorted(str(file) for file in out.glob("*.tar"))
    assert len(urls) == 3
    found = list(wds.WebDataset(urls, shardshuffle=False).decode())
    assert sorted(sample["id"] for sample in found) == list(range(ROWS))
    for sample in found:
        expected = source.slice(sample["id"], 1).to_pylist()[0]
        assert sample["name.txt"] == expected["name"]
        assert np.float32(sample["x.json"]) == np.float32(expected["x"])
        assert sample["floats.json"] == expected["floats"]
        assert sample["blob.bin"] == expected["blob"]
    with wds.ShardWriter(str(tmp_path / "theirs-%06d.tar"), maxcount=20, verbose=0) as writer:
        for row in source.to_pylist():
            key = f"dir/{row['id']:04}"
            writer.write(
                {"__key__": key, "txt": row["name"], "cls": row["id"], "json": row["floats"], "bin": row["blob"]}
            )
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for file in tmp_path.glob("theirs-*.tar"):
        file.rename(theirs / file.name)
    bowstring.convert(theirs, tmp_path / "parquet", to="parquet")
    ours = pq.read_table(tmp_path / "parquet").sort_by("cls")
    assert ours["cls"].to_pylist() == list(range(ROWS))
    assert ours["txt"].to_pylist() == source["name"].to_pylist()
    assert [json.loads(text) for text in ours["json"].to_pylist()] == source["floats"].to_pylist()
    assert ours["bin"].to_pylist() == source["blob"].to_pylist()
    assert ours["__key__"].to_pylist() == [f"dir/{row:04}" for row in range(ROWS)]


@pytest.mark.parametrize("compression", [None, "zstd", "gzip", "snappy"])
def test_streaming_and_we_read_each_others_shards(
    table: tuple[pa.Table, pathlib.Path], tmp_path: pathlib.Path, compression: str | None
) -> None:
    streaming = needs("streaming")
    source, path = table
    out = tmp_path / "out"
    bowstring.convert(path, out, to="mds", target_file_size=1000, compression=compression, verify=True)
    found = streaming.LocalDataset(str(out)) if compression is None else None
    if found is None:
        found = streaming.StreamingDataset(local=str(out), batch_size=1, shuffle=False)
    assert len(found) == ROWS
    for at in range(ROWS):
        sample = found[at]
        expected = source.slice(int(sample["id"]), 1).to_pylist()[0]
        assert (sample["x"], sample["name"], sample["blob"]) == (
            np.float32(expected["x"]),
            expected["name"],
            expected["blob"],
        )
        assert sample["floats"].tolist() == expected["floats"]
    theirs = tmp_path / "theirs"
    columns = {"id": "int64", "x": "float32", "name": "str", "blob": "bytes", "floats": "ndarray:float32", "j": "json"}
    name = {None: None, "zstd": "zstd:3", "gzip": "gz:6", "snappy": "snappy"}[compression]
    hashes = ["sha1", "xxh64"]
    with streaming.MDSWriter(
        out=str(theirs), columns=columns, compression=name, hashes=hashes, size_limit=1000, progress_bar=False
    ) as writer:
        for row in source.to_pylist():
            writer.write({**row, "floats": np.array(row["floats"], np.float32), "j": {"k": row["id"]}})
    bowstring.convert(theirs, tmp_path / "parquet", to="parquet")
    ours = read(tmp_path / "parquet")
    for column in ["id", "x", "name", "blob"]:
        assert ours[column].to_pylist() == source[column].to_pylist()
    arrays = [np.load(io.BytesIO(cell)).tolist() for cell in ours["floats"].to_pylist()]
    assert arrays == source["floats"].to_pylist()
    assert [json.loads(text)["k"] for text in ours["j"].to_pylist()] == list(range(ROWS))


def test_images_of_streaming_are_those_of_pillow(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    streaming = needs("streaming")
    image = needs("PIL.Image")
    out = tmp_path / "out"
    bowstring.convert(photos, out, to="mds")
    found = streaming.LocalDataset(str(out))
    source = pq.read_table(photos)
    for at in range(len(found)):
        expected = image.open(io.BytesIO(source["image"][at].as_py()))
        assert np.array_equal(np.asarray(found[at]["image"]), np.asarray(expected))


def test_datasets_and_we_read_each_others_files(table: tuple[pa.Table, pathlib.Path], tmp_path: pathlib.Path) -> None:
    datasets = needs("datasets")
    source, path = table
    bowstring.convert(path, tmp_path / "ours", to="datasets", verify=True)
    found = datasets.load_from_disk(str(tmp_path / "ours"))
    assert found.to_dict() == source.to_pydict()
    datasets.Dataset(source).save_to_disk(str(tmp_path / "theirs"), num_shards=3)
    report = bowstring.convert(tmp_path / "theirs", tmp_path / "parquet", to="parquet")
    assert report.from_format == "datasets"
    assert read(tmp_path / "parquet").to_pydict() == source.to_pydict()


def test_features_of_datasets_stay_with_their_columns(tmp_path: pathlib.Path) -> None:
    datasets = needs("datasets")
    label = datasets.ClassLabel(names=["neg", "pos"])
    # The members of a struct have an order, other than that of their names here.
    features = datasets.Features(
        {"label": label, "image": datasets.Image(), "s": {"z": label, "a": datasets.Value("string")}}
    )
    rows = {"label": [0, 1], "image": [{"bytes": b"x", "path": None}] * 2, "s": [{"z": 1, "a": "x"}] * 2}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "hub.parquet")
    bowstring.convert(tmp_path / "hub.parquet", tmp_path / "ours", to="parquet", verify=True)
    bowstring.convert(tmp_path / "ours", tmp_path / "saved", to="datasets", verify=True)
    assert datasets.load_from_disk(str(tmp_path / "saved")).features == features
    with bowstring.Loader(tmp_path / "ours", batch_size=2, exclude=["s"]) as loader:
        assert loader.classes == {"label": ["neg", "pos"]}
        assert list(next(iter(loader))) == ["label", "image"]


def test_numpy_and_pillow_read_our_folders(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    image = needs("PIL.Image")
    bowstring.convert(photos, tmp_path / "folder", to="images", columns=["image", "label"])
    source = pq.read_table(photos)
    files = sorted((tmp_path / "folder").glob("*/*"))
    assert len(files) == source.num_rows
    assert sorted(file.read_bytes() for file in files) == sorted(source["image"].to_pylist())
    for file in files:
        image.open(file).load()
    classes = {file.parent.name for file in files}
    assert classes == {str(label) for label in source["label"].to_pylist()}
    arrays = pa.table({"array": pa.array([[float(row)] * (row + 1) for row in range(9)], pa.list_(pa.float64()))})
    pq.write_table(arrays, tmp_path / "arrays.parquet")
    bowstring.convert(tmp_path / "arrays.parquet", tmp_path / "npy", to="numpy")
    found = [np.load(file).tolist() for file in sorted((tmp_path / "npy").glob("*.npy"))]
    assert found == arrays["array"].to_pylist()
    np.savez_compressed(tmp_path / "z.npz", np.arange(6).reshape(2, 3))
    bowstring.convert(tmp_path / "z.npz", tmp_path / "z", to="parquet", from_format="numpy")
    cell = pq.read_table(tmp_path / "z")["array"][0].as_py()
    assert np.load(io.BytesIO(cell))["arr_0"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_images_and_packings_of_streaming(tmp_path: pathlib.Path) -> None:
    streaming, image = needs("streaming"), needs("PIL.Image")
    random = np.random.default_rng(3)
    pictures = [
        [random.integers(0, 256, (row % 3 + 1, 4, 3), np.uint8) for _ in range(row % 4 + 1)] for row in range(ROWS)
    ]
    columns = {"id": "int", "pictures": "list[pil]", "photo": "jpeg"}
    for compression in ["br:3", "bz2:9"]:
        src, out = tmp_path / compression, tmp_path / f"{compression}.parquet"
        with streaming.MDSWriter(
            out=str(src), columns=columns, compression=compression, hashes=["sha1"], size_limit=4096
        ) as writer:
            for row, arrays in enumerate(pictures):
                images = [image.fromarray(array) for array in arrays]
                writer.write({"id": row, "pictures": images, "photo": images[0]})
        assert bowstring.convert(src, out, to="parquet").rows == ROWS
        for row in read(out).to_pylist():
            found = [np.asarray(image.open(io.BytesIO(png))) for png in row["pictures"]]
            assert len(found) == len(pictures[row["id"]])
            assert all((a == b).all() for a, b in zip(found, pictures[row["id"]], strict=True))
            assert image.open(io.BytesIO(row["photo"])).size == (4, row["id"] % 3 + 1)


def test_batches_without_rows_or_bytes_take_no_others_with_them(tmp_path: pathlib.Path) -> None:
    numbers, nothing = pa.schema([("n", pa.int64())]), pa.schema([("n", pa.null())])
    for schema, values in ((numbers, [[], [1, 2], [], [], [3], []]), (nothing, [[None] * 2, [], [None] * 3])):
        for kind, make in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
            source, out = tmp_path / f"{kind}-{schema.field(0).type}.arrow", tmp_path / f"{kind}-{schema.field(0).type}"
            with make(source, schema) as writer:
                for rows in values:
                    writer.write_batch(pa.record_batch([pa.array(rows, schema.field(0).type)], schema=schema))
            bowstring.convert(source, out, to="arrow")
            (written,) = out.glob("*.arrow")
            assert pa.ipc.open_file(written).read_all()["n"].to_pylist() == [n for rows in values for n in rows]
