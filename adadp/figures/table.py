"""A small table: HTML where a page or a notebook shows it, aligned text in a terminal."""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adadp.figures import style

CSS = (
    "<style>.adadp-table{margin:1rem 0;overflow-x:auto}.adadp-table table{width:auto;margin:0;border-collapse:collapse;"
    "font-variant-numeric:tabular-nums;font-size:.95em}.adadp-table th,.adadp-table td{padding:.25rem .9rem .25rem 0;"
    "text-align:left;vertical-align:top;border:0;background:none}.adadp-table thead th{border-bottom:1px solid #8888;"
    "vertical-align:bottom}.adadp-table tbody th{font-weight:400}.adadp-table .ad-right{text-align:right}"
    ".adadp-table small{display:block;opacity:.8;font-size:.85em;font-weight:400;white-space:nowrap}"
    "@media (max-width:36rem){.adadp-table table{font-size:.85em}.adadp-table small{white-space:normal}"
    ".adadp-table table th,.adadp-table table td{min-width:0;padding-right:.5rem}}"
    ".adadp-table:focus-visible{outline:2px solid #4590f8}"
    ".adadp-note{font-size:.85em;opacity:.8;margin:.2rem 0}</style>"
)
NUMBER = re.compile(r"[<~+−-]?[\d–]")


@dataclass(frozen=True)
class Table:
    """Rows that share their columns. The first column names its row; columns of numbers are aligned to the right.

    Args:
        rows: heading -> text or number (shown with three digits). In headings and texts a second line is small print.
        label: what the table shows, for those who hear the page.
        notes: sentences below it.

    >>> Table([{"step": "plain", "ms": 3.4567}, {"step": "private", "ms": 12}], "time of a step")
    step       ms
    plain    3.46
    private    12
    """

    rows: Sequence[Mapping[str, str | float]]
    label: str
    notes: Sequence[str] = ()

    def _lines(self) -> list[list[str]]:
        """Headings and rows as texts."""
        cells = [[v if isinstance(v, str) else style.number(v) for v in row.values()] for row in self.rows]
        return [list(self.rows[0]), *cells] if self.rows else []

    def _right(self) -> list[bool]:
        """Which columns hold numbers."""
        columns = list(zip(*self._lines()[1:], strict=True))
        return [k > 0 and all(NUMBER.match(cell) for cell in column) for k, column in enumerate(columns)]

    def __repr__(self) -> str:
        lines = [[" ".join(cell.split("\n")) for cell in line] for line in self._lines()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = []
        for line in lines:
            padded = zip(line, widths, self._right(), strict=True)
            shown.append("  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in padded).rstrip())
        return "\n".join([*shown, *self.notes])

    def _repr_html_(self) -> str:
        head, *body = self._lines() or [[]]
        right = self._right() if self.rows else []
        top = _cells(head, right, "col", "th")
        lines = "".join(f"<tr>{_cells(line, right, 'row', 'td')}</tr>" for line in body)
        notes = "".join(f'<p class="adadp-note">{html.escape(note)}</p>' for note in self.notes)
        region = f'<div class="adadp-table" role="region" tabindex="0" aria-label="{html.escape(self.label)}">'
        return f"{CSS}{region}<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>{notes}"


def _cells(line: Sequence[str], right: Sequence[bool], scope: str, tag: str) -> str:
    """The cells of a line; its first one, and every cell of the head, is a heading of its row or column."""
    found = []
    for k, (text, to_right) in enumerate(zip(line, right, strict=True)):
        name = "th" if k == 0 else tag
        main, *small = map(html.escape, text.split("\n"))
        extra = "".join(f"<small>{part}</small>" for part in small)
        which = f' scope="{scope}"' if name == "th" else ""
        align = ' class="ad-right"' if to_right else ""
        found.append(f"<{name}{which}{align}>{main}{extra}</{name}>")
    return "".join(found)
