"""The built book in a real browser: every page, as a reader with no kernel and no network beyond the page meets it."""

import json
import re
import statistics
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urlsplit

import matplotlib
import pytest

from adadp.figures import accounting, choosing_tol, gradient_flow, landing, step_doubling, style

pytestmark = [pytest.mark.browser, pytest.mark.book]

# Findings of axe-core that are other projects' and that we leave as they are: (rule, part of the element) -> why.
ALLOWED = {
    (
        "aria-required-children",
        ".citation-list",
    ): "sphinxcontrib-bibtex gives the bibliography a list role, not its items",
}
READ = [
    f".bd-article {tag}"
    for tag in ("p", "li", "h1", "h2", "h3", "h4", "td", "th", "dt", "dd", "code", "a:not(.headerlink)")
]
READ += [".bd-article pre span", ".adadp-figure svg text", ".ad-verdict", ".bd-sidebar-primary a", "footer p"]
PICTURE = """(() => { const look = () => {
  const svg = document.querySelector(".adadp-figure svg");
  if (svg && svg.getBoundingClientRect().height) requestAnimationFrame(() => { window.pictureAt = performance.now(); });
  else requestAnimationFrame(look);
}; look(); })()"""
READY = "() => !window.MathJax?.startup?.promise || MathJax.startup.promise.then(() => true)"
MOVE = """(input, value) => {
  input.value = value;
  const from = performance.now();
  input.dispatchEvent(new Event("input", {bubbles: true}));
  input.closest(".adadp-explorer").getBoundingClientRect();
  return performance.now() - from;
}"""


def _content(built):
    """Pages that somebody wrote, relative to the folder."""
    pages = sorted(p.relative_to(built).as_posix() for d in ("book", "notebooks") for p in built.glob(f"{d}/**/*.html"))
    assert pages, f"{built} holds no page below book/ or notebooks/"
    return pages


def _source(built, name):
    return (built / name).read_text(encoding="utf-8")


def _with_explorers(built):
    """Pages with sliders."""
    return [name for name in _content(built) if 'class="adadp-figure adadp-explorer"' in _source(built, name)]


class _Links(HTMLParser):
    """Targets and anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], {""}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.anchors |= {v for k, v in attrs.items() if v and (k == "id" or (tag == "a" and k == "name"))}
        names = {"a": "href", "link": "href", "img": "src", "script": "src"}
        if (value := attrs.get(names.get(tag, ""))) is not None:
            self.links.append(value)


def test_internal_links_and_anchors_resolve(built):
    parsed = {}

    def anchors(path):
        if path not in parsed:
            parsed[path] = _Links(path.read_text(encoding="utf-8"))
        return parsed[path].anchors

    broken, count = [], 0
    for page in (built / name for name in ["index.html", "search.html", "genindex.html", *_content(built)]):
        anchors(page)
        for link in parsed[page].links:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            count += 1
            target, fragment = urldefrag(link)
            path = (page.parent / unquote(urlsplit(target).path)).resolve() if urlsplit(target).path else page
            fine = path.is_file() and (path.suffix != ".html" or unquote(fragment) in anchors(path))
            if not fine:
                broken.append(f"{page.relative_to(built)}: {link}")
    assert count > 50 and broken == []


def test_no_file_asks_another_host(built):
    asks = []
    for name in _content(built):
        text = _source(built, name)
        asks += [f"{name}: {link}" for link in _Links(text).links if link.startswith(("http://", "https://", "//"))
                 and f'src="{link}"' in text]  # fmt: skip
    assert asks == []


def test_size_of_the_whole_book(built):
    size = sum(path.stat().st_size for path in built.rglob("*") if path.is_file())
    print(f"the book has {size / 1e6:.1f} MB")
    assert size < 40e6


def test_every_page_loads_without_complaint_and_with_its_equations(visit, site, built):
    assert visit(f"{site}/index.html").complaints == []  # leads on to the landing page
    for name in _content(built):
        page = visit(f"{site}/{name}")
        page.evaluate(READY)
        assert page.complaints == [], name
        written = page.locator(".math, .MathJax_Preview, script[type^='math/']").count()
        rendered, wrong = page.locator("mjx-container").count(), page.locator("mjx-merror, [data-mjx-error]").count()
        assert wrong == 0 and (rendered >= written > 0 or written == 0), f"{name}: {rendered} of {written} equations"
        page.context.close()


def test_pages_work_from_files(visit, built):
    for name in _content(built):
        page = visit(f"file://{built}/{name}")
        page.evaluate(READY)
        assert page.complaints == [], name
        assert page.locator(".math").count() == 0 or page.locator("mjx-container").count() > 0, name
        for root in page.locator(".adadp-explorer").all():
            _check_moves(root)
        page.context.close()


def _check_moves(root):
    """Every slider of an explorer changes its words, its value and its picture, and comes back."""
    shown = """root => [...root.querySelectorAll("svg path")].map(e => e.getAttribute("d")).join()
      + [...root.querySelectorAll("svg text, dd")].map(e => e.textContent).join()"""
    for slider in root.locator("input").all():
        slider.press("Home")
        first = root.locator(".ad-says").inner_text(), root.evaluate(shown), slider.get_attribute("aria-valuetext")
        slider.press("End")
        last = root.locator(".ad-says").inner_text(), root.evaluate(shown), slider.get_attribute("aria-valuetext")
        assert all(a != b for a, b in zip(first, last, strict=True)), (first[0], last[0])
        assert root.locator("[role=img]").get_attribute("aria-label") == last[0]
        slider.press("Home")
        assert root.locator(".ad-says").inner_text() == first[0]


# --- what sliders show, computed anew ---------------------------------------------------------------------------------

MNIST = {"max_grad_norm": 10.0, "num_parameters": 334_336, "expected_batch_size": 200}
# page -> title of an explorer -> how it is made from the values of its sliders
MADE = {
    "book/index.html": {"The learning rate that ADADP finds": lambda t, s: landing.explorer(t, s, **MNIST)},
    "notebooks/choosing_tol.html": {
        "Learning rate and accumulated noise": lambda t, s: choosing_tol.explorer(t, s, **MNIST)
    },
    "notebooks/step_doubling.html": {
        "Algorithm 1": lambda lr, t: step_doubling.explorer(gradient_flow.valley(), lr, t, advance="half_steps")
    },
    "notebooks/accounting.html": {"Epsilon for": lambda s, e, b, d: accounting.explorer(s, e, b, d, records=60_000)},
}
SUPER = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def _value(label):
    """The number behind what a slider says: 10⁻⁵, 0.03, 200."""
    label = label.translate(SUPER)
    label = re.sub(r"^10(-\d+)$", r"1e\1", label)
    value = float(re.sub(r" × 10(-?\d+)", r"e\1", label))
    return int(value) if value == int(value) and "." not in label else value


def _expected(data, at):
    """What the table says an element's attributes are at a position: {(number, attribute): text}, marker shapes in."""
    out = {}
    for target, attribute, shape, on, strings in data["slots"]:
        k = 0
        for axis in on:
            k = k * len(data["labels"][axis]) + at[axis]
        out[target, attribute] = data["strings"][strings[k]].replace("@", shape)
    return out


