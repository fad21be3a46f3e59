"""The losses, and what each of them changes in a training run."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.errors import ParameterError  # noqa: E402
from nescio.runners.images import Reader  # noqa: E402
from nescio.training import load_checkpoint, train  # noqa: E402
from nescio.training.losses import LOSSES, asymmetric_loss  # noqa: E402


def test_the_asymmetric_loss_is_that_of_the_paper():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(0, 3, (6, 5)), rng.integers(0, 2, (6, 5))
    p = 1 / (1 + np.exp(-logits))
    q = np.maximum(p - 0.05, 0)
    expected = -np.where(labels == 1, np.log(p), q**4 * np.log(1 - q)).mean()
    found = asymmetric_loss(torch.from_numpy(logits), torch.from_numpy(labels).double())
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_easy_absent_labels_count_less_than_in_the_cross_entropy():
    """As shares of the gradient: a hard absent label counts more, one below the margin nothing."""
    shares = {}
    for name, loss in LOSSES.items():
        # Absent labels with p = 0.02, 0.18 and 0.88, and one that is present.
        logits = torch.tensor([[-4.0, -1.5, 2.0, -2.0]], requires_grad=True)
        loss(logits, torch.tensor([[0.0, 0.0, 0.0, 1.0]])).backward()
        shares[name] = logits.grad[0] / logits.grad[0].abs().sum()
    below, easy, hard, present = shares["asymmetric"]
    assert below == 0 < shares["bce"][0]
    assert 0 < easy < shares["bce"][1] / 10
    assert hard > shares["bce"][2]
    assert present < 0


def test_extreme_logits_have_a_finite_loss_and_gradient():
    logits = torch.tensor([[-200.0, 200.0], [200.0, -200.0]], requires_grad=True)
    loss = asymmetric_loss(logits, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_a_run_with_the_asymmetric_loss(settings, train_and_val, tmp_path):
    """It is trained, validated and recorded with that loss, and goes on only with it."""
    val_split = train_and_val[1]
    run = train(settings(epochs=2, loss="asymmetric"), *train_and_val, tmp_path / "run")
    last = load_checkpoint(run.folder / "last.safetensors")
    pixels = next(Reader(val_split, last.preprocessing).batches([range(14)])).pixels
    with torch.inference_mode():
        logits = last.network(last.preprocessing.inputs(pixels, torch.device("cpu")))
    truth = torch.from_numpy(val_split.labels).float()
    assert run.history[-1].val_loss == pytest.approx(float(asymmetric_loss(logits, truth)))
    plain = train(settings(epochs=2), *train_and_val, tmp_path / "plain")
    assert run.history[0].train_loss < plain.history[0].train_loss
    for folder, loss in (("run", "bce"), ("plain", "asymmetric")):
        with pytest.raises(ParameterError, match=r"a different \[training\] loss"):
            train(settings(loss=loss), *train_and_val, tmp_path / folder, resume=True)


def test_an_unknown_loss(settings):
    with pytest.raises(ParameterError, match="loss must be 'bce' or 'asymmetric', got 'focal'"):
        settings(loss="focal")
