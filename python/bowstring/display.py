"""Small HTML tables for notebooks. All text is escaped, and the size is bounded for any data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["lines", "picture", "table", "text"]

# Rows of a table, and characters of a cell.
_ROWS = 100
_CHARACTERS = 200


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[object]], below: Iterable[str] = ()) -> str:
    """A table under ``caption``; ``below`` are further elements, which are HTML already."""
    shown = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows[:_ROWS])
    if len(rows) > _ROWS:
        shown += f'<tr><td colspan="{len(header)}">and {len(rows) - _ROWS:,} more</td></tr>'
    head = f"<thead><tr>{_cells('th', header)}</tr></thead>"
    title = f'<caption style="text-align: left">{_text(caption)}</caption>'
    return f"<div><table>{title}{head}<tbody>{shown}</tbody></table>{''.join(below)}</div>"


def lines(texts: Iterable[str]) -> str:
    """A list of sentences."""
    shown = "".join(f"<li>{_escaped(text)}</li>" for text in texts)
    return f"<ul>{shown}</ul>" if shown else ""


def text(lines: str) -> str:
    """Text with lines of its own."""
    return f'<pre style="text-align: left">{_escaped(lines)}</pre>'


def picture(png: bytes, title: str) -> str:
    """An image with its title."""
    import base64

    data = base64.b64encode(png).decode("ascii")
    style = "display: inline-block; margin: 2px; image-rendering: pixelated"
    return f'<img src="data:image/png;base64,{data}" title="{_text(title)}" alt="{_text(title)}" style="{style}">'


def _cells(tag: str, cells: Iterable[object]) -> str:
    return "".join(f'<{tag} style="text-align: left">{_text(str(cell))}</{tag}>' for cell in cells)


def _text(text: str) -> str:
    return _escaped(text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 3]}...")


def _escaped(text: str) -> str:
    # Not with the package, of whose programs few show HTML.
    import html

    return html.escape(text)
