"""Consumers of one host that share a cache, beside JuiceFS, rclone, and the streaming datasets of Mosaic and Lightning.

    python benches/peers/consumers.py --servers .servers --streams .venv-streams/bin/python
    python benches/peers/consumers.py --photos 20000 --consumers 1,4,8,16,32

Photos of 50 to 200 kB lie on an S3 server that gives 200 MB/s in all and answers after 5 ms: in Parquet for bowstring and, below
the mounts, for pyarrow; once more as MDS shards for Mosaic and as chunks for LitData. Nobody decodes them. Each epoch, the
consumers read all of them once together, each its share, in an order of the epoch's own. The first epoch is cold. Every
consumer is a process; all have one cache, which holds everything. Each checks that it got photos and no other bytes; what the
consumers have together is compared with what there is.

It needs root, /dev/fuse, the programs of `mounted.py` in SERVERS/bin, and a Python with bowstring's requirements,
mosaicml-streaming and litdata (STREAMS), unless `--who` leaves these out.
BENCH_PACKAGE names a directory with another build of the package.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import os
import pathlib
import queue
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from rig import KEY, PROXY, ROOT, SECRET, Rig

GROUP = 64
"""Photos of a row group."""
FILE = 1024
"""Photos of a file."""
PATIENCE = 900.0
"""Seconds for one epoch."""

CONSUMER = """
import json, os, sys
who, given = sys.argv[1], json.loads(sys.argv[2])
rank, world = given["rank"], given["world"]
numbers = length = 0

def took(number, photo):
    global numbers, length
    numbers += number
    length += photo

def bowstring():
    import bowstring
    loader = bowstring.Loader(
        given["url"], batch_size=64, rank=rank, world_size=world, tail="short", shuffle=True, arrow=["photo"],
        memory_budget=256 << 20, lanes=max(4, world), window_rows=128, storage_options=given["storage"], **given["options"],
    )
    def epoch(number):
        for batch in loader:
            numbers = batch["number"]
            took(int(numbers.sum()), len(numbers) and batch["photo"].nbytes)
        if number == given["epochs"] - 1:
            print(loader.stats().get("cache"), file=sys.stderr)
    return epoch

def parquet():
    import random
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    root = given["path"]
    files = {name: pq.ParquetFile(f"{root}/{name}") for name in sorted(os.listdir(root))}
    groups = [(name, group) for name, file in files.items() for group in range(file.num_row_groups)]
    def epoch(number):
        order = groups[:]
        random.Random(number).shuffle(order)
        for name, group in order[rank::world]:
            table = files[name].read_row_group(group)
            took(pc.sum(table["number"]).as_py(), table["photo"].nbytes)
    return epoch

def mosaic():
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(given["port"]), "S3_ENDPOINT_URL": given["endpoint"]}
    os.environ |= {"AWS_ACCESS_KEY_ID": given["key"], "AWS_SECRET_ACCESS_KEY": given["secret"], "AWS_DEFAULT_REGION": "us-east-1"}
    from streaming import StreamingDataset
    dataset = StreamingDataset(
        remote="s3://bench/data/mds", local=given["cache"], shuffle=True, batch_size=64, cache_limit="100gb"
    )
    def epoch(number):
        for sample in dataset:
            took(sample["number"], len(sample["photo"]))
    return epoch

def litdata():
    import torch.distributed as dist
    from litdata import StreamingDataset
    from litdata.streaming import downloader
    from litdata.streaming.resolver import Dir
    where = f"tcp://127.0.0.1:{given['port']}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world)
    options = {"aws_access_key_id": given["key"], "aws_secret_access_key": given["secret"], "region_name": "us-east-1"}
    options["endpoint_url"] = given["endpoint"]
    # Otherwise it takes no server without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    dataset = StreamingDataset(
        Dir(path=given["cache"], url="s3://bench/data/lit"), shuffle=True, drop_last=False, max_cache_size="100GB",
        storage_options=options,
    )
    def epoch(number):
        dataset.set_epoch(number)
        for sample in dataset:
            took(sample["number"], len(sample["photo"]))
    return epoch

