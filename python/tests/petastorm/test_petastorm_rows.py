"""make_reader: the values of every dataset, exact in every run, in Petastorm's order of rows."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bowstring.errors import Error
from bowstring.petastorm import make_batch_reader, make_reader
from bowstring.petastorm._pool import Ordered
from bowstring.petastorm.errors import NoDataAvailableError
from bowstring.petastorm.ngram import NGram
from bowstring.petastorm.predicates import in_lambda, in_negate, in_reduce, in_set
from bowstring.petastorm.selectors import SingleIndexSelector
from bowstring.petastorm.transform import TransformSpec
from bowstring.petastorm.unischema import UnischemaField
from bowstring.petastorm.weighted_sampling_reader import WeightedSamplingReader

from .datasets import CODECS, LEGACY, folder, runs, same

At = Callable[[str], str]
Expected = Callable[[str], dict[str, Any]]


# Petastorm 0.12.1's order with seed=7. The fixture's own ids are those of 0.13, which has another generator.
_GROUPS = [(24, 4), (34, 4), (8, 2), (18, 2), (0, 4), (4, 4), (38, 2), (28, 2), (10, 4), (20, 4), (30, 4), (14, 4)]
SEED_7 = [row for first, count in _GROUPS for row in range(first, first + count)]


def ids(url: str, **options: Any) -> list[int]:
    with make_reader(url, **{"schema_fields": ["id"], "shuffle_row_groups": False, **options}) as reader:
        return [int(row.id) for row in reader]


@pytest.mark.parametrize("name", [CODECS, *LEGACY])
def test_every_value(name: str, at: At, expected: Expected) -> None:
    wanted = expected(name)
    with make_reader(at(name), shuffle_row_groups=False) as reader:
        rows = list(reader)
        assert reader.last_row_consumed
    assert [int(row.id) for row in rows] == wanted["read_order"]
    wrong = [
        (int(row.id), field, value)
        for row in rows
        for field, value in row._asdict().items()
        if not same(value, wanted["rows"][str(int(row.id))][field])
    ]
    assert wrong == []
    assert all(set(row._fields) == set(wanted["rows"]["0"]) for row in rows)


def test_values_are_the_callers_own(at: At) -> None:
    with make_reader(at(CODECS), shuffle_row_groups=False) as reader:
        for row in reader:
            for value in row:
                if isinstance(value, np.ndarray):
                    assert value.flags.writeable
                    value.fill(0)
    with make_reader(at(CODECS), shuffle_row_groups=False) as reader:
        assert any(row.nd_f32.any() for row in reader)


def test_more_than_255_fields(at: At) -> None:
    with make_reader(at("petastorm_wide300_0.13.1"), shuffle_row_groups=False) as reader:
        rows = list(reader)
    wanted = json.loads(folder("petastorm_wide300_0.13.1.expected.json").read_text())
    assert list(rows[0]._fields) == wanted["fields_in_order"]
    assert len(rows) == wanted["n_rows"]
    for row in rows:
        assert all(getattr(row, f"c{at:03d}") == row.id * 10 + at for at in range(300))


@pytest.mark.parametrize("threads", [1, 2, 10])
def test_rows_are_exact_in_every_run(threads: int, at: At, expected: Expected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOWSTRING_THREADS", str(threads))
    wanted = expected(CODECS)
    for _ in range(runs()):
        with make_reader(at(CODECS), schema_fields=["id", "n_string", "nd_f32"], seed=7) as reader:
            rows = list(reader)
        assert [int(row.id) for row in rows] == SEED_7
        for row in rows:
            values = wanted["rows"][str(int(row.id))]
            assert same(row.nd_f32, values["nd_f32"])
            assert same(row.n_string, values["n_string"])


def test_shuffled_order(at: At) -> None:
    assert ids(at(CODECS), shuffle_row_groups=True, seed=7) == SEED_7


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_shards(shard: int, at: At, expected: Expected) -> None:
    assert ids(at(CODECS), cur_shard=shard, shard_count=3) == expected(CODECS)[f"shard_{shard}_of_3_ids"]


def test_more_shards_than_row_groups(at: At) -> None:
    with pytest.raises(NoDataAvailableError, match="12 row groups"):
        ids(at(CODECS), cur_shard=0, shard_count=13)


def test_selector(at: At, expected: Expected) -> None:
    chosen = SingleIndexSelector("ix_n_string", ["v1"])
    assert ids(at(CODECS), rowgroup_selector=chosen) == expected(CODECS)["selector_ix_n_string_v1_ids"]


def test_predicate_on_the_partition(at: At, expected: Expected) -> None:
    chosen = in_set({"p_1", "p_2"}, "part")
    fields = ["id", "part"]
    assert ids(at(CODECS), predicate=chosen, schema_fields=fields) == expected(CODECS)["predicate_part_p1_p2_ids"]


def test_predicates_on_rows(at: At) -> None:
    odd = in_lambda(["id"], lambda value: value % 2 == 1)
    assert ids(at(CODECS), predicate=odd, schema_fields=None) == list(range(1, 40, 2))
    assert ids(at(CODECS), predicate=in_negate(odd), schema_fields=["id", "s_int"]) == list(range(0, 40, 2))
    both = in_reduce([odd, in_set({3, 4, 5}, "id")], all)
    assert ids(at(CODECS), predicate=both) == [3, 5]


def test_a_subclass_decides_with_its_own_do_include(at: At) -> None:
    class NotIn(in_set):
        def do_include(self, values: Any) -> bool:
            return not super().do_include(values)

    class Named(in_set):
        mask = None  # a name of the user's

    most = NotIn({1, 2, 3}, "id")
    wanted = [0, *range(4, 40)]
    assert ids(at(CODECS), predicate=most) == wanted
    assert ids(at(CODECS), predicate=in_negate(most)) == [1, 2, 3]
    assert ids(at(CODECS), predicate=in_reduce([most, in_set(range(6), "id")], all)) == [0, 4, 5]
    assert ids(at(CODECS), predicate=Named({1, 2, 3}, "id")) == [1, 2, 3]


def test_other_columns_are_not_read_where_no_row_is_taken(at: At) -> None:
    asked: list[int] = []

    def once(value: Any) -> bool:
        asked.append(int(value))
        return value == 25

    with make_reader(at(CODECS), predicate=in_lambda(["id"], once), num_epochs=2) as reader:
        rows = list(reader)
        read = reader._feed._source.stats()  # type: ignore[attr-defined]
    assert [int(row.id) for row in rows] == [25, 25]
    assert sorted(asked) == sorted(list(range(40)) * 2)
    assert read  # the counters are bowstring's; the rows are checked above


def windows(url: str, **changes: Any) -> list[list[int]]:
    options = {"fields": {0: ["id", "ts"], 1: ["id"]}, "delta_threshold": 10, "timestamp_field": "ts", **changes}
    with make_reader(url, schema_fields=NGram(**options), shuffle_row_groups=False) as reader:
        return [[int(row.id) for row in window.values()] for window in reader]


def test_ngrams(at: At, expected: Expected) -> None:
    three = {offset: ["id", "ts"] for offset in range(3)}
    wanted = expected(CODECS)
    assert windows(at(CODECS), fields=three) == wanted["ngram_len3_delta10_ids"]
    assert windows(at(CODECS), timestamp_overlap=False, delta_threshold=1000) != []
    with pytest.raises(NotImplementedError, match="sorted by s_int"):
        windows(at(CODECS), fields={0: ["id", "s_int"], 1: ["id"]}, timestamp_field="s_int")


def test_a_jump_between_small_integers_is_a_gap() -> None:
    for dtype, times in (
        (np.int16, [-30000, -29999, 20000, 20001]),
        (np.uint8, [0, 1, 250, 251]),
        (np.int64, [-(1 << 62), -(1 << 62) + 1, 1 << 62, (1 << 62) + 1]),
        (np.uint64, [0, 1, (1 << 64) - 2, (1 << 64) - 1]),
    ):
        assert NGram({0: ["t"], 1: ["t"]}, 5, "t").starts(np.array(times, dtype)) == [0, 2]


def test_ngram_may_leave_out_its_time(at: At) -> None:
    assert windows(at(CODECS), fields={0: ["id"], 1: ["id"]}) == windows(at(CODECS))


def test_an_ngram_refuses_unknown_fields_and_times(at: At) -> None:
    missing = UnischemaField("missing", np.int64, (), None, False)
    with pytest.raises(ValueError, match="field missing does not belong"):
        windows(at(CODECS), fields={0: ["id", missing]})
    with pytest.raises(NotImplementedError, match="sorted by t"):
        NGram({0: ["t"], 1: ["t"]}, 5, UnischemaField("t", np.float64, ())).starts([0.0, np.nan, 1.0])


def test_endless(at: At) -> None:
    with make_reader(at(CODECS), schema_fields=["id"], num_epochs=None, seed=1) as reader:
        seen = [int(next(reader).id) for _ in range(400)]
    assert all(sorted(seen[start : start + 40]) == list(range(40)) for start in range(0, 400, 40))


def test_reset(at: At) -> None:
    with make_reader(at(CODECS), schema_fields=["id"], num_epochs=2) as reader:
        first = [int(row.id) for row in reader]
        assert next(reader, None) is None
        reader.reset()
        again = [int(next(reader).id)]
        with pytest.raises(NotImplementedError):
            reader.reset()
        again += [int(row.id) for row in reader]
    assert sorted(first) == sorted(again) == sorted(list(range(40)) * 2)
    with pytest.raises(RuntimeError, match="stopped"):
        next(reader)


def test_an_error_is_never_an_end(at: At) -> None:
    def broken(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 13:
            raise KeyError("thirteen")
        return row

    for pool in ("thread", "dummy"):
        with make_reader(
            at(CODECS),
            schema_fields=["id"],
            transform_spec=TransformSpec(broken),
            shuffle_row_groups=False,
            reader_pool_type=pool,
        ) as reader:
            seen = []
            with pytest.raises(KeyError, match="thirteen"):
                seen.extend(iter(reader))
            with pytest.raises(KeyError, match="thirteen"):
                next(reader)
            assert not reader.last_row_consumed


@pytest.mark.parametrize("pool", ["thread", "dummy"])
@pytest.mark.parametrize("place", ["transform", "predicate"])
def test_a_stop_iteration_of_a_function_is_never_an_end(pool: str, place: str, at: At) -> None:
    def broken(value: int) -> bool:
        return next(True for known in range(40) if known == value and known != 13)

    options: dict[str, Any] = {"predicate": in_lambda(["id"], broken)}
    if place == "transform":
        options = {"transform_spec": TransformSpec(lambda row: {"id": broken(row["id"])})}
    with make_reader(
        at(CODECS), schema_fields=["id"], shuffle_row_groups=False, reader_pool_type=pool, **options
    ) as reader:
        seen: list[Any] = []
        for _ in range(2):
            with pytest.raises(RuntimeError, match="raised StopIteration"):
                seen.extend(iter(reader))
        assert not reader.last_row_consumed


def test_an_interrupt_costs_no_row(at: At) -> None:
    interrupted: list[int] = []

    def impatient(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 13 and not interrupted:
            interrupted.append(1)
            raise KeyboardInterrupt
        return row

    seen: list[int] = []
    with make_reader(
        at(CODECS),
        schema_fields=["id"],
        predicate=in_lambda(["id"], lambda value: impatient({"id": value}) is not None),
        shuffle_row_groups=False,
    ) as reader:
        while len(seen) < 40:
            try:
                seen.append(int(next(reader).id))
            except KeyboardInterrupt:
                continue
    assert interrupted
    assert seen == list(range(40))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers")
@pytest.mark.filterwarnings("ignore:make_reader is for datasets that Petastorm wrote")
@pytest.mark.parametrize("kind", ["rows", "predicate", "transform", "batches"])
def test_interrupts_at_any_moment_cost_no_row(kind: str, tmp_path: pathlib.Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"id": range(10_000)}), tmp_path / "a.parquet", row_group_size=20)
    options: dict[str, Any] = {"shuffle_row_groups": False}
    if kind == "predicate":
        options["predicate"] = in_lambda(["id"], lambda value: True)
    if kind == "transform":
        options |= {"transform_spec": TransformSpec(lambda row: row), "workers_count": 2}
    make = make_batch_reader if kind == "batches" else make_reader
    interrupts = [0]

    def interrupt(number: int, frame: Any) -> None:
        # Only below this function: nobody loses what comes while the reader works.
        if frame.f_code is not here:
            interrupts[0] += 1
            raise KeyboardInterrupt

    here = sys._getframe().f_code
    seen: list[Any] = []
    with make(f"file://{tmp_path}", **options) as reader:
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        try:
            while not reader.last_row_consumed:
                try:
                    for row in reader:
                        seen.append(row.id)
                except KeyboardInterrupt:
                    pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert interrupts[0] > 3
    found = np.concatenate(seen) if kind == "batches" else np.array(seen)
    np.testing.assert_array_equal(found, np.arange(10_000))


def test_a_reader_that_is_never_stopped_ends_with_its_program(at: At) -> None:
    program = """
