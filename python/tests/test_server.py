"""A server within this process, and the stored rows of its datasets."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import bowstring
import pytest

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
flight = pytest.importorskip("pyarrow.flight")
pq = pytest.importorskip("pyarrow.parquet")
from bowstring.flight import Connection, attempt_of  # noqa: E402 - needs pyarrow

ROOT = Path(__file__).parents[2]
SPARK = ROOT / "fixtures" / "spark43_parquet"
TOKEN = "a-token-of-the-tests"


def parts(url: str, dataset: str, count: int, token: str | None = None, **options: Any) -> list[Any]:
    """Returns each part of a dataset's stored rows, as a table."""
    client = flight.connect(url)
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    call = flight.FlightCallOptions(headers=headers)
    asked = {"dataset": dataset, "rows": {"parts": count}, "options": options}
    info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(asked)), call)
    tables = [client.do_get(endpoint.ticket, call).read_all() for endpoint in info.endpoints]
    assert len(tables) == count
    assert all(table.schema == info.schema for table in tables)
    assert sum(table.num_rows for table in tables) == info.total_records
    client.close()
    return tables


def test_batches_come_from_the_same_process(photos: Path) -> None:
    with bowstring.flight.Server({"photos": photos}) as server:
        ours = bowstring.Loader(photos, batch_size=16, columns="label", shuffle=True, seed=3)
        theirs = bowstring.Loader(f"{server.url}/photos", batch_size=16, columns="label", shuffle=True, seed=3)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine["label"].tolist() == other["label"].tolist()
    server.close()
    with pytest.raises(bowstring.Error):
        bowstring.Loader(f"{server.url}/photos", batch_size=16, timeout=1)


