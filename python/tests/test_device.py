"""Batches on a GPU: here over the fake driver of tests/fake_cuda, in separate processes, and without any driver at all.

The fake's memory is the host's, so that a tensor "on the GPU" can be read by its address.
"""

from __future__ import annotations

import ctypes.util
import json
import logging
import os
import pathlib
import subprocess
import sys
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PHOTOS = ROOT / "fixtures" / "imagenet40.parquet"
LAUNCHERS = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "SLURM_LOCALID", "BOWSTRING_RESOURCES")

HAS_DRIVER = ctypes.util.find_library("cuda") is not None
no_gpu = pytest.mark.skipif(HAS_DRIVER, reason="this machine has a CUDA driver")


def run(text: str, library: pathlib.Path | None, **variables: str) -> Any:
    """Runs the program `text` in a process that finds the driver in `library`; returns its last line, parsed as JSON."""
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    environment |= {"PYTHONPATH": str(ROOT / "python"), "PYTHONWARNINGS": "error", **variables}
    if library is not None:
        environment["LD_LIBRARY_PATH"] = f"{library}:{environment.get('LD_LIBRARY_PATH', '')}"
    program = f"PHOTOS = {str(PHOTOS)!r}\n{PRELUDE}\n{text}"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "panicked" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


PRELUDE = """
import ctypes, json, sys
import bowstring
import numpy as np
from bowstring import Image
IMAGES = {"image": Image(32, dtype="float32", normalize=([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))}
OPTIONS = dict(batch_size=16, columns=["image", "label"], images=IMAGES, shuffle=True, seed=5, tail="pad")

def rows(batch):
    found = {}
    for name, tensor in batch.items():
        if isinstance(tensor, bowstring.Tensor):
            tensor = tensor.cpu().numpy()
        found[name] = np.asarray(tensor).tobytes().hex()
    return found
"""


def test_invalid_devices_are_refused(numbers: pathlib.Path) -> None:
    for device in ("gpu", "cuda:x", "cuda:-1", "tpu:0", ""):
        with pytest.raises(bowstring.ConfigError, match="device"):
            bowstring.Loader(numbers, batch_size=4, device=device)
    with pytest.raises(bowstring.ConfigError, match="device_slots"):
        bowstring.Loader(numbers, batch_size=4, device="auto", device_slots=1)
    with pytest.raises(bowstring.ConfigError, match="context"):
        bowstring.Loader(numbers, batch_size=4, device_fence="off")  # type: ignore[arg-type]


