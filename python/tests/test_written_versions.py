"""Datasets that are written to a server while ranks read them: one version for all ranks of a job, kept as long as they read."""

from __future__ import annotations

import pathlib
from typing import Any, Literal

import bowstring
import numpy as np
import pyarrow as pa
import pytest
from bowstring.flight import Gang, Server

Mode = Literal["append", "replace"]


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"x": np.arange(first, first + count)})


def values(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


def flat(steps: list[list[int]]) -> list[int]:
    return [value for step in steps for value in step]


@pytest.fixture(params=["memory", "directory"])
def put(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """Returns where a server writes."""
    return "memory" if request.param == "memory" else str(tmp_path)


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_ranks_that_begin_around_a_commit_have_one_plan(put: str, mode: Mode) -> None:
    with Server(put=put) as server:
        server.put("d", rows(0, 200))
        options: dict[str, Any] = {"batch_size": 10, "world_size": 2, "seed": 1, "tail": "drop"}
        url = f"{server.url}/d"
        with bowstring.Loader(url, rank=0, **options) as one:
            begun = iter(one)
            first = next(begun)["x"].tolist()
            server.put("d", rows(200, 100), mode=mode)
            with bowstring.Loader(url, rank=1, **options) as two:
                steps = [[first, *values(begun)], values(two)]
        assert [len(step) for step in steps] == [10, 10]
        assert sorted(flat(steps[0] + steps[1])) == list(range(200))
        # The next job has what was committed.
        with bowstring.Loader(url, rank=0, **options) as one, bowstring.Loader(url, rank=1, **options) as two:
            found = sorted(flat(values(one) + values(two)))
        assert found == list(range(300) if mode == "append" else range(200, 300))


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_reader_keeps_its_rows_through_commits(put: str, mode: Mode) -> None:
    with Server(put=put) as server:
        server.put("d", rows(0, 200))
        with bowstring.Loader(f"{server.url}/d", batch_size=10, seed=1) as loader:
            for _ in range(2):
                epoch = iter(loader)
                found = next(epoch)["x"].tolist()
                for commit in range(3):
                    server.put("d", rows(1000 + 100 * commit, 100), mode=mode)
                found += flat(values(epoch))
                assert sorted(found) == list(range(200))
        with bowstring.Loader(f"{server.url}/d", batch_size=10) as loader:
            assert len(flat(values(loader))) == (800 if mode == "append" else 100)


def test_later_epochs_and_tickets_have_their_version_in_a_directory(tmp_path: pathlib.Path) -> None:
    with Server(put=str(tmp_path)) as server:
        server.put("d", rows(0, 200))
        with bowstring.Loader(f"{server.url}/d", batch_size=10) as loader:
            for epoch in range(3):
                # Nobody reads now.
                for commit in range(3):
                    server.put("d", rows(1000 * epoch + commit, 100), mode="replace")
                assert sorted(flat(values(loader))) == list(range(200))


def test_a_gang_that_resumes_has_its_version_in_a_directory(tmp_path: pathlib.Path) -> None:
    def joined(server: Server) -> Gang:
        return Gang(server.url, "g", rank=0, world_size=1, timeout=20)

    with Server(put=str(tmp_path)) as server:
        server.put("d", rows(0, 200))
        options: dict[str, Any] = {"batch_size": 10, "seed": 1}
        gang = joined(server)
        with bowstring.Loader(f"{server.url}/d", gang=gang, **options) as loader:
            epoch = iter(loader)
            found = [next(epoch)["x"].tolist() for _ in range(3)]
        gang.ack(0, 2)
        gang._native.leave("it was lost")
        for commit in range(3):
            server.put("d", rows(1000 * commit, 100), mode="replace")
        with joined(server) as gang, bowstring.Loader(f"{server.url}/d", gang=gang, **options) as loader:
            found += values(loader)
    assert sorted(flat(found)) == list(range(200))


def test_versions_that_nobody_has_read_go(tmp_path: pathlib.Path) -> None:
    with Server(put=str(tmp_path)) as server:
        for commit in range(6):
            server.put("d", rows(commit, 100), mode="replace")
        kept = [path for path in tmp_path.rglob("*.parquet") if not path.is_symlink() and ".bowstring" in path.parts]
        assert len({path.parent.name for path in kept}) == 2, kept


def test_extension_types_of_one_storage_are_told_apart() -> None:
    def tensors(*shape: int) -> pa.Table:
        array = np.arange(24, dtype=np.int64).reshape(2, *shape)
        return pa.table({"t": pa.FixedShapeTensorArray.from_numpy_ndarray(array)})

    with Server(put="memory") as server:
        server.put("d", tensors(2, 6))
        with pytest.raises(bowstring.MismatchError, match=r'"shape":\[3,4\]'):
            server.put("d", tensors(3, 4), mode="append")
        write = server.write("e")
        write.stage(tensors(2, 6))
        write.stage(tensors(3, 4))
        with pytest.raises(bowstring.MismatchError, match=r"two tasks of write"):
            write.commit()
        server.put("d", tensors(2, 6), mode="append")
        with bowstring.Loader(f"{server.url}/d", batch_size=4) as loader:
            assert next(iter(loader))["t"].shape == (4, 2, 6)
