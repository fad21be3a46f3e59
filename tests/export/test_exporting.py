"""Classifier and detector in one file, from torch."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import nescio as ns
from fixtures.export import N_LABELS, a_network, metadata, run, some_inputs, some_logits
from fixtures.own_detectors import Neighbours, ReAct, Together
from fixtures.texts import WORDS, word_tokenizer
from nescio.errors import (
    ExportError,
    FileError,
    InputError,
    MissingInputError,
    ParameterError,
    ShapeError,
)
from nescio.export import DetectorHead
from nescio.export.parity import check_parity
from nescio.models.images import Preprocessing

from .test_detector_head import mahalanobis

OUTPUTS = ("logits", "probs", "score", "p_value", "in_distribution")


def test_a_fused_file_gives_what_python_gives(fused):
    inputs = some_inputs(77, seed=6)
    onnx_outputs, wanted = run(fused.path, input=inputs), fused.wrapped(inputs)
    np.testing.assert_allclose(onnx_outputs["logits"], wanted.outputs.logits, atol=1e-5)
    np.testing.assert_allclose(onnx_outputs["probs"], wanted.probs, atol=1e-6)
    np.testing.assert_allclose(onnx_outputs["score"], wanted.assessment.scores, rtol=1e-5)
    assert (onnx_outputs["in_distribution"] == wanted.in_distribution).all()
    assert 0 < np.count_nonzero(~onnx_outputs["in_distribution"]) < 77


def test_what_is_said_of_it(fused):
    exported = fused.exported
    assert exported.outputs == OUTPUTS
    assert exported.inputs == {"input": ("batch", 5)}
    assert (exported.n_samples, exported.opset) == (20, 18)
    assert 0 < exported.differences.score < 1e-5
    assert exported.differences.verdicts == 0
    graph = onnx.load(fused.path)
    onnx.checker.check_model(graph, full_check=True)
    assert not any(node.doc_string or node.metadata_props for node in graph.graph.node)
    types = {value.name: value.type.tensor_type.elem_type for value in graph.graph.output}
    assert types["score"] == types["p_value"] == onnx.TensorProto.DOUBLE
    assert types["in_distribution"] == onnx.TensorProto.BOOL


def test_the_file_says_what_it_is(fused):
    facts = metadata(fused.path)
    calibration = fused.wrapped.detector.calibration_
    assert facts["nescio.detector"] == "joint_energy"
    assert facts["nescio.version"] == ns.__version__
    assert json.loads(facts["nescio.scores_from"]) == ["logits"]
    assert facts["nescio.groups"] == "label_count"
    assert json.loads(facts["nescio.threshold"]) == calibration.threshold_values
    assert json.loads(facts["nescio.label_names"]) == fused.names
    assert json.loads(facts["nescio.params"]) == {"nonfinite": "raise", "tpr": 0.95}
    assert (float(facts["nescio.tpr"]), int(facts["nescio.n_calibration"])) == (
        0.9,
        calibration.n_samples,
    )
    assert "nescio.preprocessing" not in facts


def test_it_runs_where_there_is_neither_torch_nor_nescio(fused, tmp_path):
    inputs = some_inputs(40, seed=7)
    np.save(tmp_path / "inputs.npy", inputs)
    code = f"""
import sys
for name in ("torch", "nescio", "sklearn", "scipy", "onnx", "onnxscript"):
    sys.modules[name] = None  # importing it raises ImportError
import json
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession({str(fused.path)!r})
inputs = np.load({str(tmp_path / "inputs.npy")!r})
names = ["score", "p_value", "in_distribution"]
score, p_value, inside = session.run(names, {{"input": inputs}})
about = session.get_modelmeta().custom_metadata_map
labels = json.loads(about["nescio.label_names"])
try:
    import nescio
except ImportError:
    print(json.dumps([score.tolist(), p_value.tolist(), inside.tolist(), labels]))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    score, p_value, inside, labels = json.loads(done.stdout)
    wanted = fused.wrapped(inputs).assessment
    np.testing.assert_allclose(score, wanted.scores, rtol=1e-5)
    np.testing.assert_allclose(p_value, wanted.p_values, atol=0.02)
    assert inside == wanted.in_distribution.tolist()
    assert False in inside
    assert labels == fused.names


def test_the_same_input_gives_the_same_bytes(fused, tmp_path):
    again = tmp_path / "again.onnx"
    network = fused.wrapped.runner.model
    before = [parameter.clone() for parameter in network.parameters()]
    network.train()
    ns.export_onnx(fused.wrapped, again, samples=some_inputs(20, seed=2))
    assert again.read_bytes() == fused.path.read_bytes()
    # The model stays as it was.
    assert network.training
    assert all(map(torch.equal, before, network.parameters()))
    network.eval()