import gc, sys, threading, time, warnings
from bowstring.petastorm import TransformSpec, make_reader

def begun(**options):
    reader = make_reader(sys.argv[1], num_epochs=None, **options)
    next(reader)
    return reader

def wait(true):
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, threading.enumerate()
        gc.collect()
        time.sleep(0.05)

same = TransformSpec(lambda row: row)
for options in ({}, {"transform_spec": same}, {"transform_spec": same, "reader_pool_type": "dummy"}):
    begun(**options)
wait(lambda: threading.active_count() == 1)
kept = [begun(), begun(transform_spec=same)]
shared = begun()
threading.Thread(target=lambda: [None for _ in shared], daemon=True).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", program, at(CODECS)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_before_a_piece_is_passed_to_a_thread_costs_no_row() -> None:
    fed = iter(range(1, 21))
    piece: list[int] = []

    def feed() -> int | None:
        if not piece:
            piece.append(next(fed, 0))
        return piece[0] or None

    ordered: Ordered[int, int] = Ordered(feed, lambda number: 10 * number, 2, piece.clear)
    assert ordered._pool is not None
    submit, calls = ordered._pool.submit, [0]

    def interrupted(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] % 3 == 1:
            raise KeyboardInterrupt
        future = submit(*given)
        if calls[0] % 3 == 2:
            raise KeyboardInterrupt  # as the call returns
        return future

    ordered._pool.submit = interrupted  # type: ignore[assignment, method-assign]
    seen: list[int] = []
    while True:
        try:
            found = ordered.next()
        except KeyboardInterrupt:
            continue
        if found is None:
            break
        seen.append(found)
    ordered.close()
    assert seen == [10 * number for number in range(1, 21)]


