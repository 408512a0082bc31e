"""Mounts: `bow://` addresses of loaders and files, by the option and by the variable; keys that stay with their store."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from email.utils import formatdate

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from objects import Objects
from other_stores import REPO, Blobs, Hub

ROWS = 300
# Servers of their own, which scripts/servers/ starts.
AZURITE, GOOGLE = os.environ.get("BOWSTRING_AZURITE"), os.environ.get("BOWSTRING_GCS")
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


Stores = dict[str, tuple[str, dict[str, str]]]
# Credentials of the mounts, and what the environment has for whoever has none.
SECRETS = {"s3": "key-of-anna", "gs": "token-of-bert", "az": "token-of-carl", "hf": "hf_token-of-dora"}
SPARE = {
    "AWS_ACCESS_KEY_ID": "spare-key",
    "AWS_SECRET_ACCESS_KEY": "spare-secret",
    "AWS_SESSION_TOKEN": "spare-session",
    "GOOGLE_BEARER_TOKEN": "spare-google",
    "AZURE_STORAGE_TOKEN": "spare-azure",
    "HF_TOKEN": "hf_spare",
}


@pytest.fixture
def four(
    objects: Objects, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Stores, dict[str, Objects]]]:
    """The same files in four stores, each a server of its own with a credential of its own."""
    for name, value in SPARE.items():
        monkeypatch.setenv(name, value)
    hub = Hub()
    servers = {"s3": objects, "gs": Objects(), "az": Blobs(), "hf": hub}
    for name in ("s3", "gs", "az"):
        upload(servers[name], data, "bucket/d")
    upload(servers["hf"], data, "d")
    stores = {
        "s3": ("s3://bucket/d", {**objects.storage_options, "aws_access_key_id": SECRETS["s3"]}),
        "gs": (
            "gs://bucket/d",
            {
                "google_base_url": servers["gs"].url,
                "google_bearer_token": SECRETS["gs"],
                "allow_http": "true",
                "hedge": "false",
            },
        ),
        "az": (
            "az://bucket/d",
            {
                "azure_storage_account_name": "account",
                "azure_storage_endpoint": servers["az"].url,
                "azure_storage_token": SECRETS["az"],
                "allow_http": "true",
                "hedge": "false",
            },
        ),
        "hf": (f"hf://datasets/{REPO}/d", {"hf_endpoint": servers["hf"].url, "hf_token": SECRETS["hf"]}),
    }
    yield stores, servers
    for server in (servers["gs"], servers["az"], hub, hub.bytes):
        server.shutdown()
        server.server_close()


def test_no_credential_of_a_mount_is_sent_to_the_store_of_another(
    four: tuple[Stores, dict[str, Objects]], data: pathlib.Path, mount: Mount, tmp_path: pathlib.Path
) -> None:
    stores, servers = four
    hub = servers["hf"]
    assert isinstance(hub, Hub)
    file = mount(here=(str(data), {}), **stores)
    mounts = ["here", *stores]

    def checked(*asked: str) -> None:
        for name, server in servers.items():
            heard = "".join(server.heard)
            assert bool(heard) == (name in asked), name
            if heard:
                assert SECRETS[name] in heard, name
            foreign = [secret for other, secret in SECRETS.items() if other != name and secret in heard]
            assert foreign == [], name
            assert not any(value in heard for value in SPARE.values()), name
            server.heard.clear()
        assert not any(secret in "".join(hub.bytes.heard) for secret in (*SECRETS.values(), *SPARE.values()))

    wanted = sorted(range(3 * ROWS))
    for name in mounts:
        loader = bowstring.Loader(f"bow://data/{name}", batch_size=50, mounts=file, cache=tmp_path / "cache")
        assert sorted(row for batch in loader for row in batch["id"].tolist()) == wanted
        checked(*({name} & stores.keys()))
    loader = bowstring.Loader("bow://data", batch_size=50, mounts=file)
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == sorted(wanted * len(mounts))
    checked(*stores)


def test_no_credential_of_the_environment_goes_where_options_have_some(
    four: tuple[Stores, dict[str, Objects]], data: pathlib.Path
) -> None:
    stores, servers = four
    key = {"azure_storage_account_key": "a2V5", "azure_storage_token": None}
    others = {"gs": {"hf_token": "hf_other"}, "az": key}
    for name, (url, options) in stores.items():
        for more in ({}, others.get(name, {})):
            given = {key: value for key, value in (options | more).items() if value is not None}
            loader = bowstring.Loader(url, batch_size=50, storage_options=given)
            assert sum(len(batch["id"]) for batch in loader) == 3 * ROWS
            heard = "".join(servers[name].heard)
            servers[name].heard.clear()
            assert heard, name
            assert not any(value in heard for value in SPARE.values()), (name, more)
    # Credentials of another cloud are none of this one.
    url, options = stores["s3"]
    bare = {key: value for key, value in options.items() if "key" not in key}
    bowstring.Loader(url, batch_size=50, storage_options=bare | {"hf_token": "hf_other"}).close()
    assert SPARE["AWS_SESSION_TOKEN"] in "".join(servers["s3"].heard)


def test_an_object_comes_once_under_all_of_its_names(
    objects: Objects, data: pathlib.Path, mount: Mount, tmp_path: pathlib.Path
) -> None:
    upload(objects, data, "bucket/d")
    options = objects.storage_options
    for urls in (["s3://bucket/d", "s3a://bucket/d"], ["s3://bucket/d/*.parquet", "s3a://bucket/d/part-1.parquet"]):
        with pytest.raises(bowstring.ConfigError, match="found twice"):
            bowstring.Loader(urls, batch_size=50, storage_options=options)
    twice = mount(one=(str(data), {}), two=(str(data), {}))
    with pytest.raises(bowstring.ConfigError, match="two mounts lead to it"):
        bowstring.Loader("bow://data", batch_size=50, mounts=twice)


def test_an_index_of_several_mounts_replaces_their_footers(
    four: tuple[Stores, dict[str, Objects]], data: pathlib.Path, mount: Mount, tmp_path: pathlib.Path
) -> None:
    stores, servers = four
    file = mount(here=(str(data), {}), **stores)
    place = str(tmp_path / "all.index")
    with pytest.raises(bowstring.ConfigError, match="where the index goes"):
        bowstring.write_index("bow://data", mounts=file)
    assert bowstring.write_index("bow://data", place, mounts=file) == place
    without = bowstring.Loader("bow://data", batch_size=50, seed=3, mounts=file)

    def footers() -> int:
        hub = servers["hf"]
        assert isinstance(hub, Hub)
        return sum(server.count() for server in (*servers.values(), hub.bytes))

    expected: list[list[int]] = []
    for index in (place, bowstring.index("bow://data", mounts=file)):
        footers()
        with_index = bowstring.Loader("bow://data", batch_size=50, seed=3, mounts=file, index=index)
        assert footers() == 0, "footers are read beside an index"
        expected = expected or [batch["id"].tolist() for batch in without]
        assert [batch["id"].tolist() for batch in with_index] == expected
    shutil.copy(data / "part-1.parquet", data / "part-0.parquet")
    with pytest.raises(bowstring.SourceChangedError, match="here/part-0"):
        bowstring.Loader("bow://data", batch_size=50, mounts=file, index=place)
    alone = [str(data), "s3://bucket/d"]
    with pytest.raises(bowstring.UnsupportedError, match="mounts"):
        bowstring.write_index(alone, place, storage_options=stores["s3"][1])


def test_a_conversion_takes_a_dataset_of_several_mounts(
    four: tuple[Stores, dict[str, Objects]],
    data: pathlib.Path,
    mount: Mount,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bowstring.convert import convert, verify

    stores, _ = four
    monkeypatch.setenv("BOWSTRING_MOUNTS", str(mount(here=(str(data), {}), **stores)))
    for source, count in (("bow://data", 5), ("bow://data/*/part-1.parquet", 5), ("bow://data/[ag]*", 2)):
        out = tmp_path / f"out{count}-{source.count('*')}"
        rows = count * (ROWS if "part" in source else 3 * ROWS)
        assert convert(source, out, to="jsonl").rows == rows
        assert verify(source, out).rows == (rows, rows)
    with pytest.raises(bowstring.ConfigError, match="holds"):
        convert("bow://data", data, to="jsonl", overwrite=True, overwrite_foreign=True)
    with pytest.raises(bowstring.UnsupportedError, match="one by one"):
        convert("bow://data", tmp_path / "no", from_format="csv", to="jsonl")


KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The published key of Azurite's account."""


