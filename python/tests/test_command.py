"""The command that the package installs: the binary's command line, run from Python."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, package_environment, run_python
from objects import Objects

BINARY = ROOT / "target" / "debug" / "bowstring"
# The same start as the package's: `bowstring.__main__:main` is the entry point too.
COMMAND = [sys.executable, "-m", "bowstring"]


def run(*arguments: str, cwd: pathlib.Path, **more: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "bowstring", *arguments, cwd=cwd, **more)


@pytest.fixture
def rows(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": list(range(1000))}), path, row_group_size=100)
    return path


def test_the_package_installs_the_tested_command() -> None:
    project = (ROOT / "python" / "pyproject.toml").read_text()
    assert re.search(r'\[project\.scripts\]\nbowstring = "bowstring\.__main__:main"\n', project)


def test_its_output_is_the_binarys(rows: pathlib.Path, tmp_path: pathlib.Path) -> None:
    if not BINARY.exists():
        pytest.skip("the binary is not built")
    for arguments in (
        ["--help"],
        ["serve", "--help"],
        ["--version"],
        ["plan", str(rows), "--batch-size", "8"],
        ["plna"],
    ):
        ours = run(*arguments, cwd=tmp_path)
        theirs = subprocess.run(
            [BINARY, *arguments],
            cwd=tmp_path,
            env=package_environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


def test_its_exit_codes_are_the_binarys(rows: pathlib.Path, tmp_path: pathlib.Path) -> None:
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 nothing of the kind")
    assert run("inspect", str(rows), cwd=tmp_path).returncode == 0
    assert run("inspect", cwd=tmp_path).returncode == 2
    damaged = run("inspect", str(broken), cwd=tmp_path)
    assert damaged.returncode == 3, damaged
    assert damaged.stderr.startswith("error: ")
    assert "Traceback" not in damaged.stderr


def test_demo_needs_nothing_but_the_package(tmp_path: pathlib.Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = run("demo", "--epochs", "1", "--json", cwd=tmp_path, TMPDIR=str(scratch))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["rows"], report["steps"]) == (40, 5)
    assert [report[f"{what}_identical"] for what in ("resume", "ranks", "served")] == [True] * 3
    assert list(scratch.iterdir()) == [], "what it wrote is gone"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_a_verb_with_its_partial_result(rows: pathlib.Path, tmp_path: pathlib.Path) -> None:
    bench = subprocess.Popen(
        [*COMMAND, "bench", str(rows), "--batch-size", "8", "--epochs", "1000000000", "--json"],
        cwd=tmp_path,
        env=package_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Nothing reports that it listens; before that, Ctrl-C ends it without a message, as it does the binary.
    caught = pathlib.Path(f"/proc/{bench.pid}/task")
    deadline = time.monotonic() + 60
    while not any((task / "comm").read_text().startswith("bowstring-signa") for task in caught.iterdir()):
        assert time.monotonic() < deadline
        assert bench.poll() is None, bench.communicate()
        time.sleep(0.05)
    time.sleep(0.5)
    bench.send_signal(signal.SIGINT)
    out, err = bench.communicate(timeout=60)
    assert bench.returncode == 130
    assert re.fullmatch(r"Interrupted after [\d,]+ of [\d,]+ steps; the figures so far:\n", err)
    assert json.loads(out)["steps"] > 0


def seen(*arguments: str, cwd: pathlib.Path) -> str:
    """What a terminal shows of standard error."""
    terminal, ours = pty.openpty()
    # Of no size, indicatif draws nothing.
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    environment = package_environment(TERM="xterm")
    command = subprocess.Popen([*COMMAND, *arguments], cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=ours)
    os.close(ours)
    parts = []
    # The end of a terminal is an error on Linux.
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    os.close(terminal)
    assert command.wait(timeout=60) == 0, parts
    return b"".join(parts).decode()


@pytest.mark.skipif(sys.platform == "win32", reason="terminals")
def test_long_work_shows_how_far_it_is_to_those_who_watch(
    rows: pathlib.Path, objects: Objects, tmp_path: pathlib.Path
) -> None:
    slow = ["bench", str(rows), "--batch-size", "25", "--consumer-ms", "80"]
    said = seen(*slow, cwd=tmp_path)
    assert re.search(r"\b(2\d|3\d)/40 steps", said), said
    assert not re.search(r"\b\d/40 steps", said), "nothing is shown in the first two seconds"
    for quiet in ("--quiet", "--json"):
        assert seen(*slow, quiet, cwd=tmp_path) == ""

    class Slow(dict[str, bytes]):
        """Objects of a store that lets everybody wait."""

        def get(self, path: str, default: Any = None) -> Any:
            time.sleep(1.5)
            return super().get(path, default)

    objects.content["x.csv"] = b"id\n1\n2\n"
    objects.content = Slow(objects.content)
    url = f"{objects.url}/x.csv"
    assert "comparing" in seen("verify", url, url, cwd=tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_a_verb_that_does_not_catch_it(tmp_path: pathlib.Path) -> None:
    # Python's own handler would only note the signal until the command line returns. One that never does stands in for it.
    waiting = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time, bowstring.__main__ as m; m._native = W = type('W', (), {})\n"
            "W.command_line = staticmethod(lambda *_: (print('up', flush=True), time.sleep(60), 0)[2])\nm.main()",
        ],
        cwd=tmp_path,
        env=package_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "up\n"
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, err) == (-signal.SIGINT, "")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_its_log_is_the_binarys_and_not_pythons(rows: pathlib.Path, tmp_path: pathlib.Path) -> None:
    server = subprocess.Popen(
        [*COMMAND, "serve", f"rows={rows}", "--listen", "127.0.0.1:0", "--print-address"],
        cwd=tmp_path,
        env=package_environment(NO_COLOR="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline().startswith("grpc://127.0.0.1:")
    server.send_signal(signal.SIGTERM)
    _, err = server.communicate(timeout=60)
    assert server.returncode == 0
    assert " INFO " in err, "a server logs events"
    assert "\x1b" not in err


def test_importing_the_package_imports_little() -> None:
    # Each of these modules would cost several milliseconds.
    code = "import sys; before = set(sys.modules); import bowstring; print(*(set(sys.modules) - before))"
    said = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r}); {code}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    imported = {name.split(".")[0] for name in said.stdout.split()}
    assert "bowstring" in imported
    foreign = imported - set(sys.stdlib_module_names) - {"bowstring"}
    assert foreign == set(), "what a user need not have installed"
    slow = "asyncio base64 concurrent ctypes decimal difflib email html http importlib_metadata ipaddress logging multiprocessing"
    slow += " pathlib socket ssl subprocess tempfile unittest urllib uuid"
    assert imported & set(slow.split()) == set()
    # The package's own that few programs need.
    assert not {f"bowstring.{name}" for name in ("certificates", "flight", "planning", "stats", "writer")} & set(
        said.stdout.split()
    )


def test_importing_the_package_takes_little(tmp_path: pathlib.Path) -> None:
    """Seconds of a processor, the least of several: against modules of the standard library, since machines differ."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**own, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONPATH": str(ROOT / "python")}

    def least(code: str) -> float:
        taken = []
        for _ in range(9):
            process = subprocess.Popen([sys.executable, "-S", "-c", code], env=environment)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0
            taken.append(used.ru_utime + used.ru_stime)
        return min(taken)

    bare = least("pass")
    standard = least("import contextlib, dataclasses, datetime, json, re, typing") - bare
    # Half of it is these modules, and a fifth the extension, which is ten times larger in a build for tests.
    assert least("import bowstring") - bare < 4 * max(standard, 0.005)