def test_features_come_along_if_the_detector_reads_them(tmp_path):
    path = tmp_path / "fused.onnx"
    inputs = some_inputs(400)
    wrapped = ns.wrap(a_network(), features="1")
    outputs = wrapped.outputs(inputs)
    labels = (outputs.logits > 0.2).astype(int)
    labels[0] = 1
    wrapped = ns.wrap(wrapped, detector="mahalanobis").fit(inputs[:200], labels[:200])
    wrapped = wrapped.calibrate(inputs[200:])
    exported = ns.export_onnx(wrapped, path, samples=torch.from_numpy(inputs[:30]))
    assert exported.outputs == (*OUTPUTS, "features")
    onnx_outputs, wanted = run(path, input=inputs), wrapped(inputs)
    np.testing.assert_allclose(onnx_outputs["features"], outputs.features, atol=1e-5)
    np.testing.assert_allclose(
        onnx_outputs["score"], wanted.assessment.scores, rtol=1e-4, atol=1e-6
    )
    # So that the file can be wrapped as a model, with this detector or another.
    again = ns.wrap(path, features="features", detector=wrapped.detector)(inputs).assessment
    np.testing.assert_allclose(again.scores, wanted.assessment.scores, rtol=1e-4, atol=1e-6)


def test_a_detector_that_reads_features_and_the_last_layer(tmp_path):
    path, inputs = tmp_path / "fused.onnx", some_inputs(400)
    # Of several layers, the one that the detector scores is exported.
    several = ns.wrap(a_network(), features="input,penultimate", detector="react")
    several = several.fit(inputs[:200]).calibrate(inputs[200:], tpr=0.9)
    ns.export_onnx(several, tmp_path / "several.onnx", samples=inputs[:30])
    arrays = run(tmp_path / "several.onnx", input=inputs)
    np.testing.assert_allclose(arrays["score"], several(inputs).assessment.scores, rtol=1e-4)
    assert arrays["penultimate"].shape == (400, 16)
    wrapped = ns.wrap(a_network(), features="penultimate", detector=ReAct())
    wrapped = wrapped.fit(inputs[:200]).calibrate(inputs[200:], tpr=0.9)
    exported = ns.export_onnx(wrapped, path, samples=inputs[:30])
    assert exported.outputs == (*OUTPUTS, "features")
    onnx_outputs, wanted = run(path, input=inputs), wrapped(inputs)
    np.testing.assert_allclose(onnx_outputs["score"], wanted.assessment.scores, rtol=1e-4)
    # Features of another layer: there is no last layer to read.
    other = ns.wrap(a_network(), features="0", detector=wrapped.detector)
    with pytest.raises(MissingInputError, match="my_react reads the classifier's last layer"):
        ns.export_onnx(other, tmp_path / "other.onnx", samples=inputs[:30])
    with pytest.raises(ExportError, match="neighbours cannot be exported: its _score takes NumPy"):
        DetectorHead(Neighbours())
    with pytest.raises(ExportError, match="together cannot be exported: its _score takes NumPy"):
        DetectorHead(Together())


