"""Spectral normalisation: what it promises, and that a saved network is a plain one."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from torch import nn

from nescio.errors import ParameterError
from nescio.lab.networks.network import load_checkpoint
from nescio.lab.networks.weights import SpectralNorm
from nescio.lab.training import Trainer, initial_checkpoint, train


def spectral_norms(network):
    """The largest singular value of each convolution and linear layer, by its name."""
    return {
        name: float(torch.linalg.matrix_norm(part.weight.detach().flatten(1), 2))
        for name, part in network.named_modules()
        if isinstance(part, nn.Conv2d | nn.Linear)
    }


@pytest.fixture
def normalised(settings):
    def make(freeze=False, **training):
        model = {"spectral_norm": True, "freeze": freeze}
        return settings(**training).updated({"model": model})

    return make


@pytest.mark.parametrize("batch_norm", ["trained", "first_epoch", "fixed_weights"])
def test_the_spectral_norm_of_every_layer_is_one(
    batch_norm, settings, normalised, train_and_val, tmp_path
):
    options = {"epochs": 3, "select": "last", "batch_norm": batch_norm}
    run = train(normalised(**options), *train_and_val, tmp_path / "run")
    norms = spectral_norms(load_checkpoint(run.checkpoint).network)
    assert set(norms) == {
        *("backbone.0", "backbone.4", "backbone.8"),
        *("head.hidden.0", "head.labels"),
    }
    assert list(norms.values()) == pytest.approx([1] * 5, abs=0.01)
    plain = train(settings(**options), *train_and_val, tmp_path / "plain")
    without = spectral_norms(load_checkpoint(plain.checkpoint).network)
    assert max(without.values()) > 1.1


def test_only_chosen_layers_are_normalised(settings, train_and_val, tmp_path):
    """SNoJoE normalises only some: a layer by its name, or all layers in a module."""
    model = {"spectral_norm": ("backbone.4", "head")}
    chosen = settings(epochs=2, select="last").updated({"model": model})
    run = train(chosen, *train_and_val, tmp_path / "run")
    norms = spectral_norms(load_checkpoint(run.checkpoint).network)
    for name, norm in norms.items():
        is_chosen = name in ("backbone.4", "head.hidden.0", "head.labels")
        assert (norm == pytest.approx(1, abs=0.01)) == is_chosen, name
    resumed = train(chosen, *train_and_val, tmp_path / "run", resume=True)
    assert resumed.best == run.best
    wrong = chosen.updated({"model": {"spectral_norm": ("backbone.1",)}})
    with pytest.raises(ParameterError, match=r"names 'backbone.1', but the trained layers are 'ba"):
        train(wrong, *train_and_val, tmp_path / "wrong")
    with pytest.raises(ParameterError, match="must be true or false or a list of strings"):
        chosen.updated({"model": {"spectral_norm": "head"}})


def test_what_was_validated_is_what_is_saved(normalised, train_and_val, tmp_path, monkeypatch):
    """The same logits from the plain network of the file."""
    outputs, validate = [], Trainer.validate
    inputs = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def spy(trainer):
        result = validate(trainer)
        trainer.trained.eval()
        with torch.inference_mode():
            outputs.append(trainer.trained(inputs))
        trainer.trained.train()
        return result

    monkeypatch.setattr(Trainer, "validate", spy)
    run = train(normalised(epochs=2, select="last"), *train_and_val, tmp_path / "run")
    network = load_checkpoint(run.checkpoint).network
    assert not any("parametrizations" in name for name in network.state_dict())
    with torch.inference_mode():
        assert torch.equal(network(inputs), outputs[-1])


def test_a_frozen_backbone_is_not_normalised(normalised, train_and_val, tmp_path):
    chosen = normalised(True, epochs=1)
    run = train(chosen, *train_and_val, tmp_path / "run")
    network = load_checkpoint(run.checkpoint).network
    torch.manual_seed(0)
    fresh = initial_checkpoint(chosen, ("a", "b", "c")).network
    assert torch.equal(network.backbone[0].weight, fresh.backbone[0].weight)
    norms = spectral_norms(network.head)
    assert list(norms.values()) == pytest.approx([1, 1], abs=0.01)


def test_layers_without_gradients_and_computed_weights_are_left_alone():
    own = nn.Sequential(nn.Linear(3, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    own[0].requires_grad_(False)
    with pytest.raises(ParameterError, match=r"needs a convolution or a linear layer to train"):
        SpectralNorm(own, own)
    network = own.append(nn.Linear(4, 2))
    before = set(network.state_dict())
    spectral = SpectralNorm(network, network)
    assert set(spectral.layers) == {"2"}
    assert set(spectral.plain_weights()) == before


def test_plain_weights_do_not_change_what_training_goes_on_with():
    network = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    spectral = SpectralNorm(network, network)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    spectral.plain_weights()
    assert all(torch.equal(network.state_dict()[name], before[name]) for name in before)
    assert all(part.training for part in network.modules())
