"""Peers of a model's server that send what is not so, or too much of it: others have their answers, and nobody else's memory."""

from __future__ import annotations

import json
import pathlib
import threading
import time
from typing import Any

import bowstring
import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.flight as flight  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from bowstring.flight import Connection  # noqa: E402
from bowstring.flight.server import Server  # noqa: E402
from bowstring.flight.validity import checked  # noqa: E402
from bowstring.inference import ModelClient, serve_model  # noqa: E402
from bowstring.inference import client as client_module  # noqa: E402
from bowstring.inference.arrays import has_no_bytes  # noqa: E402
from test_inference import Peer, eventually, rows  # noqa: E402

pytestmark = pytest.mark.timeout(300)


def lying(batch: Any, old: bytes, new: bytes) -> Any:
    """``batch`` as a peer may send it, with bytes of its message replaced."""
    message = batch.serialize().to_pybytes()
    assert old in message
    return pa.ipc.read_record_batch(pa.py_buffer(message.replace(old, new)), batch.schema)


def misplaced(batch: Any, old: bytes, new: bytes) -> Any:
    """``batch`` with other offsets: what comes last in its message, behind the lengths that look like them."""
    before, found, behind = batch.serialize().to_pybytes().rpartition(old)
    assert found
    return pa.ipc.read_record_batch(pa.py_buffer(before + new + behind), batch.schema)


def numbers(size: int, *values: int) -> bytes:
    return b"".join(value.to_bytes(size, "little") for value in values)


LONG = lying(pa.record_batch({"id": pa.array([7] * 3, pa.int64())}), numbers(8, 3), numbers(8, 1000))
LIES = {
    "rows": LONG,
    "text": lying(pa.record_batch({"id": ["ab", "cd"]}), numbers(4, 0, 2, 4), numbers(4, 0, 1 << 20, 4)),
    "lists": lying(pa.record_batch({"id": [[1], [2, 3, 4]]}), numbers(4, 0, 1, 4), numbers(4, 0, 1 << 20, 4)),
    "structs": lying(pa.record_batch({"id": [{"a": 1}] * 5}), numbers(8, 5), numbers(8, 1000)),
    "bits": lying(pa.record_batch({"id": pa.array([True] * 9)}), numbers(8, 9), numbers(8, 1 << 20)),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_batch_that_is_longer_than_its_buffers_is_refused(kind: str) -> None:
    seen: list[Any] = []

    def model(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch["id"])
        return {"n": [1] * len(batch["id"])}

    with serve_model(model, deadline_ms=0) as server:
        peer = Peer(server.url, {"stream": "p", "next": 0}, LIES[kind].schema)
        peer.send(LIES[kind])
        with pytest.raises(flight.FlightServerError, match="a client sent a batch that is not valid") as refused:
            peer.reader.read_chunk()
        assert "Traceback" not in str(refused.value)
        assert ".py" not in str(refused.value)
        peer.close()
        assert not seen
        with ModelClient(server.url, timeout=60) as client:
            assert client.predict(rows(1, 2)).num_rows == 2


def test_answers_that_are_longer_than_their_buffers_are_refused() -> None:
    class Lying(flight.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            reader.read_chunk()
            writer.begin(LONG.schema)
            writer.write_with_metadata(LONG, b'{"first": 0}')
            reader.read_chunk()

        def get_flight_info(self, context: Any, descriptor: Any) -> Any:
            return flight.FlightInfo(LONG.schema, descriptor, [flight.FlightEndpoint(b"all", [])], 1000, 0)

        def do_get(self, context: Any, ticket: Any) -> Any:
            return flight.GeneratorStream(LONG.schema, iter([LONG]))

    with Lying("grpc://127.0.0.1:0") as server:
        url = f"grpc://127.0.0.1:{server.port}"
        with ModelClient(url, timeout=60) as client, pytest.raises(bowstring.CorruptError, match="is not valid"):
            client.submit(rows(0, 1000)).result(60)
        with Connection(url) as connection, pytest.raises(bowstring.CorruptError, match=f"{url} sent a batch"):
            list(connection.rows("any"))


def of_bytes(kind: Any, data: bytes) -> Any:
    """One value of ``kind`` with bytes that no cast gives."""
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(data)])


