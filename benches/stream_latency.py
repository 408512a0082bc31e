"""The latency that a model's server adds to a row: 5,000 requests of one row each second, micro-batches by size or deadline.

    python benches/stream_latency.py [--rate 5000] [--seconds 20] [--deadline-ms 20] [--batch-size 256] [--repeats 3] [--frozen]

The server is a process of its own, whose model costs nothing, so that all latency is the server's. Requests leave at a steady
pace; a row's latency (`latency_ms`) runs from the moment that it was due until its answer has arrived, so that a client that
falls behind does not pass for a fast server; its delay in sending and the time from there to its answer are reported too
(`sent_late_ms`, `answer_ms`), and each pause of the client by Python's garbage collector (`collector_ms`); `--frozen` exempts
imported objects from it.

The latency of the machine itself is measured as well. At the same time, by another process: the delay of the end of a sleep of
1 ms (`sleep_ms`), and the round trip of a byte over loopback (`loopback_ms`). Right afterwards: the delays of a process that
keeps the same pace, computes for as long as the client did, and sends no requests (`pace_ms`). On a busy machine these are most
of the latency.

Milliseconds, one JSON line for each run. Ids are checked: each has its own answer.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

HIGHEST = (0.5, 0.99, 1.0)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum of seconds, in milliseconds."""
    ordered = sorted(values)
    named = zip(("p50", "p99", "max"), HIGHEST, strict=True)
    return {name: round(1e3 * ordered[min(int(part * len(ordered)), len(ordered) - 1)], 2) for name, part in named}


def serve(deadline_ms: float, batch_size: int) -> None:
    """The server's process, which ends with its standard input."""
    from bowstring.inference import serve_model

    with serve_model(lambda batch: {"id": batch["id"]}, batch_size=batch_size, deadline_ms=deadline_ms) as server:
        print(server.url, flush=True)
        sys.stdin.read()
        print(json.dumps({**server.stats(), "server_cpu_s": round(time.process_time(), 1)}), flush=True)


def noise() -> None:
    """The machine's own latency: sleeps and round trips until standard input ends."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    late: list[float] = []
    trips: list[float] = []

    def echo(end: socket.socket) -> None:
        with end:
            while byte := end.recv(1):
                end.sendall(byte)

    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=echo, args=(far,), daemon=True).start()
    while not ended.is_set():
        begun = time.perf_counter()
        time.sleep(0.001)
        slept = time.perf_counter()
        late.append(slept - begun - 0.001)
        near.sendall(b"x")
        near.recv(1)
        trips.append(time.perf_counter() - slept)
    print(json.dumps({"sleep_ms": percentiles(late), "loopback_ms": percentiles(trips)}), flush=True)


def pace(rate: float, busy: float, count: int) -> dict[str, Any]:
    """Delays of requests without a server: each costs ``busy`` of the time until the next."""
    begun = time.perf_counter() + 0.01
    late: list[float] = []
    for number in range(count):
        due = begun + number / rate
        wait = due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        late.append(time.perf_counter() - due)
        end = time.perf_counter() + busy / rate
        while time.perf_counter() < end:
            pass
    return {"pace_ms": percentiles(late)}


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs this file again, in another role."""
    command = [sys.executable, __file__, *arguments]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def said(running: subprocess.Popen[str]) -> dict[str, Any]:
    """The final output of a process."""
    return dict(json.loads(running.communicate()[0]))


@contextlib.contextmanager
def collected() -> Iterator[list[float]]:
    """Seconds for which Python's garbage collector stopped all threads, for each run."""
    pauses: list[float] = []
    begun = 0.0

    def note(phase: str, _: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.perf_counter()
        else:
            pauses.append(time.perf_counter() - begun)

    gc.callbacks.append(note)
    try:
        yield pauses
    finally:
        gc.callbacks.remove(note)


def client(url: str, rate: float, count: int, frozen: bool) -> dict[str, Any]:
    """Sends ``count`` rows to the server, one request each, and returns their latencies."""
    import pyarrow as pa
    from bowstring.inference import ModelClient

    def row(number: int) -> Any:
        return pa.record_batch({"id": pa.array([number], pa.int64())})

    at, sent = array("d", bytes(8 * count)), array("d", bytes(8 * count))
    answers = array("q", [-1]) * count

    def answered(number: int) -> Callable[[Any], None]:
        def note(future: Any) -> None:
            at[number] = time.perf_counter()
            answers[number] = future.result()["id"][0].as_py()

        return note

    with ModelClient(url) as asking, collected() as pauses:
        for number in range(20):  # the connection, and late imports
            asking.predict(row(number))
        if frozen:
            gc.collect()
            gc.freeze()
        pauses.clear()
        begun, used = time.perf_counter() + 0.01, time.process_time()
        due = array("d", (begun + number / rate for number in range(count)))
        for number in range(count):
            batch = row(number)
            wait = due[number] - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            sent[number] = time.perf_counter()
            future = asking.submit(batch)
            future.add_done_callback(answered(number))
        future.result(60)
        taken, used = time.perf_counter() - begun, time.process_time() - used
    assert list(answers) == list(range(count)), "each row has its own answer"
    added, late, answer = ([b - a for a, b in zip(*pair, strict=True)] for pair in ((due, at), (due, sent), (sent, at)))
    costs = {"rows_s": round(count / taken), "client_cpu": round(used / taken, 2)}
    return {
        **costs,
        "latency_ms": percentiles(added),
        "sent_late_ms": percentiles(late),
        "answer_ms": percentiles(answer),
        "collector_ms": percentiles(pauses or [0.0]),
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """One run: a server, a client, and the machine's noise at the same time."""
    options = ["--deadline-ms", str(arguments.deadline_ms), "--batch-size", str(arguments.batch_size)]
    with process("--part", "serve", *options) as server, process("--part", "noise") as machine:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        asked = ["--rate", str(arguments.rate), "--seconds", str(arguments.seconds)]
        asked += ["--frozen"] if arguments.frozen else []
        with process("--part", "client", "--url", url, *asked) as asking:
            found = said(asking)
        found = {**found, **said(server), **said(machine)}
    return {**found, **pace(arguments.rate, found["client_cpu"], int(arguments.rate * arguments.seconds))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=5000, help="requests per second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--deadline-ms", type=float, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--frozen", action="store_true", help="the client calls gc.freeze() once it is warm")
    parser.add_argument("--part", choices=["serve", "noise", "client"], help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part == "serve":
        serve(arguments.deadline_ms, arguments.batch_size)
    elif arguments.part == "noise":
        noise()
    elif arguments.part == "client":
        print(
            json.dumps(client(arguments.url, arguments.rate, int(arguments.rate * arguments.seconds), arguments.frozen))
        )
    else:
        for _ in range(arguments.repeats):
            load = os.getloadavg()[0]
            print(json.dumps({**run(arguments), "cpus": os.cpu_count(), "load": round(load, 1)}), flush=True)


if __name__ == "__main__":
    main()
