"""What the adapters of frameworks know of a dataset whose options are a server's: the same as if they were their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pytest
from test_flight import Server

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 7


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with nulls, and rows without."""
    directory = tmp_path_factory.mktemp("rows")
    some = [None if row == 2 else row for row in range(ROWS)]
    names = pa.array([f"n{row}" for row in range(ROWS)])
    nullable = {"a": pa.array(some, pa.int32()), "b": pa.array(some, pa.float32()), "name": names}
    pq.write_table(pa.table(nullable), directory / "nulls.parquet")
    whole = {"c": pa.array(range(ROWS), pa.int32()), "d": pa.array(range(ROWS), pa.float32()), "name": names}
    pq.write_table(pa.table(whole), directory / "whole.parquet")
    return directory


@pytest.fixture(scope="module")
def served(data: Path) -> Iterator[Server]:
    catalogue = {
        "packed": ("nulls", 'nulls = "mask"\npack = [{ name = "p", columns = ["a", "b"] }]'),
        "lone": ("whole", 'pack = [{ name = "p", columns = ["c", "d"] }]'),
        "words": ("whole", 'arrow = ["na*"]'),
        "dropped": ("whole", 'tail = "drop"'),
        "fixed": (
            "whole",
            'tail = "drop"\nlimits = { allow_options = ["batch_size", "global_batch_size", "columns"] }',
        ),
        "plain": ("whole", ""),
        "skipping": ("nulls", 'bad_rows = "skip"'),
        "skipping_fixed": (
            "nulls",
            'bad_rows = "skip"\nlimits = { allow_options = ["batch_size", "tail", "lanes", "columns"] }',
        ),
        "windows": (
            "whole",
            'ngram = { fields = { "0" = ["c"], "1" = ["d"] }, timestamp_field = "c", delta_threshold = 1 }',
        ),
    }
    tables = [
        f'[datasets.{name}]\nurl = "{data}/{file}.parquet"\nshuffle = false\n{options}\n'
        for name, (file, options) in catalogue.items()
    ]
    (data / "serve.toml").write_text("".join(tables))
    server = Server("--config", str(data / "serve.toml"))
    yield server
    server.stop()


def test_a_pack_of_a_catalogue_reaches_tensorflow_as_one_of_a_loader(served: Server, data: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    from bowstring.tensorflow import dataset

    for name, file, columns, nulls in (
        ("packed", "nulls", ["a", "b"], "mask"),
        ("lone", "whole", ["c", "d"], "error"),
    ):
        options: dict[str, Any] = {"shuffle": False, "nulls": nulls, "pack": {"p": columns}}
        local = dataset(data / f"{file}.parquet", batch_size=3, targets="name", **options)
        remote = dataset(served.url(name), batch_size=3, targets="name")
        assert remote.element_spec == local.element_spec, name
        batches = 0
        for ours, theirs in zip(local, remote, strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, ours, theirs)
            batches += 1
        assert batches == 3
        # A model takes the matrix itself.
        assert isinstance(remote.element_spec[0], tf.TensorSpec) == (name == "lone")


def test_text_that_a_catalogue_leaves_to_arrow_stays_an_arrow_array(served: Server) -> None:
    def name_of(dataset: str) -> object:
        with bowstring.Loader(served.url(dataset), batch_size=3, columns=["name"]) as loader:
            return next(iter(loader))["name"]

    kept, plain = name_of("words"), name_of("plain")
    assert isinstance(kept, pa.Array)
    assert kept.to_pylist() == ["n0", "n1", "n2"]
    assert isinstance(plain, np.ndarray)
    assert plain.tolist() == ["n0", "n1", "n2"]


def test_jax_pads_unless_the_catalogue_names_a_tail(served: Server) -> None:
    pytest.importorskip("jax")
    from bowstring.jax import Loader

    for name, tail, steps in (("dropped", "drop", 2), ("fixed", "drop", 2), ("plain", "pad", 3)):
        with Loader(served.url(name), batch_size=3, columns=["c"]) as loader:
            assert (loader.state_dict()["spec"]["tail"], len(loader)) == (tail, steps), name
            assert ("_mask" in next(iter(loader))) == (tail == "pad")
    with Loader(served.url("dropped"), batch_size=3, columns=["c"], tail="short") as loader:
        assert len(loader) == 3
    with pytest.raises(bowstring.ConfigError, match=r"does not let clients set .*tail"):
        Loader(served.url("fixed"), batch_size=3, columns=["c"], tail="short")


def test_rays_tasks_refuse_what_a_catalogue_makes_of_rows(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.data")
    from bowstring.ray import Datasource

    def rows(name: str, **options: Any) -> list[str]:
        tasks = Datasource(served.url(name), batch_size=3, **options).get_read_tasks(2)
        return sorted(row for task in tasks for block in task() for row in block["name"].to_pylist())

    whole = [f"n{row}" for row in range(ROWS)]
    assert rows("plain") == whole
    # Else another row would come twice in place of the bad one.
    with pytest.raises(bowstring.NullsError):
        rows("skipping")
    assert rows("skipping", bad_rows="zero") == whole
    with pytest.raises(bowstring.ConfigError, match="bad_rows"):
        rows("skipping_fixed")
    with pytest.raises(bowstring.ConfigError, match=r"option ngram: .* windows of rows"):
        rows("windows")
    # A worker's environment is not the driver's.
    tasks = Datasource(served.url("plain"), batch_size=3).get_read_tasks(2)
    ngram = {"fields": {"0": ["c"], "1": ["d"]}, "timestamp_field": "c", "delta_threshold": 1}
    monkeypatch.setenv("BOWSTRING_NGRAM", json.dumps(ngram))
    with pytest.raises(bowstring.ConfigError, match=r"option ngram: .* windows of rows"):
        list(tasks[1]())
