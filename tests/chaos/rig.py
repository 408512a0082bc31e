"""The service under test: a store, three servers and two jobs of four ranks each, every one a process in a host of its own."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chaos import rows
from chaos.credentials import Credentials
from chaos.disks import BadDisk, Disk, Memory
from chaos.journal import Event, Tail
from chaos.links import Network

libc = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
WORLD = 4
GLOBAL_BATCH = 64
ROWS = 12_007
LEASE = 4.0
DRAIN = 3.0
# Longer than the 20 s in which a client gives a silent connection up, so that it can go to another server.
TIMEOUT = 30.0
PORT = 8815
PACE = 0.06
# The gang lives in one server; the other two are replicas of each other.
GANG_SERVER, REPLICAS = "s0", ("s1", "s2")
SERVERS = (GANG_SERVER, *REPLICAS)
HOSTS = ("store", *SERVERS, *(f"r{rank}" for rank in range(2 * WORLD)))
# Hosts whose clocks can be moved.
SKEWED = ("s1", "r1", "r5")
STEPS = 8
"""A job has recovered after this many steps of each rank in one life: more than the buffers hold."""


@dataclass(frozen=True)
class Settings:
    """Directory, programs and sizes of a run."""

    home: Path
    seed: int
    binary: Path
    former: Path | None
    faketime: Path | None
    rows: int = ROWS
    pace: float = PACE


def end_with_parent() -> None:
    """Runs in a child: the kernel kills it when this process ends, for any reason."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A process in a host; its output goes to a log."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str], *, stdout: bool = False) -> None:
        with log.open("ab") as file:
            self.popen = subprocess.Popen(
                command,
                stdout=subprocess.PIPE if stdout else file,
                stderr=file,
                env=env,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    @property
    def code(self) -> int | None:
        return self.popen.poll()

    def signal(self, number: int) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.popen.wait()

    def line(self, seconds: float) -> str:
        """Returns its first line; an empty one if it ends, or prints nothing within `seconds`."""
        assert self.popen.stdout is not None
        ready, _, _ = select.select([self.popen.stdout], [], [], seconds)
        return self.popen.stdout.readline().decode().strip() if ready else ""


class Server:
    """One server, over all its lives."""

    def __init__(self, rig: Rig, host: str) -> None:
        self.rig, self.host = rig, host
        self.memory = Memory.made(f"chaos-{os.getpid()}-{host}")
        self.process: Process | None = None
        self.log = rig.home / f"{host}.log"
        self.config = rig.home / f"{host}.toml"
        self.config.write_text(self._config())

    def _config(self) -> str:
        rig, host = self.rig, self.host
        cert, key = rig.credentials.certificate(host)
        rig.credentials.issue(host, rig.network.address(host))
        server: dict[str, Any] = {
            "listen": f"{rig.network.address(host)}:{PORT}",
            "memory_budget": 256 << 20,
            "threads": 2,
            "tls": {"cert": str(cert), "key": str(key)},
            "tokens": str(rig.credentials.tokens),
            "key_file": str(rig.credentials.tickets),
            "drain_grace": DRAIN,
            "gang_lease": LEASE,
            "shared_memory": False,
            "admin": "127.0.0.1:9090",
            "audit_log": str(rig.home / f"{host}.audit"),
        }
        store = f"http://{rig.network.address('store')}:9000"
        data: dict[str, Any] = {
            "url": "s3://bucket/data",
            "storage_options": {
                "aws_endpoint": store,
                "aws_allow_http": "true",
                "aws_access_key_id": "k",
                "aws_secret_access_key": "s",
                "timeout": "5s",
                "connect_timeout": "2s",
            },
        }
        if host == GANG_SERVER:
            server["journal"] = str(rig.journal_disk.path / "journal")
        else:
            server["replicas"] = [rig.url(replica) for replica in REPLICAS]
            data["cache"] = str((rig.cache_disk if host == REPLICAS[0] else rig.bad_disk or rig.cache_disk).path / host)
            data["cache_bytes"] = 18 << 20
        return f"[server]\n{toml(server)}\n[datasets.data]\n{toml(data)}"

    def start(self, binary: Path | None = None, seconds: float = 60) -> None:
        """Starts it, again if it ends as a supervisor would, and waits until it listens.

        A second fault of the same time may have started it already.
        """
        if self.alive:
            return
        end = time.monotonic() + seconds
        command = [str(binary or self.rig.settings.binary), "serve", "--config", str(self.config), "--print-address"]
        while True:
            self.process = Process(
                self.rig.network.command(self.host, *command), self.log, self.rig.env(self.host), stdout=True
            )
            if self.memory:
                self.memory.add(self.process.popen.pid)
            if self.process.line(max(0, end - time.monotonic())):
                return
            if time.monotonic() > end:
                raise RuntimeError(f"{self.host} does not start: {self.log.read_text()[-600:]}")
            time.sleep(0.5)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.code is None

    def signal(self, number: int) -> None:
        if self.process is not None:
            self.process.signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def cache_counts(self) -> dict[str, float]:
        """Returns the ranges that its cache counted so far, by outcome."""
        read = (
            "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9090/metrics', timeout=5).read().decode())"
        )
        command = self.rig.network.command(self.host, sys.executable, "-c", read)
        shown = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
        found = re.findall(r'^bowstring_cache_ranges_total\{outcome="(\w+)"\} (\d+)', shown, re.MULTILINE)
        return {outcome: float(count) for outcome, count in found}

    def served_serial(self, host: str) -> int:
        """Returns the serial number of the certificate that a new connection from `host` gets; 0 without one."""
        asked = ["openssl", "s_client", "-connect", f"{self.rig.network.address(self.host)}:{PORT}"]
        shown = subprocess.run(
            self.rig.network.command(host, *asked), input=b"", capture_output=True, timeout=10, check=False
        )
        said = subprocess.run(
            ["openssl", "x509", "-noout", "-serial"], input=shown.stdout, capture_output=True, check=False
        )
        _, _, serial = said.stdout.decode().strip().partition("=")
        return int(serial, 16) if serial else 0


def toml(table: dict[str, Any]) -> str:
    """Formats one table of TOML, whose strings, numbers and lists are those of JSON."""

    def value(of: Any) -> str:
        if isinstance(of, dict):
            return "{ " + ", ".join(f"{key} = {value(inner)}" for key, inner in of.items()) + " }"
        return json.dumps(of)

    return "".join(f"{key} = {value(of)}\n" for key, of in table.items())


def epochs_to_end(journals: Iterable[list[Event]], steps: int) -> int:
    """Returns the number of epochs after which all ranks can end; `steps` is the length of one.

    A rank looks for this number at the end of each epoch. None may be near that end now: a rank that has just looked in vain would
    begin an epoch alone, because the others would find the number.
    """
    made = ((event["epoch"], event["step"]) for events in journals for event in events[-50:] if event["e"] == "step")
    epoch, step = max(made, default=(0, 0))
    return int(epoch) + (1 if step < steps // 2 else 2)


class Job:
    """Ranks that train together, and the launcher that starts them again."""

    def __init__(self, rig: Rig, name: str, hosts: list[str], servers: tuple[str, ...]) -> None:
        self.rig, self.name, self.hosts, self.servers = rig, name, hosts, servers
        self.home = rig.home / name
        for directory in (self.home, self.home / "certificates", self.home / "checkpoints"):
            directory.mkdir()
        self.tails = [Tail(self.home / f"journal-{rank}") for rank in range(WORLD)]
        self.events: list[list[Event]] = [[] for _ in hosts]
        self.processes: list[Process | None] = [None] * WORLD
        self.again: list[float] = [0.0] * WORLD
        self.life = 0
        self.restarts = 0

    def start(self) -> None:
        state = self._checkpoint() if self.name == "replicas" else None
        np.zeros(WORLD, dtype=np.int64).tofile(self.home / f"lockstep-{self.life}")
        for rank in range(WORLD):
            self._start(rank, state)

    def _start(self, rank: int, state: dict[str, Any] | None) -> None:
        host, rig = self.hosts[rank], self.rig
        task = {
            "kind": self.name,
            "rank": rank,
            "world": WORLD,
            "urls": [rig.url(server) for server in self.servers],
            "storage_options": {"ca": str(rig.credentials.ca), "token_file": str(rig.credentials.token)},
            "home": str(self.home),
            "life": self.life,
            "state": state,
            "global_batch": GLOBAL_BATCH,
            "pace": rig.settings.pace,
            "timeout": TIMEOUT,
        }
        path = self.home / f"task-{rank}.json"
        path.write_text(json.dumps(task))
        command = rig.network.command(host, sys.executable, "-m", "chaos.rank", str(path))
        self.processes[rank] = Process(command, self.home / f"rank-{rank}.log", rig.env(host))

    def _checkpoint(self) -> dict[str, Any] | None:
        """Returns the newest state that all ranks saved."""
        saved: dict[tuple[int, int], set[int]] = {}
        for path in (self.home / "checkpoints").glob("*.json"):
            rank, epoch, step = map(int, path.stem.split("-"))
            saved.setdefault((epoch, step), set()).add(rank)
        whole = [position for position, ranks in saved.items() if len(ranks) == WORLD]
        if not whole:
            return None
        epoch, step = max(whole)
        state: dict[str, Any] = json.loads((self.home / "checkpoints" / f"0-{epoch}-{step}.json").read_text())
        return state

    def tend(self) -> None:
        """Reads the journals, and restarts after a failure: one rank of the gang, all ranks of the other job."""
        now = time.monotonic()
        for rank, tail in enumerate(self.tails):
            self.events[rank] += tail.events()
        ended = [rank for rank, process in enumerate(self.processes) if process and process.code not in (None, 0)]
        for rank in ended:
            process = self.processes[rank]
            assert process is not None
            self.events[rank].append({"t": now, "e": "exit", "code": process.code})
            self.processes[rank] = None
            self.again[rank] = now + 0.3
        if self.name == "replicas":
            if ended:
                for process in self.processes:
                    if process is not None:
                        process.kill()
                self.processes = [None] * WORLD
            if all(process is None for process in self.processes) and now >= max(self.again):
                self.life += 1
                self.restarts += 1
                self.start()
            return
        for rank, process in enumerate(self.processes):
            if process is None and now >= self.again[rank]:
                self.restarts += 1
                self._start(rank, None)

    def settled(self, since: float) -> bool:
        """Returns true if each rank has made enough steps since then, all in the newest life."""
        newest = max((event["life"] for events in self.events for event in events if event["e"] == "life"), default=-1)
        for events in self.events:
            made = 0
            for event in reversed(events):
                if event["t"] <= since or made == STEPS:
                    break
                made += event["e"] == "step" and event["life"] == newest
            if made < STEPS:
                return False
        return True

    def silent(self, since: float) -> float:
        """Returns the longest time since then in which a rank made no step, got no error and began no life."""
        now = time.monotonic()
        return max(now - max(since, events[-1]["t"] if events else since) for events in self.events)

    @property
    def done(self) -> bool:
        return all(process is not None and process.code == 0 for process in self.processes)

    @property
    def is_resumable(self) -> bool:
        """True if a restart continues from a state. Without one, ranks repeat their first steps, which an audit rightly reports."""
        return self.name == "gang" or self._checkpoint() is not None

    def end(self) -> None:
        """Lets the ranks end with an epoch."""
        aside = self.home / "end.new"
        aside.write_text(str(epochs_to_end(self.events, self.rig.settings.rows // GLOBAL_BATCH)))
        aside.rename(self.home / "end")

    def kill(self) -> None:
        for process in self.processes:
            if process is not None:
                process.signal(signal.SIGCONT)
                process.kill()


class Rig:
    """Everything that runs."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.home = settings, settings.home
        self.closing = contextlib.ExitStack()
        # The longest that the suite itself waited for a processor.
        self.lag = 0.0
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        settings = self.settings
        self.ids = rows.write(self.home / "objects" / "data", settings.rows, settings.seed)
        self.network = Network(HOSTS, settings.seed)
        self.closing.callback(self.network.close)
        # A journal is compacted from 1 MiB on, into a file beside it.
        self.journal_disk = Disk(self.home / "disk" / "journal", 4 << 20)
        self.closing.callback(self.journal_disk.close)
        self.cache_disk = Disk(self.home / "disk" / "cache", 26 << 20)
        self.closing.callback(self.cache_disk.close)
        self.bad_disk: BadDisk | None = None
        self.no_bad_disk = ""
        try:
            self.bad_disk = BadDisk(self.home / "disk" / "bad", 40 << 20)
            self.closing.callback(self.bad_disk.close)
        except (RuntimeError, OSError) as error:
            self.no_bad_disk = str(error)
        self.credentials = Credentials(self.home / "credentials")
        for host in SKEWED:
            self.clock(host, 0)
        self.store_faults = self.home / "store-faults.json"
        self.store_faults.write_text("{}")
        self.store: Process | None = None
        self.closing.callback(self.kill_store)
        self.start_store()
        self.servers = {host: Server(self, host) for host in SERVERS}
        for server in self.servers.values():
            if server.memory:
                self.closing.callback(server.memory.close)
            self.closing.callback(server.kill)
            server.start()
        ranks = HOSTS[len(HOSTS) - 2 * WORLD :]
        self.jobs = {
            "gang": Job(self, "gang", list(ranks[:WORLD]), (GANG_SERVER,)),
            "replicas": Job(self, "replicas", list(ranks[WORLD:]), REPLICAS),
        }
        for job in self.jobs.values():
            self.closing.callback(job.kill)
            job.start()

    def kill_store(self) -> None:
        if self.store is not None:
            self.store.kill()

    def start_store(self) -> None:
        if self.store is not None and self.store.code is None:
            return
        where = [str(self.home / "objects"), self.network.address("store"), "9000", str(self.store_faults)]
        command = self.network.command("store", sys.executable, "-m", "chaos.store", *where)
        self.store = Process(command, self.home / "store.log", self.env("store"), stdout=True)
        if self.store.line(30) != "ready":
            raise RuntimeError(f"the store does not start: {(self.home / 'store.log').read_text()[-600:]}")

    def url(self, server: str) -> str:
        return f"grpc+tls://{self.network.address(server)}:{PORT}"

    def env(self, host: str) -> dict[str, str]:
        """Returns the environment of processes of a host; some hosts take the time from a file."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("BOWSTRING_", "AWS_"))}
        env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if host in SKEWED and self.settings.faketime:
            env |= {
                "LD_PRELOAD": str(self.settings.faketime),
                "FAKETIME_TIMESTAMP_FILE": str(self.home / f"{host}.clock"),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        return env

    def clock(self, host: str, seconds: int) -> None:
        """Moves the wall clock that the processes of a host see, within a second."""
        (self.home / f"{host}.clock").write_text(f"{seconds:+d}\n")

    def tend(self) -> None:
        for job in self.jobs.values():
            job.tend()

    def wait(self, seconds: float) -> None:
        """Lets the jobs run for that long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            before, nap = time.monotonic(), min(left, 0.05)
            time.sleep(nap)
            self.lag = max(self.lag, time.monotonic() - before - nap)
            self.tend()

    def close(self) -> None:
        self.closing.close()
