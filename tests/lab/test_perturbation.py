"""The settings of tuning, and the grid of one backward pass: it equals the direct way."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.detectors import Mahalanobis
from nescio.errors import ParameterError
from nescio.lab.networks.checkpoint import CheckpointRunner
from nescio.lab.perturbation import (
    AGGREGATES,
    MAHALANOBIS_EPSILONS,
    TEMPERATURES,
    find_directions,
    grid_scores,
    step,
)
from nescio.lab.settings import (
    ODIN_EPSILONS,
    MahalanobisSettings,
    OdinSettings,
    TuneSettings,
)

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "input-perturbation.md"


def as_module(made):
    """The network as a module that gives (logits, pooled features)."""
    return CheckpointRunner(made, features="pooled").module()


def direct_outputs(module, inputs, std, aggregate, epsilon):
    """One setting by the textbook: the gradient of the cross-entropy, a step, a second pass."""
    x = inputs.clone().requires_grad_(True)
    logits = module(x)[0]
    if aggregate == "max":
        top = logits.gather(1, logits.argmax(1, keepdim=True))
        loss = torch.nn.BCEWithLogitsLoss()(top, torch.ones_like(top))
    else:
        predicted = (torch.sigmoid(logits) > 0.5).to(logits.dtype)
        loss = torch.nn.BCEWithLogitsLoss(reduction="none")(logits, predicted).sum(1).mean()
    loss.backward()
    moved = inputs - epsilon * x.grad.sign() / torch.tensor(std).view(1, 3, 1, 1)
    with torch.no_grad():
        return module(moved)


def test_the_grids_are_the_papers():
    assert TEMPERATURES == (1, 10, 100, 1000)
    np.testing.assert_allclose(ODIN_EPSILONS, np.linspace(0, 0.004, 21), atol=1e-12)
    assert sorted(MAHALANOBIS_EPSILONS) == [0, 0.0005, 0.001, 0.0014, 0.002, 0.005]


def test_the_page_shows_the_defaults(tmp_path):
    [shown] = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    path = tmp_path / "tune.toml"
    path.write_text(shown, "utf-8")
    assert TuneSettings.from_toml(path) == TuneSettings()


def test_each_setting_changes_the_direction_of_its_own_method():
    def directions(**settings):
        found = TuneSettings(**settings)
        methods = [(name, how) for name in ("odin", "mahalanobis") for how in ("max", "sum")]
        return [found.direction(*method) for method in methods]

    assert directions() == ["max", "sum", "max", "sum"]
    predicted = directions(odin=OdinSettings("predicted"))
    assert predicted == ["predicted_max", "sum", "max", "sum"]
    gaussian = directions(mahalanobis=MahalanobisSettings("gaussian"))
    assert gaussian == ["max", "sum", "gaussian", "gaussian"]


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_every_setting_equals_the_direct_way(checkpoint, aggregate, rng):
    made = checkpoint()
    # In double precision no gradient rounds to the other sign.
    made.network.double()
    module, preprocessing = as_module(made), made.preprocessing
    inputs = torch.from_numpy(rng.normal(size=(5, 3, 32, 32)))
    pooled = module(inputs)[1].detach().numpy()
    around = pooled.mean(0) + rng.normal(0, pooled.std(), (300, pooled.shape[1]))
    labels = rng.integers(0, 2, (300, 3))
    labels[:, 0] = 1
    detector = Mahalanobis(aggregate=aggregate).fit(around, labels)
    found = grid_scores(module, inputs, preprocessing, {aggregate: detector}, TuneSettings())
    assert len(found) == 84 + 6
    for point, values in found.items():
        method, _, epsilon, temperature = point
        logits, features = direct_outputs(module, inputs, preprocessing.std, aggregate, epsilon)
        if method == "odin":
            probabilities = torch.sigmoid(logits / temperature)
            expected = probabilities.max(1)[0] if aggregate == "max" else probabilities.sum(1)
        else:
            expected = detector.score_samples(features)
        np.testing.assert_allclose(values, expected, rtol=1e-7, err_msg=str(point))
    odin = [(e, t) for m, _, e, t in found if m == "odin"]
    assert sorted(odin) == sorted(itertools.product(ODIN_EPSILONS, TEMPERATURES))


def test_the_step_raises_the_confidence(checkpoint, rng):
    made, epsilon = checkpoint(), 1e-7  # so small that the network is linear there
    made.network.double()
    inputs = torch.from_numpy(rng.normal(size=(6, 3, 32, 32)))
    module = as_module(made)
    found = find_directions(module, inputs, made.preprocessing)
    before = found.outputs[0]
    after = step(module, inputs, found, "max", epsilon)[0]
    assert (after.amax(1) > before.amax(1)).all()
    labels = (before > 0).double()
    loss = torch.nn.BCEWithLogitsLoss(reduction="none")
    after = step(module, inputs, found, "sum", epsilon)[0]
    assert (loss(after, labels).sum(1) < loss(before, labels).sum(1)).all()


@pytest.mark.parametrize("bias", [-20, 20])
def test_with_the_predicted_label_the_step_lowers_a_negative_top_logit(checkpoint, rng, bias):
    """As in the authors' code: where no label is predicted, the step goes the other way."""
    made, epsilon = checkpoint(), 1e-7
    made.network.double()
    with torch.no_grad():
        made.network.head.labels.bias += bias
    inputs = torch.from_numpy(rng.normal(size=(6, 3, 32, 32)))
    module = as_module(made)
    found = find_directions(module, inputs, made.preprocessing, ("max", "predicted_max"))
    before = found.outputs[0].amax(1)
    assert ((before > 0) == (bias > 0)).all()
    after = step(module, inputs, found, "predicted_max", epsilon)[0].amax(1)
    assert ((after > before) == (bias > 0)).all()
    sign = 1 if bias > 0 else -1
    assert torch.equal(found.directions["predicted_max"], sign * found.directions["max"])


