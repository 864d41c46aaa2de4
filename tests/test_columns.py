"""Stored columns come back as they were, in fewer characters; what is none is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adadp.experiments.columns import MOST, packed, unpacked

entries = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False), st.lists(st.integers()))
even = st.builds(
    lambda first, step, count: [first + step * i for i in range(count)],
    st.integers(), st.integers(), st.integers(0, 30),
)  # fmt: skip
constant = st.builds(lambda entry, count: [entry] * count, entries, st.integers(0, 30))


@given(st.one_of(st.lists(entries), even, constant))
def test_what_is_packed_comes_back(column):
    back = unpacked(json.loads(json.dumps(packed(column))))
    assert back == column and list(map(type, back)) == list(map(type, column))


@given(st.one_of(even, constant))
def test_even_and_constant_columns_take_one_entry(column):
    assert isinstance(packed(column), dict) == (len(column) >= 3)


def test_types_are_kept_apart():
    assert packed([1, 1.0, True]) == [1, 1.0, True]
    assert packed([0.0, 1.0, 2.0]) == [0.0, 1.0, 2.0]
    assert packed([False, True, 2]) == [False, True, 2]


@pytest.mark.parametrize(
    "column",
    [None, 3, "abc", {}, {"always": 1}, {"count": 3}, {"always": 1, "count": 0}, {"always": 1, "count": -1},
     {"always": 1, "count": 2.0}, {"always": 1, "count": MOST + 1}, {"first": 1, "step": 1}, {"first": 1, "count": 3},
     {"first": 1.5, "step": 1, "count": 3}, {"first": 1, "step": 1, "count": MOST + 1},
     {"first": 1, "step": 1, "count": 3, "more": 0}, {"always": 1, "first": 1, "step": 1, "count": 3}],
)  # fmt: skip
def test_what_is_no_column_is_refused(column):
    with pytest.raises(ValueError, match="not columns"):
        unpacked(column)
