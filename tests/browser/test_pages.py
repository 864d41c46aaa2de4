"""The built book in a real browser: every page, as a reader with no kernel and no network beyond the page meets it."""

import statistics
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.book]

# Findings of axe-core that are other projects' and that we leave as they are: (rule, part of the element) -> why.
ALLOWED = {
    (
        "aria-required-children",
        ".citation-list",
    ): "sphinxcontrib-bibtex gives the bibliography a list role, not its items",
}
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
        worst = contrast(page, ".bd-article p, .bd-article li, .bd-article h1, .bd-article h2, .adadp-figure svg text")
        assert worst >= 4.5, name
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
