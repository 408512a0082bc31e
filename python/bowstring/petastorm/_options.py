"""The parameters of Petastorm's readers: those honoured, those renamed, and those refused, with reasons."""

from __future__ import annotations

import os
import sys
import urllib.parse
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bowstring.errors import ConfigError
from bowstring.filesystem import addresses
from bowstring.paths import local_path
from bowstring.petastorm._source import Location
from bowstring.petastorm.ngram import NGram
from bowstring.petastorm.transform import TransformSpec
from bowstring.ranges import MOST, whole

__all__ = ["Settings", "check_cache", "check_numbers", "location", "normalized", "object_store_options", "renamed"]

_POOLS = ("thread", "process", "dummy")


@dataclass(frozen=True)
class Settings:
    """The checked parameters of a reader."""

    location: Location
    schema_fields: Iterable[Any] | NGram | None
    seed: int | None
    shuffle_rows: bool
    shuffle_row_groups: bool
    parts: int
    predicate: Any
    selector: Any
    num_epochs: int | None
    zmq_copy_buffers: bool
    """Only passed on, to :attr:`Reader.diagnostics`."""
    cur_shard: int | None
    shard_count: int | None
    shard_seed: int | None
    transform: TransformSpec | None
    workers: int
    """Threads for the user's functions; 0 runs them in the reader's caller."""
    cached: bool
    batched: bool


def renamed(option: str, meaning: str, category: type[Warning] = DeprecationWarning) -> None:
    """Warns that a parameter of Petastorm's no longer has an effect of its own, and names the replacement."""
    warnings.warn(f"{option}: {meaning}", category, stacklevel=_users_frame())


def _users_frame() -> int:
    """Distance of the first frame outside of this package: Python shows such warnings only if they come from the user's code."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("bowstring.petastorm"):
        level, frame = level + 1, frame.f_back
    return level


def _listed(url_or_urls: Any) -> list[str]:
    urls = url_or_urls if isinstance(url_or_urls, list) else [url_or_urls]
    if not urls:
        raise ValueError("the list of dataset URLs is empty")
    for url in urls:
        if not isinstance(url, str) or not url:
            raise ValueError(f"a dataset URL must be a string, got {url!r}")
    parts = [urllib.parse.urlparse(url) for url in urls]
    if len({(part.scheme, part.netloc) for part in parts}) > 1:
        raise ValueError("all dataset URLs must have the same scheme and host")
    return urls


def normalized(url_or_urls: Any) -> str | list[str]:
    """URLs as Petastorm checks them: strings with a scheme, of one store."""
    urls = _listed(url_or_urls)
    parts = [urllib.parse.urlparse(url) for url in urls]
    if not parts[0].scheme:
        raise ValueError(f"{urls[0]!r} has no scheme: write file://{os.path.abspath(urls[0])} for a local path")
    if parts[0].scheme not in ("file", "hdfs") and not parts[0].netloc:
        raise ValueError(f"{urls[0]!r} must have the form {parts[0].scheme}://bucket/path")
    if parts[0].scheme == "file":
        urls = [local_path(url, "dataset_url") or url for url in urls]  # unchanged, without decoding %20 and the like
    trimmed = [url.rstrip("/") for url in urls]
    return trimmed if isinstance(url_or_urls, list) else trimmed[0]


# Keyword of fsspec's file systems -> option of object_store, by scheme.
_S3 = {
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "endpoint_url": "aws_endpoint",
    "region_name": "aws_region",
    "anon": "aws_skip_signature",
    "profile": "aws_profile",
}
_AZURE = {
    "account_name": "azure_storage_account_name",
    "account_key": "azure_storage_account_key",
    "sas_token": "azure_storage_sas_key",
    "tenant_id": "azure_storage_tenant_id",
    "client_id": "azure_storage_client_id",
    "client_secret": "azure_storage_client_secret",
}
_GOOGLE = {"token": "google_service_account"}
_BY_SCHEME = {"s3": _S3, "s3a": _S3, "az": _AZURE, "abfs": _AZURE, "abfss": _AZURE, "gs": _GOOGLE, "gcs": _GOOGLE}


def object_store_options(urls: str | Sequence[str], storage_options: Mapping[str, Any] | None) -> dict[str, str]:
    """fsspec's keywords under the names of bowstring's ``storage_options``."""
    if not storage_options:
        return {}
    scheme = urllib.parse.urlparse(urls if isinstance(urls, str) else urls[0]).scheme.lower()
    names = _BY_SCHEME.get(scheme, {})
    given = {**storage_options, **storage_options.get("client_kwargs", {})}
    given.pop("client_kwargs", None)
    found: dict[str, str] = {}
    changed: list[str] = []
    for name, value in given.items():
        if isinstance(value, bool):
            value = "true" if value else "false"
        if name in names:
            changed.append(f"{name} -> {names[name]}")
        elif not isinstance(value, str):
            raise ConfigError(
                f"option storage_options: {name} is fsspec's and has no meaning here; use object_store's names, "
                "e.g. aws_region, or set the store's environment variables",
                option="storage_options",
            )
        found[names.get(name, name)] = str(value)
    if changed:
        renamed("storage_options", f"bowstring's storage_options have object_store's names: {', '.join(changed)}")
    return found


def check_cache(
    cache_type: str | None, location: Any, size_limit: int | None, row_size: int | None, settings: Any
) -> bool:
    """True if ``cache_type`` requests a cache, after checking its parameters as Petastorm does."""
    if cache_type in (None, "null"):
        return False
    if cache_type != "local-disk":
        raise ValueError(f"Unknown cache_type: it must be 'null' or 'local-disk', got {cache_type!r}")
    from bowstring.petastorm.local_disk_cache import check_size

    if size_limit is None or row_size is None or location is None:
        raise TypeError("cache_type='local-disk' needs cache_location, cache_size_limit and cache_row_size_estimate")
    check_size(size_limit, row_size, dict(settings or {}).get("shards", 6))
    renamed(
        "cache_type='local-disk'",
        "row groups are decoded anew in each epoch and nothing is kept at cache_location; copy the dataset to a local "
        "path if its store is slow",
    )
    return True


# Ranges of some of Petastorm's parameters, beyond which values have no meaning.
_RANGES = {
    "workers_count": (1, 1 << 12),
    "results_queue_size": (0, MOST),
    "shuffle_row_drop_partitions": (1, 1 << 20),
    "num_epochs": (1, MOST),
    "shard_count": (1, (1 << 31) - 1),
    "cur_shard": (0, (1 << 31) - 1),
    "seed": (0, (1 << 32) - 1),
    "shard_seed": (0, (1 << 32) - 1),
}


def check_numbers(given: Mapping[str, Any]) -> None:
    """Refuses a number outside of a parameter's range."""
    for name, (least, most) in _RANGES.items():
        if given.get(name) is not None:
            whole(name, given[name], least, most)