def test_options_of_the_owner_are_refused_and_variables_for_all_loaders_are_left_to_the_server(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bowstring.flight.Server({"n": numbers}) as server:
        url = f"{server.url}/n"
        for name, value in [
            ("version", 0),
            ("partitioning", "hive"),
            ("cache", "memory"),
            ("limits", {"max_files": 1}),
        ]:
            with pytest.raises(bowstring.ConfigError, match=f"option {name}: "):
                bowstring.Loader(url, batch_size=8, **{name: value})
        monkeypatch.setenv("BOWSTRING_CACHE", "/nowhere/cache")
        monkeypatch.setenv("BOWSTRING_LIMITS", '{"max_files": 1}')
        with bowstring.Loader(url, batch_size=8, memory_budget="64MiB", threads=1, rank=0, world_size=1) as loader:
            assert loader.rows == 100
        monkeypatch.setenv("BOWSTRING_VERSION", "0")
        with pytest.raises(bowstring.ConfigError, match="BOWSTRING_VERSION"):
            bowstring.Loader(url, batch_size=8)


@pytest.mark.parametrize("name", ["flat_snappy", "flat_int96", "flat_legacyformat", "many_rowgroups", "partitioned"])
def test_stored_rows_equal_those_of_the_parquet_file(name: str) -> None:
    # Spark's times of 96 bits are microseconds; pyarrow reads them as nanoseconds unless told otherwise.
    kind = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    expected = ds.dataset(SPARK / name, partitioning="hive", format=kind).to_table()
    with bowstring.flight.Server({"rows": SPARK / name}) as server:
        for count in (1, 3):
            found = pa.concat_tables(parts(server.url, "rows", count))
            assert sorted(found.column_names) == sorted(expected.column_names)
            for column in expected.column_names:
                ours, theirs = found[column].to_pylist(), expected[column].to_pylist()
                assert repr(ours) == repr(theirs), column
            nested = [field for field in found.schema if pa.types.is_nested(field.type)]
            assert name in ("many_rowgroups", "partitioned") or nested


def test_columns_and_filters_are_the_clients_within_the_datasets(numbers: Path) -> None:
    with bowstring.flight.Server({"n": numbers}) as server:
        found = pa.concat_tables(parts(server.url, "n", 4, filter="id >= 90", columns={"columns": ["x", "id"]}))
        assert found.column_names == ["x", "id"]
        assert found["id"].to_pylist() == list(range(90, 100))
        found = pa.concat_tables(parts(server.url, "n", 2, columns={"exclude": ["tags"]}))
        assert found.column_names == ["id", "x", "name"]
        assert found.num_rows == 100
        many = parts(server.url, "n", 20)
        assert sum(table.num_rows for table in many) == 100
        assert any(table.num_rows == 0 for table in many)
        for wrong in ({"columns": {"columns": ["nothing"]}}, {"filter": "nothing = 1"}):
            with pytest.raises((KeyError, flight.FlightError, pa.ArrowInvalid), match="nothing"):
                parts(server.url, "n", 1, **wrong)
        for rows in ({"part": 3, "parts": 3}, {"parts": 0}, {"part": 0, "parts": 1, "more": 1}):
            descriptor = flight.FlightDescriptor.for_command(json.dumps({"dataset": "n", "rows": rows}))
            with pytest.raises((pa.ArrowInvalid, flight.FlightError)), flight.connect(server.url) as client:
                client.get_flight_info(descriptor)


def test_rows_of_a_large_row_group_come_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    table = pa.table({"id": range(200_000), "text": [f"{n:0100d}" for n in range(200_000)]})
    pq.write_table(table, path, row_group_size=200_000)
    with bowstring.flight.Server({"large": path}, memory_budget="256MiB") as server:
        client = flight.connect(server.url)
        command = json.dumps({"dataset": "large", "rows": {}})
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
        chunks = [chunk.data for chunk in client.do_get(info.endpoints[0].ticket)]
        assert len(chunks) > 2
        assert pa.Table.from_batches(chunks).equals(table.cast(chunks[0].schema))
        stats = json.loads(next(iter(client.do_action("stats"))).body.to_pybytes())
        client.close()
        assert stats["memory"]["used"] <= stats["memory"]["budget"]


def test_rows_are_for_those_with_a_token(numbers: Path) -> None:
    with bowstring.flight.Server({"n": numbers}, tokens=[f"me:{TOKEN}"]) as server:
        assert sum(table.num_rows for table in parts(server.url, "n", 2, TOKEN)) == 100
        with pytest.raises(flight.FlightUnauthenticatedError):
            parts(server.url, "n", 2)
    with pytest.raises(bowstring.ConfigError, match="16 characters"):
        bowstring.flight.Server({"n": numbers}, tokens=["me:short"])


def test_servers_with_invalid_options_are_refused(numbers: Path) -> None:
    with pytest.raises(bowstring.ConfigError, match="nothing to serve"):
        bowstring.flight.Server()
    with pytest.raises(bowstring.ConfigError):
        bowstring.flight.Server({"n": numbers}, listen="0.0.0.0:0")
    with pytest.raises(bowstring.ConfigError, match="sudo"):
        bowstring.flight.Server({"n": numbers}, sudo=True)


def test_written_in_memory_and_read_back() -> None:
    table = pa.table({"id": range(50), "name": [f"n{n}" for n in range(50)]})
    with bowstring.flight.Server(put="memory") as server:
        client = flight.connect(server.url)
        tokens = []
        for task in range(2):
            command = {"dataset": "made", "write": "w1", "task": task, "attempt": 0}
            descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
            writer, reader = client.do_put(descriptor, table.schema)
            writer.write_table(table.slice(task * 25, 25))
            writer.done_writing()
            tokens.append(json.loads(reader.read().to_pybytes())["token"])
            writer.close()
        commit = json.dumps({"dataset": "made", "write": "w1", "mode": "create", "tokens": tokens})
        list(client.do_action(flight.Action("put.commit", commit.encode())))
        client.close()
        found = pa.concat_tables(parts(server.url, "made", 2)).sort_by("id")
        assert found["id"].to_pylist() == list(range(50))
        assert found["name"].to_pylist() == table["name"].to_pylist()


@contextmanager
def held(url: str) -> Iterator[None]:
    """A client that begins to put rows and does not end: the server waits for it."""
    client = flight.connect(url)
    command = {"dataset": "made", "write": "w1", "task": 0, "attempt": 0}
    schema = pa.schema([("id", pa.int64())])
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(json.dumps(command)), schema)
    try:
        # Some rows, for the server counts their bytes: it has begun.
        writer.write_batch(pa.record_batch({"id": pa.array(range(1000), pa.int64())}))
        end = time.monotonic() + 30
        while json.loads(next(iter(client.do_action("stats"))).body.to_pybytes())["written_bytes"] == 0:
            assert time.monotonic() < end, "the rows do not come"
            time.sleep(0.01)
        yield
    finally:
        with suppress(pa.ArrowException):
            writer.close()


