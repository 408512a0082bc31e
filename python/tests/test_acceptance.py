"""The first ten minutes of a user, with the package of this checkout; the wheels' workflow runs the same with each wheel."""

from __future__ import annotations

import json
import pathlib
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, run_python

# Two dozen programs, four of which import torch, and a JVM.
pytestmark = pytest.mark.timeout(900)

pytest.importorskip("torch", reason="the user trains in PyTorch")
pytest.importorskip("PIL", reason="the user's pictures are made by Pillow")
pytest.importorskip("pyspark", reason="the user reads in Spark")


def test_the_ten_steps_of_a_new_user_work(tmp_path: pathlib.Path) -> None:
    done = run_python(str(ROOT / "scripts" / "acceptance.py"), cwd=tmp_path, timeout=890)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    steps = re.findall(r"^ ?(\d+) +[\d.]+  \S", done.stdout, re.MULTILINE)
    assert steps == [str(number) for number in range(1, 11)], done.stdout
    assert list(tmp_path.iterdir()) == [], "it leaves nothing"


def compare(*arguments: str, cwd: pathlib.Path) -> tuple[int, str, str]:
    done = run_python("-m", "bowstring", "bench", *arguments, "--against", "torch", cwd=cwd, timeout=800)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def rows(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with columns of every type that the comparison knows."""
    count = 500
    columns = {
        "id": pa.array(range(count)),
        "price": pa.array([number / 3 for number in range(count)], pa.float32()),
        "age": pa.array([None if number % 5 == 0 else number for number in range(count)], pa.int16()),
        "even": pa.array([number % 2 == 0 for number in range(count)]),
        "day": pa.array(range(count), pa.date32()),
        "time": pa.array(range(count), pa.timestamp("us")),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(range(4 * count), pa.float32()), 4),
        "country": pa.array([("de", "fr", "us")[number % 3] for number in range(count)]).dictionary_encode(),
        "text": pa.array([f"row {number}" for number in range(count)]),
        "tags": pa.array([[number] * (number % 3) for number in range(count)]),
    }
    (tmp_path / "rows").mkdir()
    for part in range(2):
        table = pa.table(columns).slice(part * 250, 250)
        pq.write_table(table, tmp_path / "rows" / f"part-{part}.parquet", row_group_size=100)
    return tmp_path / "rows"


def test_a_comparison_delivers_the_same_rows_and_its_table_as_json(rows: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shared = ["rows/", "--batch-size", "64", "--exclude", "tags", "--nulls", '{"age": -1}']
    code, said, wrong = compare(*shared, "--threads", "1", "--json", cwd=tmp_path)
    assert code == 0, wrong
    found = json.loads(said)
    assert (found["columns"], found["batch_size"], found["shuffled"], found["same_rows"]) == (9, 64, True, True)
    assert [loader["name"] for loader in found["loaders"]] == ["bowstring", "torch, 1 worker", "torch, no workers"]
    for loader in found["loaders"]:
        assert loader["rows"] == 500
        assert loader["rows_per_second"] > 0
        assert 0 < loader["seconds_to_first_batch"] <= loader["seconds"]


def test_a_comparison_says_what_it_cannot_compare(rows: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for arguments, wanted in (
        (
            ["rows/", "--pack", '[{"name": "x", "columns": ["id"], "dtype": "float32"}]'],
            "option pack: .* leave pack out",
        ),
        (["s3://bucket/rows"], "local files"),
        (["rows/", "--columns", "tags"], "--exclude tags"),
    ):
        code, said, wrong = compare(*arguments, cwd=tmp_path)
        assert (code, said) == (2, ""), wrong
        assert re.fullmatch(rf"error: .*{wanted}.*\n", wrong), wrong
