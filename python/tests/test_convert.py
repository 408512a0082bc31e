"""`bowstring.convert` and `verify`: reports, options, errors, Ctrl-C."""

from __future__ import annotations

import decimal
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from bowstring import _native
from bowstring.convert import in_this_process, options_json, plan
from bowstring.progress import shown
from conftest import needs_pyarrow
from objects import Objects
from other_stores import Blobs


def test_a_report_describes_the_conversion(numbers: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    report = bowstring.convert(numbers, out, to="tfrecord", verify=True, jobs=2)
    assert (report.rows, report.from_format, report.to_format, report.verified) == (100, "parquet", "tfrecord", True)
    assert report.schema == {"id": "int64", "x": "float32", "name": "string", "tags": "list<int64>"}
    assert bowstring.verify(numbers, out)
    assert bowstring.convert(numbers, out, to="tfrecord", verify=True).unchanged
    assert (out / "_SUCCESS").is_file()


def test_a_directory_of_azure_is_converted(blobs: Blobs, tmp_path: pathlib.Path) -> None:
    for number in range(3):
        blobs.content[f"bucket/csv/{number}.csv"] = f"a,b\n{number},x\n".encode()
    options = {"storage_options": blobs.storage_options}
    report = bowstring.convert("az://bucket/csv", tmp_path / "out", to="parquet", **options)  # type: ignore[arg-type]
    assert report.rows == 3
    assert bowstring.verify("az://bucket/csv", tmp_path / "out", **options)  # type: ignore[arg-type]


def test_options_reach_the_library(numbers: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    options = {"columns": ["x", "id"], "schema": {"id": "int16"}, "filter": "id < 80", "shards": 2}
    report = bowstring.convert(numbers, out, to="csv", **options)  # type: ignore[arg-type]
    assert (report.rows, report.files, report.schema) == (80, 2, {"x": "float32", "id": "int16"})
    tables = [pyarrow.csv.read_csv(path) for path in sorted(out.glob("*.csv"))]
    table = pa.concat_tables(tables).sort_by("id")
    assert table.column_names == ["x", "id"]
    assert table["id"].to_pylist() == list(range(80))
    assert table["x"].to_pylist() == [row / 2 for row in range(80)]
    with pytest.raises(bowstring.ConfigError, match="overwrite"):
        bowstring.convert(numbers, out, to="csv", columns=["id"])
    with pytest.raises(bowstring.ConfigError, match="compression"):
        bowstring.convert(numbers, tmp_path / "x", to="csv", columns=["id"], compression="lz4")
    with pytest.raises(bowstring.NotFoundError):
        bowstring.convert(tmp_path / "gone", tmp_path / "x", to="csv")
    (tmp_path / "x.lance").mkdir()
    with pytest.raises(bowstring.UnsupportedError, match=r"[Ll]ance"):
        bowstring.convert(tmp_path / "x.lance", tmp_path / "x")


def test_a_text_is_one_column_and_not_its_letters(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1.0], "b": [2.0], "ab": [3.0]}), source)
    assert list(bowstring.convert(source, tmp_path / "out", to="csv", columns="ab").schema) == ["ab"]
    assert [column["name"] for column in bowstring.verify(source, source, columns="ab").columns] == ["ab"]
    for columns in ("ab", bowstring.Pack("ab")):
        with bowstring.Loader(source, batch_size=1, pack={"m": columns}, columns=["m"]) as loader:
            assert next(iter(loader))["m"].tolist() == [[3.0]]
    assert bowstring.NGram({0: "ab"}, "a", 1).options()["fields"] == {"0": ["ab"]}
    with pytest.raises(bowstring.ConfigError, match="columns"):
        bowstring.convert(source, tmp_path / "other", to="csv", columns=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [("STORAGE_OPTIONS", "nonsense_key=1", "nonsense_key"), ("MEMORY_BUDGET", "nonsense", "memory_budget")],
)
def test_conversions_read_the_environment(
    numbers: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, told: str
) -> None:
    monkeypatch.setenv(f"BOWSTRING_{variable}", text)
    with pytest.raises(bowstring.ConfigError, match=told):
        bowstring.convert(numbers, tmp_path / "out", to="csv")


