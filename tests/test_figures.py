"""The house style and the pictures that several chapters share."""

import itertools

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from adadp.figures import plots, stored, style

# Linear-light matrices of Machado, Oliveira and Fernandes (2009), severity 1, and normal vision.
VISION = {
    "normal": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
LINES = ("ink", "blue", "orange", "green", "purple")


def _linear(color):
    """sRGB hexadecimal to linear light, shape (3,)."""
    c = np.array(matplotlib.colors.to_rgb(color))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def _lab(rgb):
    """CIE Lab of linear light."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    f = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(f > 0.008856, np.cbrt(f), 7.787 * f + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _contrast(a, b):
    """Contrast ratio of WCAG 2."""
    high, low = sorted((_linear(c) @ [0.2126, 0.7152, 0.0722] for c in (a, b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", (0, 1), ids=("light", "dark"))
@pytest.mark.parametrize("vision", VISION)
def test_line_colours_stay_apart_for_every_reader(page, vision):
    colors = {name: _lab(np.array(VISION[vision]) @ _linear(style.THEME[name][page])) for name in LINES}
    for a, b in itertools.combinations(LINES, 2):
        assert np.linalg.norm(colors[a] - colors[b]) > 18, (a, b)


@pytest.mark.parametrize("page", (0, 1), ids=("light", "dark"))
def test_colours_that_carry_text_have_enough_contrast(page):
    for name in (*LINES, "muted"):
        assert _contrast(style.THEME[name][page], style.THEME["paper"][page]) >= 4.5, name


def _beside_sgd(same):
    """Methods that one figure beside SGD shows, where the first of two that are the same curve is shown only."""
    names = stored.ROLES["sgd"].values()
    return list(stored.drawn({n: [{"id": same.get(n, n)}] for n in names}))


TOGETHER = {  # methods that one figure shows
    "with Adam": stored.ROLES["adam"].values(),
    "with SGD": [n for n in _beside_sgd({}) if n != "sgd_second"],  # (stored at σ = 2 only)
    "with SGD at σ = 2": _beside_sgd({"sgd_rescaled": "sgd_transferred"}),
    "short runs": ("ADADP, tol for T", "as_printed", "adam", "adam_second", "sgd"),
    "their learning rates": ("as_printed", "ADADP, tol for T", "recommended", "reference_code"),
    "short transfers": ("ADADP, tol for T", "sgd_transferred", "sgd_rescaled", "SGD, predicted"),
    "Adam by lr": ("ADADP", "SGD 0.1", "Adam 0.0001", "Adam 0.001", "Adam 0.01"),
    "federated": ("adadp", "adam", "adam_second", "sgd"),
}


@pytest.mark.parametrize("names", TOGETHER.values(), ids=TOGETHER)
def test_methods_differ_without_colour(names):
    looks = style.looks(names)
    for part in ("linestyle", "marker"):
        assert len({str(look[part]) for look in looks.values()}) == len(names), part


def test_six_free_looks_differ_without_colour():
    looks = style.looks([f"made up {k}" for k in range(len(style.CYCLE))]).values()
    assert len(looks) >= 6
    for part in ("linestyle", "marker", "color"):
        assert len({str(look[part]) for look in looks}) == len(looks), part


def test_a_method_keeps_its_colour_under_any_label():
    found = style.looks(["ADADP, tol for T", "SGD 0.1", "Adam 0.01", "Adam 0.1", "Adams", "plain"])
    methods = [style.METHODS[n]["color"] for n in ("adadp", "sgd", "adam", "adam")]
    colors = [look["color"] for look in found.values()]
    assert colors[:4] == methods and not {*colors[4:]} & {*methods} and colors[4] != colors[5]
    assert [look["label"] for look in found.values()] == list(found)


def test_free_looks_go_on_where_all_are_taken():
    found = style.looks(["adam", *(f"made up {k}" for k in range(20))])
    assert len(found) == 21 and found["adam"] == style.METHODS["adam"]
    assert not {"s"} & {look["marker"] for name, look in found.items() if name != "adam"}


def test_figures_leave_pyplot_alone():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    fig = style.figure(panels=2, sharey=True)
    assert isinstance(fig, Figure) and len(fig.axes) == 2 and len(fig.subfigs) == 2
    assert plt.get_fignums() == before
    fig.axes[0].set_ylim(0, 7)
    assert fig.axes[1].get_ylim() == (0, 7)
    with pytest.raises(ValueError, match="panels"):
        style.figure(panels=0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1, "1"), (-2.5, "−2.5"), (0.001, "0.001"), (334336, "334000"), (1e-5, "10⁻⁵"), (2.5e-7, "2.5 × 10⁻⁷"),
     (1e6, "10⁶"), (float("inf"), "inf")],
)  # fmt: skip
def test_numbers_read_as_people_write_them(value, text):
    assert style.number(value) == text


def _seeds(level, seeds=3, epochs=30):
    """Rows of several seeds around a saturating curve."""
    rng = np.random.default_rng(0)
    return [
        [
            {
                "epsilon": 0.4 + 0.03 * k,
                "test_accuracy": level * (1 - np.exp(-k / 5)) + 0.002 * rng.normal(),
                "steps": k,
            }
            for k in range(1, epochs + 1)
        ]
        for _ in range(seeds)
    ]


def test_accuracy_curve_is_the_mean_and_the_band_spans_the_seeds():
    runs = {"adadp": _seeds(0.93), "adam": _seeds(0.9), "sgd": _seeds(0.8)}
    fig = plots.accuracy_against_epsilon(runs)
    (ax,) = fig.axes
    accuracy = np.array([[row["test_accuracy"] for row in rows] for rows in runs["adadp"]])
    np.testing.assert_allclose(ax.lines[0].get_ydata(), accuracy.mean(axis=0))
    band = ax.collections[0].get_paths()[0].get_extents()
    assert band.y1 == pytest.approx(accuracy.max()) and band.y0 == pytest.approx(accuracy.min())
    assert {t.get_text() for t in ax.texts} == {"ADADP", "Adam", "SGD"}
    assert f"ADADP {100 * accuracy[:, -1].mean():.1f} %" in plots.describe(fig)
    assert "δ = 10⁻⁵" in ax.get_xlabel()


def test_names_at_curves_do_not_overlap():
    fig = plots.accuracy_against_epsilon({"adadp": _seeds(0.9), "adam": _seeds(0.9), "sgd": _seeds(0.899)})
    fig.draw_without_rendering()
    boxes = [t.get_window_extent() for t in fig.axes[0].texts]
    for a, b in itertools.combinations(boxes, 2):
        assert not a.overlaps(b)
    assert all(b.x1 <= fig.bbox.x1 + 1 for b in boxes)


def test_long_names_go_into_a_legend():
    runs = {n: _seeds(0.9) for n in ("recommended", "as_printed", "reference_code", "adam", "sgd")}
    fig = plots.accuracy_against_epsilon(runs)
    assert [t.get_text() for t in fig.legends[0].get_texts()] == [style.METHODS[n]["label"] for n in runs]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({}, "at least one method"),
        ({"adadp": []}, "at least one list of rows"),
        ({"adadp": [[{"epsilon": 1.0}]]}, "test_accuracy"),
        ({"adadp": [_seeds(0.9)[0], _seeds(0.9)[0][:-1]]}, "different values of epsilon"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(runs, message):
    with pytest.raises(ValueError, match=message):
        plots.accuracy_against_epsilon(runs)


def test_learning_rates_are_drawn_on_a_logarithmic_axis():
    rows = [{"step": 2 * i, "lr": 0.1 * 0.5**i} for i in range(5)]
    fig = plots.learning_rate({"η₀ = 0.1": rows})
    assert fig.axes[0].get_yscale() == "log" and "η₀ = 0.1 ends at 0.00625" in plots.describe(fig)


@pytest.mark.parametrize(("ends", "beside"), [((0.5, 0.51, 0.52), False), ((0.2, 0.5, 0.9), True)])
def test_names_stand_beside_curves_unless_these_meet(ends, beside):
    runs = {f"run {k}": [[{"x": 0, "y": k / 3}, {"x": 1, "y": end}]] for k, end in enumerate(ends)}
    fig = plots.curves(runs, x="x", y="y")
    assert bool(fig.axes[0].texts) == beside and bool(fig.legends) != beside


def test_seeds_that_part_are_drawn_one_by_one():
    seeds = [[{"x": 0, "y": 0.1}, {"x": 1, "y": end}] for end in (0.1, 0.11, 0.6)]
    apart, close = (plots.curves({"run": rows}, x="x", y="y") for rows in (seeds, seeds[:1] * 3))
    assert len(apart.axes[0].lines) == 1 + 3 and len(close.axes[0].lines) == 1


def test_bars_show_mean_and_range():
    fig = plots.bars({"adadp": [0.91, 0.93], "sgd": [0.9]}, xlabel="test accuracy", percent=True)
    assert [p.get_width() for p in fig.axes[0].patches] == pytest.approx([0.92, 0.9])
    assert plots.describe(fig) == "test accuracy: ADADP 92.0 %, SGD 90.0 %."
    with pytest.raises(ValueError, match="at least one value"):
        plots.bars({"adadp": []}, xlabel="x")


def test_provenance_stands_below_the_axes_and_is_replaced_not_stacked():
    fig = plots.bars({"adadp": [0.91, 0.93]}, xlabel="test accuracy", percent=True)
    plots.provenance(fig, "first")
    plots.provenance(fig, "MNIST (official files)")
    fig.draw_without_rendering()
    (line,) = [t for t in fig.texts if t.get_gid() == "provenance"]
    assert line.get_text() == plots.provenance(fig) == "MNIST (official files)"
    assert line.get_window_extent().y1 <= fig.axes[0].get_tightbbox().y0 + 1


@pytest.mark.parametrize(
    ("low", "high", "labels"), [(1e-4, 1, {"10⁻⁴", "0.01", "1"}), (0.006, 0.05, {"0.01", "0.02", "0.05"})]
)
def test_logarithmic_axes_always_name_several_values(low, high, labels):
    fig = style.figure()
    style.log_axis(fig.axes[0], "x")
    fig.axes[0].set_xlim(low, high)
    fig.draw_without_rendering()
    assert labels <= {t.get_text() for t in fig.axes[0].get_xticklabels()}


def test_provenance_keeps_clear_of_a_legend_below_and_of_the_size_of_the_picture():
    fig = style.figure()
    fig.axes[0].plot([0, 1], label="a curve")
    fig.legend(loc="outside lower center")
    height = fig.get_figheight()
    plots.provenance(fig, "first")
    plots.provenance(fig, "Data: made up.")
    assert fig.get_figheight() == pytest.approx(height + 0.24)
    fig.draw_without_rendering()
    line, legend = fig.texts[0].get_window_extent(), fig.legends[0].get_window_extent()
    assert line.y1 <= legend.y0 and legend.y1 <= fig.axes[0].get_tightbbox().y0 + 1


def test_percentages_have_no_needless_digits():
    fig = style.figure()
    style.percent_axis(fig.axes[0])
    fig.axes[0].set_yticks([0, 0.125, 0.5, 1])
    fig.draw_without_rendering()
    assert [t.get_text() for t in fig.axes[0].get_yticklabels()] == ["0 %", "12.5 %", "50 %", "100 %"]
