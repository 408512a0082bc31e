"""A real HDFS for tests: two name nodes of which one is active, two DataNodes (scripts/servers/hdfs.sh)."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import bowstring
import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "servers" / "hdfs.sh"


def is_built_in() -> bool:
    """Returns true if this build reads HDFS."""
    try:
        bowstring.Loader("hdfs://user@nobody.invalid/x", batch_size=1)
    except bowstring.UnsupportedError:
        return False
    except bowstring.ConfigError:
        return True
    raise AssertionError("an address with a user name was taken")


class Calls(NamedTuple):
    """Numbers of calls to the name nodes."""

    blocks: int
    files: int
    listings: int


class Cluster:
    """A running cluster. A command has taken effect when its call returns."""

    name = "hdfs://bowstring"

    def __init__(self, process: subprocess.Popen[str], directory: pathlib.Path) -> None:
        self.process, self.directory, self.conf = process, directory, directory / "conf"
        self.name_nodes = (directory / "ports.txt").read_text().split()
        # Timers of tests give commands beside the test itself.
        self.lock = threading.Lock()

    def tell(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self.lock:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().strip()
        assert answer.split(" ")[0] == "ok", f"{words}: {answer}"
        return answer.removeprefix("ok").strip()

    def put(self, local: pathlib.Path, path: str) -> str:
        """Copies a file into the cluster, replacing an older one, and returns its address."""
        self.tell("put", local, path)
        return f"{self.name}{path}"

    def calls(self) -> Calls:
        return Calls(*map(int, self.tell("calls").split()))

    def heal(self) -> None:
        """Restarts killed name nodes, makes one active and leaves safe mode."""
        status = self.tell("status")
        for number in range(2):
            if f"nn{number}=down" in status:
                self.tell("start-nn", number)
        if "=active" not in self.tell("status"):
            self.tell("failover")
        self.tell("safemode", "off")


@contextmanager
def running(directory: pathlib.Path, mode: str = "ha") -> Iterator[Cluster]:
    """Runs the cluster, or skips the test with the reason why there is none; ``secure`` has Kerberos."""
    servers = pathlib.Path(os.environ.get("SERVERS", SCRIPT.parents[2] / ".servers"))
    if not is_built_in():
        pytest.skip("this build is without HDFS: cargo build --features bowstring/hdfs")
    if shutil.which("java") is None or shutil.which("bash") is None:
        pytest.skip("HDFS needs Java")
    if not (servers / "hdfs" / "lib" / ".done").exists():
        pytest.skip("Hadoop is not there: bash scripts/servers/hdfs.sh --fetch")
    with (
        (directory / "log.txt").open("w") as log,
        subprocess.Popen(
            ["bash", str(SCRIPT), str(directory), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "SERVERS": str(servers)},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "up", (directory / "log.txt").read_text()[-2000:]
            yield Cluster(process, directory)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