@pytest.mark.parametrize("workers", [0, 3])
def test_an_interrupt_as_a_piece_is_passed_on_costs_no_row(at: At, workers: int) -> None:
    spec = TransformSpec(lambda row: row) if workers else None
    with make_reader(
        at(CODECS),
        schema_fields=["id"],
        transform_spec=spec,
        workers_count=max(workers, 1),
        shuffle_row_groups=False,
    ) as reader:
        assert (reader._work._pool is not None) == bool(workers)
        read, calls = reader._work._feed, [0]

        def interrupted() -> Any:
            piece = read()
            calls[0] += 1
            if calls[0] % 2:
                raise KeyboardInterrupt  # as the call returns
            return piece

        reader._work._feed = interrupted
        seen: list[int] = []
        while len(seen) < 40:
            try:
                seen.append(int(next(reader).id))
            except KeyboardInterrupt:
                continue
            except StopIteration:
                break
    assert calls[0] > 2
    assert seen == list(range(40))


def test_transform(at: At) -> None:
    def changed(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "twice": np.array([row["id"]] * 2)}

    spec = TransformSpec(changed, edit_fields=[("twice", np.int64, (2,), False)], removed_fields=["ts"])
    for workers in (1, 10):
        with make_reader(
            at(CODECS), schema_fields=["id|ts"], transform_spec=spec, shuffle_row_groups=False, workers_count=workers
        ) as reader:
            rows = list(reader)
            assert list(reader.schema.fields) == ["id", "twice"]
        assert [row.twice.tolist() for row in rows] == [[n, n] for n in range(40)]


