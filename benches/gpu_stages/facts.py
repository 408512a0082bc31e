"""Describes the machine; measures nothing."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

from common import Settings, stage


def said(*command: str) -> str | None:
    """Returns the output of a command; None if the command is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def chosen(text: str | None, names: tuple[str, ...]) -> list[str]:
    """Returns the lines of ``text`` that start with one of ``names``."""
    return [line.strip() for line in (text or "").splitlines() if line.strip().startswith(names)]


def run(_: Settings) -> dict[str, Any]:
    """Collects facts of machine, driver and libraries."""
    import bowstring
    import torch

    pci = (
        "PCIe Generation",
        "Max",
        "Current",
        "Device Max",
        "Host Max",
        "Link Width",
        "Product Name",
        "Driver Version",
    )
    version = Path("/proc/version")
    return {
        "ok": True,
        "doctor": bowstring.doctor(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kernel": version.read_text().strip() if version.exists() else platform.platform(),
        "cpu": chosen(said("lscpu"), ("Model name", "CPU(s)", "Thread(s) per core", "Core(s)", "NUMA")),
        "gpu": chosen(said("nvidia-smi", "-q"), pci)[:40],
        "topology": said("nvidia-smi", "topo", "-m"),
    }


if __name__ == "__main__":
    stage(run)
