"""Formats: every table is valid Markdown, LaTeX and CSV, whatever names it contains."""

import csv
import io
import re

import pytest

from fixtures.benchmark import result_line as line
from nescio.lab.benchmark.paper import paper_tables
from nescio.lab.benchmark.tables import (
    Column,
    Table,
    TablePart,
    paper_comparison,
    paper_table,
    result_tables,
)

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
    lines = [line(HOSTILE, (10, 90, 90)), line(quoted, (20, 90, 90))]
    rows = csv.DictReader(io.StringIO(result_tables(lines)[0].to_csv()))
    assert [row["detector"] for row in rows] == [HOSTILE, quoted]


def test_names_in_csv_are_no_formulas():
    rows = csv.DictReader(io.StringIO(result_tables([line("=1+1", (10, 90, 90))])[0].to_csv()))
    assert [row["detector"] for row in rows] == ["'=1+1"]


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
