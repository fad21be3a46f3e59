"""Specs: what they contain, and what is rejected in them."""

import pytest

from nescio.detectors import DETECTORS
from nescio.detectors.registry import parse_detector
from nescio.errors import FileFormatError, ParameterError
from nescio.lab.benchmark.paper import paper_tables
from nescio.lab.benchmark.spec import (
    load_spec,
    parse_benchmark,
    resolve_detector,
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
    given = {
        (part.name, ood, detector)
        for part in spec.sets
        for ood in part.ood
        for detector in spec.detectors
    }
    assert wanted <= given


def test_the_papers_specs_cover_all_eight_tables():
    covered = [key for name in shipped_specs() for key in load_spec(name).paper_tables]
    assert sorted(covered) == sorted(paper_tables())


def test_the_mean_number_of_labels_takes_the_place_of_k():
    assert resolve_detector("top_k_joint_energy(k=mean_labels)", mean_labels=3).k == 3
    nested = resolve_detector(
        "combined(detectors=[msp, top_k_logit(k = mean_labels)])", mean_labels=3
    )
    assert nested.detectors[1] == "top_k_logit(k=3)"


def test_a_detector_of_your_own_is_named_by_its_class(own_detectors):
    name = "fixtures.own_detectors:Neighbours"
    text = SPEC.replace('"joint_energy"', f'"{name}", "{name}(k=9)"')
    spec = parse_benchmark("tiny", text)
    assert resolve_detector(spec.detectors[1], mean_labels=3).k == 9
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
    spec = load_spec("paper-main").only(["NUS-WIDE"], [0])
    assert [part.name for part in spec.sets] == ["NUS-WIDE"]
    with pytest.raises(ParameterError, match=r"has no set 'COCO'. It has NUS-WIDE"):
        spec.only(["COCO"], [])
    with pytest.raises(ParameterError, match="has no seed 7"):
        spec.only([], [7])


@pytest.mark.parametrize("name", shipped_specs())
def test_a_shipped_spec_contains_no_path(name):
    spec = load_spec(name)
    for one in spec.sets:
        for address in (one.data, *one.ood.values()):
            assert parse_address(address).path.startswith("{data}")
    with pytest.raises(ParameterError, match=rf"the benchmark {name} needs to know .* --data"):
        spec.with_data(None)


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
    "one network for two seeds": (SPEC + 'network = "x"\n', "one network, from a file, for 2"),
    "data of one part": (SPEC.replace("coco:", "folder:"), "folder has no split"),
    "no such table of the paper": (
        'paper_tables = ["mian"]\n' + SPEC,
        "the paper has no table 'mian'",
    ),
    "an unknown section of training": (
        SPEC + "[train.modle]\n",
        r"\[train\]: there is no key 'modle'. Did you mean 'model'",
    ),
    "too few images": (SPEC + "[tune]\nimages = 1\n", r"\[tune\]: images must be"),
    "an OOD set by the ID set's name": (SPEC.replace("other =", "mine ="), "'mine' names an ID"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
def test_an_invalid_spec(text, reason):
    with pytest.raises(ParameterError, match=f"tiny: .*{reason}"):
        parse_benchmark("tiny", text)


def test_an_invalid_file(tmp_path):
    (tmp_path / "x.toml").write_text("title = ")
    with pytest.raises(FileFormatError, match="is not TOML"):
        load_spec(tmp_path / "x.toml")
    with pytest.raises(ParameterError, match=r"no benchmark 'papermain'.*paper-main"):
        load_spec("papermain")
