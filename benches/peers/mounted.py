"""`bowstring mount` beside JuiceFS and rclone: files of one S3 server that answers after 5 ms, read through FUSE.

    python benches/peers/mounted.py --servers .servers                      3 rounds: 1 GiB, 5,000 small files
    python benches/peers/mounted.py --servers .servers --rounds 1 --mib 256 --files 500

It needs root, /dev/fuse, and in SERVERS/bin: `weed` (SeaweedFS), `toxiproxy-server`, `juicefs`, `rclone` and, for rclone,
`fusermount3`, unless it is on PATH. The server is SeaweedFS behind toxiproxy, which delays each answer and counts bytes. Each
task has a mount of its own with an empty cache on the same disk, contenders take turns, and the table has medians. JuiceFS
has its own layout in the bucket and its names in SQLite on this machine; the others list the bucket.

CPU is that of the mount's processes. `warm` is the same read again, after the kernel has dropped its pages of the files;
`again` once more, with what the kernel has kept.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
PORT, PROXY, TOXI = 8433, 8441, 8474
KEY, SECRET = "testkey", "testsecret"
TICKS = os.sysconf("SC_CLK_TCK")

# One pass over the files of a task; `drop` makes the kernel forget their pages first.
READER = """
import json, os, random, sys, threading, time
task, root, drop = sys.argv[1], sys.argv[2], sys.argv[3] == "drop"

def opened(path):
    file = os.open(path, os.O_RDONLY)
    if drop:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    return file

def whole(path):
    file, buffer, total = opened(path), bytearray(1 << 20), 0
    while read := os.readv(file, [buffer]):
        total += read
    os.close(file)
    return total

began, total = time.perf_counter(), 0
if task == "sequential":
    total = whole(f"{root}/large/big")
elif task == "random":
    file = opened(f"{root}/large/big")
    places = random.Random(7).sample(range(os.fstat(file).st_size >> 17), 400)
    total = sum(len(os.pread(file, 1 << 17, place << 17)) for place in places)
elif task == "small":
    for directory, _, names in os.walk(f"{root}/small"):
        total += sum(whole(f"{directory}/{name}") for name in names)
else:
    sizes = [0] * 8
    def read(number):
        sizes[number] = whole(f"{root}/eight/{number}")
    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    total = sum(sizes)
print(json.dumps([time.perf_counter() - began, total]))
"""
TASKS = {
    "sequential": "1 file in order",
    "random": "400 reads of 128 KiB at random places",
    "small": "all small files, walked",
    "eight": "8 files by 8 readers",
}


def cpu(of: pathlib.Path) -> float:
    """Seconds of processors that the processes of a mount took, whose command lines name it: JuiceFS has two."""
    total = 0
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if str(of).encode() in (process / "cmdline").read_bytes():
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        except OSError:
            continue  # it has ended
    return total / TICKS


def until(ready: Any, what: str, seconds: float = 60) -> None:
    """Waits for something."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if ready():
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            sys.exit(f"{what} does not start")
        time.sleep(0.1)


