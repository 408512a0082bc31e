"""Models behind Flight: micro-batches over all streams, in order, each row once however often connections break."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from bowstring.inference import ModelClient, ModelServer, serve_model  # noqa: E402
from bowstring.inference.arrays import predicted, rebatched, tensors  # noqa: E402
from bowstring.inference.streams import Stream, Streams  # noqa: E402

pytestmark = pytest.mark.timeout(300)

SOAK = os.environ.get("BOWSTRING_SOAK") == "1"


class Model:
    """Doubles ids, and records those it saw."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.sizes: list[int] = []

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.seen += batch["id"].tolist()
        self.sizes.append(len(batch["id"]))
        return {"double": batch["id"] * 2}


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def server(model: Model) -> Iterator[ModelServer]:
    with serve_model(model, batch_size=64, deadline_ms=20) as server:
        yield server


def rows(first: int, count: int) -> Any:
    return pa.record_batch({"id": pa.array(range(first, first + count), pa.int64())})


def test_answers_come_in_order_and_rows_go_to_the_model_together(server: ModelServer, model: Model) -> None:
    def ask(client: int) -> list[int]:
        with ModelClient(server.url) as asking:
            futures = [asking.submit(rows(client * 1000 + number, 1)) for number in range(500)]
            return [future.result(60)["double"][0].as_py() for future in futures]

    found: dict[int, list[int]] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: ask(n)}), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {n: [2 * (n * 1000 + number) for number in range(500)] for n in range(4)}
    assert sorted(model.seen) == sorted(n * 1000 + number for n in range(4) for number in range(500))
    assert max(model.sizes) <= 64
    assert len(model.sizes) < 2000, "rows were predicted together"
    assert server.stats() == {"rows": 2000, "batches": len(model.sizes)}


def test_large_batches_are_cut_and_put_together_again(server: ModelServer, model: Model) -> None:
    with ModelClient(server.url, window=300) as client:
        batches = [rows(0, 1000), rows(1000, 0), rows(1000, 1), rows(1001, 99)]
        found = list(client.map(batches))
        assert [batch.num_rows for batch in found] == [1000, 1, 99]
        assert [value for batch in found for value in batch["double"].to_pylist()] == list(range(0, 2200, 2))
        assert client.predict(rows(7, 2))["double"].to_pylist() == [14, 16]
    assert max(model.sizes) <= 64


@pytest.mark.parametrize("run", range(20 if SOAK else 2))
def test_each_row_once_through_broken_connections(server: ModelServer, model: Model, run: int) -> None:
    random_ = random.Random(run)
    print("seed", run)
    breaks = sorted(random_.sample(range(2000), 20))
    with ModelClient(server.url, timeout=120) as client:
        futures = []
        for number in range(2000):
            futures.append(client.submit(rows(number, 1)))
            if number in breaks and client._call is not None:
                client._call[1].cancel()
        assert [future.result(120)["double"][0].as_py() for future in futures] == list(range(0, 4000, 2))
    assert sorted(model.seen) == list(range(2000))


CONSUMER = """
import json, os, sys
import pyarrow as pa
from bowstring.inference import ModelClient
url, path = sys.argv[1:]
done = len(open(path).read().splitlines()) if os.path.exists(path) else 0
with ModelClient(url, stream="mine", first=done, window=64) as client, open(path, "a") as sink:
    sent = (pa.record_batch({"id": [number]}) for number in range(done, 600))
    for number, answer in enumerate(client.map(sent), done):
        assert answer["double"].to_pylist() == [2 * number], (number, answer, done)
        sink.write(f"{answer['double'][0].as_py()}\\n")
        sink.flush()
        print(number, flush=True)
"""


