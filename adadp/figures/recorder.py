"""Draw a matplotlib figure into a :class:`~adadp.figures.svg.Drawing`: a list of plain elements instead of pixels."""

from __future__ import annotations

import base64
import io

import matplotlib
import numpy as np
from matplotlib.axis import Axis
from matplotlib.backend_bases import GraphicsContextBase, RendererBase
from matplotlib.figure import Figure
from matplotlib.path import Path
from PIL import Image

from adadp.figures import style
from adadp.figures.svg import UNIT, Drawing, Element, numbers, paint, path_data
from adadp.figures.text import STRIP

_TOLERANCE = 0.12  # points by which a simplified line may miss the exact one


class Recorder(RendererBase):
    """A matplotlib renderer that notes what is drawn, in points, instead of drawing it."""

    def __init__(self, width: float, height: float):
        super().__init__()
        self.width, self.height = width, height
        self.restart([])

    def restart(self, boxes: list[tuple[int, int, int, int]]) -> None:
        """Forget what was drawn."""
        self.drawing = Drawing(boxes)
        self._groups: list[tuple[str, str]] = []
        self._counts: list[dict[str, int]] = [{}]
        self._part = -1

    # -- what matplotlib asks of a renderer ------------------------------------------------------------------------
    def get_canvas_width_height(self) -> tuple[float, float]:
        return self.width, self.height

    def get_image_magnification(self) -> float:
        return 2.0  # images are drawn at 144 dots an inch

    def option_image_nocomposite(self) -> bool:
        return True

    def open_group(self, s: str, gid: str | None = None) -> None:
        name = gid or s
        count = self._counts[-1][name] = self._counts[-1].get(name, -1) + 1
        self._groups.append((s, f"{name}.{count}"))
        self._counts.append({})
        self._part += s == "subfigure"

    def close_group(self, s: str) -> None:
        while self._groups:  # a text outside its axes opens a group and never closes it
            self._counts.pop()
            if self._groups.pop()[0] == s:
                return

    def draw_path(self, gc, path, transform, rgbFace=None) -> None:
        if len(path.vertices):
            data = path_data(*self._trace(gc, path, transform, line=rgbFace is None))
            self._note("path", {"d": data, **self._ink(gc, rgbFace)}, gc)

    def draw_markers(self, gc, marker_path, marker_trans, path, trans, rgbFace=None) -> None:
        outline = marker_path.cleaned(marker_trans, simplify=False)
        keep = slice(0, len(outline.codes) - 1)  # the last one is STOP
        corners = np.rint(outline.vertices[keep] * [UNIT, -UNIT]).astype(int)
        shape = path_data(corners, outline.codes[keep], relative=True)
        at = trans.transform(path.vertices)
        inside = np.isfinite(at).all(axis=1) & (np.abs(at - self.width / 2) < 2 * self.width).all(axis=1)
        spots = np.rint((at[inside] * [1, -1] + [0, self.height]) * UNIT).astype(int)
        data = "".join(f"M{numbers(spot)}@" for spot in spots.tolist())
        self._note("path", {"d": data, **self._ink(gc, rgbFace)}, gc, shape)

    def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None) -> None:
        if ismath:  # a formula is drawn as outlines
            super().draw_text(gc, x, y, s, prop, angle, ismath, mtext)
            return
        share, anchor = 0.0, "start"
        if mtext is not None:  # anchored where it is aligned: another font then moves nothing out of its place
            along = mtext.get_verticalalignment() if angle == 90 else mtext.get_horizontalalignment()
            share, anchor = {"center": (0.5, "middle"), "right": (1.0, "end"), "top": (1.0, "end")}.get(
                along, (0.0, "start")
            )
        width = self.get_text_width_height_descent(s, prop, False)[0] * share
        x, y = x + width * np.cos(np.radians(angle)), y - width * np.sin(np.radians(angle))
        place = {"x": str(round(x * UNIT)), "y": str(round(y * UNIT))}
        if angle:
            place = {"transform": f"translate({place['x']} {place['y']})rotate({-angle:g})"}
        look = {"font-size": f"{prop.get_size_in_points() * UNIT:g}", "fill": paint(gc.get_rgb()[:3])}
        if anchor != "start":
            look["text-anchor"] = anchor
        if prop.get_weight() in ("bold", "semibold", 600, 700):
            look["font-weight"] = "bold"
        if prop.get_style() != "normal":
            look["font-style"] = prop.get_style()
        self._note("text", {**place, **look, "": s}, gc)

    def draw_image(self, gc, x, y, im, transform=None) -> None:
        file = io.BytesIO()
        Image.fromarray(np.asarray(im)[::-1]).save(file, "PNG", optimize=True)
        high, wide = (n / self.get_image_magnification() for n in im.shape[:2])
        box = {"x": x, "y": self.height - y - high, "width": wide, "height": high}
        source = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        self._note("image", {k: str(round(v * UNIT)) for k, v in box.items()} | {"href": source}, gc)

    # -- how it is noted -------------------------------------------------------------------------------------------
    def _trace(self, gc, path: Path, transform, line: bool) -> tuple[np.ndarray, np.ndarray]:
        """Vertices in whole units and codes; lines are cut at the canvas and rid of points that nobody can see."""
        margin = 20.0
        clip = (-margin, -margin, self.width + margin, self.height + margin) if line else None
        threshold, path.simplify_threshold = path.simplify_threshold, _TOLERANCE
        try:
            clean = path.cleaned(transform, True, clip, simplify=True, curves=True)
        finally:
            path.simplify_threshold = threshold
        count = len(clean.codes) - (len(clean.codes) > 0 and clean.codes[-1] == Path.STOP)
        vertices = (clean.vertices[:count] * [1, -1] + [0, self.height]) * UNIT
        return np.rint(vertices).astype(int), clean.codes[:count]

    def _ink(self, gc: GraphicsContextBase, face) -> dict[str, str]:
        """Fill and stroke attributes."""
        if gc.get_hatch():
            raise ValueError("hatches are not drawn in pages; tell areas apart by colour and by a name beside them")
        alpha = gc.get_alpha() if gc.get_forced_alpha() else None
        out = {"fill": "none" if face is None else paint(face[:3])}
        opacity = alpha if alpha is not None else (face[3] if face is not None and len(face) > 3 else 1.0)
        if face is not None and opacity < 1:
            out["fill-opacity"] = f"{opacity:.3g}"
        width, rgb = gc.get_linewidth(), gc.get_rgb()
        opacity = alpha if alpha is not None else rgb[3]
        if width > 0 and opacity > 0:
            out |= {"stroke": paint(rgb[:3]), "stroke-width": f"{width * UNIT:.3g}"}
            if opacity < 1:
                out["stroke-opacity"] = f"{opacity:.3g}"
            _, dashes = gc.get_dashes()
            if dashes is not None:
                out["stroke-dasharray"] = " ".join(f"{d * UNIT:.3g}" for d in dashes)
            if gc.get_capstyle() != "butt":
                out["stroke-linecap"] = {"projecting": "square"}.get(gc.get_capstyle(), gc.get_capstyle())
            if gc.get_joinstyle() != "miter":
                out["stroke-linejoin"] = gc.get_joinstyle()
        return out

    def _note(self, tag: str, attributes: dict[str, str], gc: GraphicsContextBase, shape: str = "") -> None:
        """Add an element under the key of the group it is drawn in; what nobody can see is left out."""
        if tag == "path" and attributes["fill"] == "none" and "stroke" not in attributes:
            return
        clip = gc.get_clip_rectangle()
        if any(kind in ("xtick", "ytick") for kind, _ in self._groups):
            clip = None  # ticks and grid lines end at the axes as it is
        if clip is not None:
            x, y, w, h = clip.bounds
            clip = tuple(round(v * UNIT) for v in (x, self.height - y - h, w, h))
        count = self._counts[-1][tag] = self._counts[-1].get(tag, -1) + 1
        key = (*(name for _, name in self._groups), f"{tag}.{count}", clip)
        self.drawing.elements.append(Element(key, tag, attributes, shape, clip, max(self._part, 0)))


