"""A small table reads well as text and as HTML."""

from adadp.figures.table import Table

ROWS = [
    {"way": "one <after> another", "ms\nmedian": 1.23456, "verdict": "✓ ok", "of": "−3.0"},
    {"way": "stacked", "ms\nmedian": 1234.5, "verdict": "✗ fails", "of": "–"},
]


def test_text_is_aligned():
    lines = repr(Table(ROWS, "times", ["A note."])).splitlines()
    assert lines[-1] == "A note." and len({len(line) for line in lines[:-1]}) == 1
    assert lines[0].split() == ["way", "ms", "median", "verdict", "of"]
    assert lines[1].split()[-4:] == ["1.23", "✓", "ok", "−3.0"] and "1230" in lines[2]


def test_html_names_rows_and_columns_and_is_escaped():
    page = Table(ROWS, "times & more", ["a < b"])._repr_html_()
    assert page.count('scope="col"') == 4 and page.count('scope="row"') == 2
    assert "one &lt;after&gt; another" in page and "a &lt; b" in page and 'aria-label="times &amp; more"' in page
    assert "ms<small>median</small>" in page
    assert (
        '<td class="ad-right">1.23</td>' in page and "<td>✓ ok</td>" in page and '<td class="ad-right">–</td>' in page
    )


def test_no_rows_leave_the_notes():
    empty = Table([], "nothing", ["No run is stored."])
    assert repr(empty) == "No run is stored." and "No run is stored." in empty._repr_html_()
