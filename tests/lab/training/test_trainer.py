"""The epochs of a run: how they are measured, chosen, saved and restored."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.errors import NonFiniteError, ParameterError
from nescio.lab.networks.checkpoint import load_checkpoint
from nescio.lab.training import train
from nescio.lab.training.trainer import Trainer


def test_the_epoch_of_the_highest_map_or_the_last_one_can_be_taken(
    settings, train_and_val, tmp_path
):
    run = train(settings(epochs=5, select="val_map"), *train_and_val, tmp_path / "map")
    assert run.best.val_map == max(epoch.val_map for epoch in run.history)
    run = train(settings(epochs=3, select="last"), *train_and_val, tmp_path / "run")
    assert run.best == run.history[-1]
    best, last = (load_checkpoint(run.folder / f"{name}.safetensors") for name in ("best", "last"))
    assert best.content_hash() == last.content_hash()
    more = train(settings(epochs=4, select="last"), *train_and_val, tmp_path / "run", resume=True)
    assert more.best.epoch == 4


@pytest.mark.parametrize(("freeze", "expected"), [(False, [4, 8, 12]), (True, [4, 4, 4])])
def test_batch_statistics_move_in_every_epoch_or_in_the_first_only(
    freeze, expected, settings, train_and_val, tmp_path, monkeypatch
):
    """In the authors' code they freeze after the first epoch: validation leaves eval mode on."""
    tracked, validate = [], Trainer.validate

    def spy(trainer):
        tracked.append(int(trainer.trained.head.hidden[1].num_batches_tracked))
        result = validate(trainer)
        assert all(part.training for part in trainer.trained.modules())
        return result

    monkeypatch.setattr(Trainer, "validate", spy)
    for epochs in (2, 3):  # a resumed run does the same
        chosen = settings(epochs=epochs, freeze_batch_norm=freeze)
        train(chosen, *train_and_val, tmp_path / "run", resume=True)
    assert tracked == expected


def test_backbone_and_head_have_separate_learning_rates(settings, train_and_val, tmp_path):
    run = train(settings(epochs=1, lr_backbone=0.0), *train_and_val, tmp_path / "run")
    torch.manual_seed(0)
    fresh = run and settings().model.architecture.build(3)
    trained = load_checkpoint(run.checkpoint).network
    for name, parameter in fresh.named_parameters():
        same = torch.equal(parameter, trained.get_parameter(name))
        assert same == name.startswith("backbone"), name


def test_a_run_goes_on_only_with_its_own_settings_and_data(settings, train_and_val, tmp_path):
    train(settings(epochs=1), *train_and_val, tmp_path / "run")
    with pytest.raises(ParameterError, match=r"a different \[training\] lr_head: 0\.01, not 0\.02"):
        train(settings(epochs=2, lr_head=0.02), *train_and_val, tmp_path / "run", resume=True)
    with pytest.raises(ParameterError, match=r"a different \[training\] select: 'val_loss', not"):
        train(settings(epochs=2, select="last"), *train_and_val, tmp_path / "run", resume=True)
    fewer = train_and_val[0].subset(range(20))
    with pytest.raises(ParameterError, match="a different train data"):
        train(settings(epochs=2), fewer, train_and_val[1], tmp_path / "run", resume=True)
    image = train_and_val[0].path(0)
    image.write_bytes(image.read_bytes()[::-1])  # of the same name and size
    changed = replace(train_and_val[0]), train_and_val[1]
    with pytest.raises(ParameterError, match="a different train data"):
        train(settings(epochs=2), *changed, tmp_path / "run", resume=True)


def test_a_loss_that_is_not_finite_is_an_error(settings, train_and_val, tmp_path):
    with pytest.raises(NonFiniteError, match="Lower the learning rates"):
        train(settings(epochs=4, lr_head=1e36, lr_backbone=1e36), *train_and_val, tmp_path / "run")


def test_a_crash_before_the_metrics_were_written_loses_nothing(settings, train_and_val, tmp_path):
    run = train(settings(epochs=2), *train_and_val, tmp_path / "run")
    metrics = run.folder / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole.splitlines(keepends=True)[0])
    train(settings(epochs=2), *train_and_val, tmp_path / "run", resume=True)
    assert metrics.read_bytes() == whole
    with pytest.raises(ParameterError, match="already has 2 epochs, more than the requested 1"):
        train(settings(epochs=1), *train_and_val, tmp_path / "run", resume=True)
