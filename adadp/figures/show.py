"""A figure as a picture for a page: SVG that follows the page's theme, a text alternative, a caption, a data line."""

from __future__ import annotations

import html
from functools import cache
from importlib import resources

from matplotlib.figure import Figure

from adadp.figures import style, text
from adadp.figures.recorder import record
from adadp.figures.svg import markup

DARK = ('html[data-theme="dark"]', 'body[data-jp-theme-light="false"]', 'html[theme="dark"]')  # book, Jupyter, Colab


@cache
def stylesheet() -> str:
    """``<style>`` of every figure: the house colours, light and dark (print is always light), and the layout."""
    light, dark = (";".join(f"--ad-{name}:{pair[n]}" for name, pair in style.THEME.items()) for n in (0, 1))
    themes = ",".join(f"{root} .adadp-figure" for root in DARK)
    rules = resources.files("adadp.figures").joinpath("figures.css").read_text(encoding="utf-8")
    return (
        f"<style>.adadp-figure{{{light}}}@media screen{{{themes}{{{dark};color-scheme:dark}}}}"
        f"{rules.replace(chr(10), '')}</style>"
    )


def panels(svg: str, alt: str) -> str:
    """The picture alone, with its text alternative."""
    return f'<div class="ad-panels" role="img" aria-label="{html.escape(alt)}">{svg}</div>'


def notes(fig: Figure) -> str:
    """Caption, privacy statement and data line of a figure, where it has them."""
    lines = [("ad-caption", text.caption(fig)), ("ad-privacy", text.statement(fig)), ("ad-data", text.provenance(fig))]
    return "".join(f'<p class="{name}">{html.escape(line, quote=False)}</p>' for name, line in lines if line)


def to_html(fig: Figure) -> str:
    """The figure as self-contained HTML; its text alternative comes from :func:`adadp.figures.text.describe`.

    >>> to_html(style.figure()).count("<svg")
    1
    """
    alt = text.describe(fig) or text.titles(fig)
    return f'<div class="adadp-figure">{stylesheet()}{panels(markup(record(fig)), alt)}{notes(fig)}</div>'


def register() -> None:
    """In a notebook, show every ``Figure`` that ends a cell by :func:`to_html`; elsewhere do nothing."""
    try:
        from IPython import get_ipython
    except ImportError:
        return
    if (shell := get_ipython()) is not None:
        shell.display_formatter.formatters["text/html"].for_type(Figure, to_html)
