"""One look for every figure of the book.

Colours stay apart for colour-blind readers and carry text (contrast of 4.5 or more on the page, light and dark); each
method also has its own line style and marker, so that a black-and-white print reads. Sizes suit a 700 px text column
and a 390 px phone: a figure of two panels is made of two subfigures, which a page may stack.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from adadp.rounding import number as number  # figures write numbers as texts do

# name -> (light page, dark page). Figures are drawn in the light colours; a page swaps them (see svg.py).
THEME = {
    "ink": ("#1f2328", "#e6e9ee"),
    "blue": ("#1a5fe0", "#4590f8"),
    "orange": ("#a85a08", "#e08a3c"),
    "green": ("#0b6b45", "#35e09a"),
    "purple": ("#a0148c", "#f08ae6"),
    "muted": ("#59636e", "#a3adb8"),
    "grid": ("#dfe3e8", "#343b45"),
    "paper": ("#ffffff", "#121212"),
}
COLORS = {name: light for name, (light, _) in THEME.items()}
CYCLE = [COLORS[name] for name in ("blue", "orange", "green", "purple", "ink", "muted")]
LINESTYLES = ["-", (0, (5, 1.6)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (9, 2))]
MARKERS = ["o", "s", "^", "D", "v", "P"]


def _method(label: str, color: str, line: int) -> dict:
    """Keyword arguments of one method for ``Axes.plot``."""
    return {"label": label, "color": COLORS[color], "linestyle": LINESTYLES[line], "marker": MARKERS[line]}


# Method name -> keyword arguments of `Axes.plot`. One method looks the same in every chapter.
METHODS = {
    "adadp": _method("ADADP", "blue", 0),
    "recommended": _method("ADADP (recommended)", "blue", 0),
    "as_printed": _method("ADADP (as printed)", "green", 3),
    "reference_code": _method("ADADP (reference code)", "purple", 4),
    "reference_code_tol1": _method("ADADP (reference code, tol 1)", "muted", 2),
    "adam": _method("Adam", "orange", 1),
    "adam_second": _method("Adam (second best)", "orange", 5),
    "sgd": _method("SGD", "ink", 2),
    "sgd_transferred": _method("SGD (lr from σ = 2)", "orange", 1),
    "sgd_rescaled": _method("SGD (lr from σ = 2, times 2/σ)", "purple", 4),
    "sgd_second": _method("SGD (second best at σ = 2)", "purple", 4),
    "predicted": _method("SGD at half the predicted lr (tol 0.316)", "ink", 2),
    "predicted_recommended": _method("SGD at half the predicted lr (recommended tol)", "ink", 2),
    "predicted_tol1": _method("SGD at half the predicted lr (tol 1)", "muted", 5),
}
KINDS = {"ADADP": "blue", "Adam": "orange", "SGD": "ink"}  # first word of a label -> colour of such curves

RC = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so it is there everywhere
    "mathtext.fontset": "dejavusans",
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "text.color": COLORS["ink"],
    "axes.labelcolor": COLORS["ink"],
    "axes.edgecolor": COLORS["muted"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLORS["grid"],
    "grid.linewidth": 0.7,
    "xtick.color": COLORS["muted"],
    "ytick.color": COLORS["muted"],
    "xtick.labelcolor": COLORS["ink"],
    "ytick.labelcolor": COLORS["ink"],
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "axes.prop_cycle": cycler(color=CYCLE, linestyle=LINESTYLES),
    "axes.unicode_minus": True,
    "figure.facecolor": COLORS["paper"],
    "axes.facecolor": "none",
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "adadp",  # the same figure gives the same file
}


def looks(names: Iterable[str]) -> dict[str, dict]:
    """Keyword arguments of ``Axes.plot`` for the curves of one figure, by name.

    A key of ``METHODS`` looks as it does everywhere. Any other text is a label: it gets the first line style and marker
    that are left, in the colour of its kind if it begins with one of ``KINDS``, else in the first colour left.

    >>> found = looks(["adam", "SGD, lr 0.1", "SGD, lr 1"])
    >>> [look["marker"] for look in found.values()]
    ['s', 'o', '^']
    """
    names = list(names)
    kinds = {name: COLORS[KINDS[word]] for name in names if (word := re.split(r"\W", name, maxsplit=1)[0]) in KINDS}
    known = [METHODS[name] for name in names if name in METHODS]
    lines = _left(range(len(LINESTYLES)), [LINESTYLES.index(look["linestyle"]) for look in known])
    colors = _left(CYCLE, [*kinds.values(), *(look["color"] for look in known)])
    found = {}
    for name in names:
        if name in METHODS:
            found[name] = dict(METHODS[name])
        else:
            line = next(lines)
            color = kinds.get(name) or next(colors)
            found[name] = {"label": name, "color": color, "linestyle": LINESTYLES[line], "marker": MARKERS[line]}
    return found


def _left(choices: Sequence, taken: Collection) -> Iterator:
    """The choices that are not taken, again and again; all of them where none is left."""
    return itertools.cycle([c for c in choices if c not in taken] or choices)


def use() -> None:
    """Make the house style the default of matplotlib, and show figures as accessible pictures in notebooks.

    >>> use()
    >>> matplotlib.rcParams["font.family"]
    ['DejaVu Sans']
    """
    from adadp.figures import show  # (it imports this module)

    matplotlib.rcParams.update(RC)
    show.register()


def figure(panels: int = 1, *, width: float = 4.4, height: float = 2.9, sharey: bool = False) -> Figure:
    """An empty figure in the house style, made without pyplot; its axes are in ``fig.axes``.

    Args:
        panels: number of panels, in a row; a page stacks them on a narrow screen.
        width, height: inches; the width is that of a single panel (of two and more, each takes 0.78 of it).
        sharey: panels share the limits of their vertical axes.

    Raises:
        ValueError: if ``panels`` is not a positive integer.

    >>> left, right = figure(panels=2).axes
    """
    if not isinstance(panels, int) or panels < 1:
        raise ValueError(f"panels must be a positive integer, got {panels!r}")
    with matplotlib.rc_context(RC):
        if panels == 1:
            fig = Figure(figsize=(width, height), layout="constrained")
            fig.add_subplot()
            return fig
        fig = Figure(figsize=(0.78 * width * panels, height), layout="constrained")
        first = None
        for part in fig.subfigures(1, panels):
            axes = part.add_subplot(sharey=first if sharey else None)
            first = first or axes
    return fig


def percent_axis(ax: Axes, which: str = "y") -> None:
    """Write the fractions on an axis ("x", "y" or "xy") as percentages, with no more digits than they need."""
    for name in which:
        getattr(ax, f"{name}axis").set_major_formatter(FuncFormatter(lambda v, _: f"{number(100 * v, 4)} %"))


class _LogTicks(LogLocator):
    """Powers of ten, and 2 and 5 between them where an axis spans little more than one."""

    def tick_values(self, vmin: float, vmax: float):
        self.set_params(subs=(1,) if vmin <= 0 or vmax / vmin > 40 else (1, 2, 5))
        return super().tick_values(vmin, vmax)


def log_axis(ax: Axes, which: str = "x") -> None:
    """Give an axis ("x", "y" or "xy") a logarithmic scale with labels that are plain text, not formulas."""
    for name in which:
        getattr(ax, f"set_{name}scale")("log")
        axis = getattr(ax, f"{name}axis")
        axis.set_major_locator(_LogTicks(numticks=7))
        axis.set_major_formatter(FuncFormatter(lambda v, _: number(v)))
        axis.set_minor_formatter(NullFormatter())
