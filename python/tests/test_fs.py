"""`bowstring.fs`: what libraries do with a file system of fsspec."""

from __future__ import annotations

import io
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from objects import Handler, Objects
from other_stores import Blobs

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


def test_a_file_moves_into_a_directory(
    objects: Objects, files: Callable[..., BowstringFileSystem], tmp_path: pathlib.Path
) -> None:
    fs = files()
    for root in ("s3://bucket/m", f"{tmp_path}/m"):
        fs.makedirs(f"{root}/there", exist_ok=True)
        fs.pipe_file(f"{root}/there/z.pt", b"z")
        for name in "abcd":
            fs.pipe_file(f"{root}/{name}.pt", name.encode())
        fs.mv(f"{root}/a.pt", f"{root}/there/")
        fs.mv(f"{root}/b.pt", f"{root}/there")
        fs.mv(f"{root}/c.pt", f"{root}/c.pt")
        fs.mv(f"{root}/d.pt", f"{root}/e.pt")
        names = {one.removeprefix(f"{root}/"): fs.cat_file(one) for one in fs.find(root)}
        assert names == {"there/z.pt": b"z", "there/a.pt": b"a", "there/b.pt": b"b", "c.pt": b"c", "e.pt": b"d"}
    fs.mv("s3://bucket/m/c.pt", "s3://bucket/")
    assert fs.cat_file("s3://bucket/c.pt") == b"c"
    with pytest.raises(bowstring.ConfigError, match="no address of a file"):
        fs._files.rename("s3://bucket/c.pt", "s3://bucket")
    assert fs.exists("s3://bucket/c.pt")


def test_a_tree_is_removed_without_what_links_lead_to(
    files: Callable[..., BowstringFileSystem], tmp_path: pathlib.Path
) -> None:
    mounts = tmp_path / "mounts.toml"
    mounts.write_text(f'[mounts."data"]\nurl = "{tmp_path}/data"\n')
    for root in ("bow://data", f"{tmp_path}/data"):
        precious = tmp_path / "precious"
        (tmp_path / "data" / "old" / "below").mkdir(parents=True)
        precious.mkdir(exist_ok=True)
        (precious / "x").write_bytes(b"x")
        (tmp_path / "data" / "old" / "below" / "y").write_bytes(b"y")
        (tmp_path / "data" / "old" / "latest").symlink_to(precious)
        (tmp_path / "data" / "old" / "below" / "loop").symlink_to(tmp_path / "data" / "old")
        fs = files(mounts=mounts)
        if root.startswith("bow"):
            assert sorted(fs.find(f"{root}/old")) == [f"{root}/old/below/y", f"{root}/old/latest/x"]
        fs.rm(f"{root}/old", recursive=True)
        assert not fs.exists(f"{root}/old")
        assert (precious / "x").read_bytes() == b"x"
        with pytest.raises(bowstring.NotFoundError):
            fs.rm(f"{root}/old", recursive=True)
    (tmp_path / "data").rmdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_bytes(b"")
    mounts.write_text(f'[mounts."a/data"]\nurl = "{tmp_path}/data"\n')
    with pytest.raises(bowstring.UnsupportedError, match="name one mount"):
        files(mounts=mounts).rm("bow://a", recursive=True)


def test_links_are_followed_but_to_a_directory_that_they_are_in(tmp_path: pathlib.Path) -> None:
    """With two of them each level would have twice as many, without an end."""
    root, fs = tmp_path / "data", BowstringFileSystem(skip_instance_cache=True)
    (root / "d").mkdir(parents=True)
    (root / "a").write_bytes(b"a")
    (root / "d" / "b").write_bytes(b"bb")
    for link, target in {"self": ".", "again": ".", "linked": "d", "d/up": "..", "d/me": "../d"}.items():
        (root / link).symlink_to(target)

    def names(found: list[str]) -> list[str]:
        return [one.removeprefix(f"{root}/") for one in found]

    files = ["a", "d/b", "linked/b"]
    links = ["d/me", "d/up", "linked/me", "linked/up", "self", "again"]
    everything = sorted([str(root), *files, "d", "linked", *links], key=lambda name: (name != str(root), name))
    for depth in (None, 5):
        assert names(fs.find(root, maxdepth=depth)) == files
        assert names(fs.find(root, maxdepth=depth, withdirs=True)) == everything
        assert names(fs.glob(f"{root}/**", maxdepth=depth)) == everything
        assert names(fs.glob(f"{root}/**/b", maxdepth=depth)) == ["d/b", "linked/b"]
        assert names(fs.expand_path(root, recursive=True, maxdepth=depth)) == everything
        assert fs.du(root, maxdepth=depth) == 5
        for topdown in (True, False):
            walked = fs.walk(root, maxdepth=depth, topdown=topdown)
            assert {at for at, _, _ in walked} == {str(root), f"{root}/d", f"{root}/linked"}
    mounted, table = "bow://data", tmp_path / "mounts.toml"
    table.write_text(f'[mounts]\ndata = {{ url = "{root}" }}\n')
    over = BowstringFileSystem(mounts=str(table), skip_instance_cache=True)
    assert {at for at, _, _ in over.walk(mounted)} == {mounted, f"{mounted}/d", f"{mounted}/linked"}
    assert over.find(mounted, maxdepth=5) == [f"{mounted}/{name}" for name in files]
    # Whoever begins at such a link means it.
    assert names(fs.find(root / "self")) == [f"self/{name}" for name in files]
    fs.get(str(root), str(tmp_path / "copy"), recursive=True)
    copied = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path / "copy")) for path in copied) == files


