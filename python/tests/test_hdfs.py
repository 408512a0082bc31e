"""HDFS, against a real cluster of two name nodes and two DataNodes; rows are judged by pyarrow on the local copy."""

from __future__ import annotations

import json
import pathlib
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from bowstring import Loader
from conftest import run_python
from hdfs_cluster import Cluster, is_built_in, running

FILES, ROWS, GROUP, BATCH = 6, 3000, 250, 500
# After this many seconds the version of a file is checked again.
CHECKED = 10.5
# Reads few row groups ahead, so that a fault in mid-epoch hits most of the reads.
PACED: dict[str, Any] = {"lanes": 1, "window_rows": 500, "prefetch": 1, "memory_budget": 8 << 20}

server = [pytest.mark.server, pytest.mark.timeout(300)]


def write(path: pathlib.Path, start: int, rows: int = ROWS, *, salt: int = 0) -> None:
    """A file of about 6 MB, which has some 24 blocks."""
    numbers = np.random.default_rng([start, salt])
    table = pa.table(
        {
            "id": pa.array(range(start, start + rows), pa.int64()),
            "x": numbers.random(rows),
            "blob": [numbers.bytes(int(numbers.integers(1000, 3000))) for _ in range(rows)],
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=GROUP, compression="none")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The local copy."""
    directory = tmp_path_factory.mktemp("copy")
    for number in range(FILES):
        write(directory / f"part-{number % 2}" / f"{number}.parquet", number * ROWS)
    return directory


@pytest.fixture(scope="module")
def url(hdfs: Cluster, copy: pathlib.Path) -> str:
    for path in sorted(copy.rglob("*.parquet")):
        hdfs.put(path, f"/data/{path.relative_to(copy)}")
    return f"{hdfs.name}/data"


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "hdfs" in request.fixturenames:
        request.getfixturevalue("hdfs").heal()


def opened(url: str | pathlib.Path, **options: Any) -> Loader:
    return Loader(url, **{"batch_size": BATCH, "shuffle": True, "seed": 7, "tail": "short", **options})


def rows(batches: Any) -> list[tuple[int, float, bytes]]:
    """Every row that was delivered, in order."""
    found = []
    for batch in batches:
        found += zip(batch["id"].tolist(), batch["x"].tolist(), map(bytes, batch["blob"]), strict=True)
    return found


def judged(copy: pathlib.Path) -> list[tuple[int, float, bytes]]:
    """All rows by pyarrow, by number."""
    table = ds.dataset(copy, format="parquet").to_table().sort_by("id")
    return list(zip(*(table[name].to_pylist() for name in ("id", "x", "blob")), strict=True))


# ---- without a cluster


@pytest.mark.skipif(is_built_in(), reason="this build has HDFS")
def test_a_build_without_hdfs_says_where_it_is() -> None:
    for url in ("hdfs://namenode:8020/data", "viewfs://tables/data"):
        with pytest.raises(bowstring.UnsupportedError, match="pip install bowstring") as error:
            Loader(url, batch_size=1)
        assert "feature hdfs" in str(error.value)


needs_build = pytest.mark.skipif(not is_built_in(), reason="this build is without HDFS")


@needs_build
def test_a_host_that_does_not_answer_is_named_with_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    # The cluster of the tests before may have set it; then the message names its value.
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    start = time.monotonic()
    for address in ("hdfs://127.0.0.1:1", "hdfs://nobody.invalid"):
        with pytest.raises(bowstring.StoreError) as error:
            Loader(f"{address}/data/x.parquet", batch_size=1)
        assert f"no name node of {address}" in str(error.value), error.value
        assert "HADOOP_CONF_DIR" in str(error.value)
    assert time.monotonic() - start < 60


@needs_build
def test_what_hdfs_does_not_take_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def problem(url: str = "hdfs://nobody.invalid/x", **options: Any) -> str:
        with pytest.raises(bowstring.ConfigError) as error:
            Loader(url, batch_size=1, **options)
        return str(error.value)

    assert "hdfs_user" in problem("hdfs://eve@nobody.invalid/x")
    assert "hdfs_user" in problem(storage_options={"hdfs_usr": "eve"})
    assert "/nowhere" in problem(storage_options={"hdfs_conf_dir": "/nowhere"})
    assert "hdfs_kerberos_principal" in problem(storage_options={"hdfs_kerberos_keytab": "/k"})
    assert "timeout" in problem(storage_options={"timeout": "soon"})
    assert "Kerberos" in problem(credential_provider=lambda: {"token": "x"})
    tokens = tmp_path / "tokens"
    tokens.write_text("no tokens")
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tokens))
    assert str(tokens) in problem()


# ---- with one


class TestCluster:
    pytestmark = server

    def test_an_epoch_has_the_rows_of_the_copy_in_the_order_of_the_copy(
        self, hdfs: Cluster, url: str, copy: pathlib.Path
    ) -> None:
        with opened(copy) as local:
            expected = rows(local)
        with opened(url) as loader:
            found = rows(loader)
        assert sorted(found) == judged(copy)
        assert found == expected
        # By the address of the active name node, by the default file system, by a pattern and by names.
        active = hdfs.name_nodes[0 if "nn0=active" in hdfs.tell("status") else 1]
        for address in (f"hdfs://{active}/data", "hdfs:///data", f"{url}/*/*.parquet"):
            with opened(address) as loader:
                assert rows(loader) == expected, address
        with opened([f"{url}/part-1/1.parquet", f"{url}/part-0/0.parquet"], shuffle=False) as loader:
            assert [row[0] for row in rows(loader)] == list(range(2 * ROWS))

    def test_ranges_ask_no_name_node(self, hdfs: Cluster, url: str) -> None:
        with opened(url) as loader:
            before, start = hdfs.calls(), time.monotonic()
            assert len(rows(loader)) == FILES * ROWS
            after, seconds = hdfs.calls(), time.monotonic() - start
        asked = [new - old for old, new in zip(before, after, strict=True)]
        # 72 row groups of 3 columns; files are looked at again every ten seconds.
        assert asked[0] == 0, asked
        assert asked[1] <= FILES * (1 + seconds // 10), (asked, seconds)
        assert asked[2] == 0

    def test_a_state_goes_on_in_another_process_of_the_run(self, url: str) -> None:
        with opened(url) as loader:
            batches = iter(loader)
            rows(islice(batches, 11))
            state = json.loads(json.dumps(loader.state_dict()))
            rest = rows(batches)
        with opened(url) as loader:
            loader.load_state_dict(state)
            assert rows(loader) == rest

    def test_name_nodes_change_places_in_the_middle_of_an_epoch(
        self, hdfs: Cluster, url: str, copy: pathlib.Path
    ) -> None:
        with opened(url, **PACED) as loader:
            batches = iter(loader)
            found = rows(islice(batches, 5))
            hdfs.tell("failover")
            time.sleep(CHECKED)
            found += rows(batches)
        assert sorted(found) == judged(copy)

    def test_the_active_name_node_dies_and_the_other_comes_later(
        self, hdfs: Cluster, url: str, copy: pathlib.Path
    ) -> None:
        active = 0 if "nn0=active" in hdfs.tell("status") else 1
        with opened(url, **PACED) as loader:
            batches = iter(loader)
            found = rows(islice(batches, 5))
            hdfs.tell("kill-nn", active)
            later = threading.Timer(CHECKED + 3, hdfs.tell, ["failover"])
            later.start()
            time.sleep(CHECKED)
            start = time.monotonic()
            found += rows(batches)
            waited = time.monotonic() - start
            later.join()
        assert sorted(found) == judged(copy)
        assert waited >= 2, "nobody was asked while no name node was active"
        # A new loader finds the remaining one.
        with opened(url) as loader:
            assert sorted(rows(loader)) == judged(copy)

    def test_a_data_node_dies_in_the_middle_of_an_epoch(self, hdfs: Cluster, url: str, copy: pathlib.Path) -> None:
        with opened(url, **PACED) as loader:
            batches = iter(loader)
            found = rows(islice(batches, 5))
            hdfs.tell("kill-dn", 0)
            try:
                found += rows(batches)
                assert sorted(found) == judged(copy)
                assert sorted(rows(loader)) == judged(copy), "another epoch without it"
            finally:
                hdfs.tell("start-dn", 0)

    def test_all_data_nodes_are_away_for_a_while(self, hdfs: Cluster, url: str, copy: pathlib.Path) -> None:
        with opened(url, **PACED) as loader:
            batches = iter(loader)
            found = rows(islice(batches, 5))
            hdfs.tell("kill-dn", 0)
            hdfs.tell("kill-dn", 1)

            def back() -> None:
                hdfs.tell("start-dn", 0)
                hdfs.tell("start-dn", 1)

            later = threading.Timer(3, back)
            later.start()
            found += rows(batches)
            later.join()
        assert sorted(found) == judged(copy)

    def test_safe_mode_reads(self, hdfs: Cluster, url: str, copy: pathlib.Path) -> None:
        hdfs.tell("safemode", "on")
        with opened(url) as loader:
            assert sorted(rows(loader)) == judged(copy)

    def test_a_refusal_names_the_user_and_the_cluster(
        self, hdfs: Cluster, copy: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        address = hdfs.put(copy / "part-0" / "0.parquet", "/secret/0.parquet")
        hdfs.tell("chmod", "700", "/secret")
        hdfs.tell("put", copy / "part-0" / "0.parquet", "/closed/0.parquet")
        hdfs.tell("chmod", "600", "/closed/0.parquet")
        closed = f"{hdfs.name}/closed/0.parquet"
        with opened(address) as loader:
            assert len(rows(loader)) == ROWS
        for given in ("option", "variable"):
            options = {"hdfs_user": "eve"} if given == "option" else {}
            if given == "variable":
                monkeypatch.setenv("HADOOP_USER_NAME", "eve")
            for denied in (address, f"{hdfs.name}/secret", closed):
                with pytest.raises(bowstring.StoreError) as error:
                    opened(denied, storage_options=options)
                text = str(error.value)
                assert all(word in text for word in ("user=eve", hdfs.name, "HADOOP_USER_NAME")), text
                assert "\tat " not in text, "no trace of Java"

    def test_a_file_that_is_replaced_in_the_middle_of_an_epoch_is_an_error(
        self, hdfs: Cluster, tmp_path: pathlib.Path
    ) -> None:
        def files(salt: int) -> list[pathlib.Path]:
            paths = [tmp_path / str(salt) / f"{number}.parquet" for number in range(3)]
            for number, path in enumerate(paths):
                write(path, number * ROWS, salt=salt)
            return paths

        first, second = files(0), files(1)
        for path in first:
            hdfs.put(path, f"/moving/{path.name}")
        expected = {row[0]: row for row in judged(tmp_path / "0")}
        with opened(f"{hdfs.name}/moving", **PACED, batch_size=100) as loader:
            batches = iter(loader)
            found = rows(islice(batches, 3))
            for path in second:
                hdfs.put(path, f"/moving/{path.name}")
            time.sleep(CHECKED)
            with pytest.raises(bowstring.SourceChangedError, match="changed during the run") as error:
                found.extend(row for batch in batches for row in rows([batch]))
        assert ".parquet" in str(error.value)
        assert len(found) < 3 * ROWS
        assert all(expected[row[0]] == row for row in found), "a row of another version"

    def test_a_file_that_is_removed_in_the_middle_of_an_epoch_is_an_error(
        self, hdfs: Cluster, copy: pathlib.Path
    ) -> None:
        for number in range(2):
            hdfs.put(copy / "part-0" / f"{2 * number}.parquet", f"/going/{number}.parquet")
        with opened(f"{hdfs.name}/going", **PACED, batch_size=100) as loader:
            batches = iter(loader)
            rows(islice(batches, 3))
            hdfs.tell("rm", "/going")
            time.sleep(CHECKED)
            with pytest.raises(bowstring.SourceChangedError, match="gone"):
                rows(batches)

    def test_what_is_not_there_is_not_found(self, hdfs: Cluster, url: str) -> None:
        for address in (f"{url}/no.parquet", f"{hdfs.name}/nowhere", f"{url}/part-0/*.pq"):
            with pytest.raises(bowstring.NotFoundError, match="not found") as error:
                opened(address)
            assert address in str(error.value)

    def test_a_directory_of_many_files_is_listed_page_by_page(self, hdfs: Cluster, copy: pathlib.Path) -> None:
        hdfs.tell("touch", "/many/_f", 2500)
        for name, source in zip(
            ("ü.parquet", "x=1/0.parquet", "zz.parquet"), sorted(copy.rglob("*.parquet"))[:3], strict=True
        ):
            hdfs.put(source, f"/many/{name}")
        before = hdfs.calls()
        with opened(f"{hdfs.name}/many", columns=["id"]) as loader:
            assert len([row for batch in loader for row in batch["id"].tolist()]) == 3 * ROWS
        # Directories have 1000 names in an answer.
        assert hdfs.calls().listings - before.listings <= 2 * 5
        with pytest.raises(bowstring.LimitError, match="max_files"):
            opened(f"{hdfs.name}/many", limits={"max_files": 2})

    def test_what_was_read_once_is_read_from_a_cache(
        self, hdfs: Cluster, url: str, copy: pathlib.Path, tmp_path: pathlib.Path
    ) -> None:
        for epoch in range(2):
            with opened(url, cache=tmp_path / "cache", cache_bytes="1GiB") as loader:
                assert sorted(rows(loader)) == judged(copy)
                misses = loader.stats()["cache"]["misses"]
            assert (misses == 0) == (epoch == 1), misses

    def test_the_command_line_plans_and_converts(
        self, hdfs: Cluster, url: str, copy: pathlib.Path, tmp_path: pathlib.Path
    ) -> None:
        def run(*words: str) -> dict[str, Any]:
            done = run_python("-m", "bowstring", *words, "--json", cwd=tmp_path, timeout=200)
            assert done.returncode == 0, done.stderr
            printed: dict[str, Any] = json.loads(done.stdout)
            return printed

        plans = [run("plan", str(place), "--batch-size", "64", "--seed", "3") for place in (url, copy)]
        assert plans[0]["rows"] == plans[1]["rows"] == FILES * ROWS
        assert [plan.get("steps") for plan in plans] == [plans[0].get("steps")] * 2
        run("convert", url, "out", "--to", "parquet", "--verify")
        assert judged(tmp_path / "out") == judged(copy)

    def test_a_server_reads_it_for_ranks(self, url: str, copy: pathlib.Path) -> None:
        with bowstring.flight.Server({"data": url}) as serving, opened(f"{serving.url}/data") as loader:
            assert sorted(rows(loader)) == judged(copy)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, copy: pathlib.Path) -> Iterator[Cluster]:
    """Another one, with Kerberos."""
    with running(tmp_path_factory.mktemp("secure"), "secure") as cluster:
        for path in sorted(copy.rglob("*.parquet")):
            cluster.put(path, f"/data/{path.name}")
        yield cluster


class TestKerberos:
    pytestmark = server

    def read(self, secure: Cluster, options: dict[str, str], **variables: str) -> tuple[int, str]:
        """The sum of all numbers as a process of its own has it, and what it says of a failure."""
        program = (
            "import json, sys; from bowstring import Loader; loader = Loader(sys.argv[1], batch_size=500, tail='short', "
            "storage_options=json.loads(sys.argv[2])); print(sum(int(batch['id'].sum()) for batch in loader))"
        )
        environment = {
            "HADOOP_CONF_DIR": str(secure.conf),
            "KRB5_CONFIG": str(secure.directory / "krb5.conf"),
            "KRB5CCNAME": f"FILE:{secure.directory}/nothing",
            **variables,
        }
        done = run_python(
            "-c", program, f"{secure.name}/data", json.dumps(options), cwd=secure.directory, **environment
        )
        return int(done.stdout or -1), done.stderr

    def test_keys_of_a_file_and_tokens_let_in_and_nothing_else(self, secure: Cluster) -> None:
        everything = sum(range(FILES * ROWS))
        keys = {
            "hdfs_kerberos_principal": "alice@EXAMPLE.COM",
            "hdfs_kerberos_keytab": str(secure.directory / "alice.keytab"),
        }
        found, problem = self.read(secure, keys)
        assert found == everything, problem
        tokens = secure.directory / "tokens"
        found, problem = self.read(secure, {}, HADOOP_TOKEN_FILE_LOCATION=str(tokens))
        assert found == everything, problem
        found, problem = self.read(secure, {})
        assert found == -1
        assert "kinit" in problem, problem
        assert secure.name in problem
        secure.tell("chmod", "700", "/data")
        found, problem = self.read(secure, keys)
        assert found == -1
        assert "user=alice" in problem, problem
