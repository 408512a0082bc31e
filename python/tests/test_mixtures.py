"""Mixtures of datasets whose columns look alike after a cast or in a pack, and mean other things."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring import Pack


def mixed(directory: pathlib.Path, one: pa.Table, two: pa.Table, **options: Any) -> dict[str, list[Any]]:
    """Returns the first batch of a mixture of both tables."""
    for name, table in (("one", one), ("two", two)):
        (directory / name).mkdir()
        pq.write_table(table, directory / name / "0.parquet")
    urls = [str(directory / "one"), str(directory / "two")]
    with bowstring.Loader(urls, batch_size=9, shuffle=False, weights=[1, 1], stop="all_exhausted", **options) as loader:
        return {name: column.tolist() for name, column in next(iter(loader)).items()}


def labels(*names: str) -> pa.Table:
    feature = {"y": {"names": names, "_type": "ClassLabel"}}
    return pa.table({"y": [0, 1]}).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": feature}})})


AGE_FIRST = pa.table({"age": [30], "amount": [1000]})
AMOUNT_FIRST = pa.table({"amount": [1000], "age": [30]})
SECONDS = pa.table({"d": pa.array([1], pa.duration("s"))})
MILLISECONDS = pa.table({"d": pa.array([1000], pa.duration("ms"))})


@pytest.mark.parametrize(
    ("one", "two", "options", "message"),
    [
        (AGE_FIRST, AMOUNT_FIRST, {"pack": {"p": ["a*"]}}, r'columns of "p" .*expected age, amount, found amount, age'),
        (pa.table({"i1": [1]}), pa.table({"i7": [7]}), {"pack": {"p": ["i*"]}}, r"expected i1, found i7"),
        (SECONDS, MILLISECONDS, {"pack": {"p": Pack(["d"], "float64")}}, r'unit of column "d" .*expected s, found ms'),
        (SECONDS, MILLISECONDS, {"cast": {"d": "float64"}}, r'unit of column "d" .*expected s, found ms'),
        (labels("cat", "dog"), labels("dog", "cat"), {"pack": {"p": ["y"]}}, r'class names of column "y"'),
        (labels("cat", "dog"), labels("dog", "cat"), {"cast": {"y": "float32"}}, r'class names of column "y"'),
    ],
    ids=["order", "names", "unit in a pack", "unit in a cast", "classes in a pack", "classes in a cast"],
)
def test_columns_that_mean_other_things_are_refused(
    tmp_path: pathlib.Path, one: pa.Table, two: pa.Table, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(bowstring.MismatchError, match=message):
        mixed(tmp_path, one, two, **options)


def test_a_pack_that_names_its_columns_takes_them_in_its_order(tmp_path: pathlib.Path) -> None:
    assert mixed(tmp_path, AGE_FIRST, AMOUNT_FIRST, pack={"p": ["age", "amount"]})["p"] == [[30, 1000], [30, 1000]]


@pytest.mark.parametrize(
    ("feature", "array"),
    [
        (lambda label: {"feature": label, "_type": "Sequence"}, pa.array([[0], [1]])),
        (lambda label: [label], pa.array([[0], [1]])),
        (lambda label: {"a": label}, pa.array([{"a": 0}, {"a": 1}])),
    ],
    ids=["sequence", "list", "struct"],
)
def test_labels_in_lists_and_structs_have_their_names(tmp_path: pathlib.Path, feature: Any, array: pa.Array) -> None:
    for number, names in enumerate((["cat", "dog"], ["dog", "cat"])):
        features = {"x": feature({"names": names, "_type": "ClassLabel"})}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        pq.write_table(pa.table({"x": array}).replace_schema_metadata(metadata), tmp_path / f"{number}.parquet")
    with bowstring.Loader(tmp_path / "0.parquet", batch_size=2) as loader:
        assert list(loader.classes.values()) == [["cat", "dog"]]
    with pytest.raises(bowstring.MismatchError, match=r"class names of column"):
        bowstring.Loader(tmp_path, batch_size=2)