def test_threads_run_while_a_dropped_server_drains() -> None:
    server, ended, ticks = bowstring.flight.Server(put="memory", drain_grace=1), threading.Event(), list[float]()

    def tick() -> None:
        while not ended.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    with held(server.url):
        thread = threading.Thread(target=tick)
        thread.start()
        began = time.monotonic()
        del server
        took = time.monotonic() - began
        ended.set()
        thread.join()
    assert took > 0.8, "it drained"
    during = [began, *(at for at in ticks if began < at < began + took), began + took]
    assert max(later - earlier for earlier, later in itertools.pairwise(during)) < 0.8 * took


def test_ctrl_c_ends_the_wait_for_clients_that_do_not_leave() -> None:
    server = bowstring.flight.Server(put="memory", drain_grace=60)
    # As Ctrl-C, of which others in this process may take notice.
    former = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        with held(server.url):
            timer.start()
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                server.close()
            assert time.monotonic() - began < 20
        server.close()
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()
        signal.signal(signal.SIGUSR1, former)


FORKED = """
import os, sys
import bowstring
from bowstring.flight import Server

with Server({"d": sys.argv[1]}) as server:
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(len(list(bowstring.Loader(f"{server.url}/d", batch_size=10))))
"""


def test_a_forked_child_has_no_server_to_close(numbers: Path, script: Any) -> None:
    child = script(FORKED, numbers)
    out, errors = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "10\n"), errors


def test_rows_of_a_replaced_file_are_those_of_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "changing.parquet"
    pq.write_table(pa.table({"id": range(10)}), path)
    with bowstring.flight.Server({"n": path}) as server:
        assert sum(table.num_rows for table in parts(server.url, "n", 1)) == 10
        pq.write_table(pa.table({"id": range(25)}), tmp_path / "new.parquet")
        (tmp_path / "new.parquet").replace(path)
        # The open handle is of the previous file: it reports that, once.
        with pytest.raises((pa.ArrowException, flight.FlightError), match="changing"):
            parts(server.url, "n", 1)
        assert sum(table.num_rows for table in parts(server.url, "n", 1)) == 25


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_a_dropped_dataset_ends_its_streams_and_makes_room(where: str, tmp_path: Path) -> None:
    from bowstring.flight import Connection, attempt_of

    def written(connection: Connection, write: str, first: int) -> None:
        tokens = []
        for task in range(20):
            rows = pa.record_batch({"id": pa.array(range(first + task * 1000, first + task * 1000 + 1000), pa.int64())})
            command = attempt_of("made", write, task, 0)
            tokens.append(connection.put(command, rows.schema, [rows])["token"])
        connection.commit("made", write, "create", tokens)

    def loader(url: str) -> Any:
        options = {"batch_size": 10, "shuffle": True, "window_rows": 1000, "lanes": 1, "seed": 1}
        return bowstring.Loader(f"{url}/made", rank=0, world_size=1, **options)

    with (
        bowstring.flight.Server(put="memory" if where == "memory" else str(tmp_path)) as server,
        Connection(server.url) as connection,
    ):
        written(connection, "w1", 0)
        rows = iter(connection.rows("made", parts=20))
        next(rows)
        with loader(server.url) as batches:
            running = iter(batches)
            next(running)
            assert connection.drop("made")
            # Batches under way arrive first, then the reason.
            with pytest.raises(bowstring.NotFoundError, match="it was dropped while it was read"):
                for _ in running:
                    pass
        with pytest.raises(bowstring.NotFoundError, match="made"):
            list(rows)
        with pytest.raises(bowstring.NotFoundError, match="made"):
            loader(server.url)
        assert not connection.exists("made")
        assert not connection.drop("made")
        assert connection.action("stats", {})["written_bytes"] == 0
        assert not list(tmp_path.rglob("*.parquet"))
        # A new dataset of the same name is not mistaken for the old one.
        written(connection, "w2", 50_000)
        with loader(server.url) as batches:
            assert sorted(int(x) for batch in batches for x in batch["id"]) == list(range(50_000, 70_000))
        assert sum(batch.num_rows for batch in connection.rows("made")) == 20_000


