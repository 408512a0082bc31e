"""The verification on a GPU can be run: every stage exists, the parts fit their time, and a dry run on the CPU passes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

BENCHES = Path(__file__).resolve().parents[2] / "benches"
SCRIPT = BENCHES / "gpu_session.py"


def plan():
    """Returns the script's plan, read by another process: its folder must not be importable here."""
    code = f"import sys, json; sys.path.insert(0, {str(BENCHES)!r}); import gpu_session as g; print(json.dumps([g.PLAN, g.GRACE]))"
    return json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


def test_parts_fit_ten_minutes_and_every_stage_is_a_file():
    stages, grace = plan()
    for part in "ABC":
        assert sum(seconds for of, _, _, seconds, _ in stages if of == part) * grace <= 600
    names = [name for _, name, *_ in stages]
    assert len(set(names)) == len(names)
    assert {f"{file}.py" for _, _, file, *_ in stages} | {"common.py", "__init__.py"} == {
        path.name for path in (BENCHES / "gpu_stages").glob("*.py")
    }


@pytest.mark.timeout(600)
def test_a_dry_run_on_the_cpu_passes(tmp_path):
    stages = ["reuse", "h2d", "train-ours-1"]
    if "BOWSTRING_SOAK" in os.environ:
        # Each imports a framework in a process of its own; the fake driver has the bits too.
        stages += ["bits", "jax", "tensorflow", "tabular", "soak"]
    command = [sys.executable, str(SCRIPT), "--dry-run", "--out", str(tmp_path), "--only", ",".join(stages)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    session = json.loads((tmp_path / "session.json").read_text())
    assert done.returncode == 0, f"{done.stdout}\n{session}"
    assert set(session["stages"]) == set(stages)
    if "bits" in stages:
        assert session["stages"]["bits"]["compared"] > 50
        assert session["stages"]["bits"]["wrong"] == 0
    assert session["stages"]["h2d"]["skipped"]
    for framework in {"jax", "tensorflow"} & set(stages):
        assert session["stages"][framework].get("skipped") or session["stages"][framework]["compared"] >= 16
    assert all(seen > 0 and wrong == 0 for seen, wrong in session["stages"]["reuse"]["seen_and_wrong"].values())
    # Each stage's own file has the same content.
    assert all(json.loads((tmp_path / f"{name}.json").read_text()) == session["stages"][name] for name in stages)


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="the fake driver is built with cc on Linux"
)
def test_a_dry_run_over_the_fake_driver_passes(tmp_path):
    root = BENCHES.parent
    options = [
        "-std=gnu11",
        "-O2",
        "-ffp-contract=off",
        "-fvisibility=hidden",
        "-shared",
        "-fPIC",
        "-DFAKE_VERSION=13000",
    ]
    source, kernels = root / "tests/fake_cuda/cuda.c", root / "src/device/cuda"
    library = ["-o", tmp_path / "libcuda.so.1", "-I", kernels, source, "-lpthread", "-lm"]
    subprocess.run(["cc", *options, *library], check=True)
    nvjpeg = ["-o", tmp_path / "libnvjpeg.so.12", root / "tests/fake_cuda/nvjpeg.c", "-lm", "-ldl"]
    subprocess.run(["cc", *options, *nvjpeg], check=True)
    command = [
        sys.executable,
        str(SCRIPT),
        "--dry-run",
        "--fake",
        str(tmp_path),
        "--out",
        str(tmp_path),
        "--only",
        "facts,bits,jax,nvjpeg",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    stages = json.loads((tmp_path / "session.json").read_text())["stages"]
    assert done.returncode == 0, f"{done.stdout}\n{stages}"
    assert stages["facts"]["doctor"]["gpu"]["devices"][0]["name"] == "Fake GPU 0"
    assert stages["bits"]["compared"] > 50
    assert stages["bits"]["wrong"] == 0
    assert stages["nvjpeg"]["decoded_by"].startswith("nvJPEG 12.3.1 (")
    assert stages["nvjpeg"]["decoded_by"].endswith("7 engines")
    assert 0 < stages["nvjpeg"]["differ"] <= 1.5
    assert stages["nvjpeg"]["refused"] == 0
    assert all(rate > 0 for rate in stages["nvjpeg"]["photos_per_s"].values())
    # A missing library is named, and is not a failure.
    assert "JAX" in stages["jax"]["skipped"]


def test_figures_over_a_fake_driver_are_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--fake", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "means anything" in done.stderr
