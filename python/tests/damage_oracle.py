"""Reads Parquet files with pyarrow in a separate process, which damage may crash.

A line names a file and the destination of its table; the answer is ``ok``, or ``no`` and the reason.
"""

from __future__ import annotations

import resource
import sys

import pyarrow as pa
import pyarrow.parquet as pq


def main() -> None:
    """Reads until the end of standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    options = pa.ipc.IpcWriteOptions(unify_dictionaries=True)
    for line in sys.stdin:
        source, target = line.split()
        try:
            table = pq.ParquetFile(source, coerce_int96_timestamp_unit="us").read(use_threads=False)
            table.validate()
            # Each row group has its own dictionary; an Arrow file has one.
            with pa.ipc.new_file(target, table.schema, options=options) as writer:
                writer.write_table(table)
            print("ok", flush=True)
        except Exception as error:
            print("no", str(error).replace("\n", " ")[:200], flush=True)


if __name__ == "__main__":
    main()