MIDNIGHT = of_bytes(pa.time64("us"), numbers(8, 86_400_000_000))
VALUES = {
    "time of 24:00": MIDNIGHT,
    "time before 0:00": of_bytes(pa.time32("ms"), b"\xff" * 4),
    "part of a day": of_bytes(pa.date64(), numbers(8, 1)),
    "long decimal": of_bytes(pa.decimal128(3, 1), numbers(16, 12_345)),
    "longer decimal": of_bytes(pa.decimal256(3, 1), numbers(32, 12_345)),
    "list": pa.ListArray.from_arrays([0, 1], MIDNIGHT),
    "large list": pa.LargeListArray.from_arrays([0, 1], MIDNIGHT),
    "list of one": pa.FixedSizeListArray.from_arrays(MIDNIGHT, 1),
    "struct": pa.StructArray.from_arrays([pa.array(["a"]), MIDNIGHT], ["a", "b"]),
    "map": pa.MapArray.from_arrays([0, 1], pa.array(["a"]), MIDNIGHT),
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), MIDNIGHT),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_its_type_has_not_is_valid_and_memory_beside_it_is_checked(name: str) -> None:
    column = VALUES[name]
    text = pa.record_batch({"text": [["abc", "d" * 74]]})
    batch = pa.record_batch({"odd": column, "text": text["text"]})
    with pytest.raises(pa.ArrowInvalid):
        batch.validate(full=True)
    assert checked(batch, "a peer") is batch
    for lie in (numbers(4, 0, 1 << 20, 77), numbers(4, 0, 78, 77)):
        wrong = misplaced(text, numbers(4, 0, 3, 77), lie)
        with pytest.raises(bowstring.CorruptError, match="a peer sent a batch that is not valid"):
            checked(pa.record_batch({"odd": column, "text": wrong["text"]}), "a peer")


def test_offsets_and_indices_around_such_a_value_are_checked() -> None:
    lists = pa.record_batch({"odd": pa.ListArray.from_arrays([0, 77], pa.concat_arrays([MIDNIGHT] * 77))})
    entry = pa.DictionaryArray.from_arrays(pa.array([7], pa.int8()), MIDNIGHT, safe=False)
    fields = pa.StructArray.from_arrays([MIDNIGHT, pa.array([b"\xff"]).view(pa.string())], ["a", "b"])
    for batch in (
        misplaced(lists, numbers(4, 0, 77), numbers(4, 0, 99)),
        misplaced(lists, numbers(4, 0, 77), numbers(4, 77, 0)),
        pa.record_batch({"odd": entry}),
        pa.record_batch({"odd": fields}),
    ):
        with pytest.raises(bowstring.CorruptError, match="a peer sent a batch that is not valid"):
            checked(batch, "a peer")


def test_rows_of_a_server_have_the_times_and_decimals_of_its_files(tmp_path: pathlib.Path) -> None:
    batch = pa.record_batch({"time": VALUES["time of 24:00"], "price": VALUES["long decimal"]})
    pq.write_table(pa.Table.from_batches([batch]), tmp_path / "x.parquet")
    with Server({"odd": str(tmp_path)}) as server, Connection(server.url) as connection:
        [got] = connection.rows("odd")
        assert got.equals(batch)


def test_rows_that_take_no_bytes_are_refused() -> None:
    columns = [
        pa.nulls(1 << 30),
        pa.array([b""] * 9, pa.binary(0)),
        pa.StructArray.from_arrays([pa.nulls(9)], ["a"]),
        pa.RunEndEncodedArray.from_arrays(pa.array([1 << 30], pa.int32()), pa.array([7])),
    ]
    with serve_model(lambda batch: {"n": [1] * len(batch["id"])}, deadline_ms=0) as server:
        for column in columns:
            batch = pa.record_batch({"id": column})
            peer = Peer(server.url, {"stream": "p", "next": 0}, batch.schema)
            peer.send(batch)
            with pytest.raises(flight.FlightServerError, match="no column takes bytes"):
                peer.reader.read_chunk()
            peer.close()
        with ModelClient(server.url, timeout=60) as client:
            # Beside another column they are fine.
            assert client.predict(pa.record_batch({"id": [1, 2], "none": pa.nulls(2)})).num_rows == 2
    assert has_no_bytes(pa.list_(pa.int64(), 0))
    assert not has_no_bytes(pa.struct([("a", pa.null()), ("b", pa.int8())]))
    assert not has_no_bytes(pa.list_(pa.null()))


