"""Sliders: a static page's table gives every position exactly and stays small; the kernel's view is never late."""

import asyncio
import gzip
import html
import json
import re
import subprocess
import sys
import time

import matplotlib
import numpy as np
import pytest

from adadp.figures import live, plots, show, style
from adadp.figures.recorder import Camera, record
from adadp.figures.widgets import View, explorer


@matplotlib.rc_context(style.RC)
def two_panels(tols=5, sigmas=4, points=120):
    """An explorer in which a line, markers, a level, a band, a text, numbers and words change."""
    fig = style.figure(panels=2)
    left, right = fig.axes
    style.log_axis(left, "y")
    left.set(ylim=(1e-3, 3), xlim=(0, points), ylabel="learning rate", xlabel="gradients")
    right.set(ylim=(0, 1), xlim=(0, points), ylabel="accuracy", xlabel="epoch")
    (lr,) = left.plot([], [], **style.METHODS["adadp"], markevery=15)
    level = left.axhline(1)
    note = left.text(points, 1, "", ha="right")
    (accuracy,) = right.plot([], [])
    band = right.fill_between([0, 1], [0, 0], [1, 1], alpha=0.2)
    plots.provenance(fig, "Data: made up.")
    x, noise = np.arange(points + 1), np.random.default_rng(0).normal(size=(2, points + 1))

    def draw(tol, sigma):
        rate = 0.3 * tol / sigma
        lr.set_data(x, rate * (1 / rate) ** np.exp(-x / 8) * np.exp(0.1 * noise[0]))
        level.set_ydata([rate, rate])
        note.set(y=rate, text=f"predicted {style.number(rate)}")
        mean = 0.93 / (1 + 0.05 * sigma) * (1 - np.exp(-x / (5 + sigma))) + 0.002 * sigma * noise[1]
        accuracy.set_data(x, mean)
        upper, lower = np.c_[x, mean + 0.01 * sigma], np.c_[x, mean - 0.01 * sigma]
        band.set_verts([np.concatenate([upper, lower[::-1]])])
        return View(
            fig, {"predicted": style.number(rate)}, f"tol {tol:.4g}, sigma {sigma:.4g}: the rate is {rate:.4g}."
        )

    axes = {"tol": np.geomspace(0.05, 3, tols), "sigma": np.linspace(1, 8, sigmas)}
    return explorer(draw, axes, labels={"sigma": "noise multiplier σ"}, title="Tolerance and noise")


def data_of(page):
    """The table in an explorer's HTML."""
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', page, re.S)[1])


def shown_at(it, position):
    """Attributes that a page shows at a position (one index an axis): {(target, attribute): text}."""
    data = data_of(it.html)
    out = {}
    for target, attribute, shape, on, at in data["slots"]:
        k = 0
        for axis in on:
            k = k * len(data["labels"][axis]) + position[axis]
        text = data["strings"][at[k]]
        out[target, attribute] = text.replace("@", shape) if attribute == "d" else text
    return out


def check_every_position(it):
    """The start drawing with the table's values equals a fresh drawing, at every position (in the same layout)."""
    figure = it.view(**it.start).figure
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    film, _ = it._film()
    number = {key: n for n, key in enumerate(film.targets)}
    for position in np.ndindex(*(len(a.values) for a in it.axes)):
        values = {axis.name: axis.values[i] for axis, i in zip(it.axes, position, strict=True)}
        shown = shown_at(it, position)
        view = it.view(**values)
        fresh = {e.key: e for e in record(view.figure).elements}
        for element in film.drawing.elements:
            mine = {name: value.replace("@", element.shape) for name, value in element.attributes.items()}
            mine |= {a: text for (target, a), text in shown.items() if target == number.get(element.key)}
            wanted = fresh.get(element.key)
            wanted = {} if wanted is None else {n: v.replace("@", wanted.shape) for n, v in wanted.attributes.items()}
            assert {n: v for n, v in mine.items() if v} == {n: v for n, v in wanted.items() if v}, element.key
        assert fresh.keys() <= {e.key for e in film.drawing.elements}
        assert shown[number[("says",)], ""] == view.says
        for name, value in view.numbers.items():
            assert shown[number["number", name], ""] == value


def test_the_page_shows_every_position_exactly():
    check_every_position(two_panels())


