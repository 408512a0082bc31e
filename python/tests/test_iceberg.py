"""Tables of Iceberg: snapshots, branches and times as Python gives them; more is in tests/it/dataset/iceberg.rs."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import bowstring
import pyarrow.parquet as pq
import pytest
from bowstring import Loader

FIXTURES = pathlib.Path(__file__).parents[2] / "fixtures" / "iceberg"
ROOT = "/tmp/bowstring-iceberg-".ljust(128, "0")


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """The tables, copied to a place whose address is as long as the one in them."""
    base = f"{tmp_path.resolve()}/"
    root = pathlib.Path(base.ljust(len(ROOT), "x"))
    shutil.copytree(FIXTURES / "tables", root)
    for path in root.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(ROOT.encode(), str(root).encode()))
    return root


def ids(table: pathlib.Path, **options: Any) -> list[int]:
    with Loader(table, batch_size=3, shuffle=False, columns=["id"], **options) as loader:
        assert len(loader) == -(-loader.rows // 3)
        return sorted(int(value) for batch in loader for value in batch["id"])


def expected(table: str, label: str) -> list[int]:
    return sorted(pq.read_table(FIXTURES / "expected" / table / f"{label}.parquet")["id"].to_pylist())


def test_a_snapshot_or_a_name_chooses_the_rows(root: pathlib.Path) -> None:
    table = root / "db" / "refs"
    assert ids(table) == expected("refs", "latest")
    for ref in ("main", "side", "first"):
        assert ids(table, ref=ref) == expected("refs", f"ref-{ref}")
    (metadata,) = (table / "metadata").glob("v7*.json")
    assert ids(metadata, ref="first") == expected("refs", "ref-first")
    with pytest.raises(bowstring.NotFoundError, match="first, main, side"):
        Loader(table, batch_size=3, ref="frist")
    with pytest.raises(bowstring.ConfigError, match="ref") as caught:
        Loader(table, batch_size=3, ref="main", version=1)
    assert caught.value.option == "ref"


@pytest.mark.parametrize("table", ["positions", "vectors", "equality", "mapped", "old"])
def test_deleted_rows_are_neither_read_nor_counted(root: pathlib.Path, table: str) -> None:
    assert ids(root / "db" / table) == expected(table, "latest")


def test_a_state_goes_on_in_its_snapshot(root: pathlib.Path) -> None:
    table = root / "db" / "positions"
    cases = [path.stem for path in (FIXTURES / "expected" / "positions").glob("version-*")]
    version = int(min(cases, key=lambda case: len(expected("positions", case))).removeprefix("version-"))
    with Loader(table, batch_size=2, version=version, columns=["id"]) as loader:
        rows = loader.rows
        next(iter(loader))
        state = loader.state_dict()
    with Loader(table, batch_size=2, columns=["id"]) as later, pytest.raises(bowstring.MismatchError, match="version"):
        later.load_state_dict(state)
    with Loader(table, batch_size=2, version=version, columns=["id"]) as same:
        same.load_state_dict(state)
        assert sum(len(batch["id"]) for batch in same) == rows - 2


def test_a_table_is_converted_by_its_directory_or_its_metadata(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    table = root / "db" / "refs"
    (metadata,) = (table / "metadata").glob("v8*.json")
    for number, src in enumerate((table, metadata)):
        out = tmp_path / f"{number}.jsonl"
        bowstring.convert(src, out)
        rows = [json.loads(line) for path in sorted(out.glob("*.jsonl")) for line in path.read_text().splitlines()]
        assert sorted(row["id"] for row in rows) == expected("refs", "latest")
