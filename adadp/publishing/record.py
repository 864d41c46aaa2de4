"""What prose quotes: numbers and pictures, recorded in a notebook, shown on any page, never typed by hand."""

from typing import Any

PREFIX = "application/papermill.record/"


def record(name: str, value: Any) -> None:
    """Keep ``value`` under ``name`` in the executed notebook; nothing is shown where it is called.

    A prose page in ``book/`` quotes it, with a format if wanted, as
    ``{glue:text}`../notebooks/private_mnist.ipynb::accuracy:.1f` ``; a notebook quotes its own values as
    ``{glue:text}`accuracy:.1f` ``. The names ``provenance`` (a line or a list of lines that says which data were
    used) are collected by the build and shown on the page.

    A picture with sliders is quoted whole, by the directive ``{glue}`` with the option ``:doc:``.

    Args:
        name: the key; letters, digits and underscores.
        value: a number, a text, or a 0-dimensional array or tensor of either; or an `adadp.figures.widgets.Explorer`.

    Raises:
        ValueError: the name is not an identifier (the quoting role could not address it).

    Example:
        >>> plain(__import__("numpy").float64(0.25))
        0.25
    """
    if not name.isidentifier():
        raise ValueError(f"name must be an identifier such as 'final_loss', got {name!r}")
    from IPython.display import display

    metadata = {"scrapbook": {"name": name, "mime_prefix": PREFIX}}
    page = getattr(value, "html", None)
    if isinstance(page, str):
        data = {PREFIX + "text/plain": repr(value.title), PREFIX + "text/html": page}
    else:
        data = {PREFIX + "text/plain": repr(plain(value))}
    display(data, raw=True, metadata=metadata)


def plain(value: Any) -> Any:
    """The Python number behind a numpy or torch scalar: their ``repr`` would be quoted as it is."""
    return value.item() if hasattr(value, "item") else value
