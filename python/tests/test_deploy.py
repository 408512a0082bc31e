"""Workflows, chart, manifests and recipes: complete, consistent with each other, and valid for the server."""

from __future__ import annotations

import pathlib
import re
import shutil
import signal
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, package_environment, run_python

DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kustomize" / "base"
KUBERNETES = DEPLOY / "kubernetes"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def documents(path: pathlib.Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def test_workflows_run_nothing_that_can_change_under_them() -> None:
    assert len(WORKFLOWS) == 4
    for path in WORKFLOWS:
        (workflow,) = documents(path)
        assert workflow["permissions"] == {"contents": "read"}, f"{path.name}: a job asks for more where it needs more"
        for line in path.read_text("utf-8").splitlines():
            if "uses:" in line and "uses: ./" not in line:
                assert re.search(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d", line), f"{path.name}: {line.strip()}"
        for name, job in workflow["jobs"].items():
            assert "uses" in job or "timeout-minutes" in job, f"{path.name}: {name}"
            for step in job.get("steps", []):
                for script in re.findall(r"(?:scripts|\.ci)/[\w.-]+", step.get("run", "")):
                    assert (ROOT / script).is_file(), f"{path.name}: {script}"


def test_make_targets_of_workflows_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in WORKFLOWS:
        for line in re.findall(r"\bmake ([a-z -]+)", path.read_text("utf-8").split("jobs:")[1]):
            assert set(line.split()) <= targets, f"{path.name}: make {line}"


def test_one_version_everywhere() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert version is not None
    (chart,) = documents(DEPLOY / "helm" / "bowstring" / "Chart.yaml")
    (citation,) = documents(ROOT / "CITATION.cff")
    (kustomization,) = documents(BASE / "kustomization.yaml")
    assert {chart["version"], chart["appVersion"], citation["version"]} == {version[1]}
    assert kustomization["images"][0]["newTag"] == f"v{version[1]}"


def pod(file: str) -> dict[str, Any]:
    """Returns the pod that trains, of a manifest."""
    for document in documents(KUBERNETES / file):
        if document["kind"] == "Job":
            found: dict[str, Any] = document["spec"]["template"]["spec"]
            break
        if document["kind"] == "TrainingRuntime":
            (job,) = document["spec"]["template"]["spec"]["replicatedJobs"]
            found = job["template"]["spec"]["template"]["spec"]
            break
    else:
        raise AssertionError(file)
    return found


@pytest.fixture(scope="module")
def flags() -> set[str]:
    """Returns the flags of `bowstring serve`."""
    told = run_python("-m", "bowstring", "serve", "--help", cwd=ROOT)
    assert told.returncode == 0, told.stderr
    return set(re.findall(r"--[a-z-]+", told.stdout))


def test_recipes_start_the_server_with_flags_that_it_has(flags: set[str]) -> None:
    compose = documents(DEPLOY / "compose" / "compose.yaml")[0]["services"]["server"]["command"]
    stateful = documents(BASE / "statefulset.yaml")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    chart = (DEPLOY / "helm" / "bowstring" / "templates" / "statefulset.yaml").read_text()
    chart_args = yaml.safe_load(re.search(r"args: (\[.*\])", chart)[1])  # type: ignore[index]
    slurm = (DEPLOY / "slurm" / "serve_and_train.sbatch").read_text()
    served = re.findall(r"bowstring serve .*", slurm)[0].split()[1:]
    dockerfile = re.findall(r"bowstring serve (.*)", (ROOT / "Dockerfile").read_text())[0].split()
    beside = pod("sidecar.yaml")["initContainers"][0]["args"]
    for words in (compose, stateful, chart_args, served, dockerfile, beside):
        used = {str(word) for word in words if str(word).startswith("--")}
        assert used
        assert used <= flags, used - flags
    assert chart_args == stateful == beside, "the chart and the manifests start one server"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_recipes_of_slurm_are_shell() -> None:
    for path in [*DEPLOY.glob("slurm/*.sbatch"), *ROOT.glob("scripts/*.sh")]:
        shell = "sh" if path.name == "try-wheel.sh" else "bash"
        subprocess.run([shell, "-n", str(path)], check=True, timeout=60)


def test_kustomize_names_existing_files_and_selects_only_itself() -> None:
    for directory in (BASE, DEPLOY / "kustomize" / "monitoring"):
        (kustomization,) = documents(directory / "kustomization.yaml")
        for resource in kustomization["resources"]:
            assert (directory / resource).exists(), resource
    labels = {"app.kubernetes.io/name": "bowstring"}
    found = {
        resource["kind"]: resource
        for name in ("service", "statefulset")
        for resource in documents(BASE / f"{name}.yaml")
    }
    # An empty selector would match every pod of the namespace.
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    stateful = found["StatefulSet"]["spec"]
    assert stateful["selector"]["matchLabels"] == stateful["template"]["metadata"]["labels"] == labels


def test_a_pods_grace_period_exceeds_the_servers_drain() -> None:
    grace = re.search(r"^drain_grace = (\d+)$", (BASE / "bowstring.toml").read_text(), re.MULTILINE)
    assert grace is not None
    (stateful,) = documents(BASE / "statefulset.yaml")
    assert stateful["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > int(grace[1])


def test_a_servers_memory_exceeds_its_budget_by_a_gibibyte() -> None:
    tomllib = pytest.importorskip("tomllib")
    (stateful,) = documents(BASE / "statefulset.yaml")
    (fleet,) = stateful["spec"]["template"]["spec"]["containers"]
    (beside,) = pod("sidecar.yaml")["initContainers"]
    text = (BASE / "bowstring.toml").read_text()
    budget = int(tomllib.loads(text)["server"]["memory_budget"].removesuffix("GiB"))
    assert fleet["resources"]["limits"]["memory"] == f"{budget + 1}Gi"
    config = tomllib.loads(documents(KUBERNETES / "sidecar.yaml")[0]["data"]["bowstring.toml"])
    assert beside["resources"]["limits"]["memory"] == f"{config['server']['memory_budget'] // 2**30 + 1}Gi"


def test_a_sidecar_starts_before_training_and_ranks_find_it() -> None:
    tomllib = pytest.importorskip("tomllib")
    found = pod("sidecar.yaml")
    (server,), (train,) = found["initContainers"], found["containers"]
    assert server["restartPolicy"] == "Always"
    assert server["startupProbe"]["httpGet"]["path"] == "/readyz"
    config = tomllib.loads(documents(KUBERNETES / "sidecar.yaml")[0]["data"]["bowstring.toml"])
    (name,) = config["datasets"]
    assert {"name": "DATA", "value": f"grpc://{config['server']['listen']}/{name}"} in train["env"]
    (probed,) = {server[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe")}
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert config["server"]["admin"].endswith(f":{ports[probed]}")
    # Shared memory is for processes of one user.
    assert "runAsUser" in found["securityContext"]
    assert all("runAsUser" not in one["securityContext"] for one in (server, train))
    volumes = {volume["name"]: volume for volume in found["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in server["volumeMounts"]}
    assert set(mounts.values()) == set(volumes)
    cache = volumes[mounts[config["datasets"][name]["cache"]]]["emptyDir"]
    # A volume that outgrows its limit evicts the pod.
    assert int(cache["sizeLimit"].removesuffix("Gi")) > int(config["datasets"][name]["cache_bytes"].removesuffix("GiB"))


def test_a_trainjob_runs_in_its_runtime_and_reads_from_the_fleet() -> None:
    tomllib = pytest.importorskip("tomllib")
    runtime, job = documents(KUBERNETES / "trainjob.yaml")
    assert job["spec"]["runtimeRef"]["kind"] == runtime["kind"] == "TrainingRuntime"
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    (train,) = pod("trainjob.yaml")["containers"]
    variables = {one["name"]: one["value"] for one in train["env"]}
    service = documents(BASE / "service.yaml")[0]
    served = tomllib.loads((BASE / "bowstring.toml").read_text())
    port = next(one["port"] for one in service["spec"]["ports"] if one["name"] == "grpc")
    (name,) = served["datasets"]
    assert variables["DATA"] == f"grpc+tls://{service['metadata']['name']}.NAMESPACE.svc:{port}/{name}"
    (mounted,) = (mount["mountPath"] for mount in train["volumeMounts"])
    assert all(variables[file].startswith(f"{mounted}/") for file in ("DATA_CA", "BOWSTRING_TOKEN_FILE"))


def rendered(tmp_path: pathlib.Path) -> str:
    """Returns the server's file as rendered by the chart from the example of its values."""
    if shutil.which("helm") is None:
        pytest.skip("helm is not installed")
    tables = tmp_path / "datasets.toml"
    values = (DEPLOY / "helm" / "bowstring" / "values.yaml").read_text()
    tables.write_text("\n".join(re.findall(r"^#   (.*)$", values, re.MULTILINE)))
    made = subprocess.run(
        [
            "helm",
            "template",
            "--kube-version",
            "1.31.0",
            "bowstring",
            str(DEPLOY / "helm" / "bowstring"),
            "--set-file",
            f"config={tables}",
            "--set",
            "secret=a",
            "--set",
            "tlsSecret=b",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    config = next(one for one in yaml.safe_load_all(made.stdout) if one["kind"] == "ConfigMap")
    text: str = config["data"]["bowstring.toml"]
    return text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("made_by", ["kustomize", "helm", "sidecar"])
def test_the_server_accepts_the_deployed_configuration(made_by: str, tmp_path: pathlib.Path) -> None:
    if made_by == "sidecar":
        text = documents(KUBERNETES / "sidecar.yaml")[0]["data"]["bowstring.toml"]
    else:
        text = (BASE / "bowstring.toml").read_text() if made_by == "kustomize" else rendered(tmp_path)
    pq.write_table(pa.table({"id": list(range(10))}), tmp_path / "rows.parquet")
    secrets = tmp_path / "secret"
    secrets.mkdir()
    for name, content in (("tokens", f"job:{'x' * 32}\n".encode()), ("tickets.key", bytes(range(32)))):
        (secrets / name).write_bytes(content)
        (secrets / name).chmod(0o400)
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -keyout tls.key -out tls.crt"
    subprocess.run(["openssl", *make.split()], cwd=secrets, check=True, capture_output=True, timeout=60)
    (secrets / "tls.key").chmod(0o400)
    # Secrets, data and ports are replaced here; the rest is unchanged.
    text = re.sub(r"/etc/bowstring/(secret|tls)/", f"{secrets}/", text)
    text = text.replace('"/cache"', f'"{tmp_path}/cache"').replace("127.0.0.1:8815", "127.0.0.1:0")
    text = text.replace("s3://bucket/photos/", str(tmp_path / "rows.parquet")).replace("NAMESPACE", "default")
    text = text.replace("0.0.0.0:8815", "127.0.0.1:0").replace("0.0.0.0:9090", "127.0.0.1:0")
    (tmp_path / "bowstring.toml").write_text(text)
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bowstring",
            "serve",
            "--config",
            str(tmp_path / "bowstring.toml"),
            "--log-format",
            "json",
            "--print-address",
        ],
        env=package_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    said = server.stdout.readline()
    server.send_signal(signal.SIGTERM)
    _, err = server.communicate(timeout=60)
    assert said.startswith(f"{'grpc' if made_by == 'sidecar' else 'grpc+tls'}://127.0.0.1:"), err
    assert server.returncode == 0, err


def test_the_ray_cluster_names_types_that_it_has() -> None:
    (cluster,) = documents(DEPLOY / "ray" / "cluster.yaml")
    assert cluster["head_node_type"] in cluster["available_node_types"]
