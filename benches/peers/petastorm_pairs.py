# The real Petastorm against bowstring.petastorm and against bowstring's own loaders: photos, rows of numbers, arrays.
# Every run is a process of its own; contenders take turns; medians and ratios within a turn are printed at the end.
#
#   PETASTORM_PYTHON=/path/to/python .venv/bin/python benches/peers/petastorm_pairs.py --photos photos.parquet
#
# PETASTORM_PYTHON has petastorm 0.12.1 with pyspark (which writes the data), pyarrow 14, OpenCV and torch. Rows are counted in
# every run: Petastorm's thread pool loses some now and then, and such a run does not count.

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
SIZE = 224
# Contender -> interpreter and the library that it imports; "native" is bowstring.torch.DataLoader.
# in file order, as Petastorm delivers rows, and "native-shuffled" the same with its default order.
SIDES = ("petastorm", "bowstring.petastorm", "native", "native-shuffled")
# The tasks called shuffled: Petastorm's batches come out of its shuffling queue, so that both sides mix rows.
TASKS = ("photos", "augmented", "tabular", "matrix", "tabular-shuffled", "matrix-shuffled", "ndarray")
# Tasks of the drop-in alone: `DataLoader` over four columns of `make_batch_reader`, and the reader's own shuffling of rows.
DROP_IN = ("collated", "collated-shuffled", "parts")
TASKS += DROP_IN
# Tasks over another one's data.
DATA = {"augmented": "photos"} | dict.fromkeys(("matrix", "tabular-shuffled", "matrix-shuffled", *DROP_IN), "tabular")
TABULAR, MATRIX = 1024, 4096
BATCH = {"photos": 32, "augmented": 32, "ndarray": 64, "tabular": TABULAR, "matrix": MATRIX}
BATCH |= {"tabular-shuffled": TABULAR, "matrix-shuffled": MATRIX} | dict.fromkeys(DROP_IN, TABULAR)
AIM = {task: 8.0 if DATA.get(task, task) == "photos" else 10.0 if task == "ndarray" else 5.0 for task in TASKS}
# Rows in Petastorm's shuffling queue: two row groups.
QUEUE = 100_000
LIMIT_S = 1200


# ---- measurements ------------------------------------------------------------------------------------------------------


