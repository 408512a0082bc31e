"""Batches as JAX arrays: on the device, or global arrays made from every process's batch.

>>> mesh = jax.make_mesh((jax.device_count(),), ("data",))  # doctest: +SKIP
>>> sharding = NamedSharding(mesh, PartitionSpec("data"))  # doctest: +SKIP
>>> for batch in Loader("clicks/*.parquet", global_batch_size=4096, sharding=sharding):  # doctest: +SKIP
...     state = train_step(state, batch)
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy

from bowstring import _native, tails
from bowstring.accelerator import placed, wanted
from bowstring.arrays import Column, columns_of, numpy_array
from bowstring.base import BaseLoader
from bowstring.errors import ConfigError, DeviceError, ShardingError, WideIntegersError
from bowstring.options import Url, is_server, urls_of
from bowstring.ranks import of_jax

__all__ = ["Loader"]

_WIDE: dict[str, Any] = {"int64": numpy.int32, "uint64": numpy.uint32, "float64": numpy.float32}
_WIDER = "set jax_enable_x64, leave the column out, or deliver it with to='host'"
_STATE = "bowstring.json"


class Loader(BaseLoader[Any]):
    """Yields ``dict[str, jax.Array]``; text and binary are as in :class:`bowstring.Loader`: NumPy arrays of ``str`` and ``bytes``.

    Without ``sharding`` and ``to``, arrays are on JAX's default device (``jax.default_device``, as it is when the batch is taken):
    on the first CPU over the batch's own memory. With
    ``device="cuda"`` they are on that GPU, over the memory that the loader copied the batch to ahead of time; ``device_fence`` is
    then ``context``, since JAX does not name the streams that it reads on.

    If JAX has no 64-bit types (``jax_enable_x64`` is off), integers become 32-bit ones after a check that every value fits, and
    ``float64`` is rounded to ``float32``; for a GPU on the host, so that only 32 bits cross the bus. A value that does not fit is a
    :class:`bowstring.WideIntegersError`: when the loader is opened, for all such columns, if the files' footers show it; else with
    its batch, which is then the next one again once ``jax_enable_x64`` is set. A later ``iter()`` begins the next epoch.

    Batches are padded by default (``tail="pad"``, with ``_mask``): a step that is compiled is compiled again for another shape. A
    ``tail`` of a server's catalogue goes before that default.

    In a program that called ``jax.distributed.initialize``, rank and world size are JAX's process index and count.

    Beside ``state_dict`` and ``load_state_dict`` it has ``get_state`` and ``set_state``, by the names of Grain's iterators, for
    ``JsonSave`` of Orbax, and ``save`` and ``load`` of Orbax's ``StatefulCheckpointable``. ``CheckpointSave`` of Grain takes none
    but Grain's iterators.

    :param sharding: a ``jax.sharding.Sharding``: each tensor becomes one global array, whose rows are those of all processes'
        batches. Every tensor needs as many rows on each process: ragged columns are to be padded (``lists=Padded(...)``).
        Arrays with fewer axes than the ``PartitionSpec`` of a ``NamedSharding`` take its leading ones: beside ``[B, n]`` by
        ``P("data", "model")``, a label or ``_mask`` ``[B]`` is laid by ``P("data")``. Text stays this process's own.
    :param to: ``device``, or ``host`` for NumPy arrays over the batch's own memory, bfloat16 included.
    """

    _tail = "pad"

    def __init__(
        self,
        url: Url | Sequence[Url],
        *,
        sharding: jax.sharding.Sharding | None = None,
        to: Literal["device", "host"] = "device",
        **options: Any,
    ) -> None:
        if to not in ("device", "host"):
            raise ConfigError(f"option to: {to!r} is neither 'device' nor 'host'", option="to")
        asked: object = sharding
        if asked is not None and not isinstance(asked, jax.sharding.Sharding):
            meant = "NamedSharding(mesh, PartitionSpec('data')), or SingleDeviceSharding(device)"
            raise ShardingError(
                f"option sharding: {asked!r} is not a jax.sharding.Sharding; give {meant}", option="sharding"
            )
        if sharding is not None and to == "host":
            raise ConfigError("option to: a sharding is of device arrays; leave out one of the two", option="to")
        told = ("rank", "world_size", "gang")
        if all(options.get(name) is None for name in told) and (process := of_jax()) is not None:
            options |= {"rank": process[0], "world_size": process[1]}
        if wanted(options).startswith("cuda") and (sharding is not None or to == "host"):
            other = "sharding spreads" if sharding is not None else "to='host' keeps"
            problem = f"{wanted(options)!r}: {other} batches from the host's memory; leave out one of the two"
            raise ConfigError(f"option device: {problem}", option="device")
        if sharding is None and to == "device":
            options = placed(options, "JAX", lambda: bool(_gpus()))
        url = urls_of(url)  # for a second loader, if types are not JAX's
        # What a server's catalogue says goes before the default.
        if tails.told(options) is None and not any(map(is_server, url)):
            options["tail"] = self._tail
        super().__init__(url, **options)
        self._on_gpu = self.device != "cpu"
        # That of each array, by its name.
        self._shardings: dict[str, jax.sharding.Sharding] = {}
        self._to = to
        # A copy is avoided only if the default device is the host.
        self._share = sharding is None and jax.default_backend() == "cpu"
        try:
            self._check_width()
            if sharding is not None:
                self._check_global(sharding)
            if self._on_gpu:
                self._follow(url, options)
        except BaseException:
            self.close()
            raise

    def _follow(self, url: Url | Sequence[Url], options: dict[str, Any]) -> None:
        """Ensures that JAX supports the types of the batches on the GPU."""
        ordinal = int(self.device.removeprefix("cuda:"))
        if all(gpu.local_hardware_id != ordinal for gpu in _gpus()):
            raise DeviceError(f"device {self.device}: JAX uses {_gpus()}, and not this one")
        settings: Any = jax.config  # JAX has not typed it
        if settings.jax_enable_x64:
            return
        columns = columns_of(self._native)
        if any(column.name == "_row_id" for column in columns):
            problem = (
                "_row_id has 64 bits, and on a GPU JAX would cut them off; set jax_enable_x64, or leave out row_id"
            )
            raise ConfigError(f"option jax_enable_x64: {problem}", option="jax_enable_x64")
        cast = options.get("cast")
        cast = dict(json.loads(os.environ.get("BOWSTRING_CAST", "{}")) if cast is None else cast)
        wide = {column.name: numpy.dtype(_WIDE[column.dtype]).name for column in columns if column.dtype in _WIDE}
        if wide:
            # On the host values are checked one by one, as `_narrowed` does; JAX would wrap them.
            self.close()
            super().__init__(url, **{**options, "cast": {**cast, **wide}})

    def _check_width(self) -> None:
        settings: Any = jax.config  # JAX has not typed it
        wide = [] if self._to == "host" or settings.jax_enable_x64 else self._native.wide_integers()
        if wide:
            found = ", ".join(f"column {name!r} has {value} ({place})" for name, value, place in wide)
            raise WideIntegersError(
                f"option jax_enable_x64: 32 bits do not hold all integers: {found}; {_WIDER}",
                option="jax_enable_x64",
                column=wide[0][0],
            )

    def _check_global(self, sharding: jax.sharding.Sharding) -> None:
        rows = int(self._native.state()["spec"]["global_batch"])
        columns = columns_of(self._native)
        uneven = [column.name for column in columns if column.dtype is not None and not column.is_plain]
        if uneven:
            problem = f"{_columns(uneven)} varies in length, and has no place in a global array"
            raise ShardingError(f"option sharding: {problem}; pad it: lists={{...: Padded(n)}}", option="sharding")
        arrays = list(_laid_out(sharding, columns))
        wrong = _of_other_axes(arrays, rows)
        if wrong is not None:
            raise ShardingError(f"option sharding: {wrong}", option="sharding")
        wrong = self._uneven(rows) or _refused(sharding, arrays, self._laid(sharding, rows))
        if wrong is not None:
            option = "global_batch_size" if rows % self.world_size else "batch_size"
            raise ShardingError(f"option {option}: {wrong}", option=option)
        wrong = self._elsewhere(sharding, arrays, rows)
        if wrong is not None:
            raise ShardingError(f"option sharding: {wrong}", option="sharding")
        # Under "short" and "even" the last steps have fewer rows.
        steps = len(self)
        for last in sorted({self._native.step_rows(step) for step in range(max(steps - 2, 0), steps)} - {rows}):
            wrong = self._uneven(last) or _refused(sharding, arrays, self._laid(sharding, last))
            if wrong is not None:
                hint = "use tail='pad', whose batches are all alike, or 'drop'"
                raise ShardingError(f"option tail: at the end of an epoch {wrong}; {hint}", option="tail")
        self._shardings = {array.name: array.sharding for array in arrays}

    def _uneven(self, rows: int) -> str | None:
        if rows % self.world_size == 0:
            return None
        return f"{rows} rows are not the same number for each of {self.world_size} processes"

    def _laid(self, sharding: jax.sharding.Sharding, rows: int) -> int:
        """Those of a batch of ``rows`` rows that ``sharding`` lays out: this rank's own, over devices of this process alone."""
        return rows // self.world_size if sharding.is_fully_addressable else rows

    def _elsewhere(self, sharding: jax.sharding.Sharding, arrays: Sequence[_Array], rows: int) -> str | None:
        """The reason that ``sharding`` has other parts of a batch in this process than its rank; ``None`` if they agree.

        JAX would take this rank's rows for those parts, and processes would hold different rows as the same ones.
        """
        if sharding.is_fully_addressable:
            # The arrays are this process's own.
            return None
        of = f"{sharding} this process holds"
        for array in arrays:
            shape, batch = array.shape(rows), len(array.before)
            parts = array.sharding.addressable_devices_indices_map(shape).values()
            for axis, size in enumerate(shape):
                held = sum(stop - start for start, stop in {part[axis].indices(size)[:2] for part in parts if part})
                if axis != batch and held != size:
                    problem = f"by {of} {held} of {size} along axis {axis} of column {array.name!r}"
                    return f"{problem}; divide only rows (axis {batch}) among processes"
                if axis == batch and held != rows // self.world_size:
                    own = f"rank {self.rank} of {self.world_size} has {rows // self.world_size}"
                    hint = "give processes that hold the same rows the same rank, and world_size as many as there are"
                    return f"by {of} {held} of {rows} rows, and {own}; {hint} different parts"
        # JAX's own ranks are different ones. Others are those of the parts, which nobody else can compare.
        if (self.rank, self.world_size) != of_jax() and arrays:
            place, first = _place(arrays[0].sharding, arrays[0].shape(rows), len(arrays[0].before))
            if place != self.rank:
                own = f"these are rank {place} of {self.world_size}, and it was given rank {self.rank}"
                return f"by {of} rows from {first} on, of {rows}; {own}"
        return None

    def _array(self, tensor: _native.Tensor, sharding: jax.sharding.Sharding | None = None) -> Any:
        if self._on_gpu:
            # JAX passes the stream that must wait for the batch; lengths and offsets fit 32 bits.
            return jax.dlpack.from_dlpack(tensor)
        if self._to == "host":
            return numpy_array(tensor)
        settings: Any = jax.config  # JAX has not typed it
        if tensor.dtype in _WIDE and not settings.jax_enable_x64:
            return _placed(_narrowed(tensor), sharding)
        default = settings.jax_default_device
        share = self._share and (default is None or default in ("cpu", _first_cpu()))
        return jax.dlpack.from_dlpack(tensor) if share else _placed(numpy_array(tensor), sharding)

    def _batch(self, columns: dict[str, _native.Tensor | _native.ArrowArray]) -> dict[str, Any]:
        found = {}
        for name, value in columns.items():
            try:
                if isinstance(value, _native.Tensor):
                    found[name] = self._array(value, self._shardings.get(name))
                else:
                    found[name] = self._other(name, value)
            except _TooWide as error:
                problem = f"32 bits do not hold all integers: column {name!r} has {error}"
                raise WideIntegersError(
                    f"option jax_enable_x64: {problem}; {_WIDER}", option="jax_enable_x64", column=name
                ) from None
        return found

    def __next__(self) -> dict[str, Any]:
        """The next batch from the loader's position, as of an iterator; ``StopIteration`` at the epoch's end, then the next."""
        self._still_its_rank()
        batch = self._native.next(self._batch)
        if batch is None:
            raise StopIteration
        return batch

    def get_state(self) -> dict[str, Any]:
        """As :meth:`state_dict`, by Grain's name."""
        return self.state_dict()

    def set_state(self, state: Mapping[str, Any] | bytes | str) -> None:
        """As :meth:`load_state_dict`, by Grain's name."""
        self.load_state_dict(json.loads(state) if isinstance(state, (bytes, str)) else state)

    async def save(self, directory: Any) -> Awaitable[None]:
        """Orbax's ``StatefulCheckpointable``: writes the current position into ``directory``, from the first process."""
        text = json.dumps(self.state_dict())

        async def write() -> None:
            # Orbax may still be making the directory.
            path = await directory.await_creation() if hasattr(directory, "await_creation") else directory
            if jax.process_index() == 0:
                (path / _STATE).write_text(text)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Orbax's ``StatefulCheckpointable``: goes to the position that :meth:`save` wrote, on any number of processes."""

        async def read() -> None:
            self.load_state_dict(json.loads((directory / _STATE).read_text()))

        return read()


