"""Batches as a ``tf.data.Dataset``, over the batch's own memory.

>>> data = bowstring.tensorflow.dataset("clicks/*.parquet", batch_size=4096, targets="label")  # doctest: +SKIP
>>> model.fit(data, epochs=3, callbacks=[data.callback()])  # doctest: +SKIP

Numbers reach TensorFlow without a copy, lists as ``tf.RaggedTensor``, text and binary as ``tf.string``; no Python runs per row.

**Positions.** Every batch is a function of (epoch, step), and the dataset's graph requests batches by these two numbers. Only
the consumer knows what was *consumed*: stages after this one (``prefetch``, ``map``, those that a strategy adds) read ahead. Three
ways to save exactly what was consumed:

- in ``model.fit``, :meth:`Dataset.callback` counts the batches that the model has trained on;
- in your own loop, :meth:`Dataset.state_dict` is exact if the loop runs over the dataset itself, because nothing in it reads
  ahead; with later stages, :meth:`Dataset.state_at` takes the number of batches that the loop has had;
- ``tf.train.Checkpoint(iterator=iterator)`` saves an iterator with all its stages, and what they have read ahead with it. One that
  has ended, maybe ahead of the loop, has no epoch in its checkpoint: call :meth:`Dataset.set_epoch` before each iterator.
"""

from __future__ import annotations

import difflib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from bowstring import _native
from bowstring.accelerator import placed, wanted
from bowstring.arrays import Column, Text, columns_of, numpy_array
from bowstring.base import BaseLoader
from bowstring.errors import ConfigError, LimitError, NotFoundError, UnsupportedError
from bowstring.following import Course, Position, callback
from bowstring.options import Url
from bowstring.ranges import whole
from bowstring.stats import Stats
from bowstring.tails import told

__all__ = ["Dataset", "Loader", "dataset"]

# Requests carry the number of their pass above the epoch: iterators that `tf.train.Checkpoint` saved without one go on.
_EPOCHS = 1 << 32

# Most bytes of one message of Protocol Buffers.
_MOST_TEXT = (1 << 31) - (1 << 20)


class _Loader(BaseLoader[Any]):
    def _array(self, tensor: _native.Tensor) -> Any:
        return numpy_array(tensor)


def dataset(
    url: Url | Sequence[Url],
    *,
    targets: str | Sequence[str] | None = None,
    inputs: str | Sequence[str] | None = None,
    weights_from_mask: bool = False,
    **options: Any,
) -> Dataset:
    """The batches of ``url`` as a ``tf.data.Dataset`` of whole batches; its ``element_spec`` comes from the schema.

    It is sharded by rank (``rank`` and ``world_size``, or the launcher's environment, ``TF_CONFIG`` too), and TensorFlow's own
    sharding is off. With several processes (``MultiWorkerMirroredStrategy``), hand it over with
    ``strategy.distribute_datasets_from_function(lambda context: data)``: ``batch_size`` is then a replica's.
    ``experimental_distribute_dataset``, which ``model.fit`` calls, splits every batch into one for each replica: right for the
    devices of one process, wrong for several.

    Every iterator is a pass, as for :class:`bowstring.Loader`: the first one begins at the dataset's position, each later one the
    next epoch, wherever the previous one ended. A pass from which nothing was taken does not count, nor do those of Keras'
    ``evaluate`` and ``predict``; stages after this one take ahead of the loop. Several iterators may be active: each requests its
    own batches by number, which is slow.

    :param url: as for :class:`bowstring.Loader`.
    :param targets: columns that become the second part of ``(inputs, targets)``; one by name is a tensor, several are a dictionary.
    :param inputs: the columns of the first part, in the same way; by default all except the targets, as a dictionary, or the
        matrix itself if one pack is the only one. A model that takes one tensor, such as ``keras.Sequential``, needs one by name.
    :param weights_from_mask: with ``targets``: a third part, ``1.0`` for rows and ``0.0`` for padding, which Keras takes as
        weights of the losses, not of ``metrics=``; ``_mask`` itself is then left out. It implies ``tail="pad"``.
    :param options: those of :class:`bowstring.Loader`.
    """
    device = wanted(options)
    if device == "auto":
        options["device"] = "cpu"
    elif device.startswith("cuda"):
        problem = f"{device!r}: a tf.data.Dataset is on the host; take bowstring.tensorflow.Loader for batches on a GPU"
        raise ConfigError(f"option device: {problem}", option="device")
    if weights_from_mask:
        tail = told(options)
        if tail not in (None, "pad"):
            problem = f"tail={tail!r} pads nothing, and every row of a batch weighs the same; leave out one of the two"
            raise ConfigError(f"option weights_from_mask: {problem}", option="weights_from_mask")
        options["tail"] = "pad"
    loader = _Loader(url, **options)
    return Dataset(loader, columns_of(loader._native), targets, inputs, weights_from_mask)


