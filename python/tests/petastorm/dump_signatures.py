"""Writes the signatures of Petastorm's public callables to signatures.json; needs an interpreter with petastorm 0.13.1.

Those of 0.12.1 are the same except for ``convert_early_to_numpy`` at the end of three, ``Reader.cleanup_cache``, and a default
of ``LocalDiskCache``.

$PETASTORM_PYTHON dump_signatures.py > signatures.json
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from typing import Any

MODULES = """reader transform unischema codecs ngram predicates selectors weighted_sampling_reader errors cache local_disk_cache
pytorch tf_utils etl etl.dataset_metadata etl.rowgroup_indexers etl.rowgroup_indexing spark.spark_dataset_converter spark_utils
utils test_util.reader_mock"""
# Internal helpers of Petastorm that are public by name only.
INTERNAL = {
    "spark.spark_dataset_converter": ["CachedDataFrameMeta", "vector_to_array"],
}


def parameters(function: Any) -> list[list[Any]]:
    """Returns name, kind and default of each parameter; defaults as text."""
    found = inspect.signature(function).parameters.values()
    return [[p.name, p.kind.name, None if p.default is p.empty else default(p.default)] for p in found]


def default(value: Any) -> str:
    """Returns a default as text that is the same in both libraries."""
    return value.__name__ if callable(value) else repr(value)


def public(module: Any) -> dict[str, Any]:
    """Returns the functions, and the constructors, methods and properties of classes, that a module defines."""
    found: dict[str, Any] = {}
    for name, member in vars(module).items():
        if name.startswith("_") or getattr(member, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(member):
            if not issubclass(member, Exception):
                found[name] = members(member)
        elif callable(member):
            found[name] = parameters(member)
    return found


def members(kind: Any) -> dict[str, Any]:
    """Returns the members of a class that users call."""
    found: dict[str, Any] = {}
    for name in dir(kind):
        if name.startswith("_") and name not in (
            "__init__",
            "__next__",
            "__iter__",
            "__len__",
            "__enter__",
            "__exit__",
        ):
            continue
        member = inspect.getattr_static(kind, name)
        if isinstance(member, property):
            found[name] = "property"
        elif isinstance(member, (classmethod, staticmethod)):
            found[name] = parameters(getattr(kind, name))
        elif inspect.isfunction(member):
            found[name] = parameters(member)
    return found


def main() -> None:
    if "tensorflow" not in sys.modules:
        stub_tensorflow()
    found = {}
    for name in MODULES.split():
        module = importlib.import_module(f"petastorm.{name}")
        found[name] = {key: value for key, value in public(module).items() if key not in INTERNAL.get(name, [])}
    import petastorm

    lines = [
        f"  {json.dumps(f'{module}.{name}')}: {json.dumps(value, sort_keys=True)}"
        for module, members in found.items()
        for name, value in sorted(members.items())
    ]
    print(f'{{"petastorm": "{petastorm.__version__}", "callables": {{\n' + ",\n".join(lines) + "\n}}")


def stub_tensorflow() -> None:
    """tf_utils imports TensorFlow for its types; its signatures do not need it."""
    import types

    class Anything(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return name

    parent: Any = None
    for name in ("tensorflow", "tensorflow.compat", "tensorflow.compat.v1"):
        sys.modules[name] = module = Anything(name)
        if parent is not None:
            setattr(parent, name.rpartition(".")[2], module)
        parent = module


if __name__ == "__main__":
    main()
