"""A search among ascending numbers, in a form that can be exported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nescio.calibration import Scores


def search_table(rows: Sequence[Scores]) -> tuple[Tensor, Tensor, int]:
    """Return a table for `count_passed`, the place where each row starts, and the steps to take.

    A row holds its numbers from its second place on, then +inf.
    """
    n_steps = max(map(len, rows)).bit_length()
    table = np.full((len(rows), 2**n_steps), np.inf)
    for row, numbers in zip(table, rows, strict=True):
        row[1 : 1 + len(numbers)] = numbers
    return torch.from_numpy(table.reshape(-1)), torch.arange(len(rows)) * 2**n_steps, n_steps


def count_passed(table: Tensor, start: Tensor, n_steps: int, scores: Tensor) -> Tensor:
    """Return how many numbers of a row of the table are at or below each score.

    A binary search with a fixed number of steps, one lookup per score in each. Memory grows with
    the scores, not with the scores times the numbers. A score of +inf passes every +inf too.
    """
    at = start + torch.zeros_like(scores, dtype=torch.int64)  # the place of the last one passed
    for step in reversed(range(n_steps)):
        further = at + 2**step
        at = torch.where(table.index_select(0, further) <= scores, further, at)
    return at - start
