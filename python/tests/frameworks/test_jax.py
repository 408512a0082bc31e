"""`bowstring.jax`: arrays on the device, global arrays, and states in the form of JAX's own libraries."""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import bowstring
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bowstring.torch import DataLoader
from conftest import EVERY_KIND, free_port

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    jax = pytest.importorskip("jax")
    from bowstring.jax import Loader

# Two devices, before the first array.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)


@pytest.fixture
def wide() -> Any:
    """Enables 64-bit types for one test."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def ids(batch: Any) -> list[int]:
    """Returns the rows of a batch, without padding."""
    return [int(i) for i in np.asarray(batch["id"])[np.asarray(batch["_mask"])]]


def sharding() -> Any:
    mesh = jax.make_mesh((2,), ("data",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))


def compare(loader: Loader, kinds: pathlib.Path) -> set[str]:
    """Compares two epochs with torch's; returns the names of the element types seen."""
    types = set()
    with loader, DataLoader(kinds, **EVERY_KIND, tail="pad") as other:
        assert len(loader) == len(other) == 13
        for _epoch in range(2):
            for ours, theirs in zip(loader, other, strict=True):
                assert ours.keys() == theirs.keys()
                for name, value in theirs.items():
                    if isinstance(value, list):
                        assert ours[name].tolist() == value
                        continue
                    assert ours[name].shape == tuple(value.shape)
                    assert np.asarray(ours[name]).astype(float).tolist() == value.double().tolist(), name
                    types.add(f"{type(ours[name]).__name__} {ours[name].dtype}")
    return types


def test_every_kind_of_column_equals_torchs(kinds: pathlib.Path) -> None:
    types = compare(Loader(kinds, **EVERY_KIND), kinds)
    assert types == {f"ArrayImpl {name}" for name in ("bfloat16", "bool", "float32", "int16", "int32")}
    types = compare(Loader(kinds, to="host", **EVERY_KIND), kinds)
    assert types == {f"ndarray {name}" for name in ("bfloat16", "bool", "float32", "int16", "int32", "int64")}


def test_64_bits_where_jax_enables_them(kinds: pathlib.Path, wide: None) -> None:
    types = compare(Loader(kinds, **EVERY_KIND), kinds)
    assert types == {f"ArrayImpl {name}" for name in ("bfloat16", "bool", "float32", "int16", "int32", "int64")}


def test_integers_too_wide_for_jax_are_an_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"big": pa.array([1, 1 << 40]), "float": pa.array([0.1, 0.2])}), path)
    with pytest.raises(bowstring.ConfigError, match="column 'big' has 1099511627776"):
        next(Loader(path, batch_size=2))
    batch = next(Loader(path, batch_size=2, columns="float"))
    assert batch["float"].dtype == np.float32
    assert next(Loader(path, batch_size=2, shuffle=False, to="host"))["big"].tolist() == [1, 1 << 40]


def test_no_copy_on_the_host(kinds: pathlib.Path) -> None:
    for to in ("device", "host"):
        loader = Loader(kinds, to=to, **EVERY_KIND)
        native = loader._native.next(dict)
        batch = loader._batch(native)
        for name in ("packed", "half", "fixed", "maybe", "tags__values", "_mask"):
            here = batch[name].unsafe_buffer_pointer() if to == "device" else batch[name].ctypes.data
            assert here == native[name].data_ptr, (to, name)


def test_next_continues_through_one_epoch(kinds: pathlib.Path) -> None:
    loader = Loader(kinds, batch_size=8, columns=["id"])
    first = ids(next(loader))
    rest = [ids(batch) for batch in iter(lambda: next(loader, None), None)]
    assert sorted(sum(rest, first)) == list(range(100))
    assert len(rest) == 12
    state = loader.get_state()
    assert (state["epoch"], state["step"]) == (1, 0)
    second = [ids(batch) for batch in loader]
    assert list(iter(lambda: next(loader, None), None))
    loader.set_state(json.dumps(state).encode())
    assert [ids(batch) for batch in loader] == second


