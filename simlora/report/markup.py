"""Small pieces of HTML that the pages share: every text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

COLOURS = """:root { --ink: #1d232b; --dim: #66707c; --page: #fbfbfa; --card: #fff; --grid: #dfe2e6; --bar: #4c78a8;
  --good: #2e7d32; --bad: #c62828; --warn: #9a6200; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --dim: #98a2ae; --page: #14171b; --card: #1c2026;
  --grid: #363c45; --bar: #6f9fce; --good: #7bc67e; --bad: #ff7b72; --warn: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 3rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: .2rem 0 1.2rem; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .7rem; }
.dim, footer { color: var(--dim); } .warn { color: var(--warn); }
.good { color: var(--good); } .bad { color: var(--bad); }
p { margin: .4rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .22rem .5rem; border-bottom: 1px solid var(--grid); white-space: nowrap; text-align: right; }
th { font-weight: 600; } th:first-child, td:first-child { text-align: left; }
"""
"""Colours in light and dark, and the type of all pages."""


def page(title: str, style: str, body: Iterable[str]) -> str:
    """A self-contained page; body: pieces of HTML, one a line."""
    lines = "\n".join(piece for piece in body if piece)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} – simlora</title>\n<style>\n{COLOURS}{style}</style>\n</head>\n<body>\n{lines}\n"
        "</body>\n</html>\n"
    )


def element(tag: str, text: str, css: str = "") -> str:
    """An element that holds text."""
    return f"<{_open(tag, css)}>{escape(text)}</{tag}>"


def row(cells: Sequence[str], css: str = "", tag: str = "td") -> str:
    """A row of a table."""
    return f"<{_open('tr', css)}>{''.join(element(tag, cell) for cell in cells)}</tr>"


def table(head: Sequence[str], rows: Iterable[str]) -> str:
    """A table that scrolls on a narrow screen; rows: as row gives them."""
    lines = "\n".join((row(head, tag="th"), *rows))
    return f'<div class="scroll"><table>\n{lines}\n</table></div>'


def _open(tag: str, css: str) -> str:
    return f'{tag} class="{css}"' if css else tag
