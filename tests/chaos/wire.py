"""The wire between namespaces: every packet goes through this process, which delays, drops, doubles and reorders it.

Each host has one tunnel device (``/dev/net/tun``), whose other end is read here. The kernel's own TCP runs at both ends of each
link; only the medium between them is a program. So each direction of each pair of hosts has faults of its own, a seed repeats
them, and no kernel module (``sch_netem``, ``nf_tables``) is needed.

Reads commands from standard input, one JSON object a line, and answers each with a line.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

TUNSETIFF = 0x400454CA
TUN_WITHOUT_HEADER = 0x0001 | 0x1000
# Packets that wait longer for a slow link are dropped.
QUEUE_SECONDS = 0.4


@dataclass
class Rule:
    """The faults of one direction."""

    cut: bool = False
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0
    rate: float = 0.0
    """Bytes per second; 0 means no limit."""


@dataclass
class Direction:
    """One direction of a link: its rule, and the time until which it is busy."""

    rule: Rule = field(default_factory=Rule)
    busy: float = 0.0
    last: float = 0.0


class Wire:
    """All hosts, by the last byte of their addresses."""

    def __init__(self, devices: dict[int, int], seed: int) -> None:
        self.devices = devices
        self.random = random.Random(seed)
        self.directions: dict[tuple[int, int], Direction] = {}
        self.due: list[tuple[float, int, int, bytes]] = []
        self.numbers = count()
        self.counts: Counter[str] = Counter()

    def take(self, packet: bytes) -> None:
        """Passes a packet of a host on: now, later, twice or not at all."""
        if len(packet) < 20 or packet[0] >> 4 != 4:
            return
        source, target = packet[15], packet[19]
        if target not in self.devices:
            return
        self.counts["packets"] += 1
        direction = self.directions.get((source, target))
        if direction is None:
            self.put(target, packet)
            return
        rule, draw = direction.rule, self.random.random
        if rule.cut:
            self.counts["cut"] += 1
            return
        if rule.loss and draw() < rule.loss:
            self.counts["lost"] += 1
            return
        now = time.monotonic()
        at = now
        if rule.rate:
            if direction.busy - now > QUEUE_SECONDS:
                self.counts["overflowed"] += 1
                return
            direction.busy = at = max(now, direction.busy) + len(packet) / rule.rate
        if rule.reorder and draw() < rule.reorder:
            # It overtakes those that wait, or is overtaken.
            self.counts["reordered"] += 1
            at += draw() * max(rule.delay, 0.02)
        else:
            at += max(0.0, rule.delay + rule.jitter * (2 * draw() - 1))
            direction.last = at = max(at, direction.last)
        self.later(at, now, target, packet)
        if rule.duplicate and draw() < rule.duplicate:
            self.counts["duplicated"] += 1
            self.later(at + draw() * 0.01, now, target, packet)

    def later(self, at: float, now: float, target: int, packet: bytes) -> None:
        if at <= now:
            self.put(target, packet)
        else:
            self.counts["delayed"] += 1
            heapq.heappush(self.due, (at, next(self.numbers), target, packet))

    def put(self, target: int, packet: bytes) -> None:
        try:
            os.write(self.devices[target], packet)
        except OSError:
            # The device is down, or its queue is full.
            self.counts["refused"] += 1

    def deliver(self) -> float | None:
        """Delivers the due packets; returns the seconds until the next one."""
        now = time.monotonic()
        while self.due and self.due[0][0] <= now:
            _, _, target, packet = heapq.heappop(self.due)
            self.put(target, packet)
        return self.due[0][0] - now if self.due else None

    def command(self, line: str) -> object:
        asked = json.loads(line)
        if asked["do"] == "rule":
            for source, target in asked["pairs"]:
                direction = self.directions.setdefault((source, target), Direction())
                direction.rule = Rule(**asked["rule"])
                direction.busy = 0.0
        elif asked["do"] == "clear":
            self.directions.clear()
        return dict(self.counts)


def opened(name: str) -> int:
    """Opens a tunnel device of this name."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), TUN_WITHOUT_HEADER))
    return device


def main() -> None:
    with contextlib.suppress(OSError):
        # A real network is not slowed down by hosts that compete for processors.
        os.nice(-10)
    seed, *hosts = sys.argv[1:]
    devices = {}
    for host in hosts:
        name, number = host.split("=")
        devices[int(number)] = opened(name)
    wire = Wire(devices, int(seed))
    poll = select.epoll()
    for device in devices.values():
        poll.register(device, select.EPOLLIN)
    poll.register(0, select.EPOLLIN)
    print("{}", flush=True)
    pending = b""
    while True:
        wait = wire.deliver()
        for ready, _ in poll.poll(wait if wait is None else max(0.0005, wait)):
            if ready == 0:
                read = os.read(0, 65536)
                if not read:
                    return
                *lines, pending = (pending + read).split(b"\n")
                for line in lines:
                    print(json.dumps(wire.command(line.decode())), flush=True)
                continue
            for _ in range(64):
                try:
                    packet = os.read(ready, 65536)
                except OSError:
                    break
                wire.take(packet)


if __name__ == "__main__":
    main()