def test_a_task_of_spark_reads_the_options_of_stores_in_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOWSTRING_STORAGE_OPTIONS", "token=s3cr3t")
    sent = options_json(to="csv", jobs=1, environment=())
    assert "s3cr3t" not in sent
    assert json.loads(in_this_process(sent)) == {"to": "csv", "jobs": 1, "storage_options": {"token": "s3cr3t"}}
    given = options_json(to="csv", environment=(), storage_options={"token": "other"})
    assert json.loads(in_this_process(given))["storage_options"] == {"token": "other"}


@needs_pyarrow(18, "decimals of 32 and 64 bits")
@pytest.mark.parametrize("to", ["csv", "tsv", "jsonl"])
def test_text_formats_hold_decimals_of_every_width(to: Any, tmp_path: pathlib.Path) -> None:
    kinds = [pa.decimal32(9, 3), pa.decimal64(18, 3), pa.decimal128(38, 3), pa.decimal256(60, 3)]
    values = [decimal.Decimal("1.5"), None, decimal.Decimal("-999999.999"), decimal.Decimal(0)]
    table = pa.table({f"d{at}": pa.array(values, kind) for at, kind in enumerate(kinds)})
    pq.write_table(table, tmp_path / "x.parquet")
    assert bowstring.convert(tmp_path / "x.parquet", tmp_path / "out", to=to, verify=True).verified
    schema = {name: f"decimal({kind.precision}, 3)" for name, kind in zip(table.column_names, kinds, strict=True)}
    bowstring.convert(tmp_path / "out", tmp_path / "back", to="parquet", schema=schema)
    back = pq.read_table(tmp_path / "back").to_pydict()
    assert back == table.to_pydict()


