"""Lists of files: Petastorm's order and numbering of row groups, and a file listed twice."""

from __future__ import annotations

import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.errors import ConfigError
from bowstring.petastorm import make_batch_reader
from bowstring.petastorm._files import positions
from bowstring.petastorm.predicates import in_lambda


def write(directory: pathlib.Path, *names: str) -> dict[str, str]:
    """Writes files of two row groups of one row; the id is 10 times the file's number, plus the row group's."""
    urls = {}
    for at, name in enumerate(names):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [10 * at, 10 * at + 1]}), path, row_group_size=1)
        urls[name] = f"file://{path}"
    return urls


def ids(urls: Any, **options: Any) -> list[int]:
    with make_batch_reader(urls, ["id"], **{"shuffle_row_groups": False, **options}) as reader:
        return [int(row) for batch in reader for row in batch.id]


@pytest.mark.parametrize("order", [("0", "10", "110"), ("110", "10", "0"), ("10", "0", "110"), ("0", "110", "10")])
def test_names_that_end_in_one_another(order: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    urls = write(tmp_path, "0", "10", "110")
    assert ids([urls[name] for name in order]) == [
        10 * ["0", "10", "110"].index(name) + group for name in order for group in (0, 1)
    ]


def test_directories_that_repeat_their_own_name(tmp_path: pathlib.Path) -> None:
    urls = write(tmp_path, "a.parquet", "x/a.parquet", "x/x/a.parquet")
    order = ["x/x/a.parquet", "a.parquet", "x/a.parquet"]
    assert ids([urls[name] for name in order]) == [20, 21, 0, 1, 10, 11]
    assert ids([urls[name] for name in order[:1] + order[2:]]) == [20, 21, 10, 11]


def test_a_file_that_is_listed_twice_is_read_twice(tmp_path: pathlib.Path) -> None:
    urls = write(tmp_path, "a.parquet", "b.parquet")
    a, b = urls.values()
    assert ids([b, a, b]) == [10, 11, 0, 1, 10, 11]
    assert ids([a, a]) == [0, 1, 0, 1]
    assert ids([a, a.replace("a.parquet", "../" + tmp_path.name + "/a.parquet")]) == [0, 1, 0, 1]
    assert ids([a, a], num_epochs=2) == [0, 1] * 4
    assert sorted(ids([b, a, b], shuffle_row_groups=True, seed=5)) == [0, 1, 10, 10, 11, 11]
    predicate = in_lambda(["id"], lambda column: column % 2 == 1)
    pytest.importorskip("pandas")
    assert ids([b, a, b], predicate=predicate) == [11, 1, 11]


def test_shards_are_dealt_by_number_in_the_list(tmp_path: pathlib.Path) -> None:
    a, b, c = write(tmp_path, "a.parquet", "b.parquet", "c.parquet").values()
    # Row groups 0 to 7 of the list, distributed by number modulo 3.
    shards = [ids([c, a, c, b], cur_shard=at, shard_count=3) for at in range(3)]
    assert shards == [[20, 1, 10], [21, 20, 11], [0, 21]]


def test_through_a_link(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "there", "a.parquet", "b.parquet")
    (tmp_path / "here").symlink_to(tmp_path / "there")
    assert ids([f"file://{tmp_path}/here/b.parquet", f"file://{tmp_path}/there/a.parquet"]) == [10, 11, 0, 1]


def test_names_with_signs_of_urls(tmp_path: pathlib.Path) -> None:
    urls = write(tmp_path, "a b.parquet", "a%20b.parquet", "ä#1.parquet")
    order = ["ä#1.parquet", "a%20b.parquet", "a b.parquet"]
    assert ids([f"file://{tmp_path}/{name}" for name in order[1:]]) == [10, 11, 0, 1]
    assert set(urls) == set(order)


def test_directories_of_a_list(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "x/a.parquet", "x/b.parquet", "y/a.parquet")
    assert ids([f"file://{tmp_path}/y", f"file://{tmp_path}/x"]) == [20, 21, 0, 1, 10, 11]


def test_in_a_store() -> None:
    groups = [("0", 0, 5), ("1 0", 0, 5), ("1 0", 1, 5), ("x/0", 0, 5)]
    assert positions(["s3://b/d/x/0", "s3://b/d/1%200", "s3://b/d/0", "s3://b/d/1%200"], groups) == [3, 1, 2, 0, 1, 2]
    assert positions(["s3://b/d/x", "s3://b/d/y"], [("x/0.parquet", 0, 5), ("y/0.parquet", 0, 5)]) == [0, 1]


def test_a_pattern_in_a_list_is_refused(tmp_path: pathlib.Path) -> None:
    urls = list(write(tmp_path, "a.parquet", "b.parquet").values())
    with pytest.raises(ConfigError, match=r"a list names files|found twice"):
        ids([urls[0], f"file://{tmp_path}/*.parquet"])
