"""Parquet to training batches, in tensors that frameworks use in place.

>>> from bowstring import Loader
>>> with Loader("clicks/*.parquet", batch_size=4096, columns=["user_*", "label"]) as loader:  # doctest: +SKIP
...     for batch in loader:
...         train(batch["label"])

:class:`bowstring.torch.DataLoader` yields torch tensors. :mod:`bowstring.tensorflow`, :mod:`bowstring.jax`,
:mod:`bowstring.lightning` and :mod:`bowstring.ray` are the adapters of their frameworks. :mod:`bowstring.flight` has servers and
gangs, :mod:`bowstring.inference` serves models. :func:`bowstring.open` and :mod:`bowstring.fs` read and save files of stores.
"""

import bowstring.ending  # noqa: F401 - the first to be registered is the last at the end
from bowstring._native import ArrowArray, Tensor, __version__, doctor
from bowstring.batch import Batch
from bowstring.certificates import audit
from bowstring.columns import Fill, Image, NGram, Pack, Padded, Vector
from bowstring.convert import convert, verify
from bowstring.errors import (
    ClosedError,
    ConfigError,
    CorruptError,
    DeviceError,
    Error,
    FencedError,
    LimitError,
    MismatchError,
    NotFoundError,
    NullsError,
    RemoteError,
    ShardingError,
    SourceChangedError,
    StoreError,
    TimeoutError,
    UnknownOptionError,
    UnsupportedError,
    WideIntegersError,
)
from bowstring.file import File, FileWriter, flush, open
from bowstring.index import index, write_index
from bowstring.loader import Loader
from bowstring.planning import plan
from bowstring.schema import Field, Schema
from bowstring.writer import DatasetWriter, Stored

__all__ = [
    "ArrowArray",
    "Batch",
    "ClosedError",
    "ConfigError",
    "CorruptError",
    "DatasetWriter",
    "DeviceError",
    "Error",
    "FencedError",
    "Field",
    "File",
    "FileWriter",
    "Fill",
    "Image",
    "LimitError",
    "Loader",
    "MismatchError",
    "NGram",
    "NotFoundError",
    "NullsError",
    "Pack",
    "Padded",
    "RemoteError",
    "Schema",
    "ShardingError",
    "SourceChangedError",
    "StoreError",
    "Stored",
    "Tensor",
    "TimeoutError",
    "UnknownOptionError",
    "UnsupportedError",
    "Vector",
    "WideIntegersError",
    "__version__",
    "audit",
    "convert",
    "doctor",
    "flush",
    "index",
    "open",
    "plan",
    "verify",
    "write_index",
]
