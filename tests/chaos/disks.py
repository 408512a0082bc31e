"""Small disks that fill up and fail, and a limit of memory: the faults of a bad machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path


def run(*command: str | Path) -> str:
    """Runs a command and returns its output; the error of a failure has its messages."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout.strip()


class Disk:
    """A file system in memory, of a few MiB."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.filler = path, path / "filler"
        path.mkdir(parents=True)
        run("mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "chaos", path)

    def fill(self) -> None:
        """Fills the remaining space."""
        with contextlib.suppress(OSError), self.filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def empty(self) -> None:
        """Frees that space."""
        self.filler.unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=False)


class BadDisk:
    """An ext4 on a loop device whose sectors stop answering: reads and writes are EIO, later it may become read-only."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self.below = Disk(path.with_name(f"{path.name}-sectors"), size * 5 // 4)
        self.image = self.below.path / "image"
        self.device = ""
        path.mkdir()
        try:
            self.mount()
        except RuntimeError:
            self.below.close()
            raise

    def mount(self) -> None:
        """Makes and mounts an empty file system."""
        with self.image.open("wb") as file:
            file.truncate(self.size)
        run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,nodiscard", self.image)
        self.device = run("losetup", "--find", "--show", self.image)
        run("mount", self.device, self.path)

    def fail(self) -> None:
        """Takes all sectors away."""
        for path in self.path.rglob("*"):
            # Pages in memory would hide the loss.
            with contextlib.suppress(OSError), path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.truncate(self.image, 0)
        self.below.fill()

    def exchange(self) -> None:
        """Puts a new disk in its place."""
        self.unmount()
        self.below.empty()
        self.mount()

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=False)
        if self.device:
            subprocess.run(["losetup", "--detach", self.device], capture_output=True, check=False)

    def close(self) -> None:
        self.unmount()
        self.below.close()


class Memory:
    """A cgroup for one process, v1 or v2; :meth:`made` returns ``None`` where none can be made."""

    def __init__(self, path: Path, limit: str, usage: str) -> None:
        self.path, self.limit, self.usage = path, path / limit, path / usage

    @classmethod
    def made(cls, name: str) -> Memory | None:
        old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        with contextlib.suppress(OSError):
            if old.is_dir():
                (old / name).mkdir()
                return cls(old / name, "memory.limit_in_bytes", "memory.usage_in_bytes")
            if "memory" in (new / "cgroup.subtree_control").read_text().split():
                (new / name).mkdir()
                return cls(new / name, "memory.max", "memory.current")
        return None

    def add(self, process: int) -> None:
        (self.path / "cgroup.procs").write_text(str(process))

    def kills(self) -> int:
        """Returns the number of processes that the kernel killed here for memory."""
        for name in ("memory.oom_control", "memory.events"):
            with contextlib.suppress(OSError):
                for line in (self.path / name).read_text().splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def press(self, room: int) -> subprocess.Popen[bytes]:
        """Limits the group to its usage and `room` bytes, and starts a process in it that takes more and is never killed for it."""
        self.limit.write_text(str(int(self.usage.read_text()) + room))
        hog = (
            "import os, time\n"
            "open('/proc/self/oom_score_adj', 'w').write('-1000')\n"
            f"open({str(self.path / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
            f"held = b'x' * {2 * room}\n"
            "time.sleep(60)\n"
        )
        return subprocess.Popen([sys.executable, "-c", hog], stderr=subprocess.DEVNULL)

    def release(self) -> None:
        self.limit.write_text("-1" if self.limit.name == "memory.limit_in_bytes" else "max")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()