@pytest.mark.parametrize("shuffle", [None, 3])
def test_a_time_that_does_not_fit_is_shown_with_its_row(shuffle: int | None, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for file, times in enumerate([[0, 1000], [2000, 3000, 4001, 5000]]):
        columns = {"t": pa.array(times, pa.timestamp("ns", "Europe/Berlin")), "id": range(len(times))}
        pq.write_table(pa.table(columns), source / f"{file}.parquet")
    with pytest.raises(bowstring.CorruptError, match=r"1970-01-01T00:00:00\.000004001Z") as found:
        bowstring.convert(source, tmp_path / "out", to="petastorm", shuffle=shuffle, filter="id != 1")
    error = found.value
    assert (error.column, error.row) == ("t", 2), error
    assert str(error.file).endswith("1.parquet"), error


def test_a_plan_writes_nothing(numbers: pathlib.Path, tmp_path: pathlib.Path) -> None:
    found = plan(numbers, tmp_path / "out", to="jsonl")
    assert (found["from"], found["to"], found["rows"]) == ("parquet", "jsonl", 100)
    assert ["id", "int64", True] in found["schema"]
    assert not (tmp_path / "out").exists()


def test_differences_are_shown(numbers: pathlib.Path, tmp_path: pathlib.Path) -> None:
    table = pq.read_table(numbers)
    pq.write_table(table.slice(1), tmp_path / "less.parquet")
    found = bowstring.verify(numbers, tmp_path / "less.parquet")
    assert not found
    assert (found.rows, found.only_first, found.only_second) == ((100, 99), 1, 0)
    assert "id=0 " in found.examples_first[0]


@pytest.mark.parametrize("compression", ["lz4", "zstd", "uncompressed"])
def test_pyarrow_and_we_read_each_others_feather(
    numbers: pathlib.Path, tmp_path: pathlib.Path, compression: str
) -> None:
    table = pq.read_table(numbers)
    src = tmp_path / "x.feather"
    pyarrow.feather.write_feather(table, str(src), compression=compression)
    bowstring.convert(src, tmp_path / "p", to="parquet")
    assert pq.read_table(tmp_path / "p").equals(table)
    kind = "none" if compression == "uncompressed" else compression
    bowstring.convert(tmp_path / "p", tmp_path / "arrow", to="arrow", compression=kind)
    found = pyarrow.feather.read_table(str(tmp_path / "arrow" / "part-00000.arrow"))
    assert found.equals(table)


def test_csv_is_read_by_pyarrow(tmp_path: pathlib.Path) -> None:
    table = pa.table({"a": [1, None, 3], "b": ["x", "", None], "c": [0.5, float("inf"), None]})
    pq.write_table(table, tmp_path / "x.parquet")
    bowstring.convert(tmp_path / "x.parquet", tmp_path / "out", to="csv")
    options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
    found = pyarrow.csv.read_csv(tmp_path / "out" / "part-00000.csv", convert_options=options)
    assert found.to_pydict() == table.to_pydict()


INTERRUPTED = """
import bowstring, os, signal, sys, threading
# Whoever runs the tests in the background may have had the signal ignored, which children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True:
        bowstring.convert(sys.argv[1], sys.argv[2], to="csv", overwrite=True, jobs=1)
except KeyboardInterrupt:
    print("interrupted")
"""


class Screen(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "progress", "told"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
def test_progress_is_shown_on_terminals_or_where_it_is_asked_for(
    numbers: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    progress: bool | None,
    told: bool,
) -> None:
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    with shown("converting", progress) as line:
        assert (line is not None) == told
        if line is not None:
            line(1 << 20, 4 << 20, 1234)
            assert screen.getvalue() == "", "short work has no line"
            later = time.monotonic() + 3
            monkeypatch.setattr(time, "monotonic", lambda: later)
            line(1 << 20, 4 << 20, 1234)
    said = screen.getvalue()
    assert ("converting: 0:03, 1.0 MiB of 4.0 MiB read (25 %), 0:09 left, 1,234 rows" in said) == told
    assert said.endswith("\r\x1b[K" if terminal and told else "\n" if told else "")
    # A whole conversion with each of them.
    assert bowstring.convert(numbers, tmp_path / "out", to="csv", columns=["id"], progress=progress).rows == 100
    assert bowstring.verify(numbers, tmp_path / "out", columns=["id"], progress=progress)


def test_ctrl_c_stops_a_conversion(tmp_path: pathlib.Path) -> None:
    rows = 2_000_000
    table = pa.table({"id": pa.array(range(rows)), "x": pa.array([row / 7 for row in range(rows)])})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=50_000)
    arguments = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "x.parquet"), str(tmp_path / "out")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n", done.stderr


