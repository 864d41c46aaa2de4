"""Sphinx extension of the book: what Jupyter Book 1.x leaves to do on a page, and the line that tells its origin."""

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

from adadp.publishing import launch

FILE = "build-facts.json"
STORED = "adadp/experiments/stored"
_COMMIT = re.compile(r"(>|\s)([0-9a-f]{40})(?=[<.,;\s])")


def clean_scripts(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Drop scripts that were registered twice, and say which mode the theme starts in (else it complains aloud)."""
    seen, keep = set(), []
    for script in context.get("script_files", []):
        attributes = tuple(sorted((k, str(v)) for k, v in getattr(script, "attributes", {}).items()))
        key = (str(getattr(script, "filename", script) or ""), attributes)
        if key not in seen:
            seen.add(key)
            keep.append(script)
    context["script_files"] = keep
    context.setdefault("default_mode", "auto")


def add_execution(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Tell on an executed page when it was executed: pages that did not change are older than the book."""
    source = Path(app.srcdir) / f"{pagename}.ipynb"
    if doctree is None or not source.is_file():
        return
    run = json.loads(source.read_text(encoding="utf-8"))["metadata"].get("adadp")
    if run:
        line = f"This page was executed on {run['date']} in {run['seconds']:.0f} s."
        context["theme_extra_footer"] = f'{context.get("theme_extra_footer", "")}<p class="adadp-origin">{line}</p>'


def link_commits(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """A full commit name that a page quotes is shortened, and leads to that commit where the book knows its public
    repository."""
    if doctree is not None and context.get("body"):
        context["body"] = linked(context["body"], app.config.html_theme_options.get("repository_url") or "")


def linked(body: str, url: str) -> str:
    """Commit names in running text, short, as links if there is an address.

    Example:
        >>> linked("in commit <span>" + 40 * "a" + "</span>", "https://host/x")[-28:]
        'aaaa">aaaaaaaaaaaa</a></span>'
        >>> linked("in commit " + 40 * "a" + ".", "")
        'in commit aaaaaaaaaaaa.'
    """

    def short(found: re.Match[str]) -> str:
        name = found[2][:12]
        return found[1] + (f'<a href="{url.rstrip("/")}/commit/{found[2]}">{name}</a>' if url else name)

    return _COMMIT.sub(short, body)


def add_results(app: Any, error: Exception | None) -> None:
    """Put the stored results where the links of the pages look for them: a reader can open every run."""
    source = Path(app.srcdir) / STORED
    if error is None and source.is_dir():
        shutil.copytree(source, Path(app.outdir) / STORED, dirs_exist_ok=True)


def origin(facts: dict[str, Any]) -> str:
    """HTML of the line in every page's footer.

    Example:
        >>> origin({"date": "2026-01-02", "commit": "abc", "profile": "quick", "seed": 0, "device": "cpu", "data": []})
        '<p class="adadp-origin">Built 2026-01-02 from commit abc, profile quick, seed 0, on cpu.</p>'
    """
    line = "Built {date} from commit {commit}, profile {profile}, seed {seed}, on {device}.".format(**facts)
    data = f" Data: {'; '.join(d.rstrip('.') for d in facts['data'])}." if facts["data"] else ""
    return f'<p class="adadp-origin">{html.escape(line + data)}</p>'


def add_origin(app: Any, config: Any) -> None:
    """Put the facts of this build, where they are known, into the footer; one search field is enough."""
    config.html_theme_options.setdefault("navbar_persistent", [])
    path = Path(app.srcdir) / FILE
    if path.is_file():
        config.html_theme_options["extra_footer"] = origin(json.loads(path.read_text(encoding="utf-8")))


def aim_launch(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Point launch buttons, where there are any, at the copies that know their commit."""
    if app.config.adadp_launch:
        launch.aim(context.get("header_buttons", []), *app.config.adadp_launch)


def prune(app: Any, error: Exception | None) -> None:
    """Leave out what no page loads: MathJax's other bundles (15 MB) and source maps."""
    static = Path(app.outdir) / "_static"
    if error is not None or not static.is_dir():
        return
    loaded = {Path(app.config.mathjax_path).name, "core.js", "loader.js", "startup.js"}
    for path in (static / "mathjax").glob("*.js"):
        if path.name not in loaded:
            path.unlink()
    for path in (static / "mathjax" / "sre" / "mathmaps").glob("*.json"):
        if path.name not in ("base.json", "en.json"):
            path.unlink()
    for path in static.rglob("*.map"):
        path.unlink()


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_config_value("comments_config", {}, "env")  # Jupyter Book sets it even where the extension is left out
    app.add_config_value("adadp_launch", [], "html")
    app.connect("config-inited", add_origin)
    app.connect("html-page-context", aim_launch, priority=999)  # after the theme has made its buttons
    app.connect("html-page-context", clean_scripts, priority=999)
    app.connect("html-page-context", add_execution)
    app.connect("html-page-context", link_commits)
    app.connect("build-finished", add_results)
    app.connect("build-finished", prune, priority=999)  # after sphinx-mathjax-offline has copied everything
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
