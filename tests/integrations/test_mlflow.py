"""Models in a real MLflow, whose store is a folder.

All in one file, and imported by a fixture: MLflow takes seconds to import.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from fixtures.offline import run_offline
from fixtures.texts import N_TOKENS, WORDS, word_tokenizer
from nescio.errors import ExportError, FileError, ParameterError

pandas = pytest.importorskip("pandas")
torch = pytest.importorskip("torch")
for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package)

NAMES = ["cat", "dog", "cow"]
MLFLOWS_OWN = "ignore:Operation with range is deprecated"
COLUMNS = ["predicted", "probs", "score", "p_value", "in_distribution"]
NETWORK = """
import torch

class Network(torch.nn.Module):
    def __init__(self, n_tokens):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(n_tokens, 8), torch.nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        return self.head((self.table(input_ids) * attention_mask[:, :, None]).sum(1))
"""


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    """MLflow with a folder as its store."""
    package = pytest.importorskip("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        before = package.get_tracking_uri()
        package.set_tracking_uri((tmp_path_factory.mktemp("mlflow") / "store").as_uri())
        yield package
        package.set_tracking_uri(before)


@pytest.fixture(scope="module")
def registry(mlflow):
    return pytest.importorskip("nescio.integrations.mlflow")


def some_texts(n=400, seed=0):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(6, 14))) for _ in range(n)]


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """A network of a module that is gone when the model is loaded. One export for all tests."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "training_code.py").write_text(NETWORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        module = __import__("training_code")
        torch.manual_seed(0)
        network = module.Network(N_TOKENS).eval()
        sys.modules.pop("training_code")
    (folder / "training_code.py").unlink()
    wrapped = ns.wrap(
        network, label_names=NAMES, detector="react", tokenizer=word_tokenizer(max_tokens=64)
    )
    return wrapped.fit(some_texts(seed=1)).calibrate(some_texts(seed=2), tpr=0.8)