epoch = {"bowstring": bowstring, "without": bowstring, "parquet": parquet, "mosaic": mosaic, "litdata": litdata}[who]()
for number in range(given["epochs"]):
    print("ready", flush=True)
    sys.stdin.readline()
    numbers = length = 0
    epoch(number)
    print(json.dumps([numbers, length]), flush=True)
"""

MAKER = """
import sys
from bench_photos import photo

def one(number):
    return {"number": number, "photo": photo(number)}

# LitData's workers import this again.
if __name__ == "__main__":
    root, photos, chunks = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    if "mds" in chunks:
        from streaming import MDSWriter
        with MDSWriter(out=f"{root}/mds", columns={"number": "int", "photo": "bytes"}) as out:
            for number in range(photos):
                out.write(one(number))
    if "lit" in chunks:
        from litdata import optimize
        optimize(one, list(range(photos)), f"{root}/lit", chunk_bytes="64MB", num_workers=1)
"""

WAYS = {
    "without": "bowstring, no cache",
    "bowstring": "bowstring",
    "juicefs": "pyarrow over JuiceFS",
    "rclone": "pyarrow over rclone mount",
    "mosaic": "Mosaic StreamingDataset",
    "litdata": "LitData StreamingDataset",
}


def photo(number: int) -> bytes:
    """The bytes of a photo."""
    chance = random.Random(number)
    return chance.randbytes(chance.randint(50_000, 200_000))


class Consumer:
    """A process that reads its share when it is told to."""

    def __init__(self, python: str, who: str, given: dict[str, Any], log: Any) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.environ.get("BENCH_PACKAGE", str(ROOT / "python")),
            "PYTHONUNBUFFERED": "1",
        }
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        self.process = subprocess.Popen([python, "-c", CONSUMER, who, json.dumps(given)], env=environment, **pipes)
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # Libraries print too.
            if line.startswith(("ready", "[")):
                self.lines.put(line)
        self.lines.put("")

    def line(self, until: float) -> str:
        """The next answer."""
        try:
            line = self.lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise TimeoutError("a consumer does not answer") from None
        if not line:
            raise ChildProcessError("a consumer ended")
        return line

    def ask(self) -> None:
        """Begins the next epoch."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


