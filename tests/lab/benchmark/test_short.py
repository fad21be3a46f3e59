"""The short table: which rows it has, and what is said about them."""

import pytest

from fixtures.benchmark import result_line
from nescio.lab.benchmark.tables import compared_sentences, comparison_rows, comparison_table

FPR = {  # per cent, on a near and a far set
    "combined": (40, 10),
    "joint_energy": (60, 90),
    "max_energy": (50, 80),
    "max_logit": (50, 80),
    "knn": (95, 0),
    "lof": (30, 70),
}


def lines_of(values):
    return [
        result_line(name, "no data" if fpr is None else (fpr, 100 - fpr / 2, 50), ood=ood)
        for name, both in values.items()
        for ood, fpr in zip(("near", "far"), both, strict=True)
    ]


def rows_of(values, default="combined"):
    return comparison_rows(lines_of(values), near="near", default=default)


def test_detectors_that_rank_alike_are_one_row_and_the_best_are_named_as_such():
    assert [(row.detectors, row.what) for row in rows_of(FPR)] == [
        (("combined",), "the default"),
        (("knn",), "best single method on average, in hindsight"),
        (("lof",), "best single method on near, in hindsight"),
        (("max_logit", "max_energy"), "the largest logit"),
        (("joint_energy",), "joint energy"),
    ]


def test_one_detector_may_be_several_things():
    rows = rows_of({"joint_energy": (5, 5), "max_logit": (9, 9), "msp": (9, 9), "knn": (9, 10)})
    assert [(row.detectors, row.what) for row in rows] == [
        (
            ("joint_energy",),
            "joint energy; best single method on near and on average, in hindsight",
        ),
        (("max_logit", "msp"), "the largest logit"),
        (("knn",), ""),
    ]
    assert rows_of({"joint_energy": (5, 5)}, "joint_energy")[0].what.startswith("the default; ")
    assert [row.what for row in rows_of({"combined": (5, 5)})] == ["the default"]


def test_a_detector_that_could_not_run_has_no_row():
    rows = rows_of({**FPR, "odin": (None, None)})
    assert "odin" not in [name for row in rows for name in row.detectors]


def test_the_sentences_say_where_the_default_is_better_and_where_it_is_worse():
    to_joint, to_best = compared_sentences(rows_of(FPR), "combined")
    assert to_joint == (
        "combined lets through less than joint_energy of near (40.00 % against 60.00 %) and far "
        "(10.00 % against 90.00 %)."
    )
    assert to_best == (
        "combined lets through less than knn of near (40.00 % against 95.00 %), more than knn of "
        "far (10.00 % against 0.00 %)."
    )
    worse = compared_sentences(rows_of({**FPR, "combined": (60, 99)}), "combined")[0]
    assert worse == (
        "combined lets through more than joint_energy of far (99.00 % against 90.00 %), as much as "
        "joint_energy of near (60.00 % against 60.00 %)."
    )


@pytest.mark.parametrize("default", ["", "joint_energy"])
def test_a_row_is_not_compared_with_itself(default):
    rows = rows_of({"joint_energy": (5, 5), "max_logit": (9, 9)}, default)
    assert compared_sentences(rows, default) == []


def test_the_table_has_a_column_for_each_set_with_its_lowest_fpr_in_bold():
    table = comparison_table(rows_of(FPR)[1:], "Title", ["A note."])
    assert [column.title for column in table.columns] == ["detector", "", "near", "far"]
    assert table.to_markdown().splitlines()[4:6] == [
        "| `knn` | best single method on average, in hindsight | 95.00 | **0.00** |",
        "| `lof` | best single method on near, in hindsight | **30.00** | 70.00 |",
    ]
    assert table.records[2]["detector"] == "max_logit, max_energy"
