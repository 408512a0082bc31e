"""The journal of a rank, lines of JSON: the evidence of the audit. Times are CLOCK_MONOTONIC, one clock for all namespaces."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Writer:
    """Appends events. A committed event survives a crash of the machine, any other one a crash of the process."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "a+b", buffering=0)  # noqa: SIM115
        if self.file.tell():
            self.file.seek(-1, os.SEEK_END)
            if self.file.read(1) != b"\n":
                # A killed process left half a line.
                self.file.write(b"\n")

    def write(self, kind: str, *, commit: bool = False, **event: Any) -> None:
        line = json.dumps({"t": time.monotonic(), "e": kind, **event}, separators=(",", ":"))
        self.file.write(line.encode() + b"\n")
        if commit:
            os.fdatasync(self.file.fileno())


class Tail:
    """Reads the whole lines that were added since the last time; a torn one at the end of a killed process is not whole."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0

    def events(self) -> list[Event]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            read = file.read()
        whole = read[: read.rfind(b"\n") + 1]
        self.offset += len(whole)
        found = []
        for line in whole.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found
