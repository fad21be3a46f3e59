"""benchmarks/detection/text_and_tables.py and its parts, on tiny generated data."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from fixtures.labelled import labelled
from nescio.detectors import DETECTORS
from nescio.lab.benchmark.results import read_lines

pytest.importorskip("torch")
pd = pytest.importorskip("pandas")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("left_out", "problems", "real_tables", "real_text", "text_and_tables")


@pytest.fixture(scope="module")
def scripts():
    """The scripts of the folder by name; they import each other as scripts do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS / "detection"))
        yield {name: importlib.import_module(name) for name in NAMES}
    for name in NAMES:
        del sys.modules[name]


# --- texts ----------------------------------------------------------------------------------------


def test_held_out_topics_are_in_no_other_part(scripts, monkeypatch):
    monkeypatch.setattr(scripts["real_text"], "FEWEST", 5)
    rng = np.random.default_rng(0)
    tagged = {
        f"text {row}": {f"topic {topic}" for topic in rng.choice(10, size=2)} for row in range(300)
    }
    tagged["rare"] = {"topic of one text"}
    row_of = {text: row for row, text in enumerate(sorted(tagged))}

    def embed(texts):  # so that the features tell which text it was
        return np.array([[row_of.get(text, -1)] for text in texts], float).reshape(-1, 1)

    made = scripts["real_text"].TextSet(
        tagged, {"other": ["unknown"], "absent": []}, (80, 20, 20), embed
    )
    held_out = []
    for seed in range(3):
        problem = made.problem(seed)
        texts = {
            name: [sorted(tagged)[int(row)] for row in x[:, 0]]
            for name, x in {**{n: x for n, (x, _) in problem.parts.items()}, **problem.ood}.items()
        }
        held_out.append({f"topic {n}" for n in range(10)} - set(problem.label_names))
        labelled_texts = [texts[name] for name in ("train", "val", "test")]
        assert [len(part) for part in labelled_texts] == [80, 20, 20]
        assert len(set().union(*labelled_texts)) == 120
        assert not any(tagged[text] & held_out[-1] for part in labelled_texts for text in part)
        assert len(texts["topics"]) > 0
        assert all(tagged[text] <= held_out[-1] for text in texts["topics"])
        names = np.array(problem.label_names)
        labels = [set(names[row == 1]) for row in problem.parts["train"][1]]
        assert labels == [tagged[text] for text in texts["train"]]
        assert set(problem.ood) == {"topics", "words", "other"}
    assert [len(labels) for labels in held_out] == [2, 2, 2]
    assert len({frozenset(labels) for labels in held_out}) > 1


# --- tables ---------------------------------------------------------------------------------------


def tiny_table(scripts, n=400):
    rng = np.random.default_rng(0)
    inputs = pd.DataFrame(
        {"weight": rng.normal(70, 10, n), "height": rng.normal(170, 10, n), "row": range(n)}
    )
    inputs.loc[::7, "height"] = np.nan
    labels = pd.DataFrame({"heavy": inputs["weight"] > 75, "light": inputs["weight"] < 65})
    units = {"weight": lambda kilograms: kilograms * 2.2}
    return scripts["real_tables"].Table(inputs, labels, units)


def test_groups_and_parts_of_a_table_do_not_overlap(scripts):
    table, numbers = tiny_table(scripts), np.arange(400)
    problem = scripts["real_tables"].table_problem(
        table,
        {"last": numbers >= 350},
        (230, 50, 50),  # all rows that are left
        np.random.default_rng(1),
        left_out=numbers < 20,
    )
    x = {name: part for name, (part, _) in problem.parts.items()}
    assert np.allclose(x["train"].mean(0), 0)
    assert np.allclose(x["train"].std(0), 1)  # imputed and standardised
    column = np.concatenate([*x.values(), problem.ood["last"]])[:, 2]
    assert np.ptp(np.diff(np.sort(column))) < 1e-9  # rows 20 to 399, each once
    assert problem.ood["last"][:, 2].min() > max(part[:, 2].max() for part in x.values())
    heavy = problem.parts["test"][1][:, 0] == 1
    assert x["test"][heavy, 0].min() > x["test"][~heavy, 0].max()


# --- models and results ---------------------------------------------------------------------------


def test_outputs_give_tables_and_result_lines(scripts, tmp_path, monkeypatch, capsys):
    bench = scripts["text_and_tables"]

    def make(seed):
        parts = {
            name: labelled(200, seed=3 * seed + index) for index, name in enumerate(bench.PARTS)
        }
        return {**parts, **dict.fromkeys(("ood-far", "ood-group"), labelled(60, seed=9))}

    monkeypatch.setattr(bench, "makers", lambda names: [("patients", make)])
    results = tmp_path / "results.jsonl"
    arguments = ["--save", str(tmp_path), "--results", str(results), "--seeds", "2"]
    arguments += ["--only", "patients", "-d", "joint_energy", "-d", "odin"]
    bench.main(arguments)
    assert len(list(tmp_path.glob("patients-seed?-*.safetensors"))) == 10
    out = capsys.readouterr().out
    lines = read_lines(results)
    runs = {(line.ood, line.detector, line.seed) for line in lines}
    assert runs == {
        (ood, detector, seed)
        for ood in ("far", "group")
        for detector in ("joint_energy", "odin")
        for seed in (0, 1)
    }
    fprs = [
        100 * line.evaluation.fpr.value for line in lines if line.evaluation and line.ood == "far"
    ]
    mean, spread = np.mean(fprs), np.std(fprs, ddof=1)
    cell = f"{mean:.1f} ± {spread:.1f}"
    assert "| detector | group | far | mean |" in out  # near first
    assert f"| `joint_energy` | {cell} | {cell} | {mean:.1f} |" in out
    assert "| `odin` |  |  |  |" in out
    assert "skipped: odin: it reads odin_max" in out


def test_the_page_on_texts_shows_the_committed_results(scripts, capsys):
    root = BENCHMARKS.parent
    lines = read_lines(BENCHMARKS / "results" / "text-and-tables.jsonl")
    packages = [line for line in lines if line.id == "packages"]
    docstrings = read_lines(BENCHMARKS / "results" / "docstrings.jsonl")
    published = {name for name, kind in DETECTORS.items() if "never published" not in kind.paper}
    assert {line.detector for line in docstrings} >= published
    for lines_of_set in (packages, docstrings):
        scripts["text_and_tables"].print_tables(lines_of_set)
    printed = capsys.readouterr().out.splitlines()
    page = (root / "docs" / "explanation" / "text.md").read_text("utf-8")
    shown = [row for row in page.splitlines() if row.startswith("| `")]
    assert len(shown) > 20
    assert [row for row in shown if row not in printed] == []