def test_names_that_are_imported_late_are_there(tmp_path: pathlib.Path) -> None:
    code = (
        "import bowstring\n"
        "assert set(bowstring.__all__) <= set(dir(bowstring))\n"
        "print(bowstring.flight.Server.__name__, bowstring.plan.__name__, bowstring.audit.__module__)\n"
        "import bowstring.certificates, bowstring.convert, bowstring.index, bowstring.planning, bowstring.writer\n"
        "print([callable(getattr(bowstring, name)) for name in ('audit', 'convert', 'index', 'plan', 'DatasetWriter')])\n"
        "from bowstring import *\n"
        "print(DatasetWriter.__name__, hasattr(bowstring, 'nothing'))\n"
    )
    done = run_python("-c", code, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "Server plan bowstring.certificates",
        str([True] * 5),
        "DatasetWriter False",
    ], done.stderr


def test_the_schema_of_a_configuration_accepts_what_the_documentation_shows(tmp_path: pathlib.Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    tomllib = pytest.importorskip("tomllib")
    printed = run("config", "schema", cwd=tmp_path)
    schema = json.loads(printed.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    pages = sorted((ROOT / "docs").glob("*.md"))
    blocks = [
        block
        for page in pages
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    ]
    blocks = [block for block in blocks if re.search(r"^\[(server|datasets)\b", block, re.MULTILINE)]
    blocks.append((ROOT / "deploy" / "kustomize" / "base" / "bowstring.toml").read_text("utf-8"))
    assert len(blocks) > 2
    for block in blocks:
        validator.validate(tomllib.loads(block))
    for wrong in (
        "[server]\nlisen = 1",
        "[server]\nthreads = 0",
        "[server.limits]\nframe_bytes = 1",
        "[datasets.x]\nurl = 'a'\nbach_size = 3",
        "[datasets.x]\nurl = 'a'\ntail = 'keep'",
        "[datasets.x]\nseed = 1",
        "[datasets.'a b']\nurl = 'a'",
    ):
        assert not validator.is_valid(tomllib.loads(wrong)), wrong
        (tmp_path / "serve.toml").write_text(wrong)
        assert run("config", "check", "serve.toml", cwd=tmp_path).returncode == 2, wrong
