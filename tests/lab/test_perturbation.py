"""Input perturbation, the grid of one backward pass, and tuning."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.detectors import Mahalanobis
from nescio.errors import FileFormatError, ParameterError
from nescio.lab.data import SYNTHETIC_SETS, load_coco
from nescio.lab.data.split import Reader
from nescio.lab.extraction import extract
from nescio.lab.networks.network import CheckpointRunner
from nescio.lab.perturbation import (
    AGGREGATES,
    MAHALANOBIS_EPSILONS,
    TEMPERATURES,
    Setting,
    Tuning,
    find_directions,
    grid_scores,
    step,
    synthetic_sets,
    tune,
)
from nescio.lab.settings import ODIN_EPSILONS, MahalanobisSettings, OdinSettings, TuneSettings
from nescio.models.images import Preprocessing
from nescio.outputs import Outputs

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
        chosen = TuneSettings(**settings)
        methods = [(name, how) for name in ("odin", "mahalanobis") for how in ("max", "sum")]
        return [chosen.direction(*method) for method in methods]

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
    columns = grid_scores(module, inputs, preprocessing, {aggregate: detector}, TuneSettings())
    assert len(columns) == 84 + 6
    for point, values in columns.items():
        method, _, epsilon, temperature = point
        logits, features = direct_outputs(module, inputs, preprocessing.std, aggregate, epsilon)
        if method == "odin":
            probabilities = torch.sigmoid(logits / temperature)
            expected = probabilities.max(1)[0] if aggregate == "max" else probabilities.sum(1)
        else:
            expected = detector.score_samples(features)
        np.testing.assert_allclose(values, expected, rtol=1e-7, err_msg=str(point))
    odin = [(e, t) for m, _, e, t in columns if m == "odin"]
    assert sorted(odin) == sorted(itertools.product(ODIN_EPSILONS, TEMPERATURES))


def test_the_step_raises_the_confidence(checkpoint, rng):
    made, epsilon = checkpoint(), 1e-7  # so small that the network is linear there
    made.network.double()
    inputs = torch.from_numpy(rng.normal(size=(6, 3, 32, 32)))
    module = as_module(made)
    perturbation = find_directions(module, inputs, made.preprocessing)
    before = perturbation.outputs[0]
    after = step(module, inputs, perturbation, "max", epsilon)[0]
    assert (after.amax(1) > before.amax(1)).all()
    labels = (before > 0).double()
    loss = torch.nn.BCEWithLogitsLoss(reduction="none")
    after = step(module, inputs, perturbation, "sum", epsilon)[0]
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
    perturbation = find_directions(module, inputs, made.preprocessing, ("max", "predicted_max"))
    before = perturbation.outputs[0].amax(1)
    assert ((before > 0) == (bias > 0)).all()
    after = step(module, inputs, perturbation, "predicted_max", epsilon)[0].amax(1)
    assert ((after > before) == (bias > 0)).all()
    sign = 1 if bias > 0 else -1
    assert torch.equal(
        perturbation.directions["predicted_max"], sign * perturbation.directions["max"]
    )


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
    means = torch.tensor(np.stack([around[labels[:, label] == 1].mean(0) for label in range(3)]))
    centred = around - (labels @ means.numpy())
    precision = torch.tensor(np.linalg.inv(np.cov(centred.T, bias=True)))
    away = module(x)[1][:, None] - means  # (n_images, n_labels, n_features)
    distances = torch.einsum("nlf,fg,nlg->nl", away, precision, away)
    distances.amin(1).mean().backward()

    perturbation = find_directions(module, inputs, preprocessing, ("gaussian",), detector)
    std = preprocessing.per_colour(preprocessing.std, inputs)
    same = (perturbation.directions["gaussian"] == x.grad.sign() / std).double().mean()
    assert same > 0.999  # but for the sign of what rounds to zero
    after = detector.score_samples(step(module, inputs, perturbation, "gaussian", epsilon)[1])
    assert (after > detector.score_samples(perturbation.outputs[1])).all()
    settings = TuneSettings(mahalanobis=MahalanobisSettings("gaussian"))
    scored = grid_scores(module, inputs, preprocessing, {"max": detector}, settings)
    np.testing.assert_allclose(
        scored["mahalanobis", "max", 0.002, None],
        detector.score_samples(step(module, inputs, perturbation, "gaussian", 0.002)[1]),
    )


def test_a_saturated_logit_still_has_a_direction(checkpoint, rng):
    # In float32, 1 - sigmoid(40) is 0, and so is the gradient of the cross-entropy.
    made = checkpoint()
    with torch.no_grad():
        made.network.head.labels.bias += 40
    inputs = torch.from_numpy(rng.normal(size=(2, 3, 32, 32)).astype(np.float32))
    perturbation = find_directions(as_module(made), inputs, made.preprocessing, ("max",))
    assert (perturbation.directions["max"] != 0).float().mean() > 0.99


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


@pytest.fixture
def tuned(checkpoint, coco_tree, tmp_path):
    made = checkpoint()
    root = coco_tree(sizes=(("train", 60), ("val", 20)))
    path = tmp_path / "train.safetensors"
    extract(made, load_coco(root, "train"), path)
    train = Outputs.load(path)
    val = load_coco(root, "val")

    def run(**options):
        return tune(made, val, train, **{"aggregates": ("max",), "batch_size": 8, **options})

    run.val, run.train = val, train
    return run


def test_the_lowest_fpr_over_the_five_sets_is_chosen(tuned, checkpoint, tmp_path):
    seen = []
    tuning = tuned(settings=TuneSettings(images=10), on_images=seen.append)
    assert sum(seen) == 6 * 10
    assert len(tuning.grid) == 84 + 6
    assert tuning.model_hash == checkpoint().content_hash()
    assert [(best.method, best.aggregate) for best in tuning.best] == [
        ("mahalanobis", "max"),
        ("odin", "max"),
    ]
    for best in tuning.best:
        rivals = [setting.fpr95 for setting in tuning.grid if setting.method == best.method]
        assert best.fpr95 == min(rivals)
    assert tuning.data["n_images"] == 10
    assert tuning.data["synthetic"] == list(SYNTHETIC_SETS)
    tuning.save(tmp_path / "tuned.json")
    assert Tuning.load(tmp_path / "tuned.json") == tuning
    assert json.loads((tmp_path / "tuned.json").read_text())["best"] == tuning.chosen()
    with pytest.raises(ParameterError, match="extracted for another network"):
        tune(checkpoint(seed=1), tuned.val, tuned.train)


def test_the_same_seed_gives_the_same_settings_in_any_batches(tuned):
    settings = TuneSettings(images=12, odin=OdinSettings("predicted", (0.0, 0.004)))
    first = tuned(settings=settings, batch_size=12)
    directions = {(setting.method, setting.direction) for setting in first.grid}
    assert directions == {("odin", "predicted_max"), ("mahalanobis", "max")}
    assert tuned(settings=settings, batch_size=12) == first
    assert tuned(settings=settings, batch_size=12, seed=1) != first
    other = tuned(settings=settings, batch_size=5)
    close = [abs(a.fpr95 - b.fpr95) for a, b in zip(first.grid, other.grid, strict=True)]
    assert np.mean(close) < 0.02  # but for rounding


def test_of_equals_the_smallest_step_is_taken():
    grid = (
        Setting("odin", "max", 0.002, 1.0, 0.25),
        Setting("odin", "max", 0.001, 10.0, 0.25),
        Setting("odin", "max", 0.001, 1.0, 0.25),
        Setting("odin", "max", 0.0, 1.0, 0.5),
    )
    assert Tuning("", "pooled", grid, {}).best == (grid[2],)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kind": "nescio.tuning", "schema": 1}'])
def test_another_file_is_refused(content, tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text(content)
    with pytest.raises(FileFormatError, match=r"tuned\.json is not a file written by nescio tune"):
        Tuning.load(path)


def test_synthetic_sets_are_made_from_the_images(coco_tree):
    split = load_coco(coco_tree(sizes=(("val", 12),)), "val")
    preprocessing = Preprocessing(16)
    sets = {
        name: torch.cat(list(batches)).numpy()
        for name, batches in synthetic_sets(Reader(split, preprocessing), 3, 5, SYNTHETIC_SETS)
    }
    images = sets.pop("in-distribution")
    assert list(sets) == list(SYNTHETIC_SETS)
    assert all(pixels.shape == (12, 3, 16, 16) for pixels in sets.values())
    # A jigsaw has the pixels of its image; a mean lies between two images, never one of itself.
    jigsaw = next(pixels for name, pixels in sets.items() if "jigsaw" in name)
    np.testing.assert_allclose(np.sort(jigsaw.reshape(12, -1)), np.sort(images.reshape(12, -1)))
    assert not (jigsaw == images).all((1, 2, 3)).any()
    mean = next(pixels for name, pixels in sets.items() if "arithmetic" in name)
    partners = 2 * mean - images
    for index, partner in enumerate(partners):
        nearest = np.abs(images - partner).max((1, 2, 3)).argmin()
        assert nearest != index
        np.testing.assert_allclose(images[nearest], partner, atol=1e-5)


def test_a_setting_keeps_95_percent_of_the_images_and_lets_its_fpr_through(tuned, checkpoint):
    # By hand, without perturbation: the largest logit ranks as ODIN's score does.
    tuning = tuned(settings=TuneSettings(images=20))
    made, split = checkpoint(), tuned.val
    top = {}
    for name, batches in synthetic_sets(Reader(split, made.preprocessing), 0, 8, SYNTHETIC_SETS):
        inputs = [made.preprocessing.normalise(pixels) for pixels in batches]
        with torch.inference_mode():
            top[name] = torch.cat([made.network(batch).amax(1) for batch in inputs]).numpy()
    id_scores = np.sort(top.pop("in-distribution"))
    threshold = id_scores[1]  # 19 of 20 are at least this
    let_through = np.concatenate([scores >= threshold for scores in top.values()])
    plain = [
        setting for setting in tuning.grid if setting.method == "odin" and setting.epsilon == 0
    ]
    assert len(plain) == 4
    for setting in plain:
        assert setting.fpr95 == pytest.approx(let_through.mean(), abs=0.011)
