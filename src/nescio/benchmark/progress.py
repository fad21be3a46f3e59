"""How a benchmark reports its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

Report = Callable[[int], object]
"""Called with the number of steps just done."""

Watch = Callable[[str, int], AbstractContextManager[Report]]
"""Called with the name of a stage and its number of steps; yields a function to report steps to.

The number of steps is 0 if it is not known.
"""

READING = "reading the data sets"
"""The name of the first stage."""


def unwatched(_stage: str, _total: int) -> AbstractContextManager[Report]:
    """Report to nobody."""
    return nullcontext(lambda steps: None)


@contextmanager
def in_turn(
    first: AbstractContextManager[Report], second: AbstractContextManager[Report]
) -> Iterator[tuple[Report, Report]]:
    """Yield the reports of two stages; the second begins at its first step, and ends the first."""
    with ExitStack() as shown:
        report_first = shown.enter_context(first)
        report_second: Report | None = None

        def advance(steps: int) -> None:
            nonlocal report_second
            if report_second is None:
                shown.close()
                report_second = shown.enter_context(second)
            report_second(steps)

        yield report_first, advance
