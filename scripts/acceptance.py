#!/usr/bin/env python3
"""The first ten minutes of a user in ten steps: what they type, what they see, and how long each step takes.

    python3 scripts/acceptance.py --wheels dist       the wheel of a directory, installed into a fresh environment
    python scripts/acceptance.py                      the package that this interpreter imports

Needs no root; without a browser the page is read as text, and without Java the step of Spark says so. Nothing is written outside of
a temporary directory and --keep.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator

TESTS = pathlib.Path(__file__).resolve().parent.parent / "python" / "tests"
# Seconds for one command. A download of PyTorch is the longest.
PATIENCE = 900.0
# Lines of an error that a person reads.
LINES = 5
RANKS = 4
PICTURES = 40
CLASSES = ("cat", "dog", "owl")

MAKE = f"""\
import pathlib
from PIL import Image

for shade, name in enumerate({CLASSES!r}):
    place = pathlib.Path("images", name)
    place.mkdir(parents=True)
    for number in range({PICTURES}):
        Image.effect_noise((96, 80), 40 + 20 * shade).convert("RGB").save(place / f"{{number:03}}.jpg", quality=85)
"""

LOOP = """\
from bowstring import Image
from bowstring.torch import DataLoader

loader = DataLoader("ds/", batch_size=8, images={"image": Image(64)}, seed=7)
for batch in loader:
    image, label = batch["image"], batch["label"]
print(f"{len(loader)} steps, {loader.rows} rows; {tuple(image.shape)} {image.dtype}, {label.dtype}")
"""

RANK = """\
import sys
from bowstring import Image, Loader

images = {"image": Image(512)}
loader = Loader(sys.argv[1], batch_size=2, images=images, columns=["image", "label"], row_id=True, prefetch=1, seed=7)
rows = []
for step, batch in enumerate(loader):
    rows += batch["_row_id"].tolist()
    if step == 1:
        print("at step 1", flush=True)
        input()
print(*rows)
"""

TRAIN = """\
import hashlib, json, os, pathlib, sys, time
from bowstring import Image, Loader

state = pathlib.Path("state.json")
loader = Loader("ds/", batch_size=8, images={"image": Image(64)}, columns=["image", "label"], seed=7)
digest = ""
if state.exists():
    saved = json.loads(state.read_text())
    loader.load_state_dict(saved["loader"])
    digest = saved["digest"]
    print("resumed at step", loader.step)
for batch in loader:
    digest = hashlib.sha256(digest.encode() + batch["image"].tobytes() + batch["label"].tobytes()).hexdigest()
    pathlib.Path("state.new").write_text(json.dumps({"loader": loader.state_dict(), "digest": digest}))
    os.replace("state.new", state)
    time.sleep(float(sys.argv[1]))
print("digest", digest)
"""

SPARK = """\
import bowstring.spark
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
bowstring.spark.register(spark)
spark.read.format("bowstring").load("ds/").groupBy("class").count().orderBy("class").show()
"""

WRONG = """\
from bowstring import Loader

Loader("ds/", batchsize=8)
"""

CHANGED = """\
import pathlib
from bowstring import Loader

loader = Loader("changed/", batch_size=8, columns=["label"])
for epoch in range(2):
    for batch in loader:
        pass
    for file in pathlib.Path("changed").glob("*.parquet"):
        file.write_bytes(file.read_bytes().replace(b"PAR1", b"PAR0", 1))
