"""The recipes of deploy/slurm on a SLURM of this machine, whose nodes are network namespaces (scripts/servers/slurm.sh)."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, package_environment

RECIPES = ROOT / "deploy" / "slurm"
ROWS = 8000
NEEDED = ("ip", "nsenter", "unshare", "munged", "slurmctld", "slurmd", "sbatch")
MISSING = [tool for tool in NEEDED if shutil.which(tool) is None]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (Debian: slurm-wlm, munge)"),
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="nodes are namespaces, which need root"),
]

TRAIN = """
import json, os, pathlib, socket
import bowstring

with bowstring.Loader(os.environ["DATA"], batch_size=16, columns=["id"]) as loader:
    ids = [int(one) for batch in loader for one in batch["id"]]
    told = [loader.rank, loader.world_size, socket.gethostname(), ids]
pathlib.Path(f"told-{loader.rank}.json").write_text(json.dumps(told))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """The configuration of a cluster of three nodes."""
    home = tmp_path_factory.mktemp("slurm")
    script = ["bash", str(ROOT / "scripts" / "servers" / "slurm.sh"), str(home)]
    started = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "up\n", f"see {home}/log"
        yield home / "slurm.conf"
    finally:
        started.communicate(timeout=60)


def run(cluster: pathlib.Path, home: pathlib.Path, recipe: str, *arguments: str) -> tuple[int, str]:
    """Runs a recipe as a job to its end; returns its exit code and what it wrote."""
    programs = home / "programs"
    programs.mkdir()
    for name, command in (("python", sys.executable), ("bowstring", f"{sys.executable} -m bowstring")):
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    (home / "train.py").write_text(TRAIN)
    rows = home / "rows"
    rows.mkdir()
    for part in range(4):
        ids = range(part * ROWS // 4, (part + 1) * ROWS // 4)
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), rows / f"{part}.parquet", row_group_size=250)
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_CONF": str(cluster),
        "DATA": str(rows),
    }
    command = ["sbatch", "--wait", f"--output={home}/log", str(RECIPES / recipe), *arguments]
    done = subprocess.run(
        command,
        cwd=home,
        env=package_environment(**variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    log = home / "log"
    return done.returncode, log.read_text() if log.exists() else done.stderr


def told(home: pathlib.Path) -> list[list[object]]:
    """Returns what the ranks told, in their order."""
    return sorted(json.loads(path.read_text()) for path in home.glob("told-*.json"))


@pytest.mark.parametrize("recipe", ["train.sbatch", "serve_and_train.sbatch"])
def test_a_recipe_gives_each_row_to_one_rank(cluster: pathlib.Path, tmp_path: pathlib.Path, recipe: str) -> None:
    serves = recipe.startswith("serve")
    arguments = [str(tmp_path / "rows"), "train.py"] if serves else ["train.py"]
    code, log = run(cluster, tmp_path, recipe, *arguments)
    assert code == 0, log
    ranks = told(tmp_path)
    # Two nodes train, with four ranks each; the first of three serves.
    nodes = ["n2", "n3"] if serves else ["n1", "n2"]
    assert [rank[:3] for rank in ranks] == [[number, 8, nodes[number // 4]] for number in range(8)], log
    ids = sorted(one for rank in ranks for one in rank[3])  # type: ignore[attr-defined]
    assert ids == list(range(ROWS))
    if serves:
        assert "told to end: draining" in log
        assert not list(tmp_path.glob("bowstring-tokens.*"))


def test_a_line_without_srun_is_an_error(cluster: pathlib.Path, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "plain.sbatch"
    script.write_text("#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\npython train.py\n")
    code, log = run(cluster, tmp_path, str(script))
    assert code != 0
    assert "start it with srun" in log
    assert told(tmp_path) == []


def test_a_server_that_does_not_start_ends_the_job(cluster: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code, log = run(cluster, tmp_path, "serve_and_train.sbatch", str(tmp_path / "none"), "train.py")
    assert code != 0
    assert "none not found" in log
    assert told(tmp_path) == []
