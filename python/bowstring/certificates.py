"""The audit of a run: checks that each step was consumed exactly once on every rank."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict

from bowstring import _native
from bowstring.errors import ConfigError, Error

__all__ = ["Apart", "Audit", "Finding", "audit"]

Certificate: TypeAlias = "Mapping[str, Any] | str | os.PathLike[str]"
"""A certificate, or the path of its file or of a directory of such files."""

# The functional form, since `from` is a keyword.
Finding = TypedDict(
    "Finding",
    {
        "fault": Literal["not_consumed", "repeated"],
        "from": list[int],
        "to": list[int],
        "rank": "int | None",
        "world_size": int,
    },
)
Finding.__doc__ = "Steps that were not consumed exactly once; positions are ``[epoch, step]``."


class Apart(TypedDict):
    """Ranks that resumed at a position ``[epoch, step]`` where others of their world did not."""

    at: list[int]
    ranks: list[int]
    more_ranks: int
    world_size: int


Audit = TypedDict(
    "Audit",
    {
        "fingerprint": str,
        "spec": dict[str, Any],
        "rows": int,
        "steps": int,
        "loaders": int,
        "resumes": int,
        "replaced_steps": int,
        "from": list[int],
        "continues": bool,
        "until": list[int],
        "end": list[int],
        "exact": bool,
        "complete": bool,
        "skipped_rows": int,
        "zeroed_rows": int,
        "findings": list[Finding],
        "more_findings": int,
        "apart": list[Apart],
    },
)
Audit.__doc__ = "The result of :func:`audit`; positions are ``[epoch, step]``."


def _documents(one: Certificate) -> list[tuple[pathlib.Path | None, str]]:
    """Certificates as JSON, each with the file that it comes from."""
    if isinstance(one, Mapping):
        return [(None, json.dumps(one))]
    path = pathlib.Path(one).expanduser()
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [(file, _text(file)) for file in files]


def _text(file: pathlib.Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        problem = f"{file}: option certificate: not a certificate: {error}"
        raise ConfigError(problem, file=str(file), option="certificate") from error


def _named(documents: list[tuple[pathlib.Path | None, str]], key: bytes | None) -> None:
    """Raises the error of the first file that is refused also by itself, with its name."""
    for file, document in documents:
        try:
            _native.audit([document], key)
        except Error as error:
            if file is not None:
                raise type(error)(f"{file}: {error}", file=str(file), option=error.option) from error


def audit(certificates: Certificate | Iterable[Certificate], *, key: bytes | None = None) -> Audit:
    """Joins the certificates of all ranks of a run, and of those before each restart.

    A loader that resumed replaces the work of earlier ones from its state on. ``exact`` is true if every step from ``from`` up to
    ``until``, the last position that all ranks reached, was consumed once by every rank; ``complete`` if no rank got further. A run
    without any certificate of some rank is neither. ``findings`` are the steps that were not consumed once, and those that only
    some ranks reached. ``apart`` names ranks that resumed where others did not: each step is still consumed once by each rank, but
    a model that all ranks train together has lost or repeated the steps in between. Of several certificates of one loader the last
    one counts. ``continues`` is true if all ranks begin with a state at the start of a later epoch: what came before has
    no certificate here.

    :param certificates: results of :meth:`bowstring.Loader.certificate`, or paths of JSON files of them, or of directories with
        such files (not of directories in them); a single one needs no list.
    :param key: the key that they are signed with; without one, signatures are not checked.
    """
    each = [certificates] if isinstance(certificates, (Mapping, str, os.PathLike)) else certificates
    documents = [document for one in each for document in _documents(one)]
    try:
        found: Audit = json.loads(_native.audit([document for _, document in documents], key))
    except Error:
        _named(documents, key)
        raise
    return found