def test_only_what_was_written_can_be_dropped(numbers: Path) -> None:
    from bowstring.flight import Connection

    with bowstring.flight.Server({"n": numbers}, put="memory") as server, Connection(server.url) as connection:
        with pytest.raises(bowstring.ConfigError, match="catalogue"):
            connection.drop("n")
        with pytest.raises(bowstring.ConfigError, match="letter or digit"):
            connection.drop("../n")
        assert not connection.drop("nothing")
        assert connection.rows("n").total == 100
    with (
        bowstring.flight.Server({"n": numbers}) as server,
        Connection(server.url) as connection,
        pytest.raises(bowstring.UnsupportedError, match="--put"),
    ):
        connection.drop("n")


def test_every_error_of_the_library_is_a_kind_of_the_wire() -> None:
    from bowstring import errors
    from bowstring.flight import connection

    of_python = {"Error", "ShardingError", "UnknownOptionError", "WideIntegersError"}
    assert {kind.__name__ for kind in connection._KINDS.values()} == set(errors.__all__) - of_python


def test_the_kind_of_an_error_crosses_the_wire_and_not_its_words(numbers: Path) -> None:
    from bowstring.flight import Connection

    with bowstring.flight.Server({"n": numbers}, put="memory") as server, Connection(server.url) as connection:
        with pytest.raises(bowstring.ConfigError) as config:
            connection.rows("n", filter="'half of a comparison'")
        assert config.value.option == "filter"
        # The text of a limit in an error of another kind.
        with pytest.raises(bowstring.ConfigError, match="the limit is"):
            connection.drop("the limit is")
        with pytest.raises(bowstring.NotFoundError):
            connection.rows("n", columns=["option x"])
        with pytest.raises(bowstring.NotFoundError):
            connection.rows("nothing")
        # The error of a call does not leak into the next one, which the server does not answer.
        server.close()
        with pytest.raises((bowstring.RemoteError, bowstring.TimeoutError)):
            connection.action("stats", {}, timeout=5)


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_a_process_puts_rows_into_its_own_server(where: str, tmp_path: Path) -> None:
    from bowstring.flight import Connection

    def ids(connection: Connection) -> list[int]:
        return sorted(number for batch in connection.rows("made") for number in batch["id"].to_pylist())

    table = pa.table({"id": range(50), "x": [[float(n), None] for n in range(50)]})
    with (
        bowstring.flight.Server(put="memory" if where == "memory" else str(tmp_path)) as server,
        Connection(server.url) as connection,
    ):
        committed = server.put("made", table)
        assert (committed["rows"], committed["files"]) == (50, 1)
        assert committed["bytes"] > 0
        with pytest.raises(bowstring.ConfigError, match="made"):
            server.put("made", table)
        assert server.put("made", table.to_batches()[0], mode="append")["rows"] == 50
        assert ids(connection) == sorted(2 * list(range(50)))
        with server.write("made", "replace") as write:
            for first in range(0, 40, 10):
                write.stage(table.slice(first, 10))
            # Nothing of the write is visible before its end.
            assert len(ids(connection)) == 100
        assert (write.rows, write.committed["files"]) == (40, 4)
        assert ids(connection) == list(range(40))
        half_way = server.write("made", "replace")
        half_way.stage(table)
        error = RuntimeError("half way")
        half_way.__exit__(type(error), error, None)
        with pytest.raises(bowstring.MismatchError, match="other"), server.write("made", "append") as write:
            write.stage(table.rename_columns(["id", "other"]))
        assert ids(connection) == list(range(40))
        options = {"batch_size": 8, "rank": 0, "world_size": 1, "shuffle": False, "lists": bowstring.Padded(2)}
        with bowstring.Loader(f"{server.url}/made", nulls=bowstring.Fill(-1), **options) as batches:
            assert [list(batch["x"][0]) for batch in batches] == [[float(first), -1.0] for first in range(0, 40, 8)]
        used = connection.action("stats", {})["written_bytes"]
        assert (used > 0) == (where == "memory")
    with pytest.raises(bowstring.ClosedError, match="closed"):
        server.put("made", table)


