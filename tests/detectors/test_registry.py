"""The registry of detectors."""

import pytest

import nescio as ns
from fixtures.own_detectors import Neighbours
from nescio.errors import ParameterError


def test_a_name_is_given_once():
    class Impostor(Neighbours):
        """Has the name of another."""

        name = "joint_energy"

    with pytest.raises(ParameterError, match="the name 'joint_energy' is taken by JointEnergy"):
        ns.register(Impostor)