class Loader(BaseLoader[Any]):
    """Yields ``dict[str, tf.Tensor]``, eagerly, and with ``device="cuda"`` on that GPU, copied there ahead of time.

    Such tensors are over the loader's own memory. TensorFlow waits for no stream, so this loader waits for each batch, and reuses
    its memory after all work queued on the GPU (``device_fence="context"``). Let TensorFlow leave room for it: it takes nearly all
    of a GPU's memory unless ``tf.config.experimental.set_memory_growth`` is set.

    Lists are ``x__values`` and ``x__offsets``; text and binary are ``tf.string``, nulls in them empty.
    For ``model.fit`` see :func:`dataset`.
    """

    def __init__(self, url: Url | Sequence[Url], **options: Any) -> None:
        super().__init__(url, **placed(options, "TensorFlow", lambda: bool(tf.config.list_physical_devices("GPU"))))

    def _array(self, tensor: _native.Tensor) -> Any:
        if tensor.device == "cpu":
            return tf.convert_to_tensor(numpy_array(tensor))
        capsule = tensor.__dlpack__(stream=-1)
        # The address becomes available once the tensor has arrived: from_dlpack does not wait.
        _ = tensor.data_ptr
        return tf.experimental.dlpack.from_dlpack(capsule)

    def _text(self, name: str, array: _native.ArrowArray) -> Any:
        text, splits = Text.of(array)
        values = tf.io.parse_tensor(_string_tensor(text, name), tf.string)
        return tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False) if splits else values


