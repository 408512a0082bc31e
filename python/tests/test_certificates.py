"""Certificates of real loaders, joined: kills, restarts, a forgotten state, a missing rank, the same rank twice."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.flight import Server
from test_flight import binary

ROWS, BATCH = 960, 8
KEY = b"0123456789abcdef"


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"id": pa.array(range(ROWS), pa.int64())}), path, row_group_size=100)
    return path


def opened(data: pathlib.Path, rank: int = 0, world: int = 1) -> bowstring.Loader:
    return bowstring.Loader(data, global_batch_size=4 * BATCH, rank=rank, world_size=world, seed=7)


def run(
    data: pathlib.Path, world: int, steps: int, state: dict[str, Any] | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Takes `steps` steps on each rank; returns the certificates and the state."""
    found, reached = [], {}
    for rank in range(world):
        with opened(data, rank, world) as loader:
            if state is not None:
                loader.load_state_dict(state)
            taken = 0
            while taken < steps:
                for _ in loader:
                    taken += 1
                    if taken == steps:
                        break
            found.append(loader.certificate(KEY))
            reached = loader.state_dict()
    return found, reached


def test_a_run_with_restarts_on_other_numbers_of_ranks_is_exact(data: pathlib.Path) -> None:
    first, state = run(data, 2, 12)
    # Ten more steps, which no saved state contains.
    lost, _ = run(data, 2, 10, state)
    second, state = run(data, 4, 23, state)
    third, _ = run(data, 1, 25, state)
    audit = bowstring.audit([*first, *lost, *second, *third], key=KEY)
    assert (audit["exact"], audit["complete"]) == (True, True), audit
    assert audit["findings"] == []
    without = bowstring.audit([*first[:1], *lost[:1]])
    assert (without["exact"], without["complete"]) == (False, False), "a rank has no certificate"
    assert (audit["from"], audit["until"], audit["end"]) == ([0, 0], [2, 0], [2, 0])
    assert (audit["steps"], audit["loaders"], audit["replaced_steps"]) == (30, 9, 20)


