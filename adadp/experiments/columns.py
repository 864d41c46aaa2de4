"""Columns of stored rows in few characters, without loss: most runs count steps evenly and keep their learning rate.

A column is a list, or ``{"first": 250, "step": 250, "count": 100}`` (whole numbers, evenly spaced), or
``{"always": 0.1, "count": 100}`` (anything that stays what it is).
"""

SHORT = 3  # entries from which on the other forms are shorter
MOST = 10**6  # entries that a file may ask for


def packed(column: list):
    """The shortest of the three forms.

    >>> packed([250, 500, 750, 1000]), packed([0.1, 0.1, 0.1]), packed([0.1, 0.2, 0.1])
    ({'first': 250, 'step': 250, 'count': 4}, {'always': 0.1, 'count': 3}, [0.1, 0.2, 0.1])
    """
    if len(column) < SHORT:
        return column
    first, count = column[0], len(column)
    if all(type(entry) is type(first) and entry == first for entry in column):
        return {"always": first, "count": count}
    if all(type(entry) is int for entry in column):
        step = column[1] - first
        if column == list(range(first, first + step * count, step or 1)):
            return {"first": first, "step": step, "count": count}
    return column


def unpacked(column) -> list:
    """The list behind any of the three forms.

    >>> unpacked({"first": 250, "step": 250, "count": 4})
    [250, 500, 750, 1000]

    Raises:
        ValueError: it is none of them.
    """
    if isinstance(column, list):
        return column
    match column:
        case {"always": entry, "count": int(count), **rest} if not rest and 0 < count <= MOST:
            return [entry] * count
        case {"first": int(first), "step": int(step), "count": int(count), **rest} if not rest and 0 < count <= MOST:
            return [first + step * i for i in range(count)]
    raise ValueError("rows are not columns")