class Directory:
    """The directory that Orbax passes to `save`: it is still being created."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    async def await_creation(self) -> pathlib.Path:
        self.path.mkdir()
        return self.path


def test_orbax_protocol(kinds: pathlib.Path, tmp_path: pathlib.Path) -> None:
    loader = Loader(kinds, batch_size=8, columns=["id"])
    other = Loader(kinds, batch_size=8, columns=["id"])
    for _ in range(5):
        next(loader)

    async def there() -> None:
        writing = await loader.save(Directory(tmp_path / "state"))
        # Batches taken after the call are not part of the checkpoint, however long writing takes.
        next(loader)
        await writing
        await (await other.load(tmp_path / "state"))

    asyncio.run(there())
    next(other)
    assert [ids(batch) for batch in loader] == [ids(batch) for batch in other]


def test_orbax_itself(kinds: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        orbax = pytest.importorskip("orbax.checkpoint")
        v1 = pytest.importorskip("orbax.checkpoint.experimental.v1")
        loader = Loader(kinds, batch_size=8, columns=["id"])
        for _ in range(5):
            next(loader)
        with orbax.CheckpointManager(tmp_path / "manager") as manager:
            manager.save(5, args=orbax.args.Composite(data=orbax.args.JsonSave(loader.get_state())))
            manager.wait_until_finished()
            found = manager.restore(5, args=orbax.args.Composite(data=orbax.args.JsonRestore()))
        v1.save_checkpointables(tmp_path / "v1", {"data": loader})
        # What is left of the epoch: a `for` would begin a new pass.
        rest = [ids(batch) for batch in iter(lambda: next(loader, None), None)]
        other = Loader(kinds, batch_size=8, columns=["id"])
        other.set_state(found["data"])
        assert [ids(batch) for batch in other] == rest
        v1.load_checkpointables(tmp_path / "v1", {"data": other})
        assert [ids(batch) for batch in other] == rest


def test_global_arrays_on_devices(kinds: pathlib.Path) -> None:
    options: dict[str, Any] = {"batch_size": 8, "columns": ["id", "fixed", "half", "name"], "nulls": "mask"}
    with Loader(kinds, sharding=sharding(), **options) as loader, Loader(kinds, to="host", **options) as host:
        for ours, theirs in zip(loader, host, strict=True):
            assert ours["fixed"].sharding == sharding()
            assert [piece.data.shape for piece in ours["fixed"].addressable_shards] == [(4, 3), (4, 3)]
            assert np.asarray(ours["fixed"]).tolist() == theirs["fixed"].tolist()
            assert ours["name"].tolist() == theirs["name"].tolist()
    with pytest.raises(bowstring.ConfigError, match="column 'tags' varies in length"):
        Loader(kinds, batch_size=8, columns=["tags"], sharding=sharding())
    with pytest.raises(bowstring.ConfigError, match="not the same number"):
        Loader(kinds, global_batch_size=7, columns=["id"], sharding=sharding(), rank=0, world_size=2)
    # Two devices of this process hold this rank's one row.
    with pytest.raises(bowstring.ShardingError, match="batches of 1 rows cannot be laid"):
        Loader(kinds, global_batch_size=2, columns=["id"], sharding=sharding(), rank=0, world_size=2)
    with pytest.raises(bowstring.ConfigError, match="to: a sharding"):
        Loader(kinds, batch_size=8, sharding=sharding(), to="host")


PROCESSES = """
import json, sys
import jax
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
path, address, rank = sys.argv[1], sys.argv[2], int(__import__("os").environ["RANK"])
for name in ("RANK", "WORLD_SIZE"):
    del __import__("os").environ[name]
jax.distributed.initialize(address, num_processes=2, process_id=rank)
import bowstring
from bowstring.jax import Loader

mesh = jax.make_mesh((2,), ("data",))
sharding, everywhere = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in (("data",), ()))
loader = Loader(path, global_batch_size=8, columns=["id"], sharding=sharding)
total = jax.jit(lambda rows, mask: (rows * mask).sum(), out_shardings=everywhere)
seen, totals, shapes, state = [], [], set(), None
for step, batch in enumerate(loader):
    rows, mask = (batch[name].addressable_data(0) for name in ("id", "_mask"))
    seen.append(np.asarray(rows)[np.asarray(mask)].tolist())
    shapes.add(batch["id"].shape)
    totals.append(int(total(batch["id"], batch["_mask"])))
    if step == 4:
        state = loader.get_state()
