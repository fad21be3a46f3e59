"""The documentation says what is so: links lead somewhere, code runs, nothing is left out."""

import contextlib
import importlib
import inspect
import io
import json
import pkgutil
import re
import runpy
import shlex
import tomllib
import warnings
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

import pytest
import typer.main

from nescio.cli import app, main
from nescio.detectors import DETECTORS
from nescio.errors import BlindSpotWarning
from nescio.lab.benchmark.results import read_lines
from nescio.lab.benchmark.spec import load_spec
from nescio.lab.benchmark.tables import network_table, result_tables

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = ROOT / "README.md"

_FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A text block straight after a Python block is what that prints. A shell block after the comment
# "run" is run too, if it has only commands of nescio.
_PYTHON = re.compile(
    r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?|^<!-- run -->\n\n```sh\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_INLINE_CODE = re.compile(r"`+[^`\n]+`+")
_CODE_NAME = re.compile(r"`([\w*-]+)`")
_LINK = re.compile(r"\[[^\]\[]*\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
_MODULE = re.compile(r"^:::\s+(\S+)", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fences(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: (language, text)."""
    return _FENCE.findall(page.read_text("utf-8"))


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text("utf-8"))


# --- links --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_relative_links_lead_to_files(page):
    """Those of the site, with their anchors, are checked when it is built (make docs)."""
    for link in _LINK.findall(_INLINE_CODE.sub("", prose(page))):
        if not re.match(r"[a-z][a-z+.-]*:", link):
            target = (page.parent / link.partition("#")[0]).resolve()
            assert target.exists(), f"{link}: there is no {target}"


_UNPUBLISHED = re.compile(r"""pip install\s+(?:-\S+\s+)*['"]?nescio\b|nescio\[\w+\]""")
_EXTRAS = re.compile(r"""['"]\.\[([\w,]+)\]['"]""")


@pytest.mark.parametrize("page", [*PAGES, README, ROOT / "Makefile", ROOT / "src"], ids=name_of)
def test_nothing_is_installed_from_an_index_without_a_release(page):
    """nescio has no release: only pip install '.[extra]' from a clone works, not nescio[extra]."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for file in page.rglob("*.py") if page.is_dir() else [page]:
        text = file.read_text("utf-8")
        assert not _UNPUBLISHED.findall(text), file
        named = {extra for group in _EXTRAS.findall(text) for extra in group.split(",")}
        assert named <= set(extras["optional-dependencies"]), file


def test_the_menu_holds_every_page_once_under_its_title():
    """The build does not complain of a page that is missing on either side."""

    def entries(nav):
        for entry in nav:
            title, page = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
            yield from entries(page) if isinstance(page, list) else [(page, title)]

    config = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))
    listed = list(entries(config["project"]["nav"]))
    names = {page.relative_to(DOCS).as_posix() for page in PAGES}
    # Decision records are for developers: pages link to them, the menu does not show them.
    assert sorted(dict(listed)) == sorted(name for name in names if not name.startswith("adr/"))
    assert len(dict(listed)) == len(listed)
    for page, title in listed:
        assert page == "index.md" or _HEADING.search(prose(DOCS / page))[1].startswith(title)


def test_the_landing_page_lists_every_extra():
    table = (DOCS / "index.md").read_text("utf-8").partition("| For | Extras |")[2].split("\n\n")[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    listed = [extra for row in table.splitlines() for extra in _CODE_NAME.findall(row)]
    assert set(listed) == set(project["optional-dependencies"])


def test_contributing_says_where_every_picture_comes_from():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    [line] = re.findall(r"^- Pictures in `docs/images/`:.*?(?=^- )", text, re.MULTILINE | re.DOTALL)
    patterns = _CODE_NAME.findall(line)
    for picture in (DOCS / "images").iterdir():
        assert any(fnmatch(picture.stem, pattern) for pattern in patterns), picture.name


# --- code ---------------------------------------------------------------------------------------


def outputs_of(page: Path) -> list[tuple[str, str, str]]:
    """Run the Python blocks of a page in order, as one script.

    Gives the source of each, what it printed, and what the page says it prints.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    result = []
    for number, block in enumerate(_PYTHON.finditer(page.read_text("utf-8")), 1):
        if block[3] is not None:
            run_commands(block[3])
            continue
        source, shown = block[1], block[2] or ""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, f"{page.name}, Python block {number}", "exec"), namespace)
        result.append((source, printed.getvalue(), shown))
    return result


def run_commands(lines: str) -> None:
    for line in lines.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "nescio", f"cannot run {line}"
        assert main(arguments) == 0, line


ERRORS = DOCS / "errors"  # their examples raise: tests/docs/test_error_pages.py
NOTEBOOK = DOCS / "tutorials" / "notebook.md"  # a cell shows its last value too
CONTAINERS = DOCS / "how-to" / "containers.md"  # tests/deploy/test_prometheus.py serves its files
RUNNABLE = [
    page
    for page in [README, *PAGES]
    if (page.parent != ERRORS or page.stem == "index")
    and page not in (NOTEBOOK, CONTAINERS)
    and any(language == "python" for language, _ in fences(page))
]


@pytest.mark.usefixtures("own_detectors")
@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_python_blocks_run_and_print_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page == README:  # it shows no warning, so there is none
        warnings.simplefilter("error", BlindSpotWarning)
    for source, printed, shown in outputs_of(page):
        assert same_output(printed, shown), f"after:\n{source}printed:\n{printed}shown:\n{shown}"


def test_the_notebook_shows_what_its_cells_give():
    pytest.importorskip("nbclient")
    tool = runpy.run_path(str(ROOT / "tools" / "notebook.py"))
    page = NOTEBOOK.read_text("utf-8")
    outputs = tool["run"](page)
    assert tool["differences"](page, outputs, same_output) == []
    pictures = [output for output in outputs if output.html or output.png]
    shown = re.findall(r"images/(notebook-\d+\.png)", page)
    assert len(shown) == len(pictures) >= 6
    assert {DOCS / "images" / name for name in shown} == {*(DOCS / "images").glob("notebook-*")}


def test_the_notebook_runs_no_shell_command():
    pytest.importorskip("nbclient")
    tool = runpy.run_path(str(ROOT / "tools" / "notebook.py"))
    for page in ("```sh\npip list\n```\n", "```python\n1\n```\n\n```sh\npip list\n```\n"):
        with pytest.raises(ValueError, match="only Python is run"):
            tool["run"](page)


_DECIMAL = re.compile(r"\d[\d,]*\.\d*(?:e[-+]?\d+)?")


def same_output(printed: str, shown: str) -> bool:
    """Whether two texts are the same, but for the last digit of a number with a decimal point.

    Another processor may round another way.
    """
    texts = [" ".join(text.split()) for text in (printed, shown)]
    if _DECIMAL.sub("#", texts[0]) != _DECIMAL.sub("#", texts[1]):
        return False
    numbers = [_DECIMAL.findall(text.replace(",", "")) for text in texts]
    return all(
        abs(float(number) - float(other)) <= max(1.001 * last_place(other), 1e-5 * float(other))
        for number, other in zip(*numbers, strict=True)
    )


def last_place(number: str) -> float:
    """The value of one unit in the last digit that is written: 0.01 for 3.14."""
    digits, _, exponent = number.partition("e")
    return 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def test_the_last_digit_may_differ_and_nothing_else():
    assert same_output("tau = 0.2479, 1,234.50\n", "tau = 0.2480, 1,234.49")
    assert same_output("[3.0459962e-08]", "[3.0459955e-08]")
    for other in ("tau = 0.2481", "tau = -0.2479", "tau 0.2479", "tau = 0.2479 0.1"):
        assert not same_output("tau = 0.2479", other)
    assert not same_output("12 flagged", "13 flagged")


# --- the command line ---------------------------------------------------------------------------


COMMANDS = typer.main.get_command(app).commands
COMMAND_LINE = DOCS / "how-to" / "command-line.md"


def section(name: str) -> str:
    """The section of the command-line page that is about one command."""
    text = COMMAND_LINE.read_text("utf-8")
    assert f"\n## {name}\n" in text, f"{name} has no section in {COMMAND_LINE.name}"
    return re.split(r"^## ", text.split(f"\n## {name}\n")[1], flags=re.MULTILINE)[0]


def option_names(command) -> set[str]:
    return {
        name for parameter in command.params for name in parameter.opts + parameter.secondary_opts
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help_and_is_documented(name):
    assert COMMANDS[name].help, f"{name} has no help"
    assert f"nescio {name}" in section(name)
    assert f"`nescio {name}`" in COMMAND_LINE.read_text("utf-8")
    for parameter in COMMANDS[name].params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_parses(name):
    lines = [line for _, text in _FENCE.findall(section(name)) for line in text.splitlines()]
    examples = [line for line in lines if line.startswith(f"nescio {name}")]
    assert examples, f"{name} has no example"
    for line in examples:
        words = shlex.split(line.partition(" | ")[0].partition(" > ")[0], comments=True)
        COMMANDS[name].make_context(name, words[2:])


OF_DOCKER_AND_MLFLOW = {"--build-arg", "--cpus", "--read-only", "--env-manager"}
OF_BENCHMARK_SCRIPTS = {"--render", "--results", "--only", "--summary"}


@pytest.mark.parametrize("page", [README, *PAGES], ids=name_of)
def test_every_option_that_a_page_mentions_exists(page):
    """`--tpr`, `--tpr 0.99` and `nescio score --fdr`, in the text and not in blocks."""
    options = set().union(*map(option_names, COMMANDS.values()))
    options |= option_names(typer.main.get_command(app)) | {"--version", "--help"}
    mentioned = re.findall(r"`(?:nescio [^`\n]*)?(--[a-z][a-z-]+)", prose(page))
    assert set(mentioned) <= options | OF_DOCKER_AND_MLFLOW | OF_BENCHMARK_SCRIPTS


@pytest.mark.parametrize("page", [README, *PAGES], ids=name_of)
def test_command_lines_use_options_that_exist(page):
    for language, text in fences(page):
        if language not in ("sh", "bash", "console", "shell"):
            continue
        for line in text.splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[:1] != ["nescio"] or words[1].startswith("-"):
                continue
            name = words[1]
            assert name in COMMANDS, f"no command {name}: {line}"
            options = option_names(COMMANDS[name]) | {"--help", "-h"}
            used = {word.partition("=")[0] for word in words[2:] if word.startswith("-")}
            assert used <= options, f"no option {sorted(used - options)}: {line}"


# --- detectors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DETECTORS)
def test_every_detector_is_in_the_reference(name):
    kind = DETECTORS[name]
    scores, learns = ", ".join(kind().scores_from), ", ".join(kind().learns_from) or "-"
    summary = kind.__doc__.partition("\n")[0]
    row = f"| `{name}` | `{kind.__name__}` | {scores} | {learns} | {summary} | {kind.paper} |"
    reference = (DOCS / "reference" / "detectors.md").read_text("utf-8")
    assert row in reference, f"expected the row: {row}"


# --- reference pages ----------------------------------------------------------------------------

REFERENCE = [page for page in (DOCS / "reference").glob("*.md") if page.stem != "index"]


# Names that other packages of nescio need, and users do not.
INTERNAL = {
    "nescio.calibration": "Scores TIE_TOLERANCE",
    "nescio.checks": "NEEDS_CALIBRATION",
}


def public_names(module) -> set[str]:
    """The names of `__all__`; without it, the classes that the module defines."""
    classes = {
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }
    names = set(getattr(module, "__all__", classes))
    return names - set(INTERNAL.get(module.__name__, "").split())


@pytest.mark.parametrize("page", REFERENCE, ids=name_of)
def test_the_tables_of_a_reference_page_have_every_public_name(page):
    """The page shows its content when it is read as a file, without its ::: blocks."""
    sections = re.split(r"^## (?=nescio)", page.read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert sections, f"no section of {page.name} is about a module"
    for text in sections:
        module = importlib.import_module(text.partition("\n")[0])
        first_cells = re.findall(r"^\| ([^|]+) \| [^|]", text, re.MULTILINE)
        listed = {name for cell in first_cells for name in re.findall(r"`([\w.]+)", cell)}
        missing = public_names(module) - listed
        assert not missing, f"{page.name} has no line for {sorted(missing)}"


@pytest.mark.parametrize("page", REFERENCE, ids=name_of)
def test_a_reference_page_shows_classes_and_functions_that_exist(page):
    """A whole module would show its private machinery."""
    for name in _MODULE.findall(page.read_text("utf-8")):
        thing = pkgutil.resolve_name(name)
        assert inspect.isclass(thing) or inspect.isfunction(inspect.unwrap(thing)), name
        internal = INTERNAL.get(name.rpartition(".")[0], "").split()
        assert name.rpartition(".")[2] not in internal, name


# --- results ------------------------------------------------------------------------------------


RESULTS = {
    name: read_lines(ROOT / "benchmarks" / "results" / f"{name}.jsonl")
    for name in ("coco70", "digits")
}


def test_every_difference_to_the_authors_code_has_its_commit_and_its_setting():
    pytest.importorskip("torch")
    page = (DOCS / "how-to" / "reproduce-the-paper.md").read_text("utf-8")
    lines = page.partition("## Where the numbers may differ")[2].splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    differences = [row for row in rows if len(row) in (3, 5) and row[0].strip("- ")]
    assert [row[0] for row in differences if not re.search(r"\b[0-9a-f]{7}\b", row[1])] == []
    settings = [row[4].partition(":")[0] for row in differences if len(row) == 5]
    named = [name for text in settings for name in re.findall(r"`([a-z_]+)`", text)]
    paper, authors = (load_spec("paper-densenet", protocol=name) for name in ("paper", "authors"))
    changed = {
        name
        for ours, theirs in (
            *zip(settings_of(paper), settings_of(authors), strict=True),
            (vars(paper), vars(authors)),
        )
        for name in ours
        if ours[name] != theirs[name]
    }
    assert set(named) == changed - {"name", "protocol", "train", "tune"}


def test_every_item_of_the_paper_names_code_that_exists():
    page = (DOCS / "explanation" / "paper-checklist.md").read_text("utf-8")
    rows = [re.split(r" ?\| ?", line)[1:-1] for line in page.splitlines() if line[:2] == "| "][1:]
    ranges = [[int(number) for number in row[0].split("–")] for row in rows]
    items = [item for ends in ranges for item in range(ends[0], ends[-1] + 1)]
    assert items == list(range(1, 104))
    for _, what, where, how in rows:
        assert what
        assert how
        named = re.findall(r"`([\w/.-]+)(?::(\w+))?`", where)
        assert named, what
        for file, name in named:
            source = (ROOT / "src" / "nescio" / file).read_text("utf-8")
            defined = rf"^ *(def|class) {name}\b|^{name}\b.* = " if name else ""
            assert re.search(defined, source, re.MULTILINE), f"{file} does not define {name}"


def settings_of(spec) -> list[dict]:
    """Return the sections of training and tuning of a spec."""
    tune = asdict(spec.tune)
    return [*spec.train.as_dict().values(), tune.pop("odin"), tune.pop("mahalanobis"), tune]


@pytest.mark.parametrize("name", RESULTS)
def test_the_page_of_a_run_shows_the_committed_results(name):
    page = (DOCS / "explanation" / f"{name}.md").read_text("utf-8")
    for table in (network_table(RESULTS[name]), *result_tables(RESULTS[name])):
        rows = [row for row in table.to_markdown().splitlines() if row.startswith("|")]
        assert "\n".join(rows) in page, f"{table.title} should be:\n" + "\n".join(rows)


@pytest.mark.parametrize("name", RESULTS)
def test_the_committed_results_are_of_the_shipped_benchmark(name):
    spec, lines = load_spec(name), RESULTS[name]
    [part] = spec.sets
    wanted = {
        (part.name, ood, detector, seed)
        for ood in part.ood
        for detector in spec.detectors
        for seed in spec.seeds
    }
    assert {(line.id, line.ood, line.detector, line.seed) for line in lines} == wanted
    assert all(line.evaluation is not None for line in lines)
    for line in lines:
        assert line.manifest["bootstrap"] == spec.bootstrap
        wanted = spec.train.updated({"training": {"seed": line.seed}}).as_dict()
        recorded = json.dumps(line.manifest["training"]["settings"])
        # What the setting was called when these were run.
        recorded = recorded.replace('"freeze_batch_norm": false', '"batch_norm": "trained"')
        for section, trained in json.loads(recorded).items():
            assert trained == {key: wanted[section][key] for key in trained}
    if name == "coco70":
        assert min(line.manifest["training"]["best"]["val_map"] for line in lines) >= 0.60


# --- the glossary -------------------------------------------------------------------------------


def first_cells(text: str) -> set[str]:
    """The words in the first column of the tables, without links."""
    cells = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    return {re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", cell).strip() for cell in cells}


def test_the_glossary_has_every_word_of_the_vocabulary():
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = contributing.partition("## The vocabulary")[2].partition("\n## ")[0]
    wanted = first_cells(table) - {"Word"}
    assert {"score", "verdict", "`label_threshold`"} <= wanted
    assert wanted - first_cells((DOCS / "glossary.md").read_text("utf-8")) == set()
