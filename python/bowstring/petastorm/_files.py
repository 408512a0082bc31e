"""A list of files in the given order: the order of their row groups, with a file that is listed twice delivered twice.

bowstring sorts files by name and takes each once; this finds every file of the list again among them.
"""

from __future__ import annotations

import itertools
import os
import urllib.parse
from collections.abc import Sequence

from bowstring.errors import ConfigError

__all__ = ["distinct", "positions"]

Parts = tuple[str, ...]


def _parts(url: str) -> Parts:
    """The target of a URL, as directories and a name: links in its directory are followed, as in bowstring."""
    parsed = urllib.parse.urlsplit(url)
    if "://" in url:
        return (parsed.netloc, *_split(urllib.parse.unquote(parsed.path)))
    if os.path.isdir(url):
        return _split(os.path.realpath(url))
    return (*_split(os.path.realpath(os.path.dirname(url))), os.path.basename(url))


def _split(path: str) -> Parts:
    return tuple(part for part in path.split("/") if part)


def distinct(urls: Sequence[str]) -> list[str]:
    """The URLs without those of files that were listed before."""
    found: dict[Parts, str] = {}
    for url in urls:
        found.setdefault(_parts(url), url)
    return list(found.values())


def positions(urls: str | Sequence[str], groups: Sequence[tuple[str, int, int]]) -> list[int]:
    """Numbers of row groups in Petastorm's order: for a directory by path, for a list as given."""
    if isinstance(urls, str):
        return list(range(len(groups)))
    listed = [_parts(url) for url in urls]
    # Names are relative to a directory's own path, for a file to its directory's. In a store, only names distinguish them.
    local = [os.path.isdir(url) for url in urls]
    guessed = ["://" in url and "." not in parts[-1] for url, parts in zip(urls, listed, strict=True)]
    for directories in (local, guessed):
        found = _below(listed, directories, groups)
        if {group for at in found for group in at} == set(range(len(groups))):
            return [group for at in found for group in at]
    raise ConfigError(
        "option dataset_url_or_urls: a list names files, one URL each; give a directory or a pattern by itself",
        option="dataset_url_or_urls",
    )


def _below(
    listed: Sequence[Parts], directories: Sequence[bool], groups: Sequence[tuple[str, int, int]]
) -> list[list[int]]:
    """For each entry of the list, the row groups of its files."""
    bases = [parts if whole else parts[:-1] for parts, whole in zip(listed, directories, strict=True)]
    same = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*bases, strict=False))
    root: Parts = tuple(parts[0] for parts in same)
    # The entries that cover a file: itself, and each directory above it.
    of: dict[Parts, list[int]] = {}
    for group, (path, _, _) in enumerate(groups):
        full = (*root, *_split(path))
        for end in range(len(root), len(full) + 1):
            of.setdefault(full[:end], []).append(group)
    return [of.get(parts, []) for parts in listed]
