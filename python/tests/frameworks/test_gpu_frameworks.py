"""`bowstring.jax` and `bowstring.tensorflow` with batches on a GPU, over the fake driver.

The frameworks here have no GPU, so each one's `from_dlpack` is a stand-in that does what its source does: JAX's asks for a legacy
capsule on a stream of its own, TensorFlow's takes one and reads at once. `benches/gpu_session.py` runs the real ones on
machines with CUDA.
"""

from __future__ import annotations

import pathlib

import pytest
from test_device import run

QUIET = {"PYTHONWARNINGS": "default", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}

CONSUMER = """
import weakref
from types import SimpleNamespace
cuda = ctypes.CDLL("libcuda.so.1")
get = ctypes.pythonapi.PyCapsule_GetPointer
get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
context = ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxPushCurrent_v2(context)

class Array:
    '''What a framework makes of a legacy capsule: it keeps the memory until it goes.'''
    def __init__(self, capsule):
        at = get(capsule, b"dltensor")
        word = lambda kind, offset: kind.from_address(at + offset).value
        assert word(ctypes.c_int32, 8) == 2 and word(ctypes.c_uint64, 40) == 0, "on a GPU, without an offset"
        self.data, ndim = word(ctypes.c_uint64, 0), word(ctypes.c_int32, 16)
        kind = {0: "i", 1: "u", 2: "f", 4: "bfloat", 6: "b"}[word(ctypes.c_uint8, 20)]
        self.dtype = np.dtype(f"{kind}{word(ctypes.c_uint8, 21) // 8}") if kind != "bfloat" else np.dtype("u2")
        self.shape = tuple((ctypes.c_int64 * ndim).from_address(word(ctypes.c_uint64, 24)))
        self.capsule = capsule

    def now(self):
        '''What is there, without a wait.'''
        size = int(np.prod(self.shape)) * self.dtype.itemsize
        return np.frombuffer(ctypes.string_at(self.data, size), self.dtype).reshape(self.shape)

    def on(self, stream):
        '''What `stream` will have found there.'''
        found = np.empty(self.shape, self.dtype)
        cuda.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(found.ctypes.data), ctypes.c_uint64(self.data),
                                  ctypes.c_size_t(found.nbytes), stream)
        return found

OPTIONS["tail"] = "pad"
expected = list(bowstring.Loader(PHOTOS, **OPTIONS))
"""

JAX = """
import jax, jax.numpy as jnp
import bowstring.jax
ready, compute = ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuStreamCreate(ctypes.byref(ready), 1)
cuda.cuStreamCreate(ctypes.byref(compute), 1)
event = ctypes.c_void_p()
cuda.cuEventCreate(ctypes.byref(event), 2)

def from_dlpack(tensor):
    assert tensor.__dlpack_device__() == (2, 0)
    array = Array(tensor.__dlpack__(stream=ready.value))
    # XLA's own stream waits for that one; the loader is never told of it.
    cuda.cuEventRecord(event, ready)
    cuda.cuStreamWaitEvent(compute, event, 0)
    return array

local_devices = jax.local_devices
gpu = SimpleNamespace(local_hardware_id=0)
jax.local_devices = lambda backend=None, **more: [gpu] if backend == "cuda" else local_devices(**more)
jax.dlpack.from_dlpack = from_dlpack
"""


def test_jax_gets_tensors_that_live_as_long_as_its_arrays(fake_driver: pathlib.Path) -> None:
    found = run(
        CONSUMER
        + JAX
        + """
said, reads = [], []
# Labels have 64 bits, which JAX has not: they cross the bus as 32.
loader = bowstring.jax.Loader(PHOTOS, **OPTIONS, device="cuda", device_slots=2, timeout=60)
for epoch in range(5):
    for batch in loader:
        said.append((batch["label"].dtype.name, batch["image"].shape) == ("int32", (16, 3, 32, 32)))
        # Queued on a stream that nobody named, and let go of at once: the fence must be that of the whole context.
        reads.append({name: array.on(compute) for name, array in batch.items()})
        del batch
cuda.cuStreamSynchronize(compute)
reference = bowstring.Loader(PHOTOS, **OPTIONS)
wanted = [batch for epoch in range(5) for batch in reference]
for read, mine in zip(reads, wanted, strict=True):
    for name in ("image", "label", "_mask"):
        said.append(read[name].astype(np.asarray(mine[name]).dtype).tobytes() == np.asarray(mine[name]).tobytes())
# A slot comes back when the last array of its batch goes, and no sooner.
kept = [next(loader), next(loader)]
native = loader.stats()["device"]
said.append(native["held"] == 2)
label = kept[0]["label"]
kept.clear()
deadline = __import__("time").monotonic() + 60
while loader.stats()["device"]["held"] != 1 and __import__("time").monotonic() < deadline:
    pass
said.append(loader.stats()["device"]["held"] == 1)
cuda.cuStreamSynchronize(compute)
said.append(label.shape == (16,))
print(json.dumps([all(said), len(said)]))
""",
        fake_driver,
        **QUIET,
    )
    assert found == [True, 15 + 45 + 3], found


