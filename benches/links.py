"""Hosts of this machine as network namespaces, each behind a link of a rate, for benches in which links bind. Linux, root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

NETWORK = "10.78.0"
ROOT = f"{NETWORK}.1"
"""The address of this process's own namespace, which has no limit."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()} (network namespaces need Linux, root, iproute2)")


class Host:
    """A namespace with an address, at the other end of ``device``."""

    def __init__(self, name: str, address: str, device: str) -> None:
        self.name, self.address, self.device = name, address, device

    def sent(self) -> int:
        """Bytes that it has sent, with the headers of packets."""
        return int(Path(f"/sys/class/net/{self.device}/statistics/rx_bytes").read_text())

    def command(self, *command: object) -> list[str]:
        """The command line that runs a command in the namespace, as the started process itself."""
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *map(str, command)]


@contextlib.contextmanager
def hosts(count: int, mbit: float) -> Iterator[list[Host]]:
    """So many hosts on one switch, each of which sends and receives at most ``mbit`` million bits a second."""
    prefix = f"b{os.getpid() % 100_000:x}"
    bridge = f"{prefix}br"
    made = [
        Host(f"bench-{prefix}-{number}", f"{NETWORK}.{number + 2}", f"{prefix}o{number}") for number in range(count)
    ]
    shape = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "200ms"]
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{ROOT}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number, host in enumerate(made):
            outer, inner = host.device, f"{prefix}i{number}"
            _run("ip", "netns", "add", host.name)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", host.name)
            _run("ip", "link", "set", outer, "master", bridge, "up")
            _run("ip", "-n", host.name, "addr", "add", f"{host.address}/24", "dev", inner)
            _run("ip", "-n", host.name, "link", "set", inner, "up")
            _run("ip", "-n", host.name, "link", "set", "lo", "up")
            _run("tc", "qdisc", "add", "dev", outer, *shape)
            _run("tc", "-n", host.name, "qdisc", "add", "dev", inner, *shape)
        yield made
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)
