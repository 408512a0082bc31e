"""Mounts: `bow://` addresses of loaders and files, by the option and by the variable; keys that stay with their store."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from objects import Objects

ROWS = 300
Mount = Callable[..., pathlib.Path]


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with three files."""
    place = tmp_path / "data"
    place.mkdir()
    for number in range(3):
        table = pa.table({"id": np.arange(number * ROWS, (number + 1) * ROWS)})
        pq.write_table(table, place / f"part-{number}.parquet", row_group_size=40)
    return place


@pytest.fixture
def mount(tmp_path: pathlib.Path) -> Mount:
    """Writes the file of mounts, from addresses and options by name."""

    def write(**mounts: tuple[str, dict[str, str]]) -> pathlib.Path:
        lines = []
        for name, (url, options) in mounts.items():
            pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in options.items())
            lines.append(f'[mounts."data/{name}"]\nurl = {json.dumps(url)}\nstorage_options = {{ {pairs} }}\n')
        (tmp_path / "mounts.toml").write_text("".join(lines))
        return tmp_path / "mounts.toml"

    return write


def upload(server: Objects, data: pathlib.Path, path: str) -> None:
    for file in data.iterdir():
        server.content[f"{path}/{file.name}"] = file.read_bytes()


def test_a_state_goes_on_after_the_files_moved(
    objects: Objects, data: pathlib.Path, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = mount(train=(str(data), {}))
    first = bowstring.Loader("bow://data/train", batch_size=64, seed=5, mounts=file)
    batches = iter(first)
    for _ in range(4):
        next(batches)
    state = first.state_dict()
    rest = [batch["id"].tolist() for batch in batches]
    upload(objects, data, "bucket/moved")
    mount(train=("s3://bucket/moved", objects.storage_options))
    for place in data.iterdir():
        place.unlink()
    monkeypatch.setenv("BOWSTRING_MOUNTS", str(file))
    second = bowstring.Loader("bow://data/train", batch_size=64, seed=5)
    second.load_state_dict(state)
    assert [batch["id"].tolist() for batch in second] == rest
    assert bowstring.plan("bow://data/train", batch_size=64, seed=5)["row_groups"] == 24


def test_files_are_opened_and_saved_below_a_mount(objects: Objects, data: pathlib.Path, mount: Mount) -> None:
    file = mount(here=(str(data), {}), there=("s3://bucket/deep", objects.storage_options))
    with bowstring.open("bow://data/there/model.pt", "wb", mounts=file) as out:
        out.write(b"weights")
    assert objects.content["bucket/deep/model.pt"] == b"weights"
    assert bowstring.open("bow://data/there/model.pt", mounts=file).read() == b"weights"
    assert bowstring.open("bow://data/here/part-0.parquet", mounts=file).read(4) == b"PAR1"
    with pytest.raises(bowstring.NotFoundError, match="has bow://data/here, bow://data/there"):
        bowstring.open("bow://data/their/model.pt", mounts=file)
    with pytest.raises(bowstring.ConfigError, match="takes no storage_options"):
        bowstring.open("bow://data/there/model.pt", mounts=file, storage_options={"aws_region": "x"})


def test_the_file_system_goes_through_all_mounts(objects: Objects, data: pathlib.Path, mount: Mount) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    from bowstring.fs import BowstringFileSystem

    upload(objects, data, "bucket/deep/x")
    file = mount(here=(str(data), {}), there=("s3://bucket/deep", objects.storage_options))
    fs = BowstringFileSystem(mounts=file, skip_instance_cache=True)
    assert fs.ls("bow://", detail=False) == ["bow://data"]
    assert fs.ls("bow://data", detail=False) == ["bow://data/here", "bow://data/there"]
    assert fs.isdir("bow://")
    assert fs.isdir("bow://data")
    assert fs.find("bow://", withdirs=True)[:2] == ["bow://", "bow://data"]
    found = fs.find("bow://data")
    parts = [f"part-{number}.parquet" for number in range(3)]
    assert found == [*(f"bow://data/here/{part}" for part in parts), *(f"bow://data/there/x/{part}" for part in parts)]
    assert fs.glob("bow://data/*/part-1.parquet") == ["bow://data/here/part-1.parquet"]
    for one in found:
        assert fs.info(one)["name"] == one
        assert fs.cat_file(one, 0, 4) == b"PAR1"
    assert pq.read_table("bow://data/there/x/part-1.parquet", filesystem=fs).num_rows == ROWS
    fs.pipe_file("bow://data/here/y", b"y")
    fs.mv("bow://data/here/y", "bow://data/here/z")
    assert (data / "z").read_bytes() == b"y"
    fs.rm("bow://data/here/z")
    assert not fs.exists("bow://data/here/z")


def test_no_part_of_other_credentials_is_sent(
    objects: Objects, data: pathlib.Path, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(objects, data, "bucket/d")
    # The environment's credentials are whole, and a mount's own keys are not joined with their session token.
    for name, value in {"ACCESS_KEY_ID": "env", "SECRET_ACCESS_KEY": "env", "SESSION_TOKEN": "envs-token"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    own = objects.storage_options | {"aws_access_key_id": "anna"}
    without = {key: value for key, value in own.items() if "key" not in key}
    file = mount(own=("s3://bucket/d", own), env=("s3://bucket/d", without))
    for name, key, token in (("own", "anna", None), ("env", "env", "envs-token")):
        objects.told.clear()
        assert bowstring.Loader(f"bow://data/{name}", batch_size=10, mounts=file).rows == 3 * ROWS
        assert {(signer, sent) for signer, sent in objects.told} == {(key, token)}


def test_commands_take_the_same_names(data: pathlib.Path, mount: Mount, tmp_path: pathlib.Path) -> None:
    file = mount(train=(str(data), {}))

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "bowstring", *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, env=None, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    inspected = json.loads(run("inspect", "bow://data/train", "--mounts", str(file), "--json"))
    assert inspected["rows"] == 3 * ROWS
    assert bowstring.write_index("bow://data/train", mounts=file).endswith("_bowstring_index")


def test_conversions_read_below_mounts(
    data: pathlib.Path, mount: Mount, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bowstring.convert import convert, verify

    monkeypatch.setenv("BOWSTRING_MOUNTS", str(mount(train=(str(data), {}))))
    report = convert("bow://data/train", tmp_path / "out", to="jsonl")
    assert report.rows == 3 * ROWS
    assert verify("bow://data/train", tmp_path / "out").rows == (3 * ROWS, 3 * ROWS)
