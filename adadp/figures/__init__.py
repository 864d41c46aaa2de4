"""Every figure of the book, in one style.

``style`` is the look, ``plots`` the pictures that several chapters share, ``widgets`` the sliders; ``svg`` and ``show``
turn a matplotlib figure into a picture for a page. One module per chapter holds that chapter's own figures.
"""
