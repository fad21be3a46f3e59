import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import nescio as ns
from nescio.errors import FileFormatError, ParameterError


class Own(StandardScaler):
    """A step that only the training code has."""


@pytest.fixture
def rows(rng):
    pytest.importorskip("skops")
    return rng.normal(size=(500, 4))


def trained(rows, *steps):
    model = make_pipeline(*steps, OneVsRestClassifier(LogisticRegression()))
    return ns.wrap(model.fit(rows[:100], rows[:100, :3] > 0), label_names=["cat", "dog", "cow"])


def test_a_pipeline_with_the_layer_that_its_detector_reads(rows, tmp_path):
    wrapped = trained(rows, StandardScaler()).fit(rows[:200], rows[:200, :3] > 0)
    wrapped = wrapped.calibrate(rows[200:])
    wrapped.save_pretrained(tmp_path / "model")
    loaded = ns.from_pretrained(tmp_path / "model")
    assert loaded.runner.layers == wrapped.runner.layers == ("penultimate",)
    np.testing.assert_array_equal(loaded.assess(rows).scores, wrapped.assess(rows).scores)
    header = (tmp_path / "model" / "README.md").read_text().partition("\n---")[0]
    assert 'library_name: "sklearn"' in header
    assert 'pipeline_tag: "tabular-classification"' in header


def test_steps_of_your_own_need_your_word(rows, tmp_path):
    own = f"{Own.__module__}.Own"
    wrapped = trained(rows, Own()).calibrate(rows[100:])
    with pytest.raises(ParameterError, match=rf"trusted=\['{own}'\].*only where your code is"):
        wrapped.save_pretrained(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ParameterError, match="must be a sequence of names"):
        wrapped.save_pretrained(tmp_path / "model", trusted=own)
    wrapped.save_pretrained(tmp_path / "model", trusted=[own])
    with pytest.raises(ParameterError, match="skops does not trust"):
        ns.from_pretrained(tmp_path / "model")
    assert len(ns.from_pretrained(tmp_path / "model", trusted=[own])(rows)) == 500


def test_what_has_no_name_or_no_form_cannot_be_written(rows, tmp_path):
    wrapped = trained(rows, FunctionTransformer(lambda x: x + 1)).calibrate(rows[100:])
    with pytest.raises(ParameterError, match="<lambda>, which cannot be found by this name"):
        wrapped.save_pretrained(tmp_path / "model")
    wrapped.runner.model.steps[0][1].inverse_func = (at for at in "ab")
    with pytest.raises(ParameterError, match="skops cannot write this Pipeline"):
        wrapped.save_pretrained(tmp_path / "model")


def test_a_damaged_file(rows, tmp_path):
    estimators = pytest.importorskip("nescio.registries.estimators")
    path = tmp_path / "model.skops"
    path.write_bytes(b"PK not a zip file")
    with pytest.raises(FileFormatError, match=r"cannot read the estimator of .*model\.skops"):
        estimators.read_estimator(path, [])
