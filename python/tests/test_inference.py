"""Models behind Flight: micro-batches over all streams, in order, each row once however often connections break."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.flight as flight  # noqa: E402
from bowstring.inference import ModelClient, ModelServer, serve_model  # noqa: E402
from bowstring.inference import client as client_module  # noqa: E402
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
        assert [batch.num_rows for batch in found] == [1000, 0, 1, 99]
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


def test_a_cancelled_call_concerns_no_other_one(model: Model) -> None:
    with serve_model(model, batch_size=6, deadline_ms=60_000) as server:
        with ModelClient(server.url, timeout=20) as client:
            first, second = client.submit(rows(0, 2)), client.submit(rows(2, 2))
            assert first.cancel()
            third = client.submit(rows(4, 2))
            assert [future.result(15)["double"].to_pylist() for future in (second, third)] == [[4, 6], [8, 10]]
            assert client.submit(rows(6, 6)).result(15)["double"][0].as_py() == 12, "row numbers go on"
        client = ModelClient(server.url, timeout=20)
        first, second = client.submit(rows(0, 2)), client.submit(rows(2, 2))
        assert first.cancel()
        client.close()
        with pytest.raises(bowstring.ClosedError):
            second.result(15)


def test_empty_batches_have_empty_answers(server: ModelServer) -> None:
    none = rows(0, 0)
    with ModelClient(server.url) as client:
        with pytest.raises(bowstring.UnsupportedError, match="an empty batch: the columns of its answer are not known"):
            client.predict(none)
        with pytest.raises(bowstring.UnsupportedError, match="leave it out"):
            list(client.map([none]))
        assert list(client.map([])) == []
        found = list(client.map([none, none, rows(1, 2), none, rows(3, 1), none, none]))
        assert [batch.num_rows for batch in found] == [0, 0, 2, 0, 1, 0, 0]
        assert {tuple(batch.schema.names) for batch in [*found, client.predict(none)]} == {("double",)}
        assert client.predict(none).schema == found[2].schema


def test_a_forked_child_is_told_to_make_its_own_client(
    server: ModelServer, script: Callable[..., subprocess.Popen[str]]
) -> None:
    program = script(
        "import bowstring, os, pyarrow, sys\n"
        "from bowstring.inference import ModelClient\n"
        "client = ModelClient(sys.argv[1], timeout=20)\n"
        "batch = pyarrow.record_batch({'id': [1]})\n"
        "client.predict(batch)\n"
        "if os.fork() == 0:\n"
        "    try:\n        client.submit(batch)\n"
        "    except bowstring.ClosedError as error:\n        print('forked' in str(error), flush=True)\n"
        "    client.close()\n    print('closed', flush=True)\n    os._exit(0)\n"
        "os.wait()\n"
        "print(client.predict(batch).num_rows, flush=True)\n"
        "os._exit(0)\n",
        server.url,
    )
    assert program.communicate(timeout=30)[0].split() == ["True", "closed", "1"]


def test_a_restarted_server_is_found(model: Model) -> None:
    first = serve_model(model)
    with ModelClient(first.url, timeout=120) as client:
        assert client.predict(rows(0, 1)).num_rows == 1
        first.close()
        future = client.submit(rows(1, 3))
        with serve_model(model, listen=first.url.partition("://")[2]):
            assert future.result(120)["double"].to_pylist() == [2, 4, 6]


def test_a_program_that_does_not_close_its_server_ends() -> None:
    code = (
        "import pyarrow as pa\n"
        "from bowstring.inference import ModelClient, serve_model\n"
        "server = serve_model(lambda batch: {'y': batch['x']})\n"
        "client = ModelClient(server.url)\n"
        "client.predict(pa.record_batch({'x': [1.0]}))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


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
                assert client.predict(rows(1, 1)).num_rows == 1, "later calls are not concerned"
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


def test_an_exit_of_the_model_does_not_end_the_server() -> None:
    class Silent(BaseException):
        def __str__(self) -> str:
            raise SystemExit(1)

    errors: list[BaseException] = [SystemExit(3), Silent()]

    def leaving(batch: dict[str, Any]) -> dict[str, Any]:
        if errors:
            raise errors.pop(0)
        return {"double": batch["id"] * 2}

    with serve_model(leaving, deadline_ms=0) as server, ModelClient(server.url, timeout=20) as client:
        with pytest.raises(bowstring.RemoteError, match="the model failed: SystemExit: 3"):
            client.predict(rows(1, 1))
        with pytest.raises(bowstring.RemoteError, match="the model failed: Silent"):
            client.predict(rows(1, 1))
        assert client.predict(rows(1, 1))["double"].to_pylist() == [2]
        with ModelClient(server.url, timeout=20) as later:
            assert later.predict(rows(4, 1))["double"].to_pylist() == [8]


def categories(prefix: str) -> Any:
    """A pandas.Categorical with 100 categories: two of them together have too many for their indices."""
    values = pa.array([f"{prefix}{number}" for number in range(100)])
    return pa.record_batch({"c": pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), values)})


def test_rows_that_cannot_be_joined_run_apart() -> None:
    def texts(batch: dict[str, Any]) -> dict[str, Any]:
        return {"text": batch["c"].cast(pa.string())}

    with (
        serve_model(texts, deadline_ms=300, batch_size=1000) as server,
        ModelClient(server.url, timeout=20) as a,
        ModelClient(server.url, timeout=20) as b,
    ):
        for _ in range(2):
            # The second client has two such calls, in one message if they could be joined.
            futures = [a.submit(categories("a")), b.submit(categories("b")), b.submit(categories("c"))]
            found = [future.result(60)["text"].to_pylist() for future in futures]
            assert found == [[f"{prefix}{number}" for number in range(100)] for prefix in "abc"]
        with ModelClient(server.url, timeout=20) as later:
            assert later.predict(categories("d"))["text"][99].as_py() == "d99"


def test_rows_of_one_client_do_not_fail_anothers(model: Model) -> None:
    bad_row = pa.record_batch({"id": pa.array([None, 1], pa.int64())})
    with (
        serve_model(model, deadline_ms=500, batch_size=1000) as server,
        ModelClient(server.url, timeout=20) as good,
        ModelClient(server.url, timeout=20) as bad,
    ):
        for run in range(2):
            model.sizes.clear()
            before = server.stats()["batches"]
            answered, failed = good.submit(rows(1, 3)), bad.submit(bad_row)
            assert answered.result(60)["double"].to_pylist() == [2, 4, 6]
            with pytest.raises(bowstring.RemoteError, match="'id' has 1 nulls"):
                failed.result(60)
            assert model.sizes == [3]
            # Together and then alone; a client whose rows failed runs alone at once.
            assert server.stats()["batches"] - before == 3 - run
        assert good.predict(rows(5, 1))["double"].to_pylist() == [10]
        assert bad.predict(rows(6, 1))["double"].to_pylist() == [12]
        model.sizes.clear()
        futures = [good.submit(rows(1, 3)), bad.submit(rows(4, 2))]
        assert [future.result(60).num_rows for future in futures] == [3, 2]
        assert model.sizes == [5], "together again"


def test_failed_rows_fail_once_through_broken_connections() -> None:
    seen: list[int] = []

    def odd(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(int(batch["id"][0]))
        if batch["id"][0] % 2:
            raise ValueError("odd")
        return {"double": batch["id"] * 2}

    with serve_model(odd, batch_size=1, deadline_ms=0) as server, ModelClient(server.url) as client:
        futures = []
        for number in range(200):
            futures.append(client.submit(rows(number, 1)))
            if number % 50 == 49 and client._call is not None:
                client._call[1].cancel()
        for number, future in enumerate(futures):
            if number % 2:
                assert "odd" in str(future.exception(60))
            else:
                assert future.result(60)["double"].to_pylist() == [2 * number]
        # A call fails as a whole, when some of its rows do.
        with pytest.raises(bowstring.RemoteError, match="odd"):
            client.predict(rows(200, 4))
        assert client.predict(rows(204, 1))["double"].to_pylist() == [408]
    assert sorted(seen) == [*range(204), 204]


class Peer:
    """A client over bare Flight, which reads only when it is told to."""

    def __init__(self, url: str, command: dict[str, Any], schema: Any) -> None:
        self._client = flight.FlightClient(url.replace("grpc://", "grpc+tcp://"))
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        self._writer, self.reader = self._client.do_exchange(descriptor)
        self._writer.begin(schema)
        self.sent = 0

    def send(self, batch: Any, times: int = 1) -> None:
        for _ in range(times):
            self._writer.write_with_metadata(batch, json.dumps({"first": self.sent, "acked": 0}).encode())
            self.sent += batch.num_rows

    def said(self) -> Any:
        return json.loads(self.reader.read_chunk().app_metadata.to_pybytes())

    def close(self) -> None:
        self.reader.cancel()
        with contextlib.suppress(pa.ArrowException):
            self._writer.close()
        self._client.close()


def eventually(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


def test_a_client_that_knows_no_failed_rows_ends_with_them(model: Model) -> None:
    with serve_model(model, deadline_ms=0) as server:
        bad = pa.record_batch({"id": pa.array([None], pa.int64())})
        for errors in (False, True):
            peer = Peer(
                server.url, {"stream": f"p{errors}", "next": 0} | ({"errors": True} if errors else {}), bad.schema
            )
            peer.send(bad)
            said = peer.said()
            if errors:
                assert said.pop("error").startswith("the model failed: UnsupportedError: column 'id' has 1 nulls")
                assert said == {"first": 0, "rows": 1}
                peer.send(rows(7, 1))
                assert peer.said() == {"first": 1}
            else:
                assert said.pop("failed").startswith("the model failed: UnsupportedError: column 'id' has 1 nulls")
                assert said == {"again": False, "kind": "remote"}
            peer.close()


def wide(megabytes: float, count: int = 1) -> Any:
    return pa.record_batch({"id": pa.array([b"x" * int(megabytes * (1 << 20))] * count, pa.binary())})


def test_rows_that_wait_are_limited_in_bytes() -> None:
    go_on = threading.Event()

    def waiting(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["id"][0].as_py():
            go_on.wait(120)
        return {"size": [len(value.as_py()) for value in batch["id"]]}

    with serve_model(waiting, batch_size=1, deadline_ms=0, queue_bytes=16 << 20) as server:
        batcher = server._batcher
        peer = Peer(server.url, {"stream": "p", "next": 0}, wide(4).schema)
        peer.send(wide(0))
        assert peer.said() == {"first": 0}
        sending = threading.Thread(target=peer.send, args=(wide(4), 40), daemon=True)
        sending.start()
        assert eventually(lambda: batcher._rows >= 4)
        time.sleep(0.5)
        assert batcher._rows == 4, "beside one at the model, and one that is being received"
        go_on.set()
        assert [peer.said()["first"] for _ in range(40)] == list(range(1, 41))
        sending.join(60)
        assert batcher._bytes == 0
        peer.close()


def test_a_micro_batch_does_not_wait_for_rows_beyond_the_limit() -> None:
    """Rows that no longer may come cannot fill a micro-batch."""
    with (
        serve_model(lambda batch: {"n": [1] * len(batch["id"])}, deadline_ms=60_000, queue_bytes=16 << 20) as server,
        ModelClient(server.url, timeout=20) as client,
    ):
        assert client.predict(wide(4, 4)).num_rows == 4


def test_a_message_above_the_limit_is_refused() -> None:
    with serve_model(lambda batch: {"n": [1] * len(batch["id"])}, deadline_ms=0, queue_bytes=20 << 20) as server:
        with ModelClient(server.url) as client:
            # Large calls go in several messages, small ones join.
            assert client.predict(wide(5, 10)).num_rows == 10
            assert [answers.num_rows for answers in client.map([wide(1, 3)] * 20)] == [3] * 20
            with pytest.raises(bowstring.LimitError, match=r"a message of 209\d+ bytes for 1 rows, above queue_bytes"):
                client.predict(wide(20))
        with ModelClient(server.url) as client:
            assert client.predict(wide(1)).num_rows == 1
    for wrong in (0, -1, 1 << 23, 1.5, True, "1", None, float("nan")):
        with pytest.raises(bowstring.ConfigError, match="option queue_bytes"):
            serve_model(lambda batch: batch, queue_bytes=wrong)  # type: ignore[arg-type]


def test_a_call_is_cut_by_bytes_and_not_by_dictionaries() -> None:
    uneven = pa.record_batch({"id": pa.array([b""] * 1000 + [b"x" * (5 << 20)] * 8 + [b""] * 1000, pa.binary())})
    sizes = [(batch.num_rows, batch.nbytes) for batch in client_module._messages([uneven])]
    assert sum(count for count, _ in sizes) == 2008
    assert max(size for _, size in sizes) <= 8 << 20
    assert len(sizes) < 40
    words = pa.array([f"{number:01000}" for number in range(20_000)]).dictionary_encode()
    assert len(list(client_module._messages([pa.record_batch({"id": words})]))) == 1


def test_remembered_answers_are_limited_in_bytes() -> None:
    def large(batch: dict[str, Any]) -> dict[str, Any]:
        return {"large": np.zeros((len(batch["id"]), 1 << 17))}

    with (
        serve_model(large, batch_size=2, deadline_ms=5, remember_bytes=4 << 20) as server,
        ModelClient(server.url, timeout=60) as a,
        ModelClient(server.url, timeout=60) as b,
    ):
        for number in range(20):
            futures = [a.submit(rows(number, 1)), b.submit(rows(number, 1))]
            assert [future.result(60).num_rows for future in futures] == [1, 1]
        streams = list(server._streams._all.values())
        assert len(streams) == 2
        server._streams.trim()
        assert 0 < sum(stream.bytes for stream in streams) <= 4 << 20
        # An answer keeps no other rows in memory.
        kept = [batch for stream in streams for _, batch in stream._answers]
        assert all(batch.get_total_buffer_size() < 1.1 * batch.nbytes for batch in kept)


def test_a_client_that_reads_no_answers_is_waited_for_and_then_refused(model: Model) -> None:
    count = 400

    def large(batch: dict[str, Any]) -> dict[str, Any]:
        return {"large": np.zeros((len(batch["id"]), 1 << 16))}

    with serve_model(large, batch_size=8, deadline_ms=0, queue_bytes=64 << 20, remember_bytes=0) as server:
        peer = Peer(server.url, {"stream": "p", "next": 0}, rows(0, 1).schema)
        sending = threading.Thread(target=peer.send, args=(rows(0, 1), count), daemon=True)
        sending.start()
        stream = server._streams._all["p"] if eventually(lambda: "p" in server._streams._all) else None
        assert stream is not None
        assert eventually(lambda: stream.unsent() >= 8 << 20)
        time.sleep(1)
        # Its rows wait, at most those that were received before.
        assert stream.failed is None
        assert stream.bytes <= 64 << 20
        with ModelClient(server.url, timeout=20) as other:
            assert other.predict(rows(0, 1)).num_rows == 1
        last = 0
        while last < count - 8:
            last = peer.said()["first"]
        sending.join(60)
        peer.close()

    taken: list[Any] = []
    streams = Streams(max_streams=9, remember_rows=1000, remember_bytes=1000, unread_bytes=2000)
    read, unread = (streams.attach(name, 0)[0] for name in ("read", "unread"))
    for stream in (read, unread):
        stream.take(0, rows(0, 100), lambda first, batch: taken.append(batch))
        for number in range(10):
            stream.answer(10 * number, rows(0, 10))
    read.sent = 90
    unread.sent = 10
    streams.trim()
    assert read.failed is unread.failed is None
    assert read.after(90) is not None, "only answers that were sent are forgotten"
    assert unread.after(10) is not None
    assert (read.bytes, unread.bytes) == (80, 800)
    for number in range(10, 30):
        unread.answer(10 * number, rows(0, 10))
    streams.trim()
    assert "raise queue_bytes" in str(unread.failed)
    assert unread.bytes == 0
    assert read.failed is None
    unread.answer(300, rows(0, 10))
    assert unread.bytes == 0


def test_a_model_whose_columns_change_fails_at_once() -> None:
    def changing(batch: dict[str, Any]) -> dict[str, Any]:
        return {"n": [1] if batch["id"][0] else [0.5]}

    with (
        serve_model(changing, deadline_ms=0) as server,
        ModelClient(server.url, timeout=60) as client,
    ):
        assert client.predict(rows(0, 1)).num_rows == 1
        with pytest.raises(bowstring.RemoteError, match=r"returned n \(int64\) after n \(double\): give schema"):
            client.submit(rows(1, 1)).result(20)


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
    assert stream.after(3) is not None, "what was not sent is kept, beyond the limit too"
    stream.sent = 26
    stream.answer(26, rows(26, 1))
    with pytest.raises(bowstring.MismatchError, match="before row 6 are forgotten"):
        stream.attach(4)
    streams = Streams(max_streams=2, remember_rows=10, remember_bytes=100)
    kept = [streams.attach(name, 0) for name in "ab"]
    with pytest.raises(bowstring.LimitError, match="max_streams"):
        streams.attach("c", 0)
    kept[0][0].detach(kept[0][1])
    streams.attach("c", 0)
    assert streams.attach("b", 0)[1] == 2, "the newest connection counts"


def test_a_client_is_waited_for_while_as_many_answers_are_unread_as_are_remembered() -> None:
    stream = Stream("s", remember=10)
    stream.attach(0)
    stream.answer(0, rows(0, 9))
    assert not stream.ahead(1 << 30, 64)
    stream.answer(9, rows(9, 1))
    assert stream.ahead(1 << 30, 64)
    stream.sent = 9
    assert not stream.ahead(1 << 30, 64)


@pytest.mark.parametrize("count", [400_000, 65_537])
def test_a_call_of_more_rows_than_are_remembered_has_its_answers(model: Model, count: int) -> None:
    with serve_model(model, batch_size=4096) as server, ModelClient(server.url, timeout=120) as client:
        assert client.predict(rows(0, count))["double"].to_numpy().tolist() == list(range(0, 2 * count, 2))
        assert client.predict(rows(7, 1))["double"].to_pylist() == [14]


def test_a_large_call_goes_on_after_broken_connections(model: Model) -> None:
    """What is under way is no more than the server remembers, even if none of it has arrived."""
    most: list[int] = []
    with serve_model(model, batch_size=1024) as server, ModelClient(server.url, timeout=120) as client:
        future = client.submit(rows(0, 400_000))
        random_ = random.Random(5)
        while not future.done():
            time.sleep(random_.random() / 5)
            with client._changed:
                most.append(client._outstanding())
                call = client._call
            if call is not None and len(most) < 30:
                call[1].cancel()
        assert future.result(120)["double"].to_numpy().tolist() == list(range(0, 800_000, 2))
    assert model.seen == list(range(400_000))
    assert max(most) <= 1 << 16


def test_a_client_that_reads_late_has_all_answers_and_the_server_few_at_once() -> None:
    def large(batch: dict[str, Any]) -> dict[str, Any]:
        return {"large": np.zeros((len(batch["id"]), 1024))}

    with serve_model(large, batch_size=10, deadline_ms=0, remember_rows=100) as server:
        peer = Peer(server.url, {"stream": "p", "next": 0}, rows(0, 1).schema)
        sending = threading.Thread(target=peer.send, args=(rows(0, 10), 500), daemon=True)
        sending.start()
        assert eventually(lambda: "p" in server._streams._all)
        stream = server._streams._all["p"]
        assert eventually(lambda: stream.answered - stream.sent >= 100)
        time.sleep(1)
        # Those of rows that had been received when the client had to wait: 160 that waited for the model, and two messages.
        assert stream.answered - stream.sent <= 100 + 160 + 20
        last = 0
        while last < 4990:
            last = peer.said()["first"]
        sending.join(60)
        assert stream.failed is None
        peer.close()


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
    with pytest.raises(bowstring.MismatchError, match="returned no columns"):
        predicted({}, 2, None)
    required = pa.schema([pa.field("y", pa.string(), nullable=False)])
    with pytest.raises(bowstring.MismatchError, match="1 nulls of 'y', which was declared NOT NULL"):
        predicted(["a", None], 2, required)
    for kind, value in ((pa.struct([("a", pa.int64())]), {"A": 1}), (pa.struct([("a", pa.int32())]), {"b": 1})):
        for wanted, values in ((kind, [value]), (pa.list_(kind), [[value]])):
            with pytest.raises(bowstring.MismatchError, match="'a'"):
                predicted({"y": values}, 1, pa.schema([("y", wanted)]))
    pairs = pa.schema([("y", pa.map_(pa.string(), pa.int64()))])
    assert predicted({"y": [[("a", 1)]]}, 1, pairs).to_pylist() == [{"y": [("a", 1)]}]
    single = pa.schema([("y", pa.list_(pa.float32()))])
    assert predicted({"y": np.array([[np.inf, 0.5]])}, 1, single).to_pylist() == [{"y": [np.inf, 0.5]}]
    with pytest.raises(bowstring.MismatchError, match="beyond its range"):
        predicted({"y": np.array([[1e300, 0.5]])}, 1, single)
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


def test_a_server_that_leaves_rows_out_fails_the_client_at_once() -> None:
    class Gapped(flight.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            chunk = reader.read_chunk()
            first = json.loads(chunk.app_metadata.to_pybytes())["first"]
            writer.begin(chunk.data.schema)
            writer.write_with_metadata(chunk.data.slice(1), json.dumps({"first": first + 1}).encode())
            reader.read_chunk()

    with Gapped("grpc://127.0.0.1:0") as server, ModelClient(f"grpc://127.0.0.1:{server.port}", timeout=60) as client:
        with pytest.raises(bowstring.MismatchError, match="left rows 0 to 1 out"):
            client.submit(rows(0, 4)).result(20)
        with pytest.raises(bowstring.MismatchError, match="left rows 0 to 1 out"):
            client.submit(rows(4, 4))


def test_numbers_beyond_a_type_are_refused_and_infinite_ones_are_kept() -> None:
    def given(values: Any, kind: pa.DataType) -> list[Any]:
        return predicted({"x": values}, 2, pa.schema([("x", kind)]))["x"].to_pylist()  # type: ignore[no-any-return]

    for values in (np.array([1, -np.inf], np.float16), np.array([1, -np.inf]), pa.array([1.0, -np.inf])):
        assert given(values, pa.float32()) == [1.0, -np.inf]
    for values, kind in (
        (np.array([1.0, 1e6]), pa.float16()),
        (np.array([1.0, 1e300]), pa.float32()),
        (pa.array([[1.0], [1e300]]), pa.list_(pa.float32())),
        ([[("a", 1.0)], [("a", 1e300)]], pa.map_(pa.string(), pa.float32())),
        ([[("a", [1.0])], [("a", [1e300])]], pa.map_(pa.string(), pa.list_(pa.float32()))),
        ([[("a", [("b", 1e300)])], []], pa.map_(pa.string(), pa.map_(pa.string(), pa.float32()))),
        (pa.array([[("a", 1e300)], None], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.float32())),
        (pa.array([{"a": 1, "b": 1.0}, {"a": 1, "b": 1e300}]), pa.struct([("a", pa.int32()), ("b", pa.float32())])),
    ):
        with pytest.raises(bowstring.MismatchError, match="beyond its range"):
            given(values, kind)
    inner = pa.struct([("a", pa.int32())])
    assert given([{"a": 1}, None], inner) == [{"a": 1}, None]
    assert given([[{"a": 1}], []], pa.list_(inner)) == [[{"a": 1}], []]
    masked = np.ma.masked_array([[5.0, 6.0], [7.0, 8.0]], mask=[[True, False], [False, False]])
    assert given(masked, pa.list_(pa.float32())) == [[None, 6.0], [7.0, 8.0]]
    with pytest.raises(bowstring.MismatchError, match="not a NoneType"):
        given(None, pa.float32())


def test_maps_are_cast_like_other_columns() -> None:
    def given(values: Any, items: pa.DataType, keys: pa.DataType | None = None) -> list[Any]:
        kind = pa.map_(keys or pa.string(), items)
        return predicted({"x": values}, len(values), pa.schema([("x", kind)]))["x"].to_pylist()  # type: ignore[no-any-return]

    pairs = [[("a", 1), ("b", None)], None, [], [("c", 2)]]
    assert given(pairs, pa.int8()) == given(pairs, pa.float32()) == pairs
    assert given([dict(row) if row is not None else None for row in pairs], pa.int8()) == pairs
    assert given(pa.array(pairs, pa.map_(pa.string(), pa.int64())).slice(1, 3), pa.int8()) == pairs[1:]
    assert given([[("a", [1, 2]), ("b", None)], None], pa.list_(pa.int8())) == [[("a", [1, 2]), ("b", None)], None]
    inner = [[("a", [("b", 1)])], [("a", None), ("c", [])]]
    assert given(inner, pa.map_(pa.string(), pa.int8())) == inner
    assert given([None, []], pa.int8()) == [None, []]
    assert given([[("a", 2**63)]], pa.uint64()) == [[("a", 2**63)]]
    for values, items, keys in (
        ([[("a", 1.7)]], pa.int32(), None),
        ([[("a", 300)]], pa.int8(), None),
        ([[(1.7, 1)]], pa.int8(), pa.int32()),
        ([[("a", [1.7])]], pa.list_(pa.int32()), None),
        ([[("a", [("b", 1.7)])]], pa.map_(pa.string(), pa.int32()), None),
    ):
        with pytest.raises(bowstring.MismatchError, match="was declared"):
            given(values, items, keys)
    with pytest.raises(bowstring.MismatchError, match=r"a map of \('a', 1, 2\), which is not \(key, value\)"):
        given([[("a", 1, 2)]], pa.int8())


def test_moments_are_neither_dates_nor_times() -> None:
    def given(values: Any, kind: pa.DataType) -> list[Any]:
        return predicted({"x": values}, len(values), pa.schema([("x", kind)]))["x"].to_pylist()  # type: ignore[no-any-return]

    day, early, before = datetime(2024, 7, 1), datetime(2024, 7, 1, 0, 0, 0, 1), datetime(1960, 1, 2, 23)
    # Midnight in Berlin.
    late = pa.array([datetime(2024, 6, 30, 22)], pa.timestamp("us", "Europe/Berlin"))
    for kind in (pa.date32(), pa.date64()):
        assert given([day, None], kind) == [day.date(), None]
        assert given(late, kind) == [day.date()]
        for values, wanted in (
            ([early, None], kind),
            ([before], kind),
            (pa.array([day], pa.timestamp("us", "Europe/Berlin")), kind),
            (np.array(["2024-07-01T00:00:00.000000001"], "datetime64[ns]"), kind),
            ([[day, early]], pa.list_(kind)),
            ([{"a": early}], pa.struct([("a", kind)])),
            ([[("a", early)]], pa.map_(pa.string(), kind)),
        ):
            with pytest.raises(bowstring.MismatchError, match="a date has no time"):
                given(values, wanted)
    for kind in (pa.time32("s"), pa.time64("us")):
        assert given(pa.array([None], pa.timestamp("us")), kind) == [None]
        for values, wanted in (([day], kind), ([[day]], pa.list_(kind))):
            with pytest.raises(bowstring.MismatchError, match="a time has no date"):
                given(values, wanted)
