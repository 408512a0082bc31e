"""Numbers of any size, sign and kind in every option of every API: accepted, or refused with the option's name and the value."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.flight import Connection
from bowstring.options import NAMES, TABLE
from bowstring.ranges import fraction, seconds, shown, whole

# Beyond each limit that a number may meet on its way: u32, i64, u64, a float, Python's own limit of digits.
HUGE = [1 << 32, 1 << 63, 1 << 64, 10**400, 10**5000]
NEGATIVE = [-1, -(1 << 63) - 1, -(10**5000)]
FLOATS = [math.nan, math.inf, -math.inf, 1e308, -1.5, 0.5, np.float64("nan")]
NUMERIC = [*HUGE, *NEGATIVE, *FLOATS, 0, np.int64(-3)]
VALUES = [*NUMERIC, "many", [1], {}]

# Phrases of a JSON parser, a binding or a clock, which no error may contain.
SPEECH = re.compile(
    r"JSON|line \d+ column|, expected (u\d|i\d|f\d|a |struct)|invalid (type|value)|\b[ui](8|16|32|64|size)\b|panick|overflow|"
    r"too large to convert|integer string conversion|cannot be interpreted"
)


def refusal(use: Callable[[], Any]) -> bowstring.Error | None:
    """Returns the typed error with which ``use`` is refused; any other exception passes through and fails the test."""
    try:
        use()
    except bowstring.Error as error:
        return error
    return None


def names_of(value: Any) -> set[str]:
    """Returns the forms in which an error may write a number."""
    names = {shown(value), shown(value).strip("()")}
    if isinstance(value, float) or abs(value) < 1 << 900:
        names |= {str(value), repr(float(value)), repr(float(value)).replace("e+", "e"), f"{float(value):.0f}"}
    return names


def judge(option: str, value: Any, use: Callable[[], Any]) -> bool:
    """Returns true if ``use`` accepted ``value``; otherwise its error must name the option and the value."""
    error = refusal(use)
    if error is None:
        return True
    what = f"{option}={shown(value)}: {type(error).__name__}: {error}"
    if isinstance(error, bowstring.LimitError):
        assert error.option is not None, what
        return False
    assert isinstance(error, bowstring.ConfigError), what
    assert error.option == option, what
    assert f"option {option}: " in str(error), what
    assert not SPEECH.search(str(error)), what
    # What only the owner of the data sets is refused whatever its value is.
    if isinstance(value, (int, float, np.generic)) and "in the server's catalogue" not in str(error):
        assert any(name in str(error) for name in names_of(value)), what
    return False


def judge_part(option: str, value: Any, use: Callable[[], Any]) -> None:
    """The same for a number inside an option, where the data may be the reason for the refusal."""
    error = refusal(use)
    assert error is None or not SPEECH.search(str(error)), f"{option} with {shown(value)}: {error}"
    if isinstance(error, bowstring.ConfigError):
        assert option in str(error), f"{option} with {shown(value)}: {error}"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("numbers") / "data.parquet"
    pq.write_table(pa.table({"id": list(range(40)), "x": [n / 4 for n in range(40)]}), path, row_group_size=10)
    return str(path)


@pytest.fixture(scope="module")
def server(data: str) -> Iterator[bowstring.flight.Server]:
    with bowstring.flight.Server({"numbers": data}) as running:
        yield running


# ---- the loader's table -------------------------------------------------------------------------------------------------

NUMBERS = [entry["name"] for entry in TABLE if entry["values"].startswith(("a whole number", "a number"))]


def test_the_table_says_which_options_are_numbers() -> None:
    assert {"batch_size", "prefetch", "timeout", "memory_budget", "window_rows", "lanes", "seed"} <= set(NUMBERS)
    assert set(NUMBERS) <= set(NAMES)


def given_to_a_loader(name: str, value: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"columns": "id", "batch_size": 4, "rank": 0, "world_size": 1, name: value}
    if name == "global_batch_size":
        del given["batch_size"]
    return given


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("remote", [False, True])
def test_numbers_of_a_loader(data: str, server: bowstring.flight.Server, name: str, remote: bool) -> None:
    url = f"{server.url}/numbers" if remote else data
    for value in VALUES:
        given = given_to_a_loader(name, value)
        if remote and name == "memory_budget" and value == 0:
            continue
        taken = judge(name, value, lambda given=given: bowstring.Loader(url, **given).close())  # type: ignore[misc]
        assert not taken or 0 <= value < 1 << 64, f"{name} took {shown(value)}"


def test_numbers_within_the_options_of_a_loader(data: str) -> None:
    for value in NUMERIC:
        parts: dict[str, Any] = {
            "limits": {"max_files": value},
            "images": {"id": bowstring.Image(value)},
            "lists": bowstring.Padded(value),
            "weights": [value, 1.0],
            "selector": {"row_groups": [value]},
            "ngram": bowstring.NGram({0: ["id"]}, "id", value),
            "nulls": bowstring.Fill(value),
            "storage_options": {"token": value},
        }
        for option, given in parts.items():
            url = [data, data] if option == "weights" else data
            options: dict[str, Any] = {"batch_size": 4, option: given}
            judge_part(option, value, lambda url=url, options=options: bowstring.Loader(url, **options).close())  # type: ignore[misc]
        for given in ([("id", "<", value)], [[("x", ">=", value)]], [("id", "in", [value, 3])]):
            judge_part("filter", value, lambda given=given: bowstring.Loader(data, batch_size=4, filter=given).close())  # type: ignore[misc]


def test_positions_of_a_loader(data: str) -> None:
    with bowstring.Loader(data, batch_size=4, columns="id") as loader:
        state = loader.state_dict()
        for value in VALUES:
            judge("epoch", value, lambda value=value: loader.set_epoch(value))  # type: ignore[misc]
        loader.set_epoch(2**63 - 2)
        assert sum(1 for _ in loader) == len(loader)
        loader.load_state_dict(loader.state_dict())
        for value in NUMERIC:
            for part in ("epoch", "step"):
                judge_part(
                    "state", value, lambda part=part, value=value: loader.load_state_dict({**state, part: value})
                )  # type: ignore[misc]
        loader.load_state_dict(state)
        assert len(next(iter(loader))["id"]) == 4


# ---- the other tables ---------------------------------------------------------------------------------------------------

WRITER = ("rows_per_group", "group_bytes", "rows_per_file", "file_bytes")
CONVERSION = ("rows_per_group", "target_file_size", "image_quality", "resize", "shards", "jobs", "memory_budget")


def test_numbers_of_a_writer(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64()})

    def write(at: Path, options: dict[str, Any]) -> None:
        with bowstring.DatasetWriter(at, schema, **options) as writer:
            writer.write(pa.table({"id": [1, 2, 3]}))

    for number, value in enumerate(VALUES):
        for name in WRITER:
            at, options = tmp_path / f"{name}{number}", {name: value}
            judge(name, value, lambda at=at, options=options: write(at, options))  # type: ignore[misc]
    for level in [*HUGE, *NEGATIVE, 0, 23]:
        error = refusal(lambda level=level: write(tmp_path / "level", {"compression": ("zstd", level)}))  # type: ignore[misc]
        assert isinstance(error, bowstring.ConfigError), shown(level)
        assert error.option == "compression", error
        assert not SPEECH.search(str(error)), error


def test_numbers_of_a_conversion(data: str, tmp_path: Path) -> None:
    for number, value in enumerate(VALUES):
        for name in CONVERSION:
            at, options = tmp_path / f"{name}{number}", {name: value}
            judge(name, value, lambda at=at, options=options: bowstring.convert(data, at, to="parquet", **options))  # type: ignore[misc]
        if not isinstance(value, int) or not 0 <= value < 1 << 64:
            judge(
                "shuffle", value, lambda value=value: bowstring.convert(data, tmp_path / "s", to="mds", shuffle=value)
            )  # type: ignore[misc]
        for name in ("jobs", "memory_budget"):
            judge(name, value, lambda options={name: value}: bowstring.verify(data, data, **options))  # type: ignore[misc]
        limits: dict[str, Any] = {"limits": {"max_columns": value}}
        judge_part("limits", value, lambda limits=limits: bowstring.plan(data, batch_size=4, **limits))  # type: ignore[misc]


SERVER = (
    "memory_budget",
    "threads",
    "max_streams",
    "drain_grace",
    "gang_lease",
    "refresh",
    "share_bytes",
    "open_bytes",
)


def test_numbers_of_a_server(data: str) -> None:
    def serve(options: dict[str, Any]) -> None:
        bowstring.flight.Server({"numbers": data}, **options).close()

    for value in VALUES:
        for name in SERVER:
            judge(name, value, lambda options={name: value}: serve(options))  # type: ignore[misc]
        for name in ("connections", "message_bytes", "handshake_seconds", "stream_window_bytes", "gangs_per_tenant"):
            judge_part(name, value, lambda options={"limits": {name: value}}: serve(options))  # type: ignore[misc]
        for name in ("streams", "bytes_per_second", "in_flight_bytes"):
            judge_part(name, value, lambda options={"quotas": {"default": {name: value}}}: serve(options))  # type: ignore[misc]


def test_numbers_of_a_gang(server: bowstring.flight.Server) -> None:
    def join(name: str, value: Any) -> None:
        given: dict[str, Any] = {"rank": 0, "world_size": 1, name: value}
        bowstring.flight.Gang(server.url, f"a gang for {name}", **given).leave()

    for value in VALUES:
        for name in ("rank", "world_size"):
            if value not in (0, 1 << 32):
                error = refusal(lambda name=name, value=value: join(name, value))  # type: ignore[misc]
                assert isinstance(error, bowstring.ConfigError), f"{name}: {shown(value)}: {error!r}"
                assert not SPEECH.search(str(error)), error
        judge("timeout", value, lambda value=value: join("timeout", value))  # type: ignore[misc]
        judge_part("share", value, lambda value=value: join("share", (value, 1)))  # type: ignore[misc]
    with bowstring.flight.Gang(server.url, "numbers", rank=0, world_size=1) as gang:
        for value in VALUES:
            judge("timeout", value, lambda value=value: gang.barrier(value))  # type: ignore[misc]
            judge("timeout", value, lambda value=value: gang.all_gather(b"", value))  # type: ignore[misc]
            if isinstance(value, int) and 0 <= value < 1 << 63:
                continue  # acknowledgements only move forward
            judge("epoch", value, lambda value=value: gang.ack(value, 0))  # type: ignore[misc]
            judge("step", value, lambda value=value: gang.ack(0, value))  # type: ignore[misc]


def test_numbers_of_a_connection_a_plan_and_an_index(server: bowstring.flight.Server, data: str) -> None:
    for value in VALUES:
        judge("timeout", value, lambda value=value: Connection(server.url, timeout=value))  # type: ignore[misc]
        judge("rate", value, lambda value=value: bowstring.plan(data, batch_size=4, rate=value))  # type: ignore[misc]
        judge("timeout", value, lambda value=value: bowstring.index(data, timeout=value))  # type: ignore[misc]


def test_numbers_of_inference(server: bowstring.flight.Server) -> None:
    from bowstring.inference import ModelClient, serve_model

    def client(options: dict[str, Any]) -> None:
        ModelClient(server.url, **options).close()

    def model(options: dict[str, Any]) -> None:
        serve_model(lambda batch: batch, **options).close()

    for value in VALUES:
        for name in ("first", "window", "timeout"):
            judge(name, value, lambda options={name: value}: client(options))  # type: ignore[misc]
        for name in (
            *("batch_size", "deadline_ms", "max_streams", "remember_rows", "remember_bytes", "queue_bytes"),
            "message_rows",
        ):
            judge(name, value, lambda options={name: value}: model(options))  # type: ignore[misc]


def test_numbers_of_the_hand_off_from_spark() -> None:
    from bowstring.spark.handle import serve
    from bowstring.spark.options import SourceOptions
    from bowstring.spark.ranks import connect

    class Frame:
        """An object that a refused call never touches."""

        def __getattr__(self, name: str) -> Any:
            raise bowstring.ClosedError(name)

    def served(options: dict[str, Any]) -> None:
        try:
            serve(Frame(), **{"world_size": 1, "batch_size": 1, **options})
        except bowstring.ClosedError:
            return

    def connected(options: dict[str, Any]) -> None:
        connect("grpc://127.0.0.1:9", **{"rank": 0, **options})

    for value in VALUES:
        for name in ("world_size", "batch_size", "seed", "tasks", "memory", "timeout", "patience", "attempts"):
            judge(name, value, lambda options={name: value}: served(options))  # type: ignore[misc]
        for name in ("rank", "timeout"):
            if not isinstance(value, (int, float)) or not 0 <= value < 1e300:
                # Nothing listens there; bad options are refused before that is noticed.
                assert not judge(name, value, lambda options={name: value}: connected(options))  # type: ignore[misc]
        for name in ("parts", "timeout", "rows_per_group", "file_bytes"):
            # Spark's options are strings.
            text = (
                str(value)
                if isinstance(value, float) or not isinstance(value, int) or abs(value) < 1 << 900
                else "9" * 5000
            )
            error = refusal(lambda options={"path": "/p", name: text}: SourceOptions.read(options))  # type: ignore[misc]
            assert error is None or str(error).startswith(f"option {name}: '{text[:20]}"), error


@pytest.mark.filterwarnings("ignore:results_queue_size:DeprecationWarning", "ignore:shard_seed:UserWarning")
def test_numbers_of_petastorms_readers(data: str) -> None:
    pytest.importorskip("torch")
    from bowstring.petastorm import make_batch_reader
    from bowstring.petastorm.pytorch import BatchedDataLoader, DataLoader, InMemBatchedDataLoader

    url = f"file://{data}"
    names = ("workers_count", "seed", "shuffle_row_drop_partitions", "num_epochs", "shard_seed", "results_queue_size")
    loaders: list[tuple[Any, str]] = [
        *((kind, "batch_size") for kind in (DataLoader, BatchedDataLoader, InMemBatchedDataLoader)),
        *((kind, "shuffling_queue_capacity") for kind in (DataLoader, BatchedDataLoader)),
        *((InMemBatchedDataLoader, name) for name in ("rows_capacity", "num_epochs", "seed")),
    ]

    def read(options: dict[str, Any]) -> None:
        with make_batch_reader(url, **options) as reader:
            next(reader)

    for value in VALUES:
        for name in names:
            judge(name, value, lambda options={name: value}: read(options))  # type: ignore[misc]
        if value != 1 << 32:
            judge("shard_count", value, lambda value=value: read({"cur_shard": 0, "shard_count": value}))  # type: ignore[misc]
        judge("cur_shard", value, lambda value=value: read({"cur_shard": value, "shard_count": 1}))  # type: ignore[misc]
        for kind, name in loaders:
            with make_batch_reader(url) as reader:
                options = {name: value}
                judge(name, value, lambda kind=kind, reader=reader, options=options: kind(reader, **options))  # type: ignore[misc]


def test_every_number_of_a_signature_is_tried() -> None:
    """A number added to a public signature must be added here."""
    from bowstring.inference import ModelClient, serve_model
    from bowstring.spark.handle import serve

    tried = {*NUMBERS, *SERVER, *WRITER, *CONVERSION, "shuffle", "first", "window", "deadline_ms", "remember_rows"}
    tried |= {
        "remember_bytes",
        "queue_bytes",
        "message_rows",
        "rate",
        "epoch",
        "step",
        "tasks",
        "memory",
        "patience",
        "attempts",
        "share",
    }
    surfaces: list[Any] = [
        *(
            kind.__init__
            for kind in (bowstring.Loader, bowstring.flight.Server, bowstring.DatasetWriter, bowstring.flight.Gang)
        ),  # type: ignore[misc]
        *(Connection.__init__, ModelClient.__init__, serve_model, serve, bowstring.Loader.set_epoch),
        *(bowstring.flight.Gang.barrier, bowstring.flight.Gang.ack, bowstring.flight.Gang.all_gather),
        *(bowstring.convert, bowstring.verify, bowstring.plan, bowstring.index, bowstring.write_index),
    ]
    for surface in surfaces:
        for name, parameter in inspect.signature(surface).parameters.items():
            kind = str(parameter.annotation)
            if re.search(r"\b(int|float)\b", kind) and not re.search(r"Mapping|Sequence|tuple", kind):
                assert name in tried, f"{surface.__qualname__}: {name}"


def test_ranges_accept_numbers_of_every_type() -> None:
    assert (whole("n", np.int64(3)), whole("n", 0), seconds("n", 2), seconds("n", np.float32(0.5))) == (3, 0, 2.0, 0.5)
    assert (seconds("n", 0, zero=True), fraction("n", 1, 2)) == (0.0, 1.0)
    assert len(shown("x" * 1000)) < 100
    assert "5000 digits" in shown(10**5000)
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(bowstring.ConfigError, match="option n: "):
            whole("n", wrong)


def test_doubles_are_read_exactly(tmp_path: Path) -> None:
    values = [1759.9266703792935, 0.1, 1 / 3, 1e23, 5e-324, *np.random.default_rng(5).normal(0, 1e3, 60).tolist()]
    path = tmp_path / "rows.parquet"
    lists = pa.array([[1.0], *[[]] * len(values)], pa.list_(pa.float64()))
    pq.write_table(pa.table({"f": [*values, None], "l": lists}), path)
    for value in values:
        chosen = bowstring.Loader(path, batch_size=1, columns="f", filter=[("f", "=", value)])
        assert [batch["f"].item() for batch in chosen] == [value]
        lists_filled = {"l": bowstring.Padded(1, fill=value)}
        filled = bowstring.Loader(path, batch_size=100, shuffle=False, nulls={"f": value}, lists=lists_filled)
        (batch,) = filled
        assert (batch["f"][-1].item(), batch["l"][1, 0].item()) == (value, value)
