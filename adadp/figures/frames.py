"""Many drawings of one figure, kept as one drawing and a table of what differs.

A slider position changes few things. For every attribute that changes, a :class:`Slot` tells which axes it depends on
and which text of a common table it takes at each of their positions; equal texts are stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from adadp.figures.svg import Drawing, Element


@dataclass
class Slot:
    """One attribute of one element that is not the same at all positions.

    Attributes:
        target: number of the element among those that change.
        attribute: its name; "" is the text content.
        shape: what "@" stands for in the texts.
        axes: numbers of the axes it depends on.
        indices: for each position of these axes (the last one fastest) a number in ``Frames.strings``.
    """

    target: int
    attribute: str
    shape: str
    axes: list[int]
    indices: list[int]


@dataclass
class Frames:
    """Drawings over a grid of positions.

    Attributes:
        sizes: number of values of each axis.
        drawing: the start position, with the elements of all positions (those it lacks are empty).
        targets: keys of the elements that change.
        slots: what changes.
        strings: every text that a slot can take.
    """

    sizes: tuple[int, ...]
    drawing: Drawing
    targets: list[tuple] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict, repr=False)

    def add(self, key: tuple, attribute: str, values: Sequence[str], shape: str = "") -> None:
        """Note one attribute; nothing is kept of one that never changes.

        Args:
            key: the element.
            values: its text at every position, shape (product of sizes,).
        """
        grid = np.array([self._index(value) for value in values]).reshape(self.sizes)
        axes = []
        for axis in range(grid.ndim):  # drop the axes along which nothing changes
            first = np.take(grid, [0], axis=axis)
            if (grid == first).all():
                grid = first
            else:
                axes.append(axis)
        if not axes:
            return
        if key not in self.targets:
            self.targets.append(key)
        self.slots.append(Slot(self.targets.index(key), attribute, shape, axes, grid.ravel().tolist()))

    def _index(self, text: str) -> int:
        """Number of a text in the table."""
        if text not in self._known:
            self._known[text] = len(self.strings)
            self.strings.append(text)
        return self._known[text]

    def data(self) -> dict:
        """What the page's script reads, with the texts that no slot takes left out."""
        used = sorted({i for slot in self.slots for i in slot.indices})
        place = {old: new for new, old in enumerate(used)}
        slots = [[s.target, s.attribute, s.shape, s.axes, [place[i] for i in s.indices]] for s in self.slots]
        return {"strings": [self.strings[i] for i in used], "slots": slots}


def _union(drawings: Sequence[Drawing]) -> dict[tuple, Element]:
    """One element a key, over all drawings, in drawing order: a new one comes after its neighbour."""
    order = [e.key for e in drawings[0].elements]
    known = {e.key: e for e in drawings[0].elements}
    for drawing in drawings[1:]:
        before = None
        for element in drawing.elements:
            if element.key not in known:
                order.insert(order.index(before) + 1 if before in known else 0, element.key)
                known[element.key] = element
            before = element.key
    return {key: known[key] for key in order}


def compare(drawings: Sequence[Drawing], sizes: Sequence[int], start: int = 0) -> Frames:
    """Put drawings of one figure at all positions of a grid together.

    Args:
        drawings: one a position, the last axis fastest; shape (product of sizes,).
        sizes: number of values of each axis.
        start: number of the drawing that is shown first.

    Raises:
        ValueError: if the drawings are not of one size.
    """
    if any(d.boxes != drawings[start].boxes for d in drawings):
        raise ValueError("draw must return figures of one size (and with the same panels) at every position")
    elements = _union([drawings[start], *drawings])
    frames = Frames(tuple(sizes), Drawing(drawings[start].boxes))
    at = [{e.key: e for e in d.elements} for d in drawings]
    for key, model in elements.items():
        here = [position.get(key) for position in at]
        if any(e is not model for e in here):
            _compare_element(frames, key, here)
        shown = here[start] or Element(key, model.tag, {}, model.shape, model.clip, model.part)
        frames.drawing.elements.append(shown)
    return frames


def _compare_element(frames: Frames, key: tuple, here: Sequence[Element | None]) -> None:
    """Note every attribute of one element; where the element is missing all of them are empty."""
    shapes = {e.shape for e in here if e is not None}
    shape = shapes.pop() if len(shapes) == 1 else None
    for attribute in {name: None for e in here if e is not None for name in e.attributes}:
        values = ["" if e is None else e.attributes.get(attribute, "") for e in here]
        if attribute == "d" and shape is None:  # the marker itself changes: written out
            values = [v.replace("@", e.shape) if e is not None else v for v, e in zip(values, here, strict=True)]
        frames.add(key, attribute, values, (shape or "") if attribute == "d" else "")
