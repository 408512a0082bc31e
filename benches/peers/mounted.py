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
import statistics
import sys
import tempfile
import time

from rig import ROOT, Rig, cpu

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


class Bench(Rig):
    """The files of the tasks, and how they are read."""

    def __init__(self, given: argparse.Namespace, work: pathlib.Path) -> None:
        super().__init__(work, given.servers, given.bowstring, delay=given.delay, limit=4 * given.mib)
        self.given = given

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
        self.put(data)

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
        rig = Bench(given, pathlib.Path(directory))
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
