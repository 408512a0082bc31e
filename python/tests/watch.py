"""A process whose system calls another one watches: those that could run, send, signal, open or change something.

The kernel asks by ``SECCOMP_RET_USER_NOTIF``: the call waits until the watcher has read its arguments and lets it go on, or
refuses it. All threads of the process are watched, those that exist already too. Only a test may rely on it: a thread that
changes a path between the look and the call would get by.

:func:`confine` is for the process that is watched, :class:`Watch` for the one that watches.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import pathlib
import platform
import re
import select
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

# Calls with their numbers on x86-64 and AArch64; the latter lacks the oldest.
CALLS: dict[str, tuple[int | None, int | None]] = {
    # Programs and processes.
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    # The network.
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    # Other processes.
    "kill": (62, 129),
    "pidfd_open": (434, 434),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    # Ways around: they act without a call that is watched, or on the whole machine.
    "io_uring_setup": (425, 425),
    "bpf": (321, 280),
    "memfd_create": (319, 279),
    "mount": (165, 40),
    "chroot": (161, 51),
}
# Files, with the places of the paths among the arguments: before a path is its directory, unless the call has none.
FILES: dict[str, tuple[int | None, int | None, tuple[int, ...], bool]] = {
    "open": (2, None, (0,), False),
    "creat": (85, None, (0,), False),
    "openat": (257, 56, (1,), True),
    "openat2": (437, 437, (1,), True),
    "truncate": (76, 45, (0,), False),
    "mkdir": (83, None, (0,), False),
    "mkdirat": (258, 34, (1,), True),
    "mknod": (133, None, (0,), False),
    "mknodat": (259, 33, (1,), True),
    "rmdir": (84, None, (0,), False),
    "unlink": (87, None, (0,), False),
    "unlinkat": (263, 35, (1,), True),
    "rename": (82, None, (0, 1), False),
    "renameat": (264, 38, (1, 3), True),
    "renameat2": (316, 276, (1, 3), True),
    "link": (86, None, (0, 1), False),
    "linkat": (265, 37, (1, 3), True),
    "symlink": (88, None, (1,), False),
    "symlinkat": (266, 36, (2,), True),
    "chmod": (90, None, (0,), False),
    "fchmodat": (268, 53, (1,), True),
    "chown": (92, None, (0,), False),
    "fchownat": (260, 54, (1,), True),
}
# `clone` makes threads too, which are allowed. The flags of `clone3` are in memory, where a filter cannot look: without it the C
# library takes the older one.
CLONE, CLONE3, SECCOMP = (56, 220), (435, 435), (317, 277)
CLONE_THREAD = 0x10000
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

NOTIFY, ALLOW, KILL, ERRNO = 0x7FC00000, 0x7FFF0000, 0x80000000, 0x00050000
RECEIVE, SEND = 0xC0502100, 0xC0182101
CONTINUE = 1
# All threads, and a descriptor of the watcher; an error, not a thread's number, if one cannot be watched.
FLAGS = 1 | 8 | 16
# Opening a path below this only says which case begins.
CASE = "/the-case-that-begins/"


def machine() -> tuple[int, int]:
    """The column of the calls above, and the name of the architecture in a filter."""
    found = MACHINES.get(platform.machine())
    if sys.platform != "linux" or found is None:
        raise OSError(errno.ENOSYS, f"no numbers of system calls for {sys.platform} on {platform.machine()}")
    return found


def program() -> bytes:
    """The filter, in the instructions of BPF."""
    column, architecture = machine()

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("<HBBI", code, yes, no, value)

    load, equal, above, has, end = 0x20, 0x15, 0x35, 0x45, 0x06
    made = step(load, 4) + step(equal, architecture, 1) + step(end, KILL)
    # Calls of the 32-bit kind have numbers from here.
    made += step(load, 0) + step(above, 0x40000000, 0, 1) + step(end, KILL)
    for numbers in [*CALLS.values(), *((x86, arm) for x86, arm, _, _ in FILES.values())]:
        number = numbers[column]
        if number is not None:
            made += step(equal, number, 0, 1) + step(end, NOTIFY)
    made += step(equal, CLONE3[column], 0, 1) + step(end, ERRNO | errno.ENOSYS)
    made += step(equal, CLONE[column], 0, 3) + step(load, 16) + step(has, CLONE_THREAD, 1) + step(end, NOTIFY)
    return made + step(end, ALLOW)


def confine(link: socket.socket) -> None:
    """Has this process watched by the one at the other end of ``link`` for ever, or tells it why that cannot be."""
    try:
        listener = asking()
    except OSError as error:
        link.send((error.strerror or str(error)).encode())
        raise
    socket.send_fds(link, [b"watched"], [listener])
    os.close(listener)
    link.recv(1)


def asking() -> int:
    """Filters the calls of all threads of this process, and returns the descriptor by which the kernel asks."""
    library = ctypes.CDLL(None, use_errno=True)
    steps = program()
    kept = ctypes.create_string_buffer(steps, len(steps))
    whole = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(kept))
    # No new privileges: what the kernel wants before anybody may set a filter.
    if library.prctl(38, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refuses PR_SET_NO_NEW_PRIVS")
    call = SECCOMP[machine()[0]]
    listener: int = library.syscall(ctypes.c_long(call), ctypes.c_ulong(1), ctypes.c_ulong(FLAGS), whole)
    if listener < 0:
        why = os.strerror(ctypes.get_errno())
        raise OSError(ctypes.get_errno(), f"the kernel refuses a filter that asks another process: {why}")
    return listener


class UnwatchedError(Exception):
    """The kernel does not let the process be watched."""


@dataclass
class Call:
    """A call that was refused."""

    case: str
    name: str
    detail: str


class Watch:
    """Answers the calls of one process, in a thread."""

    def __init__(
        self,
        link: socket.socket,
        reads: Sequence[str | os.PathLike[str]],
        writes: Sequence[str | os.PathLike[str]],
        network: bool = False,
    ) -> None:
        """Files below ``reads`` may be opened, those below ``writes`` changed too; with ``network``, connections may be made."""
        said, descriptors, _, _ = socket.recv_fds(link, 400, 1)
        if not descriptors:
            raise UnwatchedError(said.decode() or "the process ended before")
        self.listener = descriptors[0]
        self.reads = [os.path.realpath(path) for path in (*reads, *writes)]
        self.writes = [os.path.realpath(path) for path in writes]
        self.granted = {"socket", "connect"} if network else set()
        self.refused: list[Call] = []
        self.seen = 0
        self.cases = 0
        self.case = "before the first case"
        column, _ = machine()
        self.names = {numbers[column]: name for name, numbers in CALLS.items()}
        self.names |= {numbers[column]: name for name, numbers in FILES.items()}
        self.names[CLONE[column]] = "clone"
        self.thread = threading.Thread(target=self.answer, daemon=True)
        self.thread.start()
        link.send(b"g")

    def answer(self) -> None:
        """Answers until the process has ended."""
        waiting = select.poll()
        waiting.register(self.listener, select.POLLIN)
        while True:
            _, event = waiting.poll()[0]
            if not event & select.POLLIN:
                break
            asked = array.array("B", bytes(80))
            try:
                fcntl.ioctl(self.listener, RECEIVE, asked)
            except OSError as error:
                # The thread that asked has been killed.
                if error.errno in {errno.ENOENT, errno.EINTR}:
                    continue
                raise
            key, process, _, number, _, _, *arguments = struct.unpack("<QIIiIQ6Q", asked.tobytes())
            self.seen += 1
            error = self.judge(process, self.names.get(number, str(number)), arguments)
            reply = array.array("B", struct.pack("<QqiI", key, 0, -error, 0 if error else CONTINUE))
            with contextlib.suppress(FileNotFoundError):
                fcntl.ioctl(self.listener, SEND, reply)
        os.close(self.listener)

    def judge(self, process: int, name: str, arguments: list[int]) -> int:
        """The error of a call; 0 lets it go on."""
        if name in self.granted:
            return 0
        if name not in FILES:
            self.refused.append(Call(self.case, name, f"{[hex(value) for value in arguments]}"))
            return errno.EPERM
        _, _, places, relative = FILES[name]
        paths = [path_of(process, arguments, place, relative) for place in places]
        if name in {"open", "openat"} and paths[0].startswith(CASE):
            self.case = paths[0].removeprefix(CASE)
            self.cases += 1
            return errno.ENOENT
        changes = name not in {"open", "openat"}
        if not changes:
            flags = arguments[places[0] + 1]
            changes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        allowed = self.writes if changes else self.reads
        if all(within(path, allowed) for path in paths):
            return 0
        self.refused.append(Call(self.case, name, f"{'changes' if changes else 'reads'} {' '.join(paths)}"))
        return errno.EPERM


def path_of(process: int, arguments: list[int], place: int, relative: bool) -> str:
    """The path of an argument, as a whole one without links."""
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        text = b""
        while b"\0" not in text and len(text) < 4096:
            # Not beyond the end of a page: the next may not be there.
            at = arguments[place] + len(text)
            text += os.pread(memory.fileno(), min(256, 4096 - at % 4096), at)
    path = os.fsdecode(text.partition(b"\0")[0])
    directory = ctypes.c_int32(arguments[place - 1] & 0xFFFFFFFF).value if relative else -100
    if not path.startswith("/"):
        base = f"/proc/{process}/cwd" if directory == -100 else f"/proc/{process}/fd/{directory}"
        path = os.path.join(os.readlink(base), path)
    # What `self` means is said by who asks.
    opened = re.match(r"/proc/self/fd/(\d+)/", path)
    if opened:
        path = os.path.join(os.readlink(f"/proc/{process}/fd/{opened[1]}"), path[opened.end() :])
    if path.startswith(("/proc/self/", "/proc/thread-self/")):
        return os.path.normpath(path)
    return path if path.startswith(CASE) else os.path.realpath(path)


def within(path: str, places: Sequence[str]) -> bool:
    """True if ``path`` is one of ``places`` or below one."""
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def begin(case: str) -> None:
    """Tells the watcher which case begins."""
    with contextlib.suppress(OSError):
        pathlib.Path(CASE + case.replace("/", " ").replace("\0", " ")).open("rb").close()
