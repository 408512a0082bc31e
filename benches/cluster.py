"""Nodes that share one cache against nodes without one: bytes that the store gives, and bytes a second of all nodes together.

    python benches/cluster.py                                 1 and 4 nodes, 160 MB, a store of 100 MB/s and 5 ms
    python benches/cluster.py --nodes 1,2,8 --megabytes 400
    python benches/cluster.py --links 200 --ways remote --nodes 4 --readers 1,4       hosts with links of 200 Mbit/s each
    python benches/cluster.py --links 200 --ways checkpoint --nodes 1,4,8 --epochs 1  one file that all hosts open at once

Each node is a process that serves its cache (`bowstring cache serve`) and one that reads all data, in an order of its own. The
store is an HTTP server that speaks enough of S3 and shares its rate among all connections. The first epoch begins with empty
caches. The next reads what every node has a copy of (`roomy`), or, if each may take a share that is half as much again as its
part, what the homes have (`tight`). Homes that hold half of the data together (`half`), beside readers that keep nothing, keep what
is needed soonest. `plain` has no cache. Readers of `remote` keep nothing either, and the homes have all. In a
`checkpoint` run, each node wants one file of all the bytes under a path of its own (`bowstring.open(...).local_path()`).
BENCH_PACKAGE names a directory with another build of the package.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import links

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python" / "tests"))

GROUPS = 8
"""Row groups of a file."""
FILE = 16
"""Megabytes of a file."""

READER = """
import json, sys, time
from bowstring import Loader
options, epochs = json.loads(sys.argv[1]), int(sys.argv[2])
with Loader("s3://bucket/data", batch_size=64, arrow=["data"], **options) as loader:
    for _ in range(epochs):
        print("ready", flush=True)
        sys.stdin.readline()
        for batch in loader:
            pass
        print(json.dumps(loader.stats()["cache"]), flush=True)
