"""`bowstring.open(url, "wb")` and `bowstring.fs`: what is saved is there as a whole, for readers of this machine at once."""

from __future__ import annotations

import array
import concurrent.futures
import gc
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import bowstring
import pytest
from conftest import package_environment
from objects import Handler, Late, Objects

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))

from chaos.disks import Disk

SOAK = "BOWSTRING_SOAK" in os.environ
URL = "s3://bucket/d/x.bin"
# More than one part.
SIZE = (17 << 20) + 4321


@pytest.fixture
def opened(objects: Objects, tmp_path: pathlib.Path) -> Callable[..., Any]:
    """Opens a file of the server, through a cache."""

    def start(url: str = URL, mode: Any = "rb", **more: Any) -> Any:
        options = {"cache": tmp_path / "cache", "cache_bytes": "512MiB", "storage_options": objects.storage_options}
        return bowstring.open(url, mode, **{**options, **more})

    return start


def _status(cache: pathlib.Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "bowstring", "cache", "status", str(cache), "--json"],
        capture_output=True,
        env=package_environment(),
        text=True,
        check=True,
    )
    return list(json.loads(done.stdout)["saves"])


def test_what_is_written_is_there_when_the_file_is_closed_and_not_before(
    objects: Objects, opened: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    seed = int(os.environ.get("SAVING_SEED", random.randrange(1 << 32)))
    print(f"SAVING_SEED={seed} pytest python/tests/test_saving.py -k written")
    ways: list[dict[str, Any]] = [
        {"cache": None, "cache_bytes": None},
        {},
        {"upload": "background"},
        {"url": tmp_path / "x.bin"},
        {"url": (tmp_path / "y.bin").as_uri()},
    ]
    for way in ways:
        draw, expected = random.Random(seed), io.BytesIO()
        with opened(mode="wb", **way) as file:
            assert (file.mode, file.writable(), file.readable(), file.seekable()) == ("wb", True, False, False)
            while expected.tell() < SIZE:
                part = draw.randbytes(draw.choice([0, 1, 30, 5000, 1 << 20, 5 << 20]) & ~3)
                kind = draw.choice(["bytes", "bytearray", "memoryview", "array"])
                given = {
                    "bytes": lambda part=part: part,
                    "bytearray": lambda part=part: bytearray(part),
                    "memoryview": lambda part=part: memoryview(part),
                    "array": lambda part=part: array.array("i", part),
                }[kind]()
                assert file.write(given) == expected.write(part)
                file.flush()
                assert file.tell() == expected.tell()
            with pytest.raises(bowstring.NotFoundError):
                opened(**way)
        assert file.closed
        with opened(**way) as found:
            assert found.read() == expected.getvalue()
        if way.get("upload") == "background":
            bowstring.flush(cache=tmp_path / "cache", storage_options=objects.storage_options)
        if "url" not in way:
            assert objects.content.pop("bucket/d/x.bin") == expected.getvalue()
            with pytest.raises(bowstring.NotFoundError):
                opened(cache=None, cache_bytes=None)
    assert objects.uploads == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "x.bin", "y.bin"]


def _fails_midway(opened: Any, size: int) -> None:
    with opened as file:
        file.write(bytes(size))
        raise RuntimeError("midway")


