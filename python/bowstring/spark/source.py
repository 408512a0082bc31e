"""The data source ``bowstring``: data frames to and from bowstring's servers, and directories of Parquet."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from bowstring.errors import ConfigError, UnsupportedError
from bowstring.flight import is_server
from bowstring.spark import directory, read, server
from bowstring.spark.options import SourceOptions

__all__ = ["BowstringSource", "register"]


def register(spark: Any) -> None:
    """Makes ``df.write.format("bowstring")`` and ``spark.read.format("bowstring")`` known to a session.

    >>> bowstring.spark.register(spark)  # doctest: +SKIP
    >>> df.write.format("bowstring").mode("append").save("grpc://data:8815/clicks")  # doctest: +SKIP
    >>> spark.read.format("bowstring").option("columns", "id,label").load("grpc://data:8815/clicks")  # doctest: +SKIP

    Call it again in each thread of your own that writes, and after ``spark.newSession()``. Executors need bowstring installed.
    Options are in ``docs/spark.md``.
    """
    # Registering and writes ask the session that is active in the thread for the format, whichever it is, and a new thread has
    # none. This makes it the active one; Spark has no function for it.
    spark.createDataFrame([], StructType([]))
    spark.dataSource.register(BowstringSource)


class BowstringSource(DataSource):
    """The data source that Spark gets readers and writers from."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "bowstring"

    def _options(self) -> SourceOptions:
        return SourceOptions.read(self.options)

    def schema(self) -> StructType:
        """The columns of the dataset, or the requested ones."""
        return read.schema(self._options())

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns of ``schema``."""
        options = self._options()
        # Without a schema of the user's, it is that of the columns.
        if options.columns is not None and options.columns != tuple(schema.names):
            problem = f"the columns of .schema(...) are {', '.join(schema.names)}; leave one of the two out"
            raise ConfigError(f"option columns: {problem}", option="columns")
        return read.reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """There is none."""
        raise UnsupportedError("bowstring has no streams to read: use spark.read")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of one job."""
        options = self._options().for_writing()
        if is_server(options.url):
            return server.ServerWriter(options, schema, overwrite)
        return directory.DirectoryWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer of one micro-batch."""
        options = self._options().for_writing()
        if is_server(options.url):
            return server.ServerStreamWriter(options, schema, overwrite)
        return directory.DirectoryStreamWriter(options, schema, overwrite)