def test_torchvision(tmp_path):
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    images = torch.randn(40, 3, 32, 32)
    wrapped = ns.wrap(models.resnet18(num_classes=4)).calibrate(images, tpr=0.9)
    path = tmp_path / "resnet.onnx"
    with pytest.raises(ParameterError, match=r"3, 64, 64\), but the model takes \(3, 3, 32, 32\)"):
        ns.export_onnx(ns.wrap(wrapped, preprocessing=Preprocessing(64)), path, samples=images[:3])
    preprocessing = Preprocessing(32, mean=(0, 0, 0))
    exported = ns.export_onnx(ns.wrap(wrapped, preprocessing=preprocessing), path)
    assert exported.inputs == {"x": ("batch", 3, 32, 32)}
    stored = json.loads(metadata(path)["nescio.preprocessing"])
    assert Preprocessing.from_dict(stored) == preprocessing
    onnx_outputs, wanted = run(path, x=images.numpy()), wrapped(images)
    np.testing.assert_allclose(onnx_outputs["score"], wanted.assessment.scores, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_transformers_take_texts_of_any_length(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=40, problem_type="multi_label_classification",
        id2label=dict(enumerate("abc")), label2id={name: index for index, name in enumerate("abc")},
    )  # fmt: skip
    bert = transformers.BertForSequenceClassification(config)
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, size)) for size in draw.integers(1, 12, 60)]
    wrapped = ns.wrap(bert, tokenizer=word_tokenizer(max_tokens=30)).calibrate(texts, tpr=0.9)
    path = tmp_path / "bert.onnx"
    with pytest.raises(ExportError, match="Pass a few real inputs"):
        ns.export_onnx(wrapped, path)
    exported = ns.export_onnx(wrapped, path, samples=texts[:12])
    assert exported.n_samples == 24  # long ones and short ones
    # The file has the tokenizer, with its maximum length.
    again = ns.wrap(path, detector=wrapped.detector)
    assert again.runner.tokenizer.json() == wrapped.runner.tokenizer.json()
    reloaded, wanted = again(texts), wrapped(texts)
    np.testing.assert_allclose(reloaded.outputs.logits, wanted.outputs.logits, atol=1e-5)
    assert set(exported.inputs.values()) == {("batch", "length")}
    assert json.loads(metadata(path)["nescio.label_names"]) == ["a", "b", "c"]
    for n, length in ((1, 2), (3, 29)):
        ids = np.random.default_rng(n).integers(0, 50, (n, length))
        feed = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        onnx_outputs, wanted = run(path, **feed), wrapped(feed)
        np.testing.assert_allclose(onnx_outputs["logits"], wanted.outputs.logits, atol=1e-5)
        np.testing.assert_allclose(onnx_outputs["score"], wanted.assessment.scores, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_a_tokenizer_without_a_maximum_length_is_refused(tmp_path):
    """A service could not use the file."""

    class Tagger(nn.Module):
        def forward(self, input_ids, attention_mask):
            return some_embeddings(input_ids).mul(attention_mask[..., None]).sum(1)

    torch.manual_seed(0)
    some_embeddings = nn.Embedding(50, 4)
    texts = [" ".join(WORDS[i % 5 :]) for i in range(60)]
    wrapped = ns.wrap(Tagger(), tokenizer=word_tokenizer(), detector="joint_energy")
    wrapped = wrapped.calibrate(texts, tpr=0.9, self_check=False)
    with pytest.raises(ParameterError, match=r"no maximum length.*enable_truncation\(256\)"):
        ns.export_onnx(wrapped, tmp_path / "tagger.onnx", samples=texts[:12])


def test_a_torch_model_that_gives_probabilities(tmp_path):
    """Also where onnxruntime's own sigmoid is 0 and where float32 has no more digits."""
    network = nn.Sequential(a_network(), nn.Sigmoid())
    wrapped = ns.wrap(network, from_probs=True).calibrate(some_inputs() * 3, tpr=0.9)
    path = tmp_path / "fused.onnx"
    ns.export_onnx(wrapped, path, samples=some_inputs(30) * 30)
    inputs = some_inputs(30, seed=5) * 30
    onnx_outputs, wanted = run(path, input=inputs), wrapped(inputs)
    assert wanted.outputs.logits.min() < -18
    np.testing.assert_allclose(onnx_outputs["probs"], wanted.probs, rtol=1e-4)
    low = wanted.outputs.logits < 0
    np.testing.assert_allclose(onnx_outputs["logits"][low], wanted.outputs.logits[low], rtol=1e-4)


class _Counting(nn.Module):
    """Keeps something from one call to the next, which no graph can follow."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, N_LABELS)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


def test_a_graph_that_does_something_else_is_refused_and_the_old_file_stays(tmp_path):
    path = tmp_path / "fused.onnx"
    path.write_bytes(b"the old file")
    detector = ns.JointEnergy().calibrate(some_logits())
    wrapped = ns.wrap(_Counting(), detector=detector)
    with pytest.raises(ExportError, match=r"logits of sample \d+ is .* in the graph and .* Python"):
        ns.export_onnx(wrapped, path, samples=some_inputs(10), force=True)
    assert path.read_bytes() == b"the old file"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["score", "p_value", "in_distribution"])
def test_what_is_off_is_refused(name):
    detector = ns.JointEnergy().calibrate(some_logits())
    rows = some_logits(20, seed=2)
    outputs = DetectorHead(detector)(torch.from_numpy(rows))
    tensors = {field: tensor.numpy() for field, tensor in outputs._asdict().items()}
    check_parity(tensors, ns.Outputs(rows), detector, tolerance=1e-4)
    off = ~tensors[name] if name == "in_distribution" else tensors[name] + 0.01
    with pytest.raises(ExportError, match=f"{name} of sample"):
        check_parity({**tensors, name: off}, ns.Outputs(rows), detector, tolerance=1e-4)


def test_what_torch_cannot_trace(tmp_path):
    class Branching(nn.Module):
        def forward(self, x):
            return x[:, [0, 1, 2, 3, 4, 0]] if x.sum() > 0 else -x[:, [0, 1, 2, 3, 4, 0]]

    wrapped = ns.wrap(Branching(), detector=ns.JointEnergy().calibrate(some_logits()))
    with pytest.raises(ExportError, match=r"torch cannot export the model \(Branching\)"):
        ns.export_onnx(wrapped, tmp_path / "fused.onnx", samples=some_inputs(4))
    assert not list(tmp_path.iterdir())


def test_refusals_come_before_the_work(fused, tmp_path):
    path, detector = tmp_path / "fused.onnx", ns.JointEnergy().calibrate(some_logits())
    by_count = mahalanobis("max", "label_count")[0]
    with pytest.raises(FileError, match="exists already"):
        ns.export_onnx(fused.wrapped, fused.path)
    with pytest.raises(ParameterError, match=r"must end in \.onnx, got '.*fused'"):
        ns.export_onnx(fused.wrapped, path.with_suffix(""), input_shape=(5,))
    with pytest.raises(ParameterError, match="no detector"):
        ns.export_onnx(ns.wrap(a_network()), path)
    with pytest.raises(ExportError, match="does not say what it takes"):
        ns.export_onnx(fused.wrapped, path)
    with pytest.raises(ParameterError, match="tolerance"):
        ns.export_onnx(fused.wrapped, path, tolerance=0.0, input_shape=(5,))
    with pytest.raises(ShapeError, match="made for 6 columns of logits, but the model returns 3"):
        ns.export_onnx(ns.wrap(nn.Linear(5, 3)), path, detector=detector, input_shape=(5,))
    with pytest.raises(ExportError, match="how many labels"):
        ns.export_onnx(None, path, detector=by_count)
    images = ns.wrap(fused.wrapped, preprocessing=Preprocessing(32))
    with pytest.raises(ParameterError, match=r"3, 32, 32\), but the model takes \(12, 5\)"):
        ns.export_onnx(images, path, input_shape=(5,))
    with pytest.raises(InputError, match=r"of the shape 1,9: .*one input, without the batch"):
        ns.export_onnx(fused.wrapped, path, input_shape=(1, 9))
    with pytest.raises(InputError, match=r"of the shape 1,5: .*one input, without the batch"):
        ns.export_onnx(ns.wrap(nn.Linear(5, 6)), path, detector=detector, input_shape=(1, 5))
    with pytest.raises(ParameterError, match="pass None as the model, and detector="):
        ns.export_onnx(detector, path)
    with pytest.raises(ParameterError, match=r"no detector: call calibrate\(held_out\) first"):
        ns.export_onnx(fused.wrapped.runner.model, path, input_shape=(5,))
    assert not list(tmp_path.iterdir())


def test_what_was_said_to_be_logits_may_look_like_probabilities(tmp_path):
    network = nn.Linear(5, 5, bias=False)
    nn.init.eye_(network.weight)
    wrapped = ns.wrap(network, detector="joint_energy", from_probs=False)
    wrapped = wrapped.calibrate(some_inputs(), self_check=False)
    samples = np.random.default_rng(0).uniform(0.1, 0.9, (40, 5)).astype(np.float32)
    assert ns.export_onnx(wrapped, tmp_path / "model.onnx", samples=samples).n_samples == 40


def test_16_bits(tmp_path):
    detector = ns.JointEnergy().calibrate(some_logits())
    settings = {"detector": detector, "samples": some_inputs(20)}
    path = tmp_path / "fused.onnx"
    with pytest.raises(ExportError, match=r"bfloat16.*\.float\(\)"):
        ns.export_onnx(a_network().bfloat16(), path, **settings)
    # As the message about its rounding says.
    exported = ns.export_onnx(a_network().half(), path, tolerance=0.01, **settings)
    assert exported.differences.logits > 1e-4
    assert run(path, input=some_inputs(3).astype(np.float16))["logits"].dtype == np.float32


def test_a_model_above_two_gigabytes_is_refused(tmp_path):
    with torch.device("meta"):
        large = nn.Linear(5, 150_000_000)
    from nescio.export.graphs import classifier_graph
    from nescio.export.parity import Samples

    samples = Samples({"input": some_inputs(2)}, by_name=False)
    with pytest.raises(ExportError, match=r"3\.6 GB"):
        classifier_graph(ns.wrap(large).runner, samples, ("logits",))