def _container(endpoint: str, name: str) -> None:
    """Makes a container of Azurite."""
    date = formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2023-11-03"}
    canonical = "\n".join([f"{key}:{value}" for key, value in headers.items()])
    resource = f"/devstoreaccount1/devstoreaccount1/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"{canonical}\n{resource}"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers["Authorization"] = f"SharedKey devstoreaccount1:{signature}"
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT", headers=headers)
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request):
        pass


@pytest.mark.skipif(AZURITE is None, reason="BOWSTRING_AZURITE names no server (scripts/servers/azurite.sh)")
def test_azurite_is_read_and_saved_to_below_a_mount(data: pathlib.Path, mount: Mount) -> None:
    endpoint = f"{AZURITE}/devstoreaccount1"
    _container(endpoint, "mounted")
    options = {
        "azure_storage_account_name": "devstoreaccount1",
        "azure_storage_account_key": KEY,
        "azure_storage_endpoint": endpoint,
        "allow_http": "true",
    }
    file = mount(az=("az://mounted/d", options))
    for place in data.iterdir():
        with bowstring.open(f"bow://data/az/{place.name}", "wb", mounts=file) as out:
            out.write(place.read_bytes())
    loader = bowstring.Loader("bow://data/az", batch_size=50, mounts=file)
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == list(range(3 * ROWS))
    for content in (b"first", b"x" * (17 << 20), b"y" * (17 << 20), b"last"):
        with bowstring.open("bow://data/az/model.bin", "wb", mounts=file) as out:
            out.write(content)
        assert bowstring.open("bow://data/az/model.bin", mounts=file).read() == content


@pytest.mark.skipif(GOOGLE is None, reason="BOWSTRING_GCS names no server (scripts/servers/gcs.sh)")
def test_a_fake_of_google_cloud_storage_is_read_below_a_mount(data: pathlib.Path, mount: Mount) -> None:
    server = GOOGLE

    def post(path: str, body: bytes, kind: str) -> None:
        request = urllib.request.Request(f"{server}{path}", body, {"Content-Type": kind})
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request):
            pass

    post("/storage/v1/b?project=p", json.dumps({"name": "mounted"}).encode(), "application/json")
    for place in data.iterdir():
        query = urllib.parse.urlencode({"uploadType": "media", "name": f"d/{place.name}"})
        post(f"/upload/storage/v1/b/mounted/o?{query}", place.read_bytes(), "application/octet-stream")
    options = {"google_base_url": server, "google_skip_signature": "true", "allow_http": "true"}
    file = mount(gs=("gs://mounted/d", options))
    loader = bowstring.Loader("bow://data/gs", batch_size=50, mounts=file)
    assert sorted(row for batch in loader for row in batch["id"].tolist()) == list(range(3 * ROWS))