def test_rows_that_a_server_has_no_room_for_leave_nothing(numbers: Path) -> None:
    from bowstring.flight import Connection

    rows = pa.table({"x": pa.array([float(n) for n in range(1 << 19)])})
    with bowstring.flight.Server(put="memory", memory_budget=4 << 20) as server, Connection(server.url) as connection:
        with pytest.raises(bowstring.LimitError, match="memory"):
            server.put("large", rows)
        assert not connection.exists("large")
        assert connection.action("stats", {})["written_bytes"] == 0
        assert server.put("large", rows.slice(0, 1000))["rows"] == 1000
    with bowstring.flight.Server({"n": numbers}) as server, pytest.raises(bowstring.UnsupportedError, match="put="):
        server.put("x", rows)


def test_a_cell_that_shrinks_to_nothing_is_stored_so_that_loaders_read_it() -> None:
    rows = pa.table({"id": [1, 2, 3], "text": ["x", "a" * (20 << 20), "y"]})
    with bowstring.flight.Server(put="memory") as server:
        assert server.put("large", rows)["rows"] == 3
        with bowstring.Loader(f"{server.url}/large", batch_size=3, shuffle=False) as loader:
            assert next(iter(loader))["text"].tolist() == rows["text"].to_pylist()


def test_a_directory_for_writes_is_not_within_a_dataset(tmp_path: Path, numbers: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "numbers.parquet").write_bytes(numbers.read_bytes())
    data = {"n": tmp_path / "data"}
    with pytest.raises(bowstring.ConfigError, match=r"rows into dataset n: .*data/put") as caught:
        bowstring.flight.Server(data, put=tmp_path / "data" / "put")
    assert caught.value.option == "put"
    with bowstring.flight.Server(data, put=tmp_path) as server:
        server.put("beside", pa.table({"id": [1]}))
        assert len(bowstring.Loader(f"{server.url}/n", batch_size=100)) == 1


def test_a_dataset_that_cannot_be_opened_is_reported_before_clients_connect(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "part.parquet").write_bytes(b"PAR1 no Parquet at all PAR1")
    with pytest.raises(bowstring.CorruptError, match=r"part\.parquet"):
        bowstring.flight.Server({"photos": photos, "damaged": tmp_path / "damaged"})
    with pytest.raises(bowstring.NotFoundError, match="nowhere"):
        bowstring.flight.Server({"gone": tmp_path / "nowhere"})
    with (
        bowstring.flight.Server({"damaged": tmp_path / "damaged"}, check=False) as server,
        pytest.raises(bowstring.Error, match=r"part\.parquet"),
    ):
        bowstring.Loader(f"{server.url}/damaged", batch_size=1)