loader.set_state(state)
again = [int(total(batch["id"], batch["_mask"])) for batch in loader]
plain = bowstring.Loader(path, batch_size=8, columns=["id"], shuffle=False, tail="short")
plain = [plain.rank, plain.world_size, [row for batch in plain for row in batch["id"].tolist()]]
print(json.dumps({"rank": loader.rank, "plain": plain, "seen": seen, "totals": totals, "again": again, "shapes": sorted(shapes)}))
"""


@pytest.mark.timeout(150)
def test_two_processes_make_global_arrays(kinds: pathlib.Path, ranks: Callable[..., list[Any]]) -> None:
    found = ranks(PROCESSES, kinds, f"127.0.0.1:{free_port()}")
    with bowstring.Loader(kinds, batch_size=8, columns=["id"]) as loader:
        want = [batch["id"].tolist() for batch in loader]
    assert [one["rank"] for one in found] == [0, 1]
    assert [one["plain"][:2] for one in found] == [[0, 2], [1, 2]], "every loader's"
    assert sorted(row for one in found for row in one["plain"][2]) == sorted(row for step in want for row in step)
    assert [a + b for a, b in zip(found[0]["seen"], found[1]["seen"], strict=True)] == want
    for one in found:
        assert one["totals"] == [sum(step) for step in want]
        assert one["again"] == one["totals"][5:]
        assert one["shapes"] == [[8]]


HALVES = """
import json, os, sys
import jax
import numpy as np

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(os.environ["RANK"]))
import bowstring
from bowstring.jax import Loader
from jax.sharding import Mesh, NamedSharding, PartitionSpec

devices = np.array(jax.devices()).reshape(2, 2)
across, within = Mesh(devices, ("data", "model")), Mesh(devices, ("model", "data"))


def opened(mesh, *axes, **options):
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    options = {"columns": ["id"], "global_batch_size": 8, **options}
    try:
        with Loader(sys.argv[1], shuffle=False, sharding=sharding, **options) as loader:
            (array,) = [array for name, array in next(iter(loader)).items() if name != "_mask"]
            rows = {row for shard in array.addressable_shards for row in np.asarray(shard.data).ravel().tolist()}
            return list(array.shape), sorted(rows)
    except bowstring.ShardingError as error:
        return str(error)


def divided(mesh, **options):
    # The parts of every array that this process holds, of rows divided by "data" and their columns by "model".
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    options |= {"columns": ["id", "padded", "name"], "lists": {"padded": bowstring.Padded(4)}, "nulls": "mask"}
    with Loader(sys.argv[1], global_batch_size=8, shuffle=False, sharding=sharding, **options) as loader:
        batch = next(iter(loader))
    del batch["name"]
    return {
        name: [[shard.index[0].start or 0, np.asarray(shard.data).tolist()] for shard in array.addressable_shards]
        for name, array in batch.items()
    }


packed = {"columns": ["x", "half"], "pack": {"both": ["x", "half"]}, "tail": "drop"}
local = NamedSharding(Mesh(np.array(jax.local_devices()), ("data",)), PartitionSpec("data"))
own = next(iter(Loader(sys.argv[1], global_batch_size=8, columns=["id"], shuffle=False, sharding=local)))["id"]
found = [
    opened(across, "data"),
    opened(within, "data"),
    opened(across),
    opened(within, "data", rank=0, world_size=1),
    opened(across, "data", "model", **packed),
    opened(within, "data", "model", rank=0, world_size=1, **packed),
    np.asarray(own).tolist(),
    opened(across, "data", rank=1 - int(os.environ["RANK"]), world_size=2),
    divided(across),
]
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.timeout(150)
def test_a_process_has_the_rows_that_the_sharding_places_on_it(
    kinds: pathlib.Path, ranks: Callable[..., list[Any]]
) -> None:
    """JAX would make one global array of other rows in each process."""
    found = ranks(HALVES, kinds, f"127.0.0.1:{free_port()}")
    for rank, (across, within, everywhere, told, packed, cut, own, other, divided) in enumerate(found):
        assert across == [[8], list(range(4 * rank, 4 * rank + 4))]
        for refused in (within, everywhere):
            assert re.search(rf"sharding: .* holds 8 of 8 rows, and rank {rank} of 2 has 4; give processes", refused)
        assert told == [[8], list(range(8))]
        assert packed[0] == [8, 2]
        assert re.search(r"sharding: .* holds 1 of 2 along axis 1 of column 'both'; divide only rows \(axis 0\)", cut)
        assert own == list(range(4 * rank, 4 * rank + 4)), "arrays of one process"
        wanted = rf"holds rows from {4 * rank} on, of 8; these are rank {rank} of 2, and it was given rank {1 - rank}"
        assert re.search(wanted, other)
        rows = range(4 * rank, 4 * rank + 4)
        wide = [[[n if n < row % 4 else 0 for n in half] for row in rows] for half in ((0, 1), (2, 3))]
        assert divided.pop("padded") == [[4 * rank, half] for half in wide]
        # The others have no columns to divide.
        of_rows = {
            "id": list(rows),
            "padded__lengths": [row % 4 for row in rows],
            "name__valid": [row % 7 > 0 for row in rows],
        }
        of_rows |= {name: [True] * 4 for name in ("id__valid", "padded__valid", "_mask")}
        assert divided == {name: [[4 * rank, values]] * 2 for name, values in of_rows.items()}


