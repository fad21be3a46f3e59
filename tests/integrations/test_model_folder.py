import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import nescio as ns
from nescio.errors import DefaultDetectorWarning, FileFormatError, ParameterError
from nescio.integrations.hugging_face import save_pretrained
from nescio.integrations.model_folder import read_estimator, write_estimator
from nescio.integrations.sklearn import TableFeatures, WithVerdict


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
    with pytest.warns(DefaultDetectorWarning, match="needs 400 held-out samples"):
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
    with pytest.raises(ParameterError, match=rf"trusted=\['mine', '{own}'\]"):
        wrapped.save_pretrained(tmp_path / "model", trusted=["mine"])  # all of them
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
    path = tmp_path / "model.skops"
    path.write_bytes(b"PK not a zip file")
    with pytest.raises(FileFormatError, match=r"cannot read the estimator of .*model\.skops"):
        read_estimator(path, [])


TREES = "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"


@pytest.mark.parametrize(
    ("steps", "trusted"),
    [
        ((MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=2)),), [TREES]),
        ((StandardScaler(), OneVsRestClassifier(LogisticRegression())), []),
    ],
)
def test_with_verdict_by_default(rows, tmp_path, steps, trusted):
    model = WithVerdict(make_pipeline(*steps)).fit(rows, rows[:, :3] > 0)
    assert model.wrapped_.runner.layers == ("prepared",)
    save_pretrained(model, tmp_path / "model", trusted=trusted)
    names = {path.name for path in (tmp_path / "model").iterdir()}
    skops = {"model.skops", "features.skops"}
    assert names == {"README.md", "detector.nescio", "nescio.json", *skops}
    loaded = ns.from_pretrained(tmp_path / "model", trusted=trusted)
    assert loaded.runner.layers == ("prepared",)
    np.testing.assert_array_equal(loaded.assess(rows).scores, model.assess(rows).scores)
    write_estimator(StandardScaler().fit(rows), tmp_path / "model" / "features.skops", [])
    with pytest.raises(FileFormatError, match=r"features\.skops has changed"):
        ns.from_pretrained(tmp_path / "model", trusted=trusted)


def test_the_words_and_missing_values_of_a_table(rows, tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(rows[:, :2], columns=["a", "b"])
    table["kind"] = np.where(rows[:, 2] > 0, "red", "blue")
    table.loc[::9, "b"] = np.nan
    features = TableFeatures().fit(table)
    write_estimator(features, tmp_path / "features.skops", [])
    found = read_estimator(tmp_path / "features.skops", [])
    np.testing.assert_array_equal(found.transform(table), features.transform(table))


def test_what_is_no_wrapped_model(tmp_path):
    logistic = OneVsRestClassifier(LogisticRegression())
    for given, message in (
        (logistic, "got OneVsRestClassifier: wrap it with nescio.wrap"),
        (WithVerdict(logistic), "got WithVerdict.* must be fitted"),
    ):
        with pytest.raises(ParameterError, match=message):
            save_pretrained(given, tmp_path / "model")
