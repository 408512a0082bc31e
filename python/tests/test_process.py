"""Effects of a process on a loader, and of a loader on its process: threads, signals, forks."""

from __future__ import annotations

import itertools
import os
import pathlib
import pickle
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import bowstring
import numpy
import pyarrow
import pyarrow.parquet
import pytest
from bowstring import Loader
from conftest import ROOT

Script = Callable[..., "subprocess.Popen[str]"]


def test_the_gil_is_free_while_waiting(slow_store: Any) -> None:
    store = slow_store(1.5)
    ticks: list[float] = []
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    with Loader(store.url, batch_size=10, shuffle=False) as loader:
        counter = threading.Thread(target=count)
        counter.start()
        started = time.monotonic()
        next(iter(loader))
        ended = time.monotonic()
        done.set()
        counter.join()
    assert ended - started > 1.4, "the store was slow"
    during = [started, *(tick for tick in ticks if started < tick < ended), ended]
    longest = max(later - earlier for earlier, later in itertools.pairwise(during))
    # A held GIL would stop the counter for nearly all of the wait; a busy machine stops it only for a while.
    assert longest < 0.8 * (ended - started), (
        f"the counting thread stood still for {longest:.2f} s of {ended - started:.2f} s"
    )


def test_other_threads_can_query_a_loader_while_one_waits(slow_store: Any) -> None:
    store = slow_store(3)
    with Loader(store.url, batch_size=10, shuffle=False) as loader:
        waiter = threading.Thread(target=lambda: next(iter(loader)))
        waiter.start()
        assert store.asked.wait(10)
        assert loader.stats()["rows"] == 0
        assert loader.step == 0
        assert waiter.is_alive(), "the answers came before the batch"
        waiter.join()
        assert loader.step == 1


def test_a_failed_conversion_costs_no_batch_while_another_thread_continues(numbers: pathlib.Path) -> None:
    with Loader(numbers, batch_size=10, shuffle=False, columns=["id"]) as loader:
        native, seen, failing, went_on = loader._native, list[int](), list[str](), threading.Event()

        def keep(columns: dict[str, Any]) -> bool:
            seen.extend(numpy.from_dlpack(columns["id"]).tolist())
            return True

        def fail(columns: dict[str, Any]) -> None:
            failing.append(threading.current_thread().name)
            assert went_on.wait(10)
            raise ValueError("no room")

        def unlucky() -> None:
            with pytest.raises(ValueError, match="no room"):
                native.next(fail)

        threads = [threading.Thread(target=unlucky) for _ in range(2)]
        for thread in threads:
            thread.start()
        while len(failing) < 2:
            time.sleep(0.001)
        native.next(keep)
        assert loader.step == 0, "two batches have reached nobody yet"
        went_on.set()
        for thread in threads:
            thread.join()
        assert loader.step == 0, "two batches reached nobody"
        while native.next(keep) is not None:
            pass
    assert sorted(seen) == list(range(100))


INTERRUPTED = """
import signal, sys, time
import bowstring

# Whoever runs the tests in the background may have had the signal ignored, which children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

try:
    loader = bowstring.Loader(sys.argv[1], batch_size=10)
    next(iter(loader))
except KeyboardInterrupt:
    print(time.time(), flush=True)
"""


def interrupt(store: Any, script: Script, code: str) -> None:
    """Sends Ctrl-C while ``code`` waits for ``store``; the program prints the time of its KeyboardInterrupt, and ends."""
    child = script(code, store.url)
    assert store.asked.wait(30)
    time.sleep(0.2)
    sent = time.time()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=20)
    exited = time.time()
    assert child.returncode == 0, err
    assert float(out) - sent < 15, f"{float(out) - sent:.2f} s until KeyboardInterrupt"
    assert exited - sent < 18, f"{exited - sent:.2f} s until the process was gone"


@pytest.mark.parametrize("while_opening", [False, True])
def test_ctrl_c_does_not_wait_for_the_store(slow_store: Any, script: Script, while_opening: bool) -> None:
    interrupt(slow_store(60, everything=while_opening), script, INTERRUPTED)


LOOKED = """
import signal, sys, time
import bowstring

signal.signal(signal.SIGINT, signal.default_int_handler)
loader = bowstring.Loader(sys.argv[1], batch_size=10)
try:
    loader._native.wide_integers()
except KeyboardInterrupt:
    print(time.time(), flush=True)
"""


def test_ctrl_c_does_not_wait_for_the_check_of_integers(slow_store: Any, script: Script) -> None:
    interrupt(slow_store(60, everything=False), script, LOOKED)


