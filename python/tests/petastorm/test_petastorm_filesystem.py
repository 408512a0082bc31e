"""``filesystem=``: datasets that are read through an object of the user's, of fsspec or pyarrow, and what it may do meanwhile."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.errors import ConfigError, NotFoundError, SourceChangedError, StoreError, TimeoutError
from bowstring.petastorm import make_batch_reader, make_reader
from bowstring.petastorm.etl.dataset_metadata import (
    get_schema,
    get_schema_from_dataset_url,
    infer_or_load_unischema,
    load_row_groups,
)
from bowstring.petastorm.predicates import in_lambda
from bowstring.petastorm.reader import Reader
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from objects import Objects
from own_files import Closed, Handler, Own
from pyarrow import fs as arrow

from .datasets import CODECS, folder

At = Callable[[str], str]
ROWS = 3000


@pytest.fixture
def table(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a directory of plain Parquet with partitions, hidden files and names that need care."""
    root = tmp_path / "a table"
    rng = np.random.default_rng(5)
    for number, key in enumerate(("k=1", "k=2", "k=__HIVE_DEFAULT_PARTITION__")):
        (root / key).mkdir(parents=True)
        for part in ("x%20y", "[z]", "part#1?"):
            ids = np.arange(ROWS // 9) + 1000 * number
            columns = pa.table({"id": ids, "value": rng.normal(size=len(ids)), "text": [f"é{one}" for one in ids]})
            pq.write_table(columns, root / key / f"{part}.parquet", row_group_size=100)
    (root / "_SUCCESS").touch()
    (root / ".hidden.parquet").write_bytes(b"nothing")
    return root


@pytest.fixture
def big(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a file whose row groups do not fit into the read that fetches the footer."""
    path = tmp_path / "big" / "big.parquet"
    path.parent.mkdir()
    ids = np.random.default_rng(1).integers(0, 1 << 62, 400_000)
    pq.write_table(pa.table({"id": ids}), path, row_group_size=20_000)
    return path


@pytest.fixture
def memory() -> Iterator[Callable[[pathlib.Path], MemoryFileSystem]]:
    """Returns fsspec's file system in memory with a copy of a directory at ``/data/here``."""
    fs = MemoryFileSystem()

    def filled(root: pathlib.Path) -> MemoryFileSystem:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                fs.pipe_file(f"/data/here/{path.relative_to(root)}", path.read_bytes())
        return fs

    yield filled
    if fs.exists("/data"):
        fs.rm("/data", recursive=True)


def batches(reader: Reader) -> list[str]:
    """Batches as text, in which one NaN is the other."""
    with reader:
        return [repr({name: array.tolist() for name, array in batch._asdict().items()}) for batch in reader]


def ids(reader: Reader) -> list[int]:
    with reader:
        return [int(one) for batch in reader for one in batch.id]


WAYS = ("memory", "memory path", "dir", "dir of memory", "own", "subtree", "handler", "fsspec handler", "subtree of it")


def way(name: str, root: pathlib.Path, memory: Callable[[pathlib.Path], MemoryFileSystem]) -> tuple[str, Any]:
    """The URL of a directory, and a file system to read it through."""
    plain = str(root)
    return {
        "memory": lambda: ("memory://data/here/", memory(root)),
        "memory path": lambda: ("/data/here", memory(root)),
        "dir": lambda: (f"dir://{root.name}", DirFileSystem(root.parent, LocalFileSystem())),
        "dir of memory": lambda: ("here", DirFileSystem("/data", memory(root))),
        "own": lambda: (f"file://{plain}", Own()),
        "subtree": lambda: (root.name, arrow.SubTreeFileSystem(str(root.parent), arrow.PyFileSystem(Handler()))),
        "handler": lambda: (f"hdfs://namenode:8020{plain}", arrow.PyFileSystem(Handler())),
        "fsspec handler": lambda: ("memory://data/here", arrow.PyFileSystem(arrow.FSSpecHandler(memory(root)))),
        "subtree of it": lambda: (
            "/here",
            arrow.SubTreeFileSystem("/data/", arrow.PyFileSystem(arrow.FSSpecHandler(memory(root)))),
        ),
    }[name]()


@pytest.mark.parametrize("name", WAYS)
def test_plain_parquet_is_the_same_as_by_url(name: str, table: pathlib.Path, memory: Any) -> None:
    url, fs = way(name, table, memory)
    for options in (
        {"shuffle_row_groups": False},
        {"seed": 7, "num_epochs": 2, "shuffle_rows": True},
        {"seed": 7, "cur_shard": 1, "shard_count": 2, "schema_fields": ["id", "k"]},
        {"filters": [("id", ">=", 1100)], "shuffle_row_groups": False},
        {"predicate": in_lambda(["id"], lambda id: id % 3 == 0), "seed": 1},
    ):
        wanted = batches(make_batch_reader(f"file://{table}", **options))
        assert len(wanted) > 3
        assert batches(make_batch_reader(url, filesystem=fs, **options)) == wanted


@pytest.mark.parametrize("name", WAYS)
def test_a_dataset_of_petastorm_is_the_same_as_by_url(name: str, at: At, memory: Any) -> None:
    url, fs = way(name, folder(CODECS), memory)
    for options in ({"seed": 3, "num_epochs": 2, "shuffle_rows": True}, {"shuffle_row_groups": False}):
        with make_reader(at(CODECS), **options) as by_url, make_reader(url, filesystem=fs, **options) as reader:
            wanted, found = list(by_url), list(reader)
        assert len(found) == len(wanted) == 40 * options.get("num_epochs", 1)
        for row, other in zip(found, wanted, strict=True):
            np.testing.assert_equal(row._asdict(), other._asdict())
    assert get_schema_from_dataset_url(url, filesystem=fs).fields == get_schema_from_dataset_url(at(CODECS)).fields


def test_a_list_keeps_its_order(table: pathlib.Path, memory: Any) -> None:
    names = ["k=2/[z].parquet", "k=1/x%20y.parquet", "k=2/[z].parquet"]
    wanted = [f"{table}/{name}" for name in names]
    by_hand = [one for path in wanted for one in pq.ParquetFile(path).read(["id"])["id"].to_pylist()]
    options: dict[str, Any] = {"shuffle_row_groups": False}
    assert (
        ids(make_batch_reader([f"/data/here/{name}" for name in names], filesystem=memory(table), **options)) == by_hand
    )
    assert ids(make_batch_reader(wanted, filesystem=arrow.PyFileSystem(Handler()), **options)) == by_hand


def test_files_of_this_machine_are_read_as_such(table: pathlib.Path) -> None:
    wanted = ids(make_batch_reader(f"file://{table}", seed=1))
    for fs in (LocalFileSystem(), arrow.LocalFileSystem()):
        for url in (f"file://{table}", str(table)):
            assert ids(make_batch_reader(url, filesystem=fs, seed=1)) == wanted
    inside = arrow.SubTreeFileSystem(str(table.parent), arrow.LocalFileSystem())
    assert ids(make_batch_reader(table.name, filesystem=inside, seed=1)) == wanted
    assert ids(Reader(inside, table.name, seed=1, is_batched_reader=True)) == wanted
    assert ids(Reader(arrow.PyFileSystem(Handler()), str(table), seed=1, is_batched_reader=True)) == wanted


def test_a_dataset_of_pyarrow_brings_its_file_system(table: pathlib.Path, memory: Any, at: At) -> None:
    dataset = pq.ParquetDataset("/data/here", filesystem=memory(table))
    assert load_row_groups(dataset) == load_row_groups(f"file://{table}")
    assert infer_or_load_unischema(dataset).fields == infer_or_load_unischema(f"file://{table}").fields
    inside = DirFileSystem(folder(CODECS).parent, LocalFileSystem())
    assert get_schema(pq.ParquetDataset(CODECS, filesystem=inside)).fields == get_schema(at(CODECS)).fields


def test_each_byte_is_asked_for_about_once_and_several_ranges_at_a_time(big: pathlib.Path) -> None:
    fs = Own()
    fs.before = lambda path: time.sleep(0.02)
    size = big.stat().st_size
    with make_batch_reader(f"file://{big}", filesystem=fs, shuffle_row_groups=False) as reader:
        opened = sum(end - start for _, start, end in fs.given)
        fs.given, fs.most = [], 0
        rows = sum(len(batch.id) for batch in reader)
    asked = [end - start for _, start, end in fs.given]
    assert rows == 400_000
    assert opened < size / 4
    assert size * 0.9 < sum(asked) <= size
    assert max(asked) < size / 4
    assert 2 <= fs.most <= 16


def test_what_is_missing_or_no_file_system_is_told(table: pathlib.Path, memory: Any) -> None:
    fs = memory(table)
    with pytest.raises(NotFoundError, match=r"MemoryFileSystem-.*/data/nowhere"):
        make_batch_reader("memory://data/nowhere", filesystem=fs)
    with pytest.raises(NotFoundError, match=r"nowhere\.parquet"):
        make_batch_reader("memory://data/nowhere.parquet", filesystem=fs)
    with pytest.raises(ConfigError, match=r"builtins\.dict is no file system.*cat_file"):
        make_batch_reader("memory://data/here", filesystem={})
    with pytest.raises(ValueError, match="string"):
        make_batch_reader("", filesystem=fs)
    with pytest.raises(ValueError, match="same scheme and host"):
        make_batch_reader(["memory://data/here/a", "s3://data/here/b"], filesystem=fs)
    with pytest.warns(DeprecationWarning, match="options of its own"):
        make_batch_reader("memory://data/here", filesystem=fs, storage_options={"key": object()}).stop()


def test_an_exception_is_the_cause_of_a_typed_error(big: pathlib.Path) -> None:
    fs = Own()

    def refuse(path: str) -> None:
        raise PermissionError(13, "the token of mine is no good", path)

    fs.before = refuse
    with pytest.raises(StoreError, match="the token of mine is no good") as denied:
        make_batch_reader(f"file://{big}", filesystem=fs)
    assert isinstance(denied.value.__cause__, PermissionError)
    fs.before = lambda path: None
    with make_batch_reader(f"file://{big}", filesystem=fs, shuffle_row_groups=False) as reader:

        def fail(path: str) -> None:
            raise OSError("503 Slow Down")

        fs.before = fail
        with pytest.raises(StoreError, match="503 Slow Down") as failed:
            list(reader)
    assert str(big) in str(failed.value)
    assert isinstance(failed.value.__cause__, OSError)
    assert "503" in str(failed.value.__cause__)


def test_a_connection_that_breaks_is_waited_for_where_a_dataset_is_open(big: pathlib.Path) -> None:
    fs = Own()
    with make_batch_reader(f"file://{big}", filesystem=fs, shuffle_row_groups=False) as reader:
        left = iter(range(3))

        def fail(path: str) -> None:
            if next(left, None) is not None:
                raise ConnectionResetError("the other side hung up")

        fs.before = fail
        assert sum(len(batch.id) for batch in reader) == 400_000
    assert next(left, None) is None


@pytest.mark.parametrize("more", [-1, 1])
def test_another_number_of_bytes_is_an_error(more: int, big: pathlib.Path) -> None:
    fs = Own()
    with make_batch_reader(f"file://{big}", filesystem=fs) as reader:
        fs.behind = lambda content: content[:more] if more < 0 else content + b"x"
        with pytest.raises(StoreError, match=r"it gave \d+ bytes where \d+ were asked for"):
            list(reader)
    handler = Handler()
    if more < 0:
        with make_batch_reader(str(big), filesystem=arrow.PyFileSystem(handler)) as reader:
            handler.short = 1
            with pytest.raises(StoreError, match=r"it gave \d+ bytes where \d+ were asked for"):
                list(reader)


def replaced(path: pathlib.Path, shift: int) -> None:
    """Another version of the same size, at once."""
    content = pq.read_table(path)["id"].to_numpy() + shift
    other = path.with_suffix(".new")
    pq.write_table(pa.table({"id": content}), other, row_group_size=20_000)
    size, wanted = other.stat().st_size, path.stat().st_size
    assert size == wanted
    os.replace(other, path)
    os.utime(path, ns=(path.stat().st_mtime_ns + 10**9,) * 2)


@pytest.mark.parametrize("name", ["own", "handler"])
def test_a_file_replaced_in_the_middle_is_told_and_the_next_reader_has_the_new_one(
    name: str, big: pathlib.Path, memory: Any
) -> None:
    _, fs = way(name, big.parent, memory)
    wanted = pq.read_table(big)["id"].to_pylist()
    # The budget keeps most of the file from being read ahead.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOWSTRING_MEMORY_BUDGET", "8MiB")
        reader = make_batch_reader(str(big), filesystem=fs, shuffle_row_groups=False, num_epochs=None)
    with reader:
        got = next(reader).id.tolist()
        replaced(big, 1)
        with pytest.raises(SourceChangedError, match=r"big\.parquet"):
            got.extend(one for batch in reader for one in batch.id.tolist())
    assert got == (wanted * (len(got) // len(wanted) + 1))[: len(got)]
    reader = make_batch_reader(str(big), filesystem=fs, shuffle_row_groups=False)
    assert ids(reader) == [one + 1 for one in wanted]
    with make_batch_reader(str(big), filesystem=fs, num_epochs=None) as reader:
        next(reader)
        big.unlink()
        with pytest.raises(SourceChangedError, match="gone"):
            list(reader)


def test_a_tag_or_a_time_pins_a_file_in_memory(big: pathlib.Path, memory: Any) -> None:
    fs = memory(big.parent)
    with make_batch_reader("memory://data/here", filesystem=fs, num_epochs=None) as reader:
        next(reader)
        content = pq.read_table(big)["id"].to_numpy() + 1
        pq.write_table(pa.table({"id": content}), big, row_group_size=20_000)
        memory(big.parent)
        with pytest.raises(SourceChangedError):
            list(reader)


def test_a_call_that_never_comes_back_ends_at_the_timeout(big: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOWSTRING_TIMEOUT", "1.5")
    fs = Own()
    fs.before = gate = Closed()
    began = time.monotonic()
    try:
        with pytest.raises(TimeoutError, match=r"big\.parquet.*timeout=1\.5"):
            make_batch_reader(f"file://{big}", filesystem=fs)
        assert time.monotonic() - began < 20
    finally:
        gate.open()


PROGRAM = """
import sys, threading, time
from fsspec.implementations.local import LocalFileSystem
from bowstring.petastorm import make_batch_reader

class Slow:
    inner, delay = LocalFileSystem(), 0.0
    def ls(self, path, detail=True):
        return self.inner.ls(path, detail=detail)
    def info(self, path):
        return self.inner.info(path)
    def cat_file(self, path, start, end):
        time.sleep(self.delay)
        return self.inner.cat_file(path, start=start, end=end)

fs = Slow()
fs.delay = float(sys.argv[2])
reader = iter(make_batch_reader(sys.argv[1], filesystem=fs, num_epochs=None))
fs.delay = float(sys.argv[3])
print("open", flush=True)
next(reader)
"""


@pytest.mark.parametrize("delay", ["0.003", "0.02", "0.2"])
def test_a_process_ends_in_the_middle_of_reads(
    delay: str, big: pathlib.Path, script: Callable[..., subprocess.Popen[str]]
) -> None:
    process = script(PROGRAM, big, 0, delay)
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("open\n", "", 0)


@pytest.mark.parametrize("opening", [True, False])
def test_ctrl_c_ends_a_wait_for_a_call(
    opening: bool, big: pathlib.Path, script: Callable[..., subprocess.Popen[str]]
) -> None:
    delays = (2, 2) if opening else (0, 4)
    process = script(PROGRAM, big, *delays)
    if opening:
        time.sleep(1.5)
    else:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert time.monotonic() - began < 20


def test_a_server_of_objects_through_pyarrow(table: pathlib.Path, objects: Objects) -> None:
    for path in table.rglob("*.parquet"):
        objects.content[f"bucket/table/{path.relative_to(table)}"] = path.read_bytes()
    fs = arrow.S3FileSystem(
        access_key="id",
        secret_key="secret",
        endpoint_override=objects.url.removeprefix("http://"),
        scheme="http",
        region="eu-west-1",
    )
    wanted = batches(make_batch_reader(f"file://{table}", seed=2))
    assert batches(make_batch_reader("s3://bucket/table", filesystem=fs, seed=2)) == wanted
    assert not [request for request in objects.requests if request.startswith(("PUT", "POST", "DELETE"))]


def test_http_through_fsspec(big: pathlib.Path, objects: Objects) -> None:
    objects.content["data/big.parquet"] = big.read_bytes()
    fs = fsspec.filesystem("http")
    reader = make_batch_reader(f"{objects.url}/data/big.parquet", filesystem=fs, shuffle_row_groups=False)
    assert ids(reader) == pq.read_table(big)["id"].to_pylist()
    assert objects.count() < 2 * big.stat().st_size
    with make_batch_reader(f"{objects.url}/data/big.parquet", filesystem=fs, num_epochs=None) as reader:
        next(reader)
        content = pq.read_table(big)["id"].to_numpy() + 1
        pq.write_table(pa.table({"id": content}), big, row_group_size=20_000)
        objects.content["data/big.parquet"] = big.read_bytes()
        with pytest.raises(SourceChangedError):
            list(reader)
