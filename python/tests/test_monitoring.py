"""Alerts, dashboard, runbooks and the list of metrics: they name what a running server exports, and each other."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, package_environment, run_python
from test_pages import anchors

PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"
OPERATING = ROOT / "docs" / "operating.md"
METRIC = re.compile(r"\bbowstring_[a-z_]+\b")
ADDRESSES = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
RULES = [
    rule for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]


def expressions() -> list[str]:
    """Returns the expressions of the dashboard, with its variables filled in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    return [re.sub(r"\$(job|instance)", ".*", expr).replace("$__rate_interval", "1m") for expr in asked]


def serve(home: pathlib.Path, *more: str) -> tuple[subprocess.Popen[str], str, str]:
    """Starts a server with an admin port; returns it and both addresses."""
    server = subprocess.Popen(
        [sys.executable, "-m", "bowstring", "serve", "rows=rows.parquet", "--print-address", *more, *ADDRESSES],
        cwd=home,
        env=package_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    flight, admin = (server.stdout.readline().strip() for _ in range(2))
    assert admin.startswith("http://"), server.communicate(timeout=60)[1]
    return server, flight, admin


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The metrics of a server that has sent rows, refused a token and answered with an error."""
    home = tmp_path_factory.mktemp("server")
    pq.write_table(pa.table({"id": list(range(64))}), home / "rows.parquet")
    (home / "tokens").write_text(f"job:{'x' * 32}\n")
    (home / "tokens").chmod(0o600)
    server, flight, admin = serve(home, "--tokens", "tokens", "--insecure")
    try:
        with bowstring.Loader(f"{flight}/rows", batch_size=8, storage_options={"token": "x" * 32}) as loader:
            assert sum(len(batch["id"]) for batch in loader) == 64
        for name, token in (("rows", "wrong" * 8), ("none", "x" * 32)):
            with pytest.raises(bowstring.errors.Error):
                bowstring.Loader(f"{flight}/{name}", batch_size=8, timeout=20, storage_options={"token": token})
        with urllib.request.urlopen(f"{admin}/metrics", timeout=60) as answer:
            yield answer.read().decode()
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)


def named(text: str) -> list[str]:
    """The metrics that a text names; the parts of a histogram are one."""
    return [re.sub(r"_seconds_(bucket|sum|count)$", "_seconds", name) for name in METRIC.findall(text)]


def samples(text: str) -> set[str]:
    return {named(line)[0] for line in text.splitlines() if line.startswith("bowstring_")}


def test_the_list_of_metrics_is_what_a_server_exports(exported: str) -> None:
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    (table,) = re.findall(r"^\| metric, all `bowstring_`.*?\n\n", page, re.DOTALL | re.MULTILINE)
    listed = set()
    for row in table.strip().splitlines()[2:]:
        listed |= {f"bowstring_{name}" for name in re.findall(r"`([a-z][a-z_]*)(?:\{[a-z,]+\})?`", row.split("|")[1])}
    assert listed == samples(exported)


def test_alerts_dashboard_and_runbooks_name_metrics_that_exist(exported: str) -> None:
    known = samples(exported)
    for expression in [*(rule["expr"] for rule in RULES), *expressions()]:
        asked = set(named(expression))
        assert asked <= known, f"{expression}: {asked - known}"
        assert asked or expression.startswith(("up{", "count(up{"))
    assert set(named(OPERATING.read_text("utf-8"))) - {"bowstring_index"} <= known
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text())["tests"]
    series = {series["series"].partition("{")[0] for test in tests for series in test["input_series"]}
    assert series - {"up"} <= known


def test_alerts_ask_for_labels_and_values_that_exist(exported: str) -> None:
    places = ("flight/server/ops/metrics.rs", "pipeline/cause.rs", "store/origins.rs")
    source = "".join((ROOT / "src" / place).read_text("utf-8") for place in places)
    for expression in [*(rule["expr"] for rule in RULES), *expressions()]:
        for label, values in re.findall(r'\b(kind|outcome|tier|reason|cause|at)(?:!=|=~?)"([\w|]+)"', expression):
            assert f"{label}: &'static str" in source
            assert all(f'"{value}"' in source for value in values.split("|")), expression
    for label in ("dataset", "kind", "outcome", "tier", "reason", "version", "cause", "at"):
        assert f'{label}="' in exported, label


def test_the_dashboard_shows_every_metric(exported: str) -> None:
    shown = {name for expression in expressions() for name in named(expression)}
    assert shown == samples(exported)


def test_each_alert_has_its_runbook_and_each_runbook_its_alert() -> None:
    names = [rule["alert"] for rule in RULES]
    _, _, runbook = OPERATING.read_text("utf-8").partition("\n## Runbook\n")
    sections = re.findall(r"^### (Bowstring\w+)\n\n(.*?)(?=^##)", runbook, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in sections] == names
    for name, text in sections:
        assert re.search(r"^\*\*Means:\*\* .*^\*\*Look at:\*\* .*^\*\*Do:\*\* ", text, re.DOTALL | re.MULTILINE), name
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page.endswith("/blob/main/docs/operating.md")
        assert anchor in anchors(OPERATING)
        assert anchor == rule["alert"].lower()
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_rules_and_expressions(tmp_path: pathlib.Path) -> None:
    checks: list[list[str]] = [
        ["check", "config", str(PROMETHEUS / "prometheus.yaml")],
        ["test", "rules", str(PROMETHEUS / "alerts_test.yaml")],
    ]
    # The expressions of the dashboard, as rules: that is what promtool reads.
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(expressions())]
    (tmp_path / "dashboard.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    for check in [*checks, ["check", "rules", str(tmp_path / "dashboard.yaml")]]:
        done = subprocess.run(["promtool", *check], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_recipe_for_the_operator_makes_a_resource_of_the_same_rules() -> None:
    shell = re.findall(r"^```sh\n(.*?)^```", (PROMETHEUS / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)[0]
    assert "| kubectl apply --filename -" in shell
    made = subprocess.run(
        ["bash", "-euc", shell.replace("kubectl apply --filename -", "cat")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    resource: dict[str, Any] = yaml.safe_load(made.stdout)
    assert resource["kind"] == "PrometheusRule"
    assert [rule for group in resource["spec"]["groups"] for rule in group["rules"]] == RULES


# ---- the page itself ------------------------------------------------------------------------------------------------


def test_commands_of_the_page_run(tmp_path: pathlib.Path) -> None:
    shutil.copy(ROOT / "fixtures" / "imagenet40.parquet", tmp_path / "rows.parquet")
    blocks = re.findall(r"^```sh\n(.*?)^```", OPERATING.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    # Those that only set variables are for other programs; test_traces.py sets the same.
    (block,) = (block for block in blocks if not block.startswith("export "))
    lines = block.splitlines()
    assert len(lines) == 2
    for line in lines:
        words = line.partition("#")[0].replace("s3://bucket/photos/", "rows.parquet").split()
        done = run_python("-m", *words, cwd=tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_the_figures_of_the_page_are_those_of_the_performance_page() -> None:
    measured = (ROOT / "docs" / "performance.md").read_text("utf-8")
    sizing, _, _ = OPERATING.read_text("utf-8").partition("**Limits that a large job meets.**")
    (table,) = re.findall(r"^\| \| rule \| figure behind it \|\n.*?\n\n", sizing, re.DOTALL | re.MULTILINE)
    cells = [row.split("|")[3] for row in table.strip().splitlines()[2:]]
    figures = [figure for cell in cells for figure in re.findall(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?![\w.])", cell)]
    assert len(figures) > 15
    known = measured + (ROOT / "docs" / "serving.md").read_text("utf-8")
    for figure in figures:
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?!,?\d|\.\d)", known), figure
