"""Specs: what is read, what is refused, and the protocols."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import sklearn.ensemble

from nescio.detectors import DETECTORS
from nescio.detectors.registry import parse_detector
from nescio.errors import DatasetError, ImplausibleValuesWarning, ParameterError
from nescio.lab.benchmark.paper import paper_tables
from nescio.lab.benchmark.spec import (
    PROTOCOLS,
    load_spec,
    parse_benchmark,
    shipped_specs,
)
from nescio.lab.data import parse_address

SPEC = """
title = "tiny"
detectors = ["joint_energy", "odin(aggregate=sum)"]
seeds = [0, 3]

[train.model]
name = "small-cnn"

[[sets]]
name = "mine"
data = "coco:{data}/coco"
ood = { other = "folder:{data}/other" }
"""


def test_a_spec_is_read():
    spec = parse_benchmark("tiny", SPEC)
    assert spec.seeds == (0, 3)
    assert spec.aggregates() == ("sum",)
    assert spec.tune.images == 1000
    placed = spec.with_data("/data")
    assert placed.sets[0].data == "coco:/data/coco"
    assert placed.sets[0].ood == {"other": "folder:/data/other"}


@pytest.mark.parametrize("name", [name for name in shipped_specs() if name.startswith("paper-")])
def test_a_spec_of_the_paper_fills_its_tables(name):
    """Every number of its tables has a set, an OOD set and a detector in the spec."""
    spec = load_spec(name)
    assert spec.paper_tables
    wanted = {
        (cell.id, cell.ood, cell.detector)
        for key in spec.paper_tables
        for cell in paper_tables()[key].cells
        if cell.value is not None
    }
    values = {
        (part.name, ood, detector)
        for part in spec.sets
        for ood in part.ood
        for detector in spec.detectors
    }
    assert wanted <= values


def test_the_papers_specs_cover_all_eight_tables():
    covered = [key for name in shipped_specs() for key in load_spec(name).paper_tables]
    assert sorted(covered) == sorted(paper_tables())


def test_the_mean_number_of_labels_takes_the_place_of_k():
    detector = parse_benchmark("tiny", SPEC).detector
    assert detector("top_k_joint_energy(k=mean_labels)", mean_labels=3).k == 3
    nested = detector("combined(detectors=[msp, top_k_logit(k = mean_labels)])", mean_labels=3)
    assert nested.detectors[1] == "top_k_logit(k=3)"


def test_a_detector_of_your_own_is_named_by_its_class(own_detectors):
    name = "fixtures.own_detectors:Neighbours"
    text = SPEC.replace('"joint_energy"', f'"{name}", "{name}(k=9)"')
    spec = parse_benchmark("tiny", text)
    assert spec.detector(spec.detectors[1]).k == 9
    with pytest.raises(ParameterError, match="tiny: cannot import 'no_such_module'"):
        parse_benchmark("tiny", SPEC.replace('"joint_energy"', '"no_such_module:Detector"'))


def test_the_quick_digits_are_the_same_data_and_network_with_every_detector_without_tuning():
    quick, full = load_spec("digits-quick"), load_spec("digits")
    assert (quick.sets, quick.train) == (full.sets, full.train)
    assert quick.aggregates() == ()
    tuned = {"odin", "mahalanobis_perturbed"}
    own = {name for name, kind in DETECTORS.items() if kind.__module__.startswith("nescio.")}
    assert {parse_detector(text)[0] for text in quick.detectors} == own - tuned
    assert {text for text in full.detectors if parse_detector(text)[0] not in tuned} <= {
        *quick.detectors
    }


def test_some_of_it():
    with pytest.raises(ParameterError, match=r"no benchmark 'papermain'.*paper-densenet"):
        load_spec("papermain")
    spec = load_spec("paper-densenet").only(["NUS-WIDE"], [0])
    assert [part.name for part in spec.sets] == ["NUS-WIDE"]
    with pytest.raises(ParameterError, match=r"has no set 'COCO'. It has NUS-WIDE"):
        spec.only(["COCO"], [])
    with pytest.raises(ParameterError, match="has no seed 7"):
        spec.only([], [7])


@pytest.mark.parametrize("name", shipped_specs())
def test_a_shipped_spec_contains_no_path(name):
    spec = load_spec(name)
    for part in spec.sets:
        for address in (part.data, *part.ood.values()):
            assert parse_address(address).path.startswith("{data}")
    with pytest.raises(ParameterError, match=rf"the benchmark {name} needs to know .*--data"):
        spec.with_data(None)


NUS_SPEC = """
title = "tiny"
detectors = ["lof", "joint_energy"]
{}
[[sets]]
name = "NUS-WIDE"
data = "nus-wide:/data/nus-wide"
ood = {{ other = "folder:/data/other" }}
"""

BAD = {
    "an unknown entry": (
        SPEC.replace("seeds", "sedes"),
        "there is no key 'sedes'. Did you mean 'seeds'\\? The keys are",
    ),
    "an unknown detector": (SPEC.replace("joint_energy", "joint"), "there is no detector 'joint'"),
    "a detector twice": (
        SPEC.replace("odin(aggregate=sum)", "joint_energy"),
        "duplicate detector: 'joint_energy'",
    ),
    "a set without OOD data": (
        SPEC.replace('other = "folder:{data}/other"', ""),
        "the set 'mine' has no OOD set",
    ),
    "two sets of one name on disk": (
        SPEC + SPEC[SPEC.index("[[sets]]") :].replace("mine", "MINE"),
        "duplicate set: 'mine'",
    ),
    "one network for two seeds": (
        SPEC + 'network = "x"\n',
        "a network from a file: name a single seed",
    ),
    "data of one part": (SPEC.replace("coco:", "folder:"), "folder has no split"),
    "no such table of the paper": (
        'paper_tables = ["mian"]\n' + SPEC,
        "a table of the paper must be 'main' or .*, got 'mian'",
    ),
    "too few images": (SPEC + "[tune]\nimages = 1\n", r"\[tune\]: images must be"),
    "an OOD set by the ID set's name": (SPEC.replace("other =", "mine ="), "'mine' names an ID"),
    "a protocol": (
        NUS_SPEC.format("protocol = 'mine'"),
        "protocol must be 'paper' or 'authors' or 'authors-earlier'",
    ),
    "halves": (NUS_SPEC.format("nus_wide_halves = 'x'"), "nus_wide_halves must be"),
    "a split": (
        NUS_SPEC.format("fit_on = { lof = 'test' }"),
        "fit_on.lof must be 'train' or 'val'",
    ),
    "a variant": (
        NUS_SPEC.format("variants = { lof = 'lob' }"),
        "there is no detector 'lob'",
    ),
    "held-out data": (
        NUS_SPEC.format("fit_on = { combined = 'val' }"),
        "combined cannot be fitted on val, which is the held-out data",
    ),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
def test_an_invalid_spec(text, reason):
    with pytest.raises(ParameterError, match=f"tiny: .*{reason}"):
        parse_benchmark("tiny", text)


PAPER_SPECS = [name for name in shipped_specs() if name.startswith("paper-")]


def test_the_authors_protocol_is_a_set_of_defaults():
    spec = parse_benchmark("tiny", NUS_SPEC.format(""), protocol="authors")
    assert spec.name == "tiny-authors"
    assert spec.protocol == "authors"
    assert spec.fitted_on_val() == ("lof",)
    assert spec.split_name(spec.sets[0], "val") == "authors-val"
    assert spec.split_name(spec.sets[0], "train") == "train"
    forest = {"random_state": np.random.RandomState(42)}  # as lib.py of the authors makes it
    train, new = np.random.default_rng(0).normal(size=(2, 300, 4))
    theirs = sklearn.ensemble.IsolationForest(**forest).fit(train).score_samples(new)
    ours = spec.detector("isolation_forest").fit(train).score_samples(new)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert spec.train.training.select == "last"
    assert spec.train.training.batch_size == 200
    assert spec.tune.odin.label == "predicted"
    assert len(spec.tune.odin.epsilons) == 15
    paper = parse_benchmark("tiny", NUS_SPEC.format("protocol = 'authors'"), protocol="paper")
    assert paper.name == "tiny"
    assert paper.fitted_on_val() == ()
    assert paper.split_name(paper.sets[0], "val") == "val"


@pytest.mark.parametrize(
    ("setting", "holds"),
    [
        ("[tune.odin]\nlabel = 'top'", lambda spec: spec.tune.odin.label == "top"),
        ("[train.training]\nselect = 'val_map'", lambda spec: "val_map" in str(spec.train)),
        ("[fit_on]\nlof = 'train'", lambda spec: spec.fitted_on_val() == ()),
        ("nus_wide_halves = 'nescio'", lambda spec: spec.split_name(spec.sets[0], "val") == "val"),
    ],
)
def test_a_setting_of_the_file_wins_over_the_protocol(setting, holds):
    spec = parse_benchmark("tiny", NUS_SPEC.format("protocol = 'authors'\n" + setting))
    assert spec.protocol == "authors"
    assert holds(spec)
    assert spec.train.augmentation.crop_scale == (0.5, 2.0)  # the others remain


def test_a_table_named_after_a_protocol_is_read_with_this_protocol_only():
    sizes = {
        protocol: load_spec("paper-resnet", protocol=protocol).train.training.batch_size
        for protocol in PROTOCOLS
    }
    assert sizes == {"paper": 64, "authors": 320, "authors-earlier": 320}
    assert load_spec("paper-densenet", protocol="authors").train.training.batch_size == 200


def in_miniature(name, protocol):
    """Return a spec of the paper with a tiny network, on few images and without intervals."""
    text = shipped_specs()[name]
    text = text.replace('["backbone.conv1", "backbone.layer1"]', '["backbone.0"]')
    for network in ("densenet121", "resnet101", "resnet50"):
        tiny = 'name = "small-cnn"\nweights = "none"\nn_hidden = 8'
        text = text.replace(f'name = "{network}"', tiny)
    small = """
    [train.images]
    size = 8
    [train.training]
    epochs = 1
    [tune]
    images = 3
    [tune.odin]
    epsilons = [0.0, 0.001]
    """
    return parse_benchmark(name, f"bootstrap = 0\n{text}\n{small}", protocol=protocol)


@pytest.mark.filterwarnings("ignore")  # PASCAL-VOC has fewer labels than some k
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_specs_of_the_paper_run_in_miniature(protocol, paper_data, tmp_path):
    pytest.importorskip("torchvision")
    from nescio.lab.benchmark.run import run_benchmark

    suffix = "" if protocol == "paper" else f"-{protocol}"
    for name in PAPER_SPECS:
        spec = in_miniature(name, protocol).with_data(paper_data)
        run = run_benchmark(spec, tmp_path)
        assert run.folder == tmp_path / f"{name}{suffix}"
        assert {line.manifest["protocol"] for line in run.lines} == {protocol}
        done = {(line.id, line.ood, line.detector) for line in run.lines if line.evaluation}
        for key in spec.paper_tables:
            cells = [cell for cell in paper_tables()[key].cells if cell.value is not None]
            assert done >= {(cell.id, cell.ood, cell.detector) for cell in cells}
            beside = (run.folder / "tables" / f"paper-{key}.md").read_text("utf-8")
            assert f"Protocol: {protocol}." in beside
            assert "not run" not in beside
    check_manifest(run.lines[-1].manifest, protocol)


def test_the_works_that_followed_run_in_miniature(paper_data, tmp_path):
    pytest.importorskip("torchvision")
    from nescio.lab.benchmark.run import run_benchmark

    names = [name for name in shipped_specs() if name.startswith("followup-")]
    for name in names:
        spec = in_miniature(name, "paper").with_data(paper_data)
        run = run_benchmark(spec, tmp_path)
        wanted = {(part.name, ood) for part in spec.sets for ood in part.ood}
        assert {(line.id, line.ood) for line in run.lines if line.evaluation} == wanted
    assert len(names) == 3


def test_the_layers_that_a_spec_normalises_exist():
    pytest.importorskip("torchvision")
    from nescio.lab.networks.network import build_network
    from nescio.lab.networks.weights import SpectralNorm

    model = load_spec("followup-snojoe").train.model
    network = build_network(model.name, 2)
    layers = SpectralNorm(network, network, model.spectral_norm).layers
    assert "backbone.conv1" in layers
    assert "backbone.layer1.2.conv3" in layers
    assert not any("layer2" in layer or "head" in layer for layer in layers)


def test_voc_runs_without_its_test_images(paper_data, tmp_path):
    pytest.importorskip("torchvision")
    from nescio.lab.benchmark.run import make_pipelines, run_benchmark

    data = tmp_path / "data"
    voc = shutil.copytree(paper_data / "VOCdevkit", data / "VOCdevkit") / "VOC2012"
    (voc / "ImageSets" / "Main" / "test.txt").unlink()
    for image in (voc / "JPEGImages").glob("test_*"):
        image.unlink()
    shutil.copytree(paper_data / "imagenet22k", data / "imagenet22k")
    wanted = in_miniature("paper-densenet", "paper").with_data(data).only(["PASCAL-VOC"], [])
    with pytest.raises(DatasetError, match="nescio bench voc-trainval"):
        run_benchmark(wanted, tmp_path)
    shutil.copytree(paper_data / "VOCdevkit", data / "VOCdevkit", dirs_exist_ok=True)
    with pytest.warns(ImplausibleValuesWarning, match=r"20 images for PASCAL-VOC, .* 20,000"):
        make_pipelines(wanted, tmp_path)
    run = run_benchmark(in_miniature("voc-trainval", "paper").with_data(data), tmp_path)
    done = {line.detector for line in run.lines if line.evaluation}
    assert done == {
        cell.detector for key in ("main", "max-sum") for cell in paper_tables()[key].cells
    }
    assert run.lines[0].manifest["data"]["id"]["n_images"] == 5


def check_manifest(manifest, protocol):
    """The manifest of the last spec, on NUS-WIDE, says what the protocol changed."""
    theirs = protocol != "paper"
    assert manifest["mean_labels"] == 2
    assert manifest["data"]["id"]["split"] == ("authors-test" if theirs else "test")
    assert manifest["data"]["id"]["data_notes"] == {"halves_seed": 999 if theirs else 2021}
    training = manifest["training"]["settings"]["training"]
    chosen = {"paper": ("val_loss", "trained"), "authors": ("last", "first_epoch")}
    chosen["authors-earlier"] = ("val_map", "fixed_weights")
    assert (training["select"], training["batch_norm"]) == chosen[protocol]
    assert training["epochs"] == 1  # as the file says
    assert json.dumps(manifest["fit_on"]) == json.dumps(
        {"lof": "val", "isolation_forest": "val"} if theirs else {}
    )


def test_lof_learns_from_the_validation_data_if_told_to(small_spec, bench_folder, counted):
    from nescio.lab.benchmark.run import run_benchmark

    spec = replace(small_spec, name="fitted", detectors=("lof", "msp"), seeds=(0,))
    on_train = run_benchmark(spec, bench_folder)
    counted.clear()
    on_val = run_benchmark(replace(spec, fit_on={"lof": "val"}), bench_folder)
    assert counted == []  # the outputs of the validation data are always there
    assert "val" in on_val.lines[0].manifest["data"]
    for before, after in zip(on_train.lines, on_val.lines, strict=True):
        same = before.evaluation == after.evaluation
        assert same == (before.detector == "msp")


def test_a_combination_is_calibrated_on_the_validation_data(small_spec, bench_folder):
    from nescio.lab.benchmark.run import run_benchmark

    text = "combined(detectors=[max_logit, mahalanobis], weights=[2, 1])"
    spec = replace(small_spec, name="combined", detectors=("msp", text), seeds=(0,))
    lines = run_benchmark(spec, bench_folder).lines
    assert {line.detector for line in lines} == {"msp", text}
    assert all(line.evaluation is not None for line in lines), lines[-1].skipped
    manifest = lines[0].manifest
    assert manifest["held_out"] == {"val": [text]}
    assert manifest["data"]["val"]["split"] == "val"
    assert run_benchmark(spec, bench_folder).lines == lines
