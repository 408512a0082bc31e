"""Reports of ``bowstring.plan`` for ranks that read together."""

from __future__ import annotations

import pathlib
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def test_ranks_read_once_or_get_advice(tmp_path: pathlib.Path) -> None:
    table = pa.table({"x": np.arange(16_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    found = bowstring.plan(tmp_path, batch_size=10, world_size=8, rate=1e6)
    assert found["asked"]["world_size"] == 8
    assert found["asked"]["times_read"] < 1.25
    assert found["asked"]["first_batch_seconds"] > 0
    assert not found["advice"]
    assert found["row_groups"] == found["units"] == 16
    assert [world["world_size"] for world in found["worlds"]] == [1, 8, 64, 256, 1024, 4096]
    often = bowstring.plan(tmp_path, batch_size=10, world_size=8, lanes=1)
    assert often["asked"]["times_read"] == 8
    assert often["asked"]["shared_row_groups"] == 16
    assert "lanes=8" in often["advice"][1]
    with pytest.raises(TypeError, match="batchsize"):
        bowstring.plan(tmp_path, batchsize=10)
    with pytest.raises(bowstring.ConfigError, match="batch_size"):
        bowstring.plan(tmp_path)


def test_a_loader_whose_ranks_share_row_groups_warns_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.table({"x": np.random.default_rng(0).random(1_500_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100_000, use_dictionary=False)

    def warnings(**options: int) -> list[str]:
        caplog.clear()
        bowstring.Loader(tmp_path, batch_size=512, world_size=8, **options)
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    (said,) = warnings(rank=0, lanes=1)
    assert "8 ranks read the data 8.0 times" in said
    assert "lanes=8" in said
    assert not warnings(rank=1, lanes=1)
    assert not warnings(rank=0, lanes=8)
    small = tmp_path / "small"
    small.mkdir()
    pq.write_table(table.slice(0, 100_000), small / "a.parquet", row_group_size=10_000)
    caplog.clear()
    bowstring.Loader(small, batch_size=512, rank=0, world_size=8, lanes=1)
    assert not caplog.records


def test_a_list_that_is_not_in_file_order_warns_without_shuffle(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in enumerate("ab"):
        pq.write_table(pa.table({"x": [number]}), tmp_path / f"{name}.parquet")

    def opened(names: str, **options: Any) -> tuple[list[int], list[str]]:
        caplog.clear()
        with bowstring.Loader([tmp_path / f"{name}.parquet" for name in names], batch_size=2, **options) as loader:
            rows = [int(x) for batch in loader for x in batch["x"]]
        return rows, [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    rows, (said,) = opened("ba", shuffle=False)
    assert rows == [0, 1]
    assert "files are read in the order of their names" in said
    assert opened("ab", shuffle=False) == ([0, 1], [])
    assert opened("ba")[1] == []
    assert opened("ba", shuffle=False, rank=1, world_size=2)[1] == []


def test_large_row_groups_with_a_page_index_are_read_in_units(tmp_path: pathlib.Path) -> None:
    table = pa.table({"x": np.random.default_rng(0).random(1 << 20)})
    for name, has_index in (("index", True), ("none", False)):
        (tmp_path / name).mkdir()
        pq.write_table(
            table,
            tmp_path / name / "a.parquet",
            row_group_size=1 << 20,
            use_dictionary=False,
            write_page_index=has_index,
        )
    cut, whole = (bowstring.plan(tmp_path / name, batch_size=64, world_size=4) for name in ("index", "none"))
    assert cut["row_groups"] == whole["row_groups"] == whole["units"] == 1
    assert cut["units"] == cut["asked"]["row_groups"] >= 4
    assert cut["asked"]["times_read"] < whole["asked"]["times_read"] == 4
    assert "page index" in " ".join(whole["advice"])
    assert "page index" not in " ".join(cut["advice"])
    earlier = bowstring.plan(tmp_path / "index", batch_size=64, world_size=4, order_version=2)
    assert earlier["units"] == 1
