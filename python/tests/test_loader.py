"""`bowstring.Loader`: values, order, positions, options, errors."""

from __future__ import annotations

import html
import inspect
import json
import logging
import pathlib
import re
import shutil
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring import Fill, Image, Loader, Pack, Padded, ranks
from bowstring.base import BaseLoader
from bowstring.options import document, size
from bowstring.stats import Stats
from conftest import EVERY_KIND, needs_pyarrow


def ids(loader: Loader) -> list[list[int]]:
    """Returns the ids of each step, without padding."""
    return [[int(i) for i in batch["id"][batch.get("_mask", slice(None))]] for batch in loader]


def flat(steps: list[list[int]]) -> list[int]:
    return [row for step in steps for row in step]


def test_values_are_those_of_pyarrow(numbers: pathlib.Path) -> None:
    expected = pq.read_table(numbers)
    with Loader(numbers, batch_size=8, shuffle=False, tail="drop", columns=["id", "x", "name", "tags"]) as loader:
        assert (len(loader), loader.rows) == (12, 96), "tail=drop leaves four rows out"
        for step, batch in enumerate(loader):
            rows = expected.slice(step * 8, 8)
            assert isinstance(batch["id"], np.ndarray)
            np.testing.assert_array_equal(batch["id"], rows["id"].to_numpy())
            np.testing.assert_array_equal(batch["x"], rows["x"].to_numpy())
            assert batch["x"].dtype == np.float32
            assert isinstance(batch["name"], np.ndarray)
            assert batch["name"].tolist() == rows["name"].to_pylist()
            lists = np.split(batch["tags__values"], batch["tags__offsets"][1:-1])
            assert [list(one) for one in lists] == rows["tags"].to_pylist()


@needs_pyarrow(15, "writing float16")
def test_every_plain_type(tmp_path: pathlib.Path) -> None:
    kinds = [
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "float32",
        "float64",
    ]
    source = {kind: (np.arange(10) % 2 if kind == "bool" else np.arange(10)).astype(kind) for kind in kinds}
    pq.write_table(pa.table({kind: pa.array(values) for kind, values in source.items()}), tmp_path / "types.parquet")
    with Loader(tmp_path / "types.parquet", batch_size=10, shuffle=False) as loader:
        (batch,) = loader
    for kind in kinds:
        assert batch[kind].dtype.name == kind
        assert batch[kind].ctypes.data % 64 == 0
        np.testing.assert_array_equal(batch[kind], source[kind])
    with Loader(tmp_path / "types.parquet", batch_size=10, columns="float32", cast={"float32": "bfloat16"}) as loader:
        (batch,) = loader
    assert isinstance(batch["float32"], bowstring.Tensor), "NumPy has no bfloat16"
    assert batch["float32"].dtype == "bfloat16"


def test_a_state_resumes_in_its_version_of_the_order(numbers: pathlib.Path) -> None:
    orders = []
    for version in (1, 2, 3):
        with Loader(numbers, batch_size=8, seed=3, order_version=version) as loader:
            order = ids(loader)
        with Loader(numbers, batch_size=8, seed=3, order_version=version) as loader:
            next(iter(loader))
            state = loader.state_dict()
        assert (state["version"], state["spec"].get("order_version", 1)) == (min(version, 2), version)
        with Loader(numbers, batch_size=8, seed=3) as loader:
            assert loader.state_dict()["spec"]["order_version"] == 3
            loader.load_state_dict(state)
            assert ids(loader) == order[1:]
        orders.append(order)
        other = Loader(numbers, batch_size=8, seed=3, order_version=1 + version % 3)
        with other, pytest.raises(bowstring.MismatchError, match="order_version"):
            other.load_state_dict(state)
    assert orders[0] != orders[1]
    with pytest.raises(bowstring.ConfigError, match="4 is not a whole number from 1 to 3"):
        Loader(numbers, batch_size=8, order_version=4)


def test_the_labels_of_the_photos(photos: pathlib.Path) -> None:
    expected = pq.read_table(photos, columns=["label", "path"])
    with Loader(photos, batch_size=8, shuffle=False, images={"image": Image(32, crop="center")}) as loader:
        batches = list(loader)
    assert [label for batch in batches for label in batch["label"]] == expected["label"].to_pylist()
    assert [path for batch in batches for path in batch["path"]] == expected["path"].to_pylist()
    assert {(batch["image"].shape, batch["image"].dtype.name) for batch in batches} == {((8, 3, 32, 32), "uint8")}


def test_shuffled_each_row_once_in_one_order(numbers: pathlib.Path) -> None:
    options: dict[str, Any] = {"batch_size": 9, "columns": ["id"], "seed": 3}
    with Loader(numbers, **options) as loader:
        epochs = [ids(loader), ids(loader)]
    for epoch in epochs:
        assert sorted(flat(epoch)) == list(range(100))
        assert len(epoch) == 12
    assert epochs[0] != epochs[1]
    with Loader(numbers, **options, threads=1, prefetch=1) as again:
        assert ids(again) == epochs[0]
        assert again.epoch == 1
        again.set_epoch(0)
        assert ids(again) == epochs[0]
        assert ids(again) == epochs[1]
    with Loader(numbers, **{**options, "seed": 4}) as other:
        assert ids(other) != epochs[0]