@pytest.mark.parametrize("name", MADE)
def test_sliders_show_what_python_computes(visit, site, name):
    """The table is what Python makes anew; picture, numbers, words and text alternative follow it at every move."""
    page = visit(f"{site}/{name}")
    for title, make in MADE[name].items():
        root = page.locator(f".adadp-explorer[aria-label^='{title}']")
        data = json.loads(root.locator("script[type='application/json']").text_content())
        values = [[_value(label) for label in labels] for labels in data["labels"]]
        with matplotlib.rc_context(style.RC):  # as a chapter's `style.use()`
            it = make(*values)
            html = (
                it._repr_mimebundle_()["text/html"] if name.startswith("notebooks/") else it.html
            )  # as a cell shows it
        anew = re.search(r'<script type="application/json">(.*?)</script>', html, re.S)[1]
        assert json.loads(anew) == data, f"{name}: the page is not what the package computes"
        sliders = root.locator("input").all()
        for share in (0.0, 0.4, 1.0):
            at = [round(share * (len(v) - 1)) for v in values]
            for slider, index in zip(sliders, at, strict=True):
                slider.evaluate(MOVE, index)
            view = it.view(**{axis.name: axis.values[i] for axis, i in zip(it.axes, at, strict=True)})
            assert root.locator("[role=img]").get_attribute("aria-label") == view.says
            assert root.locator(".ad-says").text_content() == view.says
            assert root.locator("dd").all_text_contents() == list(view.numbers.values())
            for (number, attribute), text in _expected(data, at).items():
                element = root.locator(f"[data-k='{number}']")
                shown = element.get_attribute(attribute) if attribute else element.text_content()
                assert (shown or "") == text, (name, at, attribute)
        assert page.complaints == []


def test_every_slider_of_the_issue_is_there(built):
    """Step doubling, Choosing tol (twice), Accounting, Federated (twice), the first page: by their sliders' names."""
    wanted = {
        "book/index.html": [{"tolerance tol", "noise multiplier σ"}],
        "notebooks/step_doubling.html": [{"first learning rate η₀", "tol"}],
        "notebooks/choosing_tol.html": [{"tol", "noise multiplier σ"}] * 2,
        "notebooks/accounting.html": [{"noise multiplier σ", "epochs", "batch size", "δ"}],
        "notebooks/federated_learning.html": [{"uniformly random"}, {"uniformly random", "learning rate η"}],
    }
    for name, explorers in wanted.items():
        parts = _source(built, name).split('class="adadp-figure adadp-explorer"')[1:]
        found = [set(re.findall(r"<label><span>(.*?)</span>", part)) for part in parts]
        assert found == explorers, name


