"""A batch as a record batch of pyarrow: one column for each column of the dataset, over the batch's own memory.

Nulls become Arrow's own nulls, lists become lists. Only the bits of booleans and of nulls, which are bytes in tensors, are copied.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bowstring import _native
from bowstring.arrays import Column, pyarrow_for
from bowstring.errors import UnsupportedError
from bowstring.schema import Schema

__all__ = ["record_batch"]

Columns = Mapping[str, "_native.Tensor | _native.ArrowArray"]


def record_batch(schema: Schema, columns: Sequence[Column], batch: Columns) -> Any:
    """The columns of ``batch``, which must be on the host, as a ``pyarrow.RecordBatch``."""
    pyarrow = pyarrow_for("a record batch")
    fields, arrays = [], []
    for column in columns:
        if len(column.leading) > 1:
            raise UnsupportedError(
                f"column {column.name!r} of windows (ngram) in a record batch: its rows are not one after another; "
                "take to_numpy() or to_torch()"
            )
        for name, array, nullable in _arrays(column, batch):
            metadata = _metadata(schema, name)
            fields.append(pyarrow.field(name, array.type, nullable=nullable, metadata=metadata))
            arrays.append(array)
    return pyarrow.RecordBatch.from_arrays(arrays, schema=pyarrow.schema(fields))


def _metadata(schema: Schema, name: str) -> dict[str, str]:
    """The unit and the class names of a column, as in a loader's Arrow schema."""
    field = schema.get(name)
    found = {}
    if field is not None and field.unit is not None:
        found["bowstring.unit"] = field.unit
    if field is not None and field.classes is not None:
        found["bowstring.classes"] = json.dumps(list(field.classes), ensure_ascii=False)
    return found


def _arrays(column: Column, batch: Columns) -> Iterator[tuple[str, Any, bool]]:
    """Names, arrays and nullability of the Arrow columns of a column."""
    import numpy as np
    import pyarrow.compute

    name = column.name
    valid = f"{name}__valid"
    nullable = valid in column.parts
    mask: Any = batch[valid] if nullable else None
    if column.dtype is None:
        # Its nulls are in the array, but for those of lists and padding rows, which are empty there.
        found = pyarrow.array(batch[name])
        if nullable and pyarrow.types.is_large_list(found.type):
            # A list that has a null inside is masked too.
            found = _with_nulls(found, mask.numpy() | (np.diff(found.offsets.to_numpy()) > 0))
        elif nullable and found.null_count < np.count_nonzero(~mask.numpy()):
            found = pyarrow.compute.if_else(pyarrow.array(mask.numpy()), found, pyarrow.scalar(None, found.type))
        yield name, found, True
        return
    offsets = [part for part in column.parts if part.startswith(f"{name}__offsets")]
    values = f"{name}__values" if offsets else name
    found = _lists(_array(batch[values]), offsets, batch)
    if nullable:
        # A pack has a mask of its columns. One that a server makes does not say that it is one.
        of_values = mask.numpy().ndim > 1
        found = (_packed_with_nulls if of_values else _with_nulls)(found, mask.numpy())
    yield name, found, nullable
    indices = f"{name}__indices"
    for part in column.parts:
        if part == indices:
            # The columns of a sparse matrix that the values belong to.
            yield part, _lists(_array(batch[part]), offsets, batch), False
        elif part not in (values, valid, *offsets):
            yield part, _array(batch[part]), False


def _array(tensor: Any) -> Any:
    """``tensor`` as an Arrow array; of several axes as ``arrow.fixed_shape_tensor``, booleans as fixed-size lists."""
    import pyarrow

    if tensor.dtype == "bfloat16":
        raise UnsupportedError("bfloat16 in Arrow, which has no such type; cast the column to float32")
    if tensor.dtype != "bool":
        return pyarrow.array(tensor)
    found, shape = pyarrow.array(tensor.numpy().reshape(-1)), tensor.shape
    for axis in reversed(range(1, len(shape))):
        # The number of lists does not follow from that of values if they are empty.
        lists = math.prod(shape[:axis])
        found = pyarrow.Array.from_buffers(pyarrow.list_(found.type, shape[axis]), lists, [None], children=[found])
    return found


def _lists(values: Any, offsets: Sequence[str], batch: Columns) -> Any:
    """``values`` within lists, the outermost first among ``offsets``."""
    import pyarrow

    for name in reversed(offsets):
        values = pyarrow.LargeListArray.from_arrays(_array(batch[name]), values)
    return values


def _with_nulls(array: Any, valid: Any) -> Any:
    """``array`` with nulls where ``valid`` is false."""
    import pyarrow

    extension = isinstance(array, pyarrow.ExtensionArray)
    storage = array.storage if extension else array
    _, bitmap = pyarrow.array(valid).buffers()
    if pyarrow.types.is_fixed_size_list(storage.type):
        buffers, children = [bitmap], [storage.values]
    elif pyarrow.types.is_large_list(storage.type):
        buffers, children = [bitmap, storage.buffers()[1]], [storage.values]
    else:
        buffers, children = [bitmap, storage.buffers()[1]], None
    found = pyarrow.Array.from_buffers(storage.type, len(storage), buffers, children=children)
    return array.type.wrap_array(found) if extension else found


def _packed_with_nulls(array: Any, valid: Any) -> Any:
    """A pack whose single values may be null: a fixed-size list, since Arrow's tensors cannot contain nulls."""
    import pyarrow

    storage = array.storage if isinstance(array, pyarrow.ExtensionArray) else array
    flat = pyarrow.array(valid.reshape(-1))
    values = pyarrow.Array.from_buffers(
        storage.type.value_type, len(storage.values), [flat.buffers()[1], storage.values.buffers()[1]]
    )
    return pyarrow.FixedSizeListArray.from_arrays(values, storage.type.list_size)
