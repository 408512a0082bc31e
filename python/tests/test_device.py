"""Batches on a GPU, over the fake driver of ``tests/fake_cuda``: what Python sees of them. No framework for GPUs is needed."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import bowstring
import numpy as np
import pytest
from bowstring import Image, Loader

ROOT = pathlib.Path(__file__).parents[2]
PHOTOS = ROOT / "fixtures" / "imagenet40.parquet"

linux = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs Linux and a C compiler")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A directory with a fake libcuda.so.1."""
    directory = tmp_path_factory.mktemp("driver")
    source, kernels = ROOT / "tests" / "fake_cuda" / "cuda.c", ROOT / "src" / "device" / "cuda"
    flags = [
        "-std=gnu11",
        "-O2",
        "-ffp-contract=off",
        "-fvisibility=hidden",
        "-shared",
        "-fPIC",
        "-DFAKE_VERSION=13000",
    ]
    paths = ["-I", str(kernels), "-o", str(directory / "libcuda.so.1"), str(source)]
    subprocess.run(["cc", *flags, *paths, "-lpthread", "-lm"], check=True)
    return directory


def run(code: str, library: pathlib.Path | None, **environment: str) -> str:
    """What ``code`` prints in a process of its own, which finds its driver in ``library``."""
    paths = [str(library)] if library else []
    paths += [path for path in [os.environ.get("LD_LIBRARY_PATH")] if path]
    names = ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "SLURM_LOCALID", "BOWSTRING_RESOURCES")
    own = {name: value for name, value in os.environ.items() if name not in names}
    own |= {"LD_LIBRARY_PATH": ":".join(paths), "PHOTOS": str(PHOTOS), **environment}
    header = """
        import gc, hashlib, os
        import bowstring, numpy as np
        from bowstring import Image, Loader
        OPTIONS = dict(batch_size=6, columns=["image", "label"], seed=3, threads=2, memory_budget="256MiB")
        IMAGES = {"image": Image(size=32, dtype="float16", normalize="imagenet")}
        PHOTOS = os.environ["PHOTOS"]
    """
    script = textwrap.dedent(header) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script], env=own, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expected() -> list[str]:
    images = {"image": Image(size=32, dtype="float16", normalize="imagenet")}
    with Loader(
        PHOTOS, images=images, batch_size=6, columns=["image", "label"], seed=3, threads=2, memory_budget="256MiB"
    ) as loader:
        return [hashlib.md5(batch["image"].tobytes() + batch["label"].tobytes()).hexdigest() for batch in loader]


@linux
def test_batches_are_those_of_the_cpu(driver: pathlib.Path) -> None:
    code = """
        with Loader(PHOTOS, images=IMAGES, device="cuda:1", device_slots=3, **OPTIONS) as loader:
            assert loader.device == "cuda:1", loader.device
            for step, batch in enumerate(loader):
                image, label = batch["image"], batch["label"]
                assert image.device == "cuda:1" and image.__dlpack_device__() == (2, 1)
                assert image.shape == (6, 3, 32, 32) and image.dtype == "float16" and "device=cuda:1" in repr(image)
                assert loader.step == step + 1 == loader.state_dict()["step"]
                host = image.cpu()
                assert host.device == "cpu" and host.cpu() is host
                print(hashlib.md5(host.numpy().tobytes() + label.cpu().numpy().tobytes()).hexdigest())
            stats = loader.stats()["device"]
            assert stats["batches"] == len(loader) and stats["overflows"] == 0 and stats["allocations"] <= 3, stats
    """
    assert run(code, driver, FAKE_CUDA_DEVICES="2").split() == expected()