def test_keyboard_alone_reaches_and_moves_the_first_slider(visit, site):
    page = visit(f"{site}/book/index.html")
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type") == "range":
            break
    assert page.evaluate("document.activeElement.type") == "range", "no slider within 80 stops"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "the focus must be seen"
    before = page.locator(".ad-says").first.inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator(".ad-says").first.inner_text() != before


def test_reduced_motion_is_kept(visit, site, built):
    """Nothing of an explorer moves by itself, and with reduced motion nothing on the page does."""
    for name in _with_explorers(built):
        page = visit(f"{site}/{name}", reduced_motion="reduce")
        page.locator(".adadp-explorer input").first.press("End")
        moving = page.evaluate(
            "() => document.getAnimations().filter(a => a.effect.target.closest('.adadp-explorer')).length"
        )
        assert moving == 0, name
        page.context.close()


def test_without_scripts_every_page_shows_its_figures(visit, site, built):
    for name in [name for name in _content(built) if 'class="adadp-figure' in _source(built, name)]:
        page = visit(f"{site}/{name}", java_script_enabled=False)
        for figure in page.locator(".adadp-figure").all():
            box = figure.locator(".ad-panels svg").first.bounding_box()
            assert box["width"] > 100 and box["height"] > 50, name
            assert not figure.locator(".ad-controls:visible").count(), "sliders that do nothing"
        for explorer in page.locator(".adadp-explorer").all():
            assert explorer.locator("noscript").inner_text().startswith("Scripts are off"), name
        page.context.close()


def test_sliders_answer_within_a_frame(visit, site, built):
    names = _with_explorers(built)
    assert names, "no page has sliders"
    for name in names:
        page = visit(f"{site}/{name}")
        for root in page.locator(".adadp-explorer").all():
            slider = root.locator("input").first
            last = int(slider.get_attribute("max"))
            times = [slider.evaluate(MOVE, n % (last + 1)) for n in range(20)]
            print(f"{name}: median of 20 moves {statistics.median(times):.2f} ms")
            assert statistics.median(times) < 16
        assert page.complaints == [], name
        page.context.close()


def test_the_first_picture_comes_soon(visit, site, built):
    for name in [name for name in _content(built) if 'class="adadp-figure' in _source(built, name)]:
        times = []
        for _ in range(3):  # the best of three: the machine may be busy
            page = visit(f"{site}/{name}", script=PICTURE)
            page.wait_for_function("window.pictureAt")
            times.append(page.evaluate("window.pictureAt"))
            page.context.close()
        print(f"{name}: first picture after {min(times):.0f} ms")
        assert min(times) < 2000, name


@pytest.mark.parametrize("theme", ("light", "dark"))
def test_phones_never_scroll_sideways(visit, site, built, theme):
    for name in _content(built):
        page = visit(f"{site}/{name}", theme=theme, viewport={"width": 390, "height": 844})
        page.evaluate(READY)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        page.context.close()


@pytest.mark.parametrize("theme", ("light", "dark"))
def test_texts_can_be_read(visit, site, built, theme, contrast):
    for name in _content(built):
        page = visit(f"{site}/{name}", theme=theme)
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        for kind in READ:
            assert contrast(page, kind) >= 4.5, (name, kind)
        page.context.close()


@pytest.mark.parametrize("theme", ("light", "dark"))
def test_nothing_serious_for_axe(visit, site, built, theme, axe):
    found = []
    for name in _content(built):
        page = visit(f"{site}/{name}", theme=theme)
        page.evaluate(READY)
        found += [f"{name}: {line}" for line in axe(page) if not any(
            line.startswith(f"{rule}:") and part in line for rule, part in ALLOWED)]  # fmt: skip
        page.context.close()
    assert found == []


def test_print_shows_the_article_alone_in_dark_ink(visit, site, built, contrast):
    for name in _content(built):
        page = visit(f"{site}/{name}", theme="dark")
        page.evaluate(READY)
        page.emulate_media(media="print")
        assert page.locator("article.bd-article").is_visible(), name
        assert not page.locator(".bd-sidebar-primary").is_visible(), name
        assert page.locator(".adadp-explorer input:visible").count() == 0, name
        for figure in page.locator(".adadp-figure .ad-panels").all():
            box = figure.bounding_box()
            assert box["width"] > 100 and box["height"] > 50, name
        texts = ".bd-article p, .bd-article li, .bd-article h1, .bd-article h2, .bd-article pre, .adadp-figure svg text"
        assert min(contrast(page, texts), contrast(page, texts, paper=True)) >= 4.5, name
        assert len(page.pdf()) > 10_000
        page.context.close()
