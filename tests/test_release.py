"""Version, changelog, citation, manifests and workflows agree, and have the right form."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import nescio as ns

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def jobs(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text("utf-8"))["jobs"]


# --- versions ------------------------------------------------------------------------------------


def test_version_changelog_citation_and_image_agree():
    release = load("release")
    assert release.version() == ns.__version__
    assert release.problems(None) == []
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == ns.__version__
    page = ROOT / "docs" / "how-to" / "containers.md"
    files = [file for file in (page, *(ROOT / "deploy").rglob("*")) if file.is_file()]
    texts = "".join(file.read_text("utf-8") for file in files)
    assert set(re.findall(r"\bnescio:(\d+\.[\d.]*\d)", texts)) == {ns.__version__}


@pytest.fixture
def prepared(tmp_path):
    """A repository whose version 1.2.0 is ready."""
    (tmp_path / "src" / "nescio").mkdir(parents=True)
    (tmp_path / "src" / "nescio" / "_version.py").write_text('"""x"""\n\n__version__ = "1.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("version: 1.2.0\ndate-released: 2030-01-02\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2030-01-02\n\n- New.\n\n"
        "## [1.1.0] - 2029-01-01\n\n- Old.\n"
    )
    return tmp_path


def test_a_release_needs_its_tag_its_changes_and_its_date(prepared):
    release = load("release")
    assert release.problems("v1.2.0", prepared) == []
    assert release.sections(prepared)["1.2.0"] == ("2030-01-02", "- New.")
    assert "expected v1.2.0" in release.problems("v1.3.0", prepared)[0]
    changes = [
        ("CITATION.cff", "2030-01-02", "2030-01-03", "dates 1.2.0 2030-01-02"),
        ("CITATION.cff", "1.2.0", "1.1.0", "CITATION.cff has version 1.1.0"),
        ("CHANGELOG.md", "## [1.2.0]", "## [1.2.1]", "no section ## [1.2.0]"),
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- Later.\n", "still has changes"),
    ]
    for name, before, after, expected in changes:
        text = (prepared / name).read_text()
        (prepared / name).write_text(text.replace(before, after))
        assert any(expected in item for item in release.problems("v1.2.0", prepared)), expected
        (prepared / name).write_text(text)


# --- schemas -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
        ("compose-spec", "deploy/compose.yaml"),
    ],
)
def test_files_have_their_schema(schema, pattern):
    checker = pytest.importorskip("check_jsonschema")
    from click.testing import CliRunner

    files = sorted(map(str, ROOT.glob(pattern)))
    assert files
    done = CliRunner().invoke(checker.main, ["--builtin-schema", f"vendor.{schema}", *files])
    assert done.exit_code == 0, done.output


# --- workflows -----------------------------------------------------------------------------------


def test_every_supported_python_is_tested_on_every_system():
    matrix = jobs("tests.yml")["unit"]["strategy"]["matrix"]
    stated = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert matrix["python"] == stated
    assert PROJECT["requires-python"] == f">={stated[0]}"
    assert [name.split("-")[0] for name in matrix["os"]] == ["ubuntu", "macos", "windows"]


def test_workflows_call_targets_and_files_that_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    runs = [
        step["run"]
        for file in WORKFLOWS
        for job in jobs(file.name).values()
        for step in job["steps"]
        if "run" in step
    ]
    makes = [line.split()[1:] for line in runs if line.startswith("make ")]
    called = {word for words in makes for word in words if "=" not in word}
    assert called <= targets
    # Together, what .ci/run runs.
    assert called >= {"lint", "types", "imports", "docs", "unit", "lesser", "package", "lowest"}
    scripts = re.findall(r"tools/[\w.]+", "\n".join(runs))
    assert scripts == ["tools/release.py"]


def test_the_site_is_built_before_its_tests_and_not_beside_them():
    runs = [step.get("run", "") for step in jobs("tests.yml")["unit"]["steps"]]
    assert [run.split()[1] for run in runs if run.startswith("make ")] == ["docs", "unit"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    needed, then = re.search(r"^test:(.*)##.*\n\t(.*)$", makefile, re.MULTILINE).groups()
    assert "docs" in needed.split()
    assert "unit" not in needed.split()
    assert then == "$(MAKE) unit"
    here = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    goals = [line.split() for line in here if line.startswith("make ")]
    assert goals[0] == ["make", "docs"]
    assert "docs" not in goals[1]
    assert "unit" in goals[1]


def test_only_the_last_job_may_publish_and_no_secret_is_stored():
    result = jobs("release.yml")
    assert result["publish"]["needs"] == "build"
    assert result["publish"]["permissions"] == {"id-token": "write"}
    assert "permissions" not in result["build"]
    text = "".join(file.read_text("utf-8") for file in WORKFLOWS)
    assert "secrets." not in text