def test_arrays_of_fewer_axes_take_the_leading_ones_of_the_sharding(kinds: pathlib.Path) -> None:
    mesh = jax.make_mesh((1, 2), ("data", "model"))
    both = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", "model"))
    lists = {"padded": bowstring.Padded(4), "deep": bowstring.Padded([2, 4])}
    pack = {"pair": ["x", "maybe"]}
    columns = ["id", "name", "x", "maybe", *lists]
    options: dict[str, Any] = {"batch_size": 8, "columns": columns, "nulls": "mask", "lists": lists, "pack": pack}
    axes = {"padded": 2, "deep": 2, "deep__lengths_1": 2, "pair": 2, "pair__valid": 2}
    for tail in ("pad", "drop", "short"):
        with (
            Loader(kinds, sharding=both, tail=tail, **options) as loader,
            Loader(kinds, to="host", tail=tail, **options) as host,
        ):
            for ours, theirs in zip(loader, host, strict=True):
                assert ours.keys() == theirs.keys()
                for name, value in ours.items():
                    assert np.asarray(value).tolist() == theirs[name].tolist(), name
                    if name != "name":
                        assert tuple(value.sharding.spec) == ("data", "model")[: axes.get(name, 1)], name


def test_the_mask_of_windows_takes_the_axis_of_rows(kinds: pathlib.Path) -> None:
    mesh = jax.make_mesh((1, 2), ("data", "model"))
    wide = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", "model"))
    windows = bowstring.NGram({0: ["id", "x"], 1: ["id", "x"]}, "id", 1)
    with Loader(kinds, batch_size=8, sharding=wide, ngram=windows) as loader:
        for batch in loader:
            assert {name: str(array.sharding.spec) for name, array in batch.items()} == {
                "id": "P('data', 'model')",
                "x": "P('data', 'model')",
                "_mask": "P('model',)",
            }
            assert batch["id"].shape == (2, 8)


