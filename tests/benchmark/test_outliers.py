"""Auxiliary outliers in a benchmark: where they are, which network they make, what is rejected."""

from dataclasses import replace

import pytest

pytest.importorskip("torchvision")

from nescio.benchmark.pipeline import make_pipelines
from nescio.benchmark.spec import parse_benchmark
from nescio.errors import DatasetError, ParameterError


@pytest.fixture
def pipeline(small_spec, tmp_path):
    """The pipeline of the small benchmark that is trained with these outliers."""

    def make(outliers):
        training = {**small_spec.train["training"], "outliers": outliers}
        train = {**small_spec.train, "training": training}
        return make_pipelines(replace(small_spec, train=train, seeds=(0,)), tmp_path / "cache")[0]

    return make


def test_other_outliers_are_another_network_in_any_place(
    pipeline, small_spec, class_tree, tmp_path
):
    root = class_tree("outliers")
    with_outliers = pipeline(f"folder:{root}")
    without = make_pipelines(small_spec, tmp_path / "cache")[0]
    assert with_outliers._best_file() != without._best_file()
    (tmp_path / "moved").mkdir()
    moved = root.rename(tmp_path / "moved" / "outliers")
    assert pipeline(f"folder:{moved}")._best_file() == with_outliers._best_file()
    next((moved / "anchor").iterdir()).unlink()
    assert pipeline(f"folder:{moved}")._best_file() != with_outliers._best_file()


def test_outliers_must_not_be_test_images(pipeline, small_spec):
    noise = small_spec.sets[0].ood["noise"]
    with pytest.raises(
        DatasetError, match=r"48 of the outliers .* test data of noise.* choose other"
    ):
        pipeline(noise)
    assert pipeline(noise.replace("@noise", "@photos")).outliers is not None


def test_the_folder_of_the_data_can_contain_the_outliers(spec_text):
    text = spec_text.replace(
        "[train.training]", '[train.training]\noutliers = "folder:{data}/more"'
    )
    spec = parse_benchmark("small", text)
    assert spec.with_data("/data").train["training"]["outliers"] == "folder:/data/more"
    paths = parse_benchmark("small", text.replace("{data}/digits", "/digits"))
    with pytest.raises(ParameterError, match="needs to know where its data is"):
        paths.with_data(None)
