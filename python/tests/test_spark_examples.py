"""The examples run as shipped, and are as short as promised."""

from __future__ import annotations

import ast
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark", reason="PySpark is not installed")
from conftest import ROOT, java_home

pytestmark = pytest.mark.timeout(330)


def run(name: str, directory: pathlib.Path) -> str:
    environment = {
        **os.environ,
        "JAVA_HOME": java_home(),
        "PYTHONPATH": str(ROOT / "python"),
        "TMPDIR": str(directory),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Otherwise a line and its end are two writes, and those of several processes mix.
        "PYTHONUNBUFFERED": "",
    }
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=directory, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_spark_to_torch(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    said = run("spark_to_torch.py", tmp_path)
    lines = sorted(line for line in said.splitlines() if line.startswith("rank"))
    assert [line.partition(",")[0] for line in lines] == [
        f"rank {n}: {lines[0].split()[2]} steps of 10000 rows" for n in range(4)
    ]
    tree = ast.parse((ROOT / "examples" / "spark_to_torch.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in ("spark", "rank"):
            body = ast.unparse(node).splitlines()[2:]  # without its head and docstring
            assert len(body) <= 15, node.name


def test_spark_streaming_inference(tmp_path: pathlib.Path) -> None:
    assert "2000 rows, each once" in run("spark_streaming_inference.py", tmp_path)