def test_directories_add_nothing_to_the_bytes_below_one(
    objects: Objects, files: Callable[..., BowstringFileSystem], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"abc")
    assert files().du(tmp_path, withdirs=True) == 3
    assert files().du("s3://bucket/d", withdirs=True) == 4000
    assert files().du(tmp_path, withdirs=True, total=False)[f"{tmp_path}/d/a"] == 3


def test_a_file_url_is_the_path_that_it_names(tmp_path: pathlib.Path) -> None:
    root, fs = tmp_path / "a b%20c", BowstringFileSystem(skip_instance_cache=True)
    (root / "d").mkdir(parents=True)
    (root / "d" / "x.txt").write_bytes(b"x")
    url, path = root.as_uri(), f"{root}/d/x.txt"
    assert url.endswith("a%20b%2520c")
    assert fs.find(url) == fs.glob(f"{url}/**/*.txt") == fs.ls(f"{url}/d", detail=False) == [path]
    assert fs.cat_file(f"bowstring://{url}/d/x.txt") == b"x"
    assert [at for at, _, _ in fs.walk(url)] == [str(root), f"{root}/d"]
    assert fs.address(url) == str(root)
    with pytest.raises(bowstring.ConfigError, match="%3F and %23"):
        fs.info(f"{url}/d/x.txt?y")
    with pytest.raises(bowstring.ConfigError, match="not an absolute local path"):
        fs.info("file://host/x.txt")


def test_marks_of_directories_are_no_files(
    objects: Objects, files: Callable[..., BowstringFileSystem], tmp_path: pathlib.Path
) -> None:
    objects.content |= {"bucket/k/": b"", "bucket/k/empty/": b"", "bucket/k/full/": b"", "bucket/k/full/x": b"x"}
    fs = files()
    assert fs.ls("s3://bucket/k", detail=False) == ["s3://bucket/k/empty", "s3://bucket/k/full"]
    assert fs.ls("s3://bucket/k/full", detail=False) == ["s3://bucket/k/full/x"]
    for empty in ("s3://bucket/k/empty", "s3://bucket/k/empty/"):
        assert fs.isdir(empty)
        assert fs.ls(empty, detail=False) == []
    assert not fs.exists("s3://bucket/k/none")
    assert fs.find("s3://bucket/k") == ["s3://bucket/k/full/x"]
    found = fs.find("s3://bucket/k", withdirs=True, detail=True)
    assert {name.rpartition("/")[2]: info["type"] for name, info in found.items()} == {
        "k": "directory",
        "empty": "directory",
        "full": "directory",
        "x": "file",
    }
    fs.get("s3://bucket/k", str(tmp_path / "k"), recursive=True)
    assert sorted(one.name for one in (tmp_path / "k").rglob("*")) == ["empty", "full", "x"]
    fs.rm("s3://bucket/k", recursive=True)
    assert "bucket/k/full/x" not in objects.content
    # Marks have no name of their own.
    fs.rm("s3://bucket/k", recursive=True)


def test_azure_lists_the_versions_and_the_marks_that_it_has(blobs: Blobs, tmp_path: pathlib.Path) -> None:
    blobs.content |= {"bucket/t/a.csv": b"a,b\n1,x\n", "bucket/t/empty/": b"", "bucket/t/empty-1": b""}
    fs = BowstringFileSystem(storage_options=blobs.storage_options, skip_instance_cache=True)
    listed = {info["name"].rpartition("/")[2]: info for info in fs.ls("az://bucket/t")}
    assert {name: info["type"] for name, info in listed.items()} == {
        "a.csv": "file",
        "empty": "directory",
        "empty-1": "file",
    }
    assert listed["a.csv"]["ETag"] == fs.info("az://bucket/t/a.csv")["ETag"]
    assert fs.isdir("az://bucket/t/empty")
    assert fs.ls("az://bucket/t/empty") == []
    assert fs.find("az://bucket/t") == ["az://bucket/t/a.csv", "az://bucket/t/empty-1"]
    assert fs.du("az://bucket/t") == 8
    fs.get("az://bucket/t", str(tmp_path / "t"), recursive=True)
    assert sorted(one.name for one in (tmp_path / "t").iterdir()) == ["a.csv", "empty", "empty-1"]
    for none in ("az://bucket/t/none", "az://bucket/t/em"):
        assert not fs.exists(none)


