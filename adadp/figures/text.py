"""Words that belong to a figure: text alternative, caption, what its epsilons mean, where its data come from."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from adadp.figures import style

STRIP = 0.24  # inches below a figure for its data line


def describe(fig: Figure, alt: str | None = None) -> str:
    """Set (where given) and return the text alternative of a figure: what it shows, with its main numbers, in words.

    >>> describe(style.figure(), "An empty figure.")
    'An empty figure.'
    """
    if alt is not None:
        fig.set_label(alt)
    return fig.get_label()


def titles(fig: Figure) -> str:
    """What the titles and axis labels of a figure say; the text alternative of a figure that was given none."""
    said = []
    for ax in fig.axes:
        title = ax.get_title(loc="left") or ax.get_title()
        names = [name for name in (ax.get_ylabel(), ax.get_xlabel()) if name]
        said.append(": ".join(filter(None, (title, " against ".join(names)))))
    return "; ".join(filter(None, said)) or "Figure"


def caption(fig: Figure, text: str | None = None) -> str:
    """Set (where given) and return the visible caption that a page shows under the figure."""
    if text is not None:
        fig._adadp_caption = text
    return getattr(fig, "_adadp_caption", "")


def statement(fig: Figure, text: str | None = None) -> str:
    """Set (where given) and return the privacy statement, one line that a page shows under the caption.

    Every figure that shows an epsilon, or a result that one belongs to, carries it: the short form of
    :func:`adadp.privacy_statement`, or of :func:`adadp.privacy.assumptions` where a figure shows many epsilons.
    """
    if text is not None:
        fig._adadp_statement = text
    return getattr(fig, "_adadp_statement", "")


def provenance(fig: Figure, text: str | None = None) -> str:
    """Set (where given) and return the line under a figure that says which data it was made from.

    It is part of the figure's file, which grows by the line, and a line of text under the picture in a page. Call it
    when everything else is drawn.

    Args:
        text: for example ``Dataset.provenance``; a new text replaces the old one.
    """
    if text is None:
        return getattr(fig, "_adadp_provenance", "")
    old = [t for t in fig.texts if t.get_gid() == "provenance"]
    for line in old:
        line.remove()
    if not old:
        _make_room(fig)
    fig._adadp_provenance = text
    share = STRIP / fig.get_figheight()
    with matplotlib.rc_context(style.RC):
        fig.text(0.012, 0.25 * share, text, color=style.COLORS["muted"], fontsize=7.5, gid="provenance")
    return text


def _make_room(fig: Figure) -> None:
    """Let a figure grow by the strip of its data line; a legend below the axes stays above the strip."""
    fig.set_figheight(fig.get_figheight() + STRIP)
    share = STRIP / fig.get_figheight()
    if not isinstance(engine := fig.get_layout_engine(), ConstrainedLayoutEngine):
        return
    fig.draw_without_rendering()
    lowest, high = min((ax.bbox.y0 for ax in fig.axes), default=0), share
    for legend in [legend for legend in fig.legends if legend.get_window_extent().y1 <= lowest]:
        # An anchored legend is no longer given its place by the layout, so its height is kept free here.
        high = max(high, share + legend.get_window_extent().height / fig.bbox.height + 0.02)
        legend.set_bbox_to_anchor((0, share, 1, 1 - share), fig.transFigure)
    engine.set(rect=(0, high, 1, 1 - high))
