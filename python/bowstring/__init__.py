"""Parquet to shuffled, decoded training batches, as tensors that the framework uses in place.

>>> from bowstring import Loader
>>> with Loader("clicks/*.parquet", batch_size=4096, columns=["user_*", "label"]) as loader:  # doctest: +SKIP
...     for batch in loader:
...         train(batch["label"])

:class:`bowstring.torch.DataLoader` yields torch tensors. :mod:`bowstring.tensorflow`, :mod:`bowstring.jax`,
:mod:`bowstring.lightning` and :mod:`bowstring.ray` are the adapters of their frameworks. :mod:`bowstring.flight` has servers and
gangs, :mod:`bowstring.inference` serves models. :func:`bowstring.open` and :mod:`bowstring.fs` read and save files of stores.
"""

from typing import TYPE_CHECKING, Any

import bowstring.ending  # noqa: F401 - the first to be registered is the last at the end
from bowstring._native import ArrowArray, Tensor, __version__, doctor
from bowstring.batch import Batch
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
from bowstring.lazily import named
from bowstring.loader import Loader
from bowstring.schema import Field, Schema

if TYPE_CHECKING:
    from bowstring import flight as flight
    from bowstring.certificates import audit
    from bowstring.planning import plan
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

# Imported when they are first named: every rank of a job pays for what is imported here, and few of them write, audit or serve.
# A name that is a module's too (`convert`, `index`) cannot wait: whoever imports the module would put it in the function's place.
_LATER = {
    "DatasetWriter": "bowstring.writer",
    "Stored": "bowstring.writer",
    "audit": "bowstring.certificates",
    "flight": "bowstring.flight",
    "plan": "bowstring.planning",
}


def __getattr__(name: str) -> Any:
    return named(__name__, _LATER, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
