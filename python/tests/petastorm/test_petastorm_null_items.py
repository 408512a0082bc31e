"""Lists with items that are null: never a null list, and nulls as pandas has them."""

from __future__ import annotations

import datetime
import pathlib
import random
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.errors import ClosedError, SourceChangedError
from bowstring.petastorm import make_batch_reader, make_reader
from bowstring.petastorm._source import Location
from bowstring.petastorm.etl.rowgroup_indexers import SingleFieldIndexer
from bowstring.petastorm.predicates import in_intersection, in_lambda
from bowstring.petastorm.transform import TransformSpec

pytestmark = pytest.mark.filterwarnings("ignore:make_reader is for datasets")

ROWS = 1500
DAY = datetime.date(2020, 1, 1)
# Values that a mask and a filled null could be taken for are among them.
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "float": (pa.float32(), [0.0, 1.0, 2.5, float("nan")]),
    "int": (pa.int32(), [0, 1, -7]),
    "small": (pa.uint8(), [0, 1, 255]),
    "flag": (pa.bool_(), [False, True]),
    "text": (pa.string(), ["", "None", "b"]),
    "raw": (pa.binary(2), [b"\0\0", b"\1\1", b"ab"]),
    "at": (pa.timestamp("us"), [datetime.datetime(1970, 1, 1), datetime.datetime(2020, 1, 1)]),
    "day": (pa.date32(), [datetime.date(1970, 1, 1), datetime.date(1970, 1, 2), DAY]),
}


@pytest.fixture(scope="module")
def table() -> Any:
    drawn = random.Random(5)

    def value(values: list[Any]) -> Any:
        if drawn.random() < 0.1:
            return None
        return [None if drawn.random() < 0.2 else drawn.choice(values) for _ in range(drawn.randrange(4))]

    columns = {name: pa.array([value(of) for _ in range(ROWS)], pa.list_(kind)) for name, (kind, of) in KINDS.items()}
    return pa.table({"id": range(ROWS), **columns})


@pytest.fixture(scope="module")
def url(table: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Row groups of 600, of which ``make_reader`` makes several pieces."""
    path = tmp_path_factory.mktemp("lists") / "lists.parquet"
    pq.write_table(table, path, row_group_size=600)
    return f"file://{path}"


def plain(value: Any) -> Any:
    """A list's values as Python's, with ``None`` for each kind of null but a float's own NaN."""
    if value is None:
        return None
    assert isinstance(value, np.ndarray)
    if value.dtype.kind == "M":
        value = value.astype("M8[us]")
    return [None if one is None or one != one else one for one in value.tolist()]


def expected(table: Any, name: str) -> dict[int, Any]:
    return {
        row["id"]: row[name] if row[name] is None else [None if one != one else one for one in row[name]]
        for row in table.select(["id", name]).to_pylist()
    }


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("options", [{}, {"shuffle_row_drop_partitions": 2, "shuffle_rows": True, "seed": 1}], ids=str)
def test_rows_have_the_nulls_of_their_lists(url: str, table: Any, name: str, options: dict[str, Any]) -> None:
    with make_reader(url, schema_fields=["id", name], **options) as reader:
        found = {int(row.id): getattr(row, name) for row in reader}
    assert {at: plain(value) for at, value in found.items()} == expected(table, name)
    types = {(value.dtype, None in plain(value)) for value in found.values() if value is not None and len(value)}
    whole = {kind for kind, has_null in types if not has_null}
    holed = {kind for kind, has_null in types if has_null and name != "float"}
    objects, floats = {np.dtype(object)}, {np.dtype(np.float64)}
    assert holed == {"int": floats, "small": floats, "at": {np.dtype("M8[us]")}, "float": set()}.get(name, objects)
    if name in ("int", "small", "flag"):
        assert whole == {np.dtype({"int": np.int32, "small": np.uint8, "flag": np.bool_}[name])}


@pytest.mark.parametrize("name", KINDS)
def test_frames_have_the_nulls_of_their_lists(url: str, table: Any, name: str) -> None:
    pytest.importorskip("pandas")
    found: dict[int, Any] = {}

    def noted(frame: Any) -> Any:
        found.update(zip(frame["id"].tolist(), frame[name].tolist(), strict=True))
        return frame[["id"]]

    transform = TransformSpec(noted, selected_fields=["id"])
    with make_batch_reader(url, schema_fields=["id", name], transform_spec=transform, workers_count=1) as reader:
        assert sum(len(batch.id) for batch in reader) == ROWS
    assert {at: plain(value) for at, value in found.items()} == expected(table, name)
    if name not in ("at", "raw"):  # ours are in nanoseconds, and pandas has no lists of the other
        wanted = table.select([name]).to_pandas()[name]
        kinds = {value.dtype for value in found.values() if value is not None}
        assert kinds == {value.dtype for value in wanted if value is not None}


def test_predicates_are_asked_with_lists_that_have_nulls(url: str, table: Any) -> None:
    for name, one in (("int", -7), ("text", "b"), ("float", 2.5), ("flag", True)):
        wanted = [row["id"] for row in table.to_pylist() if one in (row[name] or [])]
        holds = in_lambda([name], lambda value, one=one: value is not None and one in value.tolist())
        with make_reader(url, schema_fields=["id", name], predicate=holds, shuffle_row_groups=False) as reader:
            assert [int(row.id) for row in reader] == wanted
    present = table.filter(pa.compute.is_valid(table["int"])).select(["id", "int"])
    path = pathlib.Path(url.removeprefix("file://")).with_name("present.parquet")
    pq.write_table(present, path, row_group_size=300)
    wanted = [row["id"] for row in present.to_pylist() if -7 in row["int"]]
    asked = in_intersection({-7}, "int")
    with make_reader(f"file://{path}", schema_fields=["id", "int"], predicate=asked) as reader:
        assert sorted(int(row.id) for row in reader) == wanted


def test_a_matrix_has_nulls_of_items_and_none_of_lists(tmp_path: pathlib.Path) -> None:
    table = pa.table(
        {
            "f": pa.array([[1.5, None], [2.5, 3.5]], pa.list_(pa.float32())),
            "i": pa.array([[1, None], [2, 3]], pa.list_(pa.int32())),
            "s": [["a", None], ["b", "c"]],
        }
    )
    pq.write_table(table, tmp_path / "two.parquet")
    with make_batch_reader(f"file://{tmp_path}") as reader:
        [batch] = list(reader)
    for found, wanted in ((batch.f, [[1.5, np.nan], [2.5, 3.5]]), (batch.i, [[1, np.nan], [2, 3]])):
        np.testing.assert_array_equal(found, wanted)
    assert (batch.f.dtype, batch.i.dtype) == (np.float32, np.float64)
    assert batch.s.tolist() == [["a", None], ["b", "c"]]
    for name in table.column_names:
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({name: pa.array([*table[name].to_pylist(), None], table[name].type)}), path)
        with make_batch_reader(f"file://{path}") as reader, pytest.raises(RuntimeError, match="lists that are null"):
            list(reader)