def test_each_id_once_through_kills_of_the_consumer(server: ModelServer, model: Model, tmp_path: Path) -> None:
    """When a consumer is killed, the next one resumes after the rows in the sink; the model sees no row twice."""
    sink, random_ = tmp_path / "sink", random.Random(3)
    environment = {**os.environ, "PYTHONPATH": str(Path(bowstring.__file__).parents[1])}
    command = [sys.executable, "-c", CONSUMER, server.url, str(sink)]
    for _ in range(20 if SOAK else 2):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        for _ in range(random_.randrange(1, 25)):
            process.stdout.readline()
        process.kill()
        process.communicate()
        whole = sink.read_text()
        sink.write_text(whole[: whole.rfind("\n") + 1])  # the last line may be incomplete
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, timeout=200)
    assert [int(line) for line in sink.read_text().splitlines()] == list(range(0, 1200, 2))
    assert sorted(model.seen) == list(range(600))


def test_a_restarted_server_is_found(model: Model) -> None:
    first = serve_model(model)
    with ModelClient(first.url, timeout=120) as client:
        assert client.predict(rows(0, 1)).num_rows == 1
        first.close()
        future = client.submit(rows(1, 3))
        with serve_model(model, listen=first.url.partition("://")[2]):
            assert future.result(120)["double"].to_pylist() == [2, 4, 6]


def test_failures_of_the_model_reach_the_client(model: Model) -> None:
    def broken(batch: dict[str, Any]) -> dict[str, Any]:
        if 13 in batch["id"]:
            raise ValueError("thirteen")
        return {"double": batch["id"][:-1] if 14 in batch["id"] else batch["id"]}

    with serve_model(broken, batch_size=1, deadline_ms=0) as server:
        for number, word in [(13, "the model failed: ValueError: thirteen"), (14, "returned 0 values")]:
            with ModelClient(server.url) as client:
                assert client.predict(rows(1, 1)).num_rows == 1
                with pytest.raises(bowstring.RemoteError, match=word):
                    client.predict(rows(number, 1))
                with pytest.raises(bowstring.RemoteError, match=word):
                    client.submit(rows(1, 1))
        address = server.url
    with ModelClient(address, timeout=0.5) as client, pytest.raises(bowstring.TimeoutError, match="no answer for"):
        client.predict(rows(1, 1))
    with pytest.raises(bowstring.ConfigError, match="reached by others"):
        serve_model(model, listen="0.0.0.0:0")
    with serve_model(model, token="a-token-of-the-tests") as server:
        with ModelClient(server.url) as client, pytest.raises(bowstring.RemoteError, match="token"):
            client.predict(rows(1, 1))
        with ModelClient(server.url, storage_options={"token": "a-token-of-the-tests"}) as client:
            assert client.predict(rows(1, 1)).num_rows == 1


def test_a_stream_keeps_answers_that_may_be_requested_again() -> None:
    taken: list[tuple[int, int]] = []
    stream = Stream("s", remember=10)
    assert stream.attach(0) == 1
    stream.take(0, rows(0, 4), lambda first, batch: taken.append((first, batch.num_rows)))
    stream.take(2, rows(2, 4), lambda first, batch: taken.append((first, batch.num_rows)))
    assert taken == [(0, 4), (4, 2)], "rows that came before are passed over"
    with pytest.raises(bowstring.MismatchError, match="6 to 9 are missing"):
        stream.take(9, rows(9, 1), lambda first, batch: None)
    stream.answer(0, rows(0, 4))
    stream.answer(4, rows(4, 2))
    assert stream.attach(3) == 2
    found = stream.after(3)
    assert found is not None
    assert found["id"].to_pylist() == [3]
    assert stream.after(6) is None
    stream.answer(6, rows(6, 20))
    with pytest.raises(bowstring.MismatchError, match="before row 6 are forgotten"):
        stream.attach(4)
    streams = Streams(max_streams=2, remember_rows=10, remember_bytes=100)
    kept = [streams.attach(name, 0) for name in "ab"]
    with pytest.raises(bowstring.LimitError, match="max_streams"):
        streams.attach("c", 0)
    kept[0][0].detach(kept[0][1])
    streams.attach("c", 0)
    assert streams.attach("b", 0)[1] == 2, "the newest connection counts"