def test_the_rows_of_a_message_are_limited_and_clients_cut_their_calls() -> None:
    many = pa.record_batch({"id": np.zeros(200_000, np.int8)})
    with serve_model(
        lambda batch: {"n": batch["id"]}, deadline_ms=0, remember_rows=1 << 20, message_rows=1 << 16
    ) as server:
        peer = Peer(server.url, {"stream": "p", "next": 0}, many.schema)
        peer.send(many)
        assert peer.said() == {
            "failed": "a message of 200000 rows, above message_rows of 65536",
            "again": False,
            "kind": "limit",
        }
        peer.close()
        with ModelClient(server.url, timeout=60) as client:
            assert client.predict(many).num_rows == 200_000
    assert [part.num_rows for part in client_module._messages([many])] == [50_000] * 4
    with pytest.raises(bowstring.ConfigError, match="option message_rows"):
        serve_model(lambda batch: batch, message_rows=1000)


def test_a_client_with_many_rows_keeps_no_other_one_waiting_and_leaves_none_behind() -> None:
    sizes: list[int] = []
    go_on = threading.Event()

    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        go_on.wait(60)
        time.sleep(0.02)
        sizes.append(len(batch["id"]))
        return {"double": batch["id"] * 2}

    with serve_model(slow, batch_size=10, deadline_ms=0, remember_rows=1000) as server:
        peer = Peer(server.url, {"stream": "p", "next": 0}, rows(0, 1).schema)
        peer.send(rows(0, 100_000))
        assert eventually(lambda: server._batcher._rows >= 90_000)
        with ModelClient(server.url, timeout=60) as client:
            future = client.submit(rows(0, 12))
            assert eventually(lambda: len(server._batcher._waiting) == 2)
            go_on.set()
            assert future.result(60)["double"].to_pylist() == list(range(0, 24, 2))
            assert len(sizes) < 12, "two micro-batches have its rows, and it waits for few before"
            peer.close()
            assert eventually(lambda: server._batcher._rows == 0), "nobody is there for them"
            assert client.predict(rows(5, 1))["double"].to_pylist() == [10]
        assert sum(sizes) < 10_000
        # It may come back and send the rest once more.
        again = Peer(server.url, {"stream": "p", "next": 0}, rows(0, 1).schema)
        again.send(rows(0, 1000))
        first = 0
        while first < 1000:
            chunk = again.reader.read_chunk()
            assert json.loads(chunk.app_metadata.to_pybytes()) == {"first": first}
            assert chunk.data["double"].to_pylist() == list(range(2 * first, 2 * (first + chunk.data.num_rows), 2))
            first += chunk.data.num_rows
        again.close()


def test_streams_with_rows_of_several_schemas_take_turns() -> None:
    seen: list[str] = []
    go_on = threading.Event()

    def model(batch: dict[str, Any]) -> dict[str, Any]:
        go_on.wait(60)
        seen.append(next(iter(batch)))
        return {"n": [len(seen)] * len(next(iter(batch.values())))}

    with serve_model(model, batch_size=4, deadline_ms=100) as server:
        clients = [ModelClient(server.url, timeout=60) for _ in range(3)]
        futures = [
            client.submit(pa.record_batch({name: list(range(40))})) for name, client in zip("xyx", clients, strict=True)
        ]
        assert eventually(lambda: server._batcher._rows >= 116)
        go_on.set()
        assert [future.result(60).num_rows for future in futures] == [40] * 3
        for client in clients:
            client.close()
    # The rows of y alone are ten micro-batches, and those of x twenty.
    assert (seen.count("x"), seen.count("y")) == (20, 10)
    assert seen.index("y") <= 2


def test_a_streams_name_has_an_end() -> None:
    with serve_model(lambda batch: {"n": batch["id"]}, deadline_ms=0) as server:
        for name, why in (
            ("n" * 129, "129 characters: at most 128"),
            ("n" * 5000, "a command of 50.. bytes: at most 4096"),
        ):
            with (
                ModelClient(server.url, stream=name, timeout=60) as client,
                pytest.raises(bowstring.MismatchError, match=why),
            ):
                client.submit(rows(1, 1)).result(60)
        for name in ("n" * 128, "\N{GRINNING FACE}" * 128):
            with ModelClient(server.url, stream=name, timeout=60) as client:
                assert client.predict(rows(1, 1)).num_rows == 1