def _boxes(fig: Figure) -> list[tuple[int, int, int, int]]:
    """View boxes (x, y, width, height): one a subfigure, or one for the whole figure without its provenance line."""
    high = fig.bbox.height
    if fig.subfigs:
        areas = [part.bbox.bounds for part in fig.subfigs]
    else:
        lines = [t for t in fig.texts if t.get_gid() == "provenance"]
        strip = STRIP * fig.dpi if lines else 0
        areas = [(0, strip, fig.bbox.width, high - strip)]
    return [tuple(round(v * UNIT) for v in (x, high - y - h, w, h)) for x, y, w, h in areas]


def _look(axis: Axis) -> tuple:
    """What decides how an axis is drawn; reading the limits settles automatic ones."""
    axes, label = axis.axes, axis.label
    limits = (*axes.viewLim.bounds, *axis.get_view_interval(), *axes.transAxes.frozen().to_values())
    ticks = (axis.get_major_locator(), axis.get_major_formatter(), axis.get_scale())
    return (*limits, *ticks, label.get_text(), label.get_color(), label.get_visible(), axis.get_visible())


class Camera:
    """Draws one figure again and again, ten times faster than from scratch.

    The resolution is set and the layout settled at the first drawing; an axis is drawn again only when it changed. The
    figure belongs to the camera until :meth:`release`.
    """

    @matplotlib.rc_context(style.RC)
    def __init__(self, fig: Figure):
        self.figure = fig
        self._dpi, self._engine = fig.dpi, fig.get_layout_engine()
        fig.dpi = 72
        if self._engine is not None:
            self._engine.execute(fig)
        fig.set_layout_engine("none")
        self._recorder = Recorder(fig.bbox.width, fig.bbox.height)  # kept: matplotlib's cache of text sizes hangs on it
        self._axes = {axis: f"axis{n}" for n, axis in enumerate(a for ax in fig.axes for a in (ax.xaxis, ax.yaxis))}
        for axis, name in self._axes.items():
            axis.set_gid(name)
        self._looks: dict[Axis, tuple] = {}
        self._blocks: dict[Axis, list[Element]] = {}
        self._order: dict[tuple, int] = {}

    def release(self) -> None:
        """Give the figure back as it was."""
        self.figure.dpi = self._dpi
        self.figure.set_layout_engine(self._engine)

    @matplotlib.rc_context(style.RC)  # ticks are made when they are drawn
    def record(self) -> Drawing:
        """Draw the figure as it is now."""
        looks = {axis: _look(axis) for axis in self._axes}
        known = [axis for axis, look in looks.items() if not axis.stale and self._looks.get(axis) == look]
        drawing = self._draw(known)
        self._looks = looks
        if known and not self._put_back(drawing, known):
            known, drawing = [], self._draw([])  # the order of drawing has changed
        if not known:
            self._order = {element.key: n for n, element in enumerate(drawing.elements)}
        for axis, name in self._axes.items():
            self._blocks[axis] = [element for element in drawing.elements if f"{name}.0" in element.key]
        return drawing

    def _draw(self, known: list[Axis]) -> Drawing:
        """Draw everything but the axes that are known."""
        fig, recorder = self.figure, self._recorder
        hidden = [fig.patch, *(part.patch for part in fig.subfigs)]
        hidden += [t for t in fig.texts if t.get_gid() == "provenance"]  # a page writes it below the picture
        seen = {artist: artist.get_visible() for artist in hidden + known}
        recorder.restart(_boxes(fig))
        try:
            for artist in seen:
                artist.set_visible(False)
            fig.draw(recorder)
        finally:
            for artist, visible in seen.items():
                artist.set_visible(visible)
            for axis in known:
                axis.stale = False
        return recorder.drawing

    def _put_back(self, drawing: Drawing, known: list[Axis]) -> bool:
        """Add the elements of known axes where they stood; False where the others are no longer in their old order."""
        ranks = self._ranks(drawing.elements)
        if ranks != sorted(ranks):
            return False
        block = [element for axis in known for element in self._blocks[axis]]
        ranks += self._ranks(block)
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        both = drawing.elements + block
        drawing.elements[:] = [both[n] for n in order]
        return True

    def _ranks(self, elements: list[Element]) -> list[int]:
        """Places in the drawing order; a new element has the place of the one before it."""
        ranks, rank = [], -1
        for element in elements:
            rank = self._order.get(element.key, rank)
            ranks.append(rank)
        return ranks


def record(fig: Figure) -> Drawing:
    """Draw a figure once and leave it as it was."""
    camera = Camera(fig)
    try:
        return camera.record()
    finally:
        camera.release()
