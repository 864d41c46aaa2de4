"""Sliders in a real browser, on a small page of two explorers and a figure: over http, from a file, on paper."""

import re
import statistics

import numpy as np
import pytest

from adadp.figures import plots, show, style
from adadp.figures.widgets import View, explorer

pytestmark = pytest.mark.browser

MOVE = """(input, value) => {
  input.value = value;
  const from = performance.now();
  input.dispatchEvent(new Event("input", {bubbles: true}));
  input.closest(".adadp-explorer").getBoundingClientRect();  // settle the layout
  return performance.now() - from;
}"""


def curve():
    """Two panels: a line, a band, a level, a text and numbers over tol and sigma; 30 x 20 positions."""
    fig = style.figure(panels=2)
    left, right = fig.axes
    style.log_axis(left, "y")
    left.set(ylim=(1e-4, 3), xlim=(0, 120), ylabel="learning rate", xlabel="gradients", title="Learning rate")
    right.set(ylim=(0, 1), xlim=(0, 120), ylabel="accuracy", xlabel="epoch", title="Accuracy")
    (lr,) = left.plot([], [], **style.METHODS["adadp"], markevery=15)
    note = left.text(120, 1, "", ha="right", color=style.COLORS["muted"])
    (mean,) = right.plot([], [])
    band = right.fill_between([0, 1], [0, 0], [1, 1], alpha=0.2)
    plots.provenance(fig, "Data: made up for a test.")
    x, noise = np.arange(121), np.random.default_rng(0).normal(size=(2, 121))

    def draw(tol, sigma):
        rate = 0.3 * tol / sigma
        lr.set_data(x, rate * (1 / rate) ** np.exp(-x / 8) * np.exp(0.1 * noise[0]))
        note.set(y=rate, text=f"predicted {style.number(rate)}")
        y = 0.93 / (1 + 0.05 * sigma) * (1 - np.exp(-x / (5 + sigma))) + 0.002 * sigma * noise[1]
        mean.set_data(x, y)
        upper, lower = np.c_[x, y + 0.01 * sigma], np.c_[x, y - 0.01 * sigma]
        band.set_verts([np.concatenate([upper, lower[::-1]])])
        says = f"With tol {tol:.4g} and sigma {sigma:.4g} the rate is {rate:.4g}."
        return View(fig, {"predicted rate": style.number(rate)}, says)

    axes = {"tol": np.geomspace(0.05, 3, 30), "sigma": np.linspace(1, 8, 20)}
    return explorer(draw, axes, labels={"tol": "tolerance", "sigma": "noise multiplier σ"}, title="Tolerance and noise")


def bars():
    """One panel: bars, their texts and the ticks change with a batch size."""
    fig = style.figure(height=2)
    ax = fig.axes[0]
    ax.set_xlabel("norm")
    drawn = ax.barh(["flat", "automatic"], [1, 2])
    texts = [ax.text(0, n, "") for n in range(2)]

    def draw(batch):
        for n, bar in enumerate(drawn):
            bar.set_width(batch * (n + 1))
            texts[n].set(x=batch * (n + 1), text=f" {batch * (n + 1)}")
        ax.set_xlim(0, 3 * batch)
        return View(fig, {}, f"Bars of {batch} and {2 * batch}.")

    return explorer(draw, {"batch": [10, 20, 50]}, units={"batch": "images"}, start={"batch": 10}, title="Batch size")


@pytest.fixture(scope="module")
def explorers():
    """The two explorers."""
    return curve(), bars()


