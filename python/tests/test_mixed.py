"""Two versions at once: each reads, serves, writes and continues what the other one does; or the error names both versions.

``make mixed FORMER=<git ref>`` builds the former version and runs this. ``BOWSTRING_FORMER`` is a checkout of it that is built.
Each test runs in both directions: ``one`` begins or asks, ``other`` continues or answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import free_port
from mixed_side import Daemon, Refused, Side, Worker

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.flight")

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = ROOT / "fixtures/imagenet40.parquet"
FORMER = os.environ.get("BOWSTRING_FORMER")

pytestmark = [
    pytest.mark.skipif(not FORMER, reason="BOWSTRING_FORMER names no former version: make mixed FORMER=<git ref>"),
    pytest.mark.timeout(300),
]

Pair = tuple[Side, Side]


@pytest.fixture(scope="module")
def versions() -> list[str]:
    """The numbers of both versions."""
    found = []
    for side in (Side("present", ROOT), Side("former", Path(str(FORMER)).resolve())):
        with side.worker() as worker:
            found.append(worker.ask("version"))
    return found


@pytest.fixture(params=["former asks present", "present asks former"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """``one`` and ``other``."""
    sides = Side("former", Path(str(FORMER)).resolve()), Side("present", ROOT)
    return sides if request.param.startswith("former") else (sides[1], sides[0])


@pytest.fixture(autouse=True)
def refused(versions: list[str], request: pytest.FixtureRequest) -> Iterator[None]:
    """Where two versions refuse each other, the error names both."""
    yield
    report = getattr(request.node, "mixed", None)
    assert report is None or set(versions) <= set(re.findall(r"\d+\.\d+\.\d+", report)), f"names not both: {report}"


@contextlib.contextmanager
def agreed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Notes a refusal, which :func:`refused` judges; everything else is a failure."""
    try:
        yield
    except Refused as error:
        request.node.mixed = str(error)
        pytest.skip(f"refused, with both versions: {error}")


def needs(side: Side, *names: str) -> None:
    """Skips where a version is older than what is tested."""
    with side.worker() as worker:
        if not worker.ask("has", *names):
            pytest.skip(f"the {side.name} version has no {'.'.join(names)} yet")


def needs_verb(side: Side, *verb: str) -> None:
    """The same for the command line."""
    try:
        side.run(*verb, "--help")
    except Refused:
        pytest.skip(f"the {side.name} version has no `bowstring {' '.join(verb)}` yet")


def options(rank: int = 0, world: int = 1, **more: Any) -> dict[str, Any]:
    """Options of a loader that both versions have."""
    return {"batch_size": 4, "seed": 3, "row_id": True, "rank": rank, "world_size": world, **more}


@pytest.fixture
def served(pair: Pair, numbers: Path) -> Iterator[Daemon]:
    """A server of ``other``, which takes writes."""
    put = str(numbers.parent / "written")
    with pair[1].serve(
        "serve", f"photos={PHOTOS}", f"numbers={numbers}", "--listen", "127.0.0.1:0", "--put", put
    ) as daemon:
        yield daemon


@pytest.fixture
def asks(pair: Pair) -> Iterator[Worker]:
    """A process of ``one``."""
    with pair[0].worker() as worker:
        yield worker


@pytest.fixture
def answers(pair: Pair) -> Iterator[Worker]:
    """A process of ``other``."""
    with pair[1].worker() as worker:
        yield worker


# ---- batches and states -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "shared_memory"])
@pytest.mark.parametrize("dataset", ["photos", "numbers"])
def test_batches_of_a_server_are_those_of_the_clients_own_loader(
    served: Daemon, asks: Worker, numbers: Path, dataset: str, transport: str, request: pytest.FixtureRequest
) -> None:
    path = {"photos": str(PHOTOS), "numbers": str(numbers)}[dataset]
    asked = options(1, 2)
    local = asks.ask("load", path, **asked), asks.ask("batches"), asks.ask("batches")
    with agreed(request):
        remote = asks.ask("load", served.url(dataset), storage_options={"transport": transport}, **asked)
        assert (remote, asks.ask("batches"), asks.ask("batches")) == local
        assert len(local[1]) == remote["steps"] > 3
        counts = asks.ask("counts")
    if transport == "shared_memory":
        found = {name: value for name, value in counts.items() if "shared" in name or "transport" in name}
        print("transport:", found)


