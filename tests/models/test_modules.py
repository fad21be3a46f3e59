"""What `module` gives is traced by torch.export and torch.onnx.export."""

import copy

import numpy as np
import pytest

import nescio as ns

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")
timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def small_conv():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(5),
    )
    pixels = torch.randn(3, 3, 8, 8)
    model(pixels)
    return model, pixels, "1", 4


def resnet():
    pixels = torch.randn(3, 3, 32, 32)
    return torchvision.models.resnet18(num_classes=5), pixels, "avgpool", 512


def timm_vit():
    model = timm.create_model("test_vit", num_classes=5)
    return model, torch.randn(3, 3, 160, 160), "head:input", 64


def bert():
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=5,
        problem_type="multi_label_classification",
    )
    tokens = {
        "token_type_ids": torch.zeros(3, 7, dtype=torch.long),
        "input_ids": torch.randint(1, 50, (3, 7)),
        "attention_mask": torch.ones(3, 7, dtype=torch.long),
    }
    return transformers.BertForSequenceClassification(config), tokens, "dropout", 16


def prepared(make, *, with_features):
    """A wrapped model, its example and the positional inputs of its module."""
    torch.manual_seed(0)
    model, example, features, width = make()
    wrapped = ns.wrap(model.train(), features=features if with_features else None)
    names = wrapped.runner.input_names(example)
    inputs = tuple(example[name] for name in names) if names else (example,)
    return wrapped, example, inputs, width


@pytest.mark.parametrize("make", [resnet, timm_vit, bert], ids=lambda m: m.__name__)
def test_the_module_gives_what_the_model_gives(make):
    wrapped, example, inputs, width = prepared(make, with_features=True)
    module = wrapped.runner.module(example)
    outputs = wrapped.outputs(example)
    for each in (module, copy.deepcopy(module)):
        with torch.no_grad():
            logits, features = each(*inputs)
        np.testing.assert_array_equal(logits, outputs.logits)
        np.testing.assert_array_equal(features, outputs.features)
    assert features.shape == (3, width)
    # A copy in eval mode; the model itself is still in training.
    assert not any(part.training for part in module.modules())
    assert wrapped.runner.model.training
    assert not any(part._forward_hooks for part in wrapped.runner.model.modules())


def test_without_features_there_are_none():
    wrapped, _, inputs, _ = prepared(bert, with_features=False)
    with torch.no_grad():
        (logits,) = wrapped.runner.module()(*inputs)  # the usual inputs, in the usual order
    np.testing.assert_array_equal(
        logits, wrapped.outputs(dict(zip(wrapped.runner.input_names(), inputs, strict=True))).logits
    )


@pytest.mark.filterwarnings("ignore")  # of torch's own exporter
def test_torch_export_traces_it():
    wrapped, _, (pixels,), _ = prepared(small_conv, with_features=True)
    module = wrapped.runner.module()
    rows = ({0: torch.export.Dim("rows", min=1, max=64)},)
    program = torch.export.export(module, (pixels,), dynamic_shapes=(rows,))
    more = torch.cat([pixels, pixels])
    with torch.no_grad():
        expected, found = module(more), program.module()(more)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


@pytest.mark.filterwarnings("ignore")  # of torch's own exporter
def test_the_onnx_exporter_traces_it(tmp_path):
    wrapped, example, inputs, _ = prepared(bert, with_features=True)
    module = wrapped.runner.module(example)
    rows = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
    torch.onnx.export(
        module,
        inputs,
        tmp_path / "model.onnx",
        dynamo=True,
        dynamic_shapes=(rows,),
        output_names=["logits", "features"],
        verbose=False,
    )
    graph = ns.wrap(tmp_path / "model.onnx", features="features")
    more = tuple(torch.cat([part, part]) for part in inputs)
    found = graph.outputs(more, batch_size=4)
    with torch.no_grad():
        logits, features = module(*more)
    np.testing.assert_allclose(found.logits, logits, atol=1e-5)
    np.testing.assert_allclose(found.features, features, atol=1e-5)