def test_a_loader_that_cannot_be_opened_is_closed(kinds: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(jax.sharding.Sharding):  # type: ignore[misc]  # JAX has not typed it
        """Of two axes, like those that have no names for them."""

        is_fully_addressable = True

        def shard_shape(self, global_shape: tuple[int, ...]) -> tuple[int, ...]:
            if len(global_shape) != 2:
                raise AssertionError(len(global_shape), 2)
            return global_shape

    closed = []
    monkeypatch.setattr(Loader, "close", lambda self: (closed.append(self), super(Loader, self).close()))
    with pytest.raises(
        bowstring.ShardingError, match=r"cannot be that of '_mask', whose axes are \(8,\).*give a NamedSh"
    ):
        Loader(kinds, batch_size=8, columns=["fixed"], sharding=Own())
    # Of JAX's own.
    monkeypatch.setattr(Own, "num_devices", 1, raising=False)
    monkeypatch.setattr(Loader, "_elsewhere", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Loader(kinds, batch_size=8, columns=["fixed"], sharding=Own(), tail="drop")
    assert len(closed) == 2
    for loader in closed:
        with pytest.raises(bowstring.ClosedError):
            next(loader)


def test_errors_known_at_open_are_raised_at_open(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "wide.parquet"
    columns = {"id": range(20), "a": [1 << 40] * 20, "b": pa.array([2**32] * 20, pa.uint64()), "ok": [1] * 20}
    pq.write_table(pa.table(columns), path, row_group_size=5)
    with pytest.raises(bowstring.WideIntegersError, match=r"column 'a' has 1099511627776.*column 'b' has 4294967296"):
        Loader(path, batch_size=4)
    assert Loader(path, batch_size=4, columns=["id", "ok"]).rows == 20
    assert Loader(path, batch_size=4, to="host").rows == 20
    for rows, extra in [(7, {}), (8, {"columns": "id"})]:
        options = {"batch_size": rows, "columns": ["id", "ok"], **extra}
        if rows == 8:
            assert Loader(path, sharding=sharding(), **options).rows == 20
            continue
        with pytest.raises(bowstring.ShardingError, match=r"7 rows cannot be laid over 2 devices.*id, ok"):
            Loader(path, sharding=sharding(), **options)


def test_a_value_that_is_not_a_sharding_is_refused(kinds: pathlib.Path) -> None:
    mesh = jax.make_mesh((2,), ("data",))
    for wrong in (mesh, jax.sharding.PartitionSpec("data"), jax.devices()[1], "data"):
        with pytest.raises(
            bowstring.ShardingError, match=r"^option sharding: .* is not a jax.sharding.Sharding; give Named"
        ):
            Loader(kinds, batch_size=8, columns=["id"], sharding=wrong)
    second = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    assert next(iter(Loader(kinds, batch_size=8, columns=["id"], sharding=second)))["id"].devices() == {
        jax.devices()[1]
    }
    # Replicated on all devices, like the tables of a small model.
    both = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    with Loader(kinds, batch_size=7, columns=["id"], sharding=both, shuffle=False) as loader:
        assert [shard.data.shape for shard in next(iter(loader))["id"].addressable_shards] == [(7,), (7,)]


def test_64_bits_by_context(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"id": [1 << 40] * 20}), path)
    with jax.enable_x64(True):
        loader = Loader(path, batch_size=8)
        assert next(iter(loader))["id"].dtype == np.int64
    with pytest.raises(bowstring.WideIntegersError):
        Loader(path, batch_size=8)


def test_a_last_batch_that_cannot_be_laid_out_is_refused_at_open(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": pa.array(range(40), pa.int32())}), path, row_group_size=5)
    # Rows, tail, ranks: the share of the last steps in a global batch of eight.
    for rows, tail, world, wrong in [
        (20, "short", 1, None),
        (19, "short", 1, "3 rows cannot be laid over 2 devices"),
        (19, "short", 2, None),  # one row is repeated
        (19, "even", 2, "5 rows are not the same number for each of 2 processes"),  # six and five
        (20, "even", 2, None),
        (24, "even", 1, None),
        (19, "pad", 1, None),
        (19, "drop", 1, None),
    ]:
        options: dict[str, Any] = {"tail": tail, "world_size": world, "rank": 0, "filter": f"id < {rows}"}
        if wrong is None:
            assert Loader(path, global_batch_size=8, sharding=sharding(), **options).rows == rows - (tail == "drop") * 3
            continue
        with pytest.raises(bowstring.ShardingError, match=rf"^option tail: .*{wrong}.*tail='pad'"):
            Loader(path, global_batch_size=8, sharding=sharding(), **options)
        assert Loader(path, global_batch_size=8, **options).rows == rows, "without a sharding any shape will do"


def test_a_wide_integer_found_late_costs_no_batch(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "late.parquet"
    values = [1 << 40 if row == 9 else row for row in range(20)]
    pq.write_table(pa.table({"id": values}), path, row_group_size=5, write_statistics=False)
    loader = Loader(path, batch_size=4, shuffle=False)
    iterator = iter(loader)
    assert [ids(next(iterator)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for _ in range(2):
        with pytest.raises(bowstring.WideIntegersError, match="column 'id' has 1099511627776"):
            next(iterator)
    # Once JAX allows 64 bits, the iterator resumes with the same batch, and later passes work as usual.
    state = loader.state_dict()
    jax.config.update("jax_enable_x64", True)
    try:
        assert next(ids(batch) for batch in iterator) == [8, 1 << 40, 10, 11]
    finally:
        jax.config.update("jax_enable_x64", False)
    assert ids(next(iter(loader))) == [0, 1, 2, 3]
    loader.load_state_dict({**state, "step": 3})
    assert [ids(batch) for batch in loader] == [[12, 13, 14, 15], [16, 17, 18, 19]]


def test_batches_are_on_the_default_device(kinds: pathlib.Path) -> None:
    loader = Loader(kinds, batch_size=8, columns=["id", "x", "half"])
    first, second = jax.devices()[:2]
    iterator = iter(loader)
    assert all(value.devices() == {first} for value in next(iterator).values())
    with jax.default_device(second):
        assert all(value.devices() == {second} for value in next(iterator).values())
    assert all(value.devices() == {first} for value in next(iterator).values())
