"""Tables of Delta Lake and Iceberg: opening against deltalake and pyiceberg, reading against the same files as plain Parquet.

    python benches/peers/table_pairs.py [--only delta iceberg commits million rows] [--repeats 5]

Every run is a process of its own, without the time of imports; contenders take turns. Medians of wall and CPU seconds are
printed as JSON lines, with the ratio to the first contender of the task, the peer. Tables are made once, in --data. The
interpreter has deltalake and pyiceberg (requirements.txt); bowstring is this checkout's release build.

Tasks:
    delta     10,000 files, a checkpoint and ten commits
    iceberg   the same files, appended by pyiceberg in ten commits
    commits   10,000 commits of one file each, without a checkpoint
    million   a log of 1,000,000 files that do not exist, of which a filter leaves none; takes minutes, only where it is named
    rows      rows per second of 8 large files: as plain Parquet, as a Delta table, and with 10 % of the rows deleted by vectors
"""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import os
import pathlib
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
FILES = 10_000
MILLION = 1_000_000
# Files are links to this many different ones, each of another day: ext4 allows 65,000 names of one file.
DAYS = 100
ROWS = 100
FIRST = datetime.date(2026, 1, 1)
# The large files.
PARTS, PART_ROWS, FLOATS = 8, 500_000, 20
DELETED = 0.1
BATCH = 4096
SEED = 7
COMMITTED = 1_767_225_600_000


# ---- tables --------------------------------------------------------------------------------------------------------------


def day(number: int) -> datetime.date:
    return FIRST + datetime.timedelta(days=number % DAYS)


def small_files(data: pathlib.Path) -> list[pathlib.Path]:
    """One file a day: its number, its day and eight floats."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(SEED)
    (data / "days").mkdir(parents=True)
    paths = []
    for number in range(DAYS):
        columns: dict[str, Any] = {
            "id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()),
            "day": pa.array([day(number)] * ROWS, pa.date32()),
        }
        columns |= {f"f{at}": pa.array(random.random(ROWS, np.float32)) for at in range(8)}
        paths.append(data / "days" / f"{number:03}.parquet")
        pq.write_table(pa.table(columns), paths[-1])
    return paths


def link(sources: list[pathlib.Path], directory: pathlib.Path, count: int) -> list[pathlib.Path]:
    directory.mkdir(parents=True)
    paths = [directory / f"part-{number:06}.parquet" for number in range(count)]
    for number, path in enumerate(paths):
        path.hardlink_to(sources[number % len(sources)])
    return paths


def schema_of(path: pathlib.Path) -> str:
    """Delta's schema of a file of this bench."""
    import pyarrow.parquet as pq

    names = {"int64": "long", "float": "float", "date32[day]": "date"}
    fields = [
        {"name": field.name, "type": names[str(field.type)], "nullable": True, "metadata": {}}
        for field in pq.read_schema(path)
    ]
    return json.dumps({"type": "struct", "fields": fields})


def actions(schema: str, *, vectors: bool = False) -> Iterator[dict[str, Any]]:
    """The actions with which a log begins."""
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]} if vectors else {}
    versions = (3, 7) if vectors else (1, 2)
    yield {"protocol": {"minReaderVersion": versions[0], "minWriterVersion": versions[1], **features}}
    yield {
        "metaData": {
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, schema)),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": [],
            "configuration": {"delta.enableDeletionVectors": "true"} if vectors else {},
            "createdTime": COMMITTED,
        }
    }


def statistics_of(number: int, rows: int) -> str:
    first = number % DAYS * rows
    lower, upper = {"id": first, "day": str(day(number))}, {"id": first + rows - 1, "day": str(day(number))}
    return json.dumps({"numRecords": rows, "minValues": lower, "maxValues": upper, "nullCount": {"id": 0, "day": 0}})


def add(name: str, size: int, stats: str, vector: dict[str, Any] | None = None) -> dict[str, Any]:
    about = {"path": name, "partitionValues": {}, "size": size, "modificationTime": COMMITTED, "dataChange": True}
    return {"add": {**about, "stats": stats, **({"deletionVector": vector} if vector else {})}}


