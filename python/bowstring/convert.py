"""Datasets from one format into another: Parquet, Petastorm, Arrow, CSV, JSON Lines, TFRecord, WebDataset, MDS, folders.

>>> bowstring.convert("photos/", "photos-mds", to="mds", resize=256)  # doctest: +SKIP
>>> bowstring.verify("clicks.parquet", "clicks-tfrecord").equal  # doctest: +SKIP
True
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bowstring import _native
from bowstring.columns import names
from bowstring.options import Filter, dumped, filter_of, from_environment, size
from bowstring.progress import shown

if TYPE_CHECKING:
    from pyarrow.compute import Expression

__all__ = ["Comparison", "Report", "convert", "plan", "verify"]


@dataclass(frozen=True)
class Report:
    """The result of a conversion."""

    from_format: str
    """The source's format."""
    to_format: str
    """The destination's format."""
    rows: int
    """Rows written."""
    files: int
    """Files of data written."""
    bytes: int
    """Their bytes."""
    source_bytes: int
    """Bytes of the source."""
    tasks: int
    """Number of tasks."""
    resumed_tasks: int
    """Tasks that had been finished before."""
    unchanged: bool
    """True if the destination existed, made from the same source with the same options, with unchanged files."""
    verified: bool
    """True if the source was counted by other means, and the written rows were read again and found equal, now or when they were
    made."""
    seconds: float
    """Duration in seconds."""
    schema: dict[str, str]
    """Types of the columns written, by name."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of two datasets."""

    equal: bool
    """True if they have the same columns and rows, in any order."""
    rows: tuple[int, int]
    """Their rows."""
    columns: list[dict[str, Any]]
    """For each column its ``name``, its ``types`` and ``nulls`` on either side, and whether its values are ``equal``. The nulls of
    a column that only one side has are not counted: None."""
    only_first: int
    """Number of rows only in the first."""
    only_second: int
    """Number of rows only in the second."""
    examples_first: list[str]
    """Some rows that are only in the first."""
    examples_second: list[str]
    """Some rows that are only in the second."""

    def __bool__(self) -> bool:
        return self.equal


def options_json(
    *,
    from_format: str | None = None,
    to: str | None = None,
    columns: str | Sequence[str] | None = None,
    images: str | Sequence[str] | None = None,
    schema: Mapping[str, str] | str | None = None,
    environment: Sequence[str] = ("memory_budget", "storage_options"),
    **more: Any,
) -> str:
    """The options of a conversion as the library reads them; what is not given of ``environment`` is looked up there."""
    given = {name: value for name, value in more.items() if value is not None}
    options = from_environment(environment, given) | given
    if "filter" in options:
        options["filter"] = filter_of(options["filter"])
    if options.get("memory_budget") is not None:
        options["memory_budget"] = size(options["memory_budget"])
    if from_format is not None:
        options["from"] = from_format
    if to is not None:
        options["to"] = to
    for option, chosen in (("columns", columns), ("images", images)):
        if chosen is not None:
            options[option] = names(chosen)
    if schema is not None:
        options["schema"] = schema if isinstance(schema, str) else dict(schema)
    return dumped(options)


