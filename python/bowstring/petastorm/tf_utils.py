"""Petastorm's bridge to TensorFlow."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from bowstring.errors import UnsupportedError
from bowstring.petastorm._lazy import needed
from bowstring.petastorm._times import in_unit
from bowstring.petastorm.unischema import Unischema

__all__ = ["date_to_nsec_from_epoch", "make_namedtuple_tf_ngram", "make_petastorm_dataset", "tf_tensors"]

# NumPy's class -> TensorFlow's type, where the names differ; times are nanoseconds.
_TYPES: dict[Any, str] = {
    np.uint16: "int32",
    np.uint32: "int64",
    np.str_: "string",
    np.bytes_: "string",
    np.bool_: "bool",
    Decimal: "string",
    np.datetime64: "int64",
}
_SAME = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64, np.float16, np.float32, np.float64)


def date_to_nsec_from_epoch(dt: datetime.date) -> int:
    """Nanoseconds from 1970-01-01 to the start of a day."""
    return (dt - datetime.date(1970, 1, 1)).days * 86_400_000_000_000


def _type(numpy_dtype: Any) -> Any:
    tf = needed("tensorflow", "make_petastorm_dataset")
    if numpy_dtype in _SAME:
        return tf.as_dtype(numpy_dtype)
    if numpy_dtype not in _TYPES:
        raise ValueError(f"{numpy_dtype} has no TensorFlow type")
    if numpy_dtype is np.str_:
        warnings.warn("TensorFlow holds strings as bytes: decode them", UnicodeWarning, stacklevel=4)
    return tf.as_dtype(_TYPES[numpy_dtype])


def _value(name: str, value: Any) -> Any:
    """A value that TensorFlow accepts."""
    if value is None:
        raise RuntimeError(f"{name} is None, which TensorFlow has not: drop such rows with a predicate")
    if isinstance(value, Decimal):
        return str(value.normalize())
    if isinstance(value, np.datetime64):
        return in_unit(np.asarray(value), "ns", name).astype(np.int64)[()]
    if isinstance(value, np.ndarray):
        return _array(name, value)
    return value


def _array(name: str, value: Any) -> Any:
    if value.dtype.kind == "M":
        return in_unit(value, "ns", name).astype(np.int64)
    if value.dtype in (np.uint16, np.uint32):
        return value.astype(np.int32 if value.dtype == np.uint16 else np.int64)
    if value.dtype.kind in "SU":
        return value.tolist() if value.size else value
    if value.dtype.kind == "O" and value.size:
        if isinstance(value.flat[0], datetime.date):
            return np.array([date_to_nsec_from_epoch(day) for day in value.tolist()])
        if isinstance(value.flat[0], Decimal):
            return [str(number.normalize()) for number in value.tolist()]
    return value


def _values(schema: Unischema, sample: Any) -> tuple[Any, ...]:
    """Those of the schema's fields, in its order: readers that are mixed may have another one."""
    return tuple(_value(name, getattr(sample, name)) for name in schema.fields)


def make_petastorm_dataset(reader: Any) -> Any:
    """A ``tf.data.Dataset`` of the reader's named tuples, or of dictionaries of them for an NGram.

    ``bowstring.Loader`` under ``tf.data.Dataset.from_generator`` is the faster form: TensorFlow takes some 0.3 ms per element,
    be it a row or a batch.
    """
    tf = needed("tensorflow", "make_petastorm_dataset")

    def samples() -> Iterator[tuple[Any, ...]]:
        if reader.last_row_consumed:
            warnings.warn(
                "another pass over the dataset resets its reader; num_epochs or cache() is faster", stacklevel=2
            )
            reader.reset()
        for sample in reader:
            yield flat(sample)

    flat: Callable[[Any], tuple[Any, ...]]
    if reader.ngram is None:
        flat = partial(_values, reader.schema)
        fields = list(reader.schema.fields.values())
        dataset = _generated(tf, samples, fields, batched=reader.batched_output)
        return dataset.map(reader.schema._get_namedtuple())

    schemas = {at: reader.ngram.get_schema_at_timestep(reader.schema, at) for at in reader.ngram.offsets()}

    def flat(window: Any) -> tuple[Any, ...]:  # type: ignore[no-redef]
        return tuple(value for at, schema in schemas.items() for value in _values(schema, window[at]))

    fields = [field for schema in schemas.values() for field in schema.fields.values()]
    dataset = _generated(tf, samples, fields, batched=False)
    return dataset.map(lambda *values: _windows(schemas, values))


