"""Tables of Delta Lake: versions and times as Python gives them, deleted rows, what is refused."""

from __future__ import annotations

import json
import os
import pathlib
from datetime import datetime, timedelta, timezone
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring import Loader

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "delta"


def commit(table: pathlib.Path, version: int, *actions: dict[str, Any]) -> None:
    """Writes commit ``version``, made so many hours after 2026-01-01 in UTC."""
    log = table / "_delta_log"
    log.mkdir(exist_ok=True)
    path = log / f"{version:020}.json"
    path.write_text("\n".join(map(json.dumps, actions)))
    made = datetime(2026, 1, 1, version, tzinfo=timezone.utc).timestamp()
    os.utime(path, (made, made))


@pytest.fixture
def table(tmp_path: pathlib.Path) -> pathlib.Path:
    for name, first in {"a": 0, "b": 10}.items():
        pq.write_table(pa.table({"id": pa.array(range(first, first + 4), pa.int64())}), tmp_path / f"{name}.parquet")
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
    schema = json.dumps({"type": "struct", "fields": fields})
    about = {
        "id": "x",
        "format": {"provider": "parquet"},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": {},
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    commit(tmp_path, 0, {"protocol": protocol}, {"metaData": about}, {"add": {"path": "a.parquet"}})
    commit(tmp_path, 1, {"remove": {"path": "a.parquet"}}, {"add": {"path": "b.parquet"}})
    return tmp_path


def ids(table: pathlib.Path, **options: Any) -> list[int]:
    with Loader(table, batch_size=3, shuffle=False, **options) as loader:
        return [int(value) for batch in loader for value in batch["id"]]


def test_a_version_or_a_time_chooses_the_rows(table: pathlib.Path) -> None:
    old, new = [0, 1, 2, 3], [10, 11, 12, 13]
    assert ids(table) == new
    assert ids(table, version=0) == old
    assert ids(table, version=np.int64(1)) == new
    moment = datetime(2026, 1, 1, 0, 30, tzinfo=timezone.utc)
    assert ids(table, timestamp=moment) == old
    assert ids(table, timestamp=moment.replace(tzinfo=None)) == old, "without a zone it is in UTC"
    assert ids(table, timestamp=moment.astimezone(timezone(timedelta(hours=5)))) == old
    assert ids(table, timestamp="2026-01-01 01:00:00") == new
    with pytest.raises(bowstring.NotFoundError, match=r"version 2 .* the latest is 1"):
        Loader(table, batch_size=3, version=2)
    with pytest.raises(bowstring.ConfigError, match="timestamp") as caught:
        Loader(table, batch_size=3, timestamp="yesterday")
    assert caught.value.option == "timestamp"


def test_a_state_goes_on_in_its_version(table: pathlib.Path) -> None:
    with Loader(table, batch_size=2, version=0) as loader:
        next(iter(loader))
        state, version = loader.state_dict(), loader.table_version
    assert version == 0
    with Loader(table, batch_size=2) as later:
        assert later.table_version == 1
        with pytest.raises(bowstring.MismatchError, match="; version 1 of the table is open here"):
            later.load_state_dict(state)
    with Loader(table, batch_size=2, version=version) as same:
        same.load_state_dict(state)
        assert sum(len(batch["id"]) for batch in same) == 2


def test_deleted_rows_are_neither_read_nor_counted() -> None:
    name = "dv-with-columnmapping"
    expected = pq.read_table(FIXTURES / name / "expected").to_pydict()
    with Loader(FIXTURES / name / "delta", batch_size=16, seed=3) as loader:
        assert len(loader) == -(-len(expected["col1"]) // 16)
        batches = list(loader)
    found = [(int(a), str(b)) for batch in batches for a, b in zip(batch["col1"], batch["col2"], strict=True)]
    assert sorted(found) == sorted(zip(expected["col1"], expected["col2"], strict=True))


def test_what_is_not_read_is_refused_by_name() -> None:
    with pytest.raises(bowstring.UnsupportedError, match="geospatial"):
        Loader(FIXTURES / "refused" / "table-with-geo", batch_size=1)
