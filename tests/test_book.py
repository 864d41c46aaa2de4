"""The real book, built strictly: all of it is there, it holds together, and it needs nobody else."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from adadp.publishing import toc

pytestmark = pytest.mark.book
ROOT = Path(__file__).resolve().parents[1]
NAMES = [p.relative_to(ROOT).with_suffix("").as_posix() for p in toc.pages(ROOT)]
LOADING = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
LINK_LOADS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "dns-prefetch", "preconnect", "manifest"}


class _Page(HTMLParser):
    """What a page loads, what it links to, and the anchors it offers."""

    def __init__(self, path: Path):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        """Sort the attributes of one element."""
        a = dict(attrs)
        self.ids += [a["id"]] if a.get("id") else []
        if tag == "a" and a.get("href"):
            self.links.append(a["href"])
        if tag == "link" and set((a.get("rel") or "").split()) & LINK_LOADS:
            self.loads.append(a.get("href") or "")
        if tag in LOADING and a.get("src"):
            self.loads.append(a["src"])
        if a.get("srcset"):
            self.loads += [part.split()[0] for part in a["srcset"].split(",")]


@cache
def page(path: Path) -> _Page:
    """A parsed page."""
    return _Page(path)


def html_pages(book: Path) -> list[Path]:
    """Pages that readers see (Sphinx's own included)."""
    return [p for p in sorted(book.rglob("*.html")) if "_static" not in p.parts and "_sources" not in p.parts]


each = pytest.mark.parametrize("name", NAMES)


@each
def test_page_exists_and_tells_its_origin(book, name):
    text = (book / f"{name}.html").read_text(encoding="utf-8")
    assert re.search(r"Built \d{4}-\d\d-\d\d from commit \S+, profile quick, seed 0, on .+\.", text)
    assert ("This page was executed on" in text) == (ROOT / f"{name}.ipynb").exists()


def test_first_page_leads_to_the_book(book):
    assert NAMES[0] + ".html" in (book / "index.html").read_text()


def test_no_page_loads_anything_from_another_host(book):
    for path in html_pages(book):
        foreign = [url for url in page(path).loads if urlsplit(url).scheme in ("http", "https") or url.startswith("//")]
        assert foreign == [], path


def test_no_style_sheet_loads_anything_from_another_host(book):
    for path in book.rglob("*.css"):
        found = re.findall(
            r"(?:url\(\s*[\"']?|@import\s+[\"'])((?:https?:)?//[^\"')]*)", path.read_text(encoding="utf-8")
        )
        assert found == [], path


def test_what_pages_load_is_there(book):
    for path in html_pages(book):
        for url in page(path).loads:
            parts = urlsplit(url)
            if not parts.scheme:
                assert (path.parent / unquote(parts.path)).resolve().is_file(), f"{path}: {url}"


def test_links_and_anchors_resolve(book):
    broken = []
    for path in html_pages(book):
        for url in page(path).links:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                broken.append(f"{path.relative_to(book)} -> {url}")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in page(target).ids:
                broken.append(f"{path.relative_to(book)} -> {url} (no such anchor)")
    assert broken == []


@each
def test_ids_are_unique(book, name):
    ids = page(book / f"{name}.html").ids
    assert sorted({i for i in ids if ids.count(i) > 1}) == []


def test_equations_are_numbered_and_rendered_from_here(book):
    numbers = [len(re.findall(r'id="equation-', page(book / f"{n}.html").text)) for n in NAMES]
    assert sum(numbers) >= 1, numbers
    for name, count in zip(NAMES, numbers, strict=True):
        loads = page(book / f"{name}.html").loads
        assert count == 0 or any("_static/mathjax/" in url for url in loads), name
    assert list((book / "_static/mathjax").rglob("*.woff")), "MathJax without its fonts"


@each
def test_nothing_unfinished_is_shown(book, name):
    text = page(book / f"{name}.html").text
    for sign in ("&lt;Figure size", "problematic", "{glue", "output stderr", "output traceback", "text_error"):
        assert sign not in text, sign


def test_no_launch_buttons_without_an_address(book):
    for name in NAMES:
        text = page(book / f"{name}.html").text
        assert "launch-buttons" not in text and "colab.research" not in text and "mybinder.org" not in text


def test_it_is_small(book):
    size = sum(p.stat().st_size for p in book.rglob("*") if p.is_file())
    assert size < 40e6, f"{size / 1e6:.0f} MB"
