"""`bowstring.fs`: what libraries do with a file system of fsspec."""

from __future__ import annotations

import io
import pathlib
import random
from collections.abc import Callable
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from objects import Objects

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

from bowstring.fs import BowstringFileSystem  # noqa: E402


@pytest.fixture
def objects(objects: Objects) -> Objects:
    """A server with some objects below `bucket/d`."""
    draw = random.Random(1)
    for name in ("a.bin", "b/c.bin", "b/e f.bin", "b/g%20h.bin"):
        objects.content[f"bucket/d/{name}"] = draw.randbytes(1000)
    return objects


@pytest.fixture
def files(objects: Objects, tmp_path: pathlib.Path) -> Callable[..., BowstringFileSystem]:
    """Makes file systems over the server."""

    def make(**more: Any) -> BowstringFileSystem:
        return BowstringFileSystem(storage_options=objects.storage_options, skip_instance_cache=True, **more)

    return make


def test_names_lead_back_to_what_they_name(
    objects: Objects, files: Callable[..., BowstringFileSystem], tmp_path: pathlib.Path
) -> None:
    for path, content in objects.content.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    fs = files()
    for root in ("s3://bucket", f"{tmp_path}/bucket"):
        assert [one.removeprefix(root) for one in fs.ls(f"{root}/d", detail=False)] == ["/d/a.bin", "/d/b"]
        assert [one["type"] for one in fs.ls(f"bowstring://{root}/d/")] == ["file", "directory"]
        assert fs.ls(f"{root}/d/a.bin", detail=False) == [f"{root}/d/a.bin"]
        found = fs.find(f"{root}/d")
        assert len(found) == 4
        assert {fs.cat_file(one) for one in found} == set(objects.content.values())
        assert fs.find(f"{root}/d", withdirs=True) == sorted([*found, f"{root}/d", f"{root}/d/b"])
        assert fs.find(f"{root}/d", maxdepth=1) == [f"{root}/d/a.bin"]
        assert fs.glob(f"{root}/d/*.bin") == [f"{root}/d/a.bin"]
        assert fs.glob(f"{root}/d/**/c.bin") == [f"{root}/d/b/c.bin"]
        assert fs.glob(f"{root}/nothing/*") == []
        info = fs.info(f"{root}/d/a.bin")
        assert (info["name"], info["size"], info["type"]) == (f"{root}/d/a.bin", 1000, "file")
        assert fs.modified(f"{root}/d/a.bin").year >= 2025
        assert fs.ukey(f"{root}/d/a.bin") != fs.ukey(f"{root}/d/b/c.bin")
        assert fs.exists(f"{root}/d")
        assert fs.isdir(f"{root}/d")
        assert not fs.isfile(f"{root}/d")
        assert fs.isfile(f"{root}/d/a.bin")
        assert not fs.exists(f"{root}/x")
        assert not fs.isdir(f"{root}/x")
        with pytest.raises(FileNotFoundError):
            fs.info(f"{root}/x")
        with pytest.raises(FileNotFoundError):
            fs.ls(f"{root}/x")
        with fs.open(f"{root}/d/a.bin") as file:
            assert file.read() == objects.content["bucket/d/a.bin"]
        fs.get_file(f"{root}/d/a.bin", str(tmp_path / "copy"))
        assert (tmp_path / "copy").read_bytes() == objects.content["bucket/d/a.bin"]


def test_ranges_come_at_once_and_failures_are_each_its_own(
    objects: Objects, files: Callable[..., BowstringFileSystem]
) -> None:
    fs, content = files(), objects.content["bucket/d/a.bin"]
    path, missing = "s3://bucket/d/a.bin", "s3://bucket/d/x.bin"
    found = fs.cat_ranges([path, missing, path, path], [0, 0, -10, 990], [10, 10, None, 2000])
    assert [found[0], *found[2:]] == [content[:10], content[-10:], content[990:]]
    assert isinstance(found[1], bowstring.NotFoundError)
    with pytest.raises(bowstring.NotFoundError):
        fs.cat_ranges([path, missing], 0, 10, on_error="raise")
    assert fs.cat_file(path, 5, -5) == content[5:-5]
    assert fs.cat([path, "s3://bucket/d/b/c.bin"]) == {
        path: content,
        "s3://bucket/d/b/c.bin": objects.content["bucket/d/b/c.bin"],
    }
    with pytest.raises(ValueError, match="length"):
        fs.cat_ranges([path], [0, 1], [2, 3])


