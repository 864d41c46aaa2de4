"""Sliders under a figure: one object that moves in a static page without a kernel and recomputes with one.

The static page gets HTML with one drawing, native range inputs and a table of what changes at each position
(``frames.py``, ``explorer.js``); Jupyter and Colab get a widget that calls the same function at any value
(``live.py``).
"""

from __future__ import annotations

import html
import itertools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources

import matplotlib
from matplotlib.figure import Figure

from adadp.figures import show, style, text
from adadp.figures.frames import Frames, compare
from adadp.figures.recorder import Camera
from adadp.figures.svg import markup

Value = float | int | str


@dataclass(frozen=True)
class View:
    """What a drawing function may return instead of a bare figure.

    Attributes:
        figure: the picture.
        numbers: name -> text, shown beside the picture (with units).
        says: the text alternative: one or two sentences that tell what the picture shows at these values.
    """

    figure: Figure
    numbers: Mapping[str, str] = field(default_factory=dict)
    says: str = ""


@dataclass(frozen=True)
class Axis:
    """One slider: its name in the drawing function, what readers see, and its values."""

    name: str
    values: tuple[Value, ...]
    label: str
    unit: str = ""
    start: int = 0

    def show(self, value: Value) -> str:
        """A value as readers see it, with its unit."""
        shown = value if isinstance(value, str) else style.number(value)
        return f"{shown} {self.unit}".strip()


def _axis(name: str, values: Sequence[Value], labels: Mapping, units: Mapping, start: Mapping) -> Axis:
    """Check one slider and put it together."""
    values = tuple(v if isinstance(v, str) else (v.item() if hasattr(v, "item") else v) for v in values)
    if len(set(values)) < 2 or len(set(values)) < len(values):
        raise ValueError(f"axes[{name!r}] needs at least two values, all different, got {list(values)}")
    if any(not isinstance(v, str) and not math.isfinite(v) for v in values):
        raise ValueError(f"axes[{name!r}] must hold finite numbers or texts, got {list(values)}")
    if name in start and start[name] not in values:
        raise ValueError(f"start[{name!r}] = {start[name]!r} is not one of axes[{name!r}] = {list(values)}")
    first = values.index(start[name]) if name in start else len(values) // 2
    return Axis(name, values, labels.get(name, name), units.get(name, ""), first)


def _row(axis: Axis) -> str:
    """The slider of one axis, with its name and its value."""
    first = html.escape(axis.show(axis.values[axis.start]))
    return (
        f'<div class="ad-row"><label><span>{html.escape(axis.label)}</span>'
        f'<input type="range" min="0" max="{len(axis.values) - 1}" step="1" value="{axis.start}" '
        f'aria-valuetext="{first}" autocomplete="off"></label><output aria-hidden="true">{first}</output></div>'
    )


