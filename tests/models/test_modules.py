"""What `module` gives is what the model gives. The tests of export trace it."""

import copy

import numpy as np
import pytest

import nescio as ns

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")
timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")


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


@pytest.mark.parametrize("make", [resnet, timm_vit, bert], ids=lambda m: m.__name__)
def test_the_module_gives_what_the_model_gives(make):
    torch.manual_seed(0)
    model, example, layer, width = make()
    wrapped = ns.wrap(model.train(), features=layer)
    names = wrapped.runner.input_names(example)
    inputs = tuple(example[name] for name in names) if names else (example,)
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