def test_keys_keep_their_blanks(objects: Objects, files: Callable[..., BowstringFileSystem]) -> None:
    content = {"bucket/w/x": b"1", "bucket/w/x ": b"2", "bucket/w/a /b": b"3"}
    objects.content |= content
    fs = files()
    found = fs.find("s3://bucket/w")
    assert sorted(fs.cat_file(one) for one in found) == sorted(content.values())
    fs.rm(next(one for one in found if fs.cat_file(one) == b"2"))
    assert "bucket/w/x" in objects.content
    assert "bucket/w/x " not in objects.content
    with pytest.raises(bowstring.ConfigError, match="new%09tab"):
        fs.pipe_file("s3://bucket/w/new\ttab", b"5")


def test_names_are_keys_as_they_are(
    objects: Objects, files: Callable[..., BowstringFileSystem], tmp_path: pathlib.Path
) -> None:
    values = ["a", "a/b", "x:y", "x%3Ay", "50%", "run[1]", "{a,b}*"]
    table = pa.table({"v": range(len(values)), "p": values})
    fs = files()
    for root, system in [(str(tmp_path / "here"), None), ("s3://bucket/put", fs)]:
        pq.write_to_dataset(table, root, partition_cols=["p"], filesystem=system)
    read = ds.dataset("s3://bucket/put", filesystem=fs, partitioning="hive").to_table()
    assert dict(zip(read["v"].to_pylist(), read["p"].to_pylist(), strict=True)) == dict(enumerate(values))
    fs.put(str(tmp_path / "here"), "s3://bucket/copied", recursive=True)
    fs.get("s3://bucket/copied", str(tmp_path / "back"), recursive=True)
    names = sorted(one.relative_to(tmp_path / "here") for one in (tmp_path / "here").rglob("*"))
    assert sorted(one.relative_to(tmp_path / "back") for one in (tmp_path / "back").rglob("*")) == names
    for root in (str(tmp_path / "back"), "s3://bucket/copied", "s3://bucket/put"):
        options = {"batch_size": 10, "shuffle": False, "arrow": ["p"], "storage_options": objects.storage_options}
        with bowstring.Loader(root, **options) as loader:
            (batch,) = loader
        assert dict(zip(batch["v"].tolist(), pa.array(batch["p"]).to_pylist(), strict=True)) == dict(enumerate(values))
    # An address of the same: a loader decodes it, and takes none of it for a pattern.
    for name in fs.ls("s3://bucket/put", detail=False):
        expected = ds.dataset(name, filesystem=fs).to_table()["v"].to_pylist()
        with bowstring.Loader(fs.address(name), batch_size=1, storage_options=objects.storage_options) as loader:
            assert [batch["v"].tolist() for batch in loader] == [expected]


def test_a_file_is_copied_to_this_machine_as_a_whole(
    objects: Objects, files: Callable[..., BowstringFileSystem], tmp_path: pathlib.Path
) -> None:
    fs, here = files(), tmp_path / "x"
    here.write_bytes(b"as it was")
    (tmp_path / "link").symlink_to(here)
    for same in (here, tmp_path / "link"):
        with pytest.raises(shutil.SameFileError):
            fs.get_file(str(here), str(same))
    with pytest.raises(bowstring.ConfigError, match="is a link that leads to"):
        fs.mv(str(tmp_path / "link"), str(here))
    with pytest.raises(FileNotFoundError):
        fs.get_file("s3://bucket/nothing", str(here))
    assert here.read_bytes() == b"as it was"
    fs.get("s3://bucket/d/a.bin", str(here))
    assert here.read_bytes() == objects.content["bucket/d/a.bin"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "x"]


def test_a_list_without_its_end_is_an_error(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that knows ListObjects alone, which goes on from a marker."""
    whole = Handler.listing

    def cut(self: Handler, bucket: str, query: dict[str, str]) -> bytes:
        return whole(self, bucket, query).replace(b"<IsTruncated>false", b"<IsTruncated>true")

    monkeypatch.setattr(Handler, "listing", cut)
    for url in ("s3://bucket/d", "s3://bucket/d/*.parquet"):
        with pytest.raises(bowstring.StoreError, match="cut short"):
            bowstring.Loader(url, batch_size=1, storage_options=objects.storage_options)


def test_a_web_server_that_answers_no_head_is_read(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def no_head(self: Handler) -> None:
        self.reply(405, b"", False, {})

    monkeypatch.setattr(Handler, "do_HEAD", no_head)
    fs = BowstringFileSystem(skip_instance_cache=True)
    url = f"{objects.url}/bucket/d/a.bin"
    assert fs.exists(url)
    assert not fs.exists(f"{objects.url}/bucket/d/none.bin")
    assert fs.cat_file(url) == objects.content["bucket/d/a.bin"]
    with bowstring.open(url) as file:
        assert file.read() == objects.content["bucket/d/a.bin"]
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "t.parquet")
    objects.content["bucket/t.parquet"] = (tmp_path / "t.parquet").read_bytes()
    loader = bowstring.Loader(f"{objects.url}/bucket/t.parquet", batch_size=5, cache=tmp_path / "cache")
    assert sum(len(batch["id"]) for batch in loader) == 10
