"""The picture of the README: ``python -m adadp.figures.overview docs/overview.svg`` draws it."""

import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from adadp.figures import plots, style
from adadp.figures.gradient_flow import adapt, descend, valley
from adadp.figures.step_doubling import race

FIXED, TUNED, ADAPTED = "fixed, η = 0.001", "fixed, η = 0.035 (tuned)", "adaptive, from η = 0.001"


@matplotlib.rc_context(style.RC)
def overview() -> Figure:
    """Descent in a curved valley with an untuned, a tuned and an adaptive learning rate: paths and losses."""
    bend = valley()
    adapted = adapt(bend, 0.001, tol=0.03, iterations=150, advance="half_steps")
    fig = race(bend, {FIXED: descend(bend, 0.001, 300), TUNED: descend(bend, 0.035, 300), ADAPTED: adapted})
    plots.describe(fig, "Adaptive descent from a learning rate that is 35 times too small, against fixed ones.")
    return fig


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(style.RC | {"svg.fonttype": "path"}):
        overview().savefig(target, metadata={"Date": None})