def _generated(tf: Any, samples: Callable[[], Iterator[Any]], fields: list[Any], *, batched: bool) -> Any:
    rows = (None,) if batched else ()
    signature = tuple(tf.TensorSpec((*rows, *field.shape), _type(field.numpy_dtype)) for field in fields)
    # TensorFlow 1's class is TensorFlow 2's with the methods of both: make_one_shot_iterator, output_shapes.
    return tf.compat.v1.data.Dataset.from_generator(samples, output_signature=signature)


def _windows(schemas: dict[int, Unischema], values: tuple[Any, ...]) -> dict[int, Any]:
    left = iter(values)
    return {at: schema._get_namedtuple()(*(next(left) for _ in schema.fields)) for at, schema in schemas.items()}


def make_namedtuple_tf_ngram(unischema: Unischema, ngram: Any, *args: Any, **kargs: Any) -> dict[int, Any]:
    """Rows by offset from values by position, and by offset and name."""
    left = iter(args)
    made = {}
    for at in ngram.offsets():
        schema = ngram.get_schema_at_timestep(unischema, at)
        named = kargs.get(str(at), {})
        made[at] = schema._get_namedtuple()(*([] if named else [next(left) for _ in schema.fields]), **named)
    return made


def tf_tensors(reader: Any, shuffling_queue_capacity: int = 0, min_after_dequeue: int = 0) -> Any:
    """Tensors of a graph that yield the next row, or window, each time they are run: a named tuple, for an NGram one per offset.

    For graphs of TensorFlow 1, as ``tf.compat.v1`` of TensorFlow 2 has them. At the reader's end they raise
    ``tf.errors.OutOfRangeError``.

    :param reader: the reader; one of batches does not go with shuffling.
    :param shuffling_queue_capacity: rows of a ``RandomShuffleQueue``, which a queue runner fills; 0 for none.
    :param min_after_dequeue: rows that stay in the queue.
    """
    tf = needed("tensorflow", "tf_tensors").compat.v1
    if tf.executing_eagerly():
        raise UnsupportedError(
            "tf_tensors makes tensors of a graph, and there is none: use make_petastorm_dataset(reader), or call it within "
            "tf.Graph().as_default() or after tf.compat.v1.disable_eager_execution()"
        )
    if reader.batched_output and shuffling_queue_capacity > 0:
        raise ValueError(
            "shuffling_queue_capacity does not go with a reader of batches: shuffle_rows of the reader does"
        )
    schemas = {0: reader.schema}
    if reader.ngram is not None:
        schemas = {at: reader.ngram.get_schema_at_timestep(reader.schema, at) for at in reader.ngram.offsets()}
    fields = [field for schema in schemas.values() for field in schema.fields.values()]
    types = [_type(field.numpy_dtype) for field in fields]

    def following(_: Any) -> list[Any]:
        sample = next(reader)
        rows = {0: sample} if reader.ngram is None else sample
        values = [value for at, schema in schemas.items() for value in _values(schema, rows[at])]
        return [_typed(tf, value, kind) for value, kind in zip(values, types, strict=True)]

    values = tf.py_func(following, [tf.constant(1)], types)
    if shuffling_queue_capacity > 0:
        queue = tf.RandomShuffleQueue(shuffling_queue_capacity, min_after_dequeue, types)
        queue.size(name="random_shuffling_queue_size")  # for code that looks it up in the graph
        tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(values)]))
        values = queue.dequeue()
        values = values if isinstance(values, list) else [values]
    for field, value in zip(fields, values, strict=True):
        value.set_shape(((None,) if reader.batched_output else ()) + tuple(field.shape))
    windows = _windows(schemas, tuple(values))
    return windows[0] if reader.ngram is None else windows


def _typed(tf: Any, value: Any, kind: Any) -> Any:
    """A value of exactly the type that the graph was given."""
    return np.asarray(value, object if kind == tf.string else kind.as_numpy_dtype)
