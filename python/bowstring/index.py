"""The footers of a dataset, read once for all ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from bowstring import _native
from bowstring.credentials import CredentialProvider, provider
from bowstring.options import Url, document

__all__ = ["index", "write_index"]


def index(
    url: Url | Sequence[Url],
    *,
    storage_options: Mapping[str, str] | None = None,
    credential_provider: CredentialProvider | None = None,
    mounts: str | os.PathLike[str] | None = None,
    version: int | None = None,
    ref: str | None = None,
    timestamp: str | datetime | None = None,
    partitioning: Literal["hive", "dates", "none"] | None = None,
    timeout: float | None = None,
    limits: Mapping[str, int] | None = None,
) -> bytes:
    """The footers of the dataset at ``url``, for ``Loader(url, index=...)`` in other processes, which then read none.

    It is the same for every selection of a loader. Every rank must open the same ``url``. Files of the ranks' own machines are
    listed there again, and the footers of other copies are read. See :func:`bowstring.torch.shared_index`.
    """
    return _native.dataset_index(_options(url, locals()), provider(credential_provider))


def write_index(
    url: Url | Sequence[Url],
    output: str | os.PathLike[str] | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    credential_provider: CredentialProvider | None = None,
    mounts: str | os.PathLike[str] | None = None,
    version: int | None = None,
    ref: str | None = None,
    timestamp: str | datetime | None = None,
    partitioning: Literal["hive", "dates", "none"] | None = None,
    timeout: float | None = None,
    limits: Mapping[str, int] | None = None,
) -> str:
    """Writes the index to ``output``, or to ``_bowstring_index`` beside the dataset, where loaders find it; returns its address."""
    to = None if output is None else os.path.expanduser(output)
    return _native.write_index(_options(url, locals()), to, provider(credential_provider))


def _options(url: Url | Sequence[Url], given: Mapping[str, Any]) -> str:
    ours = ("url", "output", "to", "credential_provider")
    return document(url, {name: value for name, value in given.items() if name not in ours})
