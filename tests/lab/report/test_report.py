"""The report as a file: inert, offline, repeatable and small."""

import base64
import hashlib
import re
import sys
from dataclasses import replace

import pytest

from fixtures.reports import Page, result_line
from nescio import scores
from nescio._charts.style import sheet
from nescio.errors import FileError, InputError, MissingDependencyError
from nescio.lab.report import build_report, write_report
from nescio.lab.report.page import resource
from nescio.outputs import Outputs


def test_user_text_is_inert(make_evidence, make_lines, make_outputs):
    nasty = '<script>alert("x")</script>'
    evidence = make_evidence(id_name=nasty, oods=(nasty + "2",))
    plain = evidence.id_outputs
    named = Outputs(
        plain.logits,
        labels=plain.labels,
        ids=[f"{nasty}{at}" for at in range(len(plain))],
        label_names=[f"{nasty}{at}" for at in range(plain.n_labels)],
    )
    found = {nasty: evidence.scores["msp"], **evidence.scores}
    evidence = replace(evidence, id_outputs=named, scores=found)
    lines = make_lines(evidence, manifest={nasty: {nasty: [nasty]}})
    page = build_report(lines, [evidence], title=nasty)
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    Page(page)


def test_same_input_same_bytes(make_evidence, make_lines):
    pages = []
    for _ in range(2):
        evidence = make_evidence(seed=3)
        pages.append(build_report(make_lines(evidence), [evidence], title="Tiny"))
    assert pages[0] == pages[1]


def test_the_policy_lets_only_the_page_s_own_script_run(make_evidence, make_lines):
    evidence = make_evidence()
    page = build_report(make_lines(evidence), [evidence], title="Tiny")
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    found = next(
        attrs["content"]
        for tag, attrs in Page(page).tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    policy = dict(one.split(maxsplit=1) for one in found.split(";"))
    assert policy == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "img-src": "data:",
        "style-src": "'unsafe-inline'",
        "script-src": f"'sha256-{digest}'",
    }


def test_a_large_benchmark_stays_small(make_evidence, make_lines, class_tree):
    root = class_tree("folder", classes=("folder",), n_images=1, pixels=128)
    (root / "folder" / "0000.jpg").rename(root / "folder" / "0.jpg")
    for at in range(1, 300):
        (root / "folder" / f"{at}.jpg").symlink_to(root / "folder" / "0.jpg")
    detectors = {
        f"top_k_joint_energy(k={k})": lambda logits, k=k: scores.top_k_joint_energy(logits, k)
        for k in range(1, 19)
    }
    detectors |= {"joint_energy": scores.joint_energy, "max_logit": scores.max_logit}
    roots = {"stones": root, "leaves": root, **{f"pets{at}": root for at in range(3)}}
    evidence = [
        make_evidence(
            f"pets{at}",
            ("stones", "leaves"),
            n_samples=300,
            n_labels=80,
            detectors=detectors,
            roots=roots,
        )
        for at in range(3)
    ]
    page = build_report(make_lines(*evidence, n_bootstrap=2), evidence, title="Large")
    assert page.count("data:image/jpeg") > 30
    assert len(page.encode()) < 5_000_000


def test_write_report_replaces_only_by_force(tmp_path):
    path, lines = tmp_path / "report.html", [result_line("msp", 0.1)]
    write_report(path, lines, [], title="Ä first")
    assert "Ä first" in path.read_text("utf-8")
    with pytest.raises(FileError, match="exists already"):
        write_report(path, lines, [], title="second")
    write_report(path, lines, [], title="second", force=True)
    assert "<title>second</title>" in path.read_text("utf-8")


def test_no_lines_is_an_error():
    with pytest.raises(InputError, match="needs at least one result line"):
        build_report([], [], title="Tiny")


def test_missing_jinja2_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match=r"pip install \'\.\[report\]\'"):
        build_report([result_line("msp", 0.1)], [], title="Tiny")


def test_every_colour_is_in_the_palette():
    palette = set(re.findall(r"(--[\w-]+):", sheet("palette.css")))
    assert {"--in", "--out", "--accent", "--ink", "--muted", "--grid", "--paper"} <= palette
    rules = {"charts.css": sheet("charts.css"), "style.css": resource("style.css")}
    for name, text in {**rules, "palette.css": sheet("palette.css")}.items():
        used = set(re.findall(r"var\((--[\w-]+)\)", text)) - {"--c"}
        assert used <= palette, name
    for name, text in rules.items():
        assert not re.search(r":[^;{]*#[0-9a-f]{6}", text), name