@no_gpu
def test_without_a_gpu_cuda_is_an_error_and_auto_is_the_cpu(
    numbers: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(bowstring.DeviceError, match="cuda"):
        bowstring.Loader(numbers, batch_size=4, device="cuda")
    with pytest.raises(bowstring.DeviceError):
        bowstring.Loader(numbers, batch_size=4, device="pinned")
    expected = [batch["id"].tolist() for batch in bowstring.Loader(numbers, batch_size=32)]
    with caplog.at_level(logging.WARNING, logger="bowstring"):
        found = [batch["id"].tolist() for batch in bowstring.Loader(numbers, batch_size=32, device="auto")]
    assert found == expected
    lines = [record.getMessage() for record in caplog.records if "cpu" in record.getMessage().lower()]
    assert len(lines) == 1, caplog.text


def test_batches_of_a_gpu_are_those_of_the_cpu(fake_driver: pathlib.Path) -> None:
    for fence in ("stream", "context", "sync"):
        found = run(
            f"""
ours = bowstring.Loader(PHOTOS, **OPTIONS)
theirs = bowstring.Loader(PHOTOS, **OPTIONS, device="cuda:0", device_fence={fence!r}, device_slots=2)
assert len(ours) == len(theirs) == 3
equal = 0
for epoch in range(2):
    for mine, batch in zip(ours, theirs, strict=True):
        assert all(isinstance(tensor, bowstring.Tensor) for tensor in batch.values())
        assert {{tensor.device for tensor in batch.values()}} == {{"cuda:0"}}
        assert batch["image"].__dlpack_device__() == (2, 0)
        assert batch["image"].shape == (16, 3, 32, 32) and batch["image"].dtype == "float32"
        assert rows(batch) == rows(mine), batch
        assert ours.state_dict() == theirs.state_dict()
        equal += 1
        del batch
theirs.close()
print(json.dumps(equal))
""",
            fake_driver,
        )
        assert found == 6


def test_lists_are_padded_on_the_gpu(fake_driver: pathlib.Path, tmp_path: pathlib.Path) -> None:
    lengths = [row * 7 % 65 for row in range(90)]
    tokens = [[row * 1000 + at for at in range(length)] for row, length in enumerate(lengths)]
    small = [[at - row % 5 for at in range(length // 2)] if row % 6 else None for row, length in enumerate(lengths)]
    table = pa.table(
        {"tokens": pa.array(tokens, pa.list_(pa.int32())), "small": pa.array(small, pa.large_list(pa.int8()))}
    )
    pq.write_table(table, tmp_path / "lists.parquet", row_group_size=17)
    found = run(
        f"""
from bowstring import Padded
URL = {str(tmp_path / "lists.parquet")!r}
said = []
for padded in (Padded(64, fill=-1), Padded(40, fill=-1, truncate="left", left=True)):
    options = dict(batch_size=16, lists=padded, nulls="mask", shuffle=True, seed=5, tail="pad")
    ours = bowstring.Loader(URL, **options)
    theirs = bowstring.Loader(URL, **options, device="cuda:0", device_slots=2)
    said.append(str(ours.schema) == str(theirs.schema))
    moved = 0
    for epoch in range(2):
        for mine, batch in zip(ours, theirs, strict=True):
            assert list(mine) == list(batch) and batch["tokens"].shape == (16, padded.length)
            assert batch["tokens"].device == batch["small__lengths"].device == "cuda:0"
            said.append(rows(batch) == rows(mine))
            moved += sum(len(value) // 2 for value in rows(mine).values())
            del batch
    said.append(theirs.stats()["device"]["bytes"] < moved)
    theirs.close()
print(json.dumps(said))
""",
        fake_driver,
    )
    assert found == [True] * len(found), found
    assert len(found) == 2 * (2 + 2 * 6)


def test_a_loader_resumes_from_a_state(fake_driver: pathlib.Path) -> None:
    found = run(
        """
first = bowstring.Loader(PHOTOS, **OPTIONS, device="cuda")
taken = [rows(next(iter(first)))]
state = first.state_dict()
first.close()
second = bowstring.Loader(PHOTOS, **OPTIONS, device="cuda")
second.load_state_dict(state)
taken += [rows(batch) for batch in second]
second.set_epoch(0)
again = [rows(batch) for batch in second]
ours = bowstring.Loader(PHOTOS, **OPTIONS)
expected = [rows(batch) for batch in ours]
print(json.dumps([taken == expected, again == expected, second.epoch == ours.epoch]))
""",
        fake_driver,
    )
    assert found == [True, True, True]


def test_capsules_order_the_streams_of_both_sides(fake_driver: pathlib.Path) -> None:
    found = run(
        """
loader = bowstring.Loader(PHOTOS, **OPTIONS, device="cuda:0")
batch = next(iter(loader))
tensor = batch["label"]
said = []
for stream in (None, -1, 1, 2):
    capsule = tensor.__dlpack__(stream=stream, max_version=(1, 1))
    said.append("dltensor_versioned" in repr(capsule))
said.append('"dltensor"' in repr(tensor.__dlpack__(stream=1)))
for wrong in (dict(stream=0), dict(stream=-2), dict(stream="x"), dict(copy=True, stream=0), dict(dl_device=(2, 1)),
              dict(dl_device=(1, 0), copy=False)):
    try:
        tensor.__dlpack__(**wrong)
        said.append(str(wrong))
    except BufferError:
        said.append(True)
host = np.from_dlpack(tensor, device="cpu")
said.append(host.tolist() == tensor.cpu().numpy().tolist())
for refused in (tensor.numpy, tensor.__arrow_c_array__, lambda: np.asarray(tensor)):
    try:
        refused()
        said.append("not refused")
    except bowstring.UnsupportedError as error:
        said.append(".cpu()" in str(error))
said.append("cuda:0" in repr(tensor))
print(json.dumps(said))
""",
        fake_driver,
    )
    assert found == [True] * len(found), found


COPIES = '''
class Wrapped:
    """A consumer that keeps a capsule, as frameworks keep what they took out of it."""
    def __init__(self, capsule):
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self.capsule = capsule
        self.versioned = "dltensor_versioned" in repr(capsule)
        at = get(capsule, b"dltensor_versioned" if self.versioned else b"dltensor")
        words = (ctypes.c_uint64 * 16).from_address(at)
        self.flags = words[3] if self.versioned else None
        tensor = at + 32 if self.versioned else at
        self.data = ctypes.c_uint64.from_address(tensor).value
        self.device = tuple((ctypes.c_int32 * 2).from_address(tensor + 8))

    def labels(self):
        return list((ctypes.c_int64 * 16).from_address(self.data))
'''


def test_copies_on_the_gpu_have_their_own_memory_and_use_the_requested_stream(fake_driver: pathlib.Path) -> None:
    found = run(
        COPIES
        + """
cuda = ctypes.CDLL("libcuda.so.1")
loader = bowstring.Loader(PHOTOS, **OPTIONS, device="cuda:0", device_slots=2, timeout=60)
context, stream = ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxPushCurrent_v2(context)
cuda.cuStreamCreate(ctypes.byref(stream), 1)
said, copies = [], []
expected = [batch["label"].tolist() for batch in bowstring.Loader(PHOTOS, **OPTIONS)]
batches = iter(loader)
for number, options in enumerate([
    dict(stream=stream.value), dict(stream=stream.value, max_version=(1, 2), dl_device=(2, 0)),
    dict(stream=stream.value, max_version=(0, 8)),
]):
    tensor = next(batches)["label"]
    shared = Wrapped(tensor.__dlpack__(**options))
    copy = Wrapped(tensor.__dlpack__(**options, copy=True))
    said.append((copy.data != shared.data, copy.device == shared.device == (2, 0)))
    said.append((copy.versioned == (number == 1), copy.flags == (2 if number == 1 else None), shared.flags in (None, 0)))
    copies.append(copy)
    # Copies hold no slot: with two of them, the third batch comes, and the next epoch.
    del tensor, shared
cuda.cuStreamSynchronize(stream)
said.append([copy.labels() == labels for copy, labels in zip(copies, expected, strict=True)])
assert next(batches, None) is None
loader.set_epoch(0)
tensor = next(iter(loader))["label"]
# Nobody waits for a stream that stands still, and without one it is there at once.
cuda.fakeHold(stream, 1)
late = Wrapped(tensor.__dlpack__(stream=stream.value, copy=True))
said.append((late.labels() != expected[0],))
now = Wrapped(tensor.__dlpack__(stream=-1, copy=True))
said.append((now.labels() == expected[0],))
cuda.fakeHold(stream, 0)
cuda.cuStreamSynchronize(stream)
said.append((late.labels() == expected[0],))
# To the host it is a copy, whether asked for or not.
for options in (dict(dl_device=(1, 0)), dict(dl_device=(1, 0), copy=True, max_version=(1, 0))):
    host = Wrapped(tensor.__dlpack__(**options))
    said.append((host.device == (1, 0), host.labels() == expected[0], host.flags in (None, 2)))
for wrong in (dict(dl_device=(2, 1), copy=True), dict(dl_device=(3, 0), copy=True), dict(dl_device=(1, 0), stream=1, copy=True)):
    try:
        tensor.__dlpack__(**wrong)
        said.append(wrong)
    except BufferError:
        said.append((True,))
assert cuda.cuStreamBeginCapture_v2(stream, 0) == 0
try:
    tensor.__dlpack__(stream=stream.value, copy=True)
    said.append("a graph has a copy in it")
except bowstring.DeviceError as error:
    said.append(("graph" in str(error),))
graph = ctypes.c_void_p()
said.append((cuda.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0,))
balance = (ctypes.c_long * 8)()
loader.close()
del tensor, loader, batches, late, now, host, copies, copy
import time
deadline = time.monotonic() + 60
while cuda.fakeBalance(balance) == 0 and balance[0] and time.monotonic() < deadline:
    time.sleep(0.01)
said.append((balance[0] == 0, balance[6] == 0))
print(json.dumps(said))
""",
        fake_driver,
    )
    assert all(isinstance(one, list) and all(one) for one in found), found


def test_batches_that_are_kept_are_named_when_no_slot_is_left(fake_driver: pathlib.Path) -> None:
    found = run(
        """
loader = bowstring.Loader(PHOTOS, batch_size=4, columns="label", device="cuda", device_slots=2, timeout=2)
kept, said = [], ""
batches = iter(loader)
try:
    for batch in batches:
        kept.append(batch)
except bowstring.TimeoutError as error:
    said = str(error)
before = len(kept)
# Nothing was lost: when one is let go, the next ones come.
labels = [label for batch in kept for label in batch["label"].cpu().numpy().tolist()]
kept.clear()
del batch
for batch in batches:
    labels += batch["label"].cpu().numpy().tolist()
expected = [l for b in bowstring.Loader(PHOTOS, batch_size=4, columns="label") for l in b["label"].tolist()]
more = bowstring.Loader(PHOTOS, batch_size=4, columns="label", device="cuda", device_slots=2, device_overflow=True)
print(json.dumps([before, "device_slots" in said, labels == expected, len(list(more))]))
""",
        fake_driver,
    )
    assert found == [2, True, True, 10], found


def test_tensors_outlive_their_loader_and_no_child_touches_them(fake_driver: pathlib.Path) -> None:
    found = run(
        """
import os
loader = bowstring.Loader(PHOTOS, **OPTIONS, device="cuda")
tensor = next(iter(loader))["label"]
expected = tensor.cpu().numpy().tolist()
sys.stdout.flush()
child = os.fork()
if child == 0:
    try:
        tensor.cpu()
        os._exit(1)
    except bowstring.Error as error:
        os._exit(0 if "fork" in str(error) else 2)
_, status = os.waitpid(child, 0)
loader.close()
del loader
print(json.dumps([os.waitstatus_to_exitcode(status), tensor.cpu().numpy().tolist() == expected]))
""",
        fake_driver,
    )
    assert found == [0, True]


def test_page_locked_batches_are_the_hosts(fake_driver: pathlib.Path) -> None:
    found = run(
        """
ours = [rows(batch) for batch in bowstring.Loader(PHOTOS, **OPTIONS)]
theirs = bowstring.Loader(PHOTOS, **OPTIONS, device="pinned")
batches = [batch for batch in theirs]
print(json.dumps([all(isinstance(batch["image"], np.ndarray) for batch in batches), [rows(b) for b in batches] == ours]))
""",
        fake_driver,
    )
    assert found == [True, True]


@pytest.mark.parametrize("broken", ["100", "3", "999"])
def test_a_driver_that_does_not_work_is_named(fake_driver: pathlib.Path, broken: str) -> None:
    found = run(
        """
try:
    bowstring.Loader(PHOTOS, batch_size=4, device="cuda")
    said = "opened"
except bowstring.DeviceError as error:
    said = str(error)
auto = len(list(bowstring.Loader(PHOTOS, batch_size=16, columns="label", device="auto")))
print(json.dumps([said, auto]))
""",
        fake_driver,
        FAKE_CUDA_INIT=broken,
    )
    assert "cuda" in found[0]
    assert found[0] != "opened"
    assert found[1] == 3


def test_every_tensor_has_the_requested_type(fake_driver: pathlib.Path) -> None:
    for dtype in ("uint8", "float16", "bfloat16", "float32"):
        for layout in ("chw", "hwc"):
            found = run(
                f"""
images = {{"image": Image(size=(24, 40), dtype={dtype!r}, layout={layout!r})}}
options = dict(batch_size=16, columns=["image"], images=images, tail="pad")
ours = bowstring.Loader(PHOTOS, **options)
theirs = bowstring.Loader(PHOTOS, **options, device="cuda")
same = []
for mine, batch in zip(ours, theirs, strict=True):
    mine = mine["image"]
    raw = lambda t: ctypes.string_at(t.data_ptr, t.nbytes) if isinstance(t, bowstring.Tensor) else t.tobytes()
    same.append(raw(mine) == raw(batch["image"].cpu()))
print(json.dumps(same))
""",
                fake_driver,
            )
            assert found == [True] * 3, (dtype, layout)


NVJPEG = """
def photos(loader):
    arrays = (batch["image"] for batch in loader)
    arrays = (array.cpu().numpy() if isinstance(array, bowstring.Tensor) else array for array in arrays)
    return np.concatenate([array.astype(np.int32) for array in arrays])

image = Image(48, crop="random_resized", flip=True, draft=False)
options = dict(batch_size=16, columns=["image", "label"], shuffle=True, seed=5, tail="pad")
ours = bowstring.Loader(PHOTOS, images={"image": image}, **options)
"""


def test_nvjpeg_decodes_close_to_the_cpu(fake_driver: pathlib.Path, fake_nvjpeg: pathlib.Path) -> None:
    program = f"""
{NVJPEG}
from dataclasses import replace
theirs = bowstring.Loader(PHOTOS, images={{"image": replace(image, decoder="nvjpeg")}}, device="cuda:0", **options)
mine = photos(ours)
differ = np.abs(mine - photos(theirs)).mean(axis=(1, 2, 3))
refused = theirs.stats()["device"]["refused"]
theirs.close()
print(json.dumps([len(mine), float(differ.min()), float(differ.max()), refused, bowstring.doctor()["nvjpeg"]]))
"""
    # By its path, and in an interpreter with NVIDIA's wheels.
    wheels = str(fake_nvjpeg.parents[3])
    for variables in ({"BOWSTRING_NVJPEG": str(fake_nvjpeg)}, {"FAKE_WHEELS": wheels}):
        given = f"import os, sys\nsys.path.insert(0, os.environ.get('FAKE_WHEELS', '.'))\n{program}"
        count, least, most, refused, found = run(given, fake_driver, **variables)
        assert (count, refused) == (48, 0)
        # Padding is the same, photos are not.
        assert least == 0
        assert 0 < most <= 1.5
        if "FAKE_WHEELS" not in variables or ctypes.util.find_library("nvjpeg") is None:
            assert found == {"path": str(fake_nvjpeg), "version": "12.3.1"}


def test_nvjpeg_is_never_skipped_silently(fake_driver: pathlib.Path, numbers: pathlib.Path) -> None:
    images = {"image": bowstring.Image(8, decoder="nvjpeg")}
    with pytest.raises(bowstring.ConfigError, match='option decoder: column image: device is "cpu"'):
        bowstring.Loader(PHOTOS, batch_size=4, images=images)
    with pytest.raises(bowstring.ConfigError, match="unknown word `gpu`"):
        bowstring.Loader(PHOTOS, batch_size=4, images={"image": bowstring.Image(8, decoder="gpu")})  # type: ignore[arg-type]
    said = run(
        f"""
{NVJPEG}
try:
    bowstring.Loader(PHOTOS, images={{"image": Image(8, decoder="nvjpeg")}}, device="cuda", **options)
except bowstring.DeviceError as error:
    print(json.dumps(str(error)))
""",
        fake_driver,
        BOWSTRING_NVJPEG="/nowhere/libnvjpeg.so",
    )
    assert "tried /nowhere/libnvjpeg.so (not found)" in said
    assert "pip install nvidia-nvjpeg-cu12" in said


@no_gpu
def test_nvjpeg_falls_back_with_its_device(caplog: pytest.LogCaptureFixture) -> None:
    from bowstring.accelerator import placed

    images = {"image": bowstring.Image(8, decoder="nvjpeg")}
    with caplog.at_level(logging.WARNING):
        found = list(bowstring.Loader(PHOTOS, batch_size=20, columns="image", images=images, device="auto"))
    assert len(found) == 2
    assert [record.getMessage().startswith("device auto") for record in caplog.records] == [True]
    given = placed({"device": "auto", "images": images}, "a framework", lambda: False)
    assert given == {"device": "cpu", "images": {"image": bowstring.Image(8)}}
    given = placed({"device": "auto", "images": {"image": {"size": 8}}}, "a framework", lambda: False)
    assert given == {"device": "cpu", "images": {"image": {"size": 8, "decoder": "cpu"}}}
    for device in ("cpu", type("device", (), {"__str__": lambda self: "cpu"})()):
        assert placed({"device": device}, "a framework", lambda: False) == {"device": device}