COMPARED = """
import signal, sys, time
import bowstring

signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    bowstring.verify(sys.argv[1], sys.argv[1])
except KeyboardInterrupt:
    print(time.time(), flush=True)
"""


def test_ctrl_c_ends_a_comparison(slow_store: Any, script: Script) -> None:
    interrupt(slow_store(60), script, COMPARED)


CONVERTED = """
import os, signal, sys, threading, time
import bowstring

def again(*_):
    # The first one asks the conversion to end in order, which the store does not let it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, again)
try:
    bowstring.convert(sys.argv[1], sys.argv[0] + ".out", to="csv")
except KeyboardInterrupt:
    print(time.time(), flush=True)
"""


def test_a_second_ctrl_c_leaves_a_conversion_that_hangs(slow_store: Any, script: Script) -> None:
    interrupt(slow_store(60), script, CONVERTED)


INTERRUPTED_OFTEN = """
import os, random, signal, sys, threading, time
import bowstring, numpy

class Slow(bowstring.Loader):
    def _array(self, tensor):
        time.sleep(0.001)  # interrupts fall into the conversion too
        return super()._array(tensor)

def interrupt():
    while armed.wait() and not done:
        time.sleep(random.uniform(0, 0.03))
        armed.clear()
        os.kill(os.getpid(), signal.SIGINT)

# As above.
signal.signal(signal.SIGINT, signal.default_int_handler)
armed, done = threading.Event(), False
kept, caught = [], 0
loader = Slow(sys.argv[1], batch_size=4000, columns=["id"], row_id=True, prefetch=1, threads=1)
thread = threading.Thread(target=interrupt, daemon=True)
thread.start()
batches = iter(loader)
while True:
    try:
        while loader.epoch == 0:
            armed.set()  # one interrupt, not before this
            for batch in batches:
                kept.append(batch)
                time.sleep(0.002)
        done = True
        armed.set()
        thread.join()
        break
    except KeyboardInterrupt:
        caught += 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
rows = [row for batch in kept for row in batch["_row_id"].tolist()]
print(caught, len(kept), len(rows), sorted(rows) == list(range(loader.rows)), loader.step)
"""


def test_ctrl_c_costs_no_batch(slow_store: Any, script: Script) -> None:
    child = script(INTERRUPTED_OFTEN, slow_store(0.1).url)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    caught, *rest = out.split()
    assert rest == ["100", "400000", "True", "0"], out
    assert int(caught) >= 5, "it was interrupted"


SAVED_BY_A_HANDLER = """
import os, signal, sys, time
import bowstring
from fsspec.implementations.local import LocalFileSystem

class Slow(LocalFileSystem):
    cachable = False

    def cat_file(self, path, start=None, end=None, **others):
        if waiting:  # the handler runs when this read has ended: Python's handlers run between two steps of the main thread
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.03)
        return super().cat_file(path, start, end, **others)

def handler(*_):
    if waiting:
        saved.append((loader.state_dict()["step"], loader.step, had))

signal.signal(signal.SIGTERM, handler)
had, saved, waiting = 0, [], False
loader = bowstring.Loader(sys.argv[1], batch_size=100, shuffle=False, filesystem=Slow(), prefetch=1, threads=1)
batches = iter(loader)
while True:
    waiting = True
    batch = next(batches, None)
    waiting = False
    if batch is None:
        break
    had += 1
print(had, len(saved), [one for one in saved if len(set(one)) > 1])
"""


