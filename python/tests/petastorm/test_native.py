"""The loader itself on Petastorm's datasets: every value, windows, row-group indexes, splits."""

from __future__ import annotations

import json
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pytest

from .datasets import CODECS, LEGACY, folder, same


def rows_of(name: str, **options: Any) -> dict[str, dict[str, Any]]:
    """Returns all rows of a dataset by id, as NumPy values."""
    found: dict[str, dict[str, Any]] = {}
    with bowstring.Loader(
        folder(name), batch_size=7, shuffle=False, tail="pad", nulls="mask", arrow="*decimal", **options
    ) as loader:
        for batch in loader:
            columns = {column.split("__")[0] for column in batch if not column.startswith("_")}
            for row in np.flatnonzero(batch["_mask"]):
                values = {column: value_of(batch, column, row) for column in columns}
                found[str(values["id"])] = values
    return found


def value_of(batch: dict[str, Any], name: str, row: int) -> Any:
    """Returns one value of a batch."""
    if f"{name}__valid" in batch and not batch[f"{name}__valid"][row]:
        return None
    if f"{name}__offsets" in batch:
        start, end = batch[f"{name}__offsets"][row : row + 2]
        values = batch[f"{name}__values"][start:end]
        return values.reshape(batch[f"{name}__shape"][row]) if f"{name}__shape" in batch else values
    value = batch[name][row]
    return value.as_py() if isinstance(value, pa.Scalar) else value


def comparable(value: Any, wanted: Any) -> Any:
    """Returns `value` in Petastorm's form: NumPy's text, arrays of text, times in other units."""
    if wanted is None or value is None:
        return value
    if wanted["kind"] == "ndarray" and isinstance(value, list):
        flat = np.array(value, dtype=wanted["dtype"])
        return flat.reshape(wanted["shape"])
    if wanted["kind"] == "ndarray" and wanted["dtype"].startswith("<M8"):
        return value.astype("<M8[ns]").astype(wanted["dtype"])
    if wanted["kind"] == "datetime64":
        # Petastorm writes INT96, which is read in microseconds.
        unit = "D" if len(wanted["value"]) == 10 else "us"
        return np.datetime64(int(value), unit)
    if wanted["kind"] in ("str_", "bytes_", "bool_"):
        return getattr(np, wanted["kind"])(value)
    return value


@pytest.mark.parametrize("name", [CODECS, *LEGACY])
def test_every_value_of_every_version(name: str) -> None:
    expected = json.loads(folder(f"{name}.expected.json").read_text())["rows"]
    found = rows_of(name)
    assert found.keys() == expected.keys()
    wrong = []
    for number, wanted in expected.items():
        for column, value in wanted.items():
            ours = comparable(found[number][column], value)
            # Petastorm gives NaN for a null double.
            null = column == "n_double" and ours is None and np.isnan(value["value"])
            if not null and not same(ours, value):
                wrong.append((number, column, ours, value))
    assert not wrong, wrong[:5]


def expectations() -> dict[str, Any]:
    return dict(json.loads(folder(f"{CODECS}.expected.json").read_text()))


@pytest.mark.parametrize(
    ("length", "threshold", "overlap", "key"),
    [(3, 10, True, "ngram_len3_delta10_ids"), (2, 10, False, "ngram_len2_nooverlap_ids")],
)
def test_windows_are_those_of_petastorm(length: int, threshold: float, overlap: bool, key: str) -> None:
    ngram = bowstring.NGram(
        {offset: ["id", "nd_f32", "img_var"] for offset in range(length)}, "ts", threshold, timestamp_overlap=overlap
    )
    windows = []
    with bowstring.Loader(folder(CODECS), batch_size=4, shuffle=False, tail="pad", nulls="mask", ngram=ngram) as loader:
        assert "id int64 [" + str(length) in str(loader.schema)
        for batch in loader:
            assert batch["nd_f32"].shape == (length, 4, 2, 3)
            assert batch["img_var__shape"].shape == (length, 4, 3)
            windows += batch["id"].T[batch["_mask"]].tolist()
    assert windows == expectations()[key]


