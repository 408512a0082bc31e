"""Data runs no code: a process that has read one good dataset reads hostile ones while the kernel reports each call that matters.

Nothing may be started, connected, signalled, traced or changed, and no file opened outside the input. What the calls would look
like is known: the same pickles, read by Python's own unpickler under the same watch, make them.
"""

from __future__ import annotations

import collections
import json
import pathlib
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import hostile
import pytest
from conftest import ROOT, package_environment
from hostile import Case
from objects import Objects
from watch import Call, UnwatchedError, Watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux reports the calls")

# What a process may look at beside its data: what the machine has, and where it is.
SYSTEM = ("/proc", "/sys", "/dev/null", "/etc/localtime", "/usr/share/zoneinfo")
# What a client of a network looks at: names of hosts, and certificates.
NETWORK = ("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf")
CERTIFICATES = ("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/lib/ssl", "/usr/share/ca-certificates")
CERTIFICATES += ("/usr/local/share/ca-certificates",)
# The time of a case on a busy machine, with much to spare.
SECONDS = 2.0


def watched(
    folder: pathlib.Path, cases: Sequence[Case], *more: str | pathlib.Path, network: bool = False
) -> tuple[list[Call], list[dict[str, Any]], Watch]:
    """Runs the cases in a process that may read ``folder`` and ``more``, and write below ``folder/converted``."""
    names = folder / "cases.jsonl"
    names.write_text("\n".join(case.line() for case in cases), encoding="utf-8")
    converted = folder / "converted"
    converted.mkdir(exist_ok=True)
    ours, theirs = socket.socketpair()
    script = pathlib.Path(__file__).with_name("watched.py")
    with ours, (folder / "stderr").open("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, script, names, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=folder,
            env=package_environment(CONVERTED=str(converted), BOWSTRING_LOG="off", HOME=str(folder)),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        theirs.close()
        try:
            watch = Watch(ours, [folder, *SYSTEM, *more], [converted], network)
        except UnwatchedError as error:
            process.kill()
            process.communicate()
            errors.seek(0)
            if "kernel" not in str(error):
                raise AssertionError(errors.read()[-3000:]) from error
            pytest.skip(str(error))
        said, _ = process.communicate(timeout=120 + SECONDS * len(cases))
        watch.thread.join(10)
        errors.seek(0)
        lines = [json.loads(line) for line in said.splitlines()]
        assert process.returncode == 0, f"ended with {process.returncode} at {lines[-1:]}: {errors.read()[-3000:]}"
    return watch.refused, lines, watch


def good(folder: pathlib.Path) -> list[Case]:
    """A good dataset of each kind, and one error of each, for what is imported and opened once."""
    fixtures = ROOT / "fixtures"
    arrays = folder / "arrays"
    arrays.mkdir()
    (arrays / "x.npy").write_bytes(hostile.headed("{'descr': '<f4', 'fortran_order': False, 'shape': (16,)}"))
    toml = folder / "good.toml"
    toml.write_text('[datasets.train]\nurl = "/data"\n', encoding="utf-8")
    found = [
        Case("photos", "load", str(fixtures / "imagenet40.parquet"), {"images": {"image": {"size": 32}}}),
        Case("Petastorm", "load", str(hostile.PETASTORM), {"columns": ["id", "nd_f32", "cnd_f64"]}),
        Case("rows of Petastorm", "reader", str(hostile.PETASTORM)),
        Case("an error of Petastorm", "reader", str(fixtures / "malicious" / "os_system_p0")),
        Case("an error", "load", str(fixtures / "malicious" / "os_system_p0")),
        Case("nothing", "load", str(folder / "nowhere")),
        Case("arrays", "convert", str(arrays), {"to": "parquet"}),
        Case("a configuration", "config", str(toml)),
        Case("a wrong configuration", "config", str(folder / "nowhere")),
    ]
    tar, shards = fixtures / "convert" / "webdataset", fixtures / "convert" / "mds" / "plain"
    found += [Case("tar", "convert", str(tar), {"to": to}) for to in ("parquet", "mds", "webdataset", "numpy")]
    found += [Case("MDS", "convert", str(shards), {"to": "parquet"})]
    return [Case(case.name, case.how, case.path, {**case.options, "warm": True}) for case in found]


@pytest.mark.timeout(1200)
def test_hostile_data_makes_no_call(tmp_path: pathlib.Path) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    cases = [*good(tmp_path), *hostile.cases(inputs)]
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    refused, lines, watch = watched(tmp_path, cases, ROOT / "fixtures")
    ended = [line for line in lines if "case" in line]
    assert len(ended) == len(cases) == watch.cases
    assert len(cases) >= 500
    assert not refused, "\n".join(str(call) for call in refused[:40])
    # The watch was at work: files were opened.
    assert watch.seen > 2 * len(cases)
    assert {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()} == before
    # A reader that fails early looks at nothing: good data are read, errors are those of bowstring, and pickles come as far as
    # the machine that refuses them.
    kinds = collections.Counter(line["ended"].partition(":")[0].partition(" ")[0] for line in ended)
    assert set(kinds) <= {"read", "converted", "exit", *(name for name in kinds if name.startswith("bowstring."))}, (
        kinds
    )
    readable = [
        line["ended"] for line in ended if line["case"] in {"photos", "Petastorm", "rows of Petastorm", "arrays", "MDS"}
    ]
    assert all(text.startswith(("read", "converted")) for text in readable), readable
    pickled = [
        line
        for line in ended
        if " in dataset-toolkit.uni" in line["case"] or " in dataset-toolkit.rowgroups" in line["case"]
    ]
    ours = [line for line in pickled if "nothing was run" in line["ended"] or "make_reader" in line["case"]]
    assert len(pickled) > 500
    assert len(ours) == len(pickled), [line for line in pickled if line not in ours][:5]
    print(f"{len(ended)} cases, {watch.seen} calls looked at: {dict(kinds.most_common(12))}")


@pytest.mark.timeout(1200)
def test_hostile_names_open_nothing_outside(tmp_path: pathlib.Path, objects: Objects) -> None:
    inputs, converted = tmp_path / "inputs", tmp_path / "converted"
    inputs.mkdir()
    assert len(hostile.leading_names()) >= 100
    cache = str(converted / "cache")
    cases = [*good(tmp_path), *hostile.named(inputs, objects.content, objects.storage_options, cache)]
    objects.content["bucket/good/x.parquet"] = (ROOT / "fixtures" / "imagenet40.parquet").read_bytes()
    stored = {"storage_options": objects.storage_options, "cache": cache, "cache_bytes": "64MiB"}
    warm = Case("a good key", "load", "s3://bucket/good", {**stored, "warm": True})
    cases[:0] = [warm, Case("a good copy", "copy", "s3://bucket/good/x.parquet", {**stored, "warm": True})]
    before = {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()}
    refused, lines, watch = watched(tmp_path, cases, ROOT / "fixtures", *NETWORK, *CERTIFICATES, network=True)
    ended = [line for line in lines if "case" in line]
    assert len(ended) == len(cases) == watch.cases
    assert not refused, "\n".join(str(call) for call in refused[:40])
    assert {path: path.read_bytes() for path in inputs.rglob("*") if path.is_file()} == before
    # Names of each kind were met by who reads them, and some are nothing but odd.
    for kind in ("a file", "a shard", "a member", "a path", "a key", "a copy"):
        ends = collections.Counter(line["ended"].partition(" ")[0] for line in ended if line["case"].startswith(kind))
        print(f"{kind}: {dict(ends)}")
        assert sum(ends.values()) > 20, kind
        assert kind == "a shard" or ends["read"] + ends["converted"] > 5, (kind, ends)


@pytest.mark.timeout(600)
def test_the_watch_catches_what_hostile_data_would_do(tmp_path: pathlib.Path) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    (tmp_path / "leads-out").symlink_to("/etc/passwd")
    cases = [Case(name, "act", name) for name in ("os.system", "connect", "socket", "open", "kill", "ptrace", "fork")]
    cases += [Case(name, "act", name) for name in ("read", "link")]
    acts = len(cases)
    for plant in hostile.plants(inputs / "plants"):
        for form, data in hostile.pickles(plant):
            path = inputs / f"{len(cases)}.pkl"
            path.write_bytes(data)
            cases.append(Case(f"{plant.module}.{plant.name} by {form}", "unpickle", str(path)))
    # A program may import and read what it likes: the acts are refused by name.
    refused, lines, watch = watched(tmp_path, cases[:acts])
    assert {call.case for call in refused} == {case.name for case in cases[:acts]}, lines
    refused, lines, watch = watched(tmp_path, cases[acts:], "/")
    assert watch.cases == len(cases) - acts > 100
    uncaught = {case.name for case in cases[acts:]} - {call.case for call in refused}
    assert not uncaught, [line for line in lines if line["case"] in uncaught]
    kinds = collections.Counter(call.name for call in refused)
    assert {"execve", "openat", "socket", "kill", "rename", "unlink", "truncate"} <= set(kinds), kinds
    assert not (inputs / "plants" / "canary").exists()
    print(f"{len(cases)} acts and pickles, each caught: {dict(kinds)}")
