"""Tables of results and of the paper, and their formats."""

import csv
import io
import re
from dataclasses import replace

import pytest

from fixtures.benchmark import result_line as line
from nescio.lab.benchmark.paper import paper_tables
from nescio.lab.benchmark.tables import (
    Column,
    Table,
    TablePart,
    benchmark_tables,
    fpr_table,
    mean_fprs,
    network_table,
    paper_comparison,
    paper_table,
    result_tables,
)


def texts(row):
    """The text of each cell of a row."""
    return [" / ".join(part.text for part in cell) for cell in row]


def row_of(table, *heads):
    """The texts of the row that begins with `heads`."""
    rows = map(texts, table.rows)
    [cells] = [row[len(heads) :] for row in rows if tuple(row[: len(heads)]) == heads]
    return cells


def read_csv(table):
    return list(csv.DictReader(io.StringIO(table.to_csv())))


# --- results --------------------------------------------------------------------------------------


def test_results_in_markdown():
    values = {
        "msp": [(60, 80, 85), (62, 82, 85)],
        "joint_energy": [(10, 98, 99), (13, 97, 99)],
        "lof": [(40, 99, 70)] * 2,
    }
    lines = [line(name, both[seed], seed=seed) for name, both in values.items() for seed in (0, 1)]
    # The deviations by hand: (62 - 60) / sqrt(2), (13 - 10) / sqrt(2), (98 - 97) / sqrt(2).
    [table] = result_tables(lines)
    assert table.to_markdown() == "\n".join(
        [
            "**MS-COCO against ImageNet**",
            "",
            "| detector | FPR95 ↓ | AUROC ↑ | AUPR ↑ |",
            "|---|---:|---:|---:|",
            "| `joint_energy` | **11.50 ± 2.12** | 97.50 ± 0.71 | **99.00 ± 0.00** |",
            "| `lof` | 40.00 ± 0.00 | **99.00 ± 0.00** | 70.00 ± 0.00 |",
            "| `msp` | 61.00 ± 1.41 | 81.00 ± 1.41 | 85.00 ± 0.00 |",
            "",
            "Per cent, mean ± standard deviation over 2 seeds.",
        ]
    )


def test_csv_has_the_cells_as_printed():
    lines = [line("msp", (value, 80, 85), seed=seed) for seed, value in enumerate((60, 61, 61))]
    [row] = read_csv(result_tables(lines)[0])
    assert row["detector"] == "msp"
    assert row["FPR95 ↓"] == "60.67 ± 0.58"
    [once] = result_tables(lines[:1])
    assert row_of(once, "msp") == ["60.00", "80.00", "85.00"]
    assert once.notes == ("Per cent, of one seed.",)


def test_one_table_a_pair_in_order_of_appearance():
    tables = result_tables(
        [
            line("msp", (60, 80, 85), ood="Textures"),
            line("msp", (50, 80, 85), ood="ImageNet"),
            line("lof", (70, 80, 85), ood="Textures"),
            line("lof", (70, 80, 85), ood="Textures", id_name="NUS-WIDE"),
        ]
    )
    assert [table.title for table in tables] == [
        "MS-COCO against Textures",
        "MS-COCO against ImageNet",
        "NUS-WIDE against Textures",
    ]
    assert [len(table.rows) for table in tables] == [2, 1, 1]
    assert result_tables([]) == []


def test_what_prints_alike_is_best_together_and_alone_nothing_is():
    lines = [line("max_logit", (10, 90, 90)), line("max_energy", (10.001, 90, 89))]
    [table] = result_tables(lines)
    bold = {row[0][0].text: [part.best for [part] in row[1:]] for row in table.rows}
    assert bold == {"max_logit": [True, True, True], "max_energy": [True, True, False]}
    [alone] = result_tables(lines[:1])
    assert "**" not in alone.to_markdown().partition("\n")[2]


def test_skipped_detectors_are_notes():
    [table] = result_tables(
        [
            line("msp", (60, 80, 85), seed=0),
            line("msp", (60, 80, 85), seed=1),
            line("lof", (70, 80, 85), seed=0),
            line("lof", "too few samples.", seed=1),
            line("odin", "there is no odin_max.", seed=0),
            line("odin", "there is no odin_max.", seed=1),
        ]
    )
    assert [row[0][0].text for row in table.rows] == ["msp", "lof"]
    assert table.notes == (
        "Per cent, mean ± standard deviation over 1 to 2 seeds.",
        "lof did not run on MS-COCO (seed 1): too few samples.",
        "odin did not run on MS-COCO (seed 0, 1): there is no odin_max.",
    )
    assert r"there is no odin\_max." in table.to_markdown()
    [empty] = result_tables([line("odin", "there is no odin_max.")])
    assert (empty.rows, len(empty.notes)) == ((), 1)
    assert empty.to_markdown().count("\n|") == 2


