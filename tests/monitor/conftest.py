"""A detector whose stream is monitored."""

import numpy as np
import pytest

import nescio as ns
from fixtures.streams import logits_of


@pytest.fixture(scope="module")
def detector():
    return ns.JointEnergy().calibrate(logits_of(np.random.default_rng(1), 1500))
