"""ONNX in, ONNX out: the detector is put behind a classifier's own graph."""

import numpy as np
import onnx
import onnxruntime
import pytest

import nescio as ns
from fixtures.export import classifier, metadata, run, some_inputs, some_logits

pytestmark = pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")


def agrees(path, wrapped, inputs, name):
    onnx_outputs, wanted = run(path, **{name: inputs}), wrapped(inputs)
    np.testing.assert_allclose(onnx_outputs["logits"], wanted.outputs.logits, atol=1e-4)
    np.testing.assert_allclose(onnx_outputs["score"], wanted.assessment.scores, rtol=1e-4)
    assert (onnx_outputs["in_distribution"] == wanted.in_distribution).mean() > 0.98
    return onnx_outputs


def test_names_that_clash_and_a_fixed_batch(tmp_path):
    wrapped = ns.wrap(classifier(tmp_path / "model.onnx", batch=4), output="in_distribution")
    wrapped = wrapped.calibrate(some_inputs(), tpr=0.9)
    path = tmp_path / "fused.onnx"
    exported = ns.export_onnx(wrapped, path, samples=some_inputs(10))
    assert exported.n_samples == 12
    # Only the input that bears the name of an output has to give way.
    assert exported.inputs == {"input_score": (4, 5)}
    assert exported.outputs == ("logits", "probs", "score", "p_value", "in_distribution")
    session = onnxruntime.InferenceSession(path)
    assert [output.shape[0] for output in session.get_outputs()] == [4] * 5
    agrees(path, wrapped, some_inputs(4, seed=3), "input_score")
    fused = onnx.load(path)
    onnx.checker.check_model(fused, full_check=True)
    assert not {"Relu", "Neg"} & {
        node.op_type for node in fused.graph.node if not node.name.startswith("nescio")
    }
    facts = metadata(path)
    assert facts["author"] == "someone"
    assert facts["nescio.threshold"] != "an old one"


def test_an_old_file_of_probabilities(tmp_path, caplog):
    model = classifier(tmp_path / "m.onnx", opset=13, probabilities=True, old=True, input_name="x")
    wrapped = ns.wrap(model, output="logits", from_probs=True).calibrate(some_inputs(), tpr=0.9)
    path = tmp_path / "fused.onnx"
    exported = ns.export_onnx(wrapped, path)
    assert exported.opset == 18
    assert not [
        r for r in caplog.records if r.levelno >= 30
    ]  # what the converter says about its ways is of no use
    assert list(exported.inputs) == ["x"]
    agrees(path, wrapped, some_inputs(50, seed=3), "x")


def test_feature_maps_are_averaged_and_a_newer_opset_stays(tmp_path):
    model = classifier(tmp_path / "model.onnx", opset=20, maps=True, input_name="x")
    wrapped = ns.wrap(model, output="in_distribution", features="maps")
    inputs = some_inputs()
    outputs = wrapped.outputs(inputs)
    labels = (outputs.features > 0.5).astype(int)
    detector = ns.Mahalanobis().fit(outputs.features[:150], labels[:150])
    wrapped = ns.wrap(wrapped, detector=detector).calibrate(inputs[150:], tpr=0.9)
    path = tmp_path / "fused.onnx"
    exported = ns.export_onnx(wrapped, path, samples=inputs[:20])
    assert exported.opset == 20
    onnx_outputs = agrees(path, wrapped, inputs, "x")
    np.testing.assert_allclose(onnx_outputs["features"], outputs.features, atol=1e-5)


def test_a_combination_that_reads_two_layers(tmp_path):
    model = classifier(tmp_path / "model.onnx", maps=True, input_name="x")
    parts = ["knn(layer=maps)", "knn(layer=input)"]
    wrapped = ns.wrap(model, output="in_distribution", detector=ns.Combined(parts))
    inputs = some_inputs(600)
    wrapped = wrapped.fit(inputs[:200]).calibrate(inputs[200:], tpr=0.9)
    path = tmp_path / "fused.onnx"
    exported = ns.export_onnx(wrapped, path, samples=inputs[:20])
    assert exported.outputs[5:] == ("maps",)  # whoever runs the graph has its input
    onnx_outputs = agrees(path, wrapped, inputs, "x")
    np.testing.assert_allclose(onnx_outputs["maps"], wrapped.outputs(inputs).get("maps"), atol=1e-5)