class Dataset(tf.data.Dataset):  # type: ignore[misc]  # TensorFlow has no types
    """The result of :func:`dataset`: a ``tf.data.Dataset`` that knows its position."""

    def __init__(
        self,
        loader: _Loader,
        columns: Sequence[Column],
        targets: str | Sequence[str] | None,
        inputs: str | Sequence[str] | None,
        weights_from_mask: bool,
    ) -> None:
        self._loader = loader
        self._columns = columns
        for column in self._columns:
            if column.dtype is None and not column.is_text:
                problem = f"column {column.name!r} is {column.arrow}, for which TensorFlow has no type"
                raise ConfigError(f"option arrow: {problem}; deliver it as a tensor", option="arrow")
        self._lock = threading.Lock()
        self._steps = len(loader)
        # The loader itself is where the last request was: stages of older iterators may read ahead meanwhile.
        self._course = Course(self._steps, (loader.epoch, loader.step))
        # The last epoch of which a pass has begun here. The pass of an iterator that was restored has begun elsewhere.
        self._begun = -1
        self._arrange = _arrangement(self._columns, targets, inputs, weights_from_mask)
        self._inner = self._graph(beside=False)
        self._beside: Any = None
        super().__init__(self._inner._variant_tensor)

    # ---- the interface of TensorFlow's datasets ---------------------------------------------------------------------------

    def _inputs(self) -> list[Any]:
        return [self._inner]

    def __iter__(self) -> Any:
        if not self._course.iterated():
            return super().__iter__()
        # A graph of its own tells its passes from those of training, which may begin meanwhile.
        if self._beside is None:
            self._beside = self._graph(beside=True)
        return iter(self._beside)

    @property
    def element_spec(self) -> Any:
        """Types and shapes of the values in a batch."""
        return self._inner.element_spec

    def __len__(self) -> int:
        """Steps of one epoch: exact, and the same on every rank."""
        return self._steps

    # ---- the position ---------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of :meth:`state_dict`."""
        return self._course.consumed[0]

    @property
    def step(self) -> int:
        """Number of consumed steps of that epoch."""
        return self._course.consumed[1]

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self._loader.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._loader.world_size

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that left this dataset; with :meth:`callback`, the last that the model has trained on.

        A small JSON document, the same on every rank, for every world size and in every loader of bowstring.
        """
        epoch, step = self._course.consumed
        return self.state_at(step, epoch)

    def state_at(self, step: int, epoch: int | None = None) -> dict[str, Any]:
        """The position after ``step`` batches of ``epoch``, by default of the current one."""
        epoch = self._course.consumed[0] if epoch is None else whole("epoch", epoch)
        return self._loader._native.state_at(epoch, whole("step", step))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next iterator begin at a position that ``state_dict`` of any loader returned, on any rank of any world size."""
        with self._lock:
            self._loader.load_state_dict(state_dict)
            self._course.place((self._loader.epoch, self._loader.step))

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iterator begin with ``epoch``, as :meth:`bowstring.Loader.set_epoch` does."""
        with self._lock:
            course = self._course
            due = course.consumed if course.opening else course.due()
            if due is None or due[0] != epoch:
                self._loader.set_epoch(epoch)
                due = (self._loader.epoch, self._loader.step)
            if not course.opening or due != course.consumed:
                course.place(due)

    def peek(self) -> Any:
        """A copy of the next batch, as from :meth:`bowstring.Loader.peek`, in this dataset's structure."""
        with self._lock:
            due = self._course.due()
            if due is not None:
                self._seek(*due)
                self._course.start, self._course.moved = None, False
            arrays = self._loader._native.peek(self._arrays)
        if arrays is None:
            raise NotFoundError("there is no batch to look at: an epoch of this dataset has no steps")
        return self._structured([tf.convert_to_tensor(array) for array in arrays])

    def callback(self) -> Any:
        """A ``keras.callbacks.Callback`` for ``fit``: :meth:`state_dict` is then the position that the model has trained to.

        It also sets where each new iterator of Keras begins, independently of reading ahead in later stages, and ends Keras'
        epoch where the data's ends: ``fit(data, initial_epoch=data.epoch, epochs=...)`` continues in the middle of an epoch.
        A fit that was interrupted continues at the batch. Put it before callbacks that save or stop; docs/frameworks.md has its
        limits.

        :raises NotFoundError: if an epoch has no steps.
        """
        if not self._steps:
            hint = "check filter, and tail='drop' with fewer rows than a batch has"
            raise NotFoundError(f"there is nothing to train on: an epoch of this dataset has no steps; {hint}")
        return callback(self)

    def stats(self) -> Stats:
        """As :meth:`bowstring.Loader.stats`."""
        return self._loader.stats()

    def report(self) -> str:
        """As :meth:`bowstring.Loader.report`."""
        return self._loader.report()

    def close(self) -> None:
        """Stops everything at once. Batches already yielded stay valid."""
        self._loader.close()

    # ---- the graph, and what it calls -----------------------------------------------------------------------------------

    def _graph(self, beside: bool) -> Any:
        """begin ─► (epoch, step), (epoch, step + 1), ... ─► take(epoch, step) ─► the batch; and end.

        Later stages ask TensorFlow for the number of elements. It takes a choice among datasets for endless if one of
        them is, and a zip for as long as its shortest: so a choice that never takes the endless one, beside a range, has its
        length, and ends earlier if a pass begins in the middle.
        """
        numbers = tf.data.Dataset.range
        wires = [wire for column in self._columns for wire in _wires(column)]

        def position(epoch: Any, first: Any, stop: Any) -> Any:
            steps = numbers(first, stop).map(lambda step: (epoch, step))
            # Requested after the last step, and empty.
            end = tf.data.Dataset.from_tensors(epoch).flat_map(lambda of: numbers(told(of)).map(lambda n: (of, n)))
            return steps.concatenate(end)

        def told(epoch: Any) -> Any:
            return tf.ensure_shape(tf.numpy_function(self._end, [epoch], tf.int64), [])

        def batch(epoch: Any, step: Any) -> Any:
            arrays = tf.numpy_function(self._take, [epoch, step], [wire for wire, _ in wires])
            for array, (_, shape) in zip(arrays, wires, strict=True):
                array.set_shape(shape)
            return self._structured(arrays)

        def begin(_: Any) -> Any:
            return [tf.ensure_shape(n, []) for n in tf.numpy_function(lambda: self._begin(beside), [], [tf.int64] * 3)]

        settings = tf.data.Options()
        settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        # TensorFlow would read ahead of the consumer by itself; the loader's own threads do so already.
        settings.experimental_optimization.inject_prefetch = False
        # Python's objects are not part of an iterator's state: every batch is requested by its number.
        settings.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        start = tf.data.Dataset.from_tensors(0).map(lambda _: tuple(begin(_)))
        zero = tf.constant(0, tf.int64)
        endless = tf.data.Dataset.from_tensors((zero, zero)).repeat()
        first = tf.data.Dataset.from_tensors(zero).repeat()
        positions = tf.data.Dataset.choose_from_datasets(
            [start.flat_map(position), endless], first, stop_on_empty_dataset=True
        )
        counted = tf.data.Dataset.zip(positions, numbers(self._steps))
        return counted.map(lambda at, _: batch(*at)).with_options(settings)

    def _structured(self, arrays: Sequence[Any]) -> Any:
        rest = iter(arrays)
        found: dict[str, Any] = {}
        for column in self._columns:
            found.update(_assembled(column, rest))
        return self._arrange(found)

    def _begin(self, beside: bool) -> Any:
        with self._lock:
            number, at = self._course.begin(beside, self)
            epoch, step = self._beginning(at)
            self._course.moved = number < 0
            if number >= 0:
                self._begun = max(self._begun, epoch)
        return [_int64(number * _EPOCHS + epoch), _int64(step), _int64(self._steps)]

    def _not_divided(self) -> None:
        """Refuses a pass of which Keras gives each of several processes a part of what is this process's part already."""
        keras = sys.modules.get("keras") if self.world_size > 1 else None
        over = keras.distribution.distribution() if keras is not None else None
        if over is not None and getattr(over, "num_processes", 1) > 1 and getattr(over, "auto_shard_dataset", False):
            raise ConfigError(
                f"option world_size: this dataset has the rows of rank {self.rank} of {self.world_size}, which Keras would "
                "divide among the processes once more; give its distribution auto_shard_dataset=False, or the dataset "
                "rank=0 and world_size=1",
                option="world_size",
            )

    def _beginning(self, at: Position | None) -> Position:
        """The start of a pass that begins now, ``at`` if given. Requests have numbers, so earlier passes may continue."""
        self._not_divided()
        self._loader._still_its_rank()
        native = self._loader._native
        # A loader that has just ended an epoch is at the next one, whose batches may already be on their way.
        if at is not None and (at[1] > 0 or at != (native.epoch, native.step)):
            self._seek(*at)
        native.begin(_itself)
        return native.epoch, native.step

    def _next(self) -> Position:
        """Where a pass would begin now."""
        with self._lock:
            at = self._course.due()
            self._course.start, self._course.moved = None, False
            return self._beginning(at)

    def _seek(self, epoch: int, step: int) -> None:
        native = self._loader._native
        native.load_state(native.state_at(epoch, step))

    def _end(self, epoch: Any) -> Any:
        """Reports the end of ``epoch``, as a loader does."""
        number, ended = divmod(int(epoch), _EPOCHS)
        with self._lock:
            native = self._loader._native
            if (native.epoch, native.step) == (ended, self._steps):
                native.next(_itself)
            self._course.end(number, ended, restored=ended > self._begun)
        return _int64(0)

    def _take(self, epoch: Any, step: Any) -> list[Any]:
        number, of = divmod(int(epoch), _EPOCHS)
        wanted = (of, int(step))
        with self._lock:
            native = self._loader._native
            self._course.moved |= number < 0
            if (native.epoch, native.step) != wanted:
                self._seek(*wanted)
            batch = native.next(_itself)
        if batch is None:
            raise UnsupportedError(f"epoch {wanted[0]} has no step {wanted[1]}")
        # Without the lock: TensorFlow may need a thread for it, and all of them may wait for the lock. A batch that fails is read
        # again when it is requested.
        arrays = self._arrays(batch)
        with self._lock:
            self._course.take(number, *wanted)
        return arrays

    def _arrays(self, batch: Mapping[str, _native.Tensor | _native.ArrowArray]) -> list[Any]:
        found: list[Any] = []
        for column in self._columns:
            for part in column.parts:
                value = batch[part]
                if isinstance(value, _native.Tensor):
                    found.append(numpy_array(value))
                else:
                    text, splits = Text.of(value)
                    found.extend((_string_tensor(text, column.name), *splits))
        return found


