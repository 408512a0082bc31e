"""The faults. Each is a generator: the code before its ``yield`` harms, the code after it heals."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from chaos.links import Pair
from chaos.rig import DRAIN, GANG_SERVER, REPLICAS, SERVERS, SKEWED, WORLD, Rig


class Untried(Exception):
    """The reason why this machine cannot have a fault."""


@dataclass
class Scene:
    """A fault in effect: its description, the affected jobs, and its duration in seconds."""

    what: str
    jobs: tuple[str, ...]
    hold: float
    toggle: Callable[[], None] | None = None
    """Called repeatedly while it lasts."""
    notes: dict[str, float] = field(default_factory=dict)


Fault = Callable[[Rig, Random], Iterator[Scene]]
KINDS: dict[str, Fault] = {}
BOTH = ("gang", "replicas")
EXCHANGE = "certificates, tokens and keys exchanged"
SERVER_KILLED = "SIGKILL of a server"
SERVER_OUT_OF_MEMORY = "OOM kill of a server"
FULL_JOURNAL = "full disk: journal of the gang"
ROLLING = "restart of all servers in turn"
STARTING = (SERVER_KILLED, SERVER_OUT_OF_MEMORY, FULL_JOURNAL, ROLLING)
"""Faults that start a server."""


def kind(name: str) -> Callable[[Fault], Fault]:
    def named(fault: Fault) -> Fault:
        KINDS[name] = fault
        return fault

    return named


def server_of(draw: Random) -> tuple[str, str]:
    """A server and the job that it serves."""
    server = draw.choice(SERVERS)
    return server, "gang" if server == GANG_SERVER else "replicas"


def rank_of(draw: Random) -> tuple[str, str, int]:
    """A rank's host, its job, and its number there."""
    number = draw.randrange(2 * WORLD)
    return f"r{number}", BOTH[number // WORLD], number % WORLD


def both_ways(pairs: list[Pair]) -> list[Pair]:
    return pairs + [(target, source) for source, target in pairs]


def side(rig: Rig, draw: Random) -> tuple[str, str, list[Pair]]:
    """Cuts a job in two: a server from all its ranks, or one rank from its servers."""
    if draw.random() < 0.5:
        server, job = server_of(draw)
        return f"{server} from its ranks", job, [(host, server) for host in rig.jobs[job].hosts]
    host, job, _ = rank_of(draw)
    return f"{host} from its servers", job, [(host, server) for server in rig.jobs[job].servers]


# ---- links --------------------------------------------------------------------------------------------------------------


@kind("partition, full")
def partition(rig: Rig, draw: Random) -> Iterator[Scene]:
    what, job, pairs = side(rig, draw)
    rig.network.rule(both_ways(pairs), cut=True)
    yield Scene(what, (job,), draw.uniform(1, 10))
    rig.network.rule(both_ways(pairs))


@kind("partition, longer than the pings")
def long_partition(rig: Rig, draw: Random) -> Iterator[Scene]:
    """A replica that stays away: its ranks go on at the other one, and see a wait at most."""
    server = draw.choice(REPLICAS)
    pairs = both_ways([(host, server) for host in rig.jobs["replicas"].hosts])
    rig.network.rule(pairs, cut=True)
    yield Scene(f"{server} from its ranks", ("replicas",), 27)
    rig.network.rule(pairs)


@kind("partition, one-way")
def one_way(rig: Rig, draw: Random) -> Iterator[Scene]:
    what, job, pairs = side(rig, draw)
    if draw.random() < 0.5:
        pairs, what = [(target, source) for source, target in pairs], f"{what}, backward"
    rig.network.rule(pairs, cut=True)
    yield Scene(what, (job,), draw.uniform(1, 10))
    rig.network.rule(pairs)


@kind("partition, flapping")
def flapping(rig: Rig, draw: Random) -> Iterator[Scene]:
    what, job, pairs = side(rig, draw)
    state = {"cut": False, "next": 0.0}

    def toggle() -> None:
        if time.monotonic() >= state["next"]:
            state["cut"] = not state["cut"]
            rig.network.rule(both_ways(pairs), cut=bool(state["cut"]))
            state["next"] = time.monotonic() + draw.uniform(0.1, 0.9)

    toggle()
    yield Scene(what, (job,), draw.uniform(4, 8), toggle)
    rig.network.rule(both_ways(pairs))


@kind("servers from the store")
def no_store(rig: Rig, draw: Random) -> Iterator[Scene]:
    servers = draw.choice([(GANG_SERVER,), REPLICAS, SERVERS])
    pairs = both_ways([(server, "store") for server in servers])
    rig.network.rule(pairs, cut=True)
    yield Scene(f"{', '.join(servers)} from the store", BOTH, draw.uniform(2, 7))
    rig.network.rule(pairs)


@kind("link down")
def link_down(rig: Rig, draw: Random) -> Iterator[Scene]:
    host, job = server_of(draw) if draw.random() < 0.5 else rank_of(draw)[:2]
    rig.network.up(host, False)
    yield Scene(f"the link of {host}", (job,), draw.uniform(0.5, 5))
    rig.network.up(host, True)


@kind("blackhole route")
def blackhole(rig: Rig, draw: Random) -> Iterator[Scene]:
    host, job, _ = rank_of(draw)
    server = draw.choice(rig.jobs[job].servers)
    host, peer = (host, server) if draw.random() < 0.5 else (server, host)
    rig.network.blackhole(host, peer, True)
    yield Scene(f"{host} has no way to {peer}", (job,), draw.uniform(1, 10))
    rig.network.blackhole(host, peer, False)


def everywhere(rig: Rig) -> list[Pair]:
    """All links that carry anything, both ways."""
    pairs = [(host, server) for job in rig.jobs.values() for host in job.hosts for server in job.servers]
    return both_ways([*pairs, *((server, "store") for server in SERVERS)])


def medium(what: str, **bounds: tuple[float, float]) -> Fault:
    """All links are bad in one way."""

    def fault(rig: Rig, draw: Random) -> Iterator[Scene]:
        rule = {name: draw.uniform(*between) for name, between in bounds.items()}
        rig.network.rule(everywhere(rig), **rule)
        values = ", ".join(f"{name} {value:.3g}" for name, value in rule.items())
        yield Scene(f"everywhere: {values}", BOTH, draw.uniform(4, 7))
        rig.network.rule(everywhere(rig))

    return kind(what)(fault)


medium("delay", delay=(0.02, 0.15), jitter=(0.0, 0.02))
medium("loss", loss=(0.02, 0.15))
medium("duplicates", duplicate=(0.1, 0.5))
medium("reordering", reorder=(0.1, 0.4), delay=(0.002, 0.02))
medium("bandwidth", rate=(300_000, 1_000_000))


# ---- processes ----------------------------------------------------------------------------------------------------------


@kind("SIGKILL of a rank")
def kill_rank(rig: Rig, draw: Random) -> Iterator[Scene]:
    host, job, rank = rank_of(draw)
    process = rig.jobs[job].processes[rank]
    if process is None or process.code is not None:
        raise Untried(f"{host} is between two lives")
    process.signal(signal.SIGKILL)
    yield Scene(host, (job,), 0)


@kind("SIGKILL of all ranks of a job")
def kill_ranks(rig: Rig, draw: Random) -> Iterator[Scene]:
    job = draw.choice(BOTH)
    for process in rig.jobs[job].processes:
        if process is not None:
            process.signal(signal.SIGKILL)
    yield Scene(job, (job,), 0)


@kind("SIGSTOP of a rank")
def stop_rank(rig: Rig, draw: Random) -> Iterator[Scene]:
    host, job, rank = rank_of(draw)
    process = rig.jobs[job].processes[rank]
    if process is None or process.code is not None:
        raise Untried(f"{host} is between two lives")
    process.signal(signal.SIGSTOP)
    yield Scene(host, (job,), draw.uniform(0.5, 7))
    process.signal(signal.SIGCONT)


@kind(SERVER_KILLED)
def kill_server(rig: Rig, draw: Random) -> Iterator[Scene]:
    server, job = server_of(draw)
    rig.servers[server].kill()
    yield Scene(server, (job,), draw.uniform(0, 4))
    rig.servers[server].start()


@kind("SIGSTOP of a server")
def stop_server(rig: Rig, draw: Random) -> Iterator[Scene]:
    server, job = server_of(draw)
    rig.servers[server].signal(signal.SIGSTOP)
    yield Scene(server, (job,), draw.uniform(0.5, 7))
    rig.servers[server].signal(signal.SIGCONT)


@kind(SERVER_OUT_OF_MEMORY)
def out_of_memory(rig: Rig, draw: Random) -> Iterator[Scene]:
    name, job = server_of(draw)
    server = rig.servers[name]
    if server.memory is None:
        raise Untried("no cgroup of memory can be made here")
    before = server.memory.kills()
    hog = server.memory.press(8 << 20)
    try:
        end = time.monotonic() + 15
        while server.alive and time.monotonic() < end:
            rig.wait(0.05)
        if server.alive or server.memory.kills() == before:
            raise Untried("the kernel killed nobody")
    finally:
        hog.kill()
        hog.wait()
        server.memory.release()
    yield Scene(name, (job,), draw.uniform(0, 2))
    server.start()


@kind(ROLLING)
def rolling(rig: Rig, draw: Random) -> Iterator[Scene]:
    """With ``--former`` the first of two rounds goes to that binary, the second one back."""
    binaries = [rig.settings.former, rig.settings.binary] if rig.settings.former else [rig.settings.binary]
    exits: list[float] = []
    for binary in binaries:
        for server in draw.sample(SERVERS, len(SERVERS)):
            begin = time.monotonic()
            rig.servers[server].signal(signal.SIGTERM)
            while rig.servers[server].alive and time.monotonic() < begin + DRAIN + 10:
                rig.wait(0.02)
            exits.append(time.monotonic() - begin)
            if rig.servers[server].alive:
                rig.servers[server].kill()
            rig.servers[server].start(binary)
            rig.wait(1)
    versions = "the former release and back" if rig.settings.former else "the same binary"
    yield Scene(versions, BOTH, 0, notes={"longest exit, s": max(exits)})


# ---- disks, clocks, secrets, the store ----------------------------------------------------------------------------------


def cached(rig: Rig, server: str, what: str, hold: float) -> Iterator[Scene]:
    """Yields the scene of a failing cache, and notes the server's counts meanwhile."""
    before = rig.servers[server].cache_counts()
    scene = Scene(what, ("replicas",), hold)
    yield scene
    after = rig.servers[server].cache_counts()
    scene.notes |= {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}


@kind("full disk: cache")
def full_cache(rig: Rig, draw: Random) -> Iterator[Scene]:
    for path in rig.cache_disk.path.rglob("*"):
        if path.is_file() and path.stat().st_size > 65_536:
            path.unlink()
    rig.cache_disk.fill()
    yield from cached(rig, "s1", "s1 loses its blocks, and has no room for new ones", draw.uniform(4, 8))
    rig.cache_disk.empty()


@kind(FULL_JOURNAL)
def full_journal(rig: Rig, draw: Random) -> Iterator[Scene]:
    """A journal that cannot be written ends all gangs until the server is restarted, as an operator would do."""
    rig.journal_disk.fill()
    yield Scene(GANG_SERVER, ("gang",), draw.uniform(2, 4))
    rig.journal_disk.empty()
    rig.servers[GANG_SERVER].kill()
    rig.servers[GANG_SERVER].start()


@kind("cache removed")
def no_cache(rig: Rig, draw: Random) -> Iterator[Scene]:
    shutil.rmtree(rig.cache_disk.path / REPLICAS[0], ignore_errors=True)
    yield from cached(rig, "s1", "the directory of s1", draw.uniform(3, 6))


@kind("EIO: cache")
def bad_cache(rig: Rig, draw: Random) -> Iterator[Scene]:
    if rig.bad_disk is None:
        raise Untried(f"no loop device with a file system: {rig.no_bad_disk}")
    rig.bad_disk.fail()
    yield from cached(rig, "s2", "the disk of s2", draw.uniform(5, 10))
    rig.bad_disk.exchange()


@kind("clock skew")
def skew(rig: Rig, draw: Random) -> Iterator[Scene]:
    if rig.settings.faketime is None:
        raise Untried("libfaketime is not here (Debian: apt install libfaketime; or --faketime PATH)")
    host = draw.choice(SKEWED)
    by = draw.choice([-7200, -120, -5, 5, 120, 7200])
    rig.clock(host, by)
    yield Scene(
        f"the wall clock of {host} by {by:+d} s", ("gang",) if host == "r1" else ("replicas",), draw.uniform(4, 7)
    )
    rig.clock(host, 0)


@kind(EXCHANGE)
def rotation(rig: Rig, draw: Random) -> Iterator[Scene]:
    """As docs/serving.md says: new ones are added, then used, then the old ones go; ranks start again in the middle of it."""
    secrets = rig.credentials
    for stage in range(3):
        secrets.next_key(stage)
        secrets.next_token(stage)
        rig.wait(1.5)
    host, job, rank = rank_of(draw)
    longest = 0.0
    for name in SERVERS:
        begin = time.monotonic()
        secrets.issue(name, rig.network.address(name))
        while rig.servers[name].served_serial(host) != secrets.serial():
            if time.monotonic() > begin + 20:
                raise RuntimeError(f"{name} does not serve its new certificate")
            rig.wait(0.2)
        longest = max(longest, time.monotonic() - begin)
    process = rig.jobs[job].processes[rank]
    if process is not None:
        process.signal(signal.SIGKILL)
    yield Scene("all servers, and a rank that connects anew", BOTH, 0, notes={"new certificate served, s": longest})


@kind("store answers 503")
def refusing_store(rig: Rig, draw: Random) -> Iterator[Scene]:
    part = draw.choice([0.1, 0.5, 1.0])
    rig.store_faults.write_text(json.dumps({"refuse": part}))
    yield Scene(f"{part:.0%} of requests", BOTH, draw.uniform(2, 5))
    rig.store_faults.write_text("{}")


@kind("store cuts answers short")
def cutting_store(rig: Rig, draw: Random) -> Iterator[Scene]:
    part = draw.choice([0.1, 0.5])
    rig.store_faults.write_text(json.dumps({"cut": part}))
    yield Scene(f"{part:.0%} of requests", BOTH, draw.uniform(3, 6))
    rig.store_faults.write_text("{}")


@kind("SIGKILL of the store")
def kill_store(rig: Rig, draw: Random) -> Iterator[Scene]:
    rig.kill_store()
    yield Scene("the store", BOTH, draw.uniform(0.5, 5))
    rig.start_store()