def test_one_path_is_a_file_or_a_directory(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (one,), _ = run(data, 1, 30)
    folder = tmp_path / "certificates"
    folder.mkdir()
    (folder / "rank-0.json").write_text(json.dumps(one))
    for given in (str(folder), folder / "rank-0.json", [folder], one):
        assert bowstring.audit(given, key=KEY)["loaders"] == 1


@pytest.mark.parametrize("damaged", [b"", b'{"version": 1', b"\xff\xfe", b'{"version": 2}'])
def test_a_damaged_file_of_a_directory_is_named(data: pathlib.Path, tmp_path: pathlib.Path, damaged: bytes) -> None:
    found, _ = run(data, 2, 30)
    folder = tmp_path / "certificates"
    (folder / "former").mkdir(parents=True)
    for number, one in enumerate(found):
        (folder / f"{number}.json").write_text(json.dumps(one))
    (folder / "former" / "0.json").write_bytes(damaged)
    assert bowstring.audit(folder)["exact"], "sub-directories are not read"
    (folder / "1.json").write_bytes(damaged)
    with pytest.raises((bowstring.ConfigError, bowstring.MismatchError), match=r"1\.json: .*certificate") as error:
        bowstring.audit(folder)
    assert error.value.file == str(folder / "1.json")
    (folder / "1.json").write_text(json.dumps({**found[1], "world_size": 3}))
    with pytest.raises(bowstring.ConfigError, match=r"1\.json: .*changed"):
        bowstring.audit(folder, key=KEY)


def test_a_restart_that_forgets_its_state_is_found(data: pathlib.Path) -> None:
    first, _ = run(data, 2, 12)
    second, _ = run(data, 2, 30)
    audit = bowstring.audit([*first, *second])
    assert not audit["exact"]
    assert [(one["fault"], one["from"], one["to"], one["rank"]) for one in audit["findings"]] == [
        ("repeated", [0, 0], [0, 12], 0),
        ("repeated", [0, 0], [0, 12], 1),
    ]


def test_ranks_that_load_checkpoints_of_different_steps_are_named(data: pathlib.Path) -> None:
    first, state = run(data, 2, 12)
    second = []
    for rank, step in [(0, 12), (1, 11)]:
        with opened(data, rank, 2) as loader:
            loader.load_state_dict({**state, "step": step})
            assert len(list(loader)) == 30 - step
            second.append(loader.certificate())
    audit = bowstring.audit([*first, *second])
    assert audit["exact"], "each rank has each step once"
    assert audit["complete"]
    assert audit["apart"] == [
        {"at": [0, 11], "ranks": [1], "more_ranks": 0, "world_size": 2},
        {"at": [0, 12], "ranks": [0], "more_ranks": 0, "world_size": 2},
    ]


def test_processes_that_all_read_everything_are_found(data: pathlib.Path) -> None:
    with opened(data) as one, opened(data) as other:
        assert len(list(one)) == len(list(other)) == 30
        audit = bowstring.audit([one.certificate(), other.certificate()])
    assert not audit["exact"]
    assert audit["findings"][0]["fault"] == "repeated"


def test_loops_left_early_leave_rows(data: pathlib.Path) -> None:
    with opened(data) as loader:
        for step, _ in enumerate(loader):
            if step == 19:
                break
        assert len(list(loader)) == 30
        audit = bowstring.audit([loader.certificate()])
    assert not audit["exact"]
    assert [(one["fault"], one["from"], one["to"], one["rank"]) for one in audit["findings"]] == [
        ("not_consumed", [0, 20], [1, 0], None)
    ]


def test_the_command_names_the_rows(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    saved = tmp_path / "certificates"
    saved.mkdir()
    delivered: list[int] = []
    for rank in range(2):
        with opened(data, rank, 2) as loader:
            for step, batch in enumerate(loader):
                delivered += batch["id"].tolist()
                # Rank 1 skips three steps.
                if rank == 1 and step == 26:
                    break
            assert len(list(loader)) == 30
            (saved / f"{rank}.json").write_text(json.dumps(loader.certificate(KEY)))
    (tmp_path / "key").write_bytes(KEY)
    command = [str(binary()), "audit", str(saved), "--key-file", str(tmp_path / "key"), "--data", str(data), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    report = json.loads(done.stdout)
    missing = {row["row_id"] for row in report["rows_found"] if row["fault"] == "not_consumed" and row["epoch"] == 0}
    # The delivered rows give the same result.
    assert missing == set(range(ROWS)) - set(delivered)
    assert len(missing) == 2 * BATCH * 3
    for row in report["rows_found"]:
        assert row["row_group"] * 100 + row["row"] == row["row_id"]
    other = tmp_path / "other.parquet"
    pq.write_table(pq.read_table(data).slice(1), other)
    done = subprocess.run(
        [*command[:-2], str(other), "--json"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--data is not what the certificates are of" in done.stderr
    assert "resume" not in done.stderr
    (tmp_path / "key").write_bytes(KEY[::-1])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "another key" in done.stderr


def test_a_changed_certificate_is_refused(data: pathlib.Path) -> None:
    with opened(data) as loader:
        next(iter(loader))
        certificate = loader.certificate(KEY)
    with pytest.raises(bowstring.ConfigError, match="changed"):
        bowstring.audit([{**certificate, "world_size": 2}], key=KEY)
    with pytest.raises(bowstring.MismatchError, match="version"):
        bowstring.audit([{**certificate, "version": 2}])
    with pytest.raises(bowstring.ConfigError, match="certificate"):
        bowstring.audit([])


def test_a_served_loader_has_the_certificate_of_a_local_one(data: pathlib.Path) -> None:
    def consumed(url: Any) -> dict[str, Any]:
        with bowstring.Loader(url, global_batch_size=4 * BATCH, rank=1, world_size=2, seed=7) as loader:
            for step, _ in enumerate(loader):
                if step == 4:
                    break
            list(loader)
            return {**loader.certificate(), "loader": "", "opened": 0, "written": 0}

    with Server({"data": data}) as server:
        assert consumed(f"{server.url}/data") == consumed(data)


def test_an_epoch_is_certified(data: pathlib.Path) -> None:
    def certified(*options: str) -> dict[str, Any]:
        command = [str(binary()), "certify", str(data), "--global-batch-size", "32", "--seed", "7", "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    one, four = certified(), certified("--world-size", "4")
    assert one["each_row_once"] is True
    assert (one["rank_rows"], four["rank_rows"]) == ([ROWS], [ROWS // 4] * 4)
    assert one["digest"] == four["digest"] != certified("--epoch", "1")["digest"]
    assert certified("--tail", "drop")["each_row_once"] is None
