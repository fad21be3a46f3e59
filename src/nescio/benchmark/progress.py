"""How a benchmark reports its progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Watch = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]
"""Called with the name of a stage and its number of steps; yields a function to report steps to.

The number of steps is 0 if it is not known.
"""


def unwatched(_stage: str, _total: int) -> AbstractContextManager[Callable[[int], object]]:
    """Report to nobody."""
    return nullcontext(lambda steps: None)
