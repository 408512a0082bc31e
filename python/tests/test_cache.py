"""The cache below a loader, from Python."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import bowstring
import numpy as np
import pytest
from bowstring import Loader


def _ids(loader: Loader) -> Any:
    return np.concatenate([batch["id"] for batch in loader])


def test_a_second_read_comes_from_the_cache(slow_store: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    store = slow_store(0.0)
    with Loader(store.url, batch_size=10_000) as loader:
        expected = _ids(loader)
    cache = tmp_path / "cache"
    with Loader(store.url, batch_size=10_000, cache=cache, cache_bytes="1GiB") as loader:
        np.testing.assert_array_equal(_ids(loader), expected)
        first = loader.stats()["cache"]
        assert first["misses"] >= 4
        assert first["origin_bytes"] > 3_000_000
        assert first["damaged"] == 0
        _ids(loader)
        assert loader.stats()["cache"]["origin_bytes"] == first["origin_bytes"], "the second epoch asks for nothing"
    with Loader(store.url, batch_size=10_000, cache=str(cache)) as loader:
        np.testing.assert_array_equal(_ids(loader), expected)
        assert loader.stats()["cache"]["misses"] == 0
    assert (cache / "BOWSTRING_CACHE").is_file()


def test_the_environment_names_a_cache(
    slow_store: Callable[..., Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOWSTRING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BOWSTRING_CACHE_BYTES", "64MiB")
    with Loader(slow_store(0.0).url, batch_size=10_000) as loader:
        _ids(loader)
        assert loader.stats()["cache"]["kept"] >= 4


def test_a_directory_with_other_files_is_not_a_cache(slow_store: Callable[..., Any], tmp_path: pathlib.Path) -> None:
    url = slow_store(0.0).url
    with pytest.raises(bowstring.ConfigError, match="is no cache of bowstring") as error:
        Loader(url, batch_size=10, cache=tmp_path, cache_bytes="1GiB")
    assert error.value.option == "cache"
    with pytest.raises(bowstring.ConfigError, match="cache_bytes"):
        Loader(url, batch_size=10, cache=tmp_path / "cache", cache_bytes="plenty")
    assert not (tmp_path / "BOWSTRING_CACHE").exists()
