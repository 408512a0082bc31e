"""Writing datasets: Arrow data of any library to plain Parquet that declares the content of its cells."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from bowstring import _native
from bowstring.arrays import pyarrow_for
from bowstring.options import dumped

if TYPE_CHECKING:
    from bowstring.petastorm.unischema import Unischema

__all__ = ["DatasetWriter", "Stored"]


@dataclass(frozen=True)
class Stored:
    """The content of the cells of a binary column: arrays or images, which a loader then decodes."""

    codec: Literal["npy", "npz", "png", "jpeg"]
    """Encoding of a cell."""
    dtype: str
    """Element type by NumPy's name; ``time`` for datetime64, ``timedelta`` for timedelta64, ``text`` and ``bytes`` for arrays of
    strings."""
    shape: tuple[int | None, ...]
    """Shape of each value; ``None`` is an axis that varies from cell to cell."""

    def options(self) -> dict[str, Any]:
        """As the library reads it."""
        element = self.dtype if self.dtype in ("time", "timedelta", "text", "bytes") else {"number": self.dtype}
        return {"codec": self.codec, "element": element, "shape": list(self.shape)}


class DatasetWriter:
    """Writes a dataset that appears at once, when it is finished, or not at all.

    >>> with DatasetWriter("out", table.schema, stored={"image": Stored("jpeg", "uint8", (None, None, 3))}) as writer:
    ...     writer.write(table)  # doctest: +SKIP

    As a context manager it finishes at the end of the block, and leaves nothing behind if the block fails.

    :param path: the directory to be made.
    :param schema: anything with ``__arrow_c_schema__``: a ``pyarrow.Schema``, a ``polars`` schema.
    :param stored: content of the cells of binary columns.
    :param petastorm: a Unischema: the dataset is then one of Petastorm too. It has the columns of ``schema``.
    :param rows_per_group: most rows of a row group (65,536).
    :param group_bytes: bytes of a row group, as stored (32 MiB).
    :param rows_per_file: rows of a file.
    :param file_bytes: bytes of a file, as stored (512 MiB). Pages that are not full count uncompressed, here and in
        ``group_bytes``, so less than a few MiB are reached early if the values shrink.
    :param compression: ``zstd`` or ``("zstd", level)``, ``snappy``, ``lz4``, ``none``. Encoded cells are never compressed again.
    :param overwrite: replace a dataset of bowstring at ``path``.
    :param overwrite_foreign: with ``overwrite``, delete any other content of ``path`` too.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: Any,
        *,
        stored: Mapping[str, Stored] | None = None,
        petastorm: Unischema | None = None,
        rows_per_group: int | None = None,
        group_bytes: int | None = None,
        rows_per_file: int | None = None,
        file_bytes: int | None = None,
        compression: Literal["zstd", "snappy", "lz4", "none"] | tuple[Literal["zstd"], int] | None = None,
        overwrite: bool = False,
        overwrite_foreign: bool = False,
    ) -> None:
        if type(schema).__module__.partition(".")[0] == "pyarrow":
            pyarrow_for("a writer with a schema of pyarrow")
        options: dict[str, Any] = {
            "rows_per_group": rows_per_group,
            "group_bytes": group_bytes,
            "rows_per_file": rows_per_file,
            "file_bytes": file_bytes,
            "overwrite": overwrite,
            "overwrite_foreign": overwrite_foreign,
        }
        if compression is not None:
            level = {"zstd": ("zstd", 1)}.get(compression, compression) if isinstance(compression, str) else compression
            options["compression"] = {level[0]: level[1]} if isinstance(level, tuple) else level
        if petastorm is not None:
            from bowstring.petastorm._document import document

            options["petastorm"] = document(petastorm)
        said = {name: one.options() for name, one in (stored or {}).items()}
        self._native = _native.DatasetWriter(os.path.expanduser(path), schema, json.dumps(said), dumped(options))

    def write(self, data: Any) -> None:
        """Adds the rows of ``data``: a record batch, a table, a stream; anything with the Arrow PyCapsule protocol.

        Its columns have the names of the schema in their order, and its types: of no other extension type, though they may be
        of none. Members of structs may be in another order. Values are checked as they come: text that is not UTF-8, or a key
        that its dictionary does not have, is a :class:`bowstring.CorruptError`. A null in place of a row, as an array of structs
        may have it, is a :class:`bowstring.NullsError`.

        Data that end in an error after some of their rows are written end the writer: then :meth:`write` and :meth:`finish` raise
        :class:`bowstring.ClosedError`, and nothing is published. A batch that is refused whole leaves the writer as it was.
        """
        self._native.write(data)

    def finish(self) -> dict[str, int]:
        """Makes the dataset appear, and returns its numbers of files, rows, row groups and bytes."""
        return dict(json.loads(self._native.finish()))

    def abort(self) -> None:
        """Leaves nothing behind.

        :raises ClosedError: if the code that :meth:`write` takes its rows from calls it.
        """
        self._native.abort()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()
