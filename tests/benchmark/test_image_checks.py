"""Damaged images are found before any work, once, and can be left out."""

import json
import os
import shutil
from dataclasses import replace

import pytest

pytest.importorskip("torchvision")

from nescio.benchmark import image_checks
from nescio.benchmark.pipeline import make_pipelines
from nescio.benchmark.progress import unwatched
from nescio.benchmark.run import run_benchmark
from nescio.benchmark.spec import parse_benchmark
from nescio.errors import DatasetError


@pytest.fixture
def own_data(small_spec, spec_text, tmp_path):
    """The small benchmark on its own copy of the data, and the folder of the scenes."""
    load = make_pipelines(small_spec, tmp_path / "unused")[0].data
    scenes = shutil.copytree(load.test.root, tmp_path / "data" / "digits")
    spec = parse_benchmark("small", spec_text).with_data(tmp_path / "data").only([], [0])
    return replace(spec, detectors=("joint_energy", "odin")), scenes


def truncate(path):
    path.write_bytes(path.read_bytes()[:-30])


def watching(stages):
    def watch(stage, total):
        stages.append((stage, total))
        return unwatched(stage, total)

    return watch


def test_a_damaged_ood_image_is_found_before_any_work(own_data, tmp_path, counted):
    spec, scenes = own_data
    for number in range(7):
        truncate(scenes / "noise" / f"{number:05d}.png")
    with pytest.raises(DatasetError) as raised:
        run_benchmark(spec, tmp_path / "bench")
    assert counted == []
    message = str(raised.value)
    assert message.startswith("the benchmark cannot use 7 images:\n")
    assert str(scenes / "noise" / "00000.png") in message
    assert "and 2 more\n" in message
    assert "--skip-bad" in message


def test_damaged_images_of_every_split_are_left_out(own_data, tmp_path):
    spec, scenes = own_data
    for split in ("train", "val", "test", "unseen"):
        truncate(scenes / split / "00003.png")
    # Only decoding finds this one: the header and the end of the file are intact.
    path = scenes / "train" / "00004.png"
    content = bytearray(path.read_bytes())
    content[500:700] = bytes(200)
    path.write_bytes(content)
    spec = replace(spec, sets=(replace(spec.sets[0], skip_bad=True),))
    run = run_benchmark(spec, tmp_path / "bench")
    data = run.lines[0].manifest["data"]
    assert (data["train"]["n_images"], data["train"]["n_skipped"]) == (158, 2)
    assert (data["id"]["n_images"], data["id"]["n_skipped"]) == (47, 1)
    assert data["ood"]["unseen digits"]["n_skipped"] == 1
    assert data["ood"]["noise"]["n_skipped"] == 0
    evidence = run.evidence()[0]
    assert len(evidence.id_outputs) == 47
    assert "test/00003.png" not in evidence.id_outputs.ids


def test_images_are_checked_once_until_one_changes(own_data, tmp_path):
    spec, scenes = own_data
    stages = []
    make_pipelines(spec, tmp_path / "cache", watch=watching(stages))
    assert ("checking images", 160 + 4 * 48) in stages
    stages.clear()
    make_pipelines(spec, tmp_path / "cache", watch=watching(stages))
    assert not any("checking" in stage for stage, _ in stages)
    os.utime(scenes / "noise" / "00000.png", (1, 1))
    make_pipelines(spec, tmp_path / "cache", watch=watching(stages))
    assert ("checking images", 48) in stages


def test_a_full_check_serves_a_fast_one(own_data, tmp_path, monkeypatch):
    spec, _ = own_data
    asked = []
    find = image_checks.find_damaged

    def counting(split, how, **options):
        asked.append(how)
        return find(split, how, **options)

    monkeypatch.setattr(image_checks, "find_damaged", counting)
    make_pipelines(spec, tmp_path / "cache", check="full")
    make_pipelines(spec, tmp_path / "cache")
    assert asked == ["full"] * 5
    shutil.rmtree(tmp_path / "cache")
    make_pipelines(spec, tmp_path / "cache")
    make_pipelines(spec, tmp_path / "cache", check="full")
    assert asked == ["full"] * 5 + ["fast"] * 5 + ["full"] * 5


def test_sets_with_an_ood_set_in_common_check_it_once(own_data, tmp_path):
    spec, _ = own_data
    both = replace(spec, sets=(spec.sets[0], replace(spec.sets[0], name="again")))
    stages = []
    make_pipelines(both, tmp_path / "cache", watch=watching(stages))
    assert ("checking images", 160 + 4 * 48) in stages


def test_the_options_of_the_command(nescio, own_data, spec_text, tmp_path):
    _, scenes = own_data
    file = tmp_path / "small.toml"
    file.write_text(spec_text.replace('"odin",\n', "").replace(
        '  "mahalanobis_perturbed(aggregate=sum)",\n', ""), "utf-8")  # fmt: skip
    truncate(scenes / "noise" / "00000.png")
    command = ("bench", file, "--data", scenes.parent, "-o", tmp_path / "bench", "--seed", 0)
    code, _, err = nescio(*command, "--check", "full")
    assert code == 1
    assert "cannot use 1 image:" in err
    code, out, err = nescio(*command, "--skip-bad", "--json")
    assert code == 0, err
    assert json.loads(out)[-1]["n_ood"] == 47
