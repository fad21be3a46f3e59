"""Short texts: what a result prints, whatever the size of its data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MOST_ROWS = 10


def cut(text: object, longest: int) -> str:
    """Return the text on one line, cut to so many characters.

    Examples
    --------
    >>> cut("a long name", 6), cut("short", 6)
    ('a lon…', 'short')
    """
    line = " ".join(str(text).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def end_of(name: str, longest: int) -> str:
    """Return the end of a long name: ids often begin alike.

    Examples
    --------
    >>> end_of("customer-2026-001", 8), end_of("short", 8)
    ('…026-001', 'short')
    """
    return name if len(name) <= longest else "…" + name[1 - longest :]


def listed(names: Sequence[object], most: int, longest: int = 24) -> str:
    """Return the first names in a list, and how many more there are.

    Examples
    --------
    >>> listed(["cat", "dog", "cow"], 2)
    'cat, dog and 1 more'
    """
    shown = ", ".join(cut(name, longest) for name in names[:most])
    more = len(names) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def some_rows(n_rows: int) -> range:
    """Return the rows to show: all, or the first ones if that leaves room for a line of dots."""
    return range(n_rows if n_rows <= MOST_ROWS else MOST_ROWS - 1)


def text_table(title: str, head: str, row: Callable[[int], str], n_rows: int) -> str:
    """Write a title, the head of a table and its first rows, with dots if there are more."""
    lines = [title, head, *map(row, some_rows(n_rows))]
    return "\n".join([*lines, f"{'...':>8}"] if n_rows > MOST_ROWS else lines)