@pytest.mark.parametrize("layer", ["probs", "input"])
def test_a_layer_that_is_not_an_output_of_the_file(layer, tmp_path):
    inputs = some_inputs()
    model = classifier(tmp_path / "model.onnx", input_name="x")
    wrapped = ns.wrap(model, output="in_distribution", features=layer, detector="mahalanobis")
    wrapped = wrapped.fit(inputs[:150], some_logits(150) > 0).calibrate(inputs[150:], tpr=0.9)
    path = tmp_path / "fused.onnx"
    ns.export_onnx(wrapped, path, samples=inputs[:20])
    onnx_outputs = agrees(path, wrapped, inputs, "x")
    np.testing.assert_allclose(
        onnx_outputs["features"], wrapped.outputs(inputs).features, atol=1e-5
    )


@pytest.mark.parametrize("features", ["auto,input", "input"])
@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 8)])
def test_the_input_of_images_and_of_signals(shape, features, tmp_path):
    """Of maps, the detector reads mean and contrast; of anything else, every value."""
    helper, array, kind = onnx.helper, onnx.numpy_helper.from_array, onnx.TensorProto.FLOAT
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(np.prod(shape), 9)), "v": rng.normal(size=(9, 4))}
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["inner"]),
        helper.make_node("Relu", ["inner"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "v"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["N", *shape])],
        [helper.make_tensor_value_info("logits", kind, ["N", 4])],
        [array(value.astype("f4"), name) for name, value in weights.items()],
    )
    model = tmp_path / "model.onnx"
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), model)
    inputs = rng.normal(size=(700, *shape)).astype("f4")
    detector = "auto" if "auto" in features else "mahalanobis"
    wrapped = ns.wrap(model, features=features, detector=detector)
    labels = (wrapped.outputs(inputs).logits > 0).astype(int)
    wrapped = wrapped.fit(inputs[:200], labels[:200]).calibrate(inputs[200:], self_check=False)
    layer = features.rpartition(",")[2] if "auto" in features else "features"
    assert wrapped.detector.n_columns_[layer] == (6 if len(shape) == 3 else 24)
    path = tmp_path / "fused.onnx"
    ns.export_onnx(wrapped, path, samples=inputs[:20])
    agrees(path, wrapped, inputs * 0.9, "x")


def test_a_fused_file_gets_another_detector(fused, tmp_path):
    wrapped = ns.wrap(fused.path, detector="max_logit").calibrate(some_inputs(), tpr=0.8)
    path = tmp_path / "again.onnx"
    ns.export_onnx(wrapped, path)
    agrees(path, wrapped, some_inputs(50, seed=3), "input")
    assert metadata(path)["nescio.detector"] == "max_logit"
    # The first detector's nodes are gone, but for the one that gives the logits.
    assert path.stat().st_size < 1.6 * fused.path.stat().st_size


def test_scikit_learn_through_skl2onnx(tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    inputs = some_inputs()
    trained = OneVsRestClassifier(LogisticRegression()).fit(inputs, inputs > 0.3)
    converted = skl2onnx.to_onnx(
        trained, inputs[:1], options={id(trained): {"zipmap": False}}, target_opset=18
    )
    model = tmp_path / "model.onnx"
    onnx.save(converted, model)
    wrapped = ns.wrap(model, output="probabilities", from_probs=True).calibrate(inputs, tpr=0.9)
    path = tmp_path / "fused.onnx"
    ns.export_onnx(wrapped, path, samples=inputs[:20])
    agrees(path, wrapped, some_inputs(50, seed=3), "X")