def test_the_tail(numbers: pathlib.Path) -> None:
    with Loader(numbers, batch_size=32, shuffle=False, columns=["id"], tail="pad") as loader:
        last = list(loader)[-1]
    assert len(last["id"]) == 32
    assert last["_mask"].dtype == np.bool_
    assert last["_mask"].sum() == 4
    with Loader(numbers, batch_size=32, shuffle=False, columns=["id"]) as loader:
        assert (len(loader), loader.drop_last) == (4, False)
        assert [batch["id"].tolist() for batch in loader][3:] == [[96, 97, 98, 99]]
        assert loader.state_dict()["spec"]["tail"] == "short"
    with Loader(numbers, batch_size=32, shuffle=False, columns=["id"], tail="even") as loader:
        assert [len(batch["id"]) for batch in loader] == [32, 32, 18, 18]
    with Loader(numbers, batch_size=32, shuffle=False, columns=["id"], tail="drop") as loader:
        assert len(loader) == len(list(loader)) == 3
    with Loader(numbers, batch_size=32, shuffle=False, columns=["id"], tail="repeat") as loader:
        assert [int(i) for i in list(loader)[-1]["id"][4:7]] == [0, 1, 2]


def test_a_loop_left_early(numbers: pathlib.Path) -> None:
    def starts(batches: Any) -> list[int]:
        return [int(batch["id"][0]) for batch in batches]

    with Loader(numbers, batch_size=10, shuffle=False, columns=["id"]) as loader:
        batches = iter(loader)
        assert starts(batch for _, batch in zip(range(4), batches, strict=False)) == [0, 10, 20, 30]
        assert (loader.epoch, loader.step) == (0, 4)
        state = loader.state_dict()
        assert starts(batches) == list(range(40, 100, 10)), "the iterator goes on"
        loader.load_state_dict(state)
        assert starts(loader) == list(range(40, 100, 10)), "and so does the state"
        for _ in loader:
            break
        assert (loader.epoch, loader.step) == (1, 1)
        assert starts(loader) == list(range(0, 100, 10)), "the loader begins anew"
        assert (loader.epoch, loader.step) == (3, 0)
        next(iter(loader))
        loader.set_epoch(3)
        assert (loader.epoch, loader.step) == (3, 0)
        loader.set_epoch(5)
        assert (loader.epoch, loader.step) == (5, 0)


def test_resume_on_another_number_of_ranks(numbers: pathlib.Path) -> None:
    options: dict[str, Any] = {"global_batch_size": 12, "columns": ["id"], "seed": 11, "tail": "pad"}

    def ranks(world: int) -> list[Loader]:
        return [Loader(numbers, **options, rank=rank, world_size=world) for rank in range(world)]

    def together(loaders: list[Loader], steps: int | None = None) -> list[list[int]]:
        iterators = [iter(loader) for loader in loaders]
        found = []
        while len(found) != steps:
            parts = [next(iterator, None) for iterator in iterators]
            if None in parts:
                assert parts == [None] * len(parts), "equal steps"
                break
            found.append(sorted(int(i) for part in parts for i in part["id"][part.get("_mask", slice(None))]))
        return found

    expected = together(ranks(1))
    assert sorted(flat(expected)) == list(range(100))
    four, three = ranks(4), ranks(3)
    found = together(four, 2)
    state = four[2].state_dict()
    assert state == four[0].state_dict()
    assert len(json.dumps(state)) <= 4096
    for loader in three:
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert loader.step == 2
    found += together(three, 3)
    (one,) = ranks(1)
    one.load_state_dict(three[1].state_dict())
    found += together([one])
    assert found == expected
    with pytest.raises(bowstring.MismatchError, match="seed"):
        Loader(numbers, **{**options, "seed": 12}).load_state_dict(state)
    with pytest.raises(bowstring.ConfigError, match="not a state"):
        one.load_state_dict({"epoch": 1})


