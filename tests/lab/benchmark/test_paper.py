"""The paper's numbers: all there, as printed, and consistent where the paper repeats them."""

from collections import Counter

import pytest

from nescio.detectors import DETECTORS
from nescio.errors import ParameterError
from nescio.lab.benchmark.paper import find_paper_table, paper_tables, size_remark
from nescio.lab.benchmark.results import MEASURES

SETS = ("MS-COCO", "PASCAL-VOC", "NUS-WIDE")
NUMBERS = {
    "main": 72,
    "ablation": 45,
    "max-sum": 6,
    "resnet": 72,
    "resnet-ablation": 45,
    "texture": 72,
    "texture-ablation": 45,
    "topk": 57,
}
BY_HAND = [  # first and last of each table, typed from the paper
    ("main", "max_logit", "MS-COCO", "fpr", "43.53"),
    ("main", "joint_energy", "NUS-WIDE", "aupr", "96.40"),
    ("ablation", "sum_logit", "MS-COCO", "fpr", "95.46"),
    ("ablation", "joint_energy", "NUS-WIDE", "aupr", "96.40"),
    ("max-sum", "max_energy", "MS-COCO", "auroc", "89.11"),
    ("max-sum", "joint_energy", "NUS-WIDE", "auroc", "88.30"),
    ("resnet", "max_logit", "MS-COCO", "fpr", "34.54"),
    ("resnet", "joint_energy", "NUS-WIDE", "aupr", "96.34"),
    ("resnet-ablation", "sum_logit", "MS-COCO", "fpr", "95.63"),
    ("resnet-ablation", "joint_energy", "NUS-WIDE", "aupr", "96.34"),
    ("texture", "max_logit", "MS-COCO", "fpr", "14.63"),
    ("texture", "joint_energy", "NUS-WIDE", "aupr", "98.65"),
    ("texture-ablation", "sum_logit", "MS-COCO", "fpr", "95.63"),
    ("texture-ablation", "joint_energy", "NUS-WIDE", "aupr", "98.65"),
    ("main", "exp_joint_energy", "MS-COCO", "fpr", "38.12"),
    ("resnet", "exp_joint_energy", "PASCAL-VOC", "auroc", "91.36"),
    ("texture", "exp_joint_energy", "NUS-WIDE", "aupr", "97.63"),
    ("topk", "joint_energy", "MS-COCO", "fpr", "33.48"),
    ("topk", "top_k_joint_energy(k=40)", "PASCAL-VOC", "fpr", "-"),
    ("topk", "top_k_joint_energy(k=60)", "NUS-WIDE", "aupr", "96.40"),
]


def all_cells():
    return [(key, cell) for key, table in paper_tables().items() for cell in table.cells]


def cell_of(table, detector, id_name, measure):
    wanted = (detector, id_name, measure)
    cells = find_paper_table(table).cells
    [cell] = [cell for cell in cells if (cell.detector, cell.id, cell.measure) == wanted]
    return cell


def test_every_number_is_there():
    numbers = Counter(key for key, cell in all_cells() if cell.value is not None)
    assert numbers == NUMBERS
    assert list(paper_tables()) == list(NUMBERS)
    assert numbers.total() == 387 + 27  # of ExpJointEnergy
    for key, cell in all_cells():
        assert cell.value is None or cell.text == f"{cell.value:.2f}", (key, cell)


@pytest.mark.parametrize(("table", "detector", "id_name", "measure", "text"), BY_HAND)
def test_numbers_typed_by_hand(table, detector, id_name, measure, text):
    cell = cell_of(table, detector, id_name, measure)
    assert cell.text == text
    assert cell.value == (None if text == "-" else float(text))