def test_what_stands_below_a_figure_must_hold_at_every_position():
    """A page shows it once: a caption that follows a slider would be wrong wherever the slider is moved to."""
    fig = style.figure()

    def draw(n):
        plots.caption(fig, f"{n} seeds")
        return View(fig, {}, f"n {n}")

    with pytest.raises(ValueError, match="stay below a page's figure as they are"):
        assert explorer(draw, {"n": [1, 3]}).html
    assert "3 seeds" in explorer(lambda n: draw(3), {"n": [1, 3]}).html


def test_bars_ticks_markers_colours_and_things_that_come_and_go():
    fig = style.figure()
    ax = fig.axes[0]
    bars = ax.bar([0, 1], [1, 2])
    extra = ax.text(0.5, 0.5, "only sometimes", color=style.COLORS["green"])
    (dots,) = ax.plot([], [], linestyle="", marker="o")
    heat = ax.imshow(np.zeros((2, 2)), extent=(0, 1, 0, 1), vmin=0, vmax=9, zorder=-1, aspect="auto")

    def draw(n, kind):
        for bar, height in zip(bars, (n, 2 * n), strict=True):
            bar.set_height(height)
            bar.set_facecolor(style.COLORS["blue" if kind == "few" else "orange"])
        extra.set_visible(kind == "few")
        dots.set(data=(np.arange(n), np.arange(n)), marker="o" if kind == "few" else "s")
        heat.set_data(np.full((2, 2), n))
        ax.set(xlim=(-1, n + 1), ylim=(0, 2.2 * n), xlabel=f"with {n} things")
        return View(fig, {}, f"{n} {kind}")

    it = explorer(draw, {"n": [1, 3, 7], "kind": ["few", "many"]})
    check_every_position(it)
    assert {a for _, a in shown_at(it, (0, 0))} >= {"d", "fill", "x", "href", ""}


def test_new_figures_work_too():
    def draw(slope):
        fig = style.figure()
        fig.axes[0].plot([0, 1], [0, slope])
        fig.axes[0].set_ylim(0, 3)
        return fig

    it = explorer(draw, {"slope": [1, 2]}, units={"slope": "%"}, start={"slope": 2})
    check_every_position(it)
    assert 'aria-label="slope = 2 %."' in it.html


def test_slots_depend_only_on_what_moves_them():
    film, _ = two_panels()._film()
    on = {(film.targets[s.target][-2], s.attribute): s.axes for s in film.slots if "axes.0" in film.targets[s.target]}
    assert {tuple(axes) for axes in on.values()} <= {(0, 1), (1,)}
    right = [s.axes for s in film.slots if "subfigure.1" in film.targets[s.target]]
    assert right and all(axes == [1] for axes in right)  # accuracy does not depend on tol here


def test_a_camera_sees_what_a_fresh_drawing_sees():
    fig = style.figure()
    (line,) = fig.axes[0].plot([0, 1], [0, 1])
    dpi, engine = fig.dpi, fig.get_layout_engine()
    camera = Camera(fig)
    camera.record()
    line.set_data([0, 2], [0, 5])
    fig.axes[0].relim()
    fig.axes[0].autoscale()
    fig.axes[0].set_title("new")
    again = camera.record().elements
    line.set_color("red")
    assert [e.attributes["stroke"] for e in camera.record().elements if e.attributes.get("stroke") == "#ff0000"]
    line.set_color(style.CYCLE[0])
    assert again == camera.record().elements == Camera(fig).record().elements
    for change in (
        lambda: fig.axes[0].set_xlabel("steps"),
        lambda: fig.axes[0].tick_params(axis="y", labelcolor="red"),
        lambda: fig.axes[0].set_xticks([0, 1], ["none", "all"]),
        lambda: fig.axes[0].set_ylim(0, 100),
        lambda: fig.axes[0].yaxis.set_visible(False),
    ):
        before = camera.record().elements
        change()
        after = camera.record().elements
        assert after != before
        assert after == Camera(fig).record().elements
    camera.release()
    assert (fig.dpi, fig.get_layout_engine()) == (dpi, engine)


def test_nine_by_seven_stays_small():
    page = two_panels(9, 7).html.encode()
    assert len(page) < 300_000


@pytest.mark.slow
def test_thirty_by_twenty_stays_small():
    page = two_panels(30, 20).html.encode()
    assert len(page) < 1_500_000
    assert len(gzip.compress(page)) < 400_000


