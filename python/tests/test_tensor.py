"""Tensors and columns are exported over DLPack and Arrow without a copy, for every element type, and stay valid forever."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from bowstring import Error, Tensor, UnsupportedError

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
]


def values(dtype: str, shape: tuple[int, ...] = (3, 5)) -> np.ndarray:
    count = int(np.prod(shape))
    return (np.arange(count) % 2 if dtype == "bool" else np.arange(count)).reshape(shape).astype(dtype)


def tensor(array: np.ndarray) -> Tensor:
    return Tensor.from_bytes(array.tobytes(), array.shape, array.dtype.name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_and_torch_see_the_same_memory(dtype: str) -> None:
    expected = values(dtype)
    ours = tensor(expected)
    assert (ours.shape, ours.dtype, ours.ndim, ours.nbytes, len(ours)) == ((3, 5), dtype, 2, expected.nbytes, 3)
    assert ours.data_ptr % 64 == 0
    array, other = ours.numpy(), torch.from_dlpack(ours)
    assert array.ctypes.data == other.data_ptr() == ours.data_ptr
    assert array.dtype.name == dtype
    assert other.dtype == getattr(torch, dtype)
    assert array.flags.writeable
    np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(other.numpy(), expected)
    other[0, 0] = 1
    assert array[0, 0] == 1, "two views of one memory"


def test_bfloat16_goes_to_torch() -> None:
    source = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    ours = Tensor.from_bytes(source.view(torch.uint16).numpy().tobytes(), (2, 3), "bfloat16")
    other = torch.from_dlpack(ours)
    assert other.data_ptr() == ours.data_ptr
    assert torch.equal(other, source)
    with pytest.raises(UnsupportedError, match="bfloat16 in NumPy"):
        ours.numpy()


@pytest.mark.parametrize("shape", [(), (0,), (4, 0, 3), (1,), (7, 1, 2, 3)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    expected = values("int32", shape)
    ours = tensor(expected)
    np.testing.assert_array_equal(ours.numpy(), expected)
    assert tuple(torch.from_dlpack(ours).shape) == shape


@pytest.mark.parametrize(
    ("version", "name"),
    [(None, "dltensor"), ((0, 8), "dltensor"), ((1, 0), "dltensor_versioned"), ((1, 3), "dltensor_versioned")],
)
def test_both_kinds_of_capsule(version: tuple[int, int] | None, name: str) -> None:
    ours = tensor(values("int16"))
    capsule = ours.__dlpack__(max_version=version)
    assert f'"{name}"' in repr(capsule)
    other = torch.utils.dlpack.from_dlpack(capsule)
    assert other.data_ptr() == ours.data_ptr
    assert f'"used_{name}"' in repr(capsule), "the consumer owns it now"
    with pytest.raises(RuntimeError):
        torch.utils.dlpack.from_dlpack(capsule)


def test_a_copy_is_a_copy_and_foreign_devices_are_refused() -> None:
    ours = tensor(values("int64"))
    copied = np.from_dlpack(ours, copy=True)
    assert copied.ctypes.data != ours.data_ptr
    np.testing.assert_array_equal(copied, ours.numpy())
    assert ours.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError):
        ours.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError):
        ours.__dlpack__(stream=1)
    assert np.asarray(ours).ctypes.data == ours.data_ptr
    assert np.asarray(ours, dtype="float32").dtype == np.float32
    with pytest.raises(ValueError, match="needs a copy"):
        np.array(ours, dtype="float32", copy=False)


def test_capsules_consumed_or_not_give_the_memory_back() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    data = bytes(4 << 20)
    kept = []
    for round in range(300):
        ours = Tensor.from_bytes(data, (4 << 20,), "uint8")
        match round % 4:
            case 0:
                ours.__dlpack__(max_version=(1, 0))
            case 1:
                ours.__dlpack__()
            case 2:
                kept = [torch.from_dlpack(ours), ours.numpy(), pa.array(ours)]
            case 3:
                ours.__arrow_c_array__()
        del ours
        if round == 20:
            gc.collect()
            before = resident()
    kept.clear()
    gc.collect()
    assert resident() - before < 64 << 20, "280 tensors of 4 MiB would be 1.1 GiB"


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bool"])
def test_tensors_as_arrow(dtype: str) -> None:
    flat = tensor(values(dtype, (6,)))
    array = pa.array(flat)
    assert array.buffers()[1].address == flat.data_ptr
    np.testing.assert_array_equal(array.to_numpy(), flat.numpy())
    cube = tensor(values(dtype, (2, 3, 4)))
    cells = pa.array(cube)
    assert cells.type.shape == [3, 4]
    assert cells.storage.values.buffers()[1].address == cube.data_ptr
    np.testing.assert_array_equal(cells.to_numpy_ndarray(), cube.numpy())
    assert pa.field(cube).type == cells.type


def test_types_that_arrow_lacks_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="use __dlpack__"):
        pa.array(tensor(values("bool")))


def test_wrong_bytes_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 bytes do not make int16"):
        Tensor.from_bytes(b"abc", (1,), "int16")
    with pytest.raises(Error, match="no element type"):
        Tensor.from_bytes(b"abc", (1,), "int24")
    with pytest.raises(Error):
        Tensor.from_bytes(b"", (1 << 62, 1 << 62), "int64")


def test_booleans_reach_a_numpy_whose_dlpack_lacks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    given = np.from_dlpack

    def before_1_26(tensor: Tensor) -> Any:
        if tensor.dtype == "bool":
            raise RuntimeError("Unsupported dtype in DLTensor.")
        return given(tensor)

    monkeypatch.setattr(np, "from_dlpack", before_1_26)
    tensor = Tensor.from_bytes(b"\1\0\1\1\0\0", [3, 2], "bool")
    array = tensor.numpy()
    assert array.dtype == np.bool_
    assert array.tolist() == [[True, False], [True, True], [False, False]]
    assert array.ctypes.data == tensor.data_ptr
    del tensor
    gc.collect()
    assert array.sum() == 3
    assert Tensor.from_bytes(b"", [0, 4], "bool").numpy().shape == (0, 4)
    monkeypatch.delattr(np, "from_dlpack")
    with pytest.raises(UnsupportedError, match=r"NumPy before 1\.22"):
        Tensor.from_bytes(b"\0", [1], "uint8").numpy()
