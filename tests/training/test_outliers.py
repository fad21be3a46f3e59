"""Auxiliary outliers: the energy gap that they are trained for, and what they are drawn by."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.data import load_folder  # noqa: E402
from nescio.errors import DatasetError, ParameterError  # noqa: E402
from nescio.runners.images import Reader  # noqa: E402
from nescio.scores import joint_energy  # noqa: E402
from nescio.training import load_checkpoint, train  # noqa: E402
from nescio.training.distributed import World  # noqa: E402
from nescio.training.examples import FeatureExamples, WithOutliers  # noqa: E402
from nescio.training.losses import energy_gap  # noqa: E402


@pytest.fixture
def with_outliers(settings, class_tree):
    """Settings with grey images as outliers; the labels are colours."""

    def make(freeze=False, **training):
        address = f"folder:{class_tree('outliers', n_images=10)}"
        chosen = settings(**{"outliers": address, "energy_gap": 1.0} | training)
        return chosen.updated({"model": {"freeze": freeze}})

    return make


def energies(run, split):
    """Joint energy of all images of a split, with the network of the last epoch."""
    last = load_checkpoint(run.folder / "last.safetensors")
    pixels = next(Reader(split, last.preprocessing).batches([range(len(split))])).pixels
    with torch.inference_mode():
        logits = last.network(last.preprocessing.inputs(pixels, torch.device("cpu")))
    return joint_energy(logits.numpy())


@pytest.mark.parametrize("freeze", [False, True])
def test_the_energy_gap_grows(freeze, with_outliers, train_and_val, class_tree, tmp_path):
    unseen = load_folder(class_tree("unseen", n_images=10, seed=7), "")
    gaps = {}
    for name, changes in (("with", {}), ("without", {"outliers": None})):
        chosen = with_outliers(freeze, epochs=4, **changes)
        run = train(chosen, *train_and_val, tmp_path / name, cache=tmp_path / "cache")
        inside, outside = energies(run, train_and_val[1]), energies(run, unseen)
        gaps[name] = inside.mean() - outside.mean()
        assert run.best.val_map > 0.7
    assert gaps["with"] > gaps["without"] + 0.5
    cached = {path.name.rsplit("-", 1)[0] for path in (tmp_path / "cache").glob("features-*")}
    assert ("features-outliers" in cached) == freeze


def test_the_loss_is_that_of_the_paper_with_joint_energy():
    logits = torch.tensor([[1.0, -2.0], [4.0, 3.0], [-5.0, -5.0]])
    labels = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    outliers = torch.tensor([[0.0, 1.0], [-9.0, -9.0]])
    inside, outside = (np.log1p(np.exp(one.double().numpy())).sum(1) for one in (logits, outliers))
    assert inside[0] < 3 < inside[1]
    # The second is above the margin, and the third has no label.
    expected = ((3 - inside[0]) ** 2 / 3 + (outside[0] - 0.5) ** 2 / 2) / 2
    found = energy_gap(logits, labels, outliers, (3.0, 0.5))
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_weight_and_margins_are_those_of_the_settings(with_outliers, train_and_val, tmp_path):
    losses = []
    for at, changes in enumerate(({}, {"energy_gap": 5.0}, {"energy_margins": [20.0, 0.05]})):
        chosen = with_outliers(True, epochs=1, lr_head=0.0, **changes)
        run = train(chosen, *train_and_val, tmp_path / str(at), cache=tmp_path / "cache")
        losses.append(run.history[0].train_loss)
    assert losses[0] < losses[1]
    assert losses[0] < losses[2]


@pytest.mark.parametrize("freeze", [False, True])
def test_a_resumed_run_ends_with_the_same_bytes(freeze, with_outliers, train_and_val, tmp_path):
    train(with_outliers(freeze, epochs=3), *train_and_val, tmp_path / "whole")
    train(with_outliers(freeze, epochs=1), *train_and_val, tmp_path / "cut")
    train(with_outliers(freeze, epochs=3), *train_and_val, tmp_path / "cut", resume=True)
    for name in ("best.safetensors", "last.safetensors", "metrics.jsonl"):
        whole, cut = ((tmp_path / run / name).read_bytes() for run in ("whole", "cut"))
        assert whole == cut, name


def test_a_run_goes_on_only_with_the_same_outliers(
    with_outliers, train_and_val, class_tree, tmp_path
):
    train(with_outliers(epochs=1), *train_and_val, tmp_path / "run")
    moved = class_tree("outliers", n_images=10).rename(tmp_path / "moved")
    same = with_outliers(epochs=2, outliers=f"folder:{moved}")
    train(same, *train_and_val, tmp_path / "run", resume=True)
    fewer = f"folder:{class_tree('fewer', n_images=9)}"
    for other in (fewer, None):
        chosen = with_outliers(epochs=3, outliers=other)
        with pytest.raises(ParameterError, match="a different outliers data"):
            train(chosen, *train_and_val, tmp_path / "run", resume=True)
    train(with_outliers(epochs=1, outliers=None), *train_and_val, tmp_path / "without")
    with pytest.raises(ParameterError, match="a different outliers data: None"):
        train(with_outliers(epochs=2), *train_and_val, tmp_path / "without", resume=True)


def test_damaged_outliers_are_left_out_and_recorded(with_outliers, train_and_val, tmp_path):
    chosen = with_outliers(epochs=1)
    bad = tmp_path / "outliers" / "anchor" / "bad.png"
    bad.write_bytes(b"no image")
    with pytest.raises(DatasetError, match=r"bad\.png"):
        train(chosen, *train_and_val, tmp_path / "a")
    run = train(chosen, *train_and_val, tmp_path / "b", skip_bad=True)
    facts = load_checkpoint(run.checkpoint).training["outliers"]
    assert facts["n_images"] == 20
    assert [one["file"] for one in facts["skipped"]] == ["anchor/bad.png"]


def examples(n_samples, first):
    features = np.arange(first, first + n_samples, dtype=np.float32)[:, None]
    return FeatureExamples(features, np.ones((n_samples, 2), np.uint8), torch.device("cpu"))


@pytest.mark.parametrize("n_processes", [1, 2])
def test_every_outlier_is_drawn_before_any_is_again(n_processes):
    """Whatever the number of processes, they draw the same batches together."""
    batches = [np.arange(4), np.arange(4, 8), np.arange(8, 12)]
    drawn = []
    for rank in range(n_processes):
        mixed = WithOutliers(examples(12, 0), examples(5, 100), World(rank, n_processes))
        mine = [batch[rank::n_processes] for batch in batches]
        shares = []
        for batch, (inputs, labels) in zip(mine, mixed.batches(mine, (0, 1)), strict=True):
            assert labels.shape == (len(batch), 2)
            assert inputs[: len(batch), 0].tolist() == batch.tolist()
            shares.append(inputs[len(batch) :, 0])
        drawn.append(shares)
    together = [torch.stack(shares, 1).flatten() for shares in zip(*drawn, strict=True)]
    assert [len(batch) for batch in together] == [4, 4, 4]
    order = torch.cat(together).tolist()
    assert sorted(order[:5]) == sorted(order[5:10]) == list(range(100, 105))
    alone = WithOutliers(examples(12, 0), examples(5, 100), World())
    assert order == [float(x) for inputs, _ in alone.batches(batches, (0, 1)) for x in inputs[4:]]
    assert order != [float(x) for inputs, _ in alone.batches(batches, (0, 2)) for x in inputs[4:]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outliers": "/data/outliers"}, "cannot read the data address '/data/outliers'"),
        ({"energy_gap": -1}, "energy_gap must be a number of at least 0, got -1"),
        ({"energy_margins": [1.0, 2.0]}, r"the larger one first, got \[1\.0, 2\.0\]"),
        ({"energy_margins": [1.0, -1.0]}, "at least 0"),
    ],
)
def test_settings_that_are_rejected(changes, words, settings):
    with pytest.raises(ParameterError, match=words):
        settings(**changes)
