"""From the repository to the executed book: papermill, then Jupyter Book.

`build.build_book` does the work behind ``adadp book``; `record` is for notebooks and needs nothing but IPython.
"""

from adadp.publishing.record import record

__all__ = ["record"]