class Bench(Rig):
    """The photos, and their consumers."""

    def __init__(self, given: argparse.Namespace, work: pathlib.Path) -> None:
        limit = given.photos * 250_000 * 2 >> 20
        super().__init__(work, given.servers, given.bowstring, delay=given.delay, limit=limit, mbit=given.rate * 8)
        self.given = given
        self.port = 29_500

    def fill(self) -> None:
        """Makes the photos in each form."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        data = self.work / "data"
        (data / "parquet").mkdir(parents=True)
        for first in range(0, self.given.photos, FILE):
            numbers = range(first, min(first + FILE, self.given.photos))
            table = pa.table({"number": list(numbers), "photo": [photo(number) for number in numbers]})
            path = data / "parquet" / f"{first:06}.parquet"
            pq.write_table(table, path, row_group_size=GROUP, compression="none", use_dictionary=False)
        self.bytes = sum(path.stat().st_size for path in (data / "parquet").iterdir())
        chunks = [form for form, who in (("mds", "mosaic"), ("lit", "litdata")) if who in self.given.who]
        if chunks:
            (self.work / "bench_photos.py").write_text(f"import random\n\n{inspect.getsource(photo)}")
            (self.work / "make.py").write_text(MAKER)
            self.run(self.given.streams, self.work / "make.py", data, self.given.photos, *chunks)
        self.put(data)

    def measured(self, who: str, world: int) -> tuple[float, float, float, str]:
        """Photos a second of the cold epoch and the warm ones, bytes of the store per byte of the dataset, and what is wrong."""
        came, mount = self.origin(), None
        shutil.rmtree(self.cache, ignore_errors=True)
        if who in ("juicefs", "rclone"):
            mount = self.mounted(who)
        self.port += 1
        endpoint = f"http://{self.address}:{PROXY}"
        storage = {"aws_endpoint": endpoint, "aws_allow_http": "true", "aws_region": "us-east-1"}
        storage |= {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        cached = {"cache": str(self.cache), "cache_bytes": self.limit << 20} if who == "bowstring" else {}
        common = {"world": world, "epochs": self.given.epochs, "url": "s3://bench/data/parquet", "storage": storage}
        common |= {"options": cached, "path": f"{self.mount}/data/parquet", "cache": str(self.cache), "port": self.port}
        common |= {"endpoint": endpoint, "key": KEY, "secret": SECRET}
        python = self.given.streams if who in ("mosaic", "litdata") else sys.executable
        kind = "parquet" if mount else who
        consumers = [Consumer(python, kind, {**common, "rank": rank}, self.log) for rank in range(world)]
        seconds, problems = [], []
        try:
            for _ in range(self.given.epochs):
                until = time.monotonic() + PATIENCE
                for consumer in consumers:
                    consumer.line(until)
                began = time.perf_counter()
                for consumer in consumers:
                    consumer.ask()
                found = [json.loads(consumer.line(until)) for consumer in consumers]
                seconds.append(time.perf_counter() - began)
                photos = self.given.photos
                numbers = sum(number for number, _ in found) - photos * (photos - 1) // 2
                if numbers or sum(length for _, length in found) < self.expected:
                    problems.append("lost or repeated rows")
        finally:
            for consumer in consumers:
                consumer.process.kill()
                consumer.process.wait()
            if mount is not None:
                self.unmounted(mount)
            # Mosaic leaves its shared memory to the next run.
            for left in pathlib.Path("/dev/shm").glob("00*_*"):
                left.unlink(missing_ok=True)
        # The proxy counts a connection when it is closed.
        time.sleep(1)
        rates = [self.given.photos / took for took in seconds]
        share = (self.origin() - came) / self.bytes
        return rates[0], statistics.median(rates[1:] or rates), share, ", ".join(sorted(set(problems)))

    @functools.cached_property
    def expected(self) -> int:
        """The bytes of all photos."""
        return sum(len(photo(number)) for number in range(self.given.photos))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default=str(ROOT / ".servers"), help="directory whose bin/ has the programs")
    parser.add_argument("--bowstring", default=str(ROOT / "target" / "release" / "bowstring"))
    parser.add_argument("--streams", default=sys.executable, help="a Python with mosaicml-streaming and litdata")
    parser.add_argument("--photos", type=int, default=8000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--consumers", default="1,8,32")
    parser.add_argument("--rate", type=float, default=200, help="MB/s that the store gives to all together")
    parser.add_argument("--delay", type=int, default=5, help="milliseconds before each answer")
    parser.add_argument("--who", nargs="*", default=list(WAYS), choices=WAYS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="consumers-") as directory:
        rig = Bench(given, pathlib.Path(directory))
        try:
            rig.server()
            rig.fill()
            print(
                "| | consumers | photos/s, cold | warm | bytes of the store / dataset | |\n|---|---|---|---|---|---|",
                flush=True,
            )
            for world in map(int, given.consumers.split(",")):
                for who in given.who:
                    try:
                        cold, warm, share, problems = rig.measured(who, world)
                    except (TimeoutError, ChildProcessError) as error:
                        print(f"| {WAYS[who]} | {world} | | | | {error} |", flush=True)
                        continue
                    print(
                        f"| {WAYS[who]} | {world} | {cold:,.0f} | {warm:,.0f} | {share:.2f} | {problems} |", flush=True
                    )
        finally:
            rig.log.flush()
            shutil.copy(rig.work / "log", pathlib.Path(tempfile.gettempdir()) / "consumers.log")
            rig.end()


if __name__ == "__main__":
    main()