def test_columns_and_their_conversions(numbers: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with Loader(
        numbers,
        batch_size=10,
        shuffle=False,
        lists=Padded(2, fill=-1, truncate="right"),
        pack={"both": ["id", "x"]},
        exclude=["name"],
        row_id=True,
    ) as loader:
        batch = next(iter(loader))
    assert batch.keys() == {"tags", "tags__lengths", "both", "_row_id"}
    np.testing.assert_array_equal(batch["tags"][:4], [[-1, -1], [0, -1], [0, 1], [0, 1]])
    np.testing.assert_array_equal(batch["both"][3], [3, 1.5])
    assert batch["both"].dtype == np.float32
    np.testing.assert_array_equal(batch["_row_id"], np.arange(10))
    with Loader(numbers, batch_size=10, columns="half", pack={"half": Pack(["x"], "float16")}) as loader:
        batch = next(iter(loader))
    assert (batch["half"].shape, batch["half"].dtype) == ((10, 1), np.float16)
    pq.write_table(pa.table({"a": [1, None], "b": [None, 2.0]}), tmp_path / "nulls.parquet")
    with Loader(tmp_path / "nulls.parquet", batch_size=2, shuffle=False, nulls={"a": Fill(-7), "b": "mask"}) as loader:
        (batch,) = loader
    assert list(batch["a"]) == [1, -7]
    assert list(batch["b__valid"]) == [False, True]


@pytest.mark.parametrize(
    "filter", ["id >= 90 or name = 'row 3'", [[("id", ">=", np.int64(90))], [("name", "in", {"row 3"})]]]
)
def test_filters(numbers: pathlib.Path, filter: Any) -> None:
    with Loader(numbers, batch_size=4, filter=filter, columns=["id"]) as loader:
        assert loader.rows == 11
        assert sorted(flat(ids(loader))) == [3, *range(90, 100)]


@pytest.mark.parametrize("filter", ['"" >= 2', [("", ">=", 2)]])
def test_a_column_without_a_name_is_filtered(filter: Any, tmp_path: pathlib.Path) -> None:
    pq.write_table(pa.table({"": [1, 2, 3], "id": [4, 5, 6]}), tmp_path / "x.parquet")
    loader = Loader(tmp_path / "x.parquet", batch_size=2, shuffle=False, columns=["id"], filter=filter)
    assert ids(loader) == [[5, 6]]


def test_several_files_and_mixtures(numbers: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other.parquet"
    shutil.copy(numbers, other)
    with Loader([numbers, str(other)], batch_size=10, columns=["id"]) as loader:
        assert loader.rows == 200
    with Loader([numbers, other], batch_size=10, columns=["id"], weights=[3, 1]) as loader:
        assert 100 < loader.rows < 200


def test_options_from_the_environment(numbers: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "BATCH_SIZE": "7",
        "SHUFFLE": "false",
        "COLUMNS": "id, x",
        "MEMORY_BUDGET": "64MiB",
        "STORAGE_OPTIONS": "timeout=3s",
    }.items():
        monkeypatch.setenv(f"BOWSTRING_{name}", value)
    with Loader(numbers) as loader:
        batch = next(iter(loader))
        assert list(batch["id"]) == list(range(7))
        assert batch.keys() >= {"id", "x"}
        assert "name" not in batch
        assert loader.stats()["memory"]["budget"] == 64 << 20
    with Loader(numbers, global_batch_size=11, columns=["name"]) as loader:
        assert len(next(iter(loader))["name"]) == 11, "a keyword goes before the environment"
    monkeypatch.setenv("BOWSTRING_SHUFFLE", "perhaps")
    with pytest.raises(bowstring.ConfigError, match='BOWSTRING_SHUFFLE: "perhaps" is not true or false') as caught:
        Loader(numbers)
    assert caught.value.option == "shuffle"


def test_columns_and_row_id_from_the_environment(photos: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOWSTRING_COLUMNS", "label")
    monkeypatch.setenv("BOWSTRING_ROW_ID", "true")
    with Loader(photos, batch_size=8, shuffle=False, tail="drop") as loader:
        batch = next(iter(loader))
    assert batch.keys() == {"label", "_row_id"}
    np.testing.assert_array_equal(batch["_row_id"], np.arange(8))
    with Loader(photos, batch_size=8, tail="drop", row_id=False) as loader:
        assert next(iter(loader)).keys() == {"label"}, "a keyword goes before the environment"


def test_every_option_is_looked_up_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: dict[str, tuple[str, Any]] = {
        "columns": ("a,b*", ["a", "b*"]),
        "exclude": ("c, d", ["c", "d"]),
        "nulls": ('{"a": {"fill": -1}, "*": "mask"}', {"a": {"fill": -1}, "*": "mask"}),
        "lists": ("ragged", "ragged"),
        "pack": ('[{"name": "m", "columns": ["a"]}]', [{"name": "m", "columns": ["a"]}]),
        "images": ('{"i": {"size": 8}}', {"i": {"size": 8}}),
        "cast": ('{"a": "float32"}', {"a": "float32"}),
        "arrow": ("price, day", ["price", "day"]),
        "row_id": ("1", True),
        "mask": ("yes", True),
        "decode": ("false", False),
        "order_version": ("3", 3),
        "selector": ('{"row_groups": [1]}', {"row_groups": [1]}),
        "ngram": ('{"fields": {"0": ["a"]}}', {"fields": {"0": ["a"]}}),
        "filter": ("a >= 3", "a >= 3"),
        "shuffle": ("False", False),
        "weights": ("3, 1.5", [3, 1.5]),
        "memory_budget": ("1.5GiB", 3 << 29),
        "cache": ("/nvme/cache", "/nvme/cache"),
        "cache_bytes": ("2GB", 2_000_000_000),
        "cache_peers": ("node-1:8816, dns://nodes:8816", ["node-1:8816", "dns://nodes:8816"]),
        "cache_peer_options": ("token_file=/etc/token", {"token_file": "/etc/token"}),
        "timeout": ("2.5", 2.5),
        "storage_options": ("a=b,c=d=e", {"a": "b", "c": "d=e"}),
        "tail": ("drop", "drop"),
        "bad_rows": ("skip", "skip"),
        "partitioning": ("none", "none"),
        "timestamp": ("2026-01-31", "2026-01-31"),
        "ref": ("main", "main"),
        "stop": ("all_exhausted", "all_exhausted"),
        "limits": ('{"max_depth": 3}', {"max_depth": 3}),
        "device": ("cuda:1", "cuda:1"),
        "device_fence": ("sync", "sync"),
        "device_overflow": ("true", True),
        "index": ("s3://bucket/some.index", "s3://bucket/some.index"),
        "mounts": ("/etc/mounts.toml", "/etc/mounts.toml"),
    }
    others = ("url", "gang", "drop_last", "unknown", "credential_provider", "filesystem")
    names = [name for name in inspect.signature(BaseLoader).parameters if name not in others]
    texts |= {name: ("5", 5) for name in names if name not in texts}
    for name, (text, _) in texts.items():
        monkeypatch.setenv(f"BOWSTRING_{name.upper()}", text)
    found = json.loads(document("u", dict.fromkeys(names)))
    assert found.pop("urls") == ["u"]
    assert {**found, **found["columns"]} == {name: value for name, (_, value) in texts.items()}
    for name, text in {"nulls": "{", "images": "{large", "row_id": "perhaps", "cast": ""}.items():
        monkeypatch.setenv(f"BOWSTRING_{name.upper()}", text)
        with pytest.raises(bowstring.ConfigError, match=f"option {name}: BOWSTRING_{name.upper()}: "):
            document("u", {name: None})


@pytest.mark.parametrize(
    "version", ["_internal.session.get_session", "v2._internal.execution.context.get_train_context"]
)
def test_the_only_worker_of_ray_train_is_no_rank_of_a_launcher(
    numbers: pathlib.Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    # As `srun -n 4` of a program that starts Ray, and a trainer of one worker.
    for name, value in {"PROCID": "1", "NTASKS": "4", "STEP_ID": "0", "STEP_NUM_TASKS": "4"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    train, internal = types.ModuleType("ray.train"), types.ModuleType("internal")
    context = types.SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    monkeypatch.setattr(train, "get_context", lambda: context, raising=False)
    monkeypatch.setitem(sys.modules, "ray.train", train)
    with Loader(numbers, batch_size=5) as loader:
        # Its driver, which version 1 of Ray Train tells the same.
        assert (loader.rank, loader.world_size) == (1, 4)
    module, _, name = version.rpartition(".")
    monkeypatch.setattr(internal, name, lambda: context, raising=False)
    monkeypatch.setitem(sys.modules, f"ray.train.{module}", internal)
    with Loader(numbers, batch_size=5) as loader:
        assert (loader.rank, loader.world_size, loader.rows) == (0, 1, 100)


def test_rank_and_world_size_from_the_environment(numbers: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    # The shell of a batch script has the number of the job's tasks too, and is one process.
    monkeypatch.setenv("SLURM_NTASKS", "8")
    with pytest.raises(bowstring.ConfigError, match=r"SLURM_NTASKS=8 .* srun"):
        Loader(numbers, batch_size=5)
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with Loader(numbers, batch_size=5) as loader:
        assert (loader.rank, loader.world_size, len(loader)) == (3, 4, 5)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert bowstring.doctor()["rank"] == {"rank": 1, "world_size": 2, "why": "torchrun (RANK=1, WORLD_SIZE=2)"}
    with Loader(numbers, batch_size=5) as loader:
        assert (loader.rank, loader.world_size, len(loader)) == (1, 2, 10)
    with Loader(numbers, batch_size=5, rank=0, world_size=1) as loader:
        assert len(loader) == 20
    with monkeypatch.context() as own:
        own.setenv("BOWSTRING_RANK", "2")
        own.setenv("BOWSTRING_WORLD_SIZE", "3")
        assert (bowstring.doctor()["rank"]["rank"], bowstring.doctor()["rank"]["world_size"]) == (2, 3)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(bowstring.ConfigError, match="WORLD_SIZE is not"):
        Loader(numbers, batch_size=5)
    assert "WORLD_SIZE" in bowstring.doctor()["rank_problem"]


def test_a_loader_is_not_opened_before_its_process_is_one_of_several(
    numbers: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before ``init_process_group``: it would read all rows in each process."""
    untold, told = Loader(numbers, batch_size=5), Loader(numbers, batch_size=5, rank=0, world_size=1)
    monkeypatch.setattr(ranks, "_torch", lambda: (1, 2))
    into = {"id": np.zeros(5, np.int64)}
    begins: list[Callable[[], object]] = [lambda: next(iter(untold)), lambda: next(untold.batches())]
    for begin in (*begins, lambda: untold.next_into(into), lambda: next(untold.into(into))):
        with pytest.raises(bowstring.ConfigError, match="before the process became rank 1 of 2") as error:
            begin()
        assert error.value.option == "rank"
    assert len(list(told)) == 20
    monkeypatch.setattr(ranks, "_torch", lambda: (0, 1))
    assert len(list(untold)) == 20


@pytest.mark.parametrize("origin", ["group", "launcher"])
def test_a_loader_does_not_keep_the_share_of_a_rank_that_its_process_is_no_more(
    numbers: pathlib.Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    """As after ``destroy_process_group`` and another ``init_process_group``: it would leave out the rows of other ranks."""
    if origin == "group":
        monkeypatch.setattr(ranks, "_torch", lambda: (0, 2))
    else:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
    loader, told = Loader(numbers, batch_size=5), Loader(numbers, batch_size=5, rank=0, world_size=2)
    assert len(list(loader)) == 10
    state = loader.state_dict()
    monkeypatch.setattr(ranks, "_torch", lambda: None)
    assert len(list(loader)) == 10, "a process may leave its group first"
    monkeypatch.setattr(ranks, "_torch", lambda: (0, 1))
    for begin in (lambda: iter(loader), lambda: loader.load_state_dict(state)):
        with pytest.raises(
            bowstring.ConfigError, match=r"rank 0 of 1, and reads the rows of rank 0 of 2; open it again"
        ):
            begin()
    assert len(list(told)) == 10
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with Loader(numbers, batch_size=10) as other:
        other.load_state_dict(state)
        assert (other.epoch, other.world_size, len(list(other))) == (1, 1, 10)


def test_sizes_and_plain_values() -> None:
    for text, expected in {
        "0": 0,
        "1KiB": 1024,
        "1.5 GiB": 3 << 29,
        "2MB": 2_000_000,
        "4g": 4 << 30,
        "12 B": 12,
    }.items():
        assert size(text) == expected
    for wrong in ("", "x", "-1", "1QB", "1e9"):
        with pytest.raises(bowstring.ConfigError):
            size(wrong)
    options = json.loads(
        document("a", {"nulls": {"x": Fill(float("nan"))}, "columns": "c", "seed": None, "timeout": 2})
    )
    assert options == {"urls": ["a"], "timeout": 2, "columns": {"nulls": {"x": {"fill": "nan"}}, "columns": ["c"]}}
    with pytest.raises(bowstring.ConfigError, match=r"option filter: .* is a complex, which no option holds"):
        document("a", {"filter": [("x", "=", 1j)]})


def test_errors_are_named_for_what_to_do_next(numbers: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(bowstring.NotFoundError, match="missing"):
        Loader(tmp_path / "missing.parquet", batch_size=1)
    with pytest.raises(FileNotFoundError):
        Loader(tmp_path / "missing.parquet", batch_size=1)
    with pytest.raises(bowstring.NotFoundError, match="idd"):
        Loader(numbers, batch_size=1, columns=["idd"])
    with pytest.raises(bowstring.ConfigError) as config:
        Loader(numbers)
    assert config.value.option == "batch_size"
    assert isinstance(config.value, ValueError)
    with pytest.raises(bowstring.LimitError) as limit:
        Loader(numbers, batch_size=10, memory_budget=1)
    assert limit.value.option == "memory_budget"
    with pytest.raises(TypeError, match="batchsize"):
        Loader(numbers, batchsize=1)  # type: ignore[call-arg]


def bad_photos(photos: pathlib.Path, path: pathlib.Path) -> None:
    """The photos, with row 2 of row group 1 damaged."""
    table = pq.read_table(photos).slice(0, 16)
    images = table["image"].to_pylist()
    images[10] = b"no image"
    pq.write_table(table.set_column(0, "image", pa.array(images)), path, row_group_size=8)


def test_a_bad_row_is_an_error_with_its_place_or_an_entry(
    photos: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "bad.parquet"
    bad_photos(photos, path)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": False, "images": {"image": Image(16, crop="center")}}
    loader = Loader(path, **options)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(bowstring.CorruptError) as caught:
        next(iterator)
    error = caught.value
    assert (error.row_group, error.column, error.row) == (1, "image", 2)
    assert error.file is not None
    assert error.file.endswith("bad.parquet")
    assert "bad.parquet, row group 1, column image, row 2" in str(error)
    with pytest.raises(bowstring.ClosedError):
        next(iter(loader))
    with Loader(path, **options, bad_rows="skip") as skipping:
        second = list(skipping)[1]
        assert len(second["label"]) == 8
        ledger = skipping.ledger()
    assert [record.levelname for record in caplog.records if record.name == "bowstring"] == ["WARNING"]
    assert "bad row row_id=10" in caplog.text
    assert (ledger["skipped"], ledger["zeroed"]) == (1, 0)
    assert (ledger["entries"][0]["row_id"], ledger["entries"][0]["column"]) == (10, "image")
    with Loader(path, **options, bad_rows="zero") as zeroing:
        assert list(zeroing)[1]["image"][2].max() == 0
        assert zeroing.ledger()["zeroed"] == 1


def test_of_many_bad_rows_the_log_has_the_first_and_their_number(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "nulls.parquet"
    pq.write_table(pa.table({"x": pa.array([None if row % 2 else row for row in range(1000)])}), path)
    with Loader(path, batch_size=100, shuffle=False, bad_rows="zero") as loader:
        assert sum(len(batch["x"]) for batch in loader) == 1000
        assert loader.ledger()["zeroed"] == 500
    logged = [record.getMessage() for record in caplog.records if record.name == "bowstring"]
    assert sum(message.startswith("bad row row_id=") for message in logged) == 10
    counts = [message for message in logged if message.startswith("bad rows ")]
    assert [int(message.partition("rows=")[2].split()[0]) for message in counts] == [16, 32, 64, 128, 256, 500]
    assert counts[-1] == "bad rows by the end of the pass rows=500 column=x"


def test_events_are_logged_if_the_logger_is_enabled_for_them(
    photos: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    def logged(**options: Any) -> list[str]:
        caplog.clear()
        bad = tmp_path / "bad.parquet"
        bad_photos(photos, bad)
        image = {"image": Image(16, crop="center")}
        with Loader(bad, batch_size=8, shuffle=False, images=image, bad_rows="skip", **options) as loader:
            assert len(list(loader)) == 2
        return [record.levelname for record in caplog.records if record.name == "bowstring"]

    with caplog.at_level(logging.WARNING, logger="bowstring"):
        assert logged() == ["WARNING"]
    with caplog.at_level(logging.INFO, logger="bowstring"):
        assert logged() == ["INFO", "WARNING"]
        opened = next(record for record in caplog.records if record.name == "bowstring").getMessage()
        assert opened == "opened: 16 rows, 2 steps per epoch, rank 0 of 1"
    # What happens while a loader is open is logged by the level of that moment, or of a second before.
    with caplog.at_level(logging.ERROR, logger="bowstring"):
        assert logged() == []


@needs_pyarrow(16, "`pyarrow.schema` of another object")
def test_a_schema_is_a_mapping_and_an_arrow_schema(kinds: pathlib.Path) -> None:
    with Loader(kinds, **EVERY_KIND, arrow=["name", "bytes", "words"]) as loader:
        schema = loader.schema
        batch = next(iter(loader))
    assert sorted(name for field in schema.values() for name in field.names) == sorted(batch.keys() - {"_mask"})
    assert str(schema).splitlines()[0].startswith(next(iter(schema)))
    assert (schema["maybe"].dtype, schema["maybe"].valid, schema["name"].arrow) == ("int32", True, "LargeUtf8")
    assert schema["padded"].dims == ("batch", ("padded", 3))
    found = pa.schema(schema)
    assert found.names == list(schema)
    for field in found:
        if schema[field.name].arrow is not None:
            assert field.type == batch[field.name].type, field
        elif schema[field.name].names == (field.name,):
            array = batch[field.name]
            shape = field.type.shape if isinstance(field.type, pa.FixedShapeTensorType) else []
            assert list(array.shape[1:]) == list(shape), field
    assert found.field("tags").type == pa.large_list(pa.int32())
    assert found.field("fixed").type == pa.fixed_shape_tensor(pa.int16(), [3])
    assert found.field("maybe").nullable
    assert not found.field("id").nullable


def test_stats_and_close(numbers: pathlib.Path) -> None:
    loader = Loader(numbers, batch_size=10)
    kept = list(loader)
    stats = loader.stats()
    assert stats["rows"] == 100
    assert stats["consumer"]["items"] == 10
    assert stats["bottleneck"] in stats["spent"]
    waited = sum(seconds for name, seconds in stats["spent"].items() if name != "consumer")  # type: ignore[misc]
    assert waited == pytest.approx(stats["consumer"]["waited_seconds"], abs=1e-6)
    declared = typing.get_type_hints(Stats)
    assert declared.keys() - {"device"} == stats.keys(), "the type says what there is"
    for name in ("read", "memory", "spent"):
        assert typing.get_type_hints(declared[name]).keys() == stats[name].keys(), name  # type: ignore[literal-required]
    loader.close()
    loader.close()
    with pytest.raises(bowstring.ClosedError):
        next(iter(loader))
    assert sorted(int(i) for batch in kept for i in batch["id"]) == list(range(100)), "batches outlive the loader"


def test_the_report_says_where_the_time_goes(numbers: pathlib.Path) -> None:
    with Loader(numbers, batch_size=10) as loader:
        assert "No batch was asked for yet." in loader.report()
        assert "<pre" not in loader._repr_html_()
        assert loader.stats()["bottleneck"] is None
        rows = sum(len(batch["id"]) for batch in loader)
        text = loader.report()
        shares = [float(share) for share in re.findall(r"^  [a-z]+ +([0-9.]+) %", text, re.MULTILINE)]
        assert sum(shares) == pytest.approx(100, abs=0.05), text
        for part in (
            f"{rows} rows in 10 batches",
            "Rank 0 of 1 on cpu: epoch 1, step 0 of 10",
            "The consumer waits",
            "Memory: ",
        ):
            assert part in text, text
        shares_alone, _, _ = text.partition("\n\nMemory")
        assert html.escape(shares_alone) in loader._repr_html_(), "notebooks show it too"
    assert "100 rows" in loader.report(), "a closed loader still says what it did"


def test_the_report_names_a_slow_store_and_bad_rows(slow_store: Any, tmp_path: pathlib.Path) -> None:
    with Loader(slow_store(3).url, batch_size=10) as loader:
        next(iter(loader))
        text = loader.report()
        assert loader.stats()["bottleneck"] == "store", text
        assert "most of it for the store" in text, text
        assert "Origin http" in text, text
    table = pa.table({"image": pa.array([b"no image"] * 4, pa.binary())})
    pq.write_table(table, tmp_path / "bad.parquet")
    with Loader(tmp_path / "bad.parquet", batch_size=2, images={"image": {"size": 8}}, bad_rows="zero") as loader:
        list(loader)
        assert "Bad rows: 0 skipped, 4 zeroed" in loader.report(), loader.report()


def test_timeout_names_the_culprit(slow_store: Any) -> None:
    with Loader(slow_store(30).url, batch_size=10, timeout=0.5) as loader, pytest.raises(TimeoutError) as caught:
        next(iter(loader))
    assert isinstance(caught.value, bowstring.TimeoutError)
    # The timeout as set.
    assert "waited 0.5 s for" in str(caught.value) or "waited 0.6 s for" in str(caught.value)
    assert str(caught.value).endswith("(timeout=0.5)")


def test_without_numpy_and_pyarrow(numbers: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bowstring.loader._NUMPY", False)
    monkeypatch.setattr("bowstring.arrays._NUMPY", False)
    monkeypatch.setattr("bowstring.arrays._new_pyarrow", lambda: None)
    with Loader(numbers, batch_size=3, shuffle=False) as loader:
        batch = next(iter(loader))
    assert isinstance(batch["id"], bowstring.Tensor)
    assert batch["name"] == ["row 0", "row 1", "row 2"]
    with Loader(numbers, batch_size=3, shuffle=False, arrow="na*") as loader:
        batch = next(iter(loader))
    assert isinstance(batch["name"], bowstring.ArrowArray)
    assert batch["name"].to_pylist() == ["row 0", "row 1", "row 2"]
    assert (len(batch["name"]), batch["name"].null_count) == (3, 0)


def test_a_tail_on_several_ranks(numbers: pathlib.Path) -> None:
    def ranks(tail: str, world: int, batch: int) -> list[list[list[int]]]:
        found = []
        for rank in range(world):
            options: dict[str, Any] = {"batch_size": batch, "tail": tail, "rank": rank, "world_size": world}
            with Loader(numbers, shuffle=False, columns=["id"], **options) as loader:
                found.append([batch["id"].tolist() for batch in loader])
                assert len(found[-1]) == len(loader)
        return found

    # 8 steps of 12 rows and one of 4 for 3 ranks: two each, and two rows are repeated, after all others.
    assert [steps[-1] for steps in ranks("short", 3, 4)] == [[96, 97], [98, 99], [0, 1]]
    # Less than half of 12 remains: 16 rows make two steps of 8.
    assert [steps[-2:] for steps in ranks("even", 3, 4)] == [
        [[84, 85, 86], [92, 93, 94]],
        [[87, 88, 89], [95, 96, 97]],
        [[90, 91], [98, 99]],
    ]
    # Ranks of one row each: 12 rows cannot be divided into two steps of 8.
    assert [steps[-1] for steps in ranks("even", 8, 1)][:5] == [[88, 89], [90, 91], [92, 93], [94, 95], [96]]
    with pytest.raises(bowstring.ConfigError, match=r"even: an epoch of 100 rows for 101 ranks, .* at most 100 ranks"):
        Loader(numbers, batch_size=4, tail="even", rank=0, world_size=101)


def test_drop_last(numbers: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(**options: Any) -> Loader:
        return Loader(numbers, batch_size=32, columns=["id"], **options)

    for given, dropped in (({"drop_last": True}, True), ({"drop_last": True, "tail": "drop"}, True), ({}, False)):
        with opened(**given) as loader:
            assert (loader.drop_last, len(loader)) == (dropped, 3 if dropped else 4)
    for tails in ({}, {"tail": "pad"}, {"tail": "even"}):
        with opened(drop_last=False, **tails) as loader:
            assert loader.drop_last is False
            assert loader.state_dict()["spec"]["tail"] == tails.get("tail", "short")
    for tail, drop_last in (("drop", False), ("pad", True), ("short", True)):
        with pytest.raises(bowstring.ConfigError, match=f"drop_last: {drop_last}, and tail is '{tail}'"):
            opened(tail=tail, drop_last=drop_last)
    with pytest.raises(bowstring.ConfigError, match="drop_last: 'no' is neither True nor False"):
        opened(drop_last="no")
    monkeypatch.setenv("BOWSTRING_TAIL", "drop")
    assert opened().drop_last
    with pytest.raises(bowstring.ConfigError, match="drop_last: False, and tail is 'drop'"):
        opened(drop_last=False)
    monkeypatch.setenv("BOWSTRING_TAIL", "pad")
    assert opened(drop_last=True).drop_last


def test_a_short_last_batch_does_not_fit_and_the_tail_is_named(numbers: pathlib.Path) -> None:
    """100 rows: the last of 13 batches has 4."""
    buffer = np.empty(8, np.int64)
    with bowstring.Loader(numbers, batch_size=8, columns=["id"]) as loader:
        filled = loader.into({"id": buffer})
        for _ in range(12):
            assert next(filled)["id"] is buffer
        with pytest.raises(bowstring.MismatchError, match=r'open the loader with tail="pad", "repeat" or "drop"'):
            next(filled)
        assert loader.step == 12
        last = loader.next_into({"id": np.empty(4, np.int64)})
        assert last is not None
        assert last["id"].shape == (4,)
    for tail, steps in (("pad", 13), ("repeat", 13), ("drop", 12)):
        with bowstring.Loader(numbers, batch_size=8, columns=["id"], tail=tail) as loader:
            assert len(list(loader.into({"id": buffer}))) == steps
    # An error for another reason has no such hint.
    with bowstring.Loader(numbers, batch_size=8, columns=["id"]) as loader:
        for wrong in (np.empty(8, np.int32), np.empty(7, np.int64)):
            with pytest.raises(bowstring.MismatchError) as told:
                next(loader.into({"id": wrong}))
            assert "tail" not in str(told.value)


def test_a_requested_mask_comes_with_every_tail(numbers: pathlib.Path) -> None:
    with bowstring.flight.Server({"numbers": numbers}) as server:
        for url in (numbers, f"{server.url}/numbers", [numbers]):
            mixed: dict[str, Any] = {"weights": [1]} if isinstance(url, list) else {}
            for tail in ("short", "even", "pad", "repeat", "drop"):
                options: dict[str, Any] = {"batch_size": 8, "columns": ["id"], "tail": tail, **mixed}
                with bowstring.Loader(url, mask=True, **options) as loader, bowstring.Loader(url, **options) as plain:
                    batches, others = list(loader), list(plain)
                    assert all(list(batch) == ["id", "_mask"] for batch in batches)
                    assert all(batch["_mask"].shape == batch["id"].shape for batch in batches)
                    padding = 4 if tail == "pad" else 0
                    assert sum(int((~batch["_mask"]).sum()) for batch in batches) == padding
                    assert all(("_mask" in batch) == (tail == "pad") for batch in others)
                    assert loader.state_dict() == plain.state_dict(), "it is no part of a plan"
                    assert [batch["id"].tolist() for batch in batches] == [batch["id"].tolist() for batch in others]


def test_units_that_follow_each_other_read_dictionaries_once(tmp_path: pathlib.Path) -> None:
    rows, columns = 1_600_000, 8
    generator = np.random.default_rng(5)
    # Dictionaries of 32 KB, of words that do not compress.
    words = generator.integers(0, 1 << 62, 4_000)
    table = pa.table({f"c{number}": words[generator.integers(0, len(words), rows)] for number in range(columns)})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, write_page_index=True, data_page_size=64 << 10, row_group_size=rows)
    chunks = [pq.read_metadata(path).row_group(0).column(number) for number in range(columns)]
    size = sum(chunk.total_compressed_size for chunk in chunks)
    dictionaries = sum(chunk.data_page_offset - chunk.dictionary_page_offset for chunk in chunks)
    with Loader(path, batch_size=8192, shuffle=False, threads=1) as loader:
        for step, batch in enumerate(loader):
            for name, values in batch.items():
                assert np.array_equal(values, table[name].slice(step * 8192, 8192).to_numpy())
        read = loader.stats()["read"]
    # Without that each of the units would read them. The first ones are read at the same time.
    assert read["items"] >= 6
    assert read["bytes"] < size + 3 * dictionaries < size + (read["items"] - 1) * dictionaries


def test_a_loader_that_an_error_ended_takes_no_state(tmp_path: pathlib.Path) -> None:
    lists = [[number] if number != 77 else [1, 2, 3] for number in range(200)]
    pq.write_table(pa.table({"list": lists}), tmp_path / "0.parquet")
    options: dict[str, Any] = {"batch_size": 10, "shuffle": False, "lists": {"list": bowstring.Padded(1)}}
    with bowstring.Loader(tmp_path, **options) as loader:
        with pytest.raises(bowstring.CorruptError):
            list(loader)
        state = loader.state_dict()
        assert (state["epoch"], state["step"]) == (0, 7)
        with pytest.raises(bowstring.ClosedError):
            loader.load_state_dict({**state, "step": 8})
        assert loader.state_dict() == state
        assert len(loader.certificate()["consumed"]) == 1
