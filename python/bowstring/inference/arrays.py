"""Arrow columns as a model's tensors, and its results as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bowstring.errors import MismatchError, NotFoundError, UnsupportedError
from bowstring.fields import lacking

__all__ = ["Model", "compact", "has_no_bytes", "joined", "predicted", "rebatched", "tensors"]

Model: TypeAlias = "Callable[[dict[str, Any]], Mapping[str, Any] | Any]"


def tensors(batch: pa.RecordBatch, columns: Sequence[str] | None = None, device: str | None = None) -> dict[str, Any]:
    """The columns of ``batch`` as inputs of a model.

    Numbers and booleans are arrays ``[rows]``, lists of them of one length ``[rows, length]``: NumPy over Arrow's memory,
    or with ``device`` torch tensors there. Anything else, such as strings, dates and lists of different lengths, stays a
    ``pyarrow.Array``.
    """
    found = {}
    for name in batch.schema.names if columns is None else columns:
        if name not in batch.schema.names:
            raise NotFoundError(f"column {name!r} not found; there are {', '.join(batch.schema.names)}")
        array = _dense(name, batch.column(name))
        if isinstance(array, np.ndarray) and device is not None:
            import torch

            # A copy: torch treats read-only memory as writable.
            array = torch.from_numpy(np.array(array)).to(device)
        found[name] = array
    return found


def _dense(name: str, array: Any) -> Any:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _dense(name, array.storage)
    if _is_number(kind):
        if array.null_count:
            raise UnsupportedError(
                f"column {name!r} has {array.null_count} nulls, which tensors have not: fill them first"
            )
        return array.to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(kind):
        length = kind.list_size
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.unique(pc.list_value_length(array)).to_pylist()
        if len(lengths) > 1 or lengths == [None]:
            return array
        length = lengths[0] if lengths else 0
    else:
        return array
    if array.null_count or not _is_number(kind.value_type):
        return array
    return _dense(name, array.flatten()).reshape(len(array), length)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def has_no_bytes(kind: pa.DataType) -> bool:
    """True if the bytes of values of a type say nothing of their number: a few bytes may be any number of rows."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_no_bytes(kind.storage_type)
    if pa.types.is_struct(kind):
        return all(has_no_bytes(field.type) for field in kind)
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size == 0 or has_no_bytes(kind.value_type)
    if pa.types.is_fixed_size_binary(kind):
        return bool(kind.byte_width == 0)
    return bool(pa.types.is_null(kind) or pa.types.is_run_end_encoded(kind))


def predicted(outputs: Any, rows: int, schema: pa.Schema | None) -> pa.RecordBatch:
    """A model's result for ``rows`` rows: a mapping of columns, or the one column of ``schema``.

    :param schema: required names and types; by default the model's.
    """
    if not isinstance(outputs, Mapping):
        if schema is None or len(schema) != 1:
            raise MismatchError(f"a model returns a mapping of columns, not a {type(outputs).__name__}")
        outputs = {schema.names[0]: outputs}
    columns, fields = [], []
    for name in outputs if schema is None else schema.names:
        if name not in outputs:
            raise MismatchError(f"the model returned {', '.join(outputs)}, but no {name!r}")
        if not (hasattr(outputs[name], "__len__") or hasattr(outputs[name], "__array__")):
            raise MismatchError(f"a model returns arrays, not a {type(outputs[name]).__name__} ({name!r})")
        array = _column(outputs[name], None if schema is None else schema.field(name).type)
        if len(array) != rows:
            raise MismatchError(f"the model returned {len(array)} values of {name!r} for {rows} rows")
        if schema is not None and array.type != schema.field(name).type:
            array = _cast(name, array, schema.field(name).type)
        if schema is not None and not schema.field(name).nullable and array.null_count:
            raise MismatchError(f"the model returned {array.null_count} nulls of {name!r}, which was declared NOT NULL")
        columns.append(array)
        fields.append(pa.field(name, array.type) if schema is None else schema.field(name))
    if not columns and rows:
        raise MismatchError("the model returned no columns")
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _cast(name: str, array: Any, kind: pa.DataType) -> Any:
    lacks = lacking(array.type, kind)
    if lacks is not None:
        raise MismatchError(
            f"the model returned {name!r} as {array.type}, but {kind} was declared: it has no {lacks!r}"
        )
    try:
        made = array.cast(kind)
        lost = _lost(array, made)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise MismatchError(f"the model returned {name!r} as {array.type}, but {kind} was declared: {error}") from error
    if lost is not None:
        raise MismatchError(f"the model returned {name!r} as {array.type}, but {kind} was declared: {lost}")
    return made


