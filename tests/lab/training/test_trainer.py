"""The epochs of a run: how they are measured, chosen, saved and restored."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.errors import NonFiniteError, ParameterError
from nescio.lab.networks.checkpoint import load_checkpoint
from nescio.lab.training import train
from nescio.lab.training.trainer import Trainer


def test_select_by_map(settings, train_and_val, tmp_path):
    run = train(settings(epochs=5, select="val_map"), *train_and_val, tmp_path / "run")
    assert run.best.val_map == max(epoch.val_map for epoch in run.history)


def test_the_last_epoch_can_be_taken_instead_of_the_best(settings, train_and_val, tmp_path):
    run = train(settings(epochs=3, select="last"), *train_and_val, tmp_path / "run")
    assert run.best == run.history[-1]
    best, last = (load_checkpoint(run.folder / f"{name}.safetensors") for name in ("best", "last"))
    assert best.content_hash() == last.content_hash()
    more = train(settings(epochs=4, select="last"), *train_and_val, tmp_path / "run", resume=True)
    assert more.best.epoch == 4


def test_batch_statistics_can_be_frozen_after_the_first_epoch(
    settings, train_and_val, tmp_path, monkeypatch
):
    tracked, validate = [], Trainer.validate

    def spy(trainer):
        tracked.append(int(trainer.trained.head.hidden[1].num_batches_tracked))
        return validate(trainer)

    monkeypatch.setattr(Trainer, "validate", spy)
    train(settings(epochs=2, freeze_batch_norm=True), *train_and_val, tmp_path / "run")
    # A resumed run freezes them too.
    train(settings(epochs=3, freeze_batch_norm=True), *train_and_val, tmp_path / "run", resume=True)
    assert tracked == [4, 4, 4]


def test_validation_leaves_the_network_in_train_mode(
    settings, train_and_val, tmp_path, monkeypatch
):
    # Batch statistics must move in every epoch: in the paper's code they freeze after the first.
    tracked, validate = [], Trainer.validate

    def spy(trainer):
        tracked.append(int(trainer.trained.head.hidden[1].num_batches_tracked))
        result = validate(trainer)
        assert all(part.training for part in trainer.trained.modules())
        return result

    monkeypatch.setattr(Trainer, "validate", spy)
    train(settings(epochs=3), *train_and_val, tmp_path / "run")
    assert tracked == [4, 8, 12]


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