class Hanging(dict[str, bytes]):
    """Objects of a store that gives none until it may go on."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.asked, self.may_go = threading.Event(), threading.Event()

    def get(self, path: str, default: Any = None) -> Any:
        self.asked.set()
        self.may_go.wait(60)
        return super().get(path, default)


def test_a_slow_comparison_says_how_far_it_is(objects: Objects) -> None:
    objects.content["x.csv"] = b"id\n1\n2\n"
    hanging = objects.content = Hanging(objects.content)
    said: list[tuple[int, int, int]] = []

    def told(done: int, size: int, rows: int) -> None:
        said.append((done, size, rows))
        if len(said) == 3:
            hanging.may_go.set()

    url = f"{objects.url}/x.csv"
    assert json.loads(_native.verify(url, url, "{}", told))["equal"]
    assert len(said) >= 3
    assert all(done <= size or size == 0 for done, size, _ in said)

    def full(*_: int) -> None:
        raise RuntimeError("no room")

    hanging.may_go.clear()
    with pytest.raises(RuntimeError, match="no room"):
        _native.verify(url, url, "{}", full)
    hanging.may_go.set()


def test_a_second_signal_leaves_a_conversion_that_hangs_which_then_publishes_nothing(
    objects: Objects, tmp_path: pathlib.Path
) -> None:
    objects.content["x.csv"] = b"id\n1\n2\n"
    src, out, options = f"{objects.url}/x.csv", tmp_path / "out", {"to": "jsonl", "verify": True}
    conversion = _native.Conversion(src, out, json.dumps(options))
    done = pathlib.Path(conversion.attempts(), "0")
    conversion.adopt(_native.convert_task(src, done, json.dumps(options), conversion.fingerprint(), 0), done)
    hanging = objects.content = Hanging(objects.content)

    def interrupt() -> None:
        assert hanging.asked.wait(60)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), number)

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(7)

    former = [signal.signal(signal.SIGUSR1, signal.default_int_handler), signal.signal(signal.SIGUSR2, leave)]
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(SystemExit, match="7") as second:
            conversion.finish()
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, former[0])
        signal.signal(signal.SIGUSR2, former[1])
    assert isinstance(second.value.__context__, KeyboardInterrupt)
    conversion.close()
    lock = tmp_path / ".out.bowstring-convert.lock"
    assert lock.exists(), "the thread that was left holds it"
    hanging.may_go.set()
    end = time.monotonic() + 60
    while lock.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not out.exists()
    again = _native.Conversion(src, out, json.dumps({**options, "resume": True}))
    report = json.loads(again.finish())
    assert (report["rows"], report["resumed_tasks"], report["verified"]) == (2, 1, True)


FORKED = """
import os, sys
import bowstring
from bowstring import _native

begin = lambda: _native.Conversion(sys.argv[1], sys.argv[2], '{"to": "arrow"}')
conversion = begin()
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
try:
    begin()
except bowstring.ClosedError as error:
    print("holds" in str(error))
conversion.attempts()
"""


def test_a_forked_child_leaves_the_conversion_of_its_parent_alone(
    numbers: pathlib.Path, tmp_path: pathlib.Path, script: Any
) -> None:
    child = script(FORKED, numbers, tmp_path / "out")
    out, errors = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "True\n"), errors


def test_a_column_of_differing_types_may_be_left_out(tmp_path: pathlib.Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for number, odd in enumerate((pa.array([b"x"]), pa.array([1]))):
        pq.write_table(pa.table({"id": [number], "odd": odd}), source / f"{number}.parquet")
    with pytest.raises(bowstring.MismatchError, match=r'type of column "odd" in file 0\.parquet and file 1\.parquet'):
        bowstring.convert(source, out, to="parquet", progress=False)
    assert bowstring.convert(source, out, to="parquet", columns=["id"], verify=True, progress=False).rows == 2
    command = [sys.executable, "-m", "bowstring", "inspect", str(source)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "2 rows" in shown
    assert 'type of column "odd"' in shown


def test_addresses_filters_and_budgets_are_those_of_loaders(
    numbers: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home.parquet").write_bytes(numbers.read_bytes())
    first = pc.field("id") < 5
    made = bowstring.convert("~/home.parquet", "~/out", to="parquet", filter=first, memory_budget="512MiB")
    assert made.rows == 5
    assert (tmp_path / "out" / "_SUCCESS").is_file()
    assert not (tmp_path / "~").exists()
    assert plan("~/home.parquet", "~/other", to="arrow", filter=first)["to"] == "arrow"
    tuples = [[("id", "<", 5)], [("id", "in", [7, 9])]]
    made = bowstring.convert("~/home.parquet", "~/tuples", to="parquet", filter=tuples, verify=True)
    assert pq.read_table(tmp_path / "tuples")["id"].to_pylist() == [0, 1, 2, 3, 4, 7, 9]
    with pytest.raises(bowstring.ConfigError, match='option filter: tuple 1: unknown operator "near"'):
        bowstring.convert("~/home.parquet", "~/other", to="parquet", filter=[("id", "near", 5)])
    assert bowstring.verify("~/home.parquet", "~/home.parquet", memory_budget="512MiB").equal
    with pytest.raises(bowstring.ConfigError, match="option memory_budget: "):
        bowstring.convert("~/home.parquet", "~/out", memory_budget="2 apples")
