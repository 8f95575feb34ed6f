"""Code that `doc.md` quotes."""

LIMIT = 3


def first(x):
    """Return twice the number after x."""
    return (x + 1) * 2
