"""Batches from a server: bowstring over TCP and through shared memory, against C++ Arrow Flight, raw TCP and memcpy.

    python benches/peers/flight_pairs.py [--repeats 3] [--mib 512] [--payload photos]

Every measurement has a server process and a client process of its own; contenders take turns, and medians are printed as JSON
lines. bowstring reads and batches uncompressed Parquet while it serves; pyarrow.flight (C++) sends one batch that is in memory
already, so it is spared that work. `kept_tcp` and `kept_shared_memory` are spared it too: another reader of the same plan is ahead,
and the server has kept what it made for that one. The client keeps nothing: it takes every batch once. CPU seconds are those of
both processes while batches are taken.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq

ROOT = pathlib.Path(__file__).resolve().parents[2]
WIDTH = {"vectors": 4096, "photos": 224 * 224 * 3}
"""Bytes of one row: 1,024 float32, or a decoded photo."""


def column(payload: str, rows: int, rng: np.random.Generator) -> pa.Array:
    """Rows of a payload that do not compress."""
    if payload == "photos":
        bytes_ = rng.integers(0, 256, rows * WIDTH[payload], dtype=np.uint8)
        return pa.Array.from_buffers(pa.binary(WIDTH[payload]), rows, [None, pa.py_buffer(bytes_)])
    values = rng.random(rows * WIDTH[payload] // 4, dtype=np.float32)
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False), WIDTH[payload] // 4)
    return pa.FixedSizeListArray.from_arrays(pa.array(values), type=kind)


def dataset(directory: pathlib.Path, payload: str, mib: int) -> pathlib.Path:
    """`mib` MiB of rows of a payload, uncompressed."""
    path = directory / "fixed.parquet"
    rows = mib * (1 << 20) // WIDTH[payload]
    group = (16 << 20) // WIDTH[payload]
    rng = np.random.default_rng(0)
    schema = pa.schema([pa.field("x", column(payload, 1, rng).type, nullable=False)])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for first in range(0, rows, group):
            array = column(payload, min(group, rows - first), rng)
            writer.write_table(pa.table([array], schema=schema), row_group_size=group)
    return path


def cpp_server(payload: str, rows: int, batches: int) -> None:
    """A C++ Flight server that sends one batch ``batches`` times."""
    batch = pa.record_batch([column(payload, rows, np.random.default_rng(0))], names=["x"])

    class Server(flight.FlightServerBase):
        def do_get(self, context: Any, ticket: Any) -> Any:
            reader = pa.RecordBatchReader.from_batches(batch.schema, (batch for _ in range(batches)))
            return flight.RecordBatchStream(reader)

    server = Server("grpc://127.0.0.1:0")
    print(f"127.0.0.1:{server.port}", flush=True)
    server.serve()


class Meter:
    """Wall and CPU time from here on, of this process and of the server."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.cpu = self.used()
        self.started = time.perf_counter()

    def used(self) -> float:
        own = resource.getrusage(resource.RUSAGE_SELF)
        return own.ru_utime + own.ru_stime + (cpu(self.server) if self.server else 0.0)

    def stop(self, received: int) -> dict[str, float]:
        seconds = time.perf_counter() - self.started
        return {"bytes": received, "seconds": seconds, "cpu": self.used() - self.cpu}


def cpp_client(address: str, server: int) -> dict[str, float]:
    client = flight.connect(f"grpc://{address}")
    meter = Meter(server)
    received = 0
    for chunk in client.do_get(flight.Ticket(b"")):
        received += chunk.data.column(0).nbytes
    return meter.stop(received)


def our_client(url: str, rows: int, transport: str | None, server: int) -> dict[str, float]:
    """The second epoch; the first one warms up both sides."""
    loader = opened(url, rows, transport)
    for batch in loader:
        del batch
    meter = Meter(server)
    return meter.stop(sum(batch["x"].nbytes for batch in loader))


def kept_client(url: str, rows: int, transport: str, server: int) -> dict[str, float]:
    """Batches that another reader has already taken of an epoch that it has not finished, so that the server keeps them."""
    ahead, behind = opened(url, rows, transport), opened(url, rows, transport)
    first = iter(ahead)
    taken = min(len(ahead) * 7 // 8, len(ahead) - 12, 600)
    for _ in range(taken):
        next(first)
    before, start = decoded(url), behind.state_dict()
    # Once to warm up, and a first batch: connecting and allocating are not measured.
    batches = iter(behind)
    for _ in range(taken):
        next(batches)
    behind.load_state_dict(start)
    batches = iter(behind)
    next(batches)
    meter = Meter(server)
    found = meter.stop(sum(next(batches)["x"].nbytes for _ in range(taken - 1)))
    assert decoded(url) - before <= taken * rows // 2, "what was kept was made again"
    return found


def decoded(url: str) -> int:
    """Rows that the server has decoded so far."""
    from bowstring.flight import Connection

    with Connection(url.rpartition("/")[0]) as connection:
        return int(connection.action("stats", {})["rows_decoded"])


def opened(url: str, rows: int, transport: str | None) -> Any:
    import bowstring

    options = None if transport is None else {"transport": transport}
    return bowstring.Loader(
        url, batch_size=rows, shuffle=False, tail="drop", rank=0, world_size=1, storage_options=options
    )


def raw_server(total: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    block = memoryview(bytearray(8 << 20))
    connection, _ = listener.accept()
    for _ in range(total // len(block)):
        connection.sendall(block)
    connection.close()
    time.sleep(60)


def raw_client(address: str, server: int) -> dict[str, float]:
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)))
    block = memoryview(bytearray(8 << 20))
    meter, received = Meter(server), 0
    while some := connection.recv_into(block):
        received += some
    return meter.stop(received)


