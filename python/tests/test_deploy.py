"""Workflows, chart, manifests and recipes: complete, consistent with each other, and valid for the server."""

from __future__ import annotations

import io
import itertools
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from bowstring import Loader
from conftest import ROOT, package_environment, run_python
from objects import Objects

DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "kustomize" / "base"
CACHE = DEPLOY / "kustomize" / "cache"
MONITORING = DEPLOY / "kustomize" / "monitoring"
CHART = DEPLOY / "helm" / "bowstring"
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


def workflow(name: str) -> Any:
    """Returns a workflow; YAML reads its key ``on`` as true."""
    return documents(ROOT / ".github" / "workflows" / f"{name}.yml")[0]


def requirements(name: str) -> dict[str, list[str]]:
    """Returns the lines of a file of requirements by package."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "python" / f"requirements-{name}.txt").read_text("utf-8").splitlines():
        if re.match(r"[a-z]", line):
            found.setdefault(re.split(r"[=\[]", line)[0], []).append(line)
    return found


def test_the_pythons_of_ci_can_install_what_it_tests() -> None:
    """Frameworks end their support of Pythons and processors one by one: what is pinned has none for these."""
    jobs = workflow("ci")["jobs"]
    makefile = (ROOT / "Makefile").read_text()
    floor = re.search(r"^\$\(VENV\)/ready:.*\n.*sys.version_info < \((\d+), (\d+)\)", makefile, re.MULTILINE)
    assert floor is not None
    oldest = (int(floor[1]), int(floor[2]))
    tested = [tuple(map(int, entry["python"].split("."))) for entry in jobs["test"]["strategy"]["matrix"]["include"]]
    assert min(tested) == oldest
    # The oldest Python of all is tried without frameworks, and nothing is left out without a word.
    project = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "python" / "pyproject.toml").read_text())
    assert project is not None
    setup, sets = (jobs["version-sets"]["steps"][number] for number in (1, -1))
    assert project[1] in setup["with"]["python-version"].split()
    named = re.search(r"for set in (.*?);", sets["run"])
    assert named is not None
    known = re.findall(
        r"^(?:sets=')?([\w.-]+) (\d\.\d+) numpy", (ROOT / "scripts" / "version-sets.sh").read_text(), re.MULTILINE
    )
    pythons = dict(known)
    assert f"latest-{project[1]}" in named[1].split()
    assert {pythons[name] for name in named[1].split()} <= set(setup["with"]["python-version"].split())
    assert "NEED=all" in sets["run"]
    for package in ("tensorflow-cpu", "nvidia-cuda-nvrtc-cu12"):
        (line,) = requirements("dev")[package]
        assert line.endswith('; platform_machine == "x86_64"'), line
    assert requirements("dev")["tensorflow"][0].endswith('; platform_machine != "x86_64"')
    assert len(requirements("demo")["torch"]) == len(requirements("demo")["numpy"]) == 2


def test_a_wheel_needs_maturin_alone() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (needed,) = re.findall(r"^wheel: (.*?) ##", makefile, re.MULTILINE)
    assert "$(VENV)/ready" not in needed
    assert "$(VENV)/wheel" in needed
    assert list(requirements("wheel")) == ["maturin"]
    (pinned,) = requirements("wheel")["maturin"]
    steps = [step for job in workflow("wheels")["jobs"].values() for step in job["steps"]]
    versions = {step["with"]["maturin-version"] for step in steps if "maturin-action" in step.get("uses", "")}
    assert versions == {f"v{pinned.partition('==')[2]}"}


def test_wheels_are_built_in_images_whose_packages_can_be_installed() -> None:
    linux = workflow("wheels")["jobs"]["linux"]
    (build,) = (step for step in linux["steps"] if "maturin-action" in step.get("uses", ""))
    # Manylinux is AlmaLinux; rust-musl-cross, which the action takes for musllinux, is Ubuntu.
    script = build["with"]["before-script-linux"]
    assert "dnf install" in script
    assert "apt-get install" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=60)
    (tried,) = (step["run"] for step in linux["steps"] if "try-wheel.sh" in step.get("run", ""))
    assert "python:3.10-slim-buster" in tried, "glibc 2.28 and the oldest Python"
    assert "RUNNERS=install" in tried
    for path in workflow("wheels")[True]["pull_request"]["paths"]:
        assert (ROOT / path).exists(), path


def test_a_release_has_wheels_sources_and_the_list_of_parts_and_nothing_else() -> None:
    steps = workflow("release")["jobs"]["github"]["steps"]
    taken = [step["with"] for step in steps if "download-artifact" in step.get("uses", "")]
    assert [one.get("pattern", one.get("name")) for one in taken] == ["wheel-*", "sbom"]
    for name in ("wheels", "release"):
        for job in workflow(name)["jobs"].values():
            for step in job.get("steps", []):
                if "upload-artifact" in step.get("uses", "") and step["with"]["name"].startswith("wheel-"):
                    assert re.fullmatch(r"dist/\*\.(whl|tar\.gz)", step["with"]["path"])
                if "build-push-action" in step.get("uses", ""):
                    assert step["env"]["DOCKER_BUILD_RECORD_UPLOAD"] is False


def test_the_image_is_for_both_processors_and_has_the_licences_of_what_is_inside() -> None:
    jobs = workflow("release")["jobs"]
    platforms = {entry["platform"] for entry in jobs["image-of"]["strategy"]["matrix"]["include"]}
    assert platforms == {"amd64", "arm64"}
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "scripts/notices.py --output /root-of-image/THIRD-PARTY-NOTICES.txt" in dockerfile
    assert "scripts/notices.py" in (ROOT / "scripts" / "image.sh").read_text()
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE):
        for name in copied.split():
            assert any(one == name or one.startswith(f"{name}/") for one in sent), name
    # What the notices are made of is sent whole.
    imported = re.findall(r"^from (\w+) import", (ROOT / "scripts" / "notices.py").read_text(), re.MULTILINE)
    own = {f"scripts/{name}.py" for name in imported if (ROOT / "scripts" / f"{name}.py").exists()}
    assert own <= sent


def test_the_site_is_built_for_every_change_and_published_from_main_alone() -> None:
    docs = workflow("docs")
    assert docs[True]["push"]["paths"] == docs[True]["pull_request"]["paths"]
    assert docs["jobs"]["deploy"]["if"] == "github.event_name != 'pull_request'"
    assert "if" not in docs["jobs"]["build"]


def test_one_version_everywhere() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert version is not None
    (chart,) = documents(DEPLOY / "helm" / "bowstring" / "Chart.yaml")
    (citation,) = documents(ROOT / "CITATION.cff")
    assert {chart["version"], chart["appVersion"], citation["version"]} == {version[1]}
    for directory in (BASE, CACHE):
        (kustomization,) = documents(directory / "kustomization.yaml")
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
    for directory in (BASE, CACHE, MONITORING):
        (kustomization,) = documents(directory / "kustomization.yaml")
        patches = [patch["path"] for patch in kustomization.get("patches", [])]
        for resource in [*kustomization["resources"], *patches]:
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


def test_prometheus_reaches_the_metrics_of_the_fleet(flags: set[str]) -> None:
    (policy,) = documents(MONITORING / "network.yaml")
    (rule,) = policy["spec"]["ingress"]
    (ports,) = (
        [port["name"] for port in one["ports"]]
        for one in documents(BASE / "statefulset.yaml")[0]["spec"]["template"]["spec"]["containers"]
    )
    assert rule["ports"][0]["port"] in ports
    assert policy["spec"]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "bowstring"}
    # The chart admits the same by its default.
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["networkPolicy"]["metricsFrom"] == rule["from"]
    # The monitor gives a token of the secret whose tokens the servers have.
    (monitor,) = documents(MONITORING / "servicemonitor.yaml")
    (endpoint,) = monitor["spec"]["endpoints"]
    (patch,) = documents(MONITORING / "statefulset.yaml")
    (volume,) = patch["spec"]["template"]["spec"]["volumes"]
    (server,) = patch["spec"]["template"]["spec"]["containers"]
    assert endpoint["authorization"]["credentials"] == {"name": volume["secret"]["secretName"], "key": "token"}
    (variable,) = server["env"]
    assert "--" + variable["name"].removeprefix("BOWSTRING_").lower().replace("_", "-") in flags
    (mount,) = server["volumeMounts"]
    (item,) = volume["secret"]["items"]
    assert (mount["name"], variable["value"]) == (volume["name"], f"{mount['mountPath']}/{item['path']}")


def test_a_cache_has_a_volume_and_is_warmed_with_the_options_of_its_dataset() -> None:
    tomllib = pytest.importorskip("tomllib")
    text = (CACHE / "bowstring.toml").read_text()
    assert text.startswith((BASE / "bowstring.toml").read_text()), "the base's file, and the cache"
    (dataset,) = tomllib.loads(text)["datasets"].values()
    (patch,) = documents(CACHE / "statefulset.yaml")
    spec = patch["spec"]["template"]["spec"]
    (warm,), (server,) = spec["initContainers"], spec["containers"]
    (claim,) = patch["spec"]["volumeClaimTemplates"]
    (mount,) = server["volumeMounts"]
    assert mount in warm["volumeMounts"]
    assert mount["name"] == claim["metadata"]["name"]
    # A volume may begin with `lost+found`, and a cache takes no directory with other files.
    assert dataset["cache"].startswith(f"{mount['mountPath']}/")
    given = dict(zip(warm["args"][2::2], warm["args"][3::2], strict=True))
    assert warm["args"][:2] == ["warm", dataset["url"]]
    assert (given["--cache"], given["--cache-bytes"]) == (dataset["cache"], dataset["cache_bytes"])
    size = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    assert size > int(dataset["cache_bytes"].removesuffix("GiB"))
    # The same in the chart.
    chart = (CHART / "templates" / "statefulset.yaml").read_text()
    assert f'(list "--cache" "{dataset["cache"]}")' in chart
    assert f'cache = "{dataset["cache"]}"' in (CHART / "values.yaml").read_text()


def test_a_fleet_that_was_warmed_reads_nothing_from_the_store(tmp_path: pathlib.Path) -> None:
    """The init container and the server of the overlay, with a volume that has `lost+found`."""
    store = Objects()
    for part in range(2):
        stored = io.BytesIO()
        pq.write_table(
            pa.table({"id": list(range(part * 10_000, part * 10_000 + 10_000))}), stored, row_group_size=2_000
        )
        store.content[f"bucket/photos/part-{part}.parquet"] = stored.getvalue()
    (tmp_path / "cache" / "lost+found").mkdir(parents=True)
    variables = {name.upper(): value for name, value in store.storage_options.items()}
    (warm,) = documents(CACHE / "statefulset.yaml")[0]["spec"]["template"]["spec"]["initContainers"]
    words = [str(word).replace("/cache/", f"{tmp_path}/cache/").replace("450GiB", "64MiB") for word in warm["args"]]
    done = run_python("-m", "bowstring", *words, cwd=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    assert store.count() > 0
    _, _, datasets = (CACHE / "bowstring.toml").read_text().partition("[datasets.photos]")
    datasets = datasets.replace("/cache/", f"{tmp_path}/cache/").replace("450GiB", "64MiB")
    (tmp_path / "bowstring.toml").write_text(f'[server]\nlisten = "127.0.0.1:0"\n[datasets.photos]{datasets}')
    server = subprocess.Popen(
        [sys.executable, "-m", "bowstring", "serve", "--config", "bowstring.toml", "--print-address"],
        cwd=tmp_path,
        env=package_environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with Loader(f"{url}/photos", batch_size=256, rank=0, world_size=1) as loader:
            assert sum(len(batch["id"]) for batch in loader) == 20_000
        assert store.count() == 0
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
        store.shutdown()
        store.server_close()


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


def resources(tmp_path: pathlib.Path, *more: str) -> dict[str, Any]:
    """Returns what the chart makes of the example of its values, by kind."""
    if shutil.which("helm") is None:
        pytest.skip("helm is not installed")
    tables = tmp_path / "datasets.toml"
    example = re.search(r"^#\n((?:#   .*\n)+)config:", (CHART / "values.yaml").read_text(), re.MULTILINE)
    assert example is not None
    tables.write_text(re.sub(r"^#   ", "", example[1], flags=re.MULTILINE))
    command = ["helm", "template", "--kube-version", "1.31.0", "bowstring", str(CHART)]
    made = subprocess.run(
        [*command, "--set-file", f"config={tables}", "--set", "secret=a", "--set", "tlsSecret=b", *more],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {one["kind"]: one for one in yaml.safe_load_all(made.stdout)}


def rendered(tmp_path: pathlib.Path) -> str:
    """Returns the server's file as rendered by the chart from the example of its values."""
    text: str = resources(tmp_path)["ConfigMap"]["data"]["bowstring.toml"]
    return text