class Explorer:
    """A figure with sliders; made by :func:`explorer`. As the last value of a notebook cell it shows itself."""

    def __init__(self, draw: Callable[..., Figure | View], axes: Sequence[Axis], title: str, between: bool):
        self.draw, self.axes, self.title, self.between = draw, tuple(axes), title, between

    def view(self, **values: Value) -> View:
        """Call the drawing function at any values; a bare figure gets a text alternative that names the values."""
        try:
            with matplotlib.rc_context(style.RC):
                view = self.draw(**values)
        except Exception as error:
            error.add_note(f"while drawing the figure at {self.at(**values)}")
            raise
        if isinstance(view, Figure):
            view = View(view)
        if not isinstance(view, View):
            raise TypeError(f"draw must return a Figure or a View, got {type(view).__name__}")
        if not view.says:
            numbers = "".join(f"; {name} {value}" for name, value in view.numbers.items())
            says = f"{self.at(**values)}{numbers}. {text.describe(view.figure)}".strip()
            view = View(view.figure, view.numbers, says)
        return view

    def at(self, **values: Value) -> str:
        """Values in words: "tol = 0.1, σ = 2"."""
        return ", ".join(f"{axis.label} = {axis.show(values[axis.name])}" for axis in self.axes)

    @property
    def start(self) -> dict[str, Value]:
        """Values at the start."""
        return {axis.name: axis.values[axis.start] for axis in self.axes}

    def _film(self) -> tuple[Frames, View]:
        """Draw every position; returns the table, and the view at the start."""
        names, sizes = [a.name for a in self.axes], [len(a.values) for a in self.axes]
        views, drawings, notes, camera = [], [], set(), None
        for values in itertools.product(*(a.values for a in self.axes)):
            view = self.view(**dict(zip(names, values, strict=True)))
            if camera is None or camera.figure is not view.figure:
                if camera is not None:
                    camera.release()
                camera = Camera(view.figure)
            views.append(view)
            notes.add(show.notes(view.figure))
            drawings.append(camera.record())
        camera.release()
        if len(notes) > 1:
            raise ValueError("caption, statement and data stay below a page's figure as they are: make them alike")
        first = 0
        for axis, size in zip(self.axes, sizes, strict=True):
            first = first * size + axis.start
        frames = compare(drawings, sizes, first)
        for name in {n: None for view in views for n in view.numbers}:
            frames.add(("number", name), "", [view.numbers.get(name, "–") for view in views])
        frames.add(("says",), "", [view.says for view in views])
        return frames, views[first]

    @cached_property
    def html(self) -> str:
        """The explorer for a static page: self-contained, without a single id."""
        frames, view = self._film()
        marks = {key: f' data-k="{n}"' for n, key in enumerate(frames.targets)}
        rows = "".join(_row(axis) for axis in self.axes)
        names = view.numbers | {key[1]: "–" for key in marks if key[0] == "number" and key[1] not in view.numbers}
        numbers = "".join(
            f"<div><dt>{html.escape(name)}</dt><dd{marks.get(('number', name), '')}>{html.escape(value)}</dd></div>"
            for name, value in names.items()
        )
        data = {"labels": [[a.show(v) for v in a.values] for a in self.axes], **frames.data()}
        packed = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        script = resources.files("adadp.figures").joinpath("explorer.js").read_text(encoding="utf-8")
        return (
            f'<div class="adadp-figure adadp-explorer" role="group" aria-label="{html.escape(self.title)}">'
            f'{show.stylesheet()}<div class="ad-controls" hidden>{rows}</div>'
            f"<noscript><p>Scripts are off: this is the figure at {html.escape(self.at(**self.start))}.</p></noscript>"
            f"{show.panels(markup(frames.drawing, marks), view.says)}"
            f"{f'<dl>{numbers}</dl>' if numbers else ''}"
            f'<p class="ad-says" aria-live="polite"{marks.get(("says",), "")}>{html.escape(view.says, quote=False)}</p>'
            f'{show.notes(view.figure)}<script type="application/json">{packed}</script><script>{script}</script></div>'
        )

    @cached_property
    def widget(self):
        """The explorer as an ipywidgets box that recomputes (needs a kernel)."""
        from adadp.figures.live import live_view

        return live_view(self)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        """A widget where a kernel listens, HTML for everything else (not on Colab, where there always is a kernel)."""
        bundle = {"text/plain": f"{self.title}: {self.at(**self.start)}"}
        try:
            identity = self.widget.model_id
            bundle["application/vnd.jupyter.widget-view+json"] = {
                "version_major": 2, "version_minor": 0, "model_id": identity,
            }  # fmt: skip
        except ImportError:
            pass
        if len(bundle) == 1 or "google.colab" not in sys.modules:
            bundle["text/html"] = self.html
        return bundle


def explorer(
    draw: Callable[..., Figure | View],
    axes: Mapping[str, Sequence[Value]],
    *,
    labels: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
    start: Mapping[str, Value] | None = None,
    title: str = "Interactive figure",
    between: bool = True,
) -> Explorer:
    """Put sliders under a figure.

    Args:
        draw: called with one keyword an axis; returns a ``Figure``, or a :class:`View` to add numbers and words. A
            function that sets the data of one figure, and returns it every time, is ten times faster than one that
            makes new figures: 600 positions take seconds.
        axes: argument of ``draw`` -> the values of its slider, numbers or texts.
        labels, units: argument -> what readers see ("noise multiplier σ", "%").
        start: argument -> the value shown first; the middle one where left out.
        title: name of the whole, for readers who do not see it.
        between: with a kernel, a slider of numbers takes any value between its ends; False where ``draw`` only knows
            the given ones (stored results).

    Raises:
        ValueError: for an axis with fewer than two different finite values, or a name in ``labels``, ``units`` or
            ``start`` that is not an axis.

    >>> from adadp.figures import style
    >>> fig = style.figure()
    >>> (line,) = fig.axes[0].plot([0, 1], [0, 1])
    >>> def draw(slope):
    ...     line.set_ydata([0, slope])
    ...     return View(fig, {"slope": f"{slope} %"}, f"A line of slope {slope}.")
    >>> explorer(draw, {"slope": [0.5, 1]}, units={"slope": "%"}).html.count("<input")
    1
    """
    if not axes:
        raise ValueError("axes must name at least one slider")
    labels, units, start = labels or {}, units or {}, start or {}
    for argument, given in (("labels", labels), ("units", units), ("start", start)):
        if unknown := sorted(set(given) - set(axes)):
            raise ValueError(f"{argument} names {', '.join(unknown)}, which is not in axes ({', '.join(axes)})")
    return Explorer(draw, [_axis(n, v, labels, units, start) for n, v in axes.items()], title, between)