def _gpus() -> list[jax.Device]:
    """The GPUs that JAX uses through CUDA in this process."""
    try:
        return list(jax.local_devices(backend="cuda"))
    except RuntimeError:
        return []


@functools.cache
def _first_cpu() -> jax.Device:
    """The device on which ``from_dlpack`` places host memory."""
    return jax.local_devices(backend="cpu")[0]


class _Array(NamedTuple):
    """One array of a batch, and what lays it out."""

    name: str
    before: tuple[int, ...]
    """The axes before that of the rows: of windows, their offsets."""
    inner: tuple[int, ...]
    sharding: jax.sharding.Sharding

    def shape(self, rows: int) -> tuple[int, ...]:
        return (*self.before, rows, *self.inner)


def _laid_out(sharding: jax.sharding.Sharding, columns: Sequence[Column]) -> Iterator[_Array]:
    """The arrays of a batch that ``sharding`` lays out, each by the axes that it has."""
    windowed = max((len(column.leading) for column in columns), default=1)
    for column in columns:
        # Only the batch axis varies among the leading ones.
        before = tuple(axis for axis in column.leading[:-1] if axis is not None)
        for part in column.parts:
            if part != column.name or column.dtype is not None:
                inner = column.inner_of(part)
                # A window has one row of `_mask`, without the axis of offsets.
                first, axes = windowed - len(column.leading), len(column.leading) + len(inner)
                yield _Array(part, before, inner, _of_axes(sharding, first, first + axes))