def test_a_state_goes_from_one_version_to_the_other(asks: Worker, answers: Worker, numbers: Path) -> None:
    whole = asks.ask("load", str(numbers), **options()), asks.ask("batches")
    asks.ask("load", str(numbers), **options())
    begun = asks.ask("batches", 7)
    state = asks.ask("state")
    answers.ask("load", str(numbers), **options(order_version=order_of(state)))
    answers.ask("resume", state)
    assert begun + answers.ask("batches") == whole[1]
    # And back, in the next epoch.
    assert answers.ask("load", str(numbers), **options(order_version=order_of(state)))["steps"] == whole[0]["steps"]


def order_of(state: dict[str, Any]) -> int:
    """The version of the order of a state."""
    return int(state["spec"].get("order_version", 1))


def test_a_state_of_a_file_continues_at_a_server_and_back(
    served: Daemon, asks: Worker, answers: Worker, numbers: Path, request: pytest.FixtureRequest
) -> None:
    asks.ask("load", str(numbers), **options())
    whole = asks.ask("batches")
    asks.ask("load", str(numbers), **options())
    rows = asks.ask("batches", 3)
    with agreed(request):
        state = asks.ask("state")
        asks.ask("load", served.url("numbers"), **options(order_version=order_of(state)))
        asks.ask("resume", state)
        rows += asks.ask("batches", 4)
        state = asks.ask("state")
        answers.ask("load", served.url("numbers"), **options(order_version=order_of(state)))
        answers.ask("resume", state)
        rows += answers.ask("batches", 5)
        asks.ask("load", str(numbers), **options())
        asks.ask("resume", answers.ask("state"))
        rows += asks.ask("batches")
    assert rows == whole


def test_loaders_of_both_versions_share_a_server(
    served: Daemon, asks: Worker, answers: Worker, request: pytest.FixtureRequest
) -> None:
    with agreed(request):
        state = asks.ask("load", served.url("numbers"), **options(0, 2))["state"]
        answers.ask("load", served.url("numbers"), **options(1, 2, order_version=order_of(state)))
        asks.tell("batches")
        answers.tell("batches")
        rows = [row for worker in (asks, answers) for batch in worker.hear() for row in batch["rows"]]
    assert sorted(rows) == list(range(100))


# ---- gangs --------------------------------------------------------------------------------------------------------------