def test_towards_the_nearest_mean(checkpoint, rng):
    """As in the authors' code: minus half of the squared distance to the nearest label rises."""
    made, epsilon = checkpoint(), 1e-7
    made.network.double()
    module, preprocessing = as_module(made), made.preprocessing
    inputs = torch.from_numpy(rng.normal(size=(5, 3, 32, 32)))
    pooled = module(inputs)[1].detach().numpy()
    around = pooled.mean(0) + rng.normal(0, pooled.std(), (300, pooled.shape[1]))
    labels = np.eye(3, dtype=int)[rng.integers(0, 3, 300)]
    detector = Mahalanobis().fit(around, labels)

    x = inputs.clone().requires_grad_(True)
    means = torch.tensor(np.stack([around[labels[:, at] == 1].mean(0) for at in range(3)]))
    centred = around - (labels @ means.numpy())
    precision = torch.tensor(np.linalg.inv(np.cov(centred.T, bias=True)))
    away = module(x)[1][:, None] - means  # (n_images, n_labels, n_features)
    distances = torch.einsum("nlf,fg,nlg->nl", away, precision, away)
    distances.amin(1).mean().backward()

    found = find_directions(module, inputs, preprocessing, ("gaussian",), detector)
    std = preprocessing.per_colour(preprocessing.std, inputs)
    same = (found.directions["gaussian"] == x.grad.sign() / std).double().mean()
    assert same > 0.999  # but for the sign of what rounds to zero
    after = detector.score_samples(step(module, inputs, found, "gaussian", epsilon)[1])
    assert (after > detector.score_samples(found.outputs[1])).all()
    settings = TuneSettings(mahalanobis=MahalanobisSettings("gaussian"))
    scored = grid_scores(module, inputs, preprocessing, {"max": detector}, settings)
    np.testing.assert_allclose(
        scored["mahalanobis", "max", 0.002, None],
        detector.score_samples(step(module, inputs, found, "gaussian", 0.002)[1]),
    )


def test_a_saturated_logit_still_has_a_direction(checkpoint, rng):
    # In float32, 1 - sigmoid(40) is 0, and so is the gradient of the cross-entropy.
    made = checkpoint()
    with torch.no_grad():
        made.network.head.labels.bias += 40
    inputs = torch.from_numpy(rng.normal(size=(2, 3, 32, 32)).astype(np.float32))
    found = find_directions(as_module(made), inputs, made.preprocessing, ("max",))
    assert (found.directions["max"] != 0).float().mean() > 0.99


def test_an_image_is_perturbed_alone_in_eval_mode(checkpoint, rng):
    made = checkpoint()
    module, preprocessing = as_module(made), made.preprocessing
    inputs = torch.from_numpy(rng.normal(size=(4, 3, 32, 32)).astype(np.float32))
    together = find_directions(module, inputs, preprocessing).directions
    alone = find_directions(module, inputs[2:3], preprocessing).directions
    for aggregate in AGGREGATES:
        same = (together[aggregate][2] == alone[aggregate][0]).float().mean()
        assert same > 0.999  # but for the sign of what rounds to zero
    assert all(parameter.grad is None for parameter in module.parameters())
    with pytest.raises(ParameterError, match="eval mode"):
        find_directions(module.train(), inputs, preprocessing)