def _of_axes(sharding: jax.sharding.Sharding, first: int, end: int) -> jax.sharding.Sharding:
    """``sharding`` of an array that has only the axes from ``first`` to ``end``; itself if it does not tell axes apart."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return sharding
    spec = tuple(sharding.spec)
    if spec[first:end] == spec:
        return sharding
    make: Any = jax.sharding.PartitionSpec  # JAX has not typed it
    return jax.sharding.NamedSharding(sharding.mesh, make(*spec[first:end]), memory_kind=sharding.memory_kind)


def _placed(values: Any, sharding: jax.sharding.Sharding | None) -> Any:
    if sharding is None:
        return jax.device_put(values)
    make: Any = jax.make_array_from_process_local_data  # JAX has not typed it
    return make(sharding, values)


def _place(sharding: jax.sharding.Sharding, shape: Sequence[int], axis: int) -> tuple[int, int]:
    """The number of this process's part of ``axis`` among all parts in their order, and its first row."""
    parts: dict[int, set[tuple[int, int]]] = {}
    known: Mapping[Any, Any] = sharding.devices_indices_map(tuple(shape))  # JAX has not typed its devices
    for device, part in known.items():
        if part is not None:
            parts.setdefault(device.process_index, set()).add(part[axis].indices(shape[axis])[:2])
    own = sorted(parts[jax.process_index()])
    return sorted({tuple(sorted(part)) for part in parts.values()}).index(tuple(own)), own[0][0]


