"""The command: see ``python -m chaos --help``, in the directory ``tests``."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from chaos import links
from chaos.faults import KINDS
from chaos.report import joined
from chaos.rig import Rig, Settings
from chaos.run import TWO, run

ROOT = Path(__file__).resolve().parents[2]
UNABLE = 77
FAKETIME = ("libfaketimeMT.so.1", "libfaketime.so.1")


def faketime() -> Path | None:
    """Finds libfaketime in the directory of Debian and others."""
    found = [path for name in FAKETIME for path in Path("/usr/lib").glob(f"*/faketime/{name}")]
    return found[0] if found else None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--seconds", type=float, default=180, help="of faults; the end takes some 20 more")
    parser.add_argument("--faults", type=int, help="ends after so many")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="kinds of faults whose names contain it; several times"
    )
    parser.add_argument("--list", action="store_true", help="the kinds of faults")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/debug/bowstring")
    parser.add_argument("--former", type=Path, help="the binary of a former release, for the upgrade")
    parser.add_argument("--faketime", type=Path, default=faketime(), help="libfaketimeMT.so.1")
    parser.add_argument(
        "--home", type=Path, help="where it works; it stays there. The default is removed after a good end"
    )
    parser.add_argument(
        "--join", nargs="+", type=Path, metavar="REPORT", help="only shows the table of several runs' report.json"
    )
    return parser.parse_args()


def ended(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    given = arguments()
    if given.join:
        print(joined(given.join))
        return 0
    if given.list:
        print("\n".join(KINDS))
        return 0
    try:
        links.check()
    except links.Missing as missing:
        print(f"chaos cannot run here: {missing}", file=sys.stderr)
        return UNABLE
    kinds = [kind for kind in KINDS if not given.only or any(text in kind for text in given.only)]
    if not kinds or not given.binary.exists():
        print(f"no such kind of fault: {given.only}" if not kinds else f"{given.binary} is missing", file=sys.stderr)
        return 2
    home = (given.home or ROOT / "target" / "chaos" / f"{given.seed}-{os.getpid()}").resolve()
    home.mkdir(parents=True)
    signal.signal(signal.SIGTERM, ended)
    repeat = f"make chaos CHAOS_SEED={given.seed} CHAOS_SECONDS={given.seconds:g}"
    print(f"seed {given.seed}; to repeat: {repeat}", flush=True)
    rig = Rig(Settings(home, given.seed, given.binary.resolve(), given.former, given.faketime))
    try:
        report = run(
            rig,
            given.seconds,
            kinds,
            lambda line: print(line, flush=True),
            two=TWO if len(kinds) > 4 else 0,
            most=given.faults,
        )
    finally:
        rig.close()
    report.save(home / "report.json")
    print(f"\n{report.text()}\nto repeat: {repeat}\nreport: {home / 'report.json'}")
    if report.failures:
        print(f"logs and journals: {home}")
        return 1
    if given.home is None:
        for path in home.iterdir():
            if path.name != "report.json":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
