"""Datasets made for the tests, and a store that can be slow."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring import Padded
from hdfs_cluster import Cluster, running
from objects import Objects
from other_stores import Blobs

# TensorFlow and Triton, which parts of torch import, bring an LLVM each, and Triton aborts the process if it loads second.
with contextlib.suppress(ImportError):
    import triton._C.libtriton  # noqa: F401

# A shell's background job ignores Ctrl-C, and so would the programs that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parents[2]
PHOTOS = ROOT / "fixtures" / "imagenet40.parquet"


def package_environment(**more: str) -> dict[str, str]:
    """Returns the environment of a Python that finds the package of this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), **more}


def run_python(
    *arguments: str, cwd: pathlib.Path, timeout: float = 100, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs a Python to its end, with ``more`` variables."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=package_environment(**more),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def needs_pyarrow(oldest: int, what: str) -> pytest.MarkDecorator:
    """Skips a test where pyarrow is older than ``oldest``, which lacks ``what``."""
    is_old = int(pa.__version__.partition(".")[0]) < oldest
    return pytest.mark.skipif(is_old, reason=f"{what} needs pyarrow {oldest}; {pa.__version__} is installed")


# A JVM of a test hardly outlives its start, in which a second compiler and the collector's threads cost more than they bring.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Tests of JVMs, frameworks and several processes, whose times depend on the load of the machine.
SHARED_MACHINE = ("test_spark_", "test_inference", "test_process", "test_gpu_session", "test_petastorm_spark")
SHARED_MACHINE += ("test_acceptance", "test_ui_page")


# Files that share one Spark, its JVM and its workers, and so one process of a parallel run. The last ones change its session.
ONE_SPARK = ("test_spark_source", "test_spark_convert", "test_spark_serve", "test_spark_access", "test_spark_inference")
ONE_SPARK += ("test_spark_types",)
ONE_SPARK += ("test_petastorm_spark", "test_spark_cluster", "test_spark_connect")
# Then the files that take longest: a long one that starts last would run alone.
LONG = (
    "test_spark_examples",
    "test_acceptance",
    "test_gpu_session",
    "test_readme",
    "test_pages",
    "test_device",
    "test_conformance",
)
ORDER = {name: place for place, name in enumerate(ONE_SPARK + LONG)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts long files first. Retries tests of a shared machine once before they count as failed; never in the soak."""
    items.sort(key=lambda item: ORDER.get(item.path.stem, len(ORDER)))
    for item in items:
        shared = item.path.name.startswith(SHARED_MACHINE) or item.path.parent.name == "frameworks"
        if shared and "BOWSTRING_SOAK" not in os.environ:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out files in this order to the processes of a parallel run, and those of Spark together."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "Spark" if pathlib.PurePath(file).stem in ONE_SPARK else file

    config.option.loadscopereorder = False
    return Files(config, log)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes tests independent of the environment variables of their launcher."""
    launchers = ("BOWSTRING_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "HOROVOD_", "MV2_", "JSM_", "FLUX_", "TPU_")
    others = ("RANK", "WORLD_SIZE", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "TF_CONFIG")
    for name in list(os.environ):
        if name in others or (name.startswith(launchers) and name != "BOWSTRING_SOAK"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real HDFS, whose name is in the environment's configuration."""
    with running(tmp_path_factory.mktemp("hdfs")) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
        patch.delenv("HADOOP_USER_NAME", raising=False)
        yield cluster


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Builds a directory with `libcuda.so.1`."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler for Linux")
    version = 13000
    source, kernels = ROOT / "tests" / "fake_cuda" / "cuda.c", ROOT / "src" / "device" / "cuda"
    digest = hashlib.sha256(source.read_bytes() + (kernels / "kernels.cu").read_bytes()).hexdigest()[:16]
    directory = tmp_path_factory.mktemp(f"fake-cuda-{digest}")
    command = [compiler, "-std=gnu11", "-O2", "-ffp-contract=off", "-fvisibility=hidden", "-shared", "-fPIC"]
    command += [f"-DFAKE_VERSION={version}", "-I", str(kernels), "-o", str(directory / "libcuda.so.1"), str(source)]
    subprocess.run([*command, "-lpthread", "-lm"], check=True, capture_output=True)
    return directory


@pytest.fixture(scope="session")
def fake_nvjpeg(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Builds an nvJPEG library that works on the streams of the fake driver, in a folder like a wheel's."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler for Linux")
    folder = tmp_path_factory.mktemp("wheels") / "nvidia" / "nvjpeg" / "lib"
    folder.mkdir(parents=True)
    (folder.parents[1] / "__init__.py").touch()
    library, source = folder / "libnvjpeg.so.12", ROOT / "tests" / "fake_cuda" / "nvjpeg.c"
    options = ["-std=gnu11", "-O2", "-fvisibility=hidden", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run([compiler, *options, "-lm", "-ldl"], check=True, capture_output=True)
    return library


@pytest.fixture
def photos() -> pathlib.Path:
    return PHOTOS


@pytest.fixture
def numbers(tmp_path: pathlib.Path) -> pathlib.Path:
    """100 rows in row groups of 13: `id`, `x` (float32), `name` (string), `tags` (list of int64)."""
    rows = 100
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "x": pa.array(np.arange(rows, dtype=np.float32) / 2),
            "name": pa.array([f"row {row}" for row in range(rows)]),
            "tags": pa.array([list(range(row % 4)) for row in range(rows)], pa.list_(pa.int64())),
        }
    )
    path = tmp_path / "numbers.parquet"
    pq.write_table(table, path, row_group_size=13)
    return path


@pytest.fixture
def kinds(tmp_path: pathlib.Path) -> pathlib.Path:
    """100 rows with every kind of column: numbers, lists, lists of lists, fixed-size lists, text, lists of text, bytes, nulls."""
    rows = range(100)
    table = pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "x": pa.array([row / 2 for row in rows], pa.float32()),
            "half": pa.array([float(row) for row in rows], pa.float32()),
            "flag": pa.array([row % 3 == 0 for row in rows]),
            "fixed": pa.array([[row, row + 1, row + 2] for row in rows], pa.list_(pa.int16(), 3)),
            "maybe": pa.array([None if row % 5 == 0 else row for row in rows], pa.int32()),
            "tags": pa.array([list(range(row % 4)) for row in rows], pa.list_(pa.int32())),
            "padded": pa.array([list(range(row % 4)) for row in rows], pa.list_(pa.int32())),
            "deep": pa.array([[[1.5] * n for n in range(row % 3)] for row in rows], pa.list_(pa.list_(pa.float32()))),
            "name": pa.array([None if row % 7 == 0 else f"row {row} ä" for row in rows]),
            "bytes": pa.array([b"\0" * (row * 9) for row in rows]),
            "words": pa.array([[f"word {n}" for n in range(row % 3)] for row in rows]),
        }
    )
    path = tmp_path / "kinds.parquet"
    pq.write_table(table, path, row_group_size=13)
    return path


# Options under which `kinds` exercises every form a loader may deliver: masks, packs, padding, bfloat16, row numbers.
EVERY_KIND: dict[str, Any] = {
    "batch_size": 8,
    "nulls": {"maybe": "mask", "name": "mask"},
    "lists": {"padded": Padded(3)},
    "cast": {"half": "bfloat16"},
    "pack": {"packed": ["x", "flag"]},
    "row_id": True,
}


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """Ray on this machine."""
    ray = pytest.importorskip("ray")
    # Set in the environment of the workers instead of a runtime_env, for which each worker would be started anew. Ray Train checks
    # every two seconds if its workers are done.
    here = {
        "PYTHONPATH": str(pathlib.Path(bowstring.__file__).parents[1]),
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in here.items():
            patch.setenv(name, value)
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            logging_level="error",
            log_to_driver=False,
            object_store_memory=100 << 20,
        )
        yield
        ray.shutdown()


class SlowStore(http.server.ThreadingHTTPServer):
    """Serves one file by ranges; each request for data, or for everything, waits for `delay` seconds."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: pathlib.Path, delay: float, everything: bool) -> None:
        self.content = path.read_bytes()
        self.delay = delay
        self.everything = everything
        # Footers are at the end, after the row groups.
        self.footer = len(self.content) - pq.ParquetFile(path).metadata.serialized_size - 8
        self.asked = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/slow.parquet"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: SlowStore
    protocol_version = "HTTP/1.1"

    def answer(self, body: bool) -> None:
        content = self.server.content
        given = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        first, last = 0, len(content) - 1
        if given and given[1]:
            first, last = int(given[1]), min(int(given[2] or last), last)
        elif given:
            first = max(len(content) - int(given[2]), 0)
        if self.server.everything or (body and last < self.server.footer):
            self.server.asked.set()
            time.sleep(self.server.delay)
        part = content[first : last + 1]
        self.send_response(206 if given else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Sat, 01 Nov 2025 00:00:00 GMT")
        if given:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        self.end_headers()
        if body:
            with contextlib.suppress(ConnectionError):  # the client left
                self.wfile.write(part)

    def do_GET(self) -> None:
        self.answer(True)

    def do_HEAD(self) -> None:
        self.answer(False)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def slow_store(tmp_path: pathlib.Path) -> Iterator[Callable[..., SlowStore]]:
    """Starts stores that delay each request for data, or for everything, by a given number of seconds."""
    started = []

    def start(delay: float, *, everything: bool = False) -> SlowStore:
        # A file whose row groups do not fit into the read that fetches the footer.
        path = tmp_path / "slow.parquet"
        rows = 400_000
        pq.write_table(
            pa.table({"id": np.random.default_rng(1).integers(0, 1 << 62, rows)}), path, row_group_size=rows // 4
        )
        store = SlowStore(path, delay, everything)
        threading.Thread(target=store.serve_forever, daemon=True).start()
        started.append(store)
        return store

    yield start
    for store in started:
        store.shutdown()
        store.server_close()


@pytest.fixture
def objects() -> Iterator[Objects]:
    """A server of objects like S3, without any."""
    server = Objects()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def blobs() -> Iterator[Blobs]:
    """A server of objects like Azure, without any."""
    server = Blobs()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def script(tmp_path: pathlib.Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python programs, each in its own process; they are killed when the test ends."""
    started = []
    package = str(pathlib.Path(bowstring.__file__).parents[1])

    def start(text: str, *arguments: object) -> subprocess.Popen[str]:
        path = tmp_path / "program.py"
        path.write_text(text)
        process = subprocess.Popen(
            [sys.executable, "-u", path, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": package},
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def free_port() -> int:
    """Returns a port without a listener, outside the range from which the system takes outgoing ports in the meantime."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


@pytest.fixture
def ranks(tmp_path: pathlib.Path) -> Iterator[Callable[..., list[Any]]]:
    """Runs a program as several ranks, as torchrun starts them; returns the last line of each, parsed as JSON."""
    started = []
    package = str(pathlib.Path(bowstring.__file__).parents[1])

    def run(
        text: str, *arguments: object, world: int = 2, env: Callable[[int], dict[str, str]] | None = None
    ) -> list[Any]:
        program = tmp_path / "ranks.py"
        # The results are written by then. The end of the interpreter is not tested: threads of C++ libraries may abort it.
        program.write_text(f"{text}\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n")
        port = str(free_port())
        logs = []
        for rank in range(world):
            torchrun = {
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(world),
                "GROUP_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TORCHELASTIC_RUN_ID": "test",
                "OMP_NUM_THREADS": "1",
            }
            log = (tmp_path / f"rank{rank}.log").open("w+")
            logs.append(log)
            started.append(
                subprocess.Popen(
                    [sys.executable, "-u", program, *map(str, arguments)],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, "PYTHONPATH": package, **(torchrun if env is None else env(rank))},
                    text=True,
                )
            )
        found = []
        deadline = time.monotonic() + 110
        for rank, process in enumerate(started):
            try:
                out, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                out = "(still running)"
            logs[rank].seek(0)
            assert process.returncode == 0, f"rank {rank}: {out}\n{logs[rank].read()[-4000:]}"
            found.append(json.loads(out.splitlines()[-1]))
        for log in logs:
            log.close()
        return found

    yield run
    for process in started:
        process.kill()
        process.communicate()


def java_home() -> str:
    """Finds Java 17 or later; skips the test without it."""
    candidates = [os.environ.get("JAVA_HOME", "")]
    on_path = shutil.which("java")
    if on_path is not None:
        candidates.append(str(pathlib.Path(on_path).resolve().parents[1]))
    candidates += sorted(str(found) for found in pathlib.Path("/usr/lib/jvm").glob("*") if found.is_dir())
    for home in candidates:
        java = pathlib.Path(home, "bin", "java")
        if home and java.exists():
            said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
            version = re.search(r'version "(\d+)', said)
            if version is not None and int(version[1]) >= 17:
                return home
    pytest.skip("Spark needs Java 17 or later: there is none at JAVA_HOME, on PATH or in /usr/lib/jvm")


@pytest.fixture(scope="session")
def spark_directory(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Directory for all files of Spark, its JVM and its Python workers."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark_sessions(spark_directory: pathlib.Path) -> Iterator[Callable[..., Any]]:
    """Opens Spark sessions by master and settings. A process has one at a time: a new one ends the previous one."""
    pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed")
    from pyspark.sql import SparkSession

    # Workers of local-cluster write to a directory below Spark's home, which tests leave unchanged.
    home = spark_directory / "home"
    home.mkdir()
    for part in pathlib.Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    packages = [str(pathlib.Path(bowstring.__file__).parents[1]), str(pathlib.Path(__file__).parent)]
    before = dict(os.environ)
    os.environ["JAVA_HOME"] = java_home()
    os.environ["SPARK_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["TMPDIR"] = str(spark_directory)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*packages, os.environ.get("PYTHONPATH"))))
    settings = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(spark_directory),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={spark_directory}",
        "spark.driver.memory": "1g",
        "spark.python.daemon.module": "spark_daemon",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.sql.warehouse.dir": str(spark_directory / "warehouse"),
    }
    running: dict[str, Any] = {}

    def session(master: str, **more: str) -> Any:
        asked = json.dumps([master, more])
        if asked not in running:
            for _, one in [running.popitem() for _ in list(running)]:
                one.stop()
            builder = SparkSession.builder.master(master).appName("bowstring")
            for name, value in {**settings, **more}.items():
                builder = builder.config(name, value)
            running[asked] = builder.getOrCreate()
            running[asked].sparkContext.setLogLevel("OFF")
        return running[asked]

    yield session
    for one in running.values():
        one.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def spark(spark_sessions: Callable[..., Any]) -> Any:
    """Spark within one process of this machine: 4 task slots, 3 tries of each task."""
    return spark_sessions("local[4,3]")