def commit(table: pathlib.Path, version: int, done: list[dict[str, Any]]) -> None:
    log = table / "_delta_log"
    log.mkdir(exist_ok=True)
    info = {"commitInfo": {"timestamp": COMMITTED + version, "operation": "WRITE", "operationParameters": {}}}
    (log / f"{version:020}.json").write_text("\n".join(json.dumps(action) for action in [info, *done]) + "\n")


def delta_table(table: pathlib.Path, sources: list[pathlib.Path], commits: int, checkpoint: int | None) -> None:
    """A table of FILES files in so many commits, with a checkpoint by deltalake after some of them."""
    from deltalake import DeltaTable

    paths = link(sources, table, FILES)
    sizes = [source.stat().st_size for source in sources]
    each = FILES // commits
    for version in range(commits):
        done = list(actions(schema_of(sources[0]))) if version == 0 else []
        for number in range(version * each, (version + 1) * each):
            done.append(add(paths[number].name, sizes[number % DAYS], statistics_of(number, ROWS)))
        commit(table, version, done)
        if version == checkpoint:
            DeltaTable(table).create_checkpoint()


def iceberg_table(directory: pathlib.Path, sources: list[pathlib.Path]) -> None:
    """The same files, appended in ten commits; the address of the metadata goes to `location`."""
    import pyarrow.parquet as pq
    from pyiceberg.catalog.sql import SqlCatalog

    paths = link(sources, directory / "files", FILES)
    warehouse = {"uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}
    catalog = SqlCatalog("bench", **warehouse)
    catalog.create_namespace("bench")
    table = catalog.create_table("bench.files", pq.read_schema(sources[0]))
    for first in range(0, FILES, FILES // 10):
        names = [f"file://{path}" for path in paths[first : first + FILES // 10]]
        table.add_files(names, check_duplicate_files=False)
    (directory / "location").write_text(table.metadata_location)


def million_table(table: pathlib.Path, source: pathlib.Path) -> None:
    """A checkpoint of a million files that do not exist, with statistics in JSON as deltalake writes them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    commit(table, 0, list(actions(schema_of(source))))
    log = table / "_delta_log"
    protocol, about = (action for action in actions(schema_of(source)))
    strings = pa.map_(pa.string(), pa.string())
    versions = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
    plan = pa.struct([("provider", pa.string()), ("options", strings)])
    meta = pa.struct(
        [
            ("id", pa.string()),
            ("format", plan),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", strings),
            ("createdTime", pa.int64()),
        ]
    )
    added = pa.struct(
        [
            ("path", pa.string()),
            ("partitionValues", strings),
            ("size", pa.int64()),
            ("modificationTime", pa.int64()),
            ("dataChange", pa.bool_()),
            ("stats", pa.string()),
        ]
    )
    schema = pa.schema([("protocol", versions), ("metaData", meta), ("add", added)])
    told = dict(about["metaData"])
    told["format"] = {"provider": "parquet", "options": []}
    told["configuration"] = []
    with pq.ParquetWriter(log / f"{0:020}.checkpoint.parquet", schema, compression="snappy") as writer:
        rows: list[dict[str, Any]] = [{"protocol": protocol["protocol"]}, {"metaData": told}]
        writer.write_table(pa.Table.from_pylist(rows, schema))
        for first in range(0, MILLION, 50_000):
            rows = []
            for number in range(first, first + 50_000):
                name = f"part-{number:07}-{uuid.uuid5(uuid.NAMESPACE_OID, str(number))}.c000.snappy.parquet"
                one = add(name, 100_000, statistics_of(number, ROWS))["add"]
                rows.append({"add": {**one, "partitionValues": []}})
            writer.write_table(pa.Table.from_pylist(rows, schema))
    (log / "_last_checkpoint").write_text(json.dumps({"version": 0, "size": MILLION + 2}))


def large_files(plain: pathlib.Path) -> list[pathlib.Path]:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(SEED)
    plain.mkdir(parents=True)
    paths = [plain / f"part-{number:03}.parquet" for number in range(PARTS)]
    for number, path in enumerate(paths):
        columns: dict[str, Any] = {"id": pa.array(range(number * PART_ROWS, (number + 1) * PART_ROWS), pa.int64())}
        columns |= {f"f{at}": pa.array(random.random(PART_ROWS, np.float32)) for at in range(FLOATS)}
        pq.write_table(pa.table(columns), path, use_dictionary=False, write_page_index=True)
    return paths


def bitmap(rows: Any) -> bytes:
    """Sorted row numbers below 2^32 as Delta stores them: a magic number and a portable 64-bit Roaring bitmap."""
    import numpy as np

    keys, starts = np.unique(rows >> 16, return_index=True)
    parts = [(rows[start:end] & 0xFFFF) for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)]
    bodies = []
    for part in parts:
        if len(part) <= 4096:
            bodies.append(part.astype("<u2").tobytes())
        else:
            bits = np.zeros(1 << 16, np.uint8)
            bits[part] = 1
            bodies.append(np.packbits(bits, bitorder="little").tobytes())
    head = struct.pack("<II", 12346, len(parts))
    head += b"".join(struct.pack("<HH", key, len(part) - 1) for key, part in zip(keys, parts, strict=True))
    at = len(head) + 4 * len(parts)
    for body in bodies:
        head += struct.pack("<I", at)
        at += len(body)
    return struct.pack("<IQI", 1681511377, 1, 0) + head + b"".join(bodies)


def vector_table(table: pathlib.Path, paths: list[pathlib.Path]) -> int:
    """The large files with a tenth of the rows of each deleted at random, by vectors in one file; gives the number of live rows."""
    import numpy as np

    random = np.random.default_rng(SEED + 1)
    link(paths, table, len(paths))
    name, stored, done, live = uuid.UUID(int=SEED), bytearray(b"\x01"), [], 0
    for path, linked in zip(paths, sorted(table.glob("*.parquet")), strict=True):
        gone = np.flatnonzero(random.random(PART_ROWS) < DELETED)
        bytes_of = bitmap(gone)
        vector = {
            "storageType": "u",
            "pathOrInlineDv": base85(name.bytes),
            "offset": len(stored),
            "sizeInBytes": len(bytes_of),
            "cardinality": len(gone),
        }
        stored += struct.pack(">I", len(bytes_of)) + bytes_of + struct.pack(">I", zlib.crc32(bytes_of))
        stats = json.dumps({"numRecords": PART_ROWS, "tightBounds": False})
        done.append(add(linked.name, path.stat().st_size, stats, vector))
        live += PART_ROWS - len(gone)
    (table / f"deletion_vector_{name}.bin").write_bytes(bytes(stored))
    commit(table, 0, [*actions(schema_of(paths[0]), vectors=True), *done])
    return live


def base85(data: bytes) -> str:
    """ZeroMQ's alphabet, in which the log writes names of vectors."""
    python = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    zero = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    return base64.b85encode(data).translate(bytes.maketrans(python, zero)).decode()


def prepare(data: pathlib.Path, tasks: list[str]) -> None:
    """Makes what is missing. A table that was begun and not finished is made again."""

    def once(name: str, make: Callable[[pathlib.Path], object]) -> None:
        done = data / f"{name}.made"
        if not done.exists():
            shutil.rmtree(data / name, ignore_errors=True)
            done.write_text(str(make(data / name)))

    data.mkdir(parents=True, exist_ok=True)
    once("days", lambda path: len(small_files(path.parent)))
    sources = sorted((data / "days").iterdir())
    if "delta" in tasks:
        once("delta", lambda path: delta_table(path, sources, 100, 89))
    if "commits" in tasks:
        once("commits", lambda path: delta_table(path, sources, FILES, None))
    if "iceberg" in tasks:
        once("iceberg", lambda path: iceberg_table(path, sources))
    if "million" in tasks:
        once("million", lambda path: (path.mkdir(), million_table(path, sources[0])))
    if "rows" in tasks:
        once("plain", lambda path: len(large_files(path)))
        large = sorted((data / "plain").iterdir())

        def whole(path: pathlib.Path) -> None:
            linked = link(large, path, len(large))
            stats = json.dumps({"numRecords": PART_ROWS})
            done = [add(one.name, one.stat().st_size, stats) for one in linked]
            commit(path, 0, [*actions(schema_of(large[0])), *done])

        once("whole", whole)
        once("vectors", lambda path: vector_table(path, large))


# ---- contenders ----------------------------------------------------------------------------------------------------------
# Each gives the number of rows or files that it found; the number must be the same for all contenders of a task.

ONE_DAY = str(day(3))


def delta_names(path: pathlib.Path) -> int:
    from deltalake import DeltaTable

    return len(DeltaTable(path).file_uris())


def delta_statistics(path: pathlib.Path) -> int:
    """The list with its statistics, as Arrow: the rows are their sum."""
    from deltalake import DeltaTable

    return int(sum(DeltaTable(path).get_add_actions(flatten=True)["num_records"].to_pylist()))


def delta_footers(path: pathlib.Path) -> int:
    """The list, and all footers by pyarrow's threads."""
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

    files = [uri.removeprefix("file://") for uri in DeltaTable(path).file_uris()]
    return int(ds.dataset(files, format="parquet").count_rows())


def iceberg_files(path: pathlib.Path) -> int:
    from pyiceberg.table import StaticTable

    return len(list(StaticTable.from_metadata((path / "location").read_text()).scan().plan_files()))


def iceberg_day(path: pathlib.Path) -> int:
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata((path / "location").read_text())
    return sum(task.file.record_count for task in table.scan(row_filter=f"day = '{ONE_DAY}'").plan_files())


def ours(path: pathlib.Path, **options: Any) -> int:
    """Rows of a table that bowstring opens; footers are read."""
    from bowstring import Loader

    location = path / "location"
    url = location.read_text() if location.exists() else str(path)
    with Loader(url, batch_size=BATCH, index="none", **options) as loader:
        return loader.rows


def ours_day(path: pathlib.Path) -> int:
    """Rows of one day: the other files are pruned, and their footers are not read."""
    return ours(path, filter=f"day = '{ONE_DAY}'")


def ours_none(path: pathlib.Path) -> int:
    """Rows of a day that no file has."""
    return ours(path, filter="day = '1999-01-01'")


def reading(path: pathlib.Path, *, shuffle: bool, epochs: int) -> tuple[int, float, float]:
    """Rows of an epoch, and wall and CPU seconds of each after the first, which allocates memory."""
    from bowstring import Loader

    rows, begun = 0, clocks()
    with Loader(str(path), batch_size=BATCH, shuffle=shuffle, seed=SEED) as loader:
        for epoch in range(epochs + 1):
            if epoch == 1:
                begun = clocks()
            loader.set_epoch(epoch)
            rows = sum(len(batch["id"]) for batch in loader)
        wall, cpu = (now - then for now, then in zip(clocks(), begun, strict=True))
    return rows, wall / epochs, cpu / epochs


# By task: contenders with the directory that each reads. The first is what the others are compared with.
OPENING: dict[str, dict[str, tuple[str, Callable[[pathlib.Path], int]]]] = {
    "delta": {
        "deltalake, names": ("delta", delta_names),
        "deltalake, statistics": ("delta", delta_statistics),
        "deltalake and pyarrow, footers": ("delta", delta_footers),
        "bowstring": ("delta", ours),
        "bowstring, one day of 100": ("delta", ours_day),
        "bowstring, plain files": ("iceberg/files", ours),
    },
    "iceberg": {
        "pyiceberg": ("iceberg", iceberg_files),
        "pyiceberg, one day of 100": ("iceberg", iceberg_day),
        "bowstring": ("iceberg", ours),
        "bowstring, one day of 100": ("iceberg", ours_day),
    },
    "commits": {
        "deltalake, names": ("commits", delta_names),
        "bowstring": ("commits", ours),
        "bowstring, one day of 100": ("commits", ours_day),
    },
    "million": {
        "deltalake, names": ("million", delta_names),
        "deltalake, statistics": ("million", delta_statistics),
        "bowstring, no file left": ("million", ours_none),
    },
}
READING = {"plain files": "plain", "Delta": "whole", "Delta, 10 % deleted": "vectors"}


# ---- measurement ---------------------------------------------------------------------------------------------------------


def clocks() -> tuple[float, float]:
    """Seconds of the wall, and of the CPU by all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), used.ru_utime + used.ru_stime


def peak_mib() -> float:
    """Peak resident memory. Not ru_maxrss, which starts at the parent's peak."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def run_one(task: str, name: str, data: pathlib.Path, epochs: int) -> None:
    """In a process of its own; imports are not timed."""
    ours_alone = name in READING or name.startswith("bowstring")
    for module in ("bowstring",) if ours_alone else ("deltalake", "pyiceberg.table", "pyarrow.dataset"):
        __import__(module)
    if task in OPENING:
        directory, contender = OPENING[task][name]
        begun = clocks()
        found = contender(data / directory)
        wall, cpu = (now - then for now, then in zip(clocks(), begun, strict=True))
    else:
        found, wall, cpu = reading(data / READING[name], shuffle=task == "rows, shuffled", epochs=epochs)
    print(json.dumps({"found": found, "wall": wall, "cpu": cpu, "peak_mib": peak_mib()}))


def measure(task: str, name: str, arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, str(HERE), "--run", task, name, "--data", str(arguments.data)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    command += ["--epochs", str(arguments.epochs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
    if done.returncode:
        sys.exit(f"{task}, {name}: {done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def take_turns(task: str, names: list[str], arguments: argparse.Namespace) -> None:
    """Prints the medians of a task's contenders; the first turn warms the page cache up and is not counted."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(arguments.repeats + 1):
        for name in names:
            found = measure(task, name, arguments)
            if turn:
                runs[name].append(found)
    medians = {
        name: {key: statistics.median(run[key] for run in measured) for key in measured[0]}
        for name, measured in runs.items()
    }
    for name, median in medians.items():
        line: dict[str, Any] = {"task": task, "name": name, **{key: round(value, 3) for key, value in median.items()}}
        for key in ("wall", "cpu", "peak_mib"):
            # Run by run, since a machine that slows down for a while slows both sides down; of rows, per second.
            pairs = list(zip(runs[name], runs[names[0]], strict=True))
            costs = [one[key] / base[key] for one, base in pairs]
            rates = [one["found"] / one[key] / (base["found"] / base[key]) for one, base in pairs]
            is_rate = task not in OPENING and key != "peak_mib"
            line[f"{key}_ratio"] = round(statistics.median(rates if is_rate else costs), 3)
            if is_rate:
                line[f"rows_per_{key}"] = round(median["found"] / median[key])
        print(json.dumps(line), flush=True)


def check(data: pathlib.Path, tasks: list[str]) -> None:
    """Raises unless what was made has the rows that another reader finds."""
    from deltalake import DeltaTable, QueryBuilder

    if "rows" not in tasks:
        return
    table = QueryBuilder().register("t", DeltaTable(data / "vectors"))
    found = table.execute("select count(*) as rows, sum(id) as ids from t").read_all()
    rows, ids = (found[name].to_pylist()[0] for name in ("rows", "ids"))
    from bowstring import Loader

    with Loader(str(data / "vectors"), batch_size=BATCH, columns=["id"]) as loader:
        assert (loader.rows, sum(int(batch["id"].sum()) for batch in loader)) == (rows, ids)
    assert rows == int((data / "vectors.made").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = [*OPENING, "rows"]
    parser.add_argument("--only", nargs="+", choices=tasks, default=[task for task in tasks if task != "million"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs of a run of the task rows")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "bench-data" / "tables")
    parser.add_argument("--run", nargs=2, metavar=("TASK", "NAME"), help="one measurement, in this process")
    arguments = parser.parse_args()
    arguments.data = arguments.data.resolve()
    if arguments.run:
        run_one(*arguments.run, arguments.data, arguments.epochs)
        return
    prepare(arguments.data, arguments.only)
    check(arguments.data, arguments.only)
    for task in arguments.only:
        for each in ["rows, file order", "rows, shuffled"] if task == "rows" else [task]:
            take_turns(each, list(READING if task == "rows" else OPENING[task]), arguments)


if __name__ == "__main__":
    main()
