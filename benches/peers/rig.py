"""An S3 server that is as far away as a bench says, and mounts of it, for the benches beside other programs."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benches"))

import links  # noqa: E402

PORT, PROXY, TOXI = 8433, 8441, 8474
KEY, SECRET = "testkey", "testsecret"
TICKS = os.sysconf("SC_CLK_TCK")


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
    """The server behind its proxy, and the mounts.

    ``servers`` is a directory whose ``bin`` has the programs, ``delay`` the milliseconds before each answer of the proxy, ``limit``
    the MiB that a cache may take. With ``mbit``, the server is a host behind a link of that rate.
    """

    def __init__(
        self, work: pathlib.Path, servers: str, bowstring: str, *, delay: int, limit: int, mbit: float = 0
    ) -> None:
        self.work, self.delay, self.limit, self.mbit = work, delay, limit, mbit
        self.bin = pathlib.Path(servers).resolve() / "bin"
        self.bowstring = pathlib.Path(bowstring).resolve()
        self.mount, self.cache = work / "mnt", work / "cache"
        self.stack = contextlib.ExitStack()
        self.host: links.Host | None = None
        self.address = "127.0.0.1"
        self.running: list[subprocess.Popen[Any]] = []
        self.log = (work / "log").open("wb")
        os.environ["PATH"] = f"{self.bin}:{os.environ['PATH']}"

    def start(self, *command: object, host: links.Host | None = None) -> subprocess.Popen[Any]:
        parts = host.command(*command) if host else [str(part) for part in command]
        process = subprocess.Popen(parts, stdout=self.log, stderr=self.log)
        self.running.append(process)
        return process

    def run(self, *command: object) -> str:
        return subprocess.run(
            [str(part) for part in command], check=True, stdout=subprocess.PIPE, stderr=self.log, text=True
        ).stdout

    def toxi(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}:{TOXI}{path}", data, {"User-Agent": "bench"})
        with urllib.request.urlopen(request) as answer:
            return str(answer.read().decode())

    def server(self) -> None:
        """Starts the server and its proxy."""
        if self.mbit:
            (self.host,) = self.stack.enter_context(links.hosts(1, self.mbit))
            self.address = self.host.address
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
            self.bin / "weed", "server", f"-dir={self.work / 'weed'}", f"-ip={self.address}",
            f"-ip.bind={self.address}", "-filer", "-s3",
            *ports,
            f"-s3.config={self.work / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
            "-master.volumeSizeLimitMB=256", "-volume.max=0", host=self.host,
        )  # fmt: skip
        until(lambda: urllib.request.urlopen(f"http://{self.address}:{PORT}/healthz").status == 200, "SeaweedFS")
        self.start(
            self.bin / "toxiproxy-server", "-host", self.address, "-port", TOXI, "-proxy-metrics", host=self.host
        )
        until(lambda: self.toxi("/version"), "toxiproxy")
        self.toxi(
            "/proxies",
            {"name": "s3", "listen": f"{self.address}:{PROXY}", "upstream": f"{self.address}:{PORT}", "enabled": True},
        )
        self.toxi(
            "/proxies/s3/toxics",
            {"type": "latency", "stream": "downstream", "attributes": {"latency": self.delay}},
        )

    def origin(self) -> int:
        """Bytes of answers so far."""
        if self.host:
            return self.host.sent()
        lines = [
            line for line in self.toxi("/metrics").splitlines() if line.startswith("toxiproxy_proxy_sent_bytes_total{")
        ]
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if 'direction="downstream"' in line)

    def rclone_at(self, port: int, bucket: str = "bench") -> str:
        return (
            f":s3,provider=Other,access_key_id={KEY},secret_access_key={SECRET},endpoint='http://{self.address}:{port}',"
            f"force_path_style=true:{bucket}"
        )

    def put(self, data: pathlib.Path) -> None:
        """Puts the files where each contender reads them, past the delay, and removes them here."""
        until(lambda: self.run(self.bin / "rclone", "mkdir", self.rclone_at(PORT)) == "", "the bucket")
        self.run(self.bin / "rclone", "copy", "--transfers", "8", data, f"{self.rclone_at(PORT)}/data")
        meta, bucket = f"sqlite3://{self.work / 'meta.db'}", f"http://{self.address}:{PORT}/jfs"
        self.run(self.bin / "rclone", "mkdir", self.rclone_at(PORT, "jfs"))
        keys = ("--access-key", KEY, "--secret-key", SECRET)
        storage = ("--storage", "s3", "--bucket", bucket, "--trash-days", "0")
        self.run(self.bin / "juicefs", "format", *storage, *keys, meta, "test")
        self.mount.mkdir()
        process = self.mounted("juicefs", PORT)
        self.run("cp", "-r", data, f"{self.mount}/data")
        self.unmounted(process)
        shutil.rmtree(data)

    def mounted(self, who: str, port: int = PROXY) -> subprocess.Popen[Any]:
        """Mounts with an empty cache."""
        shutil.rmtree(self.cache, ignore_errors=True)
        endpoint, limit = f"http://{self.address}:{port}", self.limit
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

    def end(self) -> None:
        if os.path.ismount(self.mount):
            subprocess.run(["umount", "-l", self.mount], check=False)
        for process in reversed(self.running):
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.stack.close()
