"""One side of a test of mixed versions: the binary and the package of one version, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# What a call may take on a busy machine, in seconds.
PATIENCE = 90.0


class Refused(Exception):
    """What the other process raised."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class Worker:
    """A process with the package of one version, which does as it is told; see ``mixed_worker.py``."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "mixed_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=side.environment(),
        )
        self.pending = b""

    def tell(self, what: str, *arguments: Any, **named: Any) -> Worker:
        """Begins a call, whose answer :meth:`hear` returns."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([what, arguments, named]).encode() + b"\n")
        self.process.stdin.flush()
        return self

    def hear(self) -> Any:
        """The answer to the call that was begun; raises :class:`Refused`."""
        assert self.process.stdout is not None
        while b"\n" not in self.pending:
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            assert ready, f"{self.side.name} does not answer"
            read = os.read(self.process.stdout.fileno(), 1 << 20)
            assert read, f"{self.side.name} ended"
            self.pending += read
        line, _, self.pending = self.pending.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(*answer["error"])
        return answer["ok"]

    def ask(self, what: str, *arguments: Any, **named: Any) -> Any:
        """One call and its answer."""
        return self.tell(what, *arguments, **named).hear()

    def end(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]


class Daemon:
    """A running ``bowstring serve`` or ``bowstring cache serve``."""

    def __init__(self, side: Side, *arguments: str) -> None:
        self.side = side
        self.process = subprocess.Popen(
            [str(side.binary), *arguments, "--print-address"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=side.environment(),
        )
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().strip()]
        if not lines[0]:
            text = self.end()
            raise Refused("Serve", text)
        if "--admin" in arguments:
            lines.append(self.process.stdout.readline().strip())
        self.address = lines[0].split("://")[-1]
        self.admin = lines[-1].split()[-1]

    def url(self, dataset: str = "") -> str:
        """The address of a dataset."""
        return f"grpc://{self.address}/{dataset}"

    def end(self, *, kill: bool = False) -> str:
        """Ends it as an operator does, or as the kernel does, and returns what it said."""
        (self.process.kill if kill else self.process.terminate)()
        _, text = self.process.communicate(timeout=PATIENCE)
        return text


@dataclass(frozen=True)
class Side:
    """A version: a checkout that is built."""

    name: str
    home: Path

    @property
    def binary(self) -> Path:
        """The program beside the extension that the package has."""
        extension = (self.home / "python/bowstring/_native.abi3.so").resolve()
        return extension.parent / "bowstring"

    def environment(self) -> dict[str, str]:
        """The variables of its processes."""
        rest = {name: value for name, value in os.environ.items() if not name.startswith("BOWSTRING_")}
        return {**rest, "PYTHONPATH": str(self.home / "python"), "PYTHONDONTWRITEBYTECODE": "1"}

    @contextlib.contextmanager
    def worker(self) -> Iterator[Worker]:
        """A process with the package."""
        worker = Worker(self)
        try:
            yield worker
        finally:
            worker.end()

    @contextlib.contextmanager
    def serve(self, *arguments: str) -> Iterator[Daemon]:
        """A server, which is killed at the end if it is still there."""
        daemon = Daemon(self, *arguments)
        try:
            yield daemon
        finally:
            if daemon.process.poll() is None:
                daemon.process.kill()
                daemon.process.communicate()

    def run(self, *arguments: str) -> str:
        """What a command prints; raises :class:`Refused`."""
        done = subprocess.run(
            [str(self.binary), *arguments],
            capture_output=True,
            text=True,
            env=self.environment(),
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise Refused(f"exit {done.returncode}", done.stderr)
        return done.stdout
