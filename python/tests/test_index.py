"""Indexes: the content of footers, read once and handed to other loaders."""

import hashlib
import multiprocessing
import os
import pathlib
import socket

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def made(root: pathlib.Path, files: int = 5) -> str:
    for file in range(files):
        pq.write_table(pa.table({"id": np.arange(file * 10, file * 10 + 10)}), root / f"part-{file}.parquet")
    return str(root)


def ids(url: str, **options: object) -> list[int]:
    with bowstring.Loader(url, batch_size=8, shuffle=True, rank=0, world_size=1, tail="drop", **options) as loader:
        return [int(value) for batch in loader for value in batch["id"]]


def test_bytes_and_files_open_the_same_dataset(tmp_path: pathlib.Path) -> None:
    (tmp_path / "data").mkdir()
    url = made(tmp_path / "data")
    plain = ids(url, index="none")
    index = bowstring.index(url)
    assert isinstance(index, bytes)
    assert ids(url, index=index) == plain
    at = bowstring.write_index(url, tmp_path / "some.index")
    assert pathlib.Path(at).read_bytes() == index
    assert ids(url, index=at) == plain
    beside = bowstring.write_index(url)
    assert beside.endswith("/data/_bowstring_index")
    assert ids(url) == plain


def test_an_index_goes_to_the_home_and_onto_no_other_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    url = made(tmp_path / "data", 1)
    monkeypatch.setenv("HOME", str(tmp_path))
    bowstring.write_index(url, "~/x.index")
    assert ids(url, index="~/x.index") == ids(url)
    (part,) = (tmp_path / "data").glob("*.parquet")
    other = tmp_path / "other"
    other.write_bytes(part.read_bytes())
    for file, why in ((part, "below the dataset"), (other, "no index")):
        before = file.read_bytes()
        with pytest.raises(bowstring.ConfigError, match=why):
            bowstring.write_index(url, file)
        assert file.read_bytes() == before


def test_a_stale_or_damaged_index_is_an_error_if_requested(tmp_path: pathlib.Path) -> None:
    url = made(tmp_path)
    index = bowstring.index(url)
    at = bowstring.write_index(url)
    pq.write_table(pa.table({"id": np.arange(900, 907)}), tmp_path / "part-2.parquet")
    with pytest.raises(bowstring.SourceChangedError, match=r"part-2\.parquet.*bowstring index"):
        ids(url, index=at)
    assert ids(url) == ids(url, index="none") == ids(url, index=index)
    with pytest.raises(bowstring.CorruptError, match="the index is damaged"):
        ids(url, index=index[:-1])


def _rank(rank: int, port: int, url: str, results: "multiprocessing.Queue[object]") -> None:
    import torch.distributed

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    torch.distributed.init_process_group("gloo")
    from bowstring.torch import DataLoader, shared_index

    index = shared_index(url)
    with DataLoader(url, batch_size=4, shuffle=False, index=index, tail="drop") as loader:
        found = [int(value) for batch in loader for value in batch["id"]]
    try:
        shared_index(url + "/gone")
        error = None
    except bowstring.Error as raised:
        error = f"{type(raised).__name__}: {raised}"
    results.put((rank, hashlib.sha256(index).hexdigest(), found, error))
    torch.distributed.destroy_process_group()


def test_a_process_group_indexes_once_and_fails_together(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    url = made(tmp_path, 4)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, port, url, results)) for rank in range(2)]
    for process in ranks:
        process.start()
    got = sorted(results.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(30)
    assert sorted(got[0][2] + got[1][2]) == list(range(40))
    assert got[0][1] == got[1][1], "both have the same bytes"
    assert got[0][3].startswith("NotFoundError")
    assert "rank 0 could not index" in got[1][3]


def test_a_single_process_indexes_alone(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("torch")
    from bowstring.torch import shared_index

    url = made(tmp_path)
    assert shared_index(url) == bowstring.index(url)
