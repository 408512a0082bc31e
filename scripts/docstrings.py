"""A Griffe extension of the documentation site: roles of Sphinx in docstrings become Markdown, and names of the package links.

mkdocs.yml names it. Docstrings say ``:class:`bowstring.Loader``` because that is what editors and pydoc readers know.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|meth|func|attr|mod|data|exc):`~?([\w.]+)`")


def plain(text: str) -> str:
    """`text` with roles as code."""
    return ROLE.sub(r"`\1`", text)


class Roles(griffe.Extension):
    """Rewrites each docstring as it is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)
