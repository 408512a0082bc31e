"""The cache below a loader, from Python."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
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


@pytest.fixture
def node(tmp_path: pathlib.Path) -> Iterator[Callable[[str], str]]:
    """Serves the cache in a directory; gives its address."""
    started = []

    def start(name: str) -> str:
        command = [sys.executable, "-m", "bowstring", "cache", "serve", str(tmp_path / name), "--cache-bytes", "64MiB"]
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--print-address"], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_nodes_read_the_origin_once(
    slow_store: Callable[..., Any], node: Callable[[str], str], tmp_path: pathlib.Path
) -> None:
    url = slow_store(0.0).url
    peers = [node("one"), node("two")]

    def read(name: str, **options: Any) -> Any:
        with Loader(url, batch_size=10_000, cache=tmp_path / name, cache_bytes="64MiB", **options) as loader:
            ids = [_ids(loader), _ids(loader)]
            return ids, loader.stats()["cache"]

    expected, alone = read("alone")
    # Directories of their own: the homes of all blocks may be one node.
    first, fetched = read("first", cache_peers=peers)
    second, shared = read("second", cache_peers=peers)
    np.testing.assert_array_equal(first, expected)
    np.testing.assert_array_equal(second, expected)
    assert fetched["origin_bytes"] == alone["origin_bytes"]
    assert fetched["given"] == fetched["misses"] >= 4
    assert shared["origin_bytes"] == 0
    assert shared["peer_hits"] > 0
    assert shared["peer_bytes"] + shared["hit_bytes"] == alone["origin_bytes"] + alone["hit_bytes"]
    assert fetched["peer_failures"] == shared["peer_failures"] == 0
    with pytest.raises(bowstring.ConfigError, match="dns://") as error:
        read("wrong", cache_peers="http://elsewhere")
    assert error.value.option == "cache_peers"
