"""`bowstring.open`: the bytes of the origin in any order, files for programs that open or map them, many processes on one file."""

from __future__ import annotations

import copy
import gc
import io
import json
import mmap
import os
import pathlib
import pickle
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import bowstring
import numpy as np
import pytest
from conftest import package_environment
from objects import Objects

SIZE = (9 << 20) + 4321
SOAK = "BOWSTRING_SOAK" in os.environ


@pytest.fixture
def objects(objects: Objects) -> Objects:
    """A server with `bucket/x.bin`, whose bytes are random."""
    objects.content["bucket/x.bin"] = random.Random(1).randbytes(SIZE)
    return objects


@pytest.fixture
def opened(objects: Objects, tmp_path: pathlib.Path) -> Callable[..., bowstring.File]:
    """Opens a file of the server, through a cache."""

    def start(url: str = "s3://bucket/x.bin", **more: Any) -> bowstring.File:
        options = {"cache": tmp_path / "cache", "cache_bytes": "256MiB", "storage_options": objects.storage_options}
        return bowstring.open(url, **{**options, **more})

    return start


def test_it_is_like_a_file_of_the_builtin_open(
    objects: Objects, opened: Callable[..., bowstring.File], tmp_path: pathlib.Path
) -> None:
    seed = int(os.environ.get("FILES_SEED", random.randrange(1 << 32)))
    print(f"FILES_SEED={seed} pytest python/tests/test_files.py -k builtin")
    local = tmp_path / "x.bin"
    local.write_bytes(objects.content["bucket/x.bin"])
    ways: list[dict[str, Any]] = [
        {"cache": None, "cache_bytes": None},
        {},
        {"url": f"{objects.url}/bucket/x.bin"},
        {"url": local},
        {"url": local.as_uri()},
    ]
    for way in ways:
        draw = random.Random(seed)
        with local.open("rb") as expected, opened(**way) as file:
            for step in range(600 if SOAK else 60):
                if step == 30 and "cache" not in way:
                    # From here on, reads come from the file of this machine.
                    assert pathlib.Path(file.local_path()).read_bytes() == local.read_bytes()
                    assert os.fstat(file.fileno()).st_size == SIZE
                if draw.random() < 0.6:
                    where = draw.choice(["set", "current", "end"])
                    offset = {
                        "set": draw.randrange(SIZE + 100),
                        "current": draw.randrange(-min(expected.tell(), 90_000), 90_000),
                        "end": -draw.randrange(SIZE),
                    }[where]
                    whence = {"set": os.SEEK_SET, "current": os.SEEK_CUR, "end": os.SEEK_END}[where]
                    assert file.seek(offset, whence) == expected.seek(offset, whence)
                length = draw.choice([0, 1, 30, 5000, 1 << 16, 3 << 20, -1])
                kind = draw.choice(["read", "readinto", "numpy", "line"])
                if kind == "read":
                    assert file.read(length) == expected.read(length)
                elif kind == "readinto":
                    ours, theirs = bytearray(max(length, 0)), bytearray(max(length, 0))
                    assert file.readinto(memoryview(ours)) == expected.readinto(theirs)
                    assert ours == theirs
                elif kind == "numpy":
                    array = np.zeros(max(length, 0) // 4, np.int32)
                    want = np.zeros_like(array)
                    assert file.readinto(array) == expected.readinto(want)
                    assert np.array_equal(array, want)
                else:
                    assert file.readline(50) == expected.readline(50)
                assert file.tell() == expected.tell()


def test_its_ends_and_its_refusals(opened: Callable[..., bowstring.File]) -> None:
    file = opened()
    assert file.readable()
    assert file.seekable()
    assert not file.writable()
    assert file.mode == "rb"
    assert (file.name, file.size) == ("s3://bucket/x.bin", SIZE)
    assert file.seek(SIZE + 10) == SIZE + 10
    assert (file.read(), file.read(5), file.read1(), file.peek(3), file.readinto(bytearray(4))) == (b"",) * 4 + (0,)
    assert file.seek(-3, os.SEEK_END) == SIZE - 3
    assert len(file.peek()) == 3
    assert len(file.read(100)) == 3
    assert file.read(None) == b""
    assert file.seek(0) == 0
    assert 0 < len(file.read1(100)) <= 100
    assert 0 < file.readinto1(bytearray(100)) <= 100
    with pytest.raises(ValueError, match="negative"):
        file.seek(-1)
    with pytest.raises(ValueError, match="whence"):
        file.seek(0, 7)
    with pytest.raises(io.UnsupportedOperation, match="local_path"):
        file.fileno()
    with pytest.raises(io.UnsupportedOperation):
        file.write(b"x")
    with pytest.raises(TypeError):
        file.readinto(b"read only")
    file.close()
    file.close()
    assert file.closed
    assert "closed" in repr(file)
    for work in (file.read, file.tell, file.local_path, file.__enter__):
        with pytest.raises(ValueError, match="closed"):
            work()
    with pytest.raises(bowstring.NotFoundError), opened("s3://bucket/nothing"):
        pass
    with pytest.raises(FileNotFoundError), opened("/nothing/here"):
        pass
    with pytest.raises(bowstring.ConfigError, match="BOWSTRING_CACHE"), opened(cache=None, cache_bytes=None) as plain:
        plain.local_path()


def test_a_file_is_not_copied(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    with bowstring.open(tmp_path / "x") as file, bowstring.open(tmp_path / "y", "wb") as writer:
        writer.write(b"new")
        for one in (file, writer):
            for copied in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(bowstring.UnsupportedError, match="neither copied nor sent"):
                    copied(one)
        assert file.read() == b"old"
    assert (tmp_path / "y").read_bytes() == b"new"


def test_text_that_cannot_be_opened_is_one_error(tmp_path: pathlib.Path) -> None:
    from bowstring.fs import BowstringFileSystem

    # What a finalizer raises is a warning, and an error here.
    with warnings.catch_warnings():
        warnings.simplefilter("error", pytest.PytestUnraisableExceptionWarning)
        with pytest.raises(LookupError, match="nope"):
            BowstringFileSystem().open(str(tmp_path / "x"), "w", encoding="nope")
        gc.collect()
    assert not list(tmp_path.iterdir())


def test_text_comes_by_lines(objects: Objects, opened: Callable[..., bowstring.File]) -> None:
    text = "".join(f"line {number} ä\n" for number in range(50_000))
    objects.content["bucket/x.txt"] = text.encode()
    with io.TextIOWrapper(opened("s3://bucket/x.txt"), encoding="utf-8") as lines:
        assert list(lines) == text.splitlines(keepends=True)
    with opened("s3://bucket/x.txt") as binary:
        assert b"".join(binary) == text.encode()


def test_a_replaced_object_is_an_error_and_a_new_file_is_the_new_one(
    objects: Objects, opened: Callable[..., bowstring.File]
) -> None:
    with opened() as file, opened() as copied:
        assert file.read(100) == objects.content["bucket/x.bin"][:100]
        copy = pathlib.Path(copied.local_path()).read_bytes()
        objects.content["bucket/x.bin"] = random.Random(2).randbytes(SIZE)
        file.seek(8 << 20)
        with pytest.raises(bowstring.SourceChangedError):
            file.read(100)
        assert pathlib.Path(file.local_path()).read_bytes() == copy, "the other has made it before"
        copied.seek(0)
        assert copied.read() == copy, "it is at the old version, which is whole"
    with opened() as file:
        assert file.read() == objects.content["bucket/x.bin"] != copy


def test_a_damaged_copy_is_fetched_again(objects: Objects, opened: Callable[..., bowstring.File]) -> None:
    with opened() as file:
        path = pathlib.Path(file.local_path())
    assert objects.count() == SIZE
    damaged = bytearray(path.read_bytes())
    damaged[SIZE // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(damaged)
    with opened() as file:
        assert pathlib.Path(file.local_path()).read_bytes() == objects.content["bucket/x.bin"]
        assert file.stats()["damaged"] == 1
    assert objects.count() == SIZE


def test_a_copy_is_mapped_and_stays_while_its_file_is_open(
    objects: Objects, opened: Callable[..., bowstring.File]
) -> None:
    objects.content["bucket/y.bin"] = random.Random(2).randbytes(SIZE)
    limit = f"{(SIZE + (1 << 20)) >> 10}KiB"
    file = opened(cache_bytes=limit)
    path = file.local_path()
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with open(path, "rb") as same:
        mapped = mmap.mmap(same.fileno(), 0, access=mmap.ACCESS_READ)
    with opened("s3://bucket/y.bin", cache_bytes=limit) as other:
        with pytest.raises(bowstring.LimitError, match="cache_bytes") as error:
            other.local_path()
        assert error.value.option == "cache_bytes"
        file.close()
        with pytest.raises(bowstring.LimitError):
            other.local_path()
        assert pathlib.Path(path).exists(), "a map of its descriptor holds it too"
        held.close()
        other.local_path()
        assert not pathlib.Path(path).exists()
    assert mapped[:] == objects.content["bucket/x.bin"], "what is mapped stays mapped"


_READER = """
import hashlib, json, sys
import bowstring
way, options = sys.argv[1], json.loads(sys.argv[2])
with bowstring.open("s3://bucket/x.bin", **options) as file:
    if way == "copy":
        with open(file.local_path(), "rb") as copy:
            found = copy.read()
    else:
        found = file.read()
    print(hashlib.sha256(found).hexdigest(), json.dumps(file.stats()))
"""


@pytest.mark.parametrize("way", ["copy", "read"])
def test_many_processes_cost_the_origin_one_read(objects: Objects, tmp_path: pathlib.Path, way: str) -> None:
    options = {"cache": str(tmp_path / "cache"), "cache_bytes": "256MiB", "storage_options": objects.storage_options}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _READER, way, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=package_environment(),
            text=True,
        )
        for _ in range(24 if SOAK else 4)
    ]
    ended = [(*process.communicate(timeout=100), process.returncode) for process in started]
    assert all(code == 0 for *_, code in ended), ended
    assert len({out.split()[0] for out, *_ in ended}) == 1
    assert objects.count() == SIZE


def test_ctrl_c_ends_a_wait_for_a_store(slow_store: Callable[..., Any], script: Callable[..., Any]) -> None:
    import signal

    store = slow_store(60.0)
    program = script(
        "import bowstring, sys\n"
        "file = bowstring.open(sys.argv[1])\n"
        "print('open', flush=True)\n"
        "try:\n    file.read(10)\nexcept KeyboardInterrupt:\n    print('stopped', file.tell(), flush=True)\n"
        "import os; os._exit(0)\n",
        store.url,
    )
    assert program.stdout.readline() == "open\n"
    assert store.asked.wait(30)
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=30)[0] == "stopped 0\n"


