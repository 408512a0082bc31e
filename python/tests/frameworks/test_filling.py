"""Filling tensors that the caller allocated: NumPy's and torch's here, a GPU's over the fake driver."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import bowstring
import bowstring.torch
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from bowstring import Padded
from test_device import run

OPTIONS: dict[str, Any] = {
    "batch_size": 16,
    "columns": ["id", "x", "name"],
    "shuffle": True,
    "seed": 3,
    "tail": "pad",
}
LOADERS = [bowstring.Loader, bowstring.torch.DataLoader]


def empty(loader: type[Any], shape: Any, dtype: str) -> Any:
    return np.zeros(shape, dtype) if loader is bowstring.Loader else torch.zeros(shape, dtype=getattr(torch, dtype))


@pytest.mark.parametrize("loader", LOADERS)
def test_a_batch_holds_the_callers_tensors(loader: type[Any], numbers: pathlib.Path) -> None:
    buffers = {"x": empty(loader, 16, "float32"), "id": empty(loader, 16, "int64")}
    ours, theirs = loader(numbers, **OPTIONS), loader(numbers, **OPTIONS)
    steps = 0
    for epoch in range(2):
        for mine, batch in zip(ours, theirs.into(buffers), strict=True):
            assert list(batch) == list(mine) == ["id", "x", "name", "_mask"]
            assert batch["x"] is buffers["x"]
            assert batch["id"] is buffers["id"]
            for name in ("id", "x", "_mask"):
                assert batch[name].tolist() == mine[name].tolist()
            assert list(batch["name"]) == list(mine["name"])
            # A padded tail fills the whole tensors, and the batch reports it.
            rows = 4 if ours.step == len(ours) else 16
            assert batch["_mask"].tolist() == [True] * rows + [False] * (16 - rows)
            assert ours.state_dict() == theirs.state_dict()
            steps += 1
        assert epoch + 1 == ours.epoch == theirs.epoch
    assert steps == 2 * len(ours)


def test_one_batch_and_the_end_of_the_epoch(numbers: pathlib.Path) -> None:
    loader, ids = bowstring.Loader(numbers, **OPTIONS), np.zeros(16, np.int64)
    seen = []
    while (batch := loader.next_into({"id": ids})) is not None:
        seen += ids[batch["_mask"]].tolist()
    assert sorted(seen) == list(range(100))
    assert (loader.epoch, loader.step) == (1, 0)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "bfloat16", "float64"])
def test_every_type_and_views_of_larger_tensors(dtype: str, numbers: pathlib.Path) -> None:
    options: dict[str, Any] = {"batch_size": 16, "columns": "id", "tail": "pad"}
    # The mask is the column of type bool.
    name = "_mask" if dtype == "bool" else "id"
    if dtype != "bool":
        options["cast"] = {"id": dtype}
    whole = torch.zeros(3, 16, dtype=getattr(torch, dtype))
    for mine, _ in zip(
        bowstring.torch.DataLoader(numbers, **options),
        bowstring.torch.DataLoader(numbers, **options).into({name: whole[1]}),
        strict=True,
    ):
        assert torch.equal(whole[1], mine[name])
        assert not whole[0].any()
        assert not whole[2].any()


def renewed(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)


def regrown(array: Any) -> None:
    size = array.size
    array.resize(1_000_000, refcheck=False)
    array.resize(size, refcheck=False)


MOVES: dict[str, tuple[type[Any], Callable[[Any], object]]] = {
    "set_": (bowstring.torch.DataLoader, lambda tensor: tensor.set_(torch.full((16,), -1.0))),
    "share_memory_": (bowstring.torch.DataLoader, lambda tensor: tensor.share_memory_()),
    "storage.resize_": (bowstring.torch.DataLoader, renewed),
    "numpy": (bowstring.Loader, regrown),
}


@pytest.mark.parametrize("move", MOVES)
def test_memory_that_moves_between_two_steps_is_filled_where_it_is(move: str, numbers: pathlib.Path) -> None:
    loader, moves = MOVES[move]
    static = empty(loader, 16, "float32")
    for mine, batch in zip(loader(numbers, **OPTIONS), loader(numbers, **OPTIONS).into({"x": static}), strict=True):
        assert batch["x"] is static
        assert static.tolist() == mine["x"].tolist()
        moves(static)


def test_a_tensor_that_ceases_to_fit_costs_no_batch(numbers: pathlib.Path) -> None:
    want = [batch["x"].tolist() for batch in bowstring.Loader(numbers, **OPTIONS)]
    static = torch.zeros(16)
    batches = bowstring.torch.DataLoader(numbers, **OPTIONS).into({"x": static})
    assert next(batches)["x"].tolist() == want[0]
    static.resize_(8)
    with pytest.raises(bowstring.MismatchError, match=r"found float32 \[8\]"):
        next(batches)
    static.resize_(16)
    assert next(batches)["x"].tolist() == want[1]
    static.untyped_storage().resize_(40)
    with pytest.raises(bowstring.MismatchError, match="40 bytes where its values take 64"):
        next(batches)
    static.untyped_storage().resize_(64)
    assert next(batches)["x"].tolist() == want[2]
    array = np.zeros(16, np.float32)
    batches = bowstring.Loader(numbers, **OPTIONS).into({"x": array})
    assert next(batches)["x"].tolist() == want[0]
    array.setflags(write=False)
    with pytest.raises(bowstring.MismatchError, match="written"):
        next(batches)
    assert array.tolist() == want[0]
    array.setflags(write=True)
    assert next(batches)["x"].tolist() == want[1]


def test_unsuitable_tensors_cost_no_batch_and_are_not_written(numbers: pathlib.Path) -> None:
    loader = bowstring.Loader(numbers, **OPTIONS)
    first = next(iter(bowstring.Loader(numbers, **OPTIONS)))
    good = np.full(16, -1, np.int64)
    frozen = np.zeros(16, np.float32)
    frozen.flags.writeable = False
    wrong: list[tuple[str, Any, type[Exception], str]] = [
        ("x", np.zeros(16), bowstring.MismatchError, r"expected float32 \[16\] on the host, found float64"),
        ("x", np.zeros(15, np.float32), bowstring.MismatchError, r"found float32 \[15\]"),
        ("x", np.zeros((16, 1), np.float32), bowstring.MismatchError, r"found float32 \[16, 1\]"),
        ("x", np.zeros(32, np.float32)[::2], bowstring.MismatchError, "row-major"),
        ("x", torch.zeros(32)[::2], bowstring.MismatchError, "row-major"),
        ("x", frozen, bowstring.MismatchError, "written"),
        ("x", torch.zeros(16, requires_grad=True), bowstring.MismatchError, "gradient"),
        ("x", jnp.zeros(16), bowstring.MismatchError, "JAX"),
        ("x", [0.0] * 16, bowstring.MismatchError, "__dlpack__"),
        ("x", torch.zeros(16, dtype=torch.complex64), bowstring.MismatchError, "element type"),
        ("x", good.view(np.float32)[:16], bowstring.ConfigError, "lie over each other"),
        ("y", np.zeros(16, np.float32), bowstring.NotFoundError, "it has id, x, name, _mask"),
        ("name", np.zeros(16, np.uint8), bowstring.UnsupportedError, "not a tensor"),
    ]
    for name, tensor, error, text in wrong:
        with pytest.raises(error, match=text):
            loader.next_into({"id": good, name: tensor})
        assert (loader.step, set(good.tolist())) == (0, {-1})
    with pytest.raises(bowstring.ConfigError, match="stream"):
        loader.next_into({"id": good}, stream=1)
    batch = loader.next_into({"id": good})
    assert batch is not None
    assert batch["id"].tolist() == first["id"].tolist()


def test_lists_are_filled_when_they_are_padded(numbers: pathlib.Path) -> None:
    tags, lengths = np.zeros((16, 3), np.int64), np.zeros(16, np.int64)
    ragged = bowstring.Loader(numbers, batch_size=16, columns=["id", "tags"])
    for name in ("tags__values", "tags__offsets"):
        with pytest.raises(bowstring.UnsupportedError, match="pad the lists"):
            ragged.next_into({name: np.zeros(17, np.int64)})
    # A mask has a value for each row, however long its list is.
    masked = bowstring.Loader(numbers, batch_size=16, columns=["id", "tags"], nulls="mask")
    mask = np.full(16, False)
    batch = masked.next_into({"tags__valid": mask})
    assert batch is not None
    assert mask.tolist() == batch["tags__valid"].tolist()
    assert mask.any()
    options: dict[str, Any] = {"batch_size": 16, "columns": ["tags"], "lists": {"tags": Padded(3)}, "tail": "pad"}
    padded = bowstring.Loader(numbers, **options)
    filled = bowstring.Loader(numbers, **options).into({"tags": tags, "tags__lengths": lengths})
    for mine, _ in zip(padded, filled, strict=True):
        assert (tags.tolist(), lengths.tolist()) == (mine["tags"].tolist(), mine["tags__lengths"].tolist())


def test_photos_for_channels_last(photos: pathlib.Path) -> None:
    image = bowstring.Image(16, dtype="float32", layout="hwc")
    static = torch.zeros(8, 3, 16, 16).to(memory_format=torch.channels_last)
    loader = bowstring.torch.DataLoader(photos, batch_size=8, columns="image", images={"image": image})
    with pytest.raises(bowstring.MismatchError, match="permute"):
        loader.next_into({"image": static})
    mine = next(iter(bowstring.torch.DataLoader(photos, batch_size=8, columns="image", images={"image": image})))
    loader.next_into({"image": static.permute(0, 2, 3, 1)})
    assert torch.equal(static, mine["image"].permute(0, 3, 1, 2))


GPU = """
class OnGpu:
    '''Memory of the fake GPU, as a framework that allocates by itself has it.'''
    cuda = ctypes.CDLL("libcuda.so.1")
    context = None

    def __init__(self, shape, dtype, ordinal=0):
        if OnGpu.context is None:
            OnGpu.context = ctypes.c_void_p()
            assert self.cuda.cuInit(0) == 0
            assert self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(OnGpu.context), 0) == 0
            assert self.cuda.cuCtxPushCurrent_v2(OnGpu.context) == 0
        self.array = np.empty(shape, dtype)
        self.at = ctypes.c_uint64()
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(self.at), ctypes.c_size_t(self.array.nbytes)) == 0
        self.ordinal = ordinal

    def __dlpack_device__(self):
        return (2, self.ordinal)

    def __dlpack__(self, *, stream=None, max_version=None):
        assert stream == -1, "ordered later, on the stream of each batch"
        shape = (ctypes.c_int64 * len(self.array.shape))(*self.array.shape)
        code = {"f": 2, "i": 0, "u": 1, "b": 6}[self.array.dtype.kind]
        raw = struct.pack("=IIQQQ", 1, 0, 0, 0, 0)
        raw += struct.pack("=QiiiBBHQQQ", self.at.value, 2, self.ordinal, len(shape), code, self.array.itemsize * 8, 1,
                           ctypes.addressof(shape), 0, 0)
        self.kept = (shape, ctypes.create_string_buffer(raw, len(raw)))
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.kept[1]), b"dltensor_versioned", None)

    def stream(self):
        stream = ctypes.c_void_p()
        assert self.cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
        return stream

    def read(self):
        '''What the memory holds now, without waiting for anything.'''
        ctypes.memmove(self.array.ctypes.data, self.at.value, self.array.nbytes)
        return self.array.copy()

    def read_on(self, stream):
        '''What a stream finds there when it gets there.'''
        found = np.empty_like(self.array)
        self.cuda.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(found.ctypes.data), self.at, ctypes.c_size_t(found.nbytes), stream)
        return found

