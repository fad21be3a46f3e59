import copy

import numpy as np
import pytest

import nescio as ns
from nescio.errors import InputError, ParameterError, ShapeError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MULTI = "multi_label_classification"
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_labels": 4,
}


def bert(problem_type=MULTI, **config):
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=50, **SIZES, problem_type=problem_type, **config)
    return transformers.BertForSequenceClassification(config)


def vit(problem_type=MULTI, **config):
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=16, patch_size=8, **SIZES, problem_type=problem_type, **config
    )
    return transformers.ViTForImageClassification(config)


@pytest.fixture
def tokens():
    """What a tokenizer gives, padded."""
    draw = torch.Generator().manual_seed(0)
    mask = torch.ones(6, 7, dtype=torch.long)
    mask[3:, 5:] = 0
    return transformers.BatchEncoding(
        {
            "input_ids": torch.randint(1, 50, (6, 7), generator=draw),
            "token_type_ids": torch.zeros(6, 7, dtype=torch.long),
            "attention_mask": mask,
        }
    )


def own_logits(model, **inputs):
    with torch.no_grad():
        return model.eval()(**inputs).logits.numpy()


def test_a_model_of_texts(tokens):
    model = bert()
    expected = own_logits(model, **tokens)
    model.train()
    wrapped = ns.wrap(model, features="bert.pooler.activation")
    outputs = wrapped.outputs(tokens)
    np.testing.assert_array_equal(outputs.logits, expected)
    assert outputs.features.shape == (6, 16)
    assert all(part.training for part in model.modules())
    assert wrapped.runner.kind == outputs.manifest["kind"] == "transformers"
    batched = wrapped.outputs(tokens, batch_size=4)
    np.testing.assert_allclose(batched.logits, expected, atol=1e-6)
    model.config.return_dict = False  # a tuple instead of a dict
    np.testing.assert_array_equal(ns.wrap(model).outputs(tokens).logits, expected)


def test_pooled_is_what_the_pooler_reads(tokens):
    model = bert().eval()
    outputs = ns.wrap(model, features="pooled,penultimate").outputs(tokens)
    with torch.no_grad():
        body = model.bert(**tokens)
    first_token, pooler = body.last_hidden_state[:, 0], body.pooler_output
    np.testing.assert_allclose(outputs.features, first_token, atol=1e-6)
    np.testing.assert_allclose(outputs.get("penultimate"), pooler, atol=1e-6)
    np.testing.assert_array_equal(outputs.head.weight, model.classifier.weight.detach())
    # Without a pooler, both are the input of the classifier.
    images = vit()
    assert ns.wrap(images, features="auto").runner.layers == ("pooled",)
    pixels = {"pixel_values": torch.randn(5, 3, 16, 16)}
    outputs = ns.wrap(images, features="pooled,penultimate").outputs(pixels)
    np.testing.assert_array_equal(outputs.features, outputs.get("penultimate"))


def test_a_model_of_images():
    model = vit()
    pixels = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = own_logits(model, pixel_values=pixels)
    wrapped = ns.wrap(model, features="classifier:input")
    outputs = wrapped.outputs({"pixel_values": pixels})
    np.testing.assert_array_equal(outputs.logits, expected)
    assert outputs.features.shape == (5, 16)
    # One tensor alone is the main input.
    np.testing.assert_array_equal(wrapped.outputs(pixels.numpy()).logits, expected)
    with pytest.raises(ShapeError, match=r"'vit.layernorm' returns .*\(5, 5, 16\)"):
        ns.wrap(model, features="vit.layernorm").outputs(pixels)


def test_labels_among_the_inputs_are_the_truth(tokens):
    truth = torch.eye(4)[[0, 1, 2, 3, 0, 1]]
    wrapped = ns.wrap(bert())
    whole = wrapped.outputs({**tokens, "labels": truth}, batch_size=4)
    np.testing.assert_array_equal(whole.labels, truth)
    halves = [
        {**{name: part[rows] for name, part in tokens.items()}, "labels": truth[rows]}
        for rows in (slice(0, 4), slice(4, 6))
    ]
    np.testing.assert_array_equal(wrapped.outputs(halves).labels, truth)
    np.testing.assert_array_equal(wrapped.outputs(iter(halves)).logits, whole.logits)


def test_lists_of_equal_length_are_taken(tokens):
    wrapped = ns.wrap(bert())
    lists = {name: part.tolist() for name, part in tokens.items()}
    np.testing.assert_array_equal(wrapped.outputs(lists).logits, wrapped.outputs(tokens).logits)
    lists["input_ids"][0].pop()
    with pytest.raises(InputError, match=r"padding=True, return_tensors='pt'"):
        wrapped.outputs(lists)
    with pytest.raises(InputError, match="by name"):
        wrapped.outputs((tokens["input_ids"], tokens["attention_mask"]))


def test_names_come_from_the_config():
    names = {0: "joy", 1: "anger", 2: "fear", 3: "love"}
    ids = {name: index for index, name in names.items()}
    model = bert(id2label=names, label2id=ids)
    assert ns.wrap(model).label_names == tuple(names.values())
    assert ns.wrap(model, label_names=list("abcd")).label_names == tuple("abcd")
    assert ns.wrap(bert()).label_names is None  # LABEL_0 and so on are no names


@pytest.mark.parametrize("make", [bert, vit])
def test_a_model_of_one_label_is_refused(make):
    for problem in ("single_label_classification", "regression", None):
        with pytest.raises(ParameterError, match=rf"{problem!r}.*problem_type = 'multi_label_cla"):
            ns.wrap(make(problem))


def test_the_order_of_the_inputs(tokens):
    wrapped = ns.wrap(bert())
    usual = ("input_ids", "attention_mask", "token_type_ids")
    assert wrapped.runner.input_names(tokens) == wrapped.runner.input_names() == usual
    fewer = {"token_type_ids": tokens["token_type_ids"], "input_ids": tokens["input_ids"]}
    assert wrapped.runner.input_names(fewer) == ("input_ids", "token_type_ids")
    assert ns.wrap(vit()).runner.input_names() == ("pixel_values",)


def resnet(pixels):
    models = pytest.importorskip("torchvision.models")
    return models.resnet18(num_classes=5), pixels, "avgpool", 512


def timm_vit(pixels):
    timm = pytest.importorskip("timm")
    return timm.create_model("test_vit", num_classes=5, img_size=32), pixels, "head:input", 64


@pytest.mark.parametrize("make", [resnet, timm_vit, None], ids=["resnet", "timm", "bert"])
def test_the_module_gives_what_the_model_gives(make, tokens):
    """Also that of other torch models. The tests of export trace it."""
    torch.manual_seed(0)
    made = (bert(), tokens, "dropout", 16) if make is None else make(torch.randn(3, 3, 32, 32))
    model, example, layer, width = made
    wrapped = ns.wrap(model.train(), features=layer)
    module, outputs = wrapped.runner.module(example), wrapped.outputs(example)
    names = wrapped.runner.input_names(example)
    inputs = tuple(example[name] for name in names) if names else (example,)
    for each in (module, copy.deepcopy(module)):
        with torch.no_grad():
            logits, features = each(*inputs)
        np.testing.assert_array_equal(logits, outputs.logits)
        np.testing.assert_array_equal(features, outputs.features)
    assert features.shape == (len(outputs), width)
    # A copy in eval mode; the model itself is still in training.
    assert not any(part.training for part in module.modules())
    assert model.training
    assert not any(part._forward_hooks for part in model.modules())