def test_a_position_that_a_signals_handler_saves_is_before_the_batch_that_nobody_has(
    tmp_path: pathlib.Path, script: Script
) -> None:
    table = pyarrow.table({"id": range(3000)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    child = script(SAVED_BY_A_HANDLER, str(tmp_path / "a.parquet"))
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    had, saved, wrong = out.split(maxsplit=2)
    assert int(had) == 30
    assert int(saved) >= 10, "handlers ran during a wait"
    assert wrong.strip() == "[]"


CHILDREN = """
import gc, multiprocessing, os, sys, time
import bowstring

url, how, when, times = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])


def whole(url):
    with bowstring.Loader(url, batch_size=10) as own:
        assert len(list(own)) == 10


def refused(loader, iterator):
    for use in (lambda: next(iterator), lambda: len(loader), loader.state_dict, loader.stats, loader.report):
        try:
            use()
        except bowstring.ClosedError as error:
            assert "forked" in str(error) and "spawn" in str(error), error
        else:
            sys.exit("no error in the child")
    loader.close()
    del iterator, loader
    gc.collect()
    whole(url)


def main():
    context = multiprocessing.get_context(how)
    for _ in range(times):
        loader = bowstring.Loader(url, batch_size=10)
        iterator = iter(loader)
        taken = 0
        if when == "after":
            next(iterator)
            taken = 1
        # A child of fork has the loader, whose threads are not there; the others begin anew.
        work = (refused, (loader, iterator)) if how == "fork" else (whole, (url,))
        child = context.Process(target=work[0], args=work[1])
        child.start()
        child.join(60)
        assert child.exitcode == 0, child.exitcode
        assert len(list(iterator)) == 10 - taken
        loader.close()
    print(times, "children")


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_children_end_and_their_parent_continues(how: str, when: str, numbers: pathlib.Path, script: Script) -> None:
    """A child of a process with a loader, made before or after the first batch: it gets an error, or reads by itself."""
    times = 50 if "BOWSTRING_SOAK" in os.environ else 5
    child = script(CHILDREN, numbers, how, when, times)
    out, err = child.communicate(timeout=60 * times)
    assert (child.returncode, out) == (0, f"{times} children\n"), err


FORKED_READER = """
import os, sys, time, warnings
import bowstring
from bowstring.petastorm import TransformSpec, make_reader

warnings.simplefilter("ignore")


def slow(row):
    time.sleep(0.001)
    return row


with make_reader("file://" + sys.argv[1], ["id"], transform_spec=TransformSpec(slow)) as reader:
    rows = [next(reader).id]
    child = os.fork()
    if not child:
        code = 1
        try:
            next(reader)
        except bowstring.ClosedError as error:
            code = 0 if "forked" in str(error) else 2
        reader.stop()
        reader.join()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    rows += [row.id for row in reader]
print(sorted(rows) == list(range(100)))
"""


def test_a_forked_child_gets_no_row_of_its_parents_reader(numbers: pathlib.Path, script: Script) -> None:
    child = script(FORKED_READER, numbers)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "True\n"), err


DAEMONS = """
import sys, threading, time
import bowstring

def reads(loader):
    while True:
        for _ in loader:
            pass

loaders = [bowstring.Loader(sys.argv[1], batch_size=2, threads=1) for _ in range(2)]
for loader in loaders:
    threading.Thread(target=reads, args=(loader,), daemon=True).start()
time.sleep(0.3)
print("done", flush=True)
"""


def test_a_process_ends_while_its_daemon_threads_read(script: Script) -> None:
    """Without the wait for threads on their way into the interpreter, five of six aborted."""
    for _ in range(50 if "BOWSTRING_SOAK" in os.environ else 5):
        child = script(DAEMONS, ROOT / "fixtures" / "imagenet40.parquet")
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out, err) == (0, "done\n", "")


JOINED = """
import atexit, sys, threading

stop = threading.Event()


def join():
    stop.set()
    thread.join()
    print("joined", flush=True)


# Before the library is imported, so that it runs after the library's own.
atexit.register(join)
import bowstring

loader = bowstring.Loader(sys.argv[1], batch_size=2, threads=1)


def read():
    while not stop.is_set():
        for _ in loader:
            begun.set()


begun = threading.Event()
thread = threading.Thread(target=read, daemon=True)
thread.start()
begun.wait()
"""


def test_a_program_that_joins_its_reading_thread_at_its_end_ends(numbers: pathlib.Path, script: Script) -> None:
    child = script(JOINED, numbers)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (0, "joined\n", "")


def test_a_loader_stays_in_its_process(numbers: pathlib.Path) -> None:
    import copy

    with Loader(numbers, batch_size=10) as loader:
        with pytest.raises(bowstring.UnsupportedError, match="another process"):
            copy.copy(loader)
        batch = next(loader.batches())
        with pytest.raises(bowstring.UnsupportedError, match="to_numpy"):
            pickle.dumps(batch)
        assert pickle.loads(pickle.dumps(batch.to_numpy())).keys() == batch.keys()


def test_ten_loaders_at_once_and_dropped_half_way(numbers: pathlib.Path) -> None:
    before = threading.active_count()
    for _ in range(5):
        loaders = [Loader(numbers, batch_size=3, threads=2) for _ in range(10)]
        for loader in loaders:
            next(iter(loader))
        del loader, loaders
    assert threading.active_count() == before
    with Loader(numbers, batch_size=10) as loader:
        assert len(list(loader)) == 10
    assert bowstring.doctor()["threads"] >= 1
