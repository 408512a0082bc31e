"""Python's part of the promises of a loader, over every source of batches. The rest is in tests/it/conformance.rs.

Covered here are conversion, interrupts, tensors of the caller, threads and ends; for NumPy and torch, whose loaders share a core.
"""

from __future__ import annotations

import gc
import json
import pathlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any, NamedTuple

import bowstring
import numpy as np
import pytest
from bowstring.flight import Connection, attempt_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
torch = pytest.importorskip("torch")

from bowstring.torch import DataLoader  # noqa: E402

ROWS, BATCH = 100, 12


class Way(NamedTuple):
    """A way to open a loader: its class, and the place of its rows."""

    loader: type[Any]
    url: Any
    options: dict[str, Any]

    def open(self, **options: Any) -> Any:
        return self.loader(
            self.url, **{"batch_size": BATCH, "columns": ["id"], "tail": "pad", **self.options, **options}
        )

    def empty(self, rows: int) -> Any:
        zeros = np.zeros(rows, np.int64)
        return zeros if self.loader is bowstring.Loader else torch.from_numpy(zeros)


def real(batch: dict[str, Any]) -> list[int]:
    mask = batch.get("_mask", [True] * len(batch["id"]))
    return [int(row) for row, is_real in zip(batch["id"], mask, strict=True) if is_real]


def steps(batches: Any) -> list[list[int]]:
    return [real(batch) for batch in batches]


def table(rows: range) -> Any:
    return pa.table({"id": pa.array(rows, pa.int64())})


def put(server: bowstring.flight.Server) -> None:
    """Puts the rows in two tasks, as Spark does."""
    with Connection(f"{server.url}/rows") as connection:
        tokens = []
        for task, rows in enumerate((range(40), range(40, ROWS))):
            part = table(rows)
            staged = connection.put(attempt_of("rows", "w", task, 0), part.schema, part.to_batches())
            tokens.append(staged["token"])
        connection.commit("rows", "w", "create", tokens)


@pytest.fixture(params=["numpy", "torch"])
def loader(request: pytest.FixtureRequest) -> type[Any]:
    return bowstring.Loader if request.param == "numpy" else DataLoader


@pytest.fixture(
    params=["local", "tcp", "shared_memory", "put", "mixture", pytest.param("hdfs", marks=pytest.mark.server)]
)
def way(request: pytest.FixtureRequest, tmp_path: pathlib.Path, loader: type[Any]) -> Iterator[Way]:
    kind, path = request.param, tmp_path / "rows.parquet"
    pq.write_table(table(range(ROWS)), path, row_group_size=13)
    with ExitStack() as stack:
        if kind == "local":
            yield Way(loader, path, {})
        elif kind == "hdfs":
            cluster = request.getfixturevalue("hdfs")
            yield Way(loader, cluster.put(path, "/conformance/rows.parquet"), {})
        elif kind == "mixture":
            parts = [tmp_path / f"{part}.parquet" for part in range(2)]
            for part, rows in zip(parts, (range(50), range(50, ROWS)), strict=True):
                pq.write_table(table(rows), part, row_group_size=13)
            yield Way(loader, parts, {"weights": [1, 1]})
        elif kind == "put":
            server = stack.enter_context(bowstring.flight.Server({}, put=tmp_path / "put"))
            put(server)
            yield Way(loader, f"{server.url}/rows", {})
        else:
            server = stack.enter_context(bowstring.flight.Server({"rows": path}))
            yield Way(loader, f"{server.url}/rows", {"storage_options": {"transport": kind}})