def test_null_items_are_no_values_of_an_index() -> None:
    indexer = SingleFieldIndexer("index", "i")
    indexer.build_index([{"i": np.array([1.0, np.nan])}, {"i": np.array(["a", None], dtype=object)}, {"i": None}], 3)
    assert dict(indexer._index_data) == {1: {3}, "a": {3}}


def written(folder: pathlib.Path, name: str, first: int, lists: list[Any]) -> None:
    columns = {"id": range(first, first + len(lists)), "v": pa.array(lists, pa.list_(pa.int64()))}
    pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=4)


@pytest.fixture
def late(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder whose nulls come last."""
    for at in range(30):
        written(tmp_path, f"p{at:02}", at * 4, [[1, 2]] * 4)
    written(tmp_path, "z", 120, [[0, 0], [0, None], [None, 5], [1, 0]])
    return tmp_path


def test_a_file_added_in_the_middle_changes_no_null_items(late: pathlib.Path) -> None:
    with make_reader(f"file://{late}", shuffle_row_groups=False, workers_count=1) as reader:
        next(reader)
        written(late, "a", 900, [[0, 7], [7, 7], [7, 0], [7, 7]])
        found = {int(row.id): plain(row.v) for row in reader}
    assert [found[at] for at in range(120, 124)] == [[0, 0], [0, None], [None, 5], [1, 0]]


@pytest.mark.parametrize(
    "lists",
    [
        [[0, 0], [0, None], [None, 6], [1, 0]],
        [[0, 0], [0, None], [None, 5], [1, None]],
        [[1, 0], [0, None], [None, 5], [1, 0]],
        [[0, 0], [0, None], [None, 5], [1]],
        [[0, 0], [0, None], [None, 5]],
    ],
    ids=str,
)
def test_null_items_of_a_file_that_changed_are_an_error(
    late: pathlib.Path, lists: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = Location.open

    def replaced(self: Location, *args: Any, **options: Any) -> Any:
        if options.get("fill") is not None:
            written(late, "z", 120, lists)
        return opens(self, *args, **options)

    monkeypatch.setattr(Location, "open", replaced)
    raises = pytest.raises(SourceChangedError, match=r"z\.parquet changed during the run.*null items")
    with make_reader(f"file://{late}", shuffle_row_groups=False, workers_count=1) as reader, raises as error:
        list(reader)
    assert error.value.row_group == 0


@pytest.fixture
def reopened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is opened to find null items."""
    made = []
    opens = Location.open

    def noted(self: Location, *args: Any, **options: Any) -> Any:
        opened = opens(self, *args, **options)
        if options.get("fill") is not None:
            made.append(opened)
        return opened

    monkeypatch.setattr(Location, "open", noted)
    return made


def test_all_lists_of_a_reader_share_one_more_opening(url: str, reopened: list[Any], tmp_path: pathlib.Path) -> None:
    with make_reader(url) as reader:
        assert sum(1 for _ in reader) == ROWS
    assert len(reopened) == 1
    written(tmp_path, "whole", 0, [[1], None, []])
    with make_reader(f"file://{tmp_path}") as reader:
        assert sum(1 for _ in reader) == 3
    assert len(reopened) == 1


def test_a_reader_stops_at_once_while_it_opens_for_null_items(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, goes_on, made = threading.Event(), threading.Event(), []
    opens = Location.open

    def slow(self: Location, *args: Any, **options: Any) -> Any:
        if options.get("fill") is not None:
            opening.set()
            assert goes_on.wait(60)
        made.append(opens(self, *args, **options))
        return made[-1]

    monkeypatch.setattr(Location, "open", slow)
    reader = make_reader(url, schema_fields=["id", "int"])

    def ask() -> None:
        with pytest.raises(RuntimeError):
            next(reader)

    asks = threading.Thread(target=ask)
    asks.start()
    assert opening.wait(60)
    before = set(threading.enumerate())
    stops = threading.Thread(target=lambda: (reader.stop(), reader.join()))
    stops.start()
    for thread in (stops, asks):
        thread.join(20)
    ended = not stops.is_alive() and not asks.is_alive()
    goes_on.set()
    for thread in before - {threading.current_thread()}:
        if thread.name == "bowstring-petastorm-holes":
            thread.join(60)
    assert ended
    with pytest.raises(ClosedError):
        made[-1].next(lambda *piece: piece)
