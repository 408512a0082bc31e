"""Batches from a server: bowstring over TCP and through shared memory, against C++ Arrow Flight, raw TCP and memcpy.

    python benches/peers/flight_pairs.py [--repeats 3] [--mib 512] [--payload photos]

Every measurement has a server process and a client process of its own; contenders take turns, and medians are printed as JSON
lines. bowstring reads and batches uncompressed Parquet while it serves; pyarrow.flight (C++) sends batches that are in memory
already, so it is spared that work. The client keeps nothing: it takes every batch once. CPU seconds are those of both processes.
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
    """A C++ Flight server that sends one batch so many times."""
    batch = pa.record_batch([column(payload, rows, np.random.default_rng(0))], names=["x"])

    class Server(flight.FlightServerBase):
        def do_get(self, context: Any, ticket: Any) -> Any:
            reader = pa.RecordBatchReader.from_batches(batch.schema, (batch for _ in range(batches)))
            return flight.RecordBatchStream(reader)

    server = Server("grpc://127.0.0.1:0")
    print(f"127.0.0.1:{server.port}", flush=True)
    server.serve()


def cpp_client(address: str) -> dict[str, float]:
    client = flight.connect(f"grpc://{address}")
    started = time.perf_counter()
    received = 0
    for chunk in client.do_get(flight.Ticket(b"")):
        received += chunk.data.column(0).nbytes
    return {"bytes": received, "seconds": time.perf_counter() - started}


def our_client(address: str, rows: int, transport: str) -> dict[str, float]:
    import bowstring

    options = {"transport": transport}
    loader = bowstring.Loader(
        f"grpc://{address}/fixed",
        batch_size=rows,
        shuffle=False,
        tail="drop",
        rank=0,
        world_size=1,
        storage_options=options,
    )
    for batch in loader:
        del batch
    started = time.perf_counter()
    received = 0
    for batch in loader:
        received += batch["x"].nbytes
    return {"bytes": received, "seconds": time.perf_counter() - started}


def local_client(path: str, rows: int) -> dict[str, float]:
    import bowstring

    loader = bowstring.Loader(path, batch_size=rows, shuffle=False, tail="drop", rank=0, world_size=1)
    for batch in loader:
        del batch
    started = time.perf_counter()
    received = sum(batch["x"].nbytes for batch in loader)
    return {"bytes": received, "seconds": time.perf_counter() - started}


def raw_server(total: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    block = memoryview(bytearray(8 << 20))
    connection, _ = listener.accept()
    for _ in range(total // len(block)):
        connection.sendall(block)
    connection.close()
    time.sleep(60)


def raw_client(address: str) -> dict[str, float]:
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)))
    block = memoryview(bytearray(8 << 20))
    started, received = time.perf_counter(), 0
    while some := connection.recv_into(block):
        received += some
    return {"bytes": received, "seconds": time.perf_counter() - started}


def memcpy() -> dict[str, float]:
    source, target = np.ones(40 << 20), np.zeros(40 << 20)
    started = time.perf_counter()
    for _ in range(8):
        np.copyto(target, source)
    return {"bytes": 8 * source.nbytes, "seconds": time.perf_counter() - started}


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
        ],
    }.get("tcp" if name in ("tcp", "shared_memory") else name)
    address, running = "", None
    if server is not None:
        running = subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert running.stdout is not None
        address = running.stdout.readline().strip().removeprefix("grpc://")
    client = [*me, "--role", name, "--rows", str(rows), "--address", address or str(path)]
    # bowstring's first epoch is for warming up both sides.
    found = json.loads(subprocess.run(client, check=True, capture_output=True, text=True).stdout)
    if running is not None:
        found["cpu"] += cpu(running.pid) / (2 if name in ("tcp", "shared_memory") else 1)
        running.kill()
        running.wait()
    return {"gb_s": found["bytes"] / found["seconds"] / 1e9, "cpu_s_per_gb": found["cpu"] / found["bytes"] * 1e9}


def client(role: str, rows: int, address: str) -> None:
    runs = {
        "cpp": lambda: cpp_client(address),
        "raw": lambda: raw_client(address),
        "tcp": lambda: our_client(address, rows, "tcp"),
        "shared_memory": lambda: our_client(address, rows, "shared_memory"),
        "local": lambda: local_client(address, rows),
        "memcpy": memcpy,
    }
    found = runs[role]()
    used = resource.getrusage(resource.RUSAGE_SELF)
    epochs = 2 if role in ("tcp", "shared_memory", "local") else 1
    found["cpu"] = (used.ru_utime + used.ru_stime) / epochs
    print(json.dumps(found))


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
    arguments = parser.parse_args()
    if arguments.role == "cpp-server":
        return cpp_server(arguments.payload, arguments.rows, arguments.count)
    if arguments.role == "raw-server":
        return raw_server(arguments.count)
    if arguments.role:
        return client(arguments.role, arguments.rows, arguments.address)
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
            names = ["tcp", "cpp", "shared_memory", "local"] + (["raw", "memcpy"] if kib == 8192 else [])
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
