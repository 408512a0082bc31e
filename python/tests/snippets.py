"""Reads the Python blocks of pages without running them: syntax, names, imports, and the calls of bowstring by its signatures.

    python snippets.py docs/cache.md docs/gpu.md

One line for each mistake. A name is one of the block, of an earlier block of the page, or of YOURS. Packages that are not
installed are not looked into.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# TensorFlow and Triton bring an LLVM each, and Triton aborts the process if it loads second.
with contextlib.suppress(ImportError):
    import triton._C.libtriton  # noqa: F401

import bowstring

# Directories beside this file are named as packages are.
sys.path = [path for path in sys.path if Path(path).resolve() != Path(__file__).parent.resolve()]
# What a reader has already: a model and its training, a session of Spark, a table, an address.
YOURS = "df model optimizer path r rows schema spark state table train train_step trainer url writer"
# The modules that fragments use below a text that names them.
MODULES = {
    "bowstring": "bowstring",
    "dcp": "torch.distributed.checkpoint",
    "keras": "keras",
    "os": "os",
    "tf": "tensorflow",
    "torch": "torch",
}
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


class Instance(NamedTuple):
    """An object of a class."""

    of: type


def is_ours(thing: Any) -> bool:
    name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
    return isinstance(name, str) and name.partition(".")[0] == "bowstring"


def options_of(function: Any) -> set[str]:
    """The keywords that a function takes as ``**options``: those of a loader and of an index."""
    taken: set[str] = set()
    for other in (bowstring.Loader, bowstring.index, function):
        taken |= set(inspect.signature(other).parameters)
    return taken


class Reader:
    """Reads the blocks of one page, in their order."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.wrong: list[str] = []
        self.line = 0

    def say(self, node: ast.AST, what: str) -> None:
        self.wrong.append(f"{self.line + getattr(node, 'lineno', 1)}: {what}")

    def read(self, code: str, line: int) -> None:
        self.line = line
        try:
            tree = ast.parse(code)
        except SyntaxError as error:
            self.wrong.append(f"{line + (error.lineno or 0)}: {error.msg}")
            return
        bound = set(self.bound(tree))
        for name in bound:
            self.names.setdefault(name, None)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in self.names:
                if node.id in MODULES:
                    self.names[node.id] = self.module(node, MODULES[node.id])
                elif node.id not in YOURS.split() and not hasattr(builtins, node.id):
                    self.say(node, f"{node.id} is not defined")
        for statement in tree.body:
            self.statement(statement)

    def bound(self, tree: ast.Module) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.arg):
                yield node.arg
            elif isinstance(node, ast.ExceptHandler) and node.name:
                yield node.name

    def module(self, node: ast.AST, name: str) -> Any:
        """The module of that name; nothing where what it needs is not installed."""
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A package that is not there at all says nothing about the page.
            if error.name is not None and error.name.startswith(f"{name.partition('.')[0]}."):
                self.say(node, str(error))
        except ImportError:
            pass  # An adapter whose framework is not installed.
        return None

    def statement(self, statement: ast.stmt) -> None:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found = self.module(node, alias.name)
                    top = alias.name.partition(".")[0]
                    self.names[alias.asname or top] = found if alias.asname else sys.modules.get(top)
            elif isinstance(node, ast.ImportFrom):
                self.taken_from(node)
            elif isinstance(node, ast.Call):
                self.call(node)
            elif isinstance(node, ast.Attribute):
                self.value(node, says=True)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.names[node.targets[0].id] = self.value(node.value)
            elif isinstance(node, ast.With):
                for item in node.items:
                    if isinstance(item.optional_vars, ast.Name):
                        self.names[item.optional_vars.id] = self.value(item.context_expr)

    def taken_from(self, node: ast.ImportFrom) -> None:
        found = self.module(node, node.module or "")
        for alias in node.names:
            value = getattr(found, alias.name, None)
            if value is None and found is not None:
                with contextlib.suppress(ImportError):
                    value = importlib.import_module(f"{node.module}.{alias.name}")
                if value is None:
                    self.say(node, f"{node.module} has no {alias.name}")
            self.names[alias.asname or alias.name] = value

    def value(self, node: ast.expr, says: bool = False) -> Any:
        """What an expression gives, as far as that can be told without running it."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Call):
            made = self.value(node.func)
            return Instance(made) if isinstance(made, type) else None
        if not isinstance(node, ast.Attribute):
            return None
        of = self.value(node.value)
        if isinstance(of, Instance):
            known = any(node.attr in getattr(one, "__annotations__", {}) for one in of.of.__mro__)
            if says and is_ours(of.of) and not known and not hasattr(of.of, node.attr):
                self.say(node, f"{of.of.__name__} has no {node.attr}")
            return getattr(of.of, node.attr, None)
        if of is None:
            return None
        if not hasattr(of, node.attr) and isinstance(of, types.ModuleType) and is_ours(of):
            # A module of the package, which a program imports by itself.
            found = self.module(node, f"{of.__name__}.{node.attr}") if says else None
            return found or sys.modules.get(f"{of.__name__}.{node.attr}")
        return getattr(of, node.attr, None)

    def call(self, node: ast.Call) -> None:
        called = self.value(node.func)
        if not callable(called) or isinstance(called, property) or not is_ours(called):
            return
        try:
            signature = inspect.signature(called)
        except ValueError:
            return
        names = [keyword.arg for keyword in node.keywords if keyword.arg]
        rest = [one for one in signature.parameters.values() if one.kind is one.VAR_KEYWORD]
        if rest and "NoReturn" in str(rest[0].annotation):
            signature = signature.replace(parameters=[one for one in signature.parameters.values() if one not in rest])
        elif rest and called is not bowstring.flight.Server:
            for name in set(names) - options_of(called):
                self.say(node, f"{ast.unparse(node.func)} has no option {name}")
        of = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        given: list[Any] = [None] * (len(node.args) + isinstance(of, Instance))
        open_ended = any(isinstance(one, ast.Starred) for one in node.args) or len(names) < len(node.keywords)
        try:
            (signature.bind_partial if open_ended else signature.bind)(*given, **dict.fromkeys(names))
        except TypeError as error:
            self.say(node, f"{ast.unparse(node.func)}: {error}")


def main() -> None:
    for page in map(Path, sys.argv[1:]):
        reader, text = Reader(), page.read_text("utf-8")
        for found in BLOCK.finditer(text):
            code = "\n".join(line.removeprefix(found[1]) for line in found[2].splitlines())
            reader.read(code, text.count("\n", 0, found.start()) + 1)
        for wrong in dict.fromkeys(reader.wrong):
            print(f"{page.name}:{wrong}")


if __name__ == "__main__":
    main()