# --- the paper's ----------------------------------------------------------------------------------


def test_the_papers_table_as_printed():
    table = paper_table(paper_tables()["ablation"])
    assert table.to_markdown().splitlines()[2:11] == [
        "| OOD score | Aggregation | MS-COCO | PASCAL-VOC | NUS-WIDE |",
        "|---|---|---:|---:|---:|",
        "| Logit | Sum | 95.46 / 61.81 / 80.39 | 87.18 / 72.68 / 61.24 | 96.53 / 51.75 / 82.55 |",
        "| Prob | Sum | 45.04 / 89.32 / 94.40 | **38.57** / 86.53 / 79.10 "
        "| 50.84 / 83.82 / 95.15 |",
        "| ODIN | Sum | 56.56 / 84.62 / 92.24 | 50.35 / 79.45 / 70.19 | 56.26 / 81.04 / 94.34 |",
        "| Mahalanobis | Sum | 53.43 / 87.52 / 93.35 | 44.43 / 87.76 / 79.86 "
        "| 69.05 / 80.46 / 94.09 |",
        "| LOF | Sum | N/A | N/A | N/A |",
        "| Isolation Forest | Sum | N/A | N/A | N/A |",
        "| JointEnergy (ours) | Sum | **33.48** / **92.70** / **96.25** "
        "| 41.01 / **91.10** / **86.33** | **48.98** / **88.30** / **96.40** |",
    ]


def test_table_3_has_sets_as_columns_like_the_others():
    table = paper_table(paper_tables()["max-sum"])
    assert table.to_csv().splitlines() == [
        "OOD score,MS-COCO,PASCAL-VOC,NUS-WIDE",
        "MaxEnergy,89.11,89.22,83.58",
        "JointEnergy,92.70,91.10,88.30",
    ]
    assert table.notes == ("Each cell: AUROC ↑, per cent.",)
    assert r"MaxEnergy & 89.11 & 89.22 & 83.58 \\" in table.to_latex()


def test_dashes_and_ties_of_the_top_k():
    table = paper_table(paper_tables()["topk"])
    [row] = [row for row in table.rows if row[0][0].text == "JointEnergy (top-40)"]
    assert texts(row[1:]) == [
        "33.53 / 92.70 / 96.25",
        "- / - / -",
        "48.98 / 88.30 / 96.40",
    ]
    assert [part.best for part in row[1]] == [False, True, True]  # 33.48 is best
    assert not any(part.best for part in row[2])


@pytest.mark.parametrize("key", paper_tables())
def test_every_table_keeps_every_number(key):
    table = paper_tables()[key]
    expected = sorted(cell.text for cell in table.cells if cell.value is not None)
    for text in (paper_table(table).to_csv(), paper_comparison(table, []).to_csv()):
        assert sorted(re.findall(r"\d\d\.\d\d", text)) == expected


# --- one beside the other -------------------------------------------------------------------------


def test_differences_by_hand():
    lines = [
        line("max_logit", (45.53, 88.11, 93.74)),
        line("joint_energy", (30.00, 92.71, 97.00), seed=0),
        line("joint_energy", (34.00, 92.71, 97.00), seed=1),
    ]
    table = paper_comparison(paper_tables()["main"], lines)
    assert [column.title for column in table.columns] == [
        *("OOD score", "Measure"),
        *("MS-COCO", "PASCAL-VOC", "NUS-WIDE"),
    ]
    assert len(table.rows) == 8 * 3  # one of them not published
    # 45.53 - 43.53, 88.11 - 89.11, 93.74 - 93.74
    assert row_of(table, "MaxLogit", "FPR95 ↓")[0] == "45.53 / 43.53 / +2.00"
    assert row_of(table, "MaxLogit", "AUROC ↑")[0] == "88.11 / 89.11 / -1.00"
    assert row_of(table, "MaxLogit", "AUPR ↑")[0] == "93.74 / 93.74 / +0.00"
    # The mean of 30 and 34 is 32; the deviation 4 / sqrt(2); 32 - 33.48
    assert row_of(table, "JointEnergy", "FPR95 ↓") == [
        "32.00 ± 2.83 / 33.48 / -1.48",
        "not run / 41.01",
        "not run / 48.98",
    ]
    assert row_of(table, "MSP", "AUPR ↑")[0] == "not run / 85.37"
    markdown = table.to_markdown()
    assert "| JointEnergy | FPR95 ↓ | **32.00 ± 2.83** / **33.48** / -1.48 |" in markdown
    assert r"\textbf{32.00 $\pm$ 2.83} / \textbf{33.48} / $-$1.48 &" in table.to_latex()


