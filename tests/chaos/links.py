"""Hosts as network namespaces, and the links between them, which can be cut, slowed and damaged."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

NETWORK = "10.77.0"
# Seconds in which the process of the wire answers, on a machine of any load.
PATIENCE = 60.0
Pair = tuple[str, str]


class Missing(Exception):
    """The machine lacks something that all of this needs."""


def check() -> None:
    """Raises :class:`Missing` if this machine cannot have the hosts."""
    if not sys.platform.startswith("linux"):
        raise Missing("network namespaces need Linux")
    if os.geteuid() != 0:
        raise Missing("namespaces, tunnels and mounts need root: run it as root, or with sudo -E")
    for tool in ("ip", "nsenter", "openssl", "mount"):
        if shutil.which(tool) is None:
            raise Missing(f"the command {tool} is missing (Debian: iproute2, util-linux, openssl, mount)")
    if not Path("/dev/net/tun").exists():
        raise Missing("/dev/net/tun is missing: the kernel has no tunnel devices, or the container was not given them")
    name = f"chaos-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise Missing(f"no network namespace can be made: {tried.stderr.strip()}")
    subprocess.run(["ip", "netns", "del", name], check=False)


def ip(*arguments: str) -> None:
    """Runs ``ip``; raises its error."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Network:
    """Hosts with an address each, and the wire between all of them."""

    def __init__(self, hosts: Iterable[str], seed: int) -> None:
        self.numbers = {host: number for number, host in enumerate(hosts, 1)}
        self.prefix = f"c{os.getpid() % 100_000:x}"
        devices = [f"{self.device(host)}={number}" for host, number in self.numbers.items()]
        self.wire = subprocess.Popen(
            [sys.executable, "-m", "chaos.wire", str(seed), *devices],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._answer()
            for host in self.numbers:
                self._connect(host)
        except BaseException:
            self.close()
            raise

    def device(self, host: str) -> str:
        return f"{self.prefix}{host}"

    def namespace(self, host: str) -> str:
        return f"chaos-{self.prefix}-{host}"

    def address(self, host: str) -> str:
        return f"{NETWORK}.{self.numbers[host]}"

    def command(self, host: str, *command: str) -> list[str]:
        """Returns the command line that runs a command inside the host, as the started process itself: signals reach it."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(host)}", "--", *command]

    def _connect(self, host: str) -> None:
        namespace, device = self.namespace(host), self.device(host)
        ip("netns", "add", namespace)
        ip("link", "set", device, "netns", namespace)
        ip("-n", namespace, "addr", "add", f"{self.address(host)}/24", "dev", device)
        # Jumbo frames: a packet costs the wire the same, whatever its size.
        ip("-n", namespace, "link", "set", device, "mtu", "9000", "up")
        ip("-n", namespace, "link", "set", "lo", "up")

    def _answer(self) -> dict[str, int]:
        assert self.wire.stdout is not None
        # Each command has one line of answer, so nothing is left in the buffer.
        if not select.select([self.wire.stdout], [], [], PATIENCE)[0]:
            raise RuntimeError(f"the wire did not answer within {PATIENCE:.0f} s")
        line = self.wire.stdout.readline()
        if not line:
            raise RuntimeError("the wire ended")
        answer: dict[str, int] = json.loads(line)
        return answer

    def _tell(self, what: object) -> dict[str, int]:
        assert self.wire.stdin is not None
        self.wire.stdin.write(json.dumps(what) + "\n")
        self.wire.stdin.flush()
        return self._answer()

    # ---- faults of the medium ------------------------------------------------------------------------------------------

    def rule(self, pairs: Iterable[Pair], **rule: float) -> None:
        """Sets what happens to packets from the first to the second of each pair; without a rule, nothing does."""
        numbered = [(self.numbers[source], self.numbers[target]) for source, target in pairs]
        self._tell({"do": "rule", "pairs": numbered, "rule": rule})

    def clear(self) -> None:
        """Removes the faults of all links."""
        self._tell({"do": "clear"})

    def counts(self) -> dict[str, int]:
        """Returns the numbers of packets so far, in all and by fault."""
        return self._tell({"do": "count"})

    # ---- faults of a host ----------------------------------------------------------------------------------------------

    def up(self, host: str, up: bool) -> None:
        """Sets the host's link up, or down: the host's own calls then fail at once."""
        ip("-n", self.namespace(host), "link", "set", self.device(host), "up" if up else "down")

    def blackhole(self, host: str, peer: str, there: bool) -> None:
        """Adds or removes a route on which the host's packets to a peer are lost; the other way stays."""
        verb = "add" if there else "del"
        ip("-n", self.namespace(host), "route", verb, "blackhole", f"{self.address(peer)}/32")

    def close(self) -> None:
        """Ends the wire and the hosts."""
        with contextlib.suppress(OSError):
            if self.wire.stdin is not None:
                self.wire.stdin.close()
        try:
            self.wire.wait(5)
        except subprocess.TimeoutExpired:
            self.wire.kill()
            self.wire.wait()
        for host in self.numbers:
            subprocess.run(["ip", "netns", "del", self.namespace(host)], capture_output=True, check=False)
