# bowstring.convert against typical scripts: PIL and pyarrow, TensorFlow's writer, MDSWriter, webdataset.
# Every run is a process of its own; contenders take turns; the medians and the ratio are printed at the end.
#
#   CONVERT_PYTHON=/path/to/python .venv/bin/python benches/peers/convert_pairs.py --photos photos.parquet --rows 200000
#
# CONVERT_PYTHON has tensorflow, webdataset, mosaicml-streaming, Pillow and pyarrow. The outputs of both are compared once.

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
AIM = 5.0
LIMIT_S = 1200


# ---- the scripts ---------------------------------------------------------------------------------------------------------


def folder_to_parquet(src: pathlib.Path, dst: pathlib.Path) -> None:
    """Every file is opened with PIL, as such scripts do to skip files that are no images, and its bytes go to pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    schema = pa.schema([("image", pa.binary()), ("label", pa.int64()), ("class", pa.string()), ("path", pa.string())])
    classes = sorted(path.name for path in src.iterdir() if path.is_dir())
    dst.mkdir()
    with pq.ParquetWriter(dst / "part.parquet", schema) as writer:
        rows: list[dict[str, object]] = []
        for label, name in enumerate(classes):
            for path in sorted((src / name).iterdir()):
                Image.open(path).load()
                rows.append({"image": path.read_bytes(), "label": label, "class": name, "path": f"{name}/{path.name}"})
                if len(rows) == 256:
                    writer.write_table(pa.Table.from_pylist(rows, schema))
                    rows.clear()
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema))


def parquet_to_tfrecord(src: pathlib.Path, dst: pathlib.Path) -> None:
    import pyarrow.parquet as pq
    import tensorflow as tf

    dst.mkdir()
    feature = tf.train.Feature
    with tf.io.TFRecordWriter(str(dst / "part.tfrecord")) as writer:
        for batch in pq.ParquetFile(src).iter_batches(4096):
            for row in batch.to_pylist():
                features = {
                    "id": feature(int64_list=tf.train.Int64List(value=[row["id"]])),
                    "x": feature(float_list=tf.train.FloatList(value=[row["x"]])),
                    "name": feature(bytes_list=tf.train.BytesList(value=[row["name"].encode()])),
                    "floats": feature(float_list=tf.train.FloatList(value=row["floats"])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


def parquet_to_mds(src: pathlib.Path, dst: pathlib.Path) -> None:
    import numpy as np
    import pyarrow.parquet as pq
    from streaming import MDSWriter

    columns = {"id": "int64", "x": "float32", "name": "str", "floats": "ndarray:float32"}
    with MDSWriter(out=str(dst), columns=columns, progress_bar=False) as writer:
        for batch in pq.ParquetFile(src).iter_batches(4096):
            for row in batch.to_pylist():
                row["floats"] = np.array(row["floats"], np.float32)
                row["x"] = np.float32(row["x"])
                writer.write(row)


def webdataset_to_parquet(src: pathlib.Path, dst: pathlib.Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import webdataset as wds

    schema = pa.schema([("__key__", pa.string()), ("image.jpg", pa.binary()), ("label.cls", pa.int64())])
    dst.mkdir()
    urls = sorted(str(path) for path in src.glob("*.tar"))
    with pq.ParquetWriter(dst / "part.parquet", schema) as writer:
        rows: list[dict[str, object]] = []
        for sample in wds.WebDataset(urls, shardshuffle=False):
            row = {
                "__key__": sample["__key__"],
                "image.jpg": sample["image.jpg"],
                "label.cls": int(sample["label.cls"]),
            }
            rows.append(row)
            if len(rows) == 256:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows.clear()
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema))


# Task -> the script, the destination's format, and its data.
TASKS: dict[str, tuple[Callable[[pathlib.Path, pathlib.Path], None], str, str]] = {
    "images -> parquet": (folder_to_parquet, "parquet", "folder"),
    "parquet -> tfrecord": (parquet_to_tfrecord, "tfrecord", "rows.parquet"),
    "parquet -> mds": (parquet_to_mds, "mds", "rows.parquet"),
    "webdataset -> parquet": (webdataset_to_parquet, "parquet", "tars"),
}


# ---- one run -------------------------------------------------------------------------------------------------------------


def run_one(task: str, side: str, src: pathlib.Path, dst: pathlib.Path) -> None:
    """In a process of its own: seconds from the first byte to the last, without imports."""
    script, to, _ = TASKS[task]
    if side == "bowstring":
        import bowstring

        started = time.perf_counter()
        bowstring.convert(src, dst, to=to)
    else:
        for module in {
            "images": "PIL",
            "tfrecord": "tensorflow",
            "mds": "streaming",
            "webdataset": "webdataset",
        }.items():
            if module[0] in task:
                __import__(module[1])
        started = time.perf_counter()
        script(src, dst)
    print(json.dumps({"seconds": time.perf_counter() - started}))


def measure(python: str, task: str, side: str, data: pathlib.Path, dst: pathlib.Path) -> float:
    shutil.rmtree(dst, ignore_errors=True)
    command = [python, str(HERE), "--run", task, side, str(data / TASKS[task][2]), str(dst)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment)
    if done.returncode:
        sys.exit(f"{task} by {side}: {done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def disk_rate(data: pathlib.Path) -> float:
    """MB/s of writing and flushing 256 MiB: the upper bound of any conversion to disk."""
    path, block = data / "disk", os.urandom(1 << 20)
    started = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(256):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    path.unlink()
    return 268.4 / seconds


def prepare(python: str, photos: pathlib.Path, rows: int, copies: int, data: pathlib.Path) -> None:
    import bowstring
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(1)
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "x": pa.array(random.random(rows, np.float32)),
            "name": pa.array([f"user {row * 7919 % rows}" for row in range(rows)]),
            "floats": pa.array(list(random.random((rows, 16), np.float32)), pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, data / "rows.parquet", row_group_size=16384)
    source = pq.read_table(photos, columns=["image", "label"])
    many = pa.concat_tables([source] * copies)
    pq.write_table(many, data / "photos.parquet", row_group_size=64, compression="none")
    bowstring.convert(data / "photos.parquet", data / "folder", to="images")
    bowstring.convert(data / "photos.parquet", data / "tars", to="webdataset", target_file_size=32 << 20)
    # The mark of a conversion is not part of the data.
    (data / "folder" / "_SUCCESS").unlink()
    (data / "tars" / "_SUCCESS").unlink()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--photos", type=pathlib.Path, default=ROOT / "fixtures" / "imagenet40.parquet")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--copies", type=int, default=50)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", choices=TASKS)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("/tmp/bowstring-convert-pairs"))
    parser.add_argument("--run", nargs=4)
    arguments = parser.parse_args()
    if arguments.run:
        task, side, src, dst = arguments.run
        return run_one(task, side, pathlib.Path(src), pathlib.Path(dst))
    theirs = os.environ.get("CONVERT_PYTHON", sys.executable)
    shutil.rmtree(arguments.data, ignore_errors=True)
    arguments.data.mkdir(parents=True)
    prepare(theirs, arguments.photos, arguments.rows, arguments.copies, arguments.data)
    print(f"disk: {disk_rate(arguments.data):.0f} MB/s of flushed writes")
    for task in [arguments.only] if arguments.only else TASKS:
        seconds: dict[str, list[float]] = {"script": [], "bowstring": []}
        for _ in range(arguments.turns):
            for side, python in (("script", theirs), ("bowstring", sys.executable)):
                out = arguments.data / f"out-{side}"
                seconds[side].append(measure(python, task, side, arguments.data, out))
        median = {side: statistics.median(found) for side, found in seconds.items()}
        size = sum(path.stat().st_size for path in (arguments.data / "out-bowstring").rglob("*") if path.is_file())
        ratio = median["script"] / median["bowstring"]
        rate = size / 1e6 / median["bowstring"]
        print(
            f"{task:24} script {median['script']:7.2f} s   bowstring {median['bowstring']:7.2f} s   "
            f"{ratio:5.1f} x (aim {AIM:.0f})   {rate:.0f} MB/s written"
        )
    return None


if __name__ == "__main__":
    main()
