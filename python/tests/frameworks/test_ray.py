"""`bowstring.ray`: each row once over Ray's read tasks, as lists, text and tensor columns."""

from __future__ import annotations

import pathlib
import pickle
import re
import warnings
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring import Padded

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    from bowstring.ray import Datasource, read

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(150)]
OPTIONS: dict[str, Any] = {
    "batch_size": 8,
    "nulls": {"maybe": "mask", "name": "mask"},
    "cast": {"half": "bfloat16"},
    "lists": {"padded": Padded(3)},
}


def check(row: dict[str, Any], source: dict[str, Any]) -> None:
    """Compares a row of Ray's with the file's."""
    for name in ("id", "x", "half", "flag", "name", "bytes"):
        assert row[name] == source[name], name
    assert row["maybe__valid"] == (source["maybe"] is not None)
    assert row["maybe"] == (source["maybe"] or 0)
    for name in ("fixed", "tags", "words"):
        assert list(row[name]) == source[name], name
    assert [list(inner) for inner in row["deep"]] == source["deep"]
    assert list(row["padded"]) == [*source["padded"], 0, 0, 0][:3]
    assert row["padded__lengths"] == len(source["padded"])


def test_each_row_once(kinds: pathlib.Path, ray_cluster: None) -> None:
    source = pq.read_table(kinds).to_pylist()
    for tasks, shuffle in ((3, None), (2, False), (1, None)):
        rows = read(kinds, override_num_blocks=tasks, shuffle=shuffle, **OPTIONS).take_all()
        assert sorted(row["id"] for row in rows) == list(range(100)), tasks
        for row in rows:
            check(row, source[row["id"]])
    some = read(kinds, columns=["id"], filter="id < 30", override_num_blocks=2)
    assert some.count() == 30
    assert sorted(row["id"] for row in some.take(30)) == list(range(30))
    assert some.limit(7).count() == 7


def test_the_example_of_the_docs(ray_cluster: None, tmp_path: pathlib.Path) -> None:
    docs = pathlib.Path(__file__).resolve().parents[3] / "docs" / "frameworks.md"
    (example,) = re.findall(r"```python\n(rows = bowstring.ray.read.*?)```", docs.read_text(), re.DOTALL)
    table = pa.table({"user_id": range(10), "user_age": range(10), "label": range(10), "other": range(10)})
    pq.write_table(table, tmp_path / "0.parquet")
    names: dict[str, Any] = {}
    exec(f"import bowstring.ray\n{example.replace('clicks', str(tmp_path))}", names)
    assert names["rows"].columns() == ["user_id", "user_age", "label"]
    assert sorted(row["user_id"] for row in names["rows"].take_all()) == list(range(3, 10))


def test_the_example_of_the_migration_page(
    ray_cluster: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = pathlib.Path(__file__).resolve().parents[3] / "docs" / "migrating.md"
    (example,) = re.findall(r"```python\n# before\n(import ray\n.*?)```", docs.read_text(), re.DOTALL)
    pq.write_table(pa.table({"x": range(1000), "y": range(1000), "label": range(1000)}), tmp_path / "clicks.parquet")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example.replace('"clicks.parquet"', repr(str(tmp_path / "clicks.parquet"))), names)
    assert names["batch"].keys() == {"x", "label"}


def test_tasks_run_on_their_own(kinds: pathlib.Path) -> None:
    source = pickle.loads(pickle.dumps(Datasource(kinds, columns=["id", "fixed"], batch_size=8)))
    for parallelism in (1, 3, 7):
        tasks = source.get_read_tasks(parallelism)
        blocks = [pa.concat_tables(list(task())) for task in tasks]
        assert [block.num_rows for block in blocks] == [task.metadata.num_rows for task in tasks]
        # A retried task reads the same rows.
        assert pa.concat_tables(list(tasks[0]()))["id"].to_pylist() == blocks[0]["id"].to_pylist()
        rows = np.concatenate([block["id"].to_numpy() for block in blocks])
        assert sorted(rows.tolist()) == list(range(100))
    limited = source.get_read_tasks(2, per_task_row_limit=5)
    assert sum(block.num_rows for block in limited[0]()) == 5


def test_changed_files_and_unsupported_options_are_errors(kinds: pathlib.Path) -> None:
    tasks = Datasource(kinds, columns=["id"], batch_size=8).get_read_tasks(2)
    pq.write_table(pa.table({"id": pa.array(range(100), pa.int64())}), kinds)
    with pytest.raises(bowstring.MismatchError):
        list(tasks[1]())
    for name in ("rank", "gang", "tail"):
        with pytest.raises(bowstring.ConfigError, match=name):
            Datasource(kinds, **{name: 0})
    with pytest.raises(bowstring.ConfigError, match="option bad_rows: skip replaces a bad row by another one"):
        Datasource(kinds, bad_rows="skip")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BOWSTRING_BAD_ROWS", "skip")
        with pytest.raises(bowstring.ConfigError, match="option bad_rows"):
            Datasource(kinds)
    Datasource(kinds, bad_rows="zero")
    with pytest.raises(bowstring.ConfigError, match="option drop_last: Ray's read tasks"):
        Datasource(kinds, drop_last=True)
    # An iterator is read once, and both sides of the pickle have its addresses.
    source = pickle.loads(pickle.dumps(Datasource(iter([kinds]), columns=["id"], batch_size=8, drop_last=False)))  # type: ignore[arg-type]
    assert [len(source.get_read_tasks(2)) for _ in range(2)] == [2, 2]
