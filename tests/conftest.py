"""What several tests share."""

import numpy as np
import pytest
from hypothesis import settings

from nescio.cli import main

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _numpy_in_doctests(doctest_namespace):
    doctest_namespace["np"] = np


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def nescio(capsys):
    """Run a command line; gives (exit code, standard output, standard error)."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