def test_threads_may_share_a_reader(at: At) -> None:
    seen: list[int] = []

    def take(reader: Any) -> None:
        for row in reader:
            seen.append(int(row.id))

    with make_reader(at(CODECS), schema_fields=["id"], num_epochs=20) as reader:
        threads = [threading.Thread(target=take, args=(reader,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == sorted(list(range(40)) * 20)


@pytest.mark.parametrize("transformed", [False, True])
def test_a_reader_that_is_stopped_says_so_to_threads_that_wait(transformed: bool, at: At) -> None:
    entered, go = threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def wait(value: Any) -> Any:
        entered.set()
        assert go.wait(20)
        return value

    options: dict[str, Any] = {"predicate": in_lambda(["id"], lambda value: wait(True))}
    if transformed:
        options = {"transform_spec": TransformSpec(wait), "workers_count": 1}

    def take(reader: Any) -> None:
        try:
            list(reader)
        except RuntimeError as error:
            raised.append(error)

    with make_reader(at(CODECS), schema_fields=["id"], **options) as reader:
        thread = threading.Thread(target=take, args=(reader,))
        thread.start()
        assert entered.wait(20)
        reader.stop()
        go.set()
        thread.join()
    assert ["was stopped" in str(error) for error in raised] == [True]


@pytest.mark.parametrize("probabilities", [[0, 0], [float("nan"), 1], [-1, 3], [float("inf"), 1]])
def test_mixed_readers_refuse_wrong_probabilities(probabilities: list[float], at: At) -> None:
    with make_reader(at(CODECS), ["id"]) as reader, pytest.raises(ValueError, match="probabilities must be 0 or more"):
        WeightedSamplingReader([reader, reader], probabilities)


@pytest.mark.parametrize(
    "name", [path.name for path in sorted((folder("").parent / "malicious").iterdir()) if path.is_dir()]
)
def test_hostile_metadata_is_refused(name: str) -> None:
    with pytest.raises(Error), make_reader(f"file://{folder('').parent}/malicious/{name}") as reader:
        list(reader)


@pytest.mark.timeout(60)
def test_an_endless_reader_that_yields_nothing_ends(at: At) -> None:
    for options in (
        {"predicate": in_set({-1}, "id")},
        {"predicate": in_set({-1}, "id"), "schema_fields": None},
        {"schema_fields": NGram({0: ["id"], 1: ["id"]}, -1, "id")},
    ):
        with pytest.raises(NoDataAvailableError, match="num_epochs=None has no end"):
            ids(at(CODECS), num_epochs=None, **options)