# ---- from columns to tensors ------------------------------------------------------------------------------------------------


def _wires(column: Column) -> list[tuple[Any, list[int | None]]]:
    """Type and shape of every array passed for a column, in the order of :meth:`Dataset._arrays`."""
    splits: list[tuple[Any, list[int | None]]] = [(tf.int64, [None])] * column.ragged
    if column.ragged:
        splits[0] = (tf.int64, [None if column.rows is None else column.rows + 1])
    if column.is_text:
        wires: list[tuple[Any, list[int | None]]] = [(tf.string, []), *splits]
    elif column.ragged:
        wires = [(tf.as_dtype(column.dtype), [None, *column.inner]), *splits]
    else:
        wires = [(tf.as_dtype(column.dtype), [*column.leading, *column.inner])]
    for part in column.parts:
        extra = part.removeprefix(column.name)
        if extra == "__valid":
            wires.append((tf.bool, [*column.leading, *column.inner_of(part)]))
        elif extra == "__shape":
            wires.append((tf.int64, [*column.leading, None]))
        elif extra == "__indices":
            wires.append((tf.int32, [None]))
        elif extra.startswith("__lengths"):
            wires.append((tf.int64, [*column.leading, *column.inner_of(part)]))
    return wires


def _assembled(column: Column, arrays: Any) -> dict[str, Any]:
    values = next(arrays)
    if column.is_text:
        values = tf.io.parse_tensor(values, tf.string)
        values.set_shape([None] if column.ragged else [column.rows])
        if not column.ragged and len(column.leading) > 1:
            values = tf.reshape(values, [-1 if axis is None else axis for axis in column.leading])
    if column.ragged:
        splits = [next(arrays) for _ in range(column.ragged)]
        values = tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False)
    found = {column.name: values}
    for part in column.parts:
        extra = part.removeprefix(column.name)
        if extra.startswith(("__valid", "__shape", "__lengths")):
            found[part] = next(arrays)
        elif extra == "__indices":
            # They belong to the same rows as the values.
            found[part] = tf.RaggedTensor.from_nested_row_splits(next(arrays), splits, validate=False)
    return found