def test_the_commands_of_the_charts_page_make_a_warm_and_watched_fleet(tmp_path: pathlib.Path) -> None:
    page = (DEPLOY / "helm" / "README.md").read_text().replace("\\\n", "")
    words = [word for line in re.findall(r"^helm upgrade .*", page, re.MULTILINE) for word in shlex.split(line)]
    pairs = itertools.pairwise(words)
    sets = [word for flag, value in pairs if flag in ("--set", "--set-json") for word in (flag, value)]
    assert len(sets) == 8
    made = resources(tmp_path, *sets)
    stateful = made["StatefulSet"]["spec"]
    spec = stateful["template"]["spec"]
    (warm,), (server,) = spec["initContainers"], spec["containers"]
    assert warm["image"] == server["image"]
    (patch,) = documents(CACHE / "statefulset.yaml")
    (expected,) = patch["spec"]["template"]["spec"]["initContainers"]
    assert sorted(warm["args"]) == sorted(expected["args"]), "as the overlay of kustomize"
    (claim,) = stateful["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "500Gi"
    mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in spec["volumes"]} | {"cache"}
    text = made["ConfigMap"]["data"]["bowstring.toml"]
    assert f'admin_tokens = "{mounts["admin"]}/tokens"' in text
    (endpoint,) = made["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "bowstring-admin", "key": "token"}
    open_to = [rule["ports"][0]["port"] for rule in made["NetworkPolicy"]["spec"]["ingress"]]
    assert open_to == ["grpc", "admin"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("made_by", ["kustomize", "cache", "helm", "sidecar"])
def test_the_server_accepts_the_deployed_configuration(made_by: str, tmp_path: pathlib.Path) -> None:
    if made_by == "sidecar":
        text = documents(KUBERNETES / "sidecar.yaml")[0]["data"]["bowstring.toml"]
    else:
        files = {"kustomize": BASE / "bowstring.toml", "cache": CACHE / "bowstring.toml"}
        text = files[made_by].read_text() if made_by in files else rendered(tmp_path)
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
    text = text.replace('"/cache', f'"{tmp_path}/cache').replace("127.0.0.1:8815", "127.0.0.1:0")
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