def test_what_has_no_number():
    missing = Counter((key, cell.row, cell.text) for key, cell in all_cells() if cell.value is None)
    expected = {
        (key, row, "N/A"): 9
        for key in ("ablation", "resnet-ablation", "texture-ablation")
        for row in ("LOF", "Isolation Forest")
    }
    expected |= {("topk", f"JointEnergy (top-{k})", "-"): 3 for k in (40, 60)}
    assert missing == expected
    dashes = {cell.id for _, cell in all_cells() if cell.text == "-"}
    assert dashes == {"PASCAL-VOC"}


def test_every_detector_is_one_of_nescios():
    for key, cell in all_cells():
        assert (cell.detector == "") == (cell.text == "N/A"), (key, cell)
        if cell.detector:
            assert cell.detector.partition("(")[0] in DETECTORS, (key, cell)


def test_the_cells_have_the_sets_measures_and_numbers_of_the_paper():
    assert {cell.id for _, cell in all_cells()} == set(SETS)
    assert {cell.measure for _, cell in all_cells()} == set(MEASURES)
    for key, cell in all_cells():
        assert cell.ood == ("Textures" if key.startswith("texture") else "ImageNet")
        assert cell.aggregation == ("sum" if key.endswith("ablation") else "")
    numbers = [table.number for table in paper_tables().values()]
    assert numbers == [f"Table {number}" for number in range(1, 9)]


def column(table, detector, measure):
    return [cell_of(table, detector, id_name, measure).text for id_name in SETS]


@pytest.mark.parametrize("measure", MEASURES)
def test_joint_energy_is_the_same_wherever_the_paper_repeats_it(measure):
    for table, other in (
        ("main", "ablation"),
        ("main", "topk"),
        ("resnet", "resnet-ablation"),
        ("texture", "texture-ablation"),
    ):
        assert column(table, "joint_energy", measure) == column(other, "joint_energy", measure)
    for detector, same in (("max_energy", "max_logit"), ("joint_energy", "joint_energy")):
        assert column("max-sum", detector, "auroc") == column("main", same, "auroc")


def test_table_7_repeats_18_numbers_of_table_5_and_says_so():
    tables = paper_tables()
    theirs = {(c.row, c.id, c.measure): c.text for c in tables["resnet-ablation"].cells}
    same = {
        (c.row, c.id)
        for c in tables["texture-ablation"].cells
        if c.value is not None and theirs[c.row, c.id, c.measure] == c.text
    }
    rows = ("Logit", "Prob", "ODIN")
    assert same == {(row, id_name) for row in rows for id_name in ("MS-COCO", "PASCAL-VOC")}
    assert "Table 5" in tables["texture-ablation"].remark
    assert [key for key, table in tables.items() if "Table 5" in table.remark] == [
        "texture-ablation"
    ]


def test_what_the_paper_did_not_publish_is_marked():
    tables = paper_tables().values()
    unpublished = {table.key for table in tables if "commented out" in table.remark}
    rows = {(key, cell.row) for key, cell in all_cells() if cell.detector == "exp_joint_energy"}
    assert rows == {(key, "ExpJointEnergy (not published)") for key in unpublished}
    assert unpublished == {"main", "resnet", "texture"}


def test_what_is_not_there_is_an_error_that_says_what_is():
    with pytest.raises(ParameterError, match=r"must be 'main' or .*, got 'table1'"):
        find_paper_table("table1")


def test_the_sizes_of_the_ood_sets_fit_the_papers_aupr():
    """A nearly random row has the share of ID images as its AUPR: Isolation Forest on DenseNet."""
    id_sizes = {"MS-COCO": 40_775, "PASCAL-VOC": 10_991, "NUS-WIDE": 41_949}
    for id_name, n_id in id_sizes.items():
        share = cell_of("main", "isolation_forest", id_name, "aupr").value / 100
        implied = n_id * (1 - share) / share
        assert size_remark(id_name, "ImageNet", round(implied)) == ""
    assert "but the paper's numbers imply about 9,300" in size_remark(
        "NUS-WIDE", "ImageNet", 20_000
    )
    assert size_remark("my own", "ImageNet", 3) == ""