def _of_other_axes(arrays: Sequence[_Array], rows: int) -> str | None:
    """The reason that a sharding cannot be that of arrays with as many axes as some of a batch have; ``None`` if it can."""
    for array in arrays:
        try:
            array.sharding.shard_shape(array.shape(rows))
        except ValueError:
            # Of the number of rows.
            continue
        except Exception as error:  # an IndexError or an AssertionError, by the kind of sharding and the version of JAX
            problem = f"{array.sharding} cannot be that of {array.name!r}, whose axes are {array.shape(rows)}"
            hint = "give a NamedSharding, of which an array takes as many axes as it has, or leave it out"
            return f"{problem} ({type(error).__name__}: {error}); {hint}"
    return None


def _refused(sharding: jax.sharding.Sharding, arrays: Sequence[_Array], rows: int) -> str | None:
    """The reason that batches of ``rows`` rows cannot be laid out over the devices of ``sharding``; ``None`` if they can."""
    refused: dict[str, list[str]] = {}
    for array in arrays:
        try:
            array.sharding.shard_shape(array.shape(rows))
        except ValueError as error:
            refused.setdefault(str(error), []).append(array.name)
    if not refused:
        return None
    devices = f"{sharding.num_devices} device{'s' * (sharding.num_devices > 1)}"
    why = "; ".join(f"{', '.join(names)}: {error}" for error, names in refused.items())
    return f"batches of {rows} rows cannot be laid over {devices} by {sharding}: {why}"


def _columns(names: Sequence[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


class _TooWide(Exception):
    """A value that does not fit into 32 bits."""


def _narrowed(tensor: _native.Tensor) -> Any:
    values = numpy_array(tensor)
    narrow = _WIDE[tensor.dtype]
    if tensor.dtype != "float64" and values.size:
        least, most = values.min(), values.max()
        bounds = numpy.iinfo(narrow)
        if least < bounds.min or most > bounds.max:
            raise _TooWide(most if most > bounds.max else least)
    # Beyond the range of float32 a number is infinite, without a word of NumPy's.
    with numpy.errstate(over="ignore"):
        return values.astype(narrow)


Loader.__doc__ = f"{Loader.__doc__}\n{BaseLoader.__doc__}"
