"""The pages of the documentation: links lead somewhere, each page is on the site, and the examples run."""

from __future__ import annotations

import ast
import importlib.util
import io
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from xml.etree import ElementTree

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, free_port, package_environment, run_python
from objects import Objects

REPOSITORY = "https://github.com/bowstring-data/bowstring/blob/main/"
RAW = "https://raw.githubusercontent.com/bowstring-data/bowstring/main/"
DOCS = ROOT / "docs"
PAGES = sorted(
    path for pattern in ("*.md", "docs/*.md", "deploy/**/*.md", "fixtures/*.md") for path in ROOT.glob(pattern)
)
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: pathlib.Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub and the site generate them."""
    headings = re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_its_links_lead_somewhere(page: pathlib.Path) -> None:
    wrong = []
    for link in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        inside = link.startswith((REPOSITORY, RAW))
        if "://" in link and not inside:
            continue
        path, _, anchor = link.removeprefix(REPOSITORY).removeprefix(RAW).partition("#")
        target = (ROOT / path if inside else page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_the_readme_has_links_that_work_on_the_page_of_an_index() -> None:
    relative = [
        link for link in LINK.findall((ROOT / "README.md").read_text("utf-8")) if "://" not in link and link[0] != "#"
    ]
    assert relative == [], f"give them {REPOSITORY}"


def test_the_readmes_first_commands_build_once() -> None:
    install, _, _ = (ROOT / "README.md").read_text("utf-8").partition("## Your own Parquet")
    (shell,) = re.findall(r"^```sh\n(.*?)^```", install, re.DOTALL | re.MULTILINE)
    # A block is pasted as a whole.
    assert len(re.findall(r"\bmake |\bcargo ", shell)) == 1


def test_every_page_is_on_the_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = [page for section in site["nav"] for pages in section.values() for page in pages]
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sorted(listed) == sorted(module.pages().values())


def test_the_site_knows_its_address() -> None:
    # Without it the map of the site, by which search engines find its pages, is empty.
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    owner, _, name = site["repo_url"].removeprefix("https://github.com/").partition("/")
    assert site["site_url"] == f"https://{owner}.github.io/{name}/"


def test_the_page_of_the_command_line_is_what_the_command_says() -> None:
    if not re.search("^  mount ", run_python("-m", "bowstring", "--help", cwd=ROOT).stdout, re.MULTILINE):
        pytest.skip("the package was built without the feature fuse, which `make` and wheels have")
    done = run_python("scripts/cli.py", "--check", cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr


def test_drawings_are_what_their_script_writes() -> None:
    done = run_python("scripts/drawings.py", "--check", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = {
        pathlib.PurePath(link).name
        for page in PAGES
        for link in LINK.findall(page.read_text("utf-8"))
        if link.endswith(".svg")
    }
    assert shown == {path.name for path in (DOCS / "pictures").glob("*.svg")}


def test_drawings_tell_what_they_show_and_have_both_themes() -> None:
    for path in (DOCS / "pictures").glob("*.svg"):
        root = ElementTree.parse(path).getroot()
        space = {"s": "http://www.w3.org/2000/svg"}
        assert root.get("role") == "img"
        assert root.findtext("s:title", None, space)
        assert root.findtext("s:desc", None, space)
        assert "prefers-color-scheme:dark" in (root.findtext("s:style", None, space) or "")
        right = [float(box.get("x", "0")) + float(box.get("width", "0")) for box in root.iterfind("s:rect", space)]
        assert max(right) <= float(root.get("width", "0"))


def test_every_error_has_its_section() -> None:
    # `NotFoundError` and so on; links to them are in other people's notes.
    parts = anchors(DOCS / "troubleshooting.md")
    assert {name.lower() for name in bowstring.errors.__all__} <= parts


def test_the_address_of_an_error_is_its_section() -> None:
    class Own(bowstring.NullsError):
        """An error of somebody who derives from ours."""

    for error in (*(getattr(bowstring.errors, name) for name in bowstring.errors.__all__), Own):
        page, _, anchor = error("because").url.partition("#")
        assert page == f"{REPOSITORY}docs/troubleshooting.md"
        assert anchor == ("nullserror" if error is Own else error.__name__.lower())
        assert anchor in anchors(DOCS / "troubleshooting.md")


def definition(name: str, module: str) -> ast.ClassDef | ast.FunctionDef:
    """Returns the definition of a public name, through the imports of its module."""
    path = (ROOT / "python" / module.replace(".", "/")).with_suffix(".py")
    tree = ast.parse((path if path.exists() else path.with_suffix("") / "__init__.py").read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            # Overloads have types only.
            if any(isinstance(one, ast.Name) and one.id == "overload" for one in node.decorator_list):
                continue
            return node
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return definition(name, node.module)
    raise AssertionError(f"{module} has no {name}")


def test_the_page_of_the_api_has_every_public_name_with_a_docstring() -> None:
    page = (DOCS / "api.md").read_text("utf-8")
    # Two functions hide the modules of their names.
    shown = re.findall(r"^::: (?!bowstring.convert|bowstring.index)(bowstring(?:\.(?!_)\w+)*)$", page, re.MULTILINE)
    others = "errors fs torch tensorflow jax lightning ray flight spark inference petastorm"
    # Those that code written for Petastorm imports; `spark_dataset_converter` is `spark` under the name of a file there.
    below = ROOT / "python" / "bowstring" / "petastorm"
    files = {path.relative_to(below).with_suffix("").as_posix().replace("/", ".") for path in below.rglob("*.py")}
    theirs = {f"petastorm.{name.removesuffix('.__init__')}" for name in files if not re.search(r"(^|\.)_(?!_)", name)}
    theirs -= {"petastorm.__init__", "petastorm.test_util", "petastorm.spark.spark_dataset_converter"}
    assert sorted(shown) == sorted(["bowstring", *(f"bowstring.{name}" for name in (*others.split(), *theirs))])
    # Types of the extension have their docs in Rust; the page has them from the stubs.
    native = {"ArrowArray", "Tensor", "__version__", "doctor"}
    assert {f"::: bowstring._native.{name}" for name in native - {"__version__"}} <= set(page.splitlines())
    for module in shown:
        path = (ROOT / "python" / module.replace(".", "/")).with_suffix(".py")
        source = (path if path.exists() else path.with_suffix("") / "__init__.py").read_text("utf-8")
        (listed,) = re.findall(r"^__all__ = \[(.*?)\]", source, re.DOTALL | re.MULTILINE)
        names = re.findall(r'"(\w+)"', listed)
        for name in set(names) - native:
            assert ast.get_docstring(definition(name, module)), f"{module}.{name}"


def test_the_page_of_frameworks_names_the_versions_that_are_tested() -> None:
    files = [(ROOT / "python" / f"requirements-{name}.txt").read_text("utf-8") for name in ("demo", "dev")]
    # Of several pins of a package, the first is for current Pythons on x86-64.
    pinned = dict(reversed(re.findall(r"^([\w-]+)(?:\[\w+\])?==(\d+\.\d+)", "\n".join(files), re.MULTILINE)))
    rows = re.findall(
        r"^\| ([\w',& ]+?) \| .* \| ([^|]*) \|$", (DOCS / "frameworks.md").read_text("utf-8"), re.MULTILINE
    )
    told = {name: version for name, version in rows if re.match(r"\d", version)}
    assert told == {
        "PyTorch": pinned["torch"],
        "TensorFlow, Keras": f"{pinned['tensorflow-cpu']}, Keras 3.15",
        "JAX, Orbax": f"{pinned['jax']}, Orbax {pinned['orbax-checkpoint']}",
        "Lightning": pinned["lightning"],
        "Accelerate": pinned["accelerate"],
        "Hugging Face Trainer": pinned["transformers"],
        "torch's distributed checkpoints": pinned["torch"],
        "Ray Data, Ray Train": pinned["ray"],
    }


def test_no_description_promises_more_than_the_readme() -> None:
    """Plain columns are copied once, cast ones twice: the README counts the copies, so nothing else says that there are none."""
    for path in ("python/pyproject.toml", "CITATION.cff", "mkdocs.yml"):
        described = re.findall(
            r"^(?:description|abstract|site_description)\b.*", (ROOT / path).read_text("utf-8"), re.MULTILINE
        )
        assert len(described) == 1, path
        assert not re.search("zero.copy|without a copy", described[0], re.IGNORECASE), path
    assert "without a copy" not in (bowstring.__doc__ or "")


def comparison() -> str:
    return (DOCS / "comparison.md").read_text("utf-8")


def test_the_comparison_names_the_versions_that_are_measured_and_tested() -> None:
    pinned = "\n".join(
        (ROOT / path).read_text()
        for path in (
            "benches/peers/requirements.txt",
            "python/requirements-demo.txt",
            "python/requirements-dev.txt",
        )
    )
    first = comparison().partition("## Data")[0]
    for package in ("torch", "pyarrow", "tensorflow-cpu", "webdataset", "ray", "datasets", "pylance"):
        version = re.search(rf"^{package}(?:\[\w+\])?==([\d.]+)", pinned, re.MULTILINE)
        assert version is not None, package
        assert version[1].removesuffix(".0") in first, f"{package} {version[1]}"


def test_every_other_loader_of_the_comparison_is_quoted() -> None:
    """Each row about another project has a link to it."""
    compared, _, _ = comparison().partition("## Speed")
    rows = [line for line in compared.splitlines() if re.match(r"\| \[?[A-Za-z]", line)]
    assert len(rows) == 9 + 10 + 10 + 10 + 9 + 3
    for row in rows:
        assert "https://" in row or row.startswith("| bowstring"), row


def test_the_figures_of_the_comparison_are_those_of_the_performance_page() -> None:
    measured = (DOCS / "performance.md").read_text("utf-8")
    _, _, speed = comparison().partition("## Speed")
    figures = re.findall(r"([\d,.]+)(?= M/s| /s| M rows/s| times| against [\d.]+ M rows)", speed)
    assert len(figures) == 11
    assert [figure for figure in figures if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.])", measured)] == []


def numbers(text: str) -> list[str]:
    return re.findall(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?![\d.]*\w*\.\w)", re.sub(r"\([^)]*://[^)]*\)", "", text))


def test_the_figures_of_the_readme_are_those_of_the_pages() -> None:
    _, _, speed = (ROOT / "README.md").read_text("utf-8").partition("## Performance")
    tables = re.findall(r"^\|.*\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", speed.partition("\n## ")[0], re.MULTILINE)
    parts = [
        part for page in ("performance.md", "cache.md") for part in (DOCS / page).read_text("utf-8").split("\n## ")
    ]
    measured = {part.partition("\n")[0]: [float(one.replace(",", "")) for one in numbers(part)] for part in parts}
    # The tables of the README, in their order, by the section that has them.
    sections = ("Readers", "Petastorm", "Server", "A cache for a cluster", "Readers")
    for table, section in zip(tables, sections, strict=True):
        for row in table.splitlines():
            # A row's name says what it is, and its first number may be a size.
            for figure in numbers("|".join(row.split("|")[2:])):
                digits = len(figure.partition(".")[2])
                rounded = {round(known, digits) for known in measured[section]}
                assert float(figure.replace(",", "")) in rounded, f"{row}: {figure} is not in {section}"


# ---- their examples ------------------------------------------------------------------------------------------------


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


def run(code: str, home: pathlib.Path) -> str:
    done = run_python("-c", code, cwd=home, timeout=200)
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


def command(line: str, home: pathlib.Path) -> str:
    """Runs a line of shell that begins with `bowstring`, with the package."""
    words = line.split("#")[0].split()
    assert words[0] == "bowstring"
    done = run_python("-m", *words, cwd=home, timeout=200)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def commands(page: str) -> list[str]:
    shell = re.findall(r"^```sh\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [line for block in shell for line in block.splitlines() if line.startswith("bowstring ")]


@pytest.mark.timeout(600)
def test_the_first_page_runs_from_top_to_bottom(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    make, read, resume, train = blocks("start.md")
    run(make, tmp_path)
    demo, inspect, plan, serve, top = commands("start.md")
    for line in (demo, inspect, plan):
        assert command(line, tmp_path)
    assert re.fullmatch(r"\d+ steps, \d+ rows; the last batch has \d+\n", run(read, tmp_path))
    assert run(resume, tmp_path) == "the same batch\n"

    # Not as long as a training step takes.
    (tmp_path / "train.py").write_text(train.replace("time.sleep(0.05)", "time.sleep(0.001)"))
    alone, served = re.findall(r"^torchrun (.*)$", (DOCS / "start.md").read_text("utf-8"), re.MULTILINE)
    both = ["rank 0 of 2: 489 steps", "rank 1 of 2: 489 steps"]
    assert launched(alone, tmp_path) == both
    # The ports of the page may be taken here.
    flight, admin = str(free_port()), str(free_port())
    words = [*serve.replace("9090", admin).split(), "--listen", f"127.0.0.1:{flight}", "--print-address"]
    with subprocess.Popen(
        [sys.executable, "-m", *words], cwd=tmp_path, env=package_environment(), stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"grpc://127.0.0.1:{flight}\n"
            assert launched(served.replace("8815", flight), tmp_path) == both
            assert "ready" in command(f"{top.partition('#')[0]} --once".replace("9090", admin), tmp_path)
        finally:
            server.send_signal(signal.SIGINT)
    assert server.returncode == 0


def launched(line: str, home: pathlib.Path) -> list[str]:
    """Runs a line of torchrun, and returns what its ranks print of themselves, in the order of ranks."""
    done = run_python("-m", "torch.distributed.run", *line.split(), cwd=home, timeout=300)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    # Ranks share one output: the end of a line of one may come after the text of another.
    of_rank = re.compile(r"rank \d of \d: \d+ steps")
    assert not of_rank.sub("", done.stdout).strip(), done.stdout
    return sorted(of_rank.findall(done.stdout))


ERRORS = {code.splitlines()[0].removeprefix("# "): code for code in blocks("troubleshooting.md")}


@pytest.mark.parametrize("name", ERRORS)
def test_the_example_of_each_error_raises_it(name: str, tmp_path: pathlib.Path) -> None:
    table = pa.table({"id": list(range(64)), "label": [None, *range(63)]})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=16)
    done = run_python("-c", ERRORS[name], cwd=tmp_path)
    assert done.returncode == 1, done
    assert done.stderr.splitlines()[-1].startswith(f"bowstring.errors.{name}: "), done.stderr


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
@pytest.mark.parametrize("code", blocks("checkpoints.md"))
def test_the_examples_of_checkpoints_run(code: str, tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("fsspec")
    safetensors = pytest.importorskip("safetensors.torch")
    import torch.distributed.checkpoint as dcp

    server, stored = Objects(), io.BytesIO()
    state = {"weight": torch.ones(10, 10)}
    torch.save(state, stored)
    server.content["bucket/model.pt"] = stored.getvalue()
    server.content["bucket/model.safetensors"] = safetensors.save(state)
    pq.write_table(pa.table({"label": [1, 2]}), tmp_path / "labels.parquet")
    server.content["bucket/labels.parquet"] = (tmp_path / "labels.parquet").read_bytes()
    dcp.save(state, checkpoint_id=str(tmp_path / "saved"), no_dist=True)
    for path in (tmp_path / "saved").iterdir():
        server.content[f"bucket/checkpoint/{path.name}"] = path.read_bytes()
    code = code.replace("/nvme/bowstring", str(tmp_path / "cache"))
    variables = {name.upper(): value for name, value in server.storage_options.items()}
    done = run_python("-c", code, cwd=tmp_path, timeout=200, **variables)
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, f"{code}\n{done.stderr}"


# Pairs: the code of another loader, by the package that it needs, and its replacement.


# Pairs on the page in this order: the code of another loader, by the package that it needs, and its replacement.
PACKAGES = ("torch", "webdataset", "streaming", "litdata", "datasets", "tensorflow", "ray")
# The directories that a pair converts before it runs.
CONVERTED = {"webdataset": "shards", "streaming": "mds", "tensorflow": "records"}
BEFORE_AFTER = blocks("migrating.md")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("package", PACKAGES)
def test_a_migrated_loader_runs_before_and_after(package: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    number = 2 * PACKAGES.index(package)
    before, after = BEFORE_AFTER[number : number + 2]
    assert (before.splitlines()[0], after.splitlines()[0]) == ("# before", "# after")
    if package == "tensorflow":
        pytest.importorskip("tensorflow")
    x = pa.array([0.5, 1.5] * 500, pa.float32())
    pq.write_table(pa.table({"x": x, "y": list(range(1000)), "label": [0, 1] * 500}), tmp_path / "clicks.parquet")
    (tmp_path / "clicks").mkdir()
    shutil.copy(tmp_path / "clicks.parquet", tmp_path / "clicks" / "part-0.parquet")
    shutil.copytree(ROOT / "fixtures" / "convert" / "webdataset", tmp_path / "shards")
    shutil.copytree(ROOT / "fixtures" / "convert" / "mds" / "plain", tmp_path / "mds")
    if package == "tensorflow":
        command("bowstring convert clicks.parquet records --to tfrecord", tmp_path)
    # Ray's cluster is started by its own tests (frameworks/test_ray.py), which run its block.
    installed = package != "ray" and importlib.util.find_spec(package) is not None
    if installed:
        run(before, tmp_path)
    for line in commands("migrating.md"):
        if line.split()[2].rstrip("/") == CONVERTED.get(package):
            command(line, tmp_path)
    run(after, tmp_path)
    if not installed and package != "ray":
        pytest.skip(f"{package} is not installed: only what takes its place ran")


# The pages whose blocks other tests run: here, test_readme.py and test_flight.py.
RUN = {"README.md", "start.md", "checkpoints.md", "migrating.md", "protocol.md", "troubleshooting.md"}


def read(*pages: pathlib.Path) -> list[str]:
    """Reads blocks without running them, in a process that may import every framework."""
    done = run_python(str(pathlib.Path(__file__).with_name("snippets.py")), *map(str, pages), cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(300)
def test_the_blocks_that_are_not_run_name_what_exists() -> None:
    rest = [page for page in PAGES if page.name not in RUN and "```python" in page.read_text("utf-8")]
    assert len(rest) > 10
    assert read(*rest) == []


def test_a_block_that_would_fail_is_found(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        """
```python
import bowstring
from bowstring import Lodaer
bowstring.Loader("x", batch_size=8, cach="memory")
bowstring.plan("x", batch_sise=8)
loader = bowstring.Loader("x")
loader.state_dicts()
loader.into(stream=1)
nothing.at_all()
bowstring.Padded(1, 2, 3, 4, 5)
import bowstring.torhc
```

```python
loader.state_dict(3)
print("no end"
```
"""
    )
    assert [line.partition(" ")[0] for line in read(page)] == [
        f"page.md:{line}:" for line in (10, 4, 5, 6, 8, 9, 11, 12, 17)
    ]


def test_all_blocks_of_the_migration_page_are_run() -> None:
    assert len(BEFORE_AFTER) == 2 * len(PACKAGES)
    ran = [line for line in commands("migrating.md") if line.split()[2].rstrip("/") in CONVERTED.values()]
    assert ran == commands("migrating.md")
    assert len(ran) == 6