def test_dictionaries_are_sent_as_what_they_hold(tmp_path: Path) -> None:
    words = pa.array(["red", None, "blue", "red"]).dictionary_encode()
    table = pa.table({"word": words, "words": pa.ListArray.from_arrays([0, 1, 1, 3, 4], words)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    with bowstring.flight.Server({"d": tmp_path}) as server, Connection(server.url, {}) as connection:
        found = pa.Table.from_batches(list(connection.rows("d")))
    assert found.schema.field("word").type == pa.string()
    assert found.to_pydict() == table.to_pydict()


def test_nothing_is_written_under_a_name_of_the_catalogue(numbers: Path) -> None:
    """Readers of that name would go on with the catalogue's rows."""
    table = pa.table({"id": [1]})
    with bowstring.flight.Server({"n": numbers}, put="memory") as server, Connection(server.url) as connection:
        with pytest.raises(bowstring.ConfigError, match="n is of the server's catalogue"):
            server.put("n", table)
        with pytest.raises(bowstring.ConfigError, match="n is of the server's catalogue"):
            connection.put(attempt_of("n", "w", 0, 0), table.schema, table.to_batches())
        staged = connection.put(attempt_of("m", "w", 0, 0), table.schema, table.to_batches())
        for mode in ("create", "append", "replace"):
            with pytest.raises(bowstring.ConfigError, match="n is of the server's catalogue"):
                connection.commit("n", "w", mode, [staged["token"]])  # type: ignore[arg-type]
        assert connection.commit("m", "w", "create", [staged["token"]])["rows"] == 1


def test_calls_are_audited_and_spaces_are_shared_by_grant(tmp_path: Path, photos: Path) -> None:
    tokens = {name: f"planted-token-of-{name}" for name in ("anna", "bert", "carl")}
    lines = [f"{name}:{token}" for name, token in tokens.items()]
    audit = tmp_path / "audit.jsonl"
    spaces = {"team": ["anna", "bert"]}
    with bowstring.flight.Server(
        {"photos": photos}, put="memory", tokens=lines, audit_log=audit, spaces=spaces
    ) as server:
        tables = {"anna": pa.table({"n": [1, 2]}), "carl": pa.table({"n": [3]})}
        for name, table in tables.items():
            with Connection(server.url, {"token": tokens[name]}) as connection:
                staged = connection.put(attempt_of("train", "w" * 32, 0, 0), table.schema, table.to_batches())
                connection.commit("train", "w" * 32, "create", [staged["token"]])
        for name, rows in (("anna", [1, 2]), ("bert", [1, 2]), ("carl", [3])):
            with Connection(server.url, {"token": tokens[name]}) as connection:
                found = pa.Table.from_batches(list(connection.rows("train")))
                assert found["n"].to_pylist() == rows, name
        with bowstring.Loader(
            f"{server.url}/photos", batch_size=8, columns="label", storage_options={"token": tokens["bert"]}
        ) as loader:
            next(iter(loader))
    noted = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {entry["tenant"] for entry in noted} >= {"anna", "bert", "carl"}
    assert not any(token in audit.read_text() for token in tokens.values())


def test_a_gang_is_told_at_once_of_a_token_that_is_refused(numbers: Path) -> None:
    with bowstring.flight.Server({"rows": numbers}, tokens=[f"anna:{TOKEN}"]) as server:
        for token, kind in [
            ("another-token-of-nobody", bowstring.RemoteError),
            ("é" * 20, bowstring.ConfigError),
            ("x" * 20_000, bowstring.ConfigError),
        ]:
            begun = time.monotonic()
            options = {"token": token}
            with pytest.raises(kind, match=r"Unauthenticated|token"):
                bowstring.flight.Gang(server.url, "refused", rank=0, world_size=1, timeout=60, storage_options=options)
            with pytest.raises(kind, match=r"Unauthenticated|token"):
                bowstring.Loader(f"{server.url}/rows", batch_size=1, timeout=60, storage_options=options)
            assert time.monotonic() - begun < 20


def test_messages_of_a_gang_have_up_to_1_mib(numbers: Path) -> None:
    name = "g" * 128
    with (
        bowstring.flight.Server({"rows": numbers}) as server,
        bowstring.flight.Gang(server.url, name, rank=0, world_size=1) as gang,
    ):
        message = bytes(1 << 20)
        assert gang.all_gather(message) == [message]
        with pytest.raises(bowstring.LimitError) as caught:
            gang.all_gather(bytes((1 << 20) + 1))
        assert caught.value.option == "max_message"
