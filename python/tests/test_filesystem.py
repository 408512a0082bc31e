"""``Loader(filesystem=...)``: the same rows, order and state as by URL, through an object of the user's."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tarfile
import time
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import run_python
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.tar import TarFileSystem
from own_files import Closed, Handler, Own
from pyarrow import fs as arrow


@pytest.fixture
def table(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a directory of two files."""
    root = tmp_path / "table"
    root.mkdir()
    for number in range(2):
        columns = pa.table({"id": np.arange(500) + 500 * number})
        pq.write_table(columns, root / f"{number}.parquet", row_group_size=50)
    return root


def taken(loader: bowstring.Loader, steps: int) -> list[list[int]]:
    epoch = iter(loader)
    return [next(epoch)["id"].tolist() for _ in range(steps)]


def test_rows_order_and_state_are_those_by_url(table: pathlib.Path) -> None:
    options: dict[str, Any] = {"batch_size": 30, "seed": 4, "tail": "short"}
    ways = {
        "own": (str(table), Own()),
        "pathlib": (table, Own()),
        "handler": (str(table), arrow.PyFileSystem(Handler())),
        "dir": (table.name, DirFileSystem(table.parent, LocalFileSystem())),
        "list": ([f"{table}/0.parquet", f"{table}/1.parquet"], Own()),
        "here": (str(table), LocalFileSystem()),
    }
    with bowstring.Loader(table, **options) as by_url:
        begun, rest = taken(by_url, 10), by_url.state_dict()
        left = list(iter(by_url))
    assert len(left) == 34
    for url, fs in ways.values():
        with bowstring.Loader(url, filesystem=fs, **options) as loader:
            assert taken(loader, 10) == begun
            state = loader.state_dict()
            assert state == rest
        with bowstring.Loader(table, **options) as by_url:
            by_url.load_state_dict(state)
            wanted = [batch["id"].tolist() for batch in by_url]
        with bowstring.Loader(url, filesystem=fs, **options) as loader:
            loader.load_state_dict(rest)
            assert [batch["id"].tolist() for batch in loader] == wanted
        assert bowstring.plan(url, filesystem=fs, **options) == bowstring.plan(table, **options)


def test_a_path_may_be_a_pattern(tmp_path: pathlib.Path) -> None:
    """Rows and their order are those of the same pattern of this machine's files."""
    for at, name in enumerate(("a/x.parquet", "a b%20/y.parquet", "b/[1].parquet", "b/{*}.parquet", "b/c/z.parquet")):
        (tmp_path / "g" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [at]}), tmp_path / "g" / name)
    options: dict[str, Any] = {"batch_size": 9, "shuffle": False}

    def rows(url: Any, **more: Any) -> list[int]:
        with bowstring.Loader(url, **options, **more) as loader:
            return [number for batch in loader for number in batch["id"].tolist()]

    handler = arrow.PyFileSystem(Handler())
    files: list[tuple[Any, str]] = [
        (Own(), f"{tmp_path}/"),
        (handler, f"{tmp_path}/"),
        (arrow.SubTreeFileSystem(str(tmp_path), handler), ""),
        (DirFileSystem(tmp_path, LocalFileSystem()), ""),
    ]
    patterns = (
        "g/*/*.parquet",
        "g/{b,a}/x.parquet",
        "g/**/z.parquet",
        "*",
        "g/a*/?.parquet",
        "g/b/[[]1].parquet",
        "g/a b%20*/*",
    )
    for fs, start in files:
        for pattern in patterns:
            assert rows(f"{start}{pattern}", filesystem=fs) == rows(f"{tmp_path}/{pattern}")
        assert rows([f"{start}g/a/*", f"{start}g/b/c"], filesystem=fs) == [0, 4]
        # What is there is meant by its name.
        assert rows(f"{start}g/b/[1].parquet", filesystem=fs) == [2]
        assert rows(f"{start}g/b/{{*}}.parquet", filesystem=fs) == [3]
        assert bowstring.plan(f"{start}g/*/*.parquet", filesystem=fs, **options)["row_groups"] == 4
        for nothing in ("g/*/*.csv", "nowhere/*.parquet"):
            with pytest.raises(bowstring.NotFoundError):
                rows(f"{start}{nothing}", filesystem=fs)


def test_a_file_system_that_cannot_say_whether_a_name_is_there_is_an_error(table: pathlib.Path) -> None:
    reason = PermissionError("the token has expired")

    class Failing(Own):
        def info(self, path: str) -> Any:
            raise reason

    with pytest.raises(bowstring.StoreError, match="the token has expired") as raised:
        bowstring.Loader(f"{table}/*.parquet", batch_size=10, filesystem=Failing())
    assert raised.value.__cause__ is reason


