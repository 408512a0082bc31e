"""Parquet to training batches, without a copy.

>>> from bowstring import Loader
>>> with Loader("clicks/*.parquet", batch_size=4096, columns=["user_*", "label"]) as loader:  # doctest: +SKIP
...     for batch in loader:
...         train(batch["label"])

:class:`bowstring.torch.DataLoader` yields torch tensors. :mod:`bowstring.tensorflow`, :mod:`bowstring.jax`,
:mod:`bowstring.lightning` and :mod:`bowstring.ray` do for their frameworks what it does for torch.
"""

from typing import TYPE_CHECKING, Any

from bowstring._native import ArrowArray, Tensor, __version__, doctor
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
from bowstring.gang import Gang, Member
from bowstring.index import index, write_index
from bowstring.loader import Loader
from bowstring.planning import plan
from bowstring.server import Server
from bowstring.writer import DatasetWriter, Stored

if TYPE_CHECKING:
    from bowstring.inference import ModelClient, serve_model

__all__ = [
    "ArrowArray",
    "ClosedError",
    "ConfigError",
    "CorruptError",
    "DatasetWriter",
    "DeviceError",
    "Error",
    "FencedError",
    "Fill",
    "Gang",
    "Image",
    "LimitError",
    "Loader",
    "Member",
    "MismatchError",
    "ModelClient",
    "NGram",
    "NotFoundError",
    "NullsError",
    "Pack",
    "Padded",
    "RemoteError",
    "Server",
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
    "index",
    "plan",
    "serve_model",
    "verify",
    "write_index",
]


def __getattr__(name: str) -> Any:
    # These two need pyarrow, which the rest does without.
    if name in ("ModelClient", "serve_model"):
        import bowstring.inference

        return getattr(bowstring.inference, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
