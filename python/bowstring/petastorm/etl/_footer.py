"""The file ``_common_metadata`` beside a dataset, written with pyarrow."""

from __future__ import annotations

import json
import os
import urllib.parse
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from bowstring.paths import is_hidden, local_path
from bowstring.petastorm._lazy import needed

__all__ = ["INDEX_KEY", "ROW_GROUPS_KEY", "SCHEMA_KEY", "Folder"]

SCHEMA_KEY = b"dataset-toolkit.unischema.v1"
ROW_GROUPS_KEY = b"dataset-toolkit.num_row_groups_per_file.v1"
INDEX_KEY = b"dataset-toolkit.rowgroups_index.v1"
_WHY = "writing a dataset's metadata"


class Folder:
    """A dataset's folder on a file system of pyarrow's."""

    def __init__(self, url: str, filesystem_factory: Callable[[], Any] | None = None) -> None:
        fs = needed("pyarrow.fs", _WHY)
        parsed = urllib.parse.urlparse(url)
        local = local_path(url)
        if local is not None:
            self.path = local.rstrip("/")
        else:
            self.path = parsed.path.rstrip("/") if parsed.scheme == "hdfs" else f"{parsed.netloc}{parsed.path}"
        if filesystem_factory is not None:
            given = filesystem_factory()
            self._fs = given if isinstance(given, fs.FileSystem) else fs.PyFileSystem(fs.FSSpecHandler(given))
        elif local is not None:
            self._fs = fs.LocalFileSystem()
        else:
            self._fs, self.path = fs.FileSystem.from_uri(url)

    def files(self) -> list[str]:
        """Paths of the Parquet files within the folder, sorted."""
        fs = needed("pyarrow.fs", _WHY)
        found = self._fs.get_file_info(fs.FileSelector(self.path, recursive=True))
        prefix = len(self.path.rstrip("/")) + 1
        paths = [info.path[prefix:] for info in found if info.is_file]
        return sorted(path for path in paths if not any(map(is_hidden, path.split("/"))))

    def footer(self, path: str) -> Any:
        """The footer of a file in the folder."""
        with self._fs.open_input_file(f"{self.path}/{path}") as file:
            return needed("pyarrow.parquet", _WHY).read_metadata(file)

    def row_groups(self) -> dict[str, int]:
        """Row groups of each file."""
        files = self.files()
        with ThreadPoolExecutor(16) as pool:
            return dict(zip(files, pool.map(lambda path: self.footer(path).num_row_groups, files), strict=True))

    def add(self, values: Mapping[bytes, bytes]) -> None:
        """Adds values to ``_common_metadata``, keeping the existing ones.

        An index of row groups is dropped if the counts differ from those it was built from: its numbers would refer to other rows.
        """
        parquet = needed("pyarrow.parquet", _WHY)
        names = {info.base_name for info in self._fs.get_file_info(self._beside()) if info.is_file}
        source = next((name for name in ("_common_metadata", "_metadata") if name in names), None) or self._any_file()
        footer = self.footer(source)
        schema = footer.schema.to_arrow_schema()
        # Where a footer has a schema of Arrow's, pyarrow shows the values in that in place of the footer's. It writes it anew.
        stored = {key: value for key, value in (footer.metadata or {}).items() if key != b"ARROW:schema"}
        before = {**(schema.metadata or {}), **stored}
        after = {**before, **values}
        if INDEX_KEY in before and INDEX_KEY not in values and _counts(before) != _counts(after):
            del after[INDEX_KEY]
            warnings.warn(
                "the index of row groups is dropped: it was made when the dataset had other files; build it anew with "
                "build_rowgroup_index",
                stacklevel=3,
            )
        schema = schema.with_metadata(after)
        # Hadoop's checksum of the existing file: it would not match the new one.
        crc = f"{self.path}/._common_metadata.crc"
        if self._fs.get_file_info([crc])[0].is_file:
            self._fs.delete_file(crc)
        with self._written("_common_metadata") as file:
            parquet.write_metadata(schema, file)

    @contextmanager
    def _written(self, name: str) -> Iterator[Any]:
        """A file to write to, which replaces the former one as a whole. A store's objects do that by themselves."""
        path = f"{self.path}/{name}"
        if not isinstance(self._fs, needed("pyarrow.fs", _WHY).LocalFileSystem):
            with self._fs.open_output_stream(path) as file:
                yield file
            return
        beside = f"{self.path}/.{name}-{uuid.uuid4().hex}"
        try:
            with open(beside, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(beside)
            raise

    def _beside(self) -> Any:
        return needed("pyarrow.fs", _WHY).FileSelector(self.path)

    def _any_file(self) -> str:
        files = self.files()
        if not files:
            raise FileNotFoundError(f"{self.path} holds no Parquet file")
        return files[0]

    def describe(self, values: Mapping[bytes, bytes]) -> None:
        """Stores values, together with the number of row groups of each file."""
        self.add({**values, ROW_GROUPS_KEY: json.dumps(self.row_groups()).encode()})


def _counts(metadata: Mapping[bytes, bytes]) -> Any:
    stored = metadata.get(ROW_GROUPS_KEY)
    return None if stored is None else json.loads(stored)
