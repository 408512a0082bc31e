"""Serving over Arrow Flight: the same batches as from a local loader, for our loaders and any other client; gangs of ranks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import bowstring
import numpy as np
import pytest
from bowstring.torch import DataLoader
from conftest import free_port

pa = pytest.importorskip("pyarrow")
flight = pytest.importorskip("pyarrow.flight")
pq = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
BINARY = ROOT / "target" / ("release" if (ROOT / "target/release/bowstring").exists() else "debug") / "bowstring"
PHOTOS = str(ROOT / "fixtures/imagenet40.parquet")
ALL = str(ROOT / "fixtures/petastorm/petastorm_allcodecs_0.13.1")
TOKEN = "a-token-of-the-tests"


class Server:
    """A separate `bowstring serve` process; SIGTERM ends it."""

    def __init__(self, *args: str) -> None:
        command = [
            str(binary()),
            "serve",
            f"photos={PHOTOS}",
            f"all={ALL}",
            "--listen",
            "127.0.0.1:0",
            "--print-address",
            *args,
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BOWSTRING_")}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip().removeprefix("grpc://")
        assert self.address, self.process.stderr.read() if self.process.stderr else ""

    def url(self, dataset: str = "") -> str:
        return f"grpc://{self.address}/{dataset}"

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(timeout=40) == 0
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def binary() -> Path:
    """The binary of the same build as the extension."""
    extension = (ROOT / "python/bowstring/_native.abi3.so").resolve()
    found = extension.parent / "bowstring"
    return found if found.exists() else BINARY


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server("--drain-grace", "2")
    yield server
    server.stop()


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == theirs[name].dtype
            np.testing.assert_array_equal(value, theirs[name], err_msg=name)
        else:
            assert value.equals(theirs[name]), name


@pytest.mark.parametrize("transport", ["tcp", "shared_memory"])
@pytest.mark.parametrize(("dataset", "path"), [("photos", PHOTOS), ("all", ALL)])
def test_batches_are_those_of_a_local_loader(server: Server, dataset: str, path: str, transport: str) -> None:
    options: dict[str, Any] = {"batch_size": 6, "seed": 3, "rank": 1, "world_size": 2}
    if dataset == "photos":
        options["images"] = {"image": bowstring.Image(size=64, crop="random_resized")}
    else:
        options["nulls"] = "mask"
    local = bowstring.Loader(path, **options)
    remote = bowstring.Loader(server.url(dataset), storage_options={"transport": transport}, timeout=30, **options)
    assert (len(local), str(local.schema)) == (len(remote), str(remote.schema))
    for epoch in range(2):
        batches = 0
        for ours, theirs in zip(local, remote, strict=True):
            same(ours, theirs)
            batches += 1
        assert batches == len(local), epoch
        assert local.state_dict() == remote.state_dict()


def test_packs_that_a_catalogue_makes_may_be_null_in_a_record_batch(tmp_path: Path) -> None:
    """Clients do not know that the column is one."""
    columns = {"a": pa.array([1, None, 3], pa.int32()), "b": pa.array([1.5, 2, None], pa.float32())}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    pack = 'nulls = "mask"\npack = [{ name = "p", columns = ["a", "b"] }]'
    (tmp_path / "serve.toml").write_text(f'[datasets.rows]\nurl = "{tmp_path}/rows.parquet"\n{pack}\n')
    server = Server("--config", str(tmp_path / "serve.toml"))
    try:
        with bowstring.Loader(server.url("rows"), batch_size=3, shuffle=False) as loader:
            record = next(loader.batches()).to_pyarrow()
    finally:
        server.stop()
    assert record.column("p").to_pylist() == [[1, 1.5], [None, 2], [3, None]]


def test_what_a_client_says_counts_also_where_it_is_the_default(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, config = tmp_path / "bad.parquet", tmp_path / "serve.toml"
    pq.write_table(pa.table({"v": [1, 300]}), bad)
    odd = "shuffle = false\nseed = 7\nmask = true\nrow_id = true"
    config.write_text(
        f'[datasets.odd]\nurl = "{numbers}"\n{odd}\n'
        f'[datasets.bad]\nurl = "{bad}"\nbad_rows = "skip"\ncast = {{ v = "int8" }}\n'
    )
    server = Server("--config", str(config))

    def first(url: Any, **options: Any) -> dict[str, Any]:
        with bowstring.Loader(url, batch_size=8, columns=["id"], **options) as loader:
            return {name: value.tolist() for name, value in next(iter(loader)).items()}

    try:
        local, url = first(numbers), server.url("odd")
        assert first(url)["id"] == list(range(8))
        assert first(url, shuffle=True, seed=0, mask=False, row_id=False) == local
        monkeypatch.setenv("BOWSTRING_SEED", "0")
        monkeypatch.setenv("BOWSTRING_SHUFFLE", "true")
        assert first(url)["id"] == local["id"]
        assert len(list(bowstring.Loader(server.url("bad"), batch_size=2))) == 1
        with pytest.raises(bowstring.CorruptError):
            list(bowstring.Loader(server.url("bad"), batch_size=2, bad_rows="error"))
    finally:
        server.stop()


def test_a_state_moves_between_a_local_and_a_remote_loader(server: Server) -> None:
    options: dict[str, Any] = {"batch_size": 4, "columns": ["label"], "row_id": True, "rank": 0, "world_size": 1}
    with bowstring.Loader(PHOTOS, **options) as local, bowstring.Loader(server.url("photos"), **options) as remote:
        ours = [batch["_row_id"].tolist() for batch in local]
        local.set_epoch(0)
        theirs = [batch["_row_id"].tolist() for batch in islice(remote, 3)]
        local.load_state_dict(remote.state_dict())
        theirs += [batch["_row_id"].tolist() for batch in islice(local, 2)]
        remote.load_state_dict(local.state_dict())
        theirs += [batch["_row_id"].tolist() for batch in remote]
        assert theirs == ours


def test_a_loader_that_waits_for_its_server_says_so(caplog: pytest.LogCaptureFixture) -> None:
    address = f"grpc://127.0.0.1:{free_port()}/photos"
    with pytest.raises(bowstring.TimeoutError):
        bowstring.Loader(address, batch_size=1, timeout=2)
    (said,) = [record for record in caplog.records if "trying for" in record.getMessage()]
    assert said.levelname == "WARNING"
    assert address.removesuffix("/photos") in said.getMessage()


def test_kept_batches_keep_their_values(server: Server) -> None:
    options: dict[str, Any] = {"batch_size": 2, "seed": 1, "rank": 0, "world_size": 1}
    options["images"] = {"image": bowstring.Image(size=32)}
    local = list(DataLoader(PHOTOS, **options))
    kept = list(DataLoader(server.url("photos"), storage_options={"transport": "shared_memory"}, timeout=20, **options))
    for ours, theirs in zip(local, kept, strict=True):
        assert (ours["image"] == theirs["image"]).all()
        theirs["image"].zero_()


FORKED = """
import os, sys
import bowstring