"""


class Failed(Exception):
    """A step that did not do what it should."""


class Session:
    """What a user has: a directory, a command, an interpreter, and a record of all that was typed and printed."""

    def __init__(self, place: pathlib.Path, wheels: pathlib.Path | None) -> None:
        self.place, self.wheels = place, wheels
        # A user has none of the options of whoever runs this.
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("BOWSTRING_", "AWS_"))
        }
        self.environment["PYTHONUNBUFFERED"] = "1"
        self.activate(sys.executable)

    def activate(self, python: str) -> None:
        """Uses another interpreter, as `activate` of its environment does: Spark starts the `python3` that it finds."""
        self.python = python
        path = f"{pathlib.Path(python).parent}{os.pathsep}{self.environment.get('PATH', os.defpath)}"
        self.environment["PATH"] = path

    def words(self, command: str) -> list[str]:
        """The arguments of a command line; `bowstring` and `python` are those of the environment."""
        first, *rest = shlex.split(command)
        return {"bowstring": [self.python, "-m", "bowstring"], "python": [self.python]}.get(first, [first]) + rest

    def start(self, command: str, **environment: str) -> subprocess.Popen[str]:
        """Starts a command; its standard error is part of its output."""
        return subprocess.Popen(
            self.words(command),
            cwd=self.place,
            env={**self.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str, expect: str = "", code: int | None = 0, **environment: str) -> str:
        """Runs a command, and checks its exit code and a pattern in what it prints."""
        print(f"$ {command}", flush=True)
        process = self.start(command, **environment)
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failed(f"`{command}` took more than {PATIENCE:.0f} s") from None
        print(said, end="" if said.endswith("\n") else "\n", flush=True)
        if code is not None and process.returncode != code:
            raise Failed(f"`{command}` ended with exit code {process.returncode}, not {code}")
        if not re.search(expect, said):
            raise Failed(f"`{command}` does not print {expect!r}")
        return said

    def program(self, name: str, text: str) -> None:
        """Writes a program of the user."""
        (self.place / name).write_text(text)
        print("".join(f"{name}| {line}\n" for line in text.splitlines()), end="", flush=True)


def install(session: Session) -> None:
    """The wheel, the library for its tensors, and what the comparison and the pictures need."""
    if session.wheels is not None:
        session.run("python -m venv venv")
        session.activate(str(session.place / "venv" / "bin" / "python"))
        # The wheel from the directory alone; then its extras, which no index is asked for bowstring for.
        session.run(
            f"python -m pip install --quiet --no-index --find-links {shlex.quote(str(session.wheels))} bowstring"
        )
        session.run('python -m pip install --quiet "bowstring[torch,arrow,spark]" pillow')
    session.run("bowstring --version", r"^bowstring \d")


def convert(session: Session) -> None:
    session.program("pictures.py", MAKE)
    session.run("python pictures.py")
    session.run("bowstring convert images/ ds/ --rows-per-group 10", rf"written +{len(CLASSES) * PICTURES} ")


def inspect(session: Session) -> None:
    session.run("bowstring inspect ds/", rf"(?s)^{len(CLASSES) * PICTURES} rows.*JPEG.*Advice")


def plan(session: Session) -> None:
    session.run(f"bowstring plan ds/ --batch-size 8 --world-size {RANKS}", rf"the same on each of {RANKS} ranks")


def loop(session: Session) -> None:
    session.program("loop.py", LOOP)
    session.run("python loop.py", r"^15 steps, 120 rows; \(8, 3, 64, 64\) torch.uint8, torch.int64")


def serve(session: Session, keep: pathlib.Path | None) -> None:
    session.program("rank.py", RANK)
    command = "bowstring serve ds/ --listen 127.0.0.1:0 --admin 127.0.0.1:0 --print-address"
    print(f"$ {command}", flush=True)
    with started(session, command) as server:
        assert server.stdout is not None
        found = {}
        while len(found) < 2:
            line = server.stdout.readline()
            if not line:
                raise Failed("the server ended")
            if match := re.match(r"(grpc|http)://\S+", line):
                found[match[1]] = match[0]
                print(line, end="")
        command = f"python rank.py {found['grpc']}/ds"
        print(f"$ {command}      # with RANK from 0 to {RANKS - 1}", flush=True)
        with contextlib.ExitStack() as stack:
            several = {"WORLD_SIZE": str(RANKS)}
            ranks = [stack.enter_context(started(session, command, RANK=str(one), **several)) for one in range(RANKS)]
            for rank in ranks:
                assert rank.stdout is not None
                while (line := rank.stdout.readline()) != "at step 1\n":
                    if not line:
                        raise Failed("a rank ended before step 1")
            look(found["http"], keep)
            session.run(f"bowstring top --once {found['http']}", rf"{RANKS} of {RANKS} streams")
            rows = []
            for number, rank in enumerate(ranks):
                said, _ = rank.communicate("\n", timeout=PATIENCE)
                print(f"rank {number}: {len(said.split())} rows")
                rows += map(int, said.split())
            if sorted(rows) != list(range(len(CLASSES) * PICTURES)):
                raise Failed(f"the ranks got {len(rows)} rows, {len(set(rows))} different ones")
        server.send_signal(signal.SIGINT)
        if server.wait(PATIENCE):
            raise Failed(f"Ctrl-C ends the server with exit code {server.returncode}")


def look(address: str, keep: pathlib.Path | None) -> None:
    """Opens the page in a browser where there is one."""
    with urllib.request.urlopen(f"{address}/ui", timeout=60) as answer:
        page = answer.read().decode()
    if "<title" not in page:
        raise Failed(f"{address}/ui is not a page")
    print(f"{address}/ui: {len(page):,} bytes, refers to nothing else")
    if not (TESTS / "browser.py").exists():
        return
    sys.path.insert(0, str(TESTS))
    from browser import browser, program

    path = program()
    if path is None:
        print("no browser here: the page was read as text")
        return
    with browser(path) as tab:
        tab.open(f"{address}/ui")
        tab.wait("document.body.innerText.includes('ds')")
        if tab.said:
            raise Failed(f"the browser complains of the page: {tab.said}")
        if keep is not None:
            tab.picture(keep / "ui.png")
            print(f"a picture of it is in {keep / 'ui.png'}")


@contextlib.contextmanager
def started(session: Session, command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone at the end, whatever happens."""
    process = session.start(command, **environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def resume(session: Session) -> None:
    session.program("train.py", TRAIN)
    whole = session.run("python train.py 0", "^digest ")
    state = session.place / "state.json"
    state.unlink()
    print("$ python train.py 0.1      # and Ctrl-C", flush=True)
    with started(session, "python train.py 0.1") as training:
        end = time.monotonic() + PATIENCE
        while not state.exists() or '"step": 3' not in state.read_text().replace('"step":3', '"step": 3'):
            if training.poll() is not None or time.monotonic() > end:
                raise Failed("the training did not come to step 3")
            time.sleep(0.02)
        training.send_signal(signal.SIGINT)
        said, _ = training.communicate(timeout=PATIENCE)
    if "digest" in said or "KeyboardInterrupt" not in said:
        raise Failed(f"Ctrl-C did not end the training: {said}")
    print(said.splitlines()[-1])
    again = session.run("python train.py 0", r"^resumed at step \d+\ndigest ")
    if again.splitlines()[-1] != whole.splitlines()[-1]:
        raise Failed("the resumed run delivered other batches")
    print("the same digest")


def compare(session: Session) -> None:
    images = shlex.quote('{"image": {"size": 64}}')
    session.run(
        f"bowstring bench ds/ --against torch --batch-size 8 --images {images}",
        r"(?s)bowstring +.*torch, \d workers? +.*torch, no workers +.*All delivered the same rows",
    )


def spark(session: Session) -> None:
    if shutil.which("java") is None:
        print("no Java here: Spark needs one")
        return
    session.program("spark.py", SPARK)
    session.run("python spark.py", "".join(rf"(?s:.*)\| *{name}\| *{PICTURES}\|" for name in CLASSES))


def errors(session: Session) -> None:
    brief(session.run("bowstring plan ds/ --batch-sise 8", "--batch-size", 2))
    session.program("wrong.py", WRONG)
    brief(session.run("python wrong.py", r"did you mean batch_size=\?", 1))
    # Nobody answers there. A machine of a cloud has a service that gives it the credentials of its role, and others have nobody.
    nobody = {"AWS_METADATA_ENDPOINT": "http://127.0.0.1:1", "HOME": str(session.place)}
    brief(session.run("bowstring inspect s3://photos/train", "set AWS_ACCESS_KEY_ID", 4, **nobody))
    shutil.copytree(session.place / "ds", session.place / "changed")
    session.program("changed.py", CHANGED)
    brief(session.run("python changed.py", "SourceChangedError", 1))


def brief(said: str) -> None:
    """Checks that an error fits on few lines; Python's traceback before it is the user's own code."""
    error = re.split(r"(?m)^(?=bowstring\.errors\.)", said)[-1]
    lines = [line for line in error.splitlines() if line.strip()]
    if len(lines) > LINES:
        raise Failed(f"the error has {len(lines)} lines, not {LINES}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=pathlib.Path, help="directory of the wheel to install")
    parser.add_argument("--keep", type=pathlib.Path, help="directory for the picture of the page")
    parser.add_argument("--limit", type=float, help="seconds that steps 1 to 5 may take together")
    asked = parser.parse_args()
    if asked.keep is not None:
        asked.keep.mkdir(parents=True, exist_ok=True)
    steps: list[tuple[str, Callable[[Session], None]]] = [
        ("install", install),
        ("convert a folder of images", convert),
        ("inspect", inspect),
        ("plan for four ranks", plan),
        ("a loop in torch", loop),
        ("serve four ranks, and look", lambda session: serve(session, asked.keep)),
        ("Ctrl-C and resume", resume),
        ("bench against torch", compare),
        ("read in Spark", spark),
        ("four errors", errors),
    ]
    took: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        session = Session(pathlib.Path(place), asked.wheels.resolve() if asked.wheels else None)
        for number, (name, step) in enumerate(steps, 1):
            print(f"\n==== {number}. {name}", flush=True)
            start = time.monotonic()
            try:
                step(session)
            except Failed as error:
                print(f"step {number} ({name}) failed after {time.monotonic() - start:.1f} s: {error}", file=sys.stderr)
                return 1
            took.append(time.monotonic() - start)
    print("\n==== seconds of each step")
    for number, ((name, _), seconds) in enumerate(zip(steps, took, strict=True), 1):
        print(f"{number:2}  {seconds:6.1f}  {name}")
    print(f"    {sum(took):6.1f}  all; {sum(took[:5]):.1f} to the end of step 5")
    if asked.limit is not None and sum(took[:5]) > asked.limit:
        print(f"steps 1 to 5 took more than {asked.limit:.0f} s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