def test_pages_are_the_same_every_time_and_have_no_ids():
    page = two_panels().html
    code = "import runpy, sys; sys.stdout.write(ascii(runpy.run_path(sys.argv[1])['two_panels']().html))"
    other = subprocess.run([sys.executable, "-c", code, __file__], capture_output=True, text=True, check=True)
    assert other.stdout == ascii(page)
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 20, "axes.unicode_minus": False}):
        assert two_panels().html == page
    assert not re.search(r"\sid=|url\(#|https?://(?!www\.w3\.org/2000/svg)", page)


def test_numbers_may_come_and_go():
    """Every place that the page's script writes to is in the page, also what the first position does not have."""

    @matplotlib.rc_context(style.RC)
    def draw(a):
        fig = style.figure()
        fig.axes[0].plot([0, 1], [0, a])
        return View(fig, {"always": str(a)} | ({"later": "here"} if a > 1 else {"first": "only"}))

    page = explorer(draw, {"a": [1, 2, 3]}, start={"a": 1}).html
    written = {slot[0] for slot in data_of(page)["slots"]}
    assert written == {int(n) for n in re.findall(r'data-k="(\d+)"', page)}
    assert re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", page) == [
        ("always", "1"),
        ("first", "only"),
        ("later", "–"),
    ]


def test_texts_are_escaped():
    fig = style.figure()
    note = fig.axes[0].text(0, 0, "")

    def draw(a):
        note.set_text(f"{a} < & > \"'")
        return View(fig, {"<b>": "</script><i>"}, f"</script><img src=x> {a}")

    page = explorer(draw, {"a": ["<x>", "y"]}, labels={"a": "<u>"}, title='"t"').html
    assert page.count("</script>") == 2 and "<img" not in page and "<i>" not in page and "<u>" not in page
    assert data_of(page)["labels"] == [["<x>", "y"]]
    assert html.escape("y < & > \"'", quote=False) in page


def test_without_scripts_the_start_position_stands():
    it = two_panels()
    before_script = it.html.split("<script")[0]
    assert "predicted " in before_script and before_script.count("<svg xmlns") == 2
    assert f"<noscript><p>Scripts are off: this is the figure at {it.at(**it.start)}.</p></noscript>" in before_script
    assert '<div class="ad-controls" hidden>' in before_script
    assert "Data: made up." in before_script


@pytest.mark.parametrize(
    ("axes", "options", "message"),
    [
        ({}, {}, "at least one slider"),
        ({"a": [1]}, {}, "at least two values"),
        ({"a": [1, 1]}, {}, "all different"),
        ({"a": [1, float("nan")]}, {}, "finite"),
        ({"a": [1, 2]}, {"units": {"b": "%"}}, "units names b"),
        ({"a": [1, 2]}, {"start": {"a": 3}}, "is not one of"),
    ],
)
def test_bad_axes_are_named(axes, options, message):
    with pytest.raises(ValueError, match=message):
        explorer(lambda **_: style.figure(), axes, **options)


def test_a_drawing_that_fails_says_where():
    def draw(a):
        if a == 2:
            raise RuntimeError("no such result")
        return style.figure()

    with pytest.raises(RuntimeError, match="no such result") as caught:
        _ = explorer(draw, {"a": [1, 2]}).html
    assert caught.value.__notes__ == ["while drawing the figure at a = 2"]
    with pytest.raises(TypeError, match="a Figure or a View"):
        _ = explorer(lambda a: "picture", {"a": [1, 2]}).html
    with pytest.raises(ValueError, match="one size"):
        _ = explorer(lambda a: style.figure(height=a), {"a": [2, 3]}).html


def test_hatches_are_refused_not_lost():
    fig = style.figure()
    fig.axes[0].bar([0], [1], hatch="/")
    with pytest.raises(ValueError, match="hatches"):
        record(fig)


def test_a_formula_is_drawn_and_a_figure_keeps_its_theme():
    fig = style.figure()
    fig.axes[0].set_title(r"$\eta^2$")
    fig.axes[0].plot([0, 1], color=style.COLORS["blue"])
    plots.describe(fig, "A line & a formula.")
    plots.caption(fig, "Caption.")
    page = show.to_html(fig)
    assert 'aria-label="A line &amp; a formula."' in page and '<p class="ad-caption">Caption.</p>' in page
    assert 'stroke="var(--ad-blue)"' in page and "#1a5fe0" in page and 'html[data-theme="dark"]' in page
    assert "Figure" in show.to_html(style.figure())


def test_notebooks_show_figures_as_pictures():
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        style.use()
        bundle, _ = shell.display_formatter.format(style.figure())
        assert bundle["text/html"].startswith('<div class="adadp-figure">')
    finally:
        InteractiveShell.clear_instance()


