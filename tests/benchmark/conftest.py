"""A small benchmark, run once for all tests that look at what it leaves."""

import pytest

SPEC = """
title = "Small scenes"
seeds = [0, 1]
bootstrap = 50
detectors = [
  "joint_energy",
  "top_k_joint_energy(k=mean_labels)",
  "max_logit",
  "odin",
  "mahalanobis_perturbed(aggregate=sum)",
]

[train.model]
name = "small-cnn"
weights = "none"
n_hidden = 8

[train.images]
size = 16

[train.training]
epochs = 1
lr_backbone = 1e-3
lr_head = 1e-3

[tune]
images = 6

[[sets]]
name = "digits"
data = "digits:{data}/digits"
ood = { "unseen digits" = "digits@unseen:{data}/digits", noise = "digits@noise:{data}/digits" }
"""


@pytest.fixture(scope="session")
def spec_text():
    """The file of the small benchmark."""
    return SPEC


@pytest.fixture(scope="session")
def few_scenes():
    """Digit scenes are few, until the end of the tests."""
    from nescio.data import digits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "N_SCENES", {**dict.fromkeys(digits.SPLITS, 48), "train": 160})
        yield


@pytest.fixture(scope="session")
def small_spec(spec_text, few_scenes, tmp_path_factory):
    """The spec, with its data in place."""
    pytest.importorskip("torchvision")
    from nescio.benchmark.spec import parse_benchmark

    return parse_benchmark("small", spec_text).with_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def small_run(small_spec, tmp_path_factory):
    """The benchmark, run in a folder of its own."""
    from nescio.benchmark.run import run_benchmark

    return run_benchmark(small_spec, tmp_path_factory.mktemp("bench"))
