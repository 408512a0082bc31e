"""Many processes of one host load one checkpoint from a store: bytes that the store gives, and wall time against one reader;
and one process saves one: wall time until it is closed, against a local write, and until the store has it.

    python benches/checkpoint.py                                   24 processes, 470 MB, a store of 200 MB/s and 5 ms
    python benches/checkpoint.py --processes 4 --megabytes 100 --rate 0     without a limit of its rate
    python benches/checkpoint.py --ways save                                only saving

The store is an HTTP server in a process of its own, which speaks enough of S3 and shares its rate among all connections.
Each way is run by one process and by all: `copy` maps the copy in the cache, `read` reads through the cache, `plain` reads
without one. `save` writes a local file and flushes it to the disk, and saves with both kinds of upload.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python" / "tests"))

READER = """
import json, mmap, sys, time
import bowstring
way, options = sys.argv[1], json.loads(sys.argv[2])
sys.stdin.readline()
began = time.perf_counter()
with bowstring.open("s3://bucket/model.bin", **options) as file:
    if way == "copy":
        file.local_path()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            total = sum(mapped[at] for at in range(0, len(mapped), 4096))
    else:
        buffer = bytearray(16 << 20)
        while file.readinto(buffer):
            pass
    print(json.dumps(time.perf_counter() - began))
"""

SAVER = """
import json, os, sys, time
import bowstring
way, megabytes, options, path = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
part = os.urandom(1 << 20)
began = time.perf_counter()
if way == "local":
    with open(path, "wb") as file:
        for _ in range(megabytes):
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
else:
    with bowstring.open("s3://bucket/saved.bin", "wb", upload=way, **options) as file:
        for _ in range(megabytes):
            file.write(part)
closed = time.perf_counter() - began
if way == "background":
    bowstring.flush(**options)
print(json.dumps([closed, time.perf_counter() - began]))
"""


def save(way: str, megabytes: int, options: dict[str, Any], path: Path) -> tuple[float, float]:
    """Saves by one process; returns seconds until the file is closed, and until its store has it."""
    command = [sys.executable, "-c", SAVER, way, str(megabytes), json.dumps(options), str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    closed, stored = json.loads(done.stdout)
    return closed, stored


def saving(megabytes: int, size: int, storage: dict[str, str]) -> None:
    """Prints the table of saving."""
    print("| saved | seconds until closed | times a local write | seconds until the store has it |\n|---|---|---|---|")
    local = 0.0
    for way in ("local", "wait", "background"):
        with tempfile.TemporaryDirectory() as directory:
            options = {"storage_options": storage, "cache": f"{directory}/cache", "cache_bytes": 3 * size}
            closed, stored = save(way, megabytes, options, Path(directory, "local.bin"))
            local = local or closed
            print(f"| {way} | {closed:.2f} | {closed / local:.2f} | {stored:.2f} |", flush=True)


def serve(megabytes: int, rate: float, delay: float) -> None:
    """Serves the checkpoint until standard input ends."""
    from objects import Objects, Paced

    server = Objects(Paced(rate * 1e6, delay))
    server.content["bucket/model.bin"] = os.urandom(1 << 20) * megabytes
    print(server.url, flush=True)
    for _ in sys.stdin:
        print(server.count(), flush=True)


def load(way: str, processes: int, options: dict[str, Any]) -> float:
    """Loads in so many processes at once; returns seconds from the start of all to the end of the last."""
    command = [sys.executable, "-c", READER, way, json.dumps(options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, env=environment, **pipes) for _ in range(processes)]
    time.sleep(1 + processes * 0.2)
    began = time.perf_counter()
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in started:
        process.communicate()
        if process.returncode:
            raise SystemExit(f"a reader ended with {process.returncode}")
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=24)
    parser.add_argument("--megabytes", type=int, default=470)
    parser.add_argument("--rate", type=float, default=200.0, help="MB/s of the store, shared by all; 0: no limit")
    parser.add_argument("--delay", type=float, default=0.005, help="seconds before each answer")
    parser.add_argument("--ways", default="copy,read,plain,save")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.megabytes, given.rate, given.delay)
        return
    command = [sys.executable, __file__, "--serve", "--megabytes", str(given.megabytes), "--rate", str(given.rate)]
    command += ["--delay", str(given.delay)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None

    def count() -> int:
        server.stdin.write("\n")
        server.stdin.flush()
        return int(server.stdout.readline())

    url = server.stdout.readline().strip()
    head = urllib.request.Request(f"{url}/bucket/model.bin", method="HEAD")
    with urllib.request.urlopen(head) as answer:
        size = int(answer.headers["Content-Length"])
    storage = {"aws_endpoint": url, "aws_allow_http": "true", "aws_access_key_id": "id", "aws_secret_access_key": "s"}
    ways = given.ways.split(",")
    if ways != ["save"]:
        print("| way | processes | seconds | times one reader | bytes of the store / file |\n|---|---|---|---|---|")
    for way in ways:
        if way == "save":
            saving(given.megabytes, size, storage)
            continue
        alone = 0.0
        for processes in (1, given.processes):
            with tempfile.TemporaryDirectory() as cache:
                options: dict[str, Any] = {"storage_options": storage}
                if way != "plain":
                    options |= {"cache": cache, "cache_bytes": 3 * size}
                count()
                seconds = load(way, processes, options)
                alone = alone or seconds
                print(
                    f"| {way} | {processes} | {seconds:.2f} | {seconds / alone:.2f} | {count() / size:.3f} |",
                    flush=True,
                )
    server.stdin.close()
    server.wait(timeout=60)


if __name__ == "__main__":
    main()
