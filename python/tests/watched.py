"""The process of ``test_watched.py`` that is watched: it reads what it is given, one after another.

``python watched.py LIST LINK``: the list has a case on each line, the link is the descriptor of a socket to whoever watches.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import pickle
import socket
import sys
import warnings
from collections.abc import Callable
from typing import Any

import bowstring
import numpy as np
import watch
from bowstring import _native
from bowstring.petastorm import make_reader

ROOT = pathlib.Path(__file__).resolve().parents[2]
out = 0


def load(path: str, **options: Any) -> str:
    """Reads a dataset."""
    with bowstring.Loader(
        path,
        batch_size=1,
        shuffle=False,
        nulls="mask",
        memory_budget="128MiB",
        threads=2,
        prefetch=1,
        timeout=60,
        **options,
    ) as loader:
        return f"read {sum(len(list(batch)) for batch in loader)} columns"


def reader(path: str) -> str:
    """Reads a dataset as users of Petastorm do."""
    with make_reader(f"file://{path}", num_epochs=1) as rows:
        return f"read {len(list(rows))} rows"


def convert(path: str, **options: Any) -> str:
    """Converts a dataset."""
    global out
    out += 1
    target = pathlib.Path(os.environ["CONVERTED"]) / f"out-{out}"
    done = bowstring.convert(path, target, memory_budget=128 << 20, jobs=1, **options)
    return f"converted {done.rows} rows"


def copy(path: str, **options: Any) -> str:
    """Opens a file of a store, and a copy of it in the cache."""
    with bowstring.open(path, **options) as file:
        return f"read {len(file.read())} bytes, copied to {file.local_path()}"


def config(path: str) -> str:
    """Checks a configuration."""
    return f"exit code {_native.command_line(['bowstring'], ['config', 'check', path])}"


def unpickle(path: str) -> str:
    """Does what nobody should with data."""
    return str(pickle.loads(pathlib.Path(path).read_bytes()))


def act(path: str) -> str:
    """Makes a call by itself."""
    if path == "os.system":
        return str(os.system("true"))
    if path == "connect":
        # A socket that was there before.
        return str(HELD.connect_ex(("127.0.0.1", 9)))
    if path == "socket":
        return str(socket.socket())
    if path == "open":
        return str(pathlib.Path(sys.argv[1]).open("a"))
    if path == "kill":
        return str(os.kill(os.getpid(), 0))
    if path == "ptrace":
        return str(ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0))
    if path == "fork":
        return str(os.fork())
    if path == "read":
        return pathlib.Path("/etc/passwd").read_text(encoding="utf-8")
    assert path == "link"
    # A file that may be read, by a name that leads out.
    return (pathlib.Path(sys.argv[1]).parent / "leads-out").read_text(encoding="utf-8")


HOW: dict[str, Callable[..., str]] = {
    "load": load,
    "reader": reader,
    "convert": convert,
    "config": config,
    "copy": copy,
    "unpickle": unpickle,
    "act": act,
}
HELD = socket.socket()


def meet(case: dict[str, Any]) -> str:
    """Does what a user would, and says how it ended."""
    try:
        return HOW[case["how"]](case["path"], **case["options"])
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__name__}: {str(error)[:200]}"


def main() -> None:
    """Reads well, and then all cases while it is watched."""
    # The command line writes to standard output.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    cases = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    # What is imported and started once, and the ways of errors.
    warm = [case for case in cases if case["options"].pop("warm", False)]
    for case in warm:
        print(json.dumps({"warm": case["name"], "ended": meet(case)}), file=lines, flush=True)
    with contextlib.closing(socket.socket(fileno=int(sys.argv[2]))) as link:
        watch.confine(link)
    for case in cases:
        watch.begin(case["name"])
        print(json.dumps({"case": case["name"], "ended": meet(case)}), file=lines, flush=True)
    # The end of the interpreter is not looked at.
    lines.flush()
    os._exit(0)


if __name__ == "__main__":
    np.zeros(1)
    main()