def test_a_forked_child_is_told_to_open_its_own(objects: Objects, script: Callable[..., Any]) -> None:
    program = script(
        "import bowstring, json, os, sys\n"
        "file = bowstring.open('s3://bucket/x.bin', storage_options=json.loads(sys.argv[1]))\n"
        "first = file.read(10)\n"
        "if os.fork() == 0:\n"
        "    try:\n        file.read(10)\n"
        "    except bowstring.ClosedError as error:\n        print('spawn' in str(error), flush=True)\n"
        "    file.close()\n    os._exit(0)\n"
        "os.wait()\n"
        "print(len(first + file.read(10)))\n",
        json.dumps(objects.storage_options),
    )
    assert program.communicate(timeout=60)[0].split() == ["True", "20"]


def test_torch_and_safetensors_map_a_copy(objects: Objects, opened: Callable[..., bowstring.File]) -> None:
    torch = pytest.importorskip("torch")
    state = {f"layer{number}": torch.arange(300_000 + number, dtype=torch.float32) for number in range(5)}
    stored = io.BytesIO()
    torch.save(state, stored)
    objects.content["bucket/model.pt"] = stored.getvalue()

    def same(found: dict[str, Any]) -> bool:
        return found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)

    with opened("s3://bucket/model.pt") as file:
        assert same(torch.load(file))
        mapped = torch.load(file.local_path(), mmap=True)
        file.seek(0)
        assert same(torch.load(file))
    assert same(mapped)
    with opened("s3://bucket/model.pt", cache=None, cache_bytes=None) as file:
        assert same(torch.load(file))
        tensor = torch.empty(100, dtype=torch.uint8)
        file.seek(50)
        assert file.readinto(tensor.numpy()) == 100
        assert bytes(tensor.tolist()) == stored.getvalue()[50:150]
    safetensors = pytest.importorskip("safetensors")
    from safetensors.torch import load, save

    objects.content["bucket/model.safetensors"] = save(state)
    with opened("s3://bucket/model.safetensors") as file:
        assert same(load(file.read()))
        with safetensors.safe_open(file.local_path(), framework="pt") as tensors:
            assert same({name: tensors.get_tensor(name) for name in tensors.keys()})  # noqa: SIM118