@pytest.fixture(scope="module")
def logged(wrapped, mlflow, registry):
    """A registered model with one version."""
    with mlflow.start_run():
        return registry.log_model(
            wrapped,
            "tagger",
            input_example=some_texts(3),
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


def test_a_registered_model_gives_labels_probabilities_and_verdicts(
    mlflow, registry, wrapped, logged
):
    model = mlflow.pyfunc.load_model("models:/tagger/1")
    texts = some_texts(50, seed=3)
    frame = model.predict(texts)
    assert list(frame.columns) == COLUMNS
    assert_same_verdicts(frame, wrapped(texts))
    assert 0 < frame["in_distribution"].sum() < 50
    again = registry.load_model(logged.model_uri)  # the wrapped model itself
    assert again.label_names == tuple(NAMES)
    assert again.detector.calibration_.statement() == wrapped.detector.calibration_.statement()
    assert_same_verdicts(frame, again(texts))


def test_what_mlflow_shows_of_the_model(mlflow, wrapped, logged):
    model = mlflow.pyfunc.load_model(logged.model_uri)
    signature, facts = model.metadata.signature, model.metadata.metadata
    assert [str(column.type) for column in signature.inputs.inputs] == ["DataType.string"]
    assert signature.outputs.input_names() == COLUMNS
    assert model.input_example == some_texts(3)
    assert facts["team"] == "animals"
    assert facts["nescio"]["detector"] == "react"
    assert facts["nescio"]["threshold"] == wrapped.detector.calibration_.threshold_values
    folder = Path(mlflow.artifacts.download_artifacts(logged.model_uri))
    lines = (folder / "requirements.txt").read_text().splitlines()
    needed = [line.partition("==")[0] for line in lines]
    # onnx reads the last layer of the graph, which react needs
    assert needed == ["nescio", "mlflow-skinny", "pandas", "onnxruntime", "onnx", "tokenizers"]


@pytest.mark.slow
def test_loading_needs_neither_the_training_code_nor_torch_nor_a_network(mlflow, wrapped, logged):
    texts = some_texts(20, seed=4)
    line = run_offline(
        "import json, mlflow.pyfunc, nescio.integrations.mlflow\n"
        f"mlflow.set_tracking_uri({mlflow.get_tracking_uri()!r})\n"
        "model = mlflow.pyfunc.load_model('models:/tagger/1')\n"
        f"frame = model.predict({texts!r})\n"
        f"nescio.integrations.mlflow.load_model('models:/tagger/1')({texts!r})\n"
        "print(json.dumps(frame.to_dict('list')))",
        without=("torch", "transformers", "timm", "huggingface_hub", "training_code"),
    )
    assert_same_verdicts(pandas.DataFrame(json.loads(line)), wrapped(texts))


def test_mlflows_scoring_server_answers(mlflow, wrapped, logged):
    client = pytest.importorskip("starlette.testclient")
    from mlflow.pyfunc import scoring_server

    app = scoring_server.init(mlflow.pyfunc.load_model(logged.model_uri))
    texts = some_texts(4, seed=5)
    answer = client.TestClient(app).post("/invocations", json={"inputs": texts})
    assert answer.status_code == 200
    assert_same_verdicts(pandas.DataFrame(answer.json()["predictions"]), wrapped(texts))


def test_tokens_of_any_length(mlflow, registry, wrapped, logged):
    loaded, texts = registry.load_model(logged.model_uri), some_texts(3)
    tokens = loaded.runner.tokenizer(texts).arrays
    example = registry._as_example({**tokens, "labels": np.ones(3)}, loaded)
    signature = registry._signature(loaded, example)
    expected = [("input_ids", (-1, -1)), ("attention_mask", (-1, -1))]
    assert [(tensor.name, tensor.shape) for tensor in signature.inputs.inputs] == expected
    np.testing.assert_allclose(loaded.assess(tokens).scores, wrapped.assess(texts).scores, 1e-4)


# --- scikit-learn -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    pytest.importorskip("skops")
    frame = pandas.DataFrame(np.random.default_rng(6).normal(size=(600, 5)), columns=list("abcde"))
    return frame, (frame[["a", "b", "c"]] > 0).to_numpy().astype(int)


@pytest.mark.filterwarnings(MLFLOWS_OWN)
def test_a_data_frame_in_and_out(mlflow, registry, table, tmp_path):
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    frame, labels = table
    model = OneVsRestClassifier(LogisticRegression()).fit(frame[:100], labels[:100])
    wrapped = ns.wrap(model, label_names=NAMES, detector="joint_energy")
    wrapped = wrapped.calibrate(frame[100:], groups="label_count")
    registry.save_model(wrapped, tmp_path / "model", input_example=frame[:2])
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    rows = frame[7:17]
    verdicts = loaded.predict(rows)
    assert list(verdicts.columns) == [*COLUMNS, "group"]
    assert verdicts.index.tolist() == rows.index.tolist()
    assert_same_verdicts(verdicts, wrapped(rows))


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
    wrapped = ns.wrap(model, label_names=NAMES, detector="max_logit")
    with pytest.warns(ns.errors.NescioWarning):  # few different logits
        wrapped = wrapped.calibrate(texts[50:])
    some, column = texts[:5], pandas.Series(texts[:5], name="text")
    registry.save_model(wrapped, tmp_path / "model", input_example=column)
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    for inputs in (some, np.array(some), column, column.to_frame()):
        assert_same_verdicts(loaded.predict(inputs), wrapped(some))
    with pytest.raises(ns.errors.InputError, match="1 of 1 inputs are not texts: rows 0"):
        registry._Verdicts(wrapped).predict(pandas.DataFrame({"text": [None]}))


@pytest.mark.filterwarnings(MLFLOWS_OWN)
def test_trees_are_loaded_only_if_the_caller_trusts_them(mlflow, registry, table, tmp_path):
    from sklearn.ensemble import RandomForestClassifier

    frame, labels = table
    model = RandomForestClassifier(3, random_state=0).fit(frame[:200], labels[:200])
    with pytest.warns(ns.errors.NescioWarning):  # few different logits
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
    path, texts = tmp_path / "model", some_texts(3)
    learned, held_out = some_texts(seed=1), some_texts(seed=2)
    model = wrapped.runner
    refused = [
        (wrapped.detector, ParameterError, "this ReAct .* is no classifier"),
        (ns.wrap(model), ns.NotCalibratedError, "no calibrated detector"),
        (
            ns.wrap(model).calibrate(held_out, groups=["day", "night"] * 200),
            ExportError,
            "by your own groups",
        ),
        (
            ns.wrap(model, detector="lof").fit(learned).calibrate(held_out),
            ExportError,
            "searches the training data",
        ),
    ]
    for unsuitable, error, message in refused:
        with pytest.raises(error, match=message):
            registry.save_model(unsuitable, path, input_example=texts)
        assert not path.exists()
    with pytest.raises(FileError, match="MLflow: cannot save it: 'list' object is not a mapping"):
        registry.save_model(wrapped, path, input_example=texts, metadata=[1])
    for example, message in (((texts,), "got tuple"), (iter(texts), "got"), ({}, "no rows")):
        with pytest.raises(ParameterError, match=message):
            registry.save_model(wrapped, path, input_example=example)
    path.mkdir()
    with pytest.raises(FileError, match="exists already"):
        registry.save_model(wrapped, path, input_example=texts)


def test_a_model_of_someone_else_is_not_loaded(mlflow, registry, tmp_path):
    mlflow.pyfunc.save_model(
        str(tmp_path / "other"), loader_module="json", data_path=__file__, pip_requirements=[]
    )
    with pytest.raises(FileError, match="not a model that nescio"):
        registry.load_model(str(tmp_path / "other"))