@linux
def test_dlpack_says_who_waits_for_whom(driver: pathlib.Path) -> None:
    code = """
        class Stream:
            def __cuda_stream__(self):
                return (0, 0)

        def refused(**asked):
            try:
                image.__dlpack__(**asked)
            except BufferError as error:
                return str(error)
            raise AssertionError(asked)

        with Loader(PHOTOS, images=IMAGES, device="cuda", **OPTIONS) as loader:
            batch = next(iter(loader))
            image = batch["image"]
            for stream in (None, 1, 2, -1, Stream()):
                assert '"dltensor"' in repr(image.__dlpack__(stream=stream))
                assert '"dltensor_versioned"' in repr(image.__dlpack__(stream=stream, max_version=(1, 0)))
            assert "ambiguous" in refused(stream=0)
            assert "-7" in refused(stream=-7)
            assert "integer" in refused(stream="x")
            assert "clone" in refused(copy=True)
            assert "(2, 0)" in refused(dl_device=(2, 5))
            assert "copy" in refused(dl_device=(1, 0), copy=False)
            assert "host memory" in refused(dl_device=(1, 0), stream=1)
            # To the host it takes a copy, which NumPy asks for by its name of the device.
            array = np.from_dlpack(image, device="cpu")
            assert (array == image.cpu().numpy()).all() and array.dtype == np.float16
            for ask in (lambda: image.numpy(), lambda: np.asarray(image)):
                try:
                    ask()
                except bowstring.UnsupportedError as error:
                    assert "cpu()" in str(error)
                else:
                    raise AssertionError
            assert image.data_ptr % 256 == 0
            del batch, image, array
            gc.collect()
            assert sum(1 for _ in loader) == 6
    """
    run(code, driver)


@linux
def test_who_keeps_all_batches_is_told(driver: pathlib.Path) -> None:
    code = """
        with Loader(PHOTOS, images=IMAGES, device="cuda", device_slots=2, timeout=10, **OPTIONS) as loader:
            batches = iter(loader)
            kept = [next(batches), next(batches)]
            try:
                next(batches)
            except bowstring.errors.TimeoutError as error:
                assert "2 batches are alive; raise device_slots or drop references" in str(error), error
            else:
                raise AssertionError
            del kept
            assert loader.step == 2
            assert next(batches)["label"].cpu().shape == (6,)
        kept = []
        with Loader(PHOTOS, images=IMAGES, device="cuda", device_slots=2, device_overflow=True, **OPTIONS) as loader:
            kept = list(loader)
        # They outlive their loader.
        assert [batch["label"].cpu().shape for batch in kept] == [(6,)] * 7
    """
    run(code, driver)


@linux
def test_a_forked_child_does_not_touch_the_device(driver: pathlib.Path) -> None:
    code = """
        with Loader(PHOTOS, images=IMAGES, device="cuda", **OPTIONS) as loader:
            batches = iter(loader)
            image = next(batches)["image"]
            child = os.fork()
            if child == 0:
                try:
                    for ask in (image.cpu, image.__dlpack__, lambda: next(batches)):
                        try:
                            ask()
                        except bowstring.ClosedError as error:
                            assert "fork" in str(error)
                        else:
                            os._exit(1)
                    del image, ask
                    os._exit(0)
                except BaseException as error:
                    print(repr(error), flush=True)
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
            assert image.cpu().shape == (6, 3, 32, 32)
            assert sum(1 for _ in batches) == 6
    """
    run(code, driver)


def test_without_a_gpu() -> None:
    code = """
        try:
            Loader(PHOTOS, images=IMAGES, device="cuda", **OPTIONS)
        except bowstring.DeviceError as error:
            assert isinstance(error, RuntimeError)
            print(error)
        else:
            print("a GPU")
        with Loader(PHOTOS, images=IMAGES, device="auto", **OPTIONS) as loader:
            assert loader.device in ("cpu", "cuda:0")
            assert sum(1 for _ in loader) == 7
    """
    assert run(code, None).startswith(("cuda", "a GPU"))


def test_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(bowstring.ConfigError, match="cuda:N"):
        Loader(PHOTOS, batch_size=4, columns="label", device="gpu")
    with pytest.raises(bowstring.ConfigError, match="device_slots"):
        Loader(PHOTOS, batch_size=4, columns="label", device_slots=1)
    monkeypatch.setenv("BOWSTRING_DEVICE", "nonsense")
    with pytest.raises(bowstring.ConfigError, match="nonsense"):
        Loader(PHOTOS, batch_size=4, columns="label")
    monkeypatch.setenv("BOWSTRING_DEVICE", "cpu")
    monkeypatch.setenv("BOWSTRING_DEVICE_SLOTS", "8")
    monkeypatch.setenv("BOWSTRING_DEVICE_OVERFLOW", "true")
    with Loader(PHOTOS, batch_size=4, columns="label") as loader:
        assert loader.device == "cpu"
        assert isinstance(next(iter(loader))["label"], np.ndarray)
