"""Rows of many mebibytes between bowstring and pyarrow, in both directions: equal, or an error that names the option."""

from __future__ import annotations

import json
import random
from pathlib import Path

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import flight

MIB = 1 << 20
SIZES = (1, 3, 5, 17, 64)


def rows(size: int) -> pa.Table:
    """Two rows of ``size`` MiB each, in a batch each."""
    source = random.Random(size)
    blobs = [pa.array([source.randbytes(size * MIB)], pa.large_binary()) for _ in range(2)]
    return pa.table({"id": pa.chunked_array([[0], [1]]), "blob": pa.chunked_array(blobs)})


def put(client: flight.FlightClient, table: pa.Table) -> None:
    """Writes a dataset as any Flight client can."""
    command = {"dataset": "made", "write": "w1", "task": 0, "attempt": 0}
    writer, reader = client.do_put(flight.FlightDescriptor.for_command(json.dumps(command)), table.schema)
    with writer:
        for batch in table.to_batches():
            writer.write_batch(batch)
        writer.done_writing()
        answer = reader.read()
    token = json.loads(answer.to_pybytes())["token"]
    commit = json.dumps({"dataset": "made", "write": "w1", "mode": "create", "tokens": [token]})
    list(client.do_action(flight.Action("put.commit", commit.encode())))


def rows_of(client: flight.FlightClient, dataset: str) -> list[bytes]:
    """The blobs of a dataset, read by pyarrow."""
    command = json.dumps({"dataset": dataset, "rows": {}})
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    chunks = [chunk.data for chunk in client.do_get(info.endpoints[0].ticket)]
    return [blob for chunk in chunks for blob in chunk["blob"].to_pylist()]


def batches_of(url: str) -> list[bytes]:
    """The blobs of a dataset, read by a loader."""
    with bowstring.Loader(url, batch_size=1, shuffle=False) as loader:
        return [bytes(batch["blob"][0]) for batch in loader]


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_a_file_reach_pyarrow_and_loaders(size: int, tmp_path: Path) -> None:
    table, path = rows(size), tmp_path / "large.parquet"
    pq.write_table(table, path, row_group_size=1)
    blobs = table["blob"].to_pylist()
    with bowstring.flight.Server({"large": path}) as server, flight.connect(server.url) as client:
        assert rows_of(client, "large") == blobs
        assert batches_of(f"{server.url}/large") == blobs


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_pyarrow_reach_loaders_and_pyarrow(size: int) -> None:
    table = rows(size)
    blobs = table["blob"].to_pylist()
    with bowstring.flight.Server(put="memory") as server, flight.connect(server.url) as client:
        put(client, table)
        assert batches_of(f"{server.url}/made") == blobs
        assert rows_of(client, "made") == blobs


def test_a_message_beyond_the_limit_names_the_option() -> None:
    both = rows(64).combine_chunks()
    with (
        bowstring.flight.Server(put="memory") as server,
        flight.connect(server.url) as client,
        pytest.raises((pa.ArrowException, flight.FlightError), match="raise message_bytes"),
    ):
        put(client, both)