def test_the_newest_answer_is_found_among_thousands() -> None:
    """All answers are kept for a client that uses them without acknowledging."""
    looked: list[int] = []

    class Counted(deque[Any]):
        def __iter__(self) -> Iterator[Any]:
            return (looked.append(1) or one for one in super().__iter__())

        def __reversed__(self) -> Iterator[Any]:
            return (looked.append(1) or one for one in super().__reversed__())

    stream = Stream("s", remember=100_000)
    stream.attach(0)
    stream._answers = Counted()
    for number in range(5000):
        stream.answer(number, rows(number, 1))
        found = stream.after(number)
        assert found is not None
        assert found["id"].to_pylist() == [number]
    assert len(looked) <= 10_000


def test_a_stream_has_one_answer_of_each_micro_batch(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[tuple[str, int, int]] = []
    whole = Stream.answer

    def noted(stream: Stream, first: int, batch: Any) -> None:
        answers.append((stream.name, first, batch.num_rows))
        whole(stream, first, batch)

    monkeypatch.setattr(Stream, "answer", noted)
    with (
        serve_model(model, batch_size=40, deadline_ms=60_000) as server,
        ModelClient(server.url, stream="a") as a,
        ModelClient(server.url, stream="b") as b,
    ):
        order = [(part, number) for number in range(20) for part in range(2)]
        futures = [(a, b)[part].submit(rows(100 * part + number, 1)) for part, number in order]
        found = [future.result(60)["double"][0].as_py() for future in futures]
    assert found == [2 * (100 * part + number) for part, number in order]
    assert sorted(answers) == [("a", 0, 20), ("b", 0, 20)]
    assert model.sizes == [40]


def test_columns_as_tensors_and_back() -> None:
    batch = pa.record_batch(
        {
            "x": pa.array([1.0, 2.0]),
            "pair": pa.array([[1, 2], [3, 4]]),
            "ragged": pa.array([[1], [2, 3]]),
            "word": ["a", None],
            "flag": [True, False],
            "hole": pa.array([1, None]),
        }
    )
    found = tensors(batch, ["x", "pair", "ragged", "word", "flag"])
    assert found["pair"].tolist() == [[1, 2], [3, 4]]
    assert found["flag"].dtype == bool
    assert isinstance(found["ragged"], pa.Array)
    assert found["word"].to_pylist() == ["a", None]
    with pytest.raises(bowstring.UnsupportedError, match="'hole' has 1 nulls"):
        tensors(batch)
    with pytest.raises(bowstring.NotFoundError, match="'y' not found"):
        tensors(batch, ["y"])
    schema = pa.schema([("y", pa.float32()), ("e", pa.list_(pa.list_(pa.int64())))])
    made = predicted({"y": np.array([1, 2]), "e": np.arange(8).reshape(2, 2, 2)}, 2, schema)
    assert made.to_pylist() == [{"y": 1.0, "e": [[0, 1], [2, 3]]}, {"y": 2.0, "e": [[4, 5], [6, 7]]}]
    assert predicted(np.array([0.5]), 1, pa.schema([("y", pa.float64())])).to_pylist() == [{"y": 0.5}]
    with pytest.raises(bowstring.MismatchError, match="returned 1 values of 'y' for 2 rows"):
        predicted({"y": [1]}, 2, None)
    with pytest.raises(bowstring.MismatchError, match="but no 'z'"):
        predicted({"y": [1]}, 1, pa.schema([("z", pa.int64())]))
    pieces = list(rebatched([rows(0, 5), rows(5, 0), rows(5, 6)], 4))
    assert [piece["id"].to_pylist() for piece in pieces] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_a_row_waits_no_longer_than_its_deadline(model: Model) -> None:
    """A lower bound only: a single row waits for others, rows that fill a micro-batch do not."""
    with serve_model(model, batch_size=4, deadline_ms=300) as server, ModelClient(server.url) as client:
        client.predict(rows(0, 4))
        begun = time.monotonic()
        client.predict(rows(0, 1))
        assert time.monotonic() - begun >= 0.25
        assert model.sizes == [4, 1]
