"""Models in a real MLflow, whose store is a folder. Its import is slow: fixtures import it."""

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import nescio as ns
from fixtures.own_detectors import ReAct
from nescio.errors import ExportError, FileError, ParameterError

pandas = pytest.importorskip("pandas")
pytest.importorskip("onnxruntime")

NAMES = ["cat", "dog", "cow"]
COLUMNS = ["predicted", "probs", "score", "p_value", "in_distribution"]
NETWORK = """
import torch

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)

    def forward(self, rows):
        return self.head(torch.relu(self.hidden(rows)))
"""


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    """MLflow with a folder as its store."""
    package = pytest.importorskip("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        before = package.get_tracking_uri()
        package.set_tracking_uri(tmp_path_factory.mktemp("mlflow").as_uri())
        yield package
        package.set_tracking_uri(before)


@pytest.fixture(scope="module")
def registry(mlflow):
    return pytest.importorskip("nescio.mlflow")


def some_rows(n=400, seed=0):
    return np.random.default_rng(seed).normal(0, 2, (n, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """A network of a module that is gone when the model is loaded."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    folder = tmp_path_factory.mktemp("training")
    (folder / "training_code.py").write_text(NETWORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        module = __import__("training_code")
        torch.manual_seed(0)
        network = module.Network().eval()
        sys.modules.pop("training_code")
    (folder / "training_code.py").unlink()
    wrapped = ns.wrap(network, label_names=NAMES, detector="react")
    return wrapped.fit(some_rows(seed=1)).calibrate(some_rows(seed=2), tpr=0.8)


@pytest.fixture(scope="module")
def logged(wrapped, mlflow, registry):
    """A registered model with one version."""
    with mlflow.start_run():
        return registry.log_model(
            wrapped,
            "tagger",
            input_example=some_rows(3),
            registered_model_name="tagger",
            metadata={"team": "animals"},
        )


def assert_same_verdicts(frame, prediction):
    np.testing.assert_allclose(frame["score"], prediction.assessment.scores, rtol=1e-4)
    np.testing.assert_allclose(frame["p_value"], prediction.assessment.p_values, atol=0.01)
    assert frame["in_distribution"].tolist() == prediction.in_distribution.tolist()
    assert list(map(tuple, frame["predicted"])) == prediction.label_lists()
    probs = pandas.DataFrame(frame["probs"].tolist())
    assert list(probs.columns) == NAMES
    np.testing.assert_allclose(probs, prediction.probs, rtol=1e-4)


def test_a_registered_model_gives_labels_probabilities_and_verdicts(mlflow, wrapped, logged):
    model = mlflow.pyfunc.load_model("models:/tagger/1")
    rows = some_rows(50, seed=3)
    frame = model.predict(rows)
    assert list(frame.columns) == COLUMNS
    assert_same_verdicts(frame, wrapped(rows))
    assert 0 < frame["in_distribution"].sum() < 50


def test_what_mlflow_shows_of_the_model(mlflow, wrapped, logged):
    model = mlflow.pyfunc.load_model(logged.model_uri)
    signature, facts = model.metadata.signature, model.metadata.metadata
    assert [(one.type, one.shape) for one in signature.inputs.inputs] == [("float32", (-1, 5))]
    assert signature.outputs.input_names() == COLUMNS
    np.testing.assert_array_equal(model.input_example, some_rows(3))
    assert facts["team"] == "animals"
    assert facts["nescio"]["detector"] == "react"
    assert facts["nescio"]["threshold"] == wrapped.detector.calibration_.threshold_values
    path = mlflow.artifacts.download_artifacts(logged.model_uri + "/requirements.txt")
    with open(path) as lines:
        needed = [line.partition("==")[0] for line in lines]
    # onnx reads the last layer of the graph, which react needs
    assert needed == ["nescio", "mlflow-skinny", "pandas", "onnxruntime", "onnx"]


def test_load_model_gives_the_wrapped_model_back(registry, wrapped, logged):
    loaded = registry.load_model(logged.model_uri)
    rows = some_rows(20, seed=3)
    assert loaded.label_names == tuple(NAMES)
    assert loaded.detector.calibration_.statement() == wrapped.detector.calibration_.statement()
    scores = loaded.explain(rows).scores
    np.testing.assert_allclose(scores, wrapped.explain(rows).scores, rtol=1e-4)


@pytest.mark.slow
def test_loading_needs_neither_the_training_code_nor_torch(mlflow, wrapped, logged, tmp_path):
    rows = some_rows(20, seed=4)
    np.save(tmp_path / "rows.npy", rows)
    code = (
        "import sys, json, warnings, numpy\n"
        "warnings.simplefilter('ignore')\n"
        "for name in ('torch', 'training_code'): sys.modules[name] = None\n"
        "import mlflow.pyfunc\n"
        f"mlflow.set_tracking_uri({mlflow.get_tracking_uri()!r})\n"
        "model = mlflow.pyfunc.load_model('models:/tagger/1')\n"
        f"frame = model.predict(numpy.load({str(tmp_path / 'rows.npy')!r}))\n"
        "print(json.dumps(frame.to_dict('list')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert_same_verdicts(json.loads(found.stdout.splitlines()[-1]), wrapped(rows))


def test_mlflows_scoring_server_answers(mlflow, wrapped, logged):
    client = pytest.importorskip("starlette.testclient")
    from mlflow.pyfunc import scoring_server

    app = scoring_server.init(mlflow.pyfunc.load_model(logged.model_uri))
    rows = some_rows(4, seed=5)
    answer = client.TestClient(app).post("/invocations", json={"inputs": rows.tolist()})
    assert answer.status_code == 200
    frame = pandas.DataFrame(answer.json()["predictions"])
    assert_same_verdicts(frame, wrapped(rows))


def test_texts_of_any_length(mlflow, registry, monkeypatch, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
        initializer_range=1.0,
        problem_type="multi_label_classification",
    )
    ids = torch.randint(1, 50, (100, 6))
    tokens = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    wrapped = ns.wrap(transformers.BertForSequenceClassification(config)).calibrate(tokens)
    registry.save_model(wrapped, tmp_path / "model", input_example=tokens)
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert [one.shape for one in model.metadata.signature.inputs.inputs] == [(-1, -1), (-1, -1)]
    shorter = {name: part[:5, :4] for name, part in tokens.items()}
    frame = model.predict({name: part.numpy() for name, part in shorter.items()})
    np.testing.assert_allclose(frame["score"], wrapped(shorter).assessment.scores, rtol=1e-4)
    assert set(frame["probs"][0]) == {"0", "1", "2"}  # there are no label names


# --- scikit-learn -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    pytest.importorskip("skops")
    frame = pandas.DataFrame(some_rows(300, seed=6), columns=list("abcde"))
    return frame, (frame[["a", "b", "c"]] > 0).to_numpy().astype(int)


def test_a_data_frame_in_and_out(mlflow, registry, table, tmp_path):
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    frame, labels = table
    model = OneVsRestClassifier(LogisticRegression()).fit(frame[:100], labels[:100])
    wrapped = ns.wrap(model, label_names=NAMES)
    wrapped = wrapped.calibrate(frame[100:], groups="label_count")
    registry.save_model(wrapped, tmp_path / "model", input_example=frame[:2])
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    rows = frame[7:17]
    found = loaded.predict(rows)
    assert list(found.columns) == [*COLUMNS, "group"]
    assert found.index.tolist() == rows.index.tolist()
    assert_same_verdicts(found, wrapped(rows))


def test_texts(mlflow, registry, table, tmp_path):
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline

    words = np.array(["cats purr", "dogs bark", "cows moo", "hens lay"])
    labels = np.random.default_rng(0).integers(0, 2, (200, 4)).astype(bool)
    texts = [" and ".join(words[row]) for row in labels]
    model = make_pipeline(TfidfVectorizer(), OneVsRestClassifier(LogisticRegression()))
    model.fit(texts[:50], labels[:50, :3].astype(int))
    wrapped = ns.wrap(model, label_names=NAMES, detector="max_logit(nonfinite='out')")
    with pytest.warns(ns.errors.TiedScoresWarning):
        wrapped = wrapped.calibrate(texts[50:])
    registry.save_model(wrapped, tmp_path / "model", input_example=texts[:2])
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert_same_verdicts(loaded.predict(texts[:5]), wrapped(texts[:5]))


def test_trees_are_loaded_only_if_the_caller_trusts_them(mlflow, registry, table, tmp_path):
    from sklearn.ensemble import RandomForestClassifier

    frame, labels = table
    model = RandomForestClassifier(3, random_state=0).fit(frame[:200], labels[:200])
    with pytest.warns(ns.errors.TiedScoresWarning):
        wrapped = ns.wrap(model, label_names=NAMES).calibrate(frame[200:])
    path, tree = tmp_path / "model", "sklearn.tree._tree.Tree"
    with pytest.raises(ParameterError, match=r"trusted=\['sklearn.tree._tree.Tree'\]"):
        registry.save_model(wrapped, path, input_example=frame[:2])
    assert not path.exists()
    registry.save_model(wrapped, path, input_example=frame[:2], trusted=[tree])
    assert_same_verdicts(mlflow.pyfunc.load_model(str(path)).predict(frame[:5]), wrapped(frame[:5]))
    with pytest.raises(ParameterError, match="does not trust"):
        registry.load_model(str(path))
    assert len(registry.load_model(str(path), trusted=[tree])(frame[:5])) == 5


# --- what cannot be logged ----------------------------------------------------------------------


def test_what_cannot_be_logged(registry, wrapped, tmp_path):
    path, rows = tmp_path / "model", some_rows(3)
    network = wrapped.runner.model
    refused = [
        (wrapped.detector, ParameterError, "got ReAct: wrap it"),
        (ns.wrap(network), ns.NotCalibratedError, "no detector"),
        (
            ns.wrap(network, detector=ReAct()).fit(some_rows()).calibrate(some_rows()),
            ParameterError,
            "class of your own",
        ),
        (
            ns.wrap(network).calibrate(some_rows(), groups=["day", "night"] * 200),
            ParameterError,
            "groups of your own",
        ),
        (
            ns.wrap(network, detector="lof").fit(some_rows()).calibrate(some_rows()),
            ExportError,
            "searches the training data",
        ),
    ]
    for given, error, message in refused:
        with pytest.raises(error, match=message):
            registry.save_model(given, path, input_example=rows)
        assert not path.exists()
    for example, message in (((rows,), "by name"), (iter(rows), "got"), ({}, "is empty")):
        with pytest.raises(ParameterError, match=message):
            registry.save_model(wrapped, path, input_example=example)
    path.mkdir()
    with pytest.raises(FileError, match="exists already"):
        registry.save_model(wrapped, path, input_example=rows)


def test_a_model_of_someone_else_is_not_loaded(mlflow, registry, tmp_path):
    mlflow.pyfunc.save_model(
        str(tmp_path / "other"), loader_module="json", data_path=__file__, pip_requirements=[]
    )
    with pytest.raises(FileError, match="not a model that nescio"):
        registry.load_model(str(tmp_path / "other"))


def test_importing_nescio_does_not_import_mlflow():
    assert find_spec("mlflow")
    code = "import sys, nescio as ns; ns.wrap, ns.from_pretrained; print('mlflow' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