def test_what_is_given_up_leaves_what_was_there(
    objects: Objects, opened: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    ways: list[dict[str, Any]] = [
        {"cache": None, "cache_bytes": None},
        {},
        {"upload": "background"},
        {"url": tmp_path / "x.bin"},
    ]
    for way in ways:
        with opened(mode="wb", **way) as file:
            file.write(b"old")
        with pytest.raises(RuntimeError, match="midway"):
            _fails_midway(opened(mode="wb", **way), SIZE)
        file = opened(mode="wb", **way)
        file.write(bytes(SIZE))
        file.discard()
        file.discard()
        with pytest.raises(ValueError, match="closed"):
            file.write(b"x")
        forgotten = opened(mode="wb", **way)
        forgotten.write(bytes(SIZE))
        del forgotten
        gc.collect()
        with opened(**way) as found:
            assert found.read() == b"old"
        for mode in ("xb", "ab", "r+b", "w", "r"):
            with pytest.raises(bowstring.UnsupportedError, match="mode"):
                opened(mode=mode, **way)
    bowstring.flush(cache=tmp_path / "cache", storage_options=objects.storage_options)
    assert objects.uploads == {}
    assert objects.content == {"bucket/d/x.bin": b"old"}


def test_readers_of_this_machine_cost_the_store_nothing(objects: Objects, opened: Callable[..., Any]) -> None:
    content = random.Random(1).randbytes(SIZE)
    for upload in ("wait", "background"):
        with opened(mode="wb", upload=upload) as file:
            file.write(content)
        with opened() as found:
            assert found.read() == content
            assert pathlib.Path(found.local_path()).read_bytes() == content
    assert bowstring.flush.__doc__
    assert objects.count() == 0


_READER = """
import hashlib, json, sys
import bowstring
with bowstring.open("s3://bucket/d/x.bin", **json.loads(sys.argv[1])) as file:
    print(hashlib.sha256(file.read()).hexdigest())
"""


def test_a_save_is_visible_to_other_processes_before_its_store_has_it(
    objects: Objects, opened: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    import hashlib

    content = random.Random(1).randbytes(SIZE)
    objects.paced.rate = 8e6
    began = time.monotonic()
    with opened(mode="wb", upload="background") as file:
        file.write(content)
    closed = time.monotonic() - began
    options = {"cache": str(tmp_path / "cache"), "storage_options": objects.storage_options}
    done = subprocess.run(
        [sys.executable, "-c", _READER, json.dumps(options)], capture_output=True, env=package_environment(), text=True
    )
    assert done.stdout.strip() == hashlib.sha256(content).hexdigest(), done.stderr
    assert "bucket/d/x.bin" not in objects.content
    (unstored,) = _status(tmp_path / "cache")
    assert (unstored["url"], unstored["bytes"], unstored["failure"]) == (URL, SIZE, None)
    objects.paced.rate = 0
    bowstring.flush(**options)
    assert objects.content["bucket/d/x.bin"] == content
    assert closed < SIZE / 8e6, "it has waited for the store"
    assert _status(tmp_path / "cache") == []


def test_a_failure_of_the_store_is_never_swallowed(
    objects: Objects, opened: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    objects.content["bucket/d/x.bin"] = b"old"
    objects.refuses = True
    options = {"cache": tmp_path / "cache", "storage_options": objects.storage_options}
    for size in (1000, SIZE):
        for way in ({}, {"cache": None, "cache_bytes": None}):
            with pytest.raises(bowstring.StoreError, match="AccessDenied"), opened(mode="wb", **way) as file:
                file.write(bytes(size))
        with opened() as found:
            assert found.read() == b"old"
    with opened(mode="wb", upload="background") as file:
        file.write(b"new")
    with pytest.raises(bowstring.StoreError, match="AccessDenied"):
        bowstring.flush(**options)
    (unstored,) = _status(tmp_path / "cache")
    assert "AccessDenied" in unstored["failure"]
    command = [sys.executable, "-m", "bowstring", "cache"]
    storage = ",".join(f"{key}={value}" for key, value in objects.storage_options.items())
    upload = [*command, "upload", str(tmp_path / "cache"), "--storage-options", storage]
    refused = subprocess.run(upload, capture_output=True, env=package_environment(), text=True)
    assert refused.returncode == 4, refused
    kept = subprocess.run(
        [*command, "rm", str(tmp_path / "cache")], capture_output=True, env=package_environment(), text=True
    )
    assert kept.returncode == 2
    assert "--with-saves" in kept.stderr
    objects.refuses = False
    done = subprocess.run(upload, capture_output=True, env=package_environment(), text=True)
    assert (done.returncode, objects.content["bucket/d/x.bin"]) == (0, b"new"), done
    bowstring.flush(**options)
    with pytest.raises(bowstring.ConfigError, match="cache"):
        opened(mode="wb", upload="background", cache=None, cache_bytes=None)
    with pytest.raises(bowstring.ConfigError, match="upload"):
        opened(mode="wb", upload="sometimes")


def test_ctrl_c_gives_up_a_save(objects: Objects, script: Callable[..., Any]) -> None:
    import signal

    objects.paced.rate = 10_000
    program = script(
        "import bowstring, json, sys\n"
        "file = bowstring.open('s3://bucket/x', 'wb', storage_options=json.loads(sys.argv[1]))\n"
        "file.write(bytes(1_000_000))\n"
        "print('written', flush=True)\n"
        "try:\n    file.close()\nexcept KeyboardInterrupt:\n    print('stopped', file.closed, flush=True)\n"
        "import os; os._exit(0)\n",
        json.dumps(objects.storage_options),
    )
    assert program.stdout.readline() == "written\n"
    time.sleep(0.5)
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=60)[0] == "stopped True\n"
    assert "bucket/x" not in objects.content


def test_the_interpreter_waits_for_uploads_at_its_end(
    objects: Objects, tmp_path: pathlib.Path, script: Callable[..., Any]
) -> None:
    objects.paced.rate = 20e6
    program = script(
        "import bowstring, json, sys\n"
        "with bowstring.open('s3://bucket/x', 'wb', upload='background', **json.loads(sys.argv[1])) as file:\n"
        "    file.write(bytes(17 << 20))\n",
        json.dumps({"cache": str(tmp_path / "cache"), "storage_options": objects.storage_options}),
    )
    out, err = program.communicate(timeout=100)
    assert (program.returncode, out, err) == (0, "", "")
    assert objects.content["bucket/x"] == bytes(17 << 20)


_SAVER = """
import json, random, sys
import bowstring
urls, ways, options = json.loads(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
version = int(sys.argv[4])
for _ in range(1000):
    for way in ways:
        version += 1
        content = version.to_bytes(8, "little") * (random.Random(version).choice([1000, 2_500_000]))
        for url in urls:
            with bowstring.open(url, "wb", upload=way, **(options if "://" in url else {})) as file:
                for at in range(0, len(content), 3_000_000):
                    file.write(content[at : at + 3_000_000])
            print(url, version, flush=True)
"""


def _version(content: bytes) -> int:
    """The version of a save, of which all has to be there."""
    version = content[:8]
    number = int.from_bytes(version, "little")
    assert len(content) == 8 * random.Random(number).choice([1000, 2_500_000])
    assert content == version * (len(content) // 8), "a mixture"
    return number


@pytest.mark.parametrize("way", ["wait", "background"])
def test_a_killed_process_leaves_the_old_or_the_new_one_and_never_a_mixture(
    objects: Objects, tmp_path: pathlib.Path, way: str
) -> None:
    seed = int(os.environ.get("KILL_SEED", random.randrange(1 << 32)))
    print(f"KILL_SEED={seed} pytest python/tests/test_saving.py -k 'killed and {way}'")
    draw = random.Random(seed)
    options = {"cache": str(tmp_path / "cache"), "storage_options": objects.storage_options}
    local = str(tmp_path / "local.bin")
    kept = {URL: 0, local: 0}
    for _ in range(100 if SOAK else 10):
        program = [sys.executable, "-c", _SAVER]
        arguments = [json.dumps([URL, local]), json.dumps([way]), json.dumps(options), str(max(kept.values()))]
        saver = subprocess.Popen(
            [*program, *arguments], stdout=subprocess.PIPE, env=package_environment(), text=True, bufsize=1
        )
        assert saver.stdout is not None
        lines = [saver.stdout.readline()]
        time.sleep(draw.uniform(0, 0.5))
        saver.kill()
        lines += saver.communicate()[0].splitlines()
        said = [line.split() for line in lines if line.strip()]
        for url, version in said:
            kept[url] = int(version)
        # A process may end between its saves of one version.
        if kept[local] or os.path.exists(local):
            with bowstring.open(local) as file:
                there = _version(file.read())
            assert there >= kept[local]
            kept[local] = there
        # By a process that knows nothing, and in the store itself.
        with bowstring.open(URL, **options) as file:
            visible = _version(file.read())
            assert visible >= kept[URL]
        bowstring.flush(**options)
        stored = _version(objects.content["bucket/d/x.bin"])
        assert stored >= kept[URL]
        assert stored >= visible
        kept[URL] = stored
        assert _status(tmp_path / "cache") == []
    # An upload that was begun in the moment of a kill may be known to nobody.
    assert len(objects.uploads) <= 3, objects.requests
    left = [path.name for path in (tmp_path / "cache" / "saved").iterdir() if not path.name.endswith(".lock")]
    assert left == []


_ONE = """
import json, sys
import bowstring
size, options = json.loads(sys.argv[1])
with bowstring.open("s3://bucket/d/x.bin", "wb", **options) as file:
    file.write(b"1" * size)
bowstring.flush(**{key: options[key] for key in ("cache", "storage_options") if key in options})
"""


@pytest.mark.parametrize("was", [None, b"before"])
@pytest.mark.parametrize("size", [1000, SIZE])
@pytest.mark.parametrize("way", [{}, {"upload": "wait"}, {"upload": "background"}])
def test_what_a_killed_process_has_sent_never_replaces_a_later_save(
    objects: Objects, tmp_path: pathlib.Path, way: dict[str, Any], size: int, was: bytes | None
) -> None:
    if was is not None:
        objects.content["bucket/d/x.bin"] = was
    options: dict[str, Any] = {"storage_options": objects.storage_options}
    if way:
        options["cache"] = str(tmp_path / "cache")
    last = "POST /bucket/d/x.bin?uploadId=" if size == SIZE else "PUT /bucket/d/x.bin"
    objects.late = late = Late(last)
    program = [sys.executable, "-c", _ONE, json.dumps([size, {**options, **way}])]
    saver = subprocess.Popen(program, env=package_environment())
    try:
        assert late.come.wait(60)
        saver.kill()
        saver.wait()
        # Of the store as it is now, beside the request that is on its way.
        if way:
            bowstring.flush(**options)
            if was is not None or way["upload"] == "background":
                with bowstring.open(URL, **options) as file:
                    assert file.read(4) in (b"1111", (was or b"none")[:4])
        with bowstring.open(URL, "wb", **options, **way) as file:
            file.write(b"2" * size)
        if way:
            bowstring.flush(**options)
        assert objects.content["bucket/d/x.bin"] == b"2" * size
    finally:
        saver.kill()
        late.may_go.set()
    assert late.over.wait(60)
    assert objects.content["bucket/d/x.bin"] == b"2" * size, late.status
    assert late.status in (404, 412)


@pytest.mark.parametrize("size", [1000, SIZE])
def test_the_last_of_two_saves_replaces_what_came_while_it_was_under_way(objects: Objects, size: int) -> None:
    options = {"storage_options": objects.storage_options}
    objects.late = late = Late("POST /bucket/d/x.bin?uploadId=" if size == SIZE else "PUT /bucket/d/x.bin")
    with concurrent.futures.ThreadPoolExecutor() as threads:

        def save() -> None:
            with bowstring.open(URL, "wb", **options) as file:
                file.write(b"1" * size)

        saving = threads.submit(save)
        assert late.come.wait(60)
        with bowstring.open(URL, "wb", **options) as file:
            file.write(b"2" * size)
        assert objects.content["bucket/d/x.bin"] == b"2" * size
        late.may_go.set()
        saving.result()
    assert late.status == 412
    assert objects.content["bucket/d/x.bin"] == b"1" * size


@pytest.mark.parametrize("size", [1000, SIZE])
def test_an_object_that_is_removed_while_it_is_replaced_is_made_anew(objects: Objects, size: int) -> None:
    objects.content["bucket/d/x.bin"] = b"before"
    objects.late = late = Late("POST /bucket/d/x.bin?uploadId=" if size == SIZE else "PUT /bucket/d/x.bin")
    with concurrent.futures.ThreadPoolExecutor() as threads:

        def save() -> None:
            with bowstring.open(URL, "wb", storage_options=objects.storage_options) as file:
                file.write(b"1" * size)

        saving = threads.submit(save)
        assert late.come.wait(60)
        del objects.content["bucket/d/x.bin"]
        late.may_go.set()
        saving.result()
    assert late.status == 404
    assert objects.content["bucket/d/x.bin"] == b"1" * size


_CONDITIONLESS = """
import json, logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.WARNING)
import bowstring
for size in (1000, 17 << 20, 1000):
    for number in range(2):
        with bowstring.open("s3://bucket/d/x.bin", "wb", storage_options=json.loads(sys.argv[1])) as file:
            file.write(bytes([number]) * size)
"""


def test_a_store_without_conditional_writes_is_told_once_and_written_to(objects: Objects) -> None:
    objects.conditional = False
    began = time.monotonic()
    program = [sys.executable, "-c", _CONDITIONLESS, json.dumps(objects.storage_options)]
    done = subprocess.run(program, capture_output=True, env=package_environment(), text=True, check=True)
    assert done.stdout.count("no conditional writes") == 1, done
    assert "s3://bucket/" in done.stdout
    assert objects.content["bucket/d/x.bin"] == bytes([1]) * 1000
    assert time.monotonic() - began < 60, "what is not implemented is tried again"
    assert objects.uploads == {}
    objects.requests.clear()
    options = {**objects.storage_options, "aws_conditional_put": "disabled"}
    for size in (1000, SIZE):
        with bowstring.open(URL, "wb", storage_options=options) as file:
            file.write(bytes(size))
    assert objects.content["bucket/d/x.bin"] == bytes(SIZE)
    assert len([request for request in objects.requests if request.startswith("PUT /bucket/d/x.bin ")]) <= 1


def test_torch_and_safetensors_save_and_load(
    objects: Objects, opened: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    torch = pytest.importorskip("torch")
    state = {f"layer{number}": torch.arange(1_200_000 + number, dtype=torch.float32) for number in range(4)}

    def same(found: dict[str, Any]) -> bool:
        return found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)

    for url, upload in (("s3://bucket/m.pt", "wait"), ("s3://bucket/b.pt", "background"), (tmp_path / "m.pt", "wait")):
        with opened(url, "wb", upload=upload) as file:
            torch.save(state, file)
        with opened(url) as file:
            assert same(torch.load(file.local_path(), mmap=True))
            assert same(torch.load(file))
    with pytest.raises(AttributeError), opened("s3://bucket/m.pt", "wb") as file:
        torch.save({"x": lambda: 1}, file)
    with opened("s3://bucket/m.pt") as file:
        assert same(torch.load(file))
    safetensors = pytest.importorskip("safetensors.torch")
    with opened("s3://bucket/m.safetensors", "wb") as file:
        file.write(safetensors.save(state))
    with opened("s3://bucket/m.safetensors") as file:
        assert same(safetensors.load_file(file.local_path()))
    path = tmp_path / "local.safetensors"
    safetensors.save_file(state, path)
    fs = pytest.importorskip("bowstring.fs").BowstringFileSystem(
        storage_options=objects.storage_options, skip_instance_cache=True
    )
    fs.put_file(str(path), "s3://bucket/put.safetensors")
    assert objects.content["bucket/put.safetensors"] == path.read_bytes()
    bowstring.flush(cache=tmp_path / "cache", storage_options=objects.storage_options)
    assert "bucket/b.pt" in objects.content


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning", "ignore:Detected an existing:UserWarning")
@pytest.mark.parametrize("upload", ["wait", "background"])
def test_a_distributed_checkpoint_is_saved_and_loaded(objects: Objects, tmp_path: pathlib.Path, upload: str) -> None:
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    pytest.importorskip("bowstring.fs")
    from torch.distributed.checkpoint import FsspecReader, FsspecWriter

    state: dict[str, Any] = {f"layer{number}": torch.randn(50, 100 + number) for number in range(6)} | {"step": 17}
    options: dict[str, Any] = {
        "storage_options": objects.storage_options,
        "cache": str(tmp_path / "cache"),
        "cache_bytes": "256MiB",
    }
    for url in ("bowstring://s3://bucket/checkpoint", f"bowstring://{tmp_path}/checkpoint"):
        for step in (17, 18):
            state["step"] = step
            checkpoint.save(
                state, storage_writer=FsspecWriter(url, upload=upload, sync_files=False, **options), no_dist=True
            )
            found = {name: torch.zeros_like(value) if name != "step" else 0 for name, value in state.items()}
            checkpoint.load(found, storage_reader=FsspecReader(url, **options), no_dist=True)
            assert found["step"] == step
            assert all(torch.equal(found[name], value) for name, value in state.items() if name != "step")
    bowstring.flush(**options)
    names = {path.name for path in (tmp_path / "checkpoint").iterdir()}
    assert {path.removeprefix("bucket/checkpoint/") for path in objects.content} == names
    assert ".metadata" in names
    assert not any("tmp" in name or "saving" in name for name in names)


def test_the_file_system_changes_what_libraries_ask_it_to(objects: Objects, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("fsspec")
    from bowstring.fs import BowstringFileSystem

    fs = BowstringFileSystem(storage_options=objects.storage_options, skip_instance_cache=True)
    for root in ("s3://bucket", str(tmp_path)):
        fs.makedirs(f"{root}/d/e", exist_ok=True)
        fs.pipe_file(f"{root}/d/e/a", b"a")
        fs.pipe({f"{root}/d/b": b"b", f"{root}/d/c": b"c"})
        with fs.open(f"{root}/d/t.txt", "w") as text:
            text.write("line\n" * 3)
        with pytest.raises(RuntimeError, match="midway"), fs.open(f"{root}/d/t.txt", "w") as text:  # noqa: PT012 - the file ends with the error
            text.write("half")
            raise RuntimeError("midway")
        fs.open(f"{root}/d/t.txt", "w").write("half")
        gc.collect()
        with pytest.raises(bowstring.UnsupportedError, match="compression"):
            fs.open(f"{root}/d/t.gz", "wb", compression="gzip")
        fs.touch(f"{root}/d/empty")
        fs.touch(f"{root}/d/b", truncate=False)
        fs.mv(f"{root}/d/c", f"{root}/d/b")
        assert {path.rsplit("/", 1)[1] for path in fs.ls(f"{root}/d", detail=False)} == {"b", "e", "empty", "t.txt"}
        fs.mv(f"{root}/d/b", f"{root}/d/b")
        with pytest.raises(FileNotFoundError):
            fs.mv(f"{root}/d/z", f"{root}/d/z")
        assert (fs.cat_file(f"{root}/d/b"), fs.cat_file(f"{root}/d/t.txt")) == (b"c", b"line\n" * 3)
        with fs.transaction:
            with fs.open(f"{root}/d/b", "wb") as file:
                file.write(b"later")
            assert fs.cat_file(f"{root}/d/b") == b"c"
            fs.write_text(f"{root}/d/t.txt", "later")
            gc.collect()
        assert (fs.cat_file(f"{root}/d/b"), fs.cat_file(f"{root}/d/t.txt")) == (b"later", b"later")
        with pytest.raises(RuntimeError, match="midway"), fs.transaction:
            _fails_midway(fs.open(f"{root}/d/b", "wb"), 10)
        assert fs.cat_file(f"{root}/d/b") == b"later"
        fs.rm(f"{root}/d/b")
        with pytest.raises(FileNotFoundError):
            fs.rm(f"{root}/d/b")
        with pytest.raises(FileExistsError):
            fs.makedirs(f"{root}/d")
        fs.rm(f"{root}/d", recursive=True)
        assert not fs.exists(f"{root}/d")
        said: list[str] = []
        for change in (
            lambda root=root: fs.copy(f"{root}/d/a", f"{root}/d/z"),
            lambda root=root: fs.rmdir(f"{root}/d"),
            lambda root=root: fs.open(f"{root}/d/a", "ab"),
        ):
            with pytest.raises(bowstring.UnsupportedError) as refused:
                change()
            said.append(str(refused.value))
        assert "does not copy" in said[0]
        assert "remove directories" in said[1]
        assert "does not copy" not in said[1]
    with pytest.raises(bowstring.UnsupportedError):
        fs.mv("s3://bucket/d/a", f"{tmp_path}/a")


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_an_exception_within_an_open_file_of_fsspec_gives_it_up(
    objects: Objects, tmp_path: pathlib.Path, mode: str
) -> None:
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("bowstring.fs")

    def save(url: str, content: str, fails: bool) -> None:
        with fsspec.open(url, mode, storage_options=objects.storage_options) as file:
            file.write(content if mode == "w" else content.encode())
            if fails:
                raise RuntimeError("midway")

    for url in ("bowstring://s3://bucket/x", f"bowstring://{tmp_path}/x"):
        save(url, "whole", False)
        with pytest.raises(RuntimeError, match="midway"):
            save(url, "half", True)
        try:
            raise KeyError("over")
        except KeyError:
            # An exception that is handled outside is none of its own.
            save(f"{url}2", "whole", False)
        for name in (url, f"{url}2"):
            with fsspec.open(name, "rb", storage_options=objects.storage_options) as file:
                assert file.read() == b"whole"


def test_a_record_that_cannot_be_read_is_told_by_the_status_of_a_cache(
    opened: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    with opened(mode="wb") as file:
        file.write(b"x")
    record = tmp_path / "cache" / "saved" / f"{'0' * 32}.json"
    record.write_text('{"bowstring_save": 2}')
    status = [sys.executable, "-m", "bowstring", "cache", "status", str(tmp_path / "cache")]
    done = subprocess.run(status, capture_output=True, env=package_environment(), text=True)
    assert done.returncode == 4
    assert record.name in done.stdout
    assert "version 2" in done.stdout


_BESIDE = """
import json, logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.WARNING)
import bowstring
with bowstring.Loader("s3://bucket/d", batch_size=1, rank=0, world_size=1, **json.loads(sys.argv[1])) as loader:
    print("rows", sum(1 for _ in loader))
"""


def test_a_loader_warns_of_what_waits_for_its_upload_beside_its_files(
    objects: Objects, opened: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    table = io.BytesIO()
    parquet.write_table(pa.table({"id": [1, 2]}), table)
    objects.content["bucket/d/a.parquet"] = table.getvalue()
    options = {"cache": str(tmp_path / "cache"), "cache_bytes": "512MiB", "storage_options": objects.storage_options}
    for name, is_told in (
        ("other/b.parquet", False),
        ("d/.b.parquet", False),
        ("d/b.pt", False),
        ("d/b.parquet", True),
    ):
        objects.refuses = True
        with opened(f"s3://bucket/{name}", "wb", upload="background") as file:
            file.write(table.getvalue())
        program = [sys.executable, "-c", _BESIDE, json.dumps(options)]
        done = subprocess.run(program, capture_output=True, env=package_environment(), text=True, check=True)
        assert "rows 2" in done.stdout
        assert (f"s3://bucket/{name}" in done.stdout and "flush first" in done.stdout) == is_told, done
    objects.refuses = False
    bowstring.flush(**options)


def test_a_record_of_a_save_that_cannot_be_read_is_told_once(
    objects: Objects, opened: Callable[..., Any], tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    objects.content["bucket/x"] = b"x"
    with opened("s3://bucket/x"):
        saved = tmp_path / "cache/saved"
        saved.mkdir(exist_ok=True)
        (saved / f"{'0' * 32}.json").write_text("")
        for _ in range(3):
            with opened("s3://bucket/x") as file:
                assert file.read() == b"x"
    told = [record.getMessage() for record in caplog.records if "records of saves" in record.getMessage()]
    assert len(told) == 1, told
    assert "0000.json" in told[0]


KEPT = """
import ast, os, sys
import bowstring

options = {"cache": sys.argv[1], "cache_bytes": "32MiB", "storage_options": ast.literal_eval(sys.argv[2])}
with bowstring.open("s3://bucket/d/first", "wb", **options) as file:
    file.write(b"first" * 1000)
if len(sys.argv) > 3:
    with bowstring.open("s3://bucket/d/before", "wb", upload="background", **options) as file:
        file.write(b"before" * 3_000_000)
os._exit(0)
"""

CHANGED = """
import ast, sys
import bowstring
from bowstring.fs import BowstringFileSystem

options = {"cache": sys.argv[1], "cache_bytes": "32MiB", "storage_options": ast.literal_eval(sys.argv[2])}
fs = BowstringFileSystem(**options)
if len(sys.argv) > 3:
    bowstring.flush(cache=options["cache"], storage_options=options["storage_options"])
for name in ("a", "b"):
    with bowstring.open(f"s3://bucket/d/{name}", "wb", **options) as file:
        file.write(name.encode() * 100_000)
fs.mv("s3://bucket/d/a", "s3://bucket/d/c")
fs.rm("s3://bucket/d/b")
"""


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_full_or_read_only_disk_of_the_cache_keeps_nothing_from_the_store(
    trouble: str, objects: Objects, script: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    options = objects.storage_options
    try:
        disk = Disk(tmp_path / "disk", 64 << 20)
    except RuntimeError as error:
        pytest.skip(f"a disk of its own cannot be mounted: {error}")

    def runs(*arguments: Any) -> None:
        child = script(*arguments)
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out) == (0, ""), err

    try:
        # On a disk that is only full, what a process saved that ended before its upload is uploaded too.
        flush = ["flush"] if trouble == "full" else []
        runs(KEPT, disk.path / "cache", options, *flush)
        if trouble == "full":
            disk.fill()
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True)
        runs(CHANGED, disk.path / "cache", options, *flush)
        sizes = {"bucket/d/first": 5000, "bucket/d/c": 100_000}
        if flush:
            sizes["bucket/d/before"] = 18_000_000
        assert {name: len(content) for name, content in objects.content.items()} == sizes
    finally:
        disk.close()


UNSEEN = """
import ast, sys
import bowstring
from bowstring.fs import BowstringFileSystem

options = {"cache": sys.argv[1], "storage_options": ast.literal_eval(sys.argv[2])}
fs = BowstringFileSystem(**options, cache_bytes="32MiB")
calls = {
    "flush": fs.flush,
    "save": lambda: bowstring.open("s3://bucket/d/x", "wb", upload="background", cache_bytes="32MiB", **options),
    "flush of none": lambda: bowstring.flush(**options),
}
for name, call in calls.items():
    try:
        call()
        print(name, "returned")
    except bowstring.Error as error:
        print(name, type(error).__name__)
"""


def test_a_cache_whose_disk_fails_takes_no_background_saves_and_no_flush_of_it_succeeds(
    objects: Objects, script: Callable[..., Any], tmp_path: pathlib.Path
) -> None:
    try:
        disk = Disk(tmp_path / "disk", 64 << 20)
    except RuntimeError as error:
        pytest.skip(f"a disk of its own cannot be mounted: {error}")
    try:
        subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True)
        child = script(UNSEEN, disk.path / "cache", objects.storage_options)
        out, err = child.communicate(timeout=60)
        told = ["flush StoreError", "save StoreError", "flush of none NotFoundError"]
        assert out.splitlines() == told, err
    finally:
        disk.close()


def test_a_flush_of_a_mistyped_directory_is_an_error_and_makes_none(objects: Objects, tmp_path: pathlib.Path) -> None:
    with pytest.raises(bowstring.NotFoundError):
        bowstring.flush(cache=tmp_path / "typo", storage_options=objects.storage_options)
    assert not (tmp_path / "typo").exists()
    bowstring.flush(storage_options=objects.storage_options)


def test_uploads_of_many_files_take_turns_and_share_threads(
    objects: Objects, opened: Callable[..., Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, lock, closed, going, most = Handler.act, threading.Lock(), threading.Event(), [0], [0]

    def slow(self: Handler, path: str, query: dict[str, str], body: bytes) -> None:
        with lock:
            going[0] += 1
            most[0] = max(most[0], going[0])
        # Longer than all files take to be saved.
        closed.wait(60)
        with lock:
            going[0] -= 1
        act(self, path, query, body)

    monkeypatch.setattr(Handler, "act", slow)
    for number in range(40):
        with opened(url=f"s3://bucket/d/{number}.bin", mode="wb", upload="background") as file:
            file.write(b"bytes")
    while most[0] < 8:
        time.sleep(0.01)
    names = [task.joinpath("comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()]
    closed.set()
    bowstring.flush(cache=tmp_path / "cache", storage_options=objects.storage_options)
    assert len(objects.content) == 40
    assert most[0] == 8
    # Workers, and threads that wait for the disk.
    assert names.count("bowstring-io") < 40