@pytest.mark.parametrize("tail", ["pad", "short", "even"])
def test_a_state_resumes_at_every_step(way: Way, tail: str) -> None:
    with way.open(shuffle=True, seed=3, tail=tail) as writer:
        states = [writer.state_dict()]
        expected = []
        for batch in writer:
            expected.append(real(batch))
            states.append(writer.state_dict())
    assert len(expected) == len(writer) == 9
    rows = [row for step in expected for row in step]
    # 100 rows or 99: less than half a step remains, which the last two steps share under `even`.
    left = len(rows) - 8 * BATCH
    even = [(BATCH + left + 1) // 2, (BATCH + left) // 2]
    assert [len(step) for step in expected[-2:]] == (even if tail == "even" else [BATCH, left])
    assert len(rows) == len(set(rows)) >= ROWS - 1
    for step, state in enumerate(states):
        with way.open(shuffle=True, seed=3, tail=tail) as resumed:
            resumed.load_state_dict(json.loads(json.dumps(state)))
            assert (resumed.epoch, resumed.step) == (0, step)
            assert steps(resumed) == expected[step:]
            assert (resumed.epoch, resumed.step) == (1, 0)


def test_an_interrupt_costs_no_batch(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = steps(way.open())
    with way.open() as interrupted:
        convert, struck = interrupted._batch, list[int]()

        def strike(columns: dict[str, Any]) -> Any:
            # Ctrl-C arrives after the batch is ready and before it is returned, once for every other step.
            if interrupted.step % 2 == 1 and interrupted.step not in struck:
                struck.append(interrupted.step)
                signal.raise_signal(signal.SIGINT)
            return convert(columns)

        monkeypatch.setattr(interrupted, "_batch", strike)
        # A shell that runs the tests in the background may have had the signal ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        found, interrupts, batches = list[list[int]](), 0, iter(interrupted)
        try:
            while interrupted.epoch == 0:
                try:
                    found.extend(map(real, batches))
                except KeyboardInterrupt:
                    interrupts += 1
        finally:
            signal.signal(signal.SIGINT, before)
    assert found == expected
    assert interrupts == len(struck) >= 4


def test_a_conversion_that_fails_costs_no_batch(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = steps(way.open())
    with way.open() as failing:
        convert, calls = failing._batch, list[int]()

        def fail(columns: dict[str, Any]) -> Any:
            calls.append(len(calls))
            if len(calls) % 3 == 2:
                raise ValueError("no room")
            return convert(columns)

        monkeypatch.setattr(failing, "_batch", fail)
        found, batches = [], iter(failing)
        while failing.epoch == 0:
            step = failing.step
            try:
                batch = next(batches, None)
            except ValueError:
                assert failing.step == step
            else:
                found += [] if batch is None else [real(batch)]
    assert found == expected
    assert len(calls) > len(expected)


def test_tensors_of_the_caller_are_filled_or_the_batch_stays(way: Way) -> None:
    expected = steps(way.open())
    own = way.empty(BATCH)
    with way.open() as filling:
        found = []
        for step in range(len(filling)):
            with pytest.raises(bowstring.MismatchError):
                filling.next_into({"id": way.empty(BATCH - 1)})
            assert filling.step == step, "what does not fit costs no batch"
            batch = filling.next_into({"id": own})
            assert batch is not None
            assert batch["id"] is own
            found.append(real(batch))
        assert filling.next_into({"id": own}) is None
        assert (filling.epoch, filling.step) == (1, 0)
    assert found == expected


def test_a_closed_loader_raises_and_its_batches_stay(way: Way) -> None:
    closed = way.open()
    kept = next(iter(closed))
    rows, state = real(kept), closed.state_dict()
    closed.close()
    closed.close()
    for _ in range(2):
        with pytest.raises(bowstring.ClosedError):
            next(iter(closed))
        with pytest.raises(bowstring.ClosedError):
            closed.next_into({"id": way.empty(BATCH)})
    assert closed.state_dict() == state
    del closed
    gc.collect()
    assert real(kept) == rows


def test_a_loader_is_dropped_while_a_thread_waits(way: Way) -> None:
    def take(count: int, done: Callable[[], None]) -> None:
        dropped = way.open(prefetch=1)
        batches = iter(dropped)
        for _ in range(count):
            next(batches)
        del dropped, batches
        done()

    for count in (0, 1, 3):
        ended = threading.Event()
        threading.Thread(target=take, args=(count, ended.set), daemon=True).start()
        assert ended.wait(60), f"dropped after {count} steps"
    assert len(steps(way.open())) == 9


def test_threads_share_the_batches_of_one_iterator(way: Way) -> None:
    expected = steps(way.open())
    with way.open() as shared:
        found: list[list[int]] = []
        batches, each = iter(shared), len(expected) // 3

        def take() -> None:
            for _ in range(each):
                found.append(real(next(batches)))

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert sorted(found) == sorted(expected)


def test_every_iter_is_a_pass(way: Way) -> None:
    with way.open(shuffle=True, seed=3) as loader:
        epochs = [steps(loader) for _ in range(6)]
    with way.open(shuffle=True, seed=3) as loader:
        iter(loader)
        assert real(next(iter(loader))) == epochs[0][0]
        assert steps(islice(loader, 9)) == epochs[1], "its end is not asked for"
        for batch in loader:
            assert real(batch) == epochs[2][0]
            break
        assert steps(batch for batch, _ in zip(loader, range(5), strict=False)) == epochs[3][:5]
        state = loader.state_dict()
        assert (loader.epoch, loader.step) == (3, 6)
        early = [[0, 1], [2, 1]]
        assert state["left"] == early, "what was left early, and nothing else"
        filled = [real(batch) for batch in loader.into({"id": way.empty(BATCH)})]
        assert filled == epochs[4]
        assert steps(loader) == epochs[5]
        loader.load_state_dict(state)
        assert steps(loader) == epochs[3][6:]
        assert (loader.epoch, loader.step) == (4, 0)
        assert loader.state_dict()["left"] == early
        loader.set_epoch(1)
        next(iter(loader))
        loader.set_epoch(1)
        assert steps(loader) == epochs[1]
        assert loader.state_dict()["left"] == [*early, [1, 1]]


def test_a_newer_iterator_ends_an_older_one(way: Way) -> None:
    with way.open(shuffle=False) as loader:
        older = iter(loader)
        first = real(next(older))
        newer = iter(loader)
        with pytest.raises(bowstring.ClosedError, match="newest iterator"):
            next(older)
        assert first == real(next(newer))
        assert len(steps(newer)) == 8
        assert next(newer, None) is None
        assert (loader.epoch, loader.step) == (2, 0), "the older one took nothing"
        ended = iter(loader)
        loader.set_epoch(0)
        assert real(next(ended)) == first, "of which nothing was taken: it goes along"
        loader.set_epoch(0)
        with pytest.raises(bowstring.ClosedError, match="set_epoch"):
            next(ended)


def test_threads_over_one_iterator_read_one_epoch(way: Way) -> None:
    expected = steps(way.open(shuffle=False))
    with way.open(shuffle=False) as loader:
        for epoch in range(3):
            found: list[list[int]] = []
            batches = iter(loader)

            def take(batches: Iterator[Any] = batches, found: list[list[int]] = found) -> None:
                found.extend(map(real, batches))

            threads = [threading.Thread(target=take) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            assert sorted(found) == sorted(expected)
            assert (loader.epoch, loader.step) == (epoch + 1, 0)


def test_a_peek_takes_nothing_and_has_its_own_memory(way: Way) -> None:
    expected = steps(way.open(shuffle=False))
    with way.open(shuffle=False) as loader:
        for _ in range(2):
            looked = loader.peek()
            assert (real(looked), loader.epoch, loader.step) == (expected[0], 0, 0)
            looked["id"][:] = -1
        batches = iter(loader)
        assert [real(next(batches)) for _ in range(4)] == expected[:4]
        assert real(loader.peek()) == expected[4]
        assert steps(batches) == expected[4:]
        assert (loader.epoch, loader.step) == (1, 0)
        assert real(loader.peek()) == expected[0]
        assert steps(loader) == expected
    with pytest.raises(bowstring.ClosedError):
        loader.peek()
