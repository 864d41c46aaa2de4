"""Turn a matplotlib figure into a small SVG for a page: no ids, house colours as CSS variables, text as text.

Coordinates are whole tenths of a point. Because nothing has an id, any number of pictures live on one page, and because
an :class:`Element` is a plain value, two drawings of one figure can be compared element by element (``frames.py``).
:mod:`adadp.figures.recorder` makes the drawings.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.path import Path

from adadp.figures import style

UNIT = 10  # tenths of a point: a fifth of a phone's pixel
_NAMES = {light: f"var(--ad-{name})" for name, (light, _) in style.THEME.items()}
_NAMES |= {"#000000": "var(--ad-ink)"}


@dataclass(frozen=True)
class Element:
    """One drawn thing: ``path``, ``text`` or ``image``, with its attributes.

    Attributes:
        key: where it stands in the figure; equal keys in two drawings are the same thing.
        attributes: SVG attributes; "" holds the content of a text. In ``d``, "@" stands for ``shape``.
        shape: path data of a marker, relative to the marked point.
        clip: x, y, width, height (tenths of a point) outside of which it is not seen, or None.
        part: number of the subfigure it belongs to.
    """

    key: tuple
    tag: str
    attributes: dict[str, str]
    shape: str = ""
    clip: tuple[int, int, int, int] | None = None
    part: int = 0

    def markup(self, extra: str = "") -> str:
        """The element as SVG text."""
        given = {k: v.replace("@", self.shape) if k == "d" else v for k, v in self.attributes.items() if k}
        attributes = "".join(f' {k}="{html.escape(v)}"' for k, v in given.items())
        content = html.escape(self.attributes.get("", ""), quote=False)
        return f"<{self.tag}{attributes}{extra}>{content}</{self.tag}>"


@dataclass
class Drawing:
    """What one drawing of a figure gave: its elements in drawing order, and a view box a subfigure."""

    boxes: list[tuple[int, int, int, int]]
    elements: list[Element] = field(default_factory=list)


def paint(color: object) -> str:
    """A colour as SVG text; house colours become CSS variables, so that a page can give them its dark values."""
    name = to_hex(color)
    return _NAMES.get(name, name)


def numbers(values: Iterable[int]) -> str:
    """Whole numbers with as few separators as SVG needs.

    >>> numbers([1, -2, 3])
    '1-2 3'
    """
    return "".join(f" {v}" if v >= 0 else str(v) for v in values).removeprefix(" ")


def path_data(vertices: np.ndarray, codes: np.ndarray, relative: bool = False) -> str:
    """SVG path data of vertices (N, 2) in whole units; with ``relative`` every move is relative too.

    >>> path_data(np.array([[-3, 3], [3, -3], [-3, -3], [3, 3]]), np.array([1, 2, 1, 2]), relative=True)
    'm-3 3l6-6m-6 0l6 6'
    """
    out, i, here, first, last = [], 0, (0, 0), (0, 0), ""
    points, kinds = vertices.tolist(), codes.tolist()
    while i < len(kinds):
        kind = kinds[i]
        if kind == Path.CLOSEPOLY:
            out.append("z")
            i, here, last = i + 1, first, "z"
            continue
        letter, count = {1: ("M", 1), 2: ("l", 1), 3: ("q", 2), 4: ("c", 3)}[kind]
        block = points[i : i + count]
        i += count
        if letter == "M":
            to = [c - h for c, h in zip(block[0], here, strict=True)] if relative else block[0]
            out.append(("m" if relative else "M") + numbers(to))
            here = first = block[0]
            last = "M"
            continue
        steps = [c - h for point in block for c, h in zip(point, here, strict=True)]
        here = block[-1]
        if any(steps) or last == "M":  # a point keeps its dot, a step of nothing goes
            text = numbers(steps)
            out.append(letter + text if letter != last else (text if text[0] == "-" else " " + text))
            last = letter
    return "".join(out)


def markup(drawing: Drawing, extra: dict[tuple, str] | None = None) -> str:
    """The drawing as ``<svg>`` elements, one a subfigure; ``extra`` adds attributes to the elements of its keys."""
    out = []
    for number, box in enumerate(drawing.boxes):
        clip, inner = None, []
        for element in (e for e in drawing.elements if e.part == number):
            if element.clip != clip:  # a nested svg cuts at its edges: a clip path would need an id
                inner.append(("</svg>" if clip else "") + _window(element.clip))
                clip = element.clip
            inner.append(element.markup((extra or {}).get(element.key, "")))
        inner.append("</svg>" if clip else "")
        wide = round(box[2] / UNIT * 4 / 3)
        out.append(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{" ".join(map(str, box))}" aria-hidden="true" '
            f'style="--ad-width:{wide}px">{"".join(inner)}</svg>'
        )
    return "".join(out)


def _window(clip: tuple[int, int, int, int] | None) -> str:
    """Start tag of a nested ``<svg>`` that shows only the rectangle."""
    if clip is None:
        return ""
    x, y, w, h = clip
    # Chromium goes by the attributes; where the style counts, a theme's rule for every svg must not stretch it.
    size = f'width="{w}" height="{h}" style="width:{w}px;height:{h}px;max-width:none"'
    return f'<svg x="{x}" y="{y}" {size} viewBox="{x} {y} {w} {h}" overflow="hidden">'