def _workers(pool: str, workers_count: int, results_queue_size: int) -> tuple[int, int | None]:
    """Threads for the user's functions, and for decoding."""
    if pool not in _POOLS:
        raise ValueError(f"Unknown reader_pool_type: it must be one of {', '.join(_POOLS)}, got {pool!r}")
    if pool == "process":
        renamed("reader_pool_type='process'", "bowstring decodes in threads without Python; use 'thread'")
    if results_queue_size != 50:
        renamed("results_queue_size", "what is read ahead is bounded in bytes: BOWSTRING_MEMORY_BUDGET=512MiB")
    if pool == "dummy":
        return 0, 1
    # Petastorm's default is not taken as a request: as many threads decode as there are processors.
    return workers_count, None if workers_count == 10 else workers_count


def location(
    url_or_urls: Any,
    *,
    pool: str = "thread",
    workers_count: int = 10,
    results_queue_size: int = 50,
    hdfs_driver: str = "libhdfs3",
    zmq_copy_buffers: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    filters: Any = None,
) -> tuple[Location, int]:
    """The dataset's source, and the number of threads for the user's functions."""
    store = None
    if filesystem is None:
        urls = normalized(url_or_urls)
    else:
        listed, store = addresses(filesystem, [url.rstrip("/") or url for url in _listed(url_or_urls)])
        urls = listed if isinstance(url_or_urls, list) else listed[0]
        if storage_options:
            renamed(
                "storage_options", "filesystem has options of its own, so that these have no effect; leave them out"
            )
            storage_options = None
    if hdfs_driver != "libhdfs3":
        renamed("hdfs_driver", "bowstring speaks to stores itself; there is no driver to choose")
    if not zmq_copy_buffers:
        renamed("zmq_copy_buffers", "there are no processes to send buffers to; leave it out")
    user, decoding = _workers(pool, workers_count, results_queue_size)
    made = Location(
        urls,
        store=store,
        threads=decoding,
        memory_budget=None,
        timeout=None,
        storage_options=object_store_options(urls, storage_options) or None,
        **({} if filters is None else {"filter": filters}),
    )
    return made, user