def test_what_has_no_meaning_beside_it_is_refused(table: pathlib.Path) -> None:
    for option, value in {
        "storage_options": {"aws_region": "x"},
        "credential_provider": dict,
        "cache": "memory",
        "mounts": "/etc/mounts.toml",
    }.items():
        with pytest.raises(bowstring.ConfigError, match=f"option {option}: it has no effect"):
            bowstring.Loader(table, batch_size=10, filesystem=Own(), **{option: value})
    with pytest.raises(bowstring.ConfigError, match="leave filesystem out"):
        bowstring.Loader("grpc://127.0.0.1:1/x", batch_size=10, filesystem=Own())
    with pytest.raises(bowstring.ConfigError, match="no file system"):
        bowstring.Loader(table, batch_size=10, filesystem="file")
    with pytest.raises(bowstring.ConfigError, match="one root"):
        bowstring.Loader([str(table), "table"], batch_size=10, filesystem=Own())


def test_a_call_has_the_timeout_of_the_loader(table: pathlib.Path) -> None:
    fs = Own()
    fs.before = gate = Closed()
    try:
        with pytest.raises(bowstring.TimeoutError, match=r"timeout=0\.5"):
            bowstring.Loader(table, batch_size=10, filesystem=fs, timeout=0.5)
    finally:
        gate.open()


def test_an_address_dies_with_its_store(table: pathlib.Path) -> None:
    """Nobody finds a file system that another loader was given."""
    with bowstring.Loader(table, batch_size=10, filesystem=Own()) as loader:
        assert loader._store is not None
        address = loader._store.url(str(table))
        assert address.startswith("filesystem://Own-")
        with bowstring.Loader(address, batch_size=10) as other:
            assert other.step == 0
    del loader, other
    with pytest.raises(bowstring.NotFoundError, match="not of this process"):
        bowstring.Loader(address, batch_size=10)


def test_a_class_of_the_users_is_asked_whatever_its_name(table: pathlib.Path) -> None:
    fs = type("LocalFileSystem", (Own,), {})()
    with bowstring.Loader(table, batch_size=1000, filesystem=fs) as loader:
        assert len(next(iter(loader))["id"]) == 1000
    assert fs.given


@pytest.mark.parametrize("kind", [FileNotFoundError, NotADirectoryError, PermissionError])
def test_a_listed_directory_that_cannot_be_listed_is_an_error(tmp_path: pathlib.Path, kind: type[OSError]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"id": range(10)}), tmp_path / name / "part.parquet")
    reason = kind("the token has expired")

    class Failing(Own):
        def ls(self, path: str, detail: bool = True) -> Any:
            if path.endswith("/b"):
                raise reason
            return super().ls(path, detail=detail)

    with pytest.raises(bowstring.Error, match="the token has expired") as raised:
        bowstring.Loader(tmp_path, batch_size=4, filesystem=Failing())
    assert raised.value.__cause__ is reason
    with bowstring.Loader(tmp_path, batch_size=4, filesystem=Own()) as loader:
        assert loader.rows == 20


def test_a_forked_child_does_not_wait_for_calls_of_its_parent(table: pathlib.Path) -> None:
    program = f"""
import os, sys, threading, time
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from bowstring import Loader
from own_files import Own
slow, begun = Own(), threading.Event()
slow.before = lambda path: (begun.set(), time.sleep(30))
threading.Thread(target=lambda: Loader({str(table)!r}, batch_size=10, filesystem=slow), daemon=True).start()
assert begun.wait(20)
child = os.fork()
if child == 0:
    with Loader({str(table)!r}, batch_size=1000, filesystem=Own()) as loader:
        print(len(next(iter(loader))["id"]), flush=True)
    sys.exit()
start = time.monotonic()
assert os.waitpid(child, 0)[1] == 0
print(time.monotonic() - start, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    rows, seconds = done.stdout.split()
    # A wait for calls takes ten seconds.
    assert rows == "1000"
    assert float(seconds) < 8


def test_a_file_system_that_may_share_a_file_among_calls_gets_one_at_a_time(tmp_path: pathlib.Path) -> None:
    now, most = [0], [0]

    class Counting(TarFileSystem):
        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> Any:
            now[0] += 1
            most[0] = max(most[0], now[0])
            try:
                return super().cat_file(path, start=start, end=end)
            finally:
                now[0] -= 1

    rows, files = 5000, 8
    with tarfile.open(tmp_path / "all.tar", "w") as tar:
        for number in range(files):
            ids = np.arange(number * rows, (number + 1) * rows)
            path = tmp_path / f"{number}.parquet"
            table = pa.table({"id": ids, "x": ids * 7 + 1})
            pq.write_table(table, path, row_group_size=500, compression="none", use_dictionary=False)
            tar.add(path, f"data/{number}.parquet")
    fs = Counting(str(tmp_path / "all.tar"), skip_instance_cache=True)
    for wrapped, url in ((fs, "data"), (DirFileSystem("data", fs), "")):
        # Two loaders of one object take turns as well.
        with (
            bowstring.Loader(url, batch_size=1000, filesystem=wrapped, row_id=True, seed=1) as one,
            bowstring.Loader(url, batch_size=1000, filesystem=wrapped, row_id=True, seed=2) as other,
        ):
            for batches in zip(one, other, strict=True):
                for batch in batches:
                    np.testing.assert_array_equal(batch["id"], batch["_row_id"])
                    np.testing.assert_array_equal(batch["x"], batch["id"] * 7 + 1)
    assert most[0] == 1


def test_many_stores_of_one_kind_are_one_origin(table: pathlib.Path) -> None:
    program = f"""