@pytest.fixture(scope="module")
def folder(explorers, tmp_path_factory):
    """A folder with the page, light and dark, and one in which an explorer stands twice."""
    first, second = (it.html for it in explorers)
    fig = plots.bars({"adadp": [0.92, 0.93], "sgd": [0.9]}, xlabel="test accuracy", percent=True)
    head = (
        '<!doctype html><html lang="en" data-theme="{}"><head><meta charset="utf-8"><title>Explorers</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        "<style>body{{font:16px/1.5 sans-serif;max-width:700px;margin:auto;padding:0 16px}}"
        "svg{{max-width:100%;height:auto}}"  # as themes do
        "@media screen{{html[data-theme=dark] body{{background:#121212;color:#ced6dd}}}}</style></head>"
        "<body><main><h1>Explorers</h1>"
    )
    path = tmp_path_factory.mktemp("site")
    for theme in ("light", "dark"):
        body = first + second + show.to_html(fig)
        (path / f"{theme}.html").write_text(head.format(theme) + body + "</main></body></html>", encoding="utf-8")
    cut = re.sub(r'<script type="application/json">.*?</script>', "", first, flags=re.DOTALL)
    (path / "cut.html").write_text(head.format("light") + cut + second + "</main></body></html>", encoding="utf-8")
    twice = head.format("light") + second + second + "</main></body></html>"
    (path / "twice.html").write_text(twice, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def address(serve, folder):
    """Where it is served."""
    return serve(folder)


def state(root):
    """What an explorer shows: text alternative, words, numbers, values, and a digest of its picture."""
    return root.evaluate(
        """root => ({
          alt: root.querySelector("[role=img]").getAttribute("aria-label"),
          says: root.querySelector(".ad-says").textContent,
          numbers: [...root.querySelectorAll("dd")].map(e => e.textContent),
          values: [...root.querySelectorAll("output")].map(e => e.textContent),
          spoken: [...root.querySelectorAll("input")].map(e => e.getAttribute("aria-valuetext")),
          texts: [...root.querySelectorAll("svg text")].map(e => e.textContent),
          paths: [...root.querySelectorAll("svg path")].map(e => (e.getAttribute("d") || "").replace(/ -/g, "-")),
        })"""
    )


def positions(it, *indices):
    """Values of an explorer at the given indices."""
    return {axis.name: axis.values[i] for axis, i in zip(it.axes, indices, strict=True)}


def test_an_explorer_without_its_data_is_a_picture_and_stops_no_other(visit, address, explorers):
    page = visit(f"{address}/cut.html")
    whole, last = page.locator(".adadp-explorer").all()
    assert whole.locator("svg").count() and not whole.locator("input").first.is_visible()
    last.locator("input").evaluate(MOVE, 2)
    assert state(last)["says"] == explorers[1].view(**positions(explorers[1], 2)).says
    assert page.complaints == []


@pytest.mark.parametrize("way", ("http", "file"))
def test_every_move_shows_the_right_picture_numbers_and_words(visit, address, folder, explorers, way):
    page = visit(f"{address}/light.html" if way == "http" else f"file://{folder}/light.html")
    it = explorers[0]
    root = page.locator(".adadp-explorer").first
    sliders = root.locator("input").element_handles()
    pictures = set()
    for at in ((0, 0), (29, 19), (7, 3), (7, 4), (8, 4)):
        for slider, index in zip(sliders, at, strict=True):
            slider.evaluate(MOVE, index)
        shown, view = state(root), it.view(**positions(it, *at))
        assert shown["alt"] == shown["says"] == view.says
        assert shown["numbers"] == list(view.numbers.values())
        assert shown["values"] == shown["spoken"]
        assert shown["values"] == [a.show(a.values[i]) for a, i in zip(it.axes, at, strict=True)]
        assert f"predicted {view.numbers['predicted rate']}" in shown["texts"]
        assert all(re.fullmatch(r"[MmLlCcQqZz\d\s.-]*", d) for d in shown["paths"])
        pictures.add("".join(shown["paths"]))
    assert len(pictures) == 5
    other = state(page.locator(".adadp-explorer").nth(1))
    assert other["says"] == "Bars of 10 and 20."  # one explorer does not move another
    assert page.complaints == []


def test_a_moved_page_equals_a_page_that_starts_there(visit, address, explorers, tmp_path, serve):
    for number, at in ((0, (29, 7)), (1, (2,))):
        it = explorers[number]
        ends = {axis.name: (axis.values[0], axis.values[i]) for axis, i in zip(it.axes, at, strict=True)}
        start = {name: values[1] for name, values in ends.items()}
        options = {"units": {axis.name: axis.unit for axis in it.axes}, "start": start}
        fresh = explorer(it.draw, ends, **options).html
        (tmp_path / "fresh.html").write_text(f"<!doctype html><meta charset=utf-8><body>{fresh}", encoding="utf-8")
        still = visit(f"{serve(tmp_path)}/fresh.html", java_script_enabled=False)
        started = state(still.locator(".adadp-explorer"))  # as matplotlib drew it, untouched by the script
        root = visit(f"{address}/light.html").locator(".adadp-explorer").nth(number)
        for slider, index in zip(root.locator("input").element_handles(), at, strict=True):
            slider.evaluate(MOVE, index)
        moved = state(root)
        for picture in ("paths", "texts"):  # what is empty at this position does not count
            assert [x for x in moved[picture] if x] == [x for x in started[picture] if x]
        assert moved["says"] == started["says"] and moved["values"] == started["values"]


def test_keyboard_touch_and_mouse(visit, address):
    page = visit(f"{address}/light.html", has_touch=True)
    root = page.locator(".adadp-explorer").nth(1)
    slider = root.get_by_role("slider", name="batch")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert state(root)["values"] == ["20 images"]
    page.keyboard.press("Home")
    assert state(root)["values"] == ["10 images"]
    box = slider.bounding_box()
    assert box["height"] >= 24  # large enough for a finger
    page.mouse.click(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2)
    assert state(root)["says"] == "Bars of 50 and 100."
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert state(root)["says"] == "Bars of 20 and 40."


def test_twenty_moves_take_less_than_a_frame_each(visit, address, record_property):
    page = visit(f"{address}/light.html")
    slider = page.locator(".adadp-explorer").first.locator("input").first.element_handle()
    times = [slider.evaluate(MOVE, value) for value in range(1, 21)]
    record_property("median_ms", statistics.median(times))
    print(f"median of 20 moves {statistics.median(times):.2f} ms, slowest {max(times):.2f} ms")
    assert statistics.median(times) < 16


def test_two_of_the_same_live_beside_each_other(visit, address):
    page = visit(f"{address}/twice.html")
    first, second = page.locator(".adadp-explorer").all()
    second.locator("input").press("End")
    assert state(first)["values"] == ["10 images"] and state(second)["values"] == ["50 images"]
    assert page.locator("[id]").count() == 0 and page.complaints == []


def test_without_scripts_there_is_a_still_figure(visit, address, explorers):
    page = visit(f"{address}/light.html", java_script_enabled=False)
    root = page.locator(".adadp-explorer").first
    assert root.locator("svg").first.is_visible() and not root.locator("input").first.is_visible()
    assert "Scripts are off" in root.inner_text()
    assert explorers[0].view(**explorers[0].start).says in root.inner_text()


@pytest.mark.parametrize("theme", ("light", "dark"))
def test_no_sideways_scroll_on_a_phone(visit, address, theme):
    page = visit(f"{address}/{theme}.html", viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    widths = page.locator(".ad-panels > svg").evaluate_all("all => all.map(e => e.getBoundingClientRect())")
    assert widths[0]["y"] < widths[1]["y"] and widths[0]["width"] > 300  # panels are stacked, and fill the width
    sizes = page.locator("svg text").evaluate_all(
        "all => all.filter(e => e.textContent).map(e => e.getBoundingClientRect().height)"
    )
    assert min(sizes) >= 8


@pytest.mark.parametrize("width", (1280, 390))
def test_curves_stand_inside_their_axes(visit, address, width):
    page = visit(f"{address}/light.html", viewport={"width": width, "height": 844})
    errors = page.locator(".ad-panels > svg > svg").evaluate_all(
        """all => all.map(e => {
          const a = e.getScreenCTM(), b = e.parentElement.getScreenCTM();  // both map the same units to the screen
          return Math.max(...["a", "d", "e", "f"].map(k => Math.abs(a[k] - b[k])));
        })"""
    )
    assert len(errors) >= 4 and max(errors) < 0.01


def test_desktop_shows_panels_side_by_side(visit, address):
    page = visit(f"{address}/light.html")
    left, right = page.locator(".ad-panels > svg").evaluate_all(
        "all => all.slice(0, 2).map(e => e.getBoundingClientRect())"
    )
    assert left["y"] == right["y"] and left["width"] == pytest.approx(right["width"], rel=0.01)


@pytest.mark.parametrize("theme", ("light", "dark"))
def test_texts_in_figures_have_contrast(visit, address, theme, contrast):
    page = visit(f"{address}/{theme}.html")
    assert contrast(page, "svg text, .adadp-explorer dt, .adadp-explorer dd, .ad-data, .ad-says, label span") >= 4.5


def test_on_paper_the_values_stay_and_the_sliders_go(visit, address):
    page = visit(f"{address}/dark.html")
    page.emulate_media(media="print")
    root = page.locator(".adadp-explorer").first
    assert not root.locator("input").first.is_visible()
    assert root.locator("output").first.is_visible() and root.locator("svg").first.is_visible()
    fill = root.locator("svg text").first.evaluate("e => getComputedStyle(e).fill")
    assert fill == "rgb(31, 35, 40)"  # ink on white, whatever the theme
    assert len(page.pdf()) > 5000


@pytest.mark.parametrize("theme", ("light", "dark"))
def test_nothing_serious_for_axe(visit, address, theme, axe):
    assert axe(visit(f"{address}/{theme}.html")) == []
