"""Readers of a store that answers some requests much later than others: latency of reads, and requests, with and without hedging.

    python benches/hedge.py                                     16 readers, 200 reads each; 1 % of requests take 20 times as long
    python benches/hedge.py --reads 50 --delay 0.01 --late 0.02

The store is an HTTP server in a process of its own, which speaks enough of S3. The readers are threads of one process, a fresh one
for each way; each reads ranges at random places of one object, none twice. Requests are those for bytes, `more` those beyond the
first way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python" / "tests"))

READERS = """
import json, random, sys, threading, time
import bowstring
readers, reads, length, size, options = (json.loads(text) for text in sys.argv[1:])
took, lock = [], threading.Lock()

def read(number):
    places = random.Random(number).sample(range(size // length), reads)
    buffer = bytearray(length)
    with bowstring.open("s3://bucket/object", storage_options=options) as file:
        for place in places:
            began = time.perf_counter()
            file.seek(place * length)
            left = memoryview(buffer)
            while len(left):
                left = left[file.readinto(left):]
            with lock:
                took.append(time.perf_counter() - began)

threads = [threading.Thread(target=read, args=(number,)) for number in range(readers)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(took))
"""


def serve(size: int, delay: float, late: float, factor: float) -> None:
    """Serves the object until standard input ends; each line of it asks for the number of requests since the last."""
    from objects import Objects, Paced

    server = Objects(Paced(0, delay, late, factor))
    content = server.content["bucket/object"] = os.urandom(1 << 20) * (size >> 20)
    server.tag("bucket/object", content)
    print(server.url, flush=True)
    for _ in sys.stdin:
        with server.lock:
            asked = [request for request in server.requests if request.startswith("GET") and "bytes=" in request]
            server.requests.clear()
        print(len(asked), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=16)
    parser.add_argument("--reads", type=int, default=200, help="by each reader")
    parser.add_argument("--kib", type=int, default=256, help="of each read")
    parser.add_argument("--megabytes", type=int, default=256, help="of the object")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds before each answer")
    parser.add_argument("--late", type=float, default=0.01, help="share of the requests that take longer")
    parser.add_argument("--factor", type=float, default=20.0, help="by which these do")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    size = given.megabytes << 20
    if given.serve:
        serve(size, given.delay, given.late, given.factor)
        return
    command = [sys.executable, __file__, "--serve", "--megabytes", str(given.megabytes), "--delay", str(given.delay)]
    command += ["--late", str(given.late), "--factor", str(given.factor)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    print("| hedge | p50 ms | p99 ms | p99.5 ms | longest ms | requests | more |")
    print("|---|---|---|---|---|---|---|")
    first = 0
    for hedge in ("false", "true"):
        options = {"aws_endpoint": url, "aws_allow_http": "true", "aws_access_key_id": "id"}
        options |= {"aws_secret_access_key": "secret", "hedge": hedge}
        arguments = [given.readers, given.reads, given.kib << 10, size, options]
        readers = [sys.executable, "-c", READERS, *(json.dumps(argument) for argument in arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        done = subprocess.run(readers, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        took = sorted(json.loads(done.stdout))
        server.stdin.write("\n")
        server.stdin.flush()
        asked = int(server.stdout.readline())
        first = first or asked
        cuts = [took[min(int(len(took) * part), len(took) - 1)] * 1e3 for part in (0.5, 0.99, 0.995, 1)]
        cells = [*(f"{cut:.1f}" for cut in cuts), asked, f"{(asked - first) / first:.2%}"]
        print(f"| {hedge} | {' | '.join(str(cell) for cell in cells)} |", flush=True)
    server.stdin.close()
    server.wait(timeout=60)


if __name__ == "__main__":
    main()