def in_this_process(options: str) -> str:
    """Options that came from another process, with the store's options of this one's environment if they have none."""
    given = json.loads(options)
    return dumped(from_environment(("storage_options",), given) | given)


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    from_format: str | None = None,
    to: str | None = None,
    columns: str | Sequence[str] | None = None,
    schema: Mapping[str, str] | str | None = None,
    filter: Filter | Expression | None = None,
    rows_per_group: int | None = None,
    target_file_size: int | None = None,
    compression: str | None = None,
    image_quality: int | None = None,
    resize: int | None = None,
    images: str | Sequence[str] | None = None,
    shuffle: int | None = None,
    shards: int | None = None,
    jobs: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    overwrite_foreign: bool = False,
    verify: bool = False,
    memory_budget: int | str | None = None,
    storage_options: Mapping[str, str] | None = None,
    limits: Mapping[str, int] | None = None,
    progress: bool | None = None,
) -> Report:
    """Converts the dataset at ``src`` into a directory at ``dst``, which appears at once or not at all.

    ``resume=True`` continues an interrupted conversion; a finished one is not repeated. The source is never modified.
    Ctrl-C ends it after the batches in flight; unless it was published before, nothing appears. A second one does not wait,
    as a store may hang.

    :param from_format: the format of the source, if its names do not give it.
    :param to: the format of the destination, if its name does not give it.
    :param columns: columns to take, in this order.
    :param schema: types by column, e.g. ``{"id": "int64", "tags": "list<string>"}``.
    :param filter: rows to take, as a loader takes them: ``"label >= 3"``, ``[("label", ">=", 3)]``, or a
        ``pyarrow.compute.Expression``.
    :param rows_per_group: most rows of a Parquet row group.
    :param target_file_size: bytes at which an output file ends.
    :param compression: ``none``, ``snappy``, ``lz4``, ``zstd``, ``zstd:LEVEL`` or ``gzip``, if the format supports it.
    :param image_quality: encode images again as JPEG of this quality.
    :param resize: scale images down to this length of the shorter side. JPEG is encoded again as JPEG, of quality 90 without
        ``image_quality``, other images as PNG.
    :param images: the columns that ``resize`` and ``image_quality`` apply to; needed if several hold images.
    :param shuffle: seed of a shuffle of all rows.
    :param shards: write exactly this many files.
    :param jobs: threads.
    :param resume: continue an interrupted conversion to the same place.
    :param overwrite: make the dataset at the destination again and replace it, if a conversion made it.
    :param overwrite_foreign: with ``overwrite``, delete what is at the destination even if no conversion made it.
    :param verify: count the rows of the source by other means, read the output, and compare, before anything appears.
    :param memory_budget: bytes for everything in flight (512 MiB), or text such as ``"2GiB"``.
    :param storage_options: options of the store that the source is in.
    :param limits: limits against hostile files, e.g. ``{"max_record_bytes": 1 << 30}``.
    :param progress: say on standard error how far it is, once it has taken two seconds: by default on a terminal, always
        (``True``; elsewhere than on a terminal a line every ten seconds), or never (``False``).
    """
    options = options_json(
        from_format=from_format,
        to=to,
        columns=columns,
        schema=schema,
        filter=filter,
        rows_per_group=rows_per_group,
        target_file_size=target_file_size,
        compression=compression,
        image_quality=image_quality,
        resize=resize,
        images=images,
        shuffle=shuffle,
        shards=shards,
        jobs=jobs,
        resume=resume,
        overwrite=overwrite,
        overwrite_foreign=overwrite_foreign,
        verify=verify,
        memory_budget=memory_budget,
        storage_options=dict(storage_options) if storage_options is not None else None,
        limits=dict(limits) if limits is not None else None,
    )
    with shown("converting", progress) as line:
        return report_of(_native.convert(os.path.expanduser(src), os.path.expanduser(dst), options, line))


def report_of(text: str) -> Report:
    """Parses the report of the library."""
    report = json.loads(text)
    report["from_format"], report["to_format"] = report.pop("from"), report.pop("to")
    report["schema"] = dict(report.pop("columns"))
    return Report(**report)


def plan(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    from_format: str | None = None,
    to: str | None = None,
    columns: str | Sequence[str] | None = None,
    schema: Mapping[str, str] | str | None = None,
    filter: Filter | Expression | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, str] | None = None,
    limits: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The plan of :func:`convert`: formats, columns and types, the first rows. Writes nothing.

    :param overwrite: as of :func:`convert`, which without it refuses a destination that is not empty.
    :param storage_options: options of the store that the source is in.
    :param limits: limits against hostile files.
    """
    options = options_json(
        from_format=from_format,
        to=to,
        columns=columns,
        schema=schema,
        filter=filter,
        overwrite=overwrite,
        storage_options=storage_options,
        limits=limits,
    )
    found: dict[str, Any] = json.loads(_native.convert_plan(os.path.expanduser(src), os.path.expanduser(dst), options))
    found["schema"] = found.pop("columns")
    return found


def verify(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    a_format: str | None = None,
    b_format: str | None = None,
    columns: str | Sequence[str] | None = None,
    schema: Mapping[str, str] | str | None = None,
    jobs: int | None = None,
    memory_budget: int | str | None = None,
    storage_options: Mapping[str, str] | None = None,
    limits: Mapping[str, int] | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Compares the rows of two datasets of any formats, in any order.

    :param a_format: the format of the first, if its names do not give it.
    :param b_format: the format of the second, if its names do not give it.
    :param columns: columns to compare; all by default.
    :param schema: types by column, for formats that have none.
    :param jobs: threads.
    :param memory_budget: bytes for everything in flight (512 MiB), or text such as ``"2GiB"``.
    :param storage_options: options of the stores that they are in.
    :param limits: limits against hostile files.
    :param progress: as of :func:`convert`.
    """
    options = options_json(
        from_format=a_format,
        to=b_format,
        columns=columns,
        schema=schema,
        jobs=jobs,
        memory_budget=memory_budget,
        storage_options=storage_options,
        limits=limits,
    )
    with shown("comparing", progress) as line:
        found = json.loads(_native.verify(os.path.expanduser(a), os.path.expanduser(b), options, line))
    names = Comparison.__dataclass_fields__
    found["rows"] = tuple(found["rows"])
    return Comparison(**{name: value for name, value in found.items() if name in names})