def test_another_number_of_ood_images_than_the_papers_is_noted_once():
    lines = [line("max_logit", (20, 89, 93)), line("joint_energy", (30, 92, 97))]
    notes = paper_comparison(paper_tables()["main"], lines).notes
    [note] = [note for note in notes if "20,000" in note]
    assert note.startswith("ImageNet has 10 images for MS-COCO, but the paper's numbers imply")
    evaluation = replace(lines[0].evaluation, n_ood=18_500)
    alike = paper_comparison(paper_tables()["main"], [replace(lines[0], evaluation=evaluation)])
    assert not any("20,000" in note for note in alike.notes)


def test_our_best_may_be_another_than_the_papers():
    lines = [line("max_logit", (20, 89.109, 93)), line("joint_energy", (30, 92, 97))]
    markdown = paper_comparison(paper_tables()["main"], lines).to_markdown()
    assert "| MaxLogit | FPR95 ↓ | **20.00** / 43.53 / -23.53 |" in markdown
    assert "| JointEnergy | FPR95 ↓ | 30.00 / **33.48** / -3.48 |" in markdown
    assert "89.11 / 89.11 / +0.00 |" in markdown  # and not -0.00


def test_the_comparison_in_csv():
    rows = read_csv(paper_comparison(paper_tables()["main"], [line("msp", (80, 75, 85.375))]))
    [row] = [row for row in rows if (row["OOD score"], row["Measure"]) == ("MSP", "AUPR ↑")]
    assert row["MS-COCO"] == "85.38 / 85.37 / +0.00"
    assert row["NUS-WIDE"] == "not run / 87.00"


def test_what_the_paper_has_no_number_for():
    lines = [
        line("lof", (50, 50, 50)),
        line("odin(aggregate=sum)", (50.56, 84.62, 92.24)),
    ]
    table = paper_comparison(paper_tables()["ablation"], lines)
    assert row_of(table, "LOF", "Sum", "FPR95 ↓") == ["N/A"] * 3
    assert row_of(table, "ODIN", "Sum", "FPR95 ↓")[0] == "50.56 / 56.56 / -6.00"
    ours = line("top_k_joint_energy(k=40)", (50, 60, 70), id_name="PASCAL-VOC")
    top_k = paper_comparison(paper_tables()["topk"], [ours])
    assert row_of(top_k, "JointEnergy (top-40)", "FPR95 ↓")[1] == "50.00 / -"
    assert row_of(top_k, "JointEnergy (top-60)", "FPR95 ↓")[1] == "-"


def test_lines_of_other_names_do_not_count():
    lines = [
        line("joint_energy", (1, 2, 3), ood="Textures"),
        line("joint_energy", (1, 2, 3), id_name="coco"),
        line("joint_energy(tpr=0.9)", (1, 2, 3)),
        line("mahalanobis", "this has no place in the paper."),
    ]
    table = paper_comparison(paper_tables()["main"], lines)
    cells = [text for row in table.rows for text in texts(row[2:])]
    assert all(text.startswith("not run / ") for text in cells)
    assert len(table.notes) == 2  # one is the remark on the table


def test_a_benchmarks_tables_are_written_in_every_format(tmp_path):
    lines = [line("joint_energy", (33.0, 92.0, 96.0)), line("msp", "no", ood="a/b c")]
    tables = benchmark_tables(lines, ["main"])
    assert list(tables) == ["networks", "MS-COCO-vs-ImageNet", "MS-COCO-vs-a_b_c", "paper-main"]
    for name, table in tables.items():
        table.write(tmp_path / "tables", name)
    assert len(list((tmp_path / "tables").iterdir())) == 12
    assert "-0.48" in (tmp_path / "tables" / "paper-main.md").read_text("utf-8")
    assert (tmp_path / "tables" / "paper-main.tex").read_text("utf-8").count("toprule") == 1


def test_the_networks_and_what_was_tuned_for_them():
    tuned = [
        {"method": "odin", "aggregate": "max", "epsilon": 0.0004, "temperature": 10.0},
        {"method": "mahalanobis", "aggregate": "sum", "epsilon": 0.0, "temperature": None},
    ]
    manifest = {
        "model": "resnet101",
        "model_hash": "0123456789abcdef",
        "training": {"best": {"epoch": 7, "val_loss": 0.12345, "val_map": 0.5}},
        "tuning": {"best": tuned},
    }
    lines = [
        replace(line("msp", (1.0, 2.0, 3.0), seed=seed), manifest=manifest if seed else {})
        for seed in (0, 1, 1)
    ]
    table = network_table(lines)
    assert [column.title for column in table.columns][5:] == [
        *("val loss", "val mAP", "paper's mAP", "mahalanobis sum ε", "odin max ε"),
    ]
    assert row_of(table, "MS-COCO", "0") == [""] * 8
    assert row_of(table, "MS-COCO", "1") == [
        *("resnet101", "0123456789ab", "7", "0.1235", "0.5000", "0.7277", "0", "0.0004, T = 10"),
    ]


