"""Tests in Debian's Chromium: a served folder, pages that note what goes wrong, and the built book."""

import functools
import os
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def _missing(what):
    """Absence fails where CI must have it, and is a visible skip elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}, and CI must have it")
    pytest.skip(what)


@pytest.fixture(scope="package")
def chromium():
    """A running browser (closed when these tests are through: its event loop would disturb others)."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        _missing("no Chromium found: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed: pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing of every file."""


@pytest.fixture(scope="package")
def serve():
    """Serve a folder on this machine; returns its address."""
    servers = []

    def start(folder):
        server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def visit(chromium):
    """Open an address in a context of its own; ``page.complaints`` lists console errors and foreign requests."""
    contexts = []

    def go(url, *, theme="light", script="", **options):
        context = chromium.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        context.set_default_timeout(180_000)  # a busy machine is slow, not wrong
        context.add_init_script(f"try {{ localStorage.mode = localStorage.theme = '{theme}' }} catch (e) {{}}")
        if script:
            context.add_init_script(script)
        page = context.new_page()
        page.complaints = []
        home = url.split("/")[2]
        page.on("console", lambda m: m.type in ("error", "warning") and page.complaints.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: page.complaints.append(f"uncaught: {error}"))

        def request(r):
            if r.url.split(":")[0] in ("http", "https", "ws", "wss") and r.url.split("/")[2] != home:
                page.complaints.append(f"foreign: {r.url}")

        page.on("request", request)
        page.on("requestfailed", lambda r: page.complaints.append(f"failed: {r.url}"))
        page.goto(url)
        return page

    yield go
    for context in contexts:
        context.close()


@pytest.fixture(scope="package")
def built(request):
    """Folder of the built book: ``$ADADP_BOOK_HTML``, else one in ``_build`` newer than its sources, else built now."""
    if given := os.environ.get("ADADP_BOOK_HTML"):
        if not (Path(given) / "index.html").is_file():
            pytest.fail(f"ADADP_BOOK_HTML={given} holds no index.html")
        return Path(given)
    found = sorted(ROOT.glob("_build/*/index.html"), key=_changed)
    if found and _changed(found[-1]) > max(map(_changed, _sources())):
        return found[-1].parent
    return request.getfixturevalue("book")


def _changed(path):
    return path.stat().st_mtime


def _sources():
    """Everything the book is made of."""
    folders = [ROOT / name for name in ("adadp", "book", "notebooks")]
    files = [p for folder in folders for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return [*files, ROOT / "_config.yml", ROOT / "_toc.yml"]


@pytest.fixture(scope="package")
def site(built, serve):
    """Address of the built book on a local server."""
    return serve(built)


@pytest.fixture(scope="package")
def axe():
    """Serious and critical findings of axe-core on a page, as "rule: element" lines."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        _missing("axe-playwright-python is not installed: pip install axe-playwright-python")

    def run(page):
        found = Axe().run(page).response["violations"]
        serious = [v for v in found if v["impact"] in ("serious", "critical")]
        return [f"{v['id']}: {' '.join(map(str, node['target']))}" for v in serious for node in v["nodes"]]

    return run


@pytest.fixture(scope="package")
def contrast():
    """The lowest contrast (WCAG 2) of texts that match a selector, against their ground (or white paper)."""

    def lowest(page, selector, paper=False):
        return page.evaluate(
            """([selector, paper]) => {
              const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
              const light = c => { const [r, g, b] = c.map(v => v / 255)
                .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
                return .2126 * r + .7152 * g + .0722 * b; };
              let worst = 99;
              for (const e of document.querySelectorAll(selector)) {
                const box = e.getBoundingClientRect();
                if (!e.textContent.trim() || !box.width) continue;
                const style = getComputedStyle(e), svg = e.ownerSVGElement;
                const front = parse(svg ? style.fill : style.color);
                let back = [255, 255, 255];
                for (let p = paper ? null : e; p; p = p.parentElement) {
                  const c = parse(getComputedStyle(p).backgroundColor);
                  if (c.length === 3 || c[3] > 0) { back = c.slice(0, 3); break; }
                }
                const [a, b] = [light(front), light(back)];
                worst = Math.min(worst, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
              }
              return worst;
            }""",
            [selector, paper],
        )

    return lowest