"""

OPENER = """
import json, sys
import bowstring
options = json.loads(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
with bowstring.open("s3://bucket/checkpoint", **options) as file:
    file.local_path()
    print(json.dumps(file.stats()), flush=True)
"""


def serve(megabytes: int, rate: float, delay: float, host: str) -> None:
    """Serves the dataset, and a file of the same size, until standard input ends."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from objects import Objects, Paced

    server = Objects(Paced(rate * 1e6, delay), host)
    for number in range(max(1, megabytes // FILE)):
        rows = [os.urandom(128 << 10) for _ in range(FILE * 8)]
        file = io.BytesIO()
        table = pa.table({"data": rows})
        pq.write_table(table, file, row_group_size=FILE * 8 // GROUPS, compression="none", use_dictionary=False)
        server.content[f"bucket/data/{number:03}.parquet"] = file.getvalue()
    size = sum(map(len, server.content.values()))
    server.content["bucket/checkpoint"] = os.urandom(size)
    server.tag("bucket/checkpoint", server.content["bucket/checkpoint"])
    print(server.url, size, flush=True)
    for _ in sys.stdin:
        print(server.count(), flush=True)


class Piped:
    """A process that is told and tells lines."""

    def __init__(self, *command: object, host: links.Host | None = None) -> None:
        environment = {**os.environ, "PYTHONPATH": os.environ.get("BENCH_PACKAGE", str(ROOT / "python"))}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        here = [sys.executable, *map(str, command)]
        self.process = subprocess.Popen(host.command(*here) if host else here, env=environment, **pipes)

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended: {self.process.args}")
        return line.strip()

    def ask(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def run(
    way: str, count: int, readers_count: int, size: int, epochs: int, options: dict[str, Any], store: Piped, mbit: float
) -> list[tuple[float, int]]:
    """Runs the epochs of so many nodes and readers; returns seconds and bytes of the store for each."""
    share = {"tight": size * 3 // 2 // count, "half": size // 2 // count}.get(way, 3 * size)
    nodes: list[Piped] = []
    readers: list[Piped] = []
    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
        hosts: list[links.Host | None] = [None] * count
        if mbit:
            hosts[:] = stack.enter_context(links.hosts(count, mbit))
        if way != "plain":
            for number, host in enumerate(hosts):
                place = Path(root, str(number))
                command = [
                    "-m",
                    "bowstring",
                    "cache",
                    "serve",
                    place,
                    "--cache-bytes",
                    share,
                    "--print-address",
                    "--quiet",
                ]
                listen = ["--listen", f"{host.address}:0", "--insecure"] if host else ["--listen", "127.0.0.1:0"]
                nodes.append(Piped(*command, *listen, host=host))
            peers = [node.line() for node in nodes]
        for number, host in enumerate(hosts[:readers_count]):
            own = {**options, "seed": number}
            if way != "plain":
                own |= {"cache": str(Path(root, str(number))), "cache_bytes": share, "cache_peers": peers}
            if way in ("half", "remote"):
                # Readers that keep next to nothing and read little ahead.
                own |= {"cache": str(Path(root, f"reader-{number}")), "cache_bytes": 2 << 20}
                own |= {"memory_budget": 64 << 20, "lanes": 1, "window_rows": FILE * 8 // GROUPS}
            if way == "checkpoint":
                own = {key: value for key, value in own.items() if key.startswith(("cache", "storage"))}
                readers.append(Piped("-c", OPENER, json.dumps(own), host=host))
            else:
                readers.append(Piped("-c", READER, json.dumps(own), epochs, host=host))
        store.ask()
        store.line()
        found = []
        for _ in range(epochs):
            for reader in readers:
                reader.line()
            began = time.perf_counter()
            for reader in readers:
                reader.ask()
            stats = [json.loads(reader.line()) for reader in readers]
            took = time.perf_counter() - began
            if any(one["peer_failures"] or one["failures"] or one["refused"] for one in stats):
                print(stats, file=sys.stderr)
            # Blocks on their way to their homes.
            time.sleep(1)
            store.ask()
            found.append((took, int(store.line())))
        for process in readers + nodes:
            process.end()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1,4")
    parser.add_argument("--megabytes", type=int, default=160)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rate", type=float, default=100.0, help="MB/s of the store, shared by all; 0: no limit")
    parser.add_argument("--delay", type=float, default=0.005, help="seconds before each answer")
    parser.add_argument("--ways", default="plain,roomy,tight,half")
    parser.add_argument("--readers", help="readers, each on a node of its own; as many as nodes by default")
    parser.add_argument(
        "--links", type=float, default=0, metavar="MBIT", help="nodes are hosts with links of this rate (root)"
    )
    parser.add_argument("--serve", metavar="HOST", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.megabytes, given.rate, given.delay, given.serve)
        return
    numbers = ["--megabytes", given.megabytes, "--rate", given.rate, "--delay", given.delay]
    # With links, the store is reached by all of them: its switch is there before the hosts are.
    store = Piped(__file__, "--serve", "0.0.0.0" if given.links else "127.0.0.1", *numbers)
    url, size = store.line().split()
    storage = {"aws_endpoint": url, "aws_allow_http": "true", "aws_access_key_id": "id", "aws_secret_access_key": "s"}
    if given.links:
        url = url.replace("0.0.0.0", links.ROOT)
        storage["aws_endpoint"] = url
    print(
        "| way | nodes | readers | epoch | MB/s of all readers | bytes of the store / dataset |\n|---|---|---|---|---|---|"
    )
    for way in given.ways.split(","):
        for count in map(int, given.nodes.split(",")):
            for readers in map(int, given.readers.split(",")) if given.readers else [count]:
                options = {"storage_options": storage, "memory_budget": 256 << 20}
                epochs = run(way, count, readers, int(size), given.epochs, options, store, given.links)
                for epoch, (seconds, taken) in enumerate(epochs):
                    rate = readers * int(size) / seconds / 1e6
                    share = taken / int(size)
                    print(f"| {way} | {count} | {readers} | {epoch + 1} | {rate:.0f} | {share:.2f} |", flush=True)
    store.end()


if __name__ == "__main__":
    main()