from bowstring import Loader
from own_files import Own
for _ in range(3):
    with Loader({str(table)!r}, batch_size=1000, filesystem=Own()) as loader:
        assert len(next(iter(loader))["id"]) == 1000
        report = loader.report()
print(report)
"""
    # In a process of its own: a report shows the slowest origins of the whole process.
    done = run_python("-c", program, cwd=pathlib.Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Origin filesystem://Own:") == 1, done.stdout
    assert done.stdout.count("Origin ") == 1, done.stdout


def test_a_delta_table_is_read_in_place(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "delta"
    (root / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"id": pa.array(range(10), pa.int64())}), root / "part.parquet")
    field = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
    size = (root / "part.parquet").stat().st_size
    log: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "x",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": [field]}),
                "partitionColumns": [],
                "configuration": {},
            }
        },
        {
            "add": {
                "path": "part.parquet",
                "partitionValues": {},
                "size": size,
                "modificationTime": 0,
                "dataChange": True,
            }
        },
    ]
    (root / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, log)))
    (root / "left.parquet").write_bytes(b"no longer of the table")
    with bowstring.Loader(root, batch_size=10, shuffle=False, filesystem=Own()) as loader:
        assert [batch["id"].tolist() for batch in loader] == [list(range(10))]


def test_a_file_that_is_replaced_is_noticed_behind_lists_that_are_kept(tmp_path: pathlib.Path) -> None:
    class Keeping(Own):
        """It answers from the lists that it keeps, and drops the one that it is told."""

        def __init__(self) -> None:
            super().__init__()
            self.listed: dict[str, Any] = {}

        def ls(self, path: str, detail: bool = True) -> Any:
            if path not in self.listed:
                self.listed[path] = super().ls(path)
            return self.listed[path]

        def info(self, path: str) -> Any:
            above = self.listed.get(path.rpartition("/")[0], [])
            return next((one for one in above if one["name"] == path), None) or super().info(path)

        def invalidate_cache(self, path: str) -> None:
            if not path.startswith(str(tmp_path)):
                raise ValueError(f"{path} is above all repositories")
            self.listed.pop(path, None)

    def write(first: int) -> None:
        for name in ("a.parquet", "d/b.parquet"):
            pq.write_table(pa.table({"id": np.arange(first, first + 100)}), tmp_path / name)

    (tmp_path / "d").mkdir()
    write(0)
    for url in (tmp_path, tmp_path / "d/b.parquet"):
        with bowstring.Loader(str(url), batch_size=10, filesystem=Keeping()) as loader:
            time.sleep(0.05)
            write(1000)
            with pytest.raises(bowstring.SourceChangedError):
                list(iter(loader))


def test_a_cache_that_does_not_look_for_changes_is_refused(table: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import fsspec

    def cached(kind: str, **options: object) -> Any:
        where = str(tmp_path / kind)
        return fsspec.filesystem(kind, target_protocol="file", cache_storage=where, skip_instance_cache=True, **options)

    for found in (cached("simplecache"), cached("filecache"), cached("simplecache", check_files=True)):
        with pytest.raises(bowstring.ConfigError, match="check_files=True"):
            bowstring.Loader(str(table), batch_size=5, filesystem=found)
    checks = cached("filecache", check_files=True)
    assert sum(len(batch["id"]) for batch in bowstring.Loader(str(table), batch_size=5, filesystem=checks)) > 0