def _lost(array: Any, made: Any) -> str | None:
    """What values of ``array``, also in lists, maps and structs, have lost in ``made`` without an error of Arrow's cast."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_struct(array.type) and pa.types.is_struct(made.type):
        names = [field.name for field in array.type]
        children = zip(made.type, made.flatten(), strict=True)
        pairs = [(array.flatten()[names.index(field.name)], child) for field, child in children if field.name in names]
        return next(filter(None, (_lost(before, after) for before, after in pairs)), None)
    if hasattr(array, "flatten") and hasattr(made, "flatten") and pa.types.is_nested(array.type):
        return _lost(_flat(array), _flat(made))
    if len(array) != len(made):
        return None
    if pa.types.is_timestamp(array.type):
        if pa.types.is_time(made.type) and made.null_count < len(made):
            return "a time has no date"
        # Of the time zone, as the cast has it.
        if (
            pa.types.is_date(made.type)
            and pc.any(pc.not_equal(array.cast(pa.time64("ns")).cast(pa.int64()), 0)).as_py()
        ):
            return "a date has no time"
    elif (pa.types.is_floating(array.type) or pa.types.is_integer(array.type)) and pa.types.is_floating(made.type):
        became = np.isinf(made.to_numpy(zero_copy_only=False)) & ~np.isinf(array.to_numpy(zero_copy_only=False))
        if became.any():
            return "a number is beyond its range"
    return None


def _flat(array: Any) -> Any:
    """The values of lists, or the pairs of maps as structs: Arrow does not flatten maps."""
    if not pa.types.is_map(array.type):
        return array.flatten()
    first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"]).slice(first, end - first)


def _column(value: Any, wanted: pa.DataType | None) -> Any:
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value
    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu().numpy()
    if not isinstance(value, (np.ndarray, list, tuple)) and hasattr(value, "__array__"):
        value = np.asarray(value)
    if wanted is not None and pa.types.is_map(wanted):
        return _maps(value, wanted)
    if not isinstance(value, np.ndarray) or value.ndim == 1:
        try:
            return pa.array(value)
        except OverflowError:  # Arrow infers int64 for all integers
            return pa.array(value, type=pa.uint64())
    # [rows, ..., n] from the inside out. What is masked stays so.
    array = pa.array(value.reshape(-1))
    for axis in range(value.ndim - 1, 0, -1):
        rows = int(np.prod(value.shape[:axis]))
        offsets = np.arange(rows + 1, dtype=np.int32) * value.shape[axis]
        array = pa.ListArray.from_arrays(pa.array(offsets), array)
    return array


def _maps(rows: Iterable[Any], wanted: pa.DataType) -> Any:
    """Maps of rows of pairs. Keys and items are arrays by themselves: pairs are lists of mixed values, or lose silently."""
    offsets: list[int | None] = []
    keys: list[Any] = []
    items: list[Any] = []
    for row in rows:
        pairs = row.as_py() if isinstance(row, pa.Scalar) else row
        offsets.append(None if pairs is None else len(keys))
        if pairs is None:
            continue
        for pair in pairs.items() if isinstance(pairs, Mapping) else pairs:
            if isinstance(pair, Mapping):
                pair = (pair["key"], pair["value"])
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise MismatchError(f"the model returned a map of {pair!r}, which is not (key, value)")
            keys.append(pair[0])
            items.append(pair[1])
    offsets.append(len(keys))
    # Arrow refuses numbers that are no such decimals, and casts no short integers.
    of = wanted.item_type
    values = pa.array(items, of) if pa.types.is_decimal(of) else _column(items, of)
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), _column(keys, wanted.key_type), values)


def rebatched(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, ``rows`` at a time; the last batch may have fewer."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            piece = batch.slice(0, rows - count)
            held.append(piece)
            count += piece.num_rows
            batch = batch.slice(piece.num_rows)
            if count == rows:
                yield joined(held)
                held, count = [], 0
    if held:
        yield joined(held)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches with one schema as one."""
    if len(batches) == 1:
        return batches[0]
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays([batch.column(index) for batch in batches]) for index in range(batches[0].num_columns)],
        schema=batches[0].schema,
    )


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in memory of their own: a slice keeps all rows of its batch, and whatever their memory is part of."""
    try:
        columns = [pa.concat_arrays([column]) for column in batch.columns]
    except pa.ArrowException:  # a type that Arrow cannot copy
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch
