"""The explorer with a kernel: ipywidgets (7.7, as on Colab, and 8) around the same drawing function."""

from __future__ import annotations

import asyncio
import html
import itertools
import math
from collections.abc import Callable

import ipywidgets as w

from adadp.figures import show
from adadp.figures.recorder import record
from adadp.figures.svg import markup

WAIT = 0.04  # seconds in which slider events that came while the kernel computed are read


class Latest:
    """Calls a slow function for the latest request only.

    While the kernel computes, slider events pile up. The first one read afterwards starts a short wait, in which the
    others are read too; then the function runs once, on what the sliders say by then. Without a running event loop it
    runs at once.
    """

    def __init__(self, function: Callable[[], None]):
        self._function, self._timer = function, None

    def __call__(self, *_: object) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._function()
            return
        if self._timer is None:
            self._timer = loop.call_later(WAIT, self._run)

    def _run(self) -> None:
        """The wait is over."""
        self._timer = None
        self._function()


def slider(axis, between: bool) -> w.Widget:
    """The widget of one axis: any value between its ends, or a choice of the given ones."""
    style, layout = {"description_width": "13em"}, w.Layout(width="100%", max_width="38rem")
    common = {"description": f"{axis.label}{f' ({axis.unit})' if axis.unit else ''}", "style": style, "layout": layout}
    values, first = axis.values, axis.values[axis.start]
    numeric = between and not any(isinstance(v, (str, bool)) for v in values)
    if not numeric:
        options = [(axis.show(v), v) for v in values]
        return w.SelectionSlider(options=options, value=first, **common)
    low, high = min(values), max(values)
    if all(isinstance(v, int) for v in values):
        return w.IntSlider(value=first, min=low, max=high, **common)
    ratios = [b / a for a, b in itertools.pairwise(values)] if low > 0 else [0.0, 1.0]
    if max(ratios) < 1.5 * min(ratios) and high > 5 * low:  # spaced by factors
        ends = {"min": math.log10(low), "max": math.log10(high), "step": 0.01}
        return w.FloatLogSlider(value=first, readout_format=".3g", **ends, **common)
    return w.FloatSlider(value=first, min=low, max=high, step=(high - low) / 200, readout_format=".3g", **common)


def live_view(explorer) -> w.VBox:
    """Sliders, a line that says what is going on, and the picture, drawn anew when a slider moves."""
    sliders = {axis.name: slider(axis, explorer.between) for axis in explorer.axes}
    picture, status = w.HTML(), w.HTML()

    def redraw() -> None:
        values = {name: s.value for name, s in sliders.items()}
        status.value = f'<em role="status">computing {html.escape(explorer.at(**values))} …</em>'
        try:
            view = explorer.view(**values)
            numbers = "".join(
                f"<div><dt>{html.escape(n)}</dt><dd>{html.escape(v)}</dd></div>" for n, v in view.numbers.items()
            )
            picture.value = (
                f'<div class="adadp-figure adadp-explorer">{show.stylesheet()}'
                f"{show.panels(markup(record(view.figure)), view.says)}<dl>{numbers}</dl>"
                f"<p>{html.escape(view.says, quote=False)}</p>{show.notes(view.figure)}</div>"
            )
            status.value = f'<span role="status">computed by the kernel: {html.escape(explorer.at(**values))}</span>'
        except Exception as error:
            status.value = f'<strong role="alert">{html.escape(f"{type(error).__name__}: {error}")}</strong>'

    later = Latest(redraw)
    for s in sliders.values():
        s.observe(later, "value")
    redraw()
    return w.VBox([*sliders.values(), status, picture])