def test_detectors_side_by_side_on_all_sets():
    fprs = {"lof": (30, 70), "joint_energy": (60, 90), "knn": (95, 0)}
    lines = [
        line(name, (fpr, 50, 50), ood=ood)
        for name, both in fprs.items()
        for ood, fpr in zip(("near", "far"), both, strict=True)
    ]
    lines += [line("odin", "no data", ood=ood) for ood in ("near", "far")]
    assert mean_fprs(lines) == {"knn": 0.475, "lof": 0.5, "joint_energy": 0.75}
    table = fpr_table(lines, ["knn", "joint_energy"], "Title", ["A note."])
    assert table.to_markdown().splitlines()[2:6] == [
        "| detector | near | far |",
        "|---|---:|---:|",
        "| `knn` | 95.00 | **0.00** |",
        "| `joint_energy` | **60.00** | 90.00 |",
    ]


HOSTILE = "a_b & 50% | #1 {x} $y$ \\z ~^ <t> [u]* `v`"


def hostile_table():
    [table] = result_tables(
        [
            line(HOSTILE, (10, 90, 90), id_name=HOSTILE),
            line("msp", (20, 80, 80), id_name=HOSTILE),
            line("odin", f"no\n{HOSTILE}", id_name=HOSTILE),
        ]
    )
    return table


def unescaped(character, text):
    """How often a character stands in text without a backslash of its own before it."""
    return len(re.findall(r"(?<!\\)(?:\\\\)*" + re.escape(character), text))


def test_names_do_not_break_markdown():
    title, table, *notes = hostile_table().to_markdown().split("\n\n")
    # The bar is escaped even within code.
    assert table.splitlines()[2].startswith(
        "| `a_b & 50% \\| #1 {x} $y$ \\z ~^ <t> [u]* 'v'` | **10.00** |"
    )
    assert {unescaped("|", row) for row in table.splitlines()} == {5}
    escaped = r"a\_b \& 50% \| \#1 \{x\} \$y\$ \\z \~^ \<t\> \[u\]\* \`v\`"
    assert title == f"**{escaped} against ImageNet**"
    assert notes[-1] == rf"odin did not run on {escaped} (seed 0): no {escaped}"


def test_names_do_not_break_latex():
    latex = hostile_table().to_latex()
    check_latex(latex)
    escaped = (
        r"a\_b \& 50\% \textbar{} \#1 \{x\} \$y\$ \textbackslash{}z "
        r"\textasciitilde{}\textasciicircum{} \textless{}t\textgreater{} {[}u]{*} `v`"
    )
    assert rf"\texttt{{{escaped}}} & \textbf{{10.00}} & " in latex
    assert latex.splitlines()[-1] == (
        rf"\par{{\footnotesize odin did not run on {escaped} (seed 0): no {escaped}\par}}"
    )


def test_names_do_not_break_csv():
    quoted = 'a,"b"\nc'
    lines = [line(name, (10, 90, 90)) for name in (HOSTILE, quoted, "=1+1")]
    rows = read_csv(result_tables(lines)[0])
    assert {row["detector"] for row in rows} == {HOSTILE, quoted, "'=1+1"}  # no formula


def check_latex(text):
    """Check that rows have the same length, and that braces and dollars are in pairs."""
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    rows = [row for row in body.splitlines() if row not in (r"\toprule", r"\midrule")]
    layout = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)[1]
    assert all(row.endswith(r" \\") for row in rows)
    assert {unescaped("&", row) for row in rows} == {len(layout) - 1}
    printed = "\n".join(row for row in text.splitlines() if not row.startswith("% "))
    assert unescaped("{", printed) == unescaped("}", printed)
    assert unescaped("$", printed) % 2 == 0
    assert unescaped("%", printed) == unescaped("#", printed) == unescaped("_", printed) == 0
    assert not any(character in printed for character in "±↑↓")
    assert printed.count(r"\begin{tabular}") == printed.count(r"\end{tabular}") == 1


@pytest.mark.parametrize("key", paper_tables())
def test_latex_of_the_papers_tables(key):
    check_latex(paper_table(paper_tables()[key]).to_latex())
    lines = [line("joint_energy", (30, 90, 95), seed=seed) for seed in range(2)]
    check_latex(paper_comparison(paper_tables()[key], lines).to_latex())


def test_a_row_that_begins_with_a_bracket_is_no_option_of_the_row_before():
    rows = tuple(((TablePart(text),),) for text in ("[2em]", "*"))
    lines = Table("", (Column("name", number=False),), rows).to_latex().splitlines()
    assert lines[0] == r"\begin{tabular}{l}"
    assert lines[4:6] == [r"{[}2em] \\", r"{*} \\"]