def test_a_mixed_gang_lives_through_a_rolling_restart(
    pair: Pair, asks: Worker, answers: Worker, numbers: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    one, other = pair
    port, workers, rows = free_port(), [asks, answers], []
    arguments = ["serve", f"numbers={numbers}", "--listen", f"127.0.0.1:{port}", "--journal", str(tmp_path / "journal")]
    arguments += ["--gang-lease", "20", "--drain-grace", "1"]
    url = f"grpc://127.0.0.1:{port}"
    asks.ask("load", str(numbers), **options())
    order = order_of(asks.ask("state"))
    answers.ask("load", str(numbers), **options())
    order = min(order, order_of(answers.ask("state")))

    def all_of(what: str, *arguments: Any, **named: Any) -> list[Any]:
        for worker in workers:
            worker.tell(what, *arguments, **named)
        return [worker.hear() for worker in workers]

    def joined(tokens: list[str | None], step: int = 0) -> list[Any]:
        for rank, (worker, token) in enumerate(zip(workers, tokens, strict=True)):
            more = {} if token is None else {"token": token}
            worker.tell("join", url, "mixed", rank=rank, world_size=2, device=f"cpu:{rank}", **more)
        found = [worker.hear() for worker in workers]
        read = {"batch_size": 4, "seed": 3, "row_id": True, "tail": "pad", "order_version": order}
        opened = all_of("load", f"{url}/numbers", in_gang=True, **read)
        all_of("resume", {**opened[0]["state"], "step": step})
        return found

    def stepped(step: int, count: int) -> list[str]:
        rows.extend(row for found in all_of("batches", count) for batch in found for row in batch["rows"])
        return all_of("ack", 0, step + count - 1)

    with agreed(request), contextlib.ExitStack() as stack:
        daemon = stack.enter_context(one.serve(*arguments))
        assert joined([None, None]) == [{"generation": 1, "resume": None}] * 2
        assert all_of("members") == [[[0, "cpu:0"], [1, "cpu:1"]]] * 2
        stepped(0, 2)
        # The server is replaced by the other version, which is killed and replaced by the first one: the generation goes on.
        for step, (side, kill) in enumerate([(other, False), (one, True)]):
            daemon.end(kill=kill)
            daemon = stack.enter_context(side.serve(*arguments))
            all_of("barrier")
            assert all_of("gather", side.name) == [[side.name] * 2] * 2
            tokens = stepped(2 + 2 * step, 2)
        # A rank is lost, and all begin again where all were.
        answers.ask("fail")
        with pytest.raises(Refused, match="Fenced"):
            asks.ask("barrier")
        daemon.end()
        daemon = stack.enter_context(other.serve(*arguments))
        assert joined(list(tokens), 6) == [{"generation": 2, "resume": [0, 5]}] * 2
        found = all_of("batches")
        rows.extend(row for batches in found for batch in batches for row in batch["rows"])
        state = asks.ask("action", url, "gang.state", {"gang": "mixed"})
        assert (state["phase"], state["generation"]) == ("running", 2)
        all_of("leave")
    assert sorted(rows) == list(range(100))


# ---- writes, models, actions --------------------------------------------------------------------------------------------


def test_what_one_version_puts_the_other_serves(served: Daemon, pair: Pair, asks: Worker, answers: Worker) -> None:
    url, ids = served.url(), list(range(20))
    assert asks.ask("put", url, "written", ids)["rows"] == 20
    assert asks.ask("put", url, "written", [20, 21], "append")["rows"] == 2
    assert asks.ask("put", url, "given_up", [1, 2], end="abort") == 2
    for worker in (asks, answers):
        assert worker.ask("stored", url, "written") == [*ids, 20, 21]
        assert worker.ask("stored", url, "written", columns=["id"], filter="id >= 19") == [19, 20, 21]
        assert worker.ask("exists", url, "written")
        assert not worker.ask("exists", url, "given_up")
    with pytest.raises(Refused, match="exists"):
        asks.ask("put", url, "written", [1])
    assert asks.ask("put", url, "gone", ids)["rows"] == 20
    assert asks.ask("drop", url, "gone")
    assert not asks.ask("exists", url, "gone")
    # The directory of one version's server is the other's.
    served.end()
    put = str(Path(str(pair[1].home)) and (Path(served.process.args[-2])))  # type: ignore[index]
    with pair[0].serve("serve", f"photos={PHOTOS}", "--listen", "127.0.0.1:0", "--put", put) as again:
        assert asks.ask("stored", again.url(), "written") == [*ids, 20, 21]
        assert answers.ask("put", again.url(), "written", [22], "append")["rows"] == 1
        assert answers.ask("stored", again.url(), "written")[-1] == 22


def test_a_model_of_one_version_answers_the_other(asks: Worker, answers: Worker) -> None:
    url = answers.ask("serve_model")
    assert asks.ask("predict", url, list(range(50))) == [2 * row for row in range(50)]


def test_actions_have_what_the_other_version_reads(served: Daemon, pair: Pair, asks: Worker) -> None:
    asks.ask("load", served.url("numbers"), **options())
    asks.ask("batches", 2)
    sides = [side for side in pair if side.name]
    found = {side.name: side.run("--json", "inspect", served.url()) for side in sides}
    names = {name: sorted(re.findall(r'"(photos|numbers)"', text)) for name, text in found.items()}
    assert names["former"] == names["present"]
    state = asks.ask("state")
    asked = {"dataset": "numbers", "options": {"global_batch_size": 4, "seed": 3, "row_id": True}, "step": 2}
    asked["options"]["order_version"] = order_of(state)  # type: ignore[index]
    asked["options"]["tail"] = state["spec"]["tail"]  # type: ignore[index]
    answer = asks.ask("action", served.url(), "state", asked)
    assert {name: answer[name] for name in ("fingerprint", "epoch", "step")} == {
        name: state[name] for name in ("fingerprint", "epoch", "step")
    }
    assert "streams" in json.dumps(asks.ask("action", served.url(), "stats", {}))


def test_a_running_server_is_shown_by_the_other_version(served: Daemon, pair: Pair, asks: Worker) -> None:
    for side in pair:
        needs_verb(side, "top")
    asks.ask("load", served.url("numbers"), **options())
    asks.ask("batches", 2)
    shown = json.loads(pair[0].run("--json", "top", "--once", served.url()))
    own = json.loads(pair[1].run("--json", "top", "--once", served.url()))
    assert shown["schema"] == own["schema"]
    assert [view["name"] for view in shown["datasets"]] == [view["name"] for view in own["datasets"]]


def metrics(side: Side, numbers: Path) -> dict[str, str]:
    """Names and types of a server's metrics, once it has served a batch."""
    arguments = [f"numbers={numbers}", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with side.serve("serve", *arguments) as daemon, side.worker() as worker:
        worker.ask("load", daemon.url("numbers"), **options())
        worker.ask("batches", 1)
        address = daemon.admin.split("://")[-1]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=20) as ready:
            assert ready.status == 200
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


def test_metrics_of_the_former_version_are_still_there(pair: Pair, numbers: Path) -> None:
    if pair[0].name != "former":
        pytest.skip("only later versions have more")
    former, present = metrics(pair[0], numbers), metrics(pair[1], numbers)
    assert former
    assert former.items() <= present.items()


CONFIGURATION = """
[server]
listen = "127.0.0.1:0"
threads = 2
memory_budget = 268435456
drain_grace = 1
gang_lease = 12.5
shared_memory = false
max_streams = 9
journal = "{home}/journal"
put = "{home}/written"

[datasets.numbers]
url = "{numbers}"
batch_size = 5
shuffle = false
tail = "pad"
columns = ["id"]
limits = {{ max_batch_size = 50 }}
"""


def test_a_catalogue_is_read_by_both_versions(pair: Pair, numbers: Path, tmp_path: Path, asks: Worker) -> None:
    path = tmp_path / "bowstring.toml"
    path.write_text(CONFIGURATION.format(home=tmp_path, numbers=numbers))
    with pair[1].serve("serve", "--config", str(path)) as daemon:
        assert asks.ask("load", daemon.url("numbers"), rank=0, world_size=1)["steps"] == 20
        assert len(asks.ask("batches")) == 20
        with pytest.raises(Refused, match="limit is 50"):
            asks.ask("load", daemon.url("numbers"), rank=0, world_size=1, batch_size=51)


# ---- caches -------------------------------------------------------------------------------------------------------------


def test_caches_of_both_versions_are_one_cluster(
    pair: Pair, asks: Worker, answers: Worker, slow_store: Callable[..., Any], tmp_path: Path
) -> None:
    for side in pair:
        needs_verb(side, "cache", "serve")
    url, large = slow_store(0.0).url, {"batch_size": 10_000, "rank": 0, "world_size": 1, "cache_bytes": "64MiB"}
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(
                side.serve(
                    "cache", "serve", str(tmp_path / side.name), "--cache-bytes", "64MiB", "--listen", "127.0.0.1:0"
                )
            )
            for side in pair
        ]
        peers = [node.address for node in nodes]
        found = []
        for number, worker in enumerate((asks, answers)):
            worker.ask("load", url, cache=str(tmp_path / f"own-{number}"), cache_peers=peers, **large)
            found.append(worker.ask("batches"))
            counts = worker.ask("cache_counts")
            assert counts["peer_failures"] == 0, counts
            if number:
                assert (counts["origin_bytes"], counts["peer_hits"] > 0) == (0, True), counts
    assert found[0] == found[1]


