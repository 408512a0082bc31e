"""Inputs that claim or unpack to far more than they are: refused with a typed error, before memory is taken for them."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from bombs import MIB, made
from conftest import package_environment

# Bytes that a process may take for one of them. The budget of each is 128 MiB; a conversion keeps a record of up to 64 MiB, and
# grows it by doubling.
MOST = 400 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="the limit and the figures are the kernel's")
def test_bombs_are_refused_in_little_memory_and_time(tmp_path: pathlib.Path) -> None:
    bombs = list(made(tmp_path))
    assert len(bombs) >= 200
    names = tmp_path / "bombs.jsonl"
    names.write_text("\n".join(json.dumps(vars(bomb)) for bomb in bombs), encoding="utf-8")
    script = pathlib.Path(__file__).with_name("bombs.py")
    # Each arena of the allocator reserves 64 MiB of addresses.
    run = subprocess.run(
        [sys.executable, script, names],
        env=package_environment(MALLOC_ARENA_MAX="2"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, f"the process ended with {run.returncode} at {lines[-1:]}: {run.stderr[-3000:]}"
    ended = [line for line in lines if "ended" in line]
    assert len(ended) == len(bombs)
    unbounded = {
        bomb.name: f"{line['grown'] >> 20} MiB, {line['seconds']:.0f} s: {line['ended']}"
        for bomb, line in zip(bombs, ended, strict=True)
        if line["grown"] > MOST or line["seconds"] > 60
    }
    assert not unbounded
    # What the claim says is not needed to read the rows, or a picture is only a small one with much beside its pixels.
    read = [
        bomb.name for bomb, line in zip(bombs, ended, strict=True) if line["ended"].startswith(("read", "converted"))
    ]
    assert all(name.startswith(("picture: ", "forged: ")) for name in read), read
    assert len(read) < len(bombs) / 6, read