def test_options_that_jax_cannot_support_on_a_gpu_are_refused(fake_driver: pathlib.Path) -> None:
    found = run(
        CONSUMER
        + JAX
        + """
def refused(error, text, **options):
    try:
        bowstring.jax.Loader(PHOTOS, **{**OPTIONS, "device": "cuda:0", **options})
        return "opened"
    except error as problem:
        return text in str(problem) or str(problem)
mesh = jax.make_mesh((1,), ("data",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
said = [
    refused(bowstring.ConfigError, "sharding", sharding=sharding),
    refused(bowstring.ConfigError, "to='host'", to="host"),
    refused(bowstring.ConfigError, "jax_enable_x64", row_id=True),
]
gpu.local_hardware_id = 1
said.append(refused(bowstring.DeviceError, "not this one"))
jax.config.update("jax_enable_x64", True)
gpu.local_hardware_id = 0
wide = next(iter(bowstring.jax.Loader(PHOTOS, **OPTIONS, device="cuda:0")))
said.append(wide["label"].dtype == np.int64)
# What JAX itself can do here: nothing on a GPU.
jax.local_devices = local_devices
said.append(refused(bowstring.DeviceError, "JAX sees no GPU"))
auto = bowstring.jax.Loader(PHOTOS, **OPTIONS, device="auto")
said.append(auto.device == "cpu")
jax.dlpack.from_dlpack = None
print(json.dumps(said))
""",
        fake_driver,
        **QUIET,
    )
    assert found == [True] * len(found), found


def test_tensorflow_gets_tensors_that_are_ready(fake_driver: pathlib.Path) -> None:
    found = run(
        CONSUMER
        + """
import tensorflow as tf
import bowstring.tensorflow
said = []
def refused(make, error, text):
    try:
        make(PHOTOS, **OPTIONS, device="cuda:0")
        said.append("opened")
    except error as problem:
        said.append(text in str(problem) or str(problem))
refused(bowstring.tensorflow.dataset, bowstring.ConfigError, "bowstring.tensorflow.Loader")
refused(bowstring.tensorflow.Loader, bowstring.DeviceError, "TensorFlow sees no GPU")
on_host = bowstring.tensorflow.Loader(PHOTOS, **OPTIONS, device="auto")
said.append(on_host.device == "cpu")
for batch, mine in zip(on_host, expected, strict=True):
    said.append(all(batch[name].numpy().tobytes() == np.asarray(mine[name]).tobytes() for name in mine))
said.append(bowstring.tensorflow.dataset(PHOTOS, **OPTIONS, device="auto")._loader.device == "cpu")

tf.config.list_physical_devices = lambda kind=None: ["a GPU"]
tf.experimental.dlpack.from_dlpack = Array
compute = ctypes.c_void_p()
cuda.cuStreamCreate(ctypes.byref(compute), 1)
loader = bowstring.tensorflow.Loader(PHOTOS, **OPTIONS, device="cuda:0", device_slots=2, timeout=60)
reads = []
for epoch in range(5):
    for batch in loader:
        # At once, and later on a stream that nobody named.
        reads.append([{name: array.now() for name, array in batch.items()}, {name: a.on(compute) for name, a in batch.items()}])
        del batch
cuda.cuStreamSynchronize(compute)
reference = bowstring.Loader(PHOTOS, **OPTIONS)
wanted = [batch for epoch in range(5) for batch in reference]
for pair, mine in zip(reads, wanted, strict=True):
    said += [read[name].tobytes() == np.asarray(mine[name]).tobytes() for read in pair for name in mine]
print(json.dumps([one for one in said if one is not True] + [len(said)]))
""",
        fake_driver,
        **QUIET,
    )
    assert found == [2 + 1 + 3 + 1 + 15 * 2 * 3], found


def test_without_a_gpu_the_error_names_the_framework(numbers: pathlib.Path) -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "cpu":
        pytest.skip("JAX has a GPU here")
    import bowstring.jax

    with pytest.raises(bowstring.DeviceError, match="JAX sees no GPU"):
        bowstring.jax.Loader(numbers, batch_size=4, device="cuda")