def test_a_cache_of_one_version_is_read_by_the_other(
    pair: Pair, asks: Worker, answers: Worker, slow_store: Callable[..., Any], tmp_path: Path
) -> None:
    for side in pair:
        needs_verb(side, "cache")
    url, cache = slow_store(0.0).url, str(tmp_path / "cache")
    large = {"batch_size": 10_000, "rank": 0, "world_size": 1, "cache": cache, "cache_bytes": "64MiB"}
    asks.ask("load", url, **large)
    found = asks.ask("batches")
    # Both at once: the ledger is common.
    answers.ask("load", url, **large)
    assert answers.ask("batches") == found
    counts = answers.ask("cache_counts")
    assert (counts["origin_bytes"], counts["damaged"]) == (0, 0), counts
    for side in pair:
        assert "damaged" in side.run("--json", "cache", "verify", cache)


# ---- files --------------------------------------------------------------------------------------------------------------


def test_a_written_dataset_is_read_by_the_other_version(asks: Worker, answers: Worker, tmp_path: Path) -> None:
    path = str(tmp_path / "written")
    asks.ask("write", path, list(range(50)))
    found = [
        (worker.ask("load", path, columns=["id"], **options())["state"], worker.ask("batches"))
        for worker in (asks, answers)
    ]
    assert found[0][0]["fingerprint"] == found[1][0]["fingerprint"]
    assert sorted(row for batch in found[1][1] for row in batch["rows"]) == list(range(50))