import struct
"""


def test_a_gpus_tensors_are_filled_on_the_callers_stream(fake_driver: pathlib.Path) -> None:
    found = run(
        GPU
        + """
static = {"image": OnGpu((16, 3, 32, 32), "float32"), "label": OnGpu(16, "int64")}
stream = static["label"].stream()
number = stream.value
expected = [batch["label"].tolist() for batch in bowstring.Loader(PHOTOS, **OPTIONS)]
loader = bowstring.Loader(PHOTOS, **OPTIONS, device="cuda:0", device_slots=2, timeout=60)
reference = bowstring.Loader(PHOTOS, **OPTIONS)
said, reads = [], []
for epoch in range(4):
    for batch, mine in zip(loader.into(static, stream=number), reference, strict=True):
        said.append(batch["label"] is static["label"] and batch["_mask"].device == "cuda:0")
        said.append(loader.state_dict() == reference.state_dict())
        reads.append((static["image"].read_on(stream), static["label"].read_on(stream), mine))
        del batch
assert OnGpu.cuda.cuStreamSynchronize(stream) == 0
for image, label, mine in reads:
    said.append(image.tobytes() == mine["image"].tobytes() and label.tolist() == mine["label"].tolist())
# Queued on that stream and nowhere else, and nobody waits for it.
mine = iter(reference)
label = static["label"]
before = label.read().tolist()
OnGpu.cuda.fakeHold(stream, 1)
loader.next_into(static, stream=number)
said.append(label.read().tolist() == before)
OnGpu.cuda.fakeHold(stream, 0)
OnGpu.cuda.cuStreamSynchronize(stream)
said.append(label.read().tolist() == next(mine)["label"].tolist())
# Without a stream: done when it returns.
loader.next_into(static, stream=-1)
said.append(label.read().tolist() == next(mine)["label"].tolist())
print(json.dumps([all(said), len(said)]))
""",
        fake_driver,
    )
    assert found == [True, 4 * 3 * 3 + 3], found


def test_tensors_not_on_the_loaders_gpu_are_refused(fake_driver: pathlib.Path) -> None:
    found = run(
        GPU
        + """