def _arrangement(
    columns: Sequence[Column],
    targets: str | Sequence[str] | None,
    inputs: str | Sequence[str] | None,
    weights: bool,
) -> Callable[[Mapping[str, Any]], Any]:
    """The layout of a batch: a dictionary, or the form that Keras expects."""
    known = list(dict.fromkeys(name for column in columns for name in (column.name, *column.parts)))
    for option, given in (("targets", targets), ("inputs", inputs)):
        for name in [given] if isinstance(given, str) else given or ():
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                meant = f"did you mean {near[0]!r}? " if near else ""
                problem = f"there is no column {name!r}; {meant}there are {', '.join(known)}"
                raise ConfigError(f"option {option}: {problem}", option=option)
    packed = {column.name for column in columns if column.packed}

    def part(batch: dict[str, Any], wanted: str | Sequence[str]) -> Any:
        return batch.pop(wanted) if isinstance(wanted, str) else {name: batch.pop(name) for name in wanted}

    def arrange(batch: Mapping[str, Any]) -> Any:
        rest = dict(batch)
        mask = rest.pop("_mask", None) if weights and targets is not None else None
        second = None if targets is None else part(rest, targets)
        if inputs is not None:
            first = part(rest, inputs)
        elif targets is not None and len(rest) == 1 and packed.issuperset(rest):
            # A sequential model takes a matrix rather than a dictionary of one.
            first = next(iter(rest.values()))
        else:
            first = rest
        parts = (first,) if targets is None else (first, second)
        parts = parts if mask is None else (*parts, tf.cast(mask, tf.float32))
        return parts if len(parts) > 1 else first

    return arrange


def _itself(batch: dict[str, _native.Tensor | _native.ArrowArray]) -> dict[str, _native.Tensor | _native.ArrowArray]:
    return batch


def _int64(number: int) -> Any:
    import numpy

    return numpy.int64(number)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _varints(lengths: Any) -> bytes:
    """Numbers below 2^35 as varints of Protocol Buffers, one after another."""
    import numpy

    if not len(lengths) or lengths.max() < 128:
        return bytes(lengths.astype(numpy.uint8).tobytes())
    shifted = lengths[:, None] >> (numpy.arange(5) * 7)
    there = shifted > 0
    there[:, 0] = True
    more = numpy.pad(there[:, 1:], ((0, 0), (0, 1)))
    return bytes((shifted & 127 | more * 128).astype(numpy.uint8)[there].tobytes())


def _string_tensor(text: Text, name: str) -> bytes:
    """A ``TensorProto`` of strings: ``tf.io.parse_tensor`` makes the tensor from it, so that Python handles no single value."""
    import numpy

    used = text.used
    if len(used) > _MOST_TEXT:
        problem = f"column {name!r} has {len(used)} bytes in one batch; TensorFlow takes at most {_MOST_TEXT}"
        raise LimitError(f"{problem}; use a smaller batch_size", column=name, option="batch_size")
    lengths = _varints(numpy.diff(text.offsets))
    # dim { size } in tensor_shape { dim }; then dtype, tensor_shape, tensor_content.
    size = b"\x08" + _varint(len(text.offsets) - 1)
    dim = b"\x12" + _varint(len(size)) + size
    head = b"\x08\x07\x12" + _varint(len(dim)) + dim + b"\x22" + _varint(len(lengths) + len(used))
    return b"".join((head, lengths, memoryview(used)))


Loader.__doc__ = f"{Loader.__doc__}\n{BaseLoader.__doc__}"
