"""The README as a newcomer follows it: its Python blocks run as written, and so does its server recipe."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from conftest import PHOTOS, ROOT, free_port, run_python

# Each example is a process that imports torch.
pytestmark = pytest.mark.timeout(300)

pytest.importorskip("torch", reason="the README's examples are of PyTorch")
pytest.importorskip("pyarrow", reason="the README's first example writes its Parquet with pyarrow")

TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
# The shell block of the section on the server: on one host, then for others.
RECIPE = next(code for language, code in BLOCKS if language == "sh" and "openssl" in code)


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with the photos that the README's examples use."""
    (tmp_path / "photos").mkdir()
    shutil.copy(PHOTOS, tmp_path / "photos" / "part-0.parquet")
    return tmp_path


def run(code: str, home: pathlib.Path, **environment: str) -> str:
    """Runs `code` as a separate program in `home`; returns its output."""
    done = run_python("-c", code, cwd=home, **environment)
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("code", [code for code in PYTHON if "grpc" not in code])
def test_an_example_of_the_readme_runs_as_it_stands(code: str, home: pathlib.Path) -> None:
    said = run(code, home)
    assert "print" not in code or said


def test_the_ten_lines_run_on_any_parquet(home: pathlib.Path) -> None:
    names = [
        "imagenet40.parquet",
        "spark43_parquet/flat_snappy",
        "spark43_parquet/partitioned",
        "units/parquet_mr_v1.parquet",
        "features/huggingface.parquet",
        "features/vectors_sparse.parquet",
        "petastorm/petastorm_legacy_0.7.6",
    ]
    lines = [line for line in PYTHON[0].splitlines() if line]
    assert len(lines) <= 10
    # One after another in one process, which imports torch once; each as a module of its own.
    codes = [PYTHON[0].replace('"photos/"', repr(str(ROOT / "fixtures" / name))) for name in names]
    said = run("".join(f"exec({code!r}, {{'__name__': '__main__'}})\n" for code in codes), home)
    assert len(re.findall(r"^\d+ steps, \d+ rows$", said, re.MULTILINE)) == len(names), said


def test_the_first_example_prints_what_its_comments_say(home: pathlib.Path) -> None:
    code = f"{PYTHON[1]}\nprint(features.shape[1], features.dtype, label.dtype)"
    assert run(code, home).splitlines()[-1] == "2 torch.float32 torch.int64"


@pytest.fixture
def served(home: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Runs the README's recipe for other hosts, unchanged except for host name and port; yields host:port and the token."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    port = free_port()
    recipe = RECIPE.replace("data-host", "localhost").replace("8815", str(port))
    binary = ROOT / "target" / "debug"
    server = subprocess.Popen(
        ["bash", "-euc", recipe.replace("\nbowstring serve", "\nexec bowstring serve")],
        cwd=home,
        env={**os.environ, "PATH": f"{binary}{os.pathsep}{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            assert server.poll() is None, server.communicate()[1]
            assert time.monotonic() < deadline, "the server does not listen"
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        token = (home / "tokens").read_text().strip().partition(":")[2]
        yield f"localhost:{port}", token
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_the_recipe_of_a_server_for_other_hosts_works_as_written(home: pathlib.Path, served: tuple[str, str]) -> None:
    address, token = served
    asked = [code.replace("data-host:8815", address) for code in PYTHON if "grpc" in code]
    assert len(asked) == 2
    for code in asked:
        checked = f"{code}\nassert len(loader) == 5"
        run(checked, home, BOWSTRING_TOKEN=token, BOWSTRING_TIMEOUT="60", RANK="0", WORLD_SIZE="1")
    # A client without the token is refused.
    refused = subprocess.run(
        [sys.executable, "-c", asked[0]],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "BOWSTRING_TIMEOUT": "20"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert refused.returncode != 0
    assert "UNAUTHENTICATED" in refused.stderr.upper()
