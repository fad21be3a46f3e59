"""The environment of all tests, and of the examples in the docstrings of src."""

import fixtures.environment  # noqa: F401  (before NumPy, torch and typer are imported)

# isort: split

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _numpy_in_doctests(doctest_namespace):
    doctest_namespace["np"] = np
