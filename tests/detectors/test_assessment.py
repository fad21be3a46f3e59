import numpy as np
import pytest

import nescio as ns
from nescio.checks import make_outputs
from nescio.errors import InputError


@pytest.mark.parametrize("groups", [None, "label_count"])
def test_concat_undoes_a_split(groups):
    detector = ns.JointEnergy().calibrate(make_outputs(1500), groups=groups)
    outputs = make_outputs(30, seed=1)
    whole = detector.assess(outputs)
    joined = ns.Assessment.concat([detector.assess(outputs[:7]), detector.assess(outputs[7:])])
    assert joined.columns().keys() == whole.columns().keys()
    for name, column in whole.columns().items():
        np.testing.assert_array_equal(joined.columns()[name], column)


def test_only_assessments_of_one_kind_are_joined():
    with pytest.raises(InputError, match="no assessments to join"):
        ns.Assessment.concat([])
    detector = ns.JointEnergy().calibrate(make_outputs(100))
    outputs = make_outputs(2, seed=1)
    named = ns.Outputs(outputs.logits, ids=["a", "b"])
    with pytest.raises(InputError, match="must have ids and groups, or none"):
        ns.Assessment.concat([detector.assess(outputs), detector.assess(named)])