loader = bowstring.Loader(sys.argv[1], batch_size=4, shuffle=False, storage_options={"transport": sys.argv[2]})
kept = []
loader._native.next(lambda columns: kept.append(columns) or True)
[columns] = kept
child = os.fork()
if child == 0:
    import numpy
    seen = []
    for column in columns.values():
        is_tensor = isinstance(column, bowstring.Tensor)
        uses = [column.__arrow_c_array__]
        uses += [column.__dlpack__, lambda: column.data_ptr, column.numpy] if is_tensor else [column.to_pylist]
        for use in uses:
            try:
                use()
            except bowstring.ClosedError as error:
                assert "forked" in str(error), error
                seen.append("refused")
            else:
                seen.append("read")
    print(len(seen) > 4, *sorted(set(seen)))
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert columns["label"].numpy().shape == (4,)
"""


@pytest.mark.parametrize(("transport", "expected"), [("tcp", "True read"), ("shared_memory", "True refused")])
def test_a_forked_child_reads_nothing_that_the_server_writes_again(
    server: Server, script: Any, transport: str, expected: str
) -> None:
    child = script(FORKED, server.url("photos"), transport)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out.strip()) == (0, expected), err


def test_the_fifteen_lines_of_the_documentation_run() -> None:
    text = (ROOT / "docs/protocol.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    tokens = Path(os.environ.get("TMPDIR", "/tmp")) / f"bowstring-tokens-{os.getpid()}"
    tokens.touch(mode=0o600)
    tokens.write_text("tests:a-token-of-16-characters-or-more\n")
    server = Server("--drain-grace", "1", "--tokens", str(tokens))
    try:
        lines: list[str] = []
        code = code.replace("127.0.0.1:8815", server.address)
        assert len(code.strip().splitlines()) <= 15
        names = {"print": lambda *values: lines.append(" ".join(map(str, values)))}
        subprocess_free = compile(code, "docs/protocol.md", "exec")
        exec(subprocess_free, names)
        local = bowstring.Loader(PHOTOS, batch_size=8, columns=["label"], rank=0, world_size=2)
        assert lines == [f"0 {step} {batch['label'].tolist()}" for step, batch in enumerate(local)]
        with pytest.raises(bowstring.RemoteError, match=r"(?i)unauthenticated"):
            bowstring.Loader(server.url("photos"), batch_size=8, rank=0, world_size=1, timeout=5)
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(flight.connect(f"grpc://{server.address}").list_flights())
        credentials = {"token": "a-token-of-16-characters-or-more"}
        loader = bowstring.Loader(
            server.url("photos"), batch_size=8, columns=["label"], rank=0, world_size=2, storage_options=credentials
        )
        assert [batch["label"].tolist() for batch in loader] == [json.loads(line.split(" ", 2)[2]) for line in lines]
    finally:
        server.stop()
        tokens.unlink()


def test_pyarrow_sees_tensors(server: Server) -> None:
    client = flight.connect(f"grpc://{server.address}")
    names = sorted(info.descriptor.path[0].decode() for info in client.list_flights())
    assert names == ["all", "photos"]
    images = {"image": {"size": [16, 16]}}
    asked = {
        "dataset": "photos",
        "options": {"batch_size": 10, "order_version": 2, "columns": {"images": images}},
        "world_size": 2,
    }
    info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(asked)))
    assert (len(info.endpoints), info.total_records) == (2, 40)
    assert isinstance(info.schema.field("image").type, pa.FixedShapeTensorType)
    chunk = client.do_get(info.endpoints[1].ticket).read_chunk()
    image = chunk.data.column("image").to_numpy_ndarray()
    [local] = [
        next(
            iter(
                bowstring.Loader(
                    PHOTOS, batch_size=10, images={"image": bowstring.Image(size=16)}, rank=1, world_size=2
                )
            )
        )
    ]
    np.testing.assert_array_equal(image, local["image"])


def test_a_server_of_another_version_is_named_with_both_versions() -> None:
    class Version(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow has no types
        def sending_headers(self) -> dict[str, str]:
            return {"bowstring-version": "0.0.9"}

    class Versions(flight.ServerMiddlewareFactory):  # type: ignore[misc]
        def start_call(self, info: Any, headers: Any) -> Any:
            return Version()

    class Former(flight.FlightServerBase):  # type: ignore[misc]
        def do_action(self, context: Any, action: Any) -> Any:
            raise NotImplementedError("this action is not known")

    with (
        Former("grpc://127.0.0.1:0", middleware={"version": Versions()}) as former,
        bowstring.flight.Connection(f"grpc://127.0.0.1:{former.port}") as connection,
        pytest.raises(bowstring.Error, match="not known") as raised,
    ):
        connection.action("later", {})
    assert f"(bowstring 0.0.9; this is {bowstring.__version__})" in str(raised.value)


def test_a_gang_meets_and_restarts(server: Server) -> None:
    seen: dict[int, list[Any]] = {rank: [] for rank in range(3)}

    def run(rank: int) -> None:
        with bowstring.flight.Gang(
            server.url(), "tests", rank=rank, world_size=3, device=f"cpu:{rank}", timeout=20
        ) as gang:
            loader = bowstring.Loader(
                server.url("photos"), batch_size=3, tail="even", columns=["label"], row_id=True, gang=gang
            )
            assert [member.device for member in gang.members()] == ["cpu:0", "cpu:1", "cpu:2"]
            rows = [int(row) for batch in loader for row in batch["_row_id"]]
            for messages in [gang.all_gather(json.dumps(rows).encode())]:
                seen[rank] = sorted(row for message in messages for row in json.loads(message))
            token = gang.ack(0, len(loader) - 1)
            gang.barrier()
            assert json.loads(token)["gang"] == "tests"

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == {rank: list(range(40)) for rank in range(3)}


def test_a_gang_continues_from_the_token_of_the_loaded_checkpoint(server: Server) -> None:
    seen: dict[tuple[int, int], list[list[int]]] = {}
    tokens: dict[int, str] = {}

    def run(rank: int, life: int, token: str | None, steps: int) -> None:
        gang = bowstring.flight.Gang(server.url(), "tokens", rank=rank, world_size=2, token=token, timeout=20)
        with bowstring.Loader(server.url("photos"), batch_size=2, columns=["label"], row_id=True, gang=gang) as loader:
            rows = seen[life, rank] = []
            for batch in loader:
                rows.append(batch["_row_id"].tolist())
                tokens[loader.step - 1] = gang.ack(loader.epoch, loader.step - 1)
                if len(rows) == steps:
                    break
            gang.barrier(20)
        with contextlib.suppress(bowstring.FencedError):
            gang._native.leave("it was killed")

    def both(life: int, token: str | None, steps: int) -> None:
        threads = [threading.Thread(target=run, args=(rank, life, token, steps)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    both(1, None, 6)
    # The checkpoint is older than the last step that both acknowledged.
    both(2, tokens[1], 6)
    for rank in range(2):
        assert seen[2, rank][:4] == seen[1, rank][2:]
    both(3, None, 1)
    assert all(seen[3, rank][0] not in seen[1, rank] + seen[2, rank] for rank in range(2)), "after the last step"


def test_a_lost_member_ends_the_others_streams(server: Server) -> None:
    members: dict[int, bowstring.flight.Gang] = {}

    def join(rank: int) -> None:
        members[rank] = bowstring.flight.Gang(server.url(), "lost", rank=rank, world_size=2, timeout=20)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    loader = bowstring.Loader(server.url("photos"), batch_size=1, columns=["label"], gang=members[0], timeout=20)
    iterator = iter(loader)
    next(iterator)
    members[1]._native.leave("it was lost")
    with pytest.raises(bowstring.FencedError, match="lost"):
        members[0].barrier(timeout=20)
    with pytest.raises(bowstring.FencedError):
        list(iterator)


def test_writes_appear_when_they_are_committed(tmp_path: Path) -> None:
    server = Server("--drain-grace", "1", "--put", str(tmp_path / "written"))
    try:
        client = flight.connect(f"grpc://{server.address}")
        tokens = []
        for task in range(3):
            table = pa.table({"x": pa.array(range(task * 10, task * 10 + 10), pa.int64())})
            for attempt in range(2):
                part = {"dataset": "numbers", "write": "w1", "task": task, "attempt": attempt}
                writer, reader = client.do_put(flight.FlightDescriptor.for_command(json.dumps(part)), table.schema)
                writer.write_table(table)
                writer.done_writing()
                staged = json.loads(reader.read().to_pybytes())
                writer.close()
                assert staged["rows"] == 10
            tokens.append(staged["token"])
        with pytest.raises(bowstring.NotFoundError):
            bowstring.Loader(server.url("numbers"), batch_size=5, rank=0, world_size=1, timeout=5)
        commit = {"dataset": "numbers", "write": "w1", "mode": "create", "tokens": tokens}
        for _ in range(2):
            [answer] = client.do_action(("put.commit", json.dumps(commit).encode()))
            assert json.loads(answer.body.to_pybytes())["rows"] == 30
        loader = bowstring.Loader(server.url("numbers"), batch_size=5, rank=0, world_size=1)
        assert sorted(int(x) for batch in loader for x in batch["x"]) == list(range(30))
    finally:
        server.stop()


def test_a_column_called_as_the_mask_is_no_mask(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3], "_mask": [True, False, True]}), path)
    server = Server(f"marked={path}")
    try:
        with bowstring.Loader(server.url("marked"), batch_size=3, shuffle=False) as loader:
            assert [batch["_mask"].tolist() for batch in loader] == [[True, False, True]]
            assert loader.stats()["rows"] == 3
        with bowstring.Loader(
            server.url("marked"), batch_size=2, shuffle=False, tail="pad", exclude=["_mask"]
        ) as loader:
            assert [batch["_mask"].tolist() for batch in loader] == [[True, True], [True, False]]
            assert loader.stats()["rows"] == 3
    finally:
        server.stop()