# -- with a kernel -----------------------------------------------------------------------------------------------------
def test_one_object_for_page_and_kernel(monkeypatch):
    it = two_panels(2, 2)
    bundle = it._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == it.widget.model_id
    monkeypatch.setitem(sys.modules, "google.colab", object())
    assert "text/html" not in it._repr_mimebundle_()
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.delitem(sys.modules, "adadp.figures.live")
    assert set(two_panels(2, 2)._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_the_widget_recomputes_between_the_grid_values():
    it = two_panels()
    tol, sigma, status, picture = it.widget.children
    assert type(tol).__name__ == "FloatLogSlider" and type(sigma).__name__ == "FloatSlider"
    tol.value = 0.1234
    assert "tol 0.1234" in picture.value and "computed by the kernel: tol = 0.123" in status.value


def test_sliders_fit_their_values():
    def kinds(values, between=True):
        it = explorer(lambda a: style.figure(), {"a": values}, between=between)
        return type(live.slider(it.axes[0], between)).__name__

    assert kinds([1, 5, 9]) == "IntSlider"
    assert kinds([0.0, 0.5]) == "FloatSlider"
    assert kinds([1e-3, 1e-2, 1e-1]) == "FloatLogSlider"
    assert kinds([1e-3, 1e-2, 1e-1], between=False) == kinds(["few", "many"]) == "SelectionSlider"


def test_outdated_events_are_dropped():
    calls = []
    it = explorer(lambda a: calls.append(a) or style.figure(), {"a": [0, 1000]})
    slider, status = it.widget.children[:2]
    calls.clear()

    async def drag():
        for value in range(100, 200):
            slider.value = value
        await asyncio.sleep(5 * live.WAIT)
        slider.value = 7
        await asyncio.sleep(5 * live.WAIT)

    asyncio.run(drag())
    assert calls == [199, 7]
    assert "a = 7" in status.value


KERNEL = """
import time
from adadp.figures import style
from adadp.figures.widgets import View, explorer
fig, calls = style.figure(), []
(line,) = fig.axes[0].plot([0, 1], [0, 1])
def draw(a):
    time.sleep(0.2)
    calls.append(a)
    line.set_ydata([0, a])
    return View(fig, {}, f"a is {a}")
it = explorer(draw, {"a": [0, 100]}, start={"a": 0})
it.widget
"""


def test_a_real_kernel_draws_the_latest_value_and_skips_what_came_between():
    client_tools = pytest.importorskip("jupyter_client.manager", reason="needs jupyter_client (extra: book)")
    said, models = [], {}

    def hear(message):
        content = message["content"]
        if message["msg_type"] == "comm_open":
            models[content["data"]["state"]["_model_name"]] = content["comm_id"]
        elif message["msg_type"] == "stream" and content["name"] == "stdout":
            said.append(content["text"])

    manager, client = client_tools.start_new_kernel(kernel_name="python3")
    try:
        reply = client.execute_interactive(KERNEL, timeout=90, output_hook=hear)
        assert reply["content"]["status"] == "ok", reply["content"]
        for value in range(1, 41):
            state = {"method": "update", "state": {"value": value}, "buffer_paths": []}
            content = {"comm_id": models["IntSliderModel"], "data": state}
            client.shell_channel.send(client.session.msg("comm_msg", content))
            time.sleep(0.01)
        for _ in range(20):  # the machine may be busy
            time.sleep(0.5)
            client.execute_interactive("print(calls, it.widget.children[1].value)", timeout=60, output_hook=hear)
            if "computed by the kernel: a = 40" in said[-1]:
                break
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    calls, status = said[-1].split("]")
    calls = json.loads(calls + "]")
    assert calls[0] == 0 and calls[-1] == 40 and calls == sorted(set(calls))
    assert len(calls) < 35, "of 40 quick events, outdated ones must be dropped"
    assert "a = 40" in status


def test_the_widget_is_busy_while_it_computes_and_tells_of_errors():
    said = []

    def draw(a):
        if a == 3:
            raise RuntimeError("no <such> result")
        if a == 2:
            said.append(it.widget.children[1].value)
        return style.figure()

    it = explorer(draw, {"a": [1, 2, 3]}, start={"a": 1})
    slider, status, _ = it.widget.children
    slider.value = 2
    assert "computing a = 2" in said[0]
    slider.value = 3
    assert "RuntimeError: no &lt;such&gt; result" in status.value