class Rig:
    """The server behind its proxy, and the mounts."""

    def __init__(self, given: argparse.Namespace, work: pathlib.Path) -> None:
        self.given, self.work = given, work
        self.bin = pathlib.Path(given.servers).resolve() / "bin"
        self.bowstring = pathlib.Path(given.bowstring).resolve()
        self.mount, self.cache = work / "mnt", work / "cache"
        self.running: list[subprocess.Popen[Any]] = []
        self.log = (work / "log").open("wb")
        os.environ["PATH"] = f"{self.bin}:{os.environ['PATH']}"

    def start(self, *command: object) -> subprocess.Popen[Any]:
        process = subprocess.Popen([str(part) for part in command], stdout=self.log, stderr=self.log)
        self.running.append(process)
        return process

    def run(self, *command: object) -> str:
        return subprocess.run(
            [str(part) for part in command], check=True, stdout=subprocess.PIPE, stderr=self.log, text=True
        ).stdout

    def toxi(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{TOXI}{path}", data, {"User-Agent": "bench"})
        with urllib.request.urlopen(request) as answer:
            return str(answer.read().decode())

    def server(self) -> None:
        """Starts the server and its proxy."""
        (self.work / "weed").mkdir()
        identity = {
            "name": "test",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        (self.work / "s3.json").write_text(json.dumps({"identities": [identity]}))
        ports = [
            f"-{name}={PORT + at}"
            for at, name in enumerate(
                (
                    "s3.port",
                    "master.port",
                    "master.port.grpc",
                    "volume.port",
                    "volume.port.grpc",
                    "filer.port",
                    "filer.port.grpc",
                    "s3.port.grpc",
                )
            )
        ]
        self.start(
            self.bin / "weed", "server", f"-dir={self.work / 'weed'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3",
            *ports,
            f"-s3.config={self.work / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
            "-master.volumeSizeLimitMB=256", "-volume.max=0",
        )  # fmt: skip
        until(lambda: urllib.request.urlopen(f"http://127.0.0.1:{PORT}/healthz").status == 200, "SeaweedFS")
        self.start(self.bin / "toxiproxy-server", "-host", "127.0.0.1", "-port", TOXI, "-proxy-metrics")
        until(lambda: self.toxi("/version"), "toxiproxy")
        self.toxi(
            "/proxies", {"name": "s3", "listen": f"127.0.0.1:{PROXY}", "upstream": f"127.0.0.1:{PORT}", "enabled": True}
        )
        self.toxi(
            "/proxies/s3/toxics",
            {"type": "latency", "stream": "downstream", "attributes": {"latency": self.given.delay}},
        )

    def origin(self) -> int:
        """Bytes of answers so far."""
        lines = [
            line for line in self.toxi("/metrics").splitlines() if line.startswith("toxiproxy_proxy_sent_bytes_total{")
        ]
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if 'direction="downstream"' in line)

    def rclone_at(self, port: int) -> str:
        return f":s3,provider=Other,access_key_id={KEY},secret_access_key={SECRET},endpoint='http://127.0.0.1:{port}',force_path_style=true:bench"

    def fill(self) -> None:
        """Makes the files, and puts them where each contender reads them, past the delay."""
        data = self.work / "data"
        for part in ("large", "eight", *(f"small/{number:02d}" for number in range(50))):
            (data / part).mkdir(parents=True)
        large = self.given.mib << 20
        (data / "large" / "big").write_bytes(os.urandom(large))
        for number in range(8):
            (data / "eight" / str(number)).write_bytes(os.urandom(large // 8))
        for number in range(self.given.files):
            (data / f"small/{number % 50:02d}/{number:05d}").write_bytes(os.urandom(20_000))
        until(lambda: self.run(self.bin / "rclone", "mkdir", self.rclone_at(PORT)) == "", "the bucket")
        self.run(self.bin / "rclone", "copy", "--transfers", "8", data, f"{self.rclone_at(PORT)}/data")
        meta, bucket = f"sqlite3://{self.work / 'meta.db'}", f"http://127.0.0.1:{PORT}/jfs"
        self.run(self.bin / "rclone", "mkdir", self.rclone_at(PORT).replace(":bench", ":jfs"))
        self.run(
            self.bin / "juicefs",
            "format",
            "--storage",
            "s3",
            "--bucket",
            bucket,
            "--access-key",
            KEY,
            "--secret-key",
            SECRET,
            "--trash-days",
            "0",
            meta,
            "test",
        )
        self.mount.mkdir()
        process = self.mounted("juicefs", PORT)
        self.run("cp", "-r", data, f"{self.mount}/data")
        self.unmounted(process)
        shutil.rmtree(data)

    def mounted(self, who: str, port: int = PROXY) -> subprocess.Popen[Any]:
        """Mounts with an empty cache."""
        shutil.rmtree(self.cache, ignore_errors=True)
        endpoint, limit = f"http://127.0.0.1:{port}", 4 * self.given.mib
        if who == "bowstring":
            options = f"aws_endpoint={endpoint},aws_allow_http=true,aws_region=us-east-1"
            options += f",aws_access_key_id={KEY},aws_secret_access_key={SECRET}"
            cache = ("--cache", self.cache, "--cache-bytes", f"{limit}MiB")
            process = self.start(
                self.bowstring, "mount", "s3://bench", self.mount, *cache, "--storage-options", options
            )
        elif who == "rclone":
            process = self.start(
                self.bin / "rclone", "mount", self.rclone_at(port), self.mount, "--read-only", "--vfs-cache-mode", "full",
                "--cache-dir", self.cache, "--vfs-cache-max-size", f"{limit}Mi", "--config", "/dev/null",
            )  # fmt: skip
        else:
            quiet = ("--no-usage-report", "--backup-meta", "0", "--no-syslog", "--no-bgjob", "--metrics", "127.0.0.1:0")
            cache = ("--cache-dir", self.cache, "--cache-size", limit, "--log", self.work / "juicefs.log")
            bucket = ("--bucket", f"{endpoint}/jfs", *(() if port == PORT else ("--read-only",)))
            meta = f"sqlite3://{self.work / 'meta.db'}"
            process = self.start(self.bin / "juicefs", "mount", meta, self.mount, *quiet, *cache, *bucket)
        until(lambda: os.path.ismount(self.mount), who)
        return process

    def unmounted(self, process: subprocess.Popen[Any]) -> None:
        subprocess.run(["umount", self.mount], check=True)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
        self.running.remove(process)

    def measured(self, who: str, task: str) -> list[float]:
        """Seconds and CPU seconds of the mount, of the cold pass, the warm one and one more; bytes of the store per byte of it."""
        came, process = self.origin(), self.mounted(who)
        figures, total = [], 0
        for drop in ("drop", "drop", "keep"):
            used = cpu(self.mount)
            done = self.run(sys.executable, "-c", READER, task, f"{self.mount}/data", drop)
            seconds, total = json.loads(done)
            figures += [seconds, cpu(self.mount) - used]
        self.unmounted(process)
        # The proxy counts a connection when it is closed.
        time.sleep(0.5)
        return [*figures, (self.origin() - came) / total]

    def end(self) -> None:
        if os.path.ismount(self.mount):
            subprocess.run(["umount", "-l", self.mount], check=False)
        for process in reversed(self.running):
            process.send_signal(signal.SIGKILL)
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default=str(ROOT / ".servers"), help="directory whose bin/ has the programs")
    parser.add_argument(
        "--bowstring", default=str(ROOT / "target" / "release" / "bowstring"), help="built with the feature fuse"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=1024, help="of the large file, and of the 8 together")
    parser.add_argument("--files", type=int, default=5000, help="small ones, of 20 kB")
    parser.add_argument("--delay", type=int, default=5, help="milliseconds before each answer")
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=TASKS)
    parser.add_argument("--who", nargs="*", default=["bowstring", "juicefs", "rclone"])
    given = parser.parse_args()
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        sys.exit("this machine allows no mounts: /dev/fuse is not there, or not to be opened")
    with tempfile.TemporaryDirectory(prefix="mounted-") as directory:
        rig = Rig(given, pathlib.Path(directory))
        try:
            versions = [
                [rig.bowstring, "--version"],
                [rig.bin / "juicefs", "version"],
                [rig.bin / "rclone", "version"],
                [rig.bin / "weed", "version"],
            ]
            print(*(rig.run(*command).splitlines()[0] for command in versions), sep=" · ", flush=True)
            rig.server()
            rig.fill()
            found: dict[tuple[str, str], list[list[float]]] = {}
            for number in range(given.rounds):
                for task in given.only:
                    for who in given.who[number % len(given.who) :] + given.who[: number % len(given.who)]:
                        found.setdefault((task, who), []).append(rig.measured(who, task))
                        figures = " ".join(f"{figure:.2f}" for figure in found[task, who][-1])
                        print(f"# round {number}, {task}, {who}: {figures}", file=sys.stderr, flush=True)
        except BaseException:
            rig.log.flush()
            sys.stderr.write((rig.work / "log").read_text(errors="replace")[-4000:])
            raise
        finally:
            rig.end()
    print("| | | cold: s | CPU s | warm: s | CPU s | again: s | CPU s | bytes of the store / file |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (task, who), rounds in found.items():
        cells = [statistics.median(figures) for figures in zip(*rounds, strict=True)]
        print(f"| {TASKS[task]} | {who} |", " | ".join(f"{cell:.2f}" for cell in cells), "|")


if __name__ == "__main__":
    main()