loader = bowstring.Loader(PHOTOS, **OPTIONS, device="cuda:0")
said = []
def refused(loader, buffers, error, text, **more):
    try:
        loader.next_into(buffers, **more)
        said.append("filled")
    except error as problem:
        said.append(text in str(problem) and loader.step == 0 or str(problem))
refused(loader, {"label": np.zeros(16, np.int64)}, bowstring.MismatchError, 'device="cpu"')
refused(loader, {"label": OnGpu(16, "int64", ordinal=1)}, bowstring.MismatchError, "on cuda:1")
refused(bowstring.Loader(PHOTOS, **OPTIONS), {"label": OnGpu(16, "int64")}, bowstring.MismatchError, "open the loader")
label = OnGpu(16, "int64")
refused(loader, {"label": label}, BufferError, "stream", stream=0)
# A graph that is being recorded does not get the copy, and what was to be copied is the next batch still.
stream = label.stream()
assert OnGpu.cuda.cuStreamBeginCapture_v2(stream, 0) == 0
refused(loader, {"label": label}, bowstring.DeviceError, "graph", stream=stream.value)
graph = ctypes.c_void_p()
said.append(OnGpu.cuda.cuStreamEndCapture(stream, ctypes.byref(graph)) == 0)
loader.next_into({"label": label}, stream=stream.value)
OnGpu.cuda.cuStreamSynchronize(stream)
said.append(label.read().tolist() == next(iter(bowstring.Loader(PHOTOS, **OPTIONS)))["label"].tolist())
print(json.dumps(said))
""",
        fake_driver,
        FAKE_CUDA_DEVICES="2",
    )
    assert found == [True] * 7, found