def test_each_offset_has_its_own_fields() -> None:
    ngram = bowstring.NGram({-1: ["id", "ts"], 1: ["id"]}, "ts", 10)
    with bowstring.Loader(folder(CODECS), batch_size=5, shuffle=False, nulls="mask", ngram=ngram) as loader:
        batch = next(iter(loader))
    assert batch["id"].shape == (2, 5)
    assert batch["ts"].shape == (1, 5)
    starts = [window[0] for window in expectations()["ngram_len3_delta10_ids"]][:5]
    assert batch["id"].T.tolist() == [[start, start + 2] for start in starts]


def test_windows_resume_and_shard_like_rows() -> None:
    ngram = bowstring.NGram({0: ["id"], 1: ["id"]}, "ts", 10)

    def windows(**options: Any) -> list[list[int]]:
        with bowstring.Loader(
            folder(CODECS), ngram=ngram, seed=3, global_batch_size=4, tail="even", **options
        ) as loader:
            return [window for batch in loader for window in batch["id"].T.tolist()]

    whole = windows(rank=0, world_size=1)
    halves = windows(rank=0, world_size=2) + windows(rank=1, world_size=2)
    assert sorted(halves) == sorted(whole)
    assert all(second == first + 1 for first, second in whole)


def ids(**options: Any) -> list[int]:
    with bowstring.Loader(folder(CODECS), batch_size=8, columns="id", shuffle=False, **options) as loader:
        return [int(i) for batch in loader for i in batch["id"]]


def test_row_groups_are_selected_by_index() -> None:
    expected = expectations()
    assert ids(selector={"index": "ix_n_string", "values": ["v1"]}) == expected["selector_ix_n_string_v1_ids"]
    assert ids(selector={"row_groups": [1]}) == [4, 5, 6, 7]
    assert ids(selector={"row_groups": [0, 1]}, filter="id > 3") == [4, 5, 6, 7]
    with pytest.raises(bowstring.NotFoundError, match="ix_n_string"):
        ids(selector={"index": "none", "values": [1]})


def test_filters_are_petastorms_predicates() -> None:
    assert ids(filter=[("part", "in", ["p_1", "p_2"])]) == expectations()["predicate_part_p1_p2_ids"]
    parts = [ids(filter=f"split(s_string, {low}, {high})") for low, high in [(0, 0.3), (0.3, 0.7), (0.7, 1)]]
    assert sorted(i for part in parts for i in part) == list(range(40))


def test_cells_can_stay_bytes() -> None:
    with bowstring.Loader(folder(CODECS), batch_size=4, columns="nd_f32", decode=False, shuffle=False) as loader:
        cell = next(iter(loader))["nd_f32"][0]
    assert cell.startswith(b"\x93NUMPY")


def test_row_groups_come_in_any_order() -> None:
    from bowstring import _native
    from bowstring.options import document

    groups = _native.RowGroups(document(folder(CODECS), {"columns": ["id"]}), 3)
    sizes = [rows for _, _, rows in groups.groups]
    assert sum(sizes) == 40
    groups.start([5, 0, 5])
    found: list[tuple[int, int, list[int]]] = []
    while (
        piece := groups.next(lambda group, first, columns: (group, first, columns["id"].numpy().tolist()))
    ) is not None:
        found.append(piece)
    starts = np.cumsum([0, *sizes])
    expected = [
        (group, first, list(range(starts[group] + first, starts[group] + min(first + 3, sizes[group]))))
        for group in (5, 0, 5)
        for first in range(0, sizes[group], 3)
    ]
    assert found == expected
    groups.close()
    with pytest.raises(bowstring.ClosedError):
        groups.next(lambda *piece: piece)