@pytest.mark.parametrize("form", ["tfrecord", "webdataset", "mds", "jsonl", "csv", "arrow"])
def test_a_converted_dataset_is_read_by_the_other_version(pair: Pair, tmp_path: Path, form: str) -> None:
    source, there, back = tmp_path / "source.parquet", tmp_path / f"there-{form}", tmp_path / "back"
    table = pa.table({"id": list(range(30)), "text": [f"row {row}" for row in range(30)]})
    import pyarrow.parquet as pq

    pq.write_table(table, source)
    pair[0].run("convert", str(source), str(there), "--to", form)
    pair[1].run("convert", str(there), str(back), "--from", form, "--to", "parquet")
    found = pq.read_table(back)
    assert sorted(int(row) for row in found.column("id").to_pylist()) == list(range(30))
    assert "row 7" in [text.decode() if isinstance(text, bytes) else text for text in found.column("text").to_pylist()]


def test_an_index_of_one_version_opens_the_dataset_of_the_other(
    pair: Pair, asks: Worker, answers: Worker, numbers: Path
) -> None:
    directory = numbers.parent / "indexed"
    directory.mkdir()
    for part in range(3):
        (directory / f"part-{part}.parquet").write_bytes(numbers.read_bytes())
    without = answers.ask("load", str(directory), **options())["state"], answers.ask("batches")
    pair[0].run("index", str(directory))
    answers.ask("load", str(directory), **options())
    assert (answers.ask("state"), answers.ask("batches")) == without


def test_certificates_of_both_versions_are_joined(asks: Worker, answers: Worker, pair: Pair, numbers: Path) -> None:
    for side in pair:
        needs(side, "audit")
    certificates = []
    for rank, worker in enumerate((asks, answers)):
        worker.ask("load", str(numbers), **options(rank, 2))
        worker.ask("batches")
        certificates.append(worker.ask("certificate"))
    for worker in (asks, answers):
        found = worker.ask("audit", certificates)
        assert (found["exact"], found["complete"], found["findings"]) == (True, True, [])


def test_what_one_version_left_to_upload_the_other_uploads(
    pair: Pair, asks: Worker, answers: Worker, objects: Any, tmp_path: Path
) -> None:
    for side in pair:
        needs(side, "open")
    url = f"s3://bucket/saved-{pair[0].name}"
    storage = {"endpoint": objects.url, "allow_http": "true", "access_key_id": "k", "secret_access_key": "s"}
    cached = {"cache": str(tmp_path / "cache"), "cache_bytes": "64MiB", "storage_options": storage}
    asks.ask("save", url, "of one version", **cached)
    assert answers.ask("read", url, **cached) == "of one version"
