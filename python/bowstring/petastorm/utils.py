"""Decoding by hand, for values that were read by other means, such as a Spark RDD."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from bowstring.petastorm.errors import DecodeFieldError
from bowstring.petastorm.unischema import Unischema, UnischemaField

__all__ = ["DecodeFieldError", "add_to_dataset_metadata", "decode_row", "run_in_subprocess"]


def run_in_subprocess(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of ``func``, a function of a module, run in a process of its own.

    The process is started afresh, not forked: this one has threads.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(func, args, kwargs)


def add_to_dataset_metadata(dataset: Any, key: str | bytes, value: str | bytes) -> None:
    """Adds a value to ``_common_metadata``, keeping the existing ones; needs pyarrow.

    :param dataset: a URL or path, or a ``pyarrow.parquet.ParquetDataset``.
    """
    from bowstring.petastorm.etl._footer import Folder
    from bowstring.petastorm.etl.dataset_metadata import _url_of

    paths = getattr(dataset, "paths", None)
    if paths is not None and not isinstance(paths, str):
        raise ValueError("the dataset must be one directory, not a list of files")
    name, content = (text.encode() if isinstance(text, str) else text for text in (key, value))
    Folder(_url_of(dataset)).add({name: content})


def decode_row(row: Mapping[str, Any], schema: Unischema) -> dict[str, Any]:
    """The decoded values of the fields that ``schema`` knows."""
    return {str(name): _decoded(schema.fields[name], value) for name, value in row.items() if name in schema.fields}


def _decoded(field: UnischemaField, value: Any) -> Any:
    if value is None:
        return None
    try:
        if field.codec is not None:
            return field.codec.decode(field, value)
        dtype = field.numpy_dtype
        return dtype(value) if isinstance(dtype, type) and issubclass(dtype, (np.generic, Decimal)) else value
    except Exception as error:
        raise DecodeFieldError(f"field {field.name} does not decode: {error}") from error