def cropped(row: dict[str, Any]) -> dict[str, Any]:
    """The middle of a photo, 224 x 224, padded with black if it is smaller."""
    import numpy as np

    image = row["image"]
    height, width = image.shape[:2]
    top, left = max((height - SIZE) // 2, 0), max((width - SIZE) // 2, 0)
    part = image[top : top + SIZE, left : left + SIZE]
    out = np.zeros((SIZE, SIZE, 3), np.uint8)
    out[: part.shape[0], : part.shape[1]] = part
    return {"image": out, "label": row["label"]}


def augmented(row: dict[str, Any]) -> dict[str, Any]:
    """A random part of a photo, 8 to 100 % of its area, resized to 224 x 224: torchvision's RandomResizedCrop by OpenCV."""
    import cv2
    import numpy as np

    image = row["image"]
    height, width = image.shape[:2]
    for _ in range(10):
        area = height * width * np.random.uniform(0.08, 1)
        ratio = np.exp(np.random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            break
    else:
        w, h = width, height
    top, left = np.random.randint(height - h + 1), np.random.randint(width - w + 1)
    part = image[top : top + h, left : left + w]
    return {"image": cv2.resize(part, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR), "label": row["label"]}


def petastorm_batches(root: str, task: str, data: pathlib.Path, threads: int, epochs: int) -> Iterator[int]:
    """Sizes of batches of Petastorm's loaders over ``epochs`` epochs of one reader, from either library."""
    import importlib

    import numpy as np

    lib = importlib.import_module(root)
    torch_side = importlib.import_module(f"{root}.pytorch")
    url = f"file://{data / DATA.get(task, task)}"
    pool = {"workers_count": threads} if root == "petastorm" else {}
    if DATA.get(task, task) == "tabular":
        import torch

        queue = QUEUE if task.endswith("shuffled") else 0
        kind, options = torch_side.BatchedDataLoader, {}
        if task.startswith("collated"):
            kind, options = torch_side.DataLoader, {"schema_fields": ["f00", "f01", "f02", "label"]}
        elif task == "parts":
            options = {"shuffle_rows": True, "shuffle_row_drop_partitions": 2}
        reader = lib.make_batch_reader(url, num_epochs=epochs, **pool, **options)
        with kind(reader, batch_size=BATCH[task], shuffling_queue_capacity=queue) as loader:
            for batch in loader:
                if task.startswith("matrix"):
                    torch.stack([column for name, column in batch.items() if name != "label"], dim=1)
                yield len(batch["label"])
        return
    spec = None
    if DATA.get(task, task) == "photos":
        change = cropped if task == "photos" else augmented
        spec = lib.TransformSpec(change, edit_fields=[("image", np.uint8, (SIZE, SIZE, 3), False)])
    reader = lib.make_reader(url, num_epochs=epochs, transform_spec=spec, **pool)
    with torch_side.DataLoader(reader, batch_size=BATCH[task]) as loader:
        for batch in loader:
            yield len(batch["label"])


def native_batches(task: str, data: pathlib.Path, threads: int, epochs: int, shuffle: bool) -> Iterator[int]:
    """Sizes of batches of bowstring's own loader over ``epochs`` epochs."""
    import bowstring
    import bowstring.torch

    crop: Any = {"photos": "center", "augmented": "random_resized"}.get(task)
    images = {"image": bowstring.Image(SIZE, crop=crop, layout="hwc")} if crop else None
    loader = bowstring.torch.DataLoader(
        str(data / DATA.get(task, task)),
        pack={"features": ["f*"]} if task.startswith("matrix") else None,
        batch_size=BATCH[task],
        images=images,
        shuffle=shuffle,
        tail="pad",
        threads=threads,
        rank=0,
        world_size=1,
    )
    for _ in range(epochs):
        for batch in loader:
            yield int(batch["_mask"].sum()) if "_mask" in batch else len(batch["label"])


def run(side: str, task: str, data: pathlib.Path, threads: int, epochs: int) -> dict[str, float]:
    """Reads the dataset once unmeasured, then `epochs` times, with the same reader."""
    warnings.simplefilter("ignore")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import torch

    torch.set_num_threads(threads)
    if side.startswith("native"):
        sizes = native_batches(task, data, threads, epochs + 1, side == "native-shuffled")
    else:
        sizes = petastorm_batches(side, task, data, threads, epochs + 1)
    once, first = rows_of(data, task), 0
    # A queue mixes the rows of two epochs, so the clock starts with the next batch.
    while first < once:
        first += next(sizes)
    wall, cpu = time.perf_counter(), used()
    rows = sum(sizes)
    return {
        "rows": rows,
        "first_rows": first,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": used() - cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def used() -> float:
    """CPU seconds of this process and of its children."""
    times = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in times)


# ---- data: written by the real Petastorm ---------------------------------------------------------------------------------


def make(data: pathlib.Path, photos: pathlib.Path, scale: float) -> None:
    """Writes the three datasets and their row counts."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    counts = {"tabular": int(1_000_000 * scale)}
    columns: dict[str, Any] = {f"f{at:02d}": rng.random(counts["tabular"], np.float32) for at in range(20)}
    columns["label"] = rng.integers(0, 1000, counts["tabular"])
    (data / "tabular").mkdir(parents=True)
    table = pa.table(columns)
    half = counts["tabular"] // 2
    for name, part in (("a", table.slice(0, half)), ("b", table.slice(half))):
        pq.write_table(part, data / "tabular" / f"{name}.parquet", row_group_size=50_000, compression="snappy")
    counts |= write_with_spark(data, photos, scale)
    (data / "rows.json").write_text(json.dumps(counts))


def write_with_spark(data: pathlib.Path, photos: pathlib.Path, scale: float) -> dict[str, int]:
    """The photos as JPEG in CompressedImageCodec, and arrays in NdarrayCodec."""
    import cv2
    import numpy as np
    import pyarrow.parquet as pq
    from petastorm.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
    from petastorm.etl.dataset_metadata import materialize_dataset
    from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row
    from pyspark.sql import SparkSession
    from pyspark.sql.types import LongType

    label = UnischemaField("label", np.int64, (), ScalarCodec(LongType()), False)
    image = UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec("jpeg", 90), False)
    schemas = {
        "photos": Unischema("Photos", [image, label]),
        "ndarray": Unischema(
            "Arrays",
            [
                UnischemaField("embedding", np.float32, (256,), NdarrayCodec(), False),
                label,
                UnischemaField("matrix", np.float32, (16, 16), NdarrayCodec(), False),
            ],
        ),
    }
    source = pq.read_table(photos, columns=["image", "label"]).to_pylist()
    many = int(20_000 * scale)

    def photo(number: int) -> dict[str, Any]:
        row = source[number % len(source)]
        decoded = cv2.imdecode(np.frombuffer(row["image"], np.uint8), cv2.IMREAD_COLOR)
        return {"image": np.ascontiguousarray(decoded[:, :, ::-1]), "label": row["label"]}

    def arrays(number: int) -> dict[str, Any]:
        rng = np.random.default_rng(number)
        floats = rng.random(512, np.float32)
        return {"embedding": floats[:256], "label": number, "matrix": floats[256:].reshape(16, 16)}

    jobs = {"photos": (photo, int(600 * scale) or 1, 8), "ndarray": (arrays, many, 4)}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[1]").config("spark.driver.memory", "4g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for name, (row_of, rows, megabytes) in jobs.items():
        url = f"file://{data / name}"
        schema = schemas[name]
        with materialize_dataset(spark, url, schema, megabytes):
            rows_rdd = [dict_to_spark_row(schema, row_of(number)) for number in range(rows)]
            spark.createDataFrame(rows_rdd, schema.as_spark_schema()).coalesce(2).write.parquet(url)
    spark.stop()
    return {name: rows for name, (_, rows, _) in jobs.items()}


# ---- taking turns --------------------------------------------------------------------------------------------------------


def python_of(side: str) -> str:
    """The interpreter of a contender."""
    return os.environ["PETASTORM_PYTHON"] if side == "petastorm" else sys.executable


def started(side: str, *arguments: str) -> dict[str, Any]:
    """Runs this file for a contender and returns what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")} if side != "petastorm" else dict(os.environ)
    done = subprocess.run(
        [python_of(side), str(HERE), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{side} {' '.join(arguments)}: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def rows_of(data: pathlib.Path, task: str) -> int:
    """Rows of the task's data."""
    return int(json.loads((data / "rows.json").read_text())[DATA.get(task, task)])


def measure(
    task: str, data: pathlib.Path, args: argparse.Namespace, sides: list[str]
) -> dict[str, list[dict[str, Any]]]:
    """Takes turns: A B C, B C A, C A B, ... Runs that lost rows are named and left out."""
    wanted = rows_of(data, task)
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for turn in range(args.repeats):
        first = turn % len(sides)
        for side in sides[first:] + sides[:first]:
            options = ["--run", side, "--task", task, "--data", str(data), "--threads", str(args.threads)]
            found = started(side, *options, "--epochs", str(args.epochs))
            lost = wanted * (args.epochs + 1) - found["rows"] - found["first_rows"]
            note = f", LOST {lost:.0f} ROWS" if lost else ""
            print(f"  {turn + 1}/{args.repeats} {side}: {found['rows'] / found['wall_s']:.0f} rows/s{note}", flush=True)
            if not lost:
                runs[side].append({"turn": turn, **found})
    return runs


def ratios(runs: dict[str, list[dict[str, Any]]], side: str, seconds: str) -> float:
    """The median over turns of a contender's rate by the real Petastorm's."""

    def rate(found: dict[str, Any]) -> float:
        return float(found["rows"]) / max(float(found[seconds]), 1e-9)

    theirs = {found["turn"]: rate(found) for found in runs["petastorm"]}
    pairs = [rate(found) / theirs[found["turn"]] for found in runs[side] if found["turn"] in theirs]
    return statistics.median(pairs) if pairs else float("nan")


def report(task: str, runs: dict[str, list[dict[str, Any]]]) -> None:
    """The task's table."""
    print(f"\n{task}: batches of {BATCH[task]}; aims over Petastorm: native x {AIM[task]:g}, drop-in x 2")
    print(f"{'contender':22}{'rows/s':>10}{'rows/CPU s':>12}{'x wall':>8}{'x CPU':>8}{'peak MB':>9}")
    for side, found in runs.items():
        if not found:
            print(f"{side:22}{'no run without lost rows':>30}")
            continue
        median: Callable[[str], float] = lambda key, found=found: statistics.median(each[key] for each in found)  # type: ignore[misc] # noqa: E731
        wall = statistics.median(each["rows"] / each["wall_s"] for each in found)
        cpu = statistics.median(each["rows"] / each["cpu_s"] for each in found)
        x = (ratios(runs, side, "wall_s"), ratios(runs, side, "cpu_s"))
        print(f"{side:22}{wall:10.0f}{cpu:12.0f}{x[0]:8.2f}{x[1]:8.2f}{median('peak_mb'):9.0f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=pathlib.Path, default=ROOT / "fixtures" / "imagenet40.parquet")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--task", choices=TASKS)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the rows")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench-out" / "petastorm.json")
    parser.add_argument("--run", choices=SIDES, help="measure one contender in this process")
    parser.add_argument("--make", action="store_true", help="write the data, with the real Petastorm")
    args = parser.parse_args()
    data = (args.data or ROOT / "bench-out" / "petastorm" / f"scale-{args.scale:g}").resolve()
    if args.run:
        print(json.dumps(run(args.run, args.task, data, args.threads, args.epochs)))
        return 0
    if args.make:
        make(data, args.photos, args.scale)
        print("{}")
        return 0
    if not (data / "rows.json").exists():
        options = ["--make", "--data", str(data), "--photos", str(args.photos.resolve()), "--scale", str(args.scale)]
        started("petastorm", *options)
    results = {}
    for task in [args.task] if args.task else TASKS:
        print(f"{task}: {rows_of(data, task)} rows, {args.threads} threads", flush=True)
        # File order does not compete if rows must be mixed.
        others = ("native", "native-shuffled") if task in DROP_IN else ("native",) if task.endswith("shuffled") else ()
        sides = [side for side in args.sides if side not in others]
        results[task] = measure(task, data, args, sides)
        report(task, results[task])
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
