"""Importable if Spark can run, and so could write its copies."""

import shutil

if not shutil.which("java"):
    raise ImportError("no java on PATH: Spark wrote no copy")