def memcpy() -> dict[str, float]:
    source, target = np.ones(40 << 20), np.zeros(40 << 20)
    meter = Meter(0)
    for _ in range(8):
        np.copyto(target, source)
    return meter.stop(8 * source.nbytes)


def cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(name: str, payload: str, rows: int, path: pathlib.Path, mib: int) -> dict[str, float]:
    """One run of one contender, in fresh processes."""
    me = [sys.executable, __file__, "--payload", payload]
    total = mib << 20
    server: list[str] | None = {
        "cpp": [*me, "--role", "cpp-server", "--rows", str(rows), "--count", str(total // (rows * WIDTH[payload]))],
        "raw": [*me, "--role", "raw-server", "--count", str(total)],
        "tcp": [
            str(ROOT / "target/release/bowstring"),
            "serve",
            f"fixed={path}",
            "--listen",
            "127.0.0.1:0",
            "--print-address",
            *(["--memory-budget", str(8 * total), "--share-bytes", str(2 * total)] if name.startswith("kept") else []),
        ],
    }.get("tcp" if name.endswith(("tcp", "shared_memory")) else name)
    address, running = "", None
    if server is not None:
        running = subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert running.stdout is not None
        address = running.stdout.readline().strip().removeprefix("grpc://")
    client = [*me, "--role", name, "--rows", str(rows), "--address", address or str(path)]
    client += ["--server", str(running.pid if running else 0)]
    found = json.loads(subprocess.run(client, check=True, stdout=subprocess.PIPE, text=True).stdout)
    if running is not None:
        running.kill()
        running.wait()
    return {"gb_s": found["bytes"] / found["seconds"] / 1e9, "cpu_s_per_gb": found["cpu"] / found["bytes"] * 1e9}


def client(role: str, rows: int, address: str, server: int) -> None:
    url = f"grpc://{address}/fixed"
    runs = {
        "cpp": lambda: cpp_client(address, server),
        "raw": lambda: raw_client(address, server),
        "tcp": lambda: our_client(url, rows, "tcp", server),
        "shared_memory": lambda: our_client(url, rows, "shared_memory", server),
        "kept_tcp": lambda: kept_client(url, rows, "tcp", server),
        "kept_shared_memory": lambda: kept_client(url, rows, "shared_memory", server),
        "local": lambda: our_client(address, rows, None, server),
        "memcpy": memcpy,
    }
    print(json.dumps(runs[role]()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--batch-kib", type=int, nargs="*", default=[64, 512, 4096, 8192, 65536])
    parser.add_argument("--payload", choices=list(WIDTH), default="vectors")
    parser.add_argument("--role")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--address", default="")
    parser.add_argument("--server", type=int, default=0, help="process of the server")
    arguments = parser.parse_args()
    if arguments.role == "cpp-server":
        return cpp_server(arguments.payload, arguments.rows, arguments.count)
    if arguments.role == "raw-server":
        return raw_server(arguments.count)
    if arguments.role:
        return client(arguments.role, arguments.rows, arguments.address, arguments.server)
    print(
        json.dumps(
            {
                "pyarrow": pa.__version__,
                "cpus": os.cpu_count(),
                "machine": platform.machine(),
                "mib": arguments.mib,
                "payload": arguments.payload,
            }
        )
    )
    with tempfile.TemporaryDirectory() as directory:
        path = dataset(pathlib.Path(directory), arguments.payload, arguments.mib)
        for kib in arguments.batch_kib:
            rows = max(1, kib * 1024 // WIDTH[arguments.payload])
            names = ["tcp", "cpp", "shared_memory", "local"]
            # A server keeps too few bytes of smaller ones to measure, and there are too few larger ones.
            names += ["kept_tcp", "kept_shared_memory"] if 512 <= kib <= 8192 else []
            names += ["raw", "memcpy"] if kib == 8192 else []
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
            for _ in range(arguments.repeats):
                for name in names:
                    runs[name].append(measure(name, arguments.payload, rows, path, arguments.mib))
            medians = {
                name: {key: round(statistics.median(run[key] for run in found), 3) for key in found[0]}
                for name, found in runs.items()
            }
            print(json.dumps({"batch_kib": kib, **medians}), flush=True)
    return None


if __name__ == "__main__":
    main()