def test_an_unknown_option_is_an_error(files: Callable[..., BowstringFileSystem], tmp_path: pathlib.Path) -> None:
    with pytest.raises(bowstring.ConfigError, match="cash"):
        files(cash=str(tmp_path))


def test_a_store_that_fails_is_not_an_empty_one(objects: Objects) -> None:
    options = {**objects.storage_options, "aws_endpoint": "http://127.0.0.1:9"}
    fs = BowstringFileSystem(storage_options=options, skip_instance_cache=True)
    for look in (fs.exists, fs.glob, fs.cat_file):
        with pytest.raises(bowstring.Error):
            look("s3://bucket/d/a.bin")


def _table(rows: int) -> pa.Table:
    return pa.table({"id": pa.array(range(rows)), "x": pa.array([row / 2 for row in range(rows)])})


def test_pandas_and_pyarrow_read_through_it(
    objects: Objects, files: Callable[..., BowstringFileSystem], tmp_path: pathlib.Path
) -> None:
    pandas = pytest.importorskip("pandas")
    table = _table(10_000)
    for part in range(3):
        stored = io.BytesIO()
        pq.write_table(table.slice(part * 1000, 1000), stored)
        objects.content[f"bucket/t/part={part}/x.parquet"] = stored.getvalue()
    csv = table.to_pandas().to_csv(index=False)
    objects.content["bucket/x.csv"] = csv.encode()
    fs = files(cache=str(tmp_path / "cache"), cache_bytes="64MiB")
    one = pq.read_table("s3://bucket/t/part=1/x.parquet", filesystem=fs, partitioning=None)
    assert one.equals(table.slice(1000, 1000))
    whole = ds.dataset("s3://bucket/t", filesystem=fs, format="parquet", partitioning="hive").to_table()
    assert sorted(whole["id"].to_pylist()) == list(range(3000))
    assert set(whole["part"].to_pylist()) == {0, 1, 2}
    frame = pandas.read_parquet("s3://bucket/t/part=2/x.parquet", filesystem=fs)
    assert frame["id"].tolist() == list(range(2000, 3000))
    options = {"storage_options": objects.storage_options}
    assert pandas.read_csv("bowstring://s3://bucket/x.csv", storage_options=options).equals(table.to_pandas())
    assert fs.stats()["failures"] == 0


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
def test_a_distributed_checkpoint_is_loaded_through_it(objects: Objects, tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.checkpoint import FsspecReader

    state = {f"layer{number}": torch.randn(50, 100 + number) for number in range(6)} | {"step": 17}
    checkpoint.save(state, checkpoint_id=str(tmp_path / "saved"), no_dist=True)
    for path in (tmp_path / "saved").iterdir():
        objects.content[f"bucket/checkpoint/{path.name}"] = path.read_bytes()
    options = {
        "storage_options": objects.storage_options,
        "cache": str(tmp_path / "cache"),
        "cache_bytes": "64MiB",
    }
    found: dict[str, Any] = {name: torch.zeros_like(value) if name != "step" else 0 for name, value in state.items()}
    reader = FsspecReader("bowstring://s3://bucket/checkpoint", **options)
    checkpoint.load(found, storage_reader=reader, no_dist=True)
    assert found["step"] == 17
    assert all(torch.equal(found[name], value) for name, value in state.items() if name != "step")
    given = objects.count()
    assert given <= sum(len(content) for path, content in objects.content.items() if "checkpoint" in path)
