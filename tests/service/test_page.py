"""The page at / in a real browser, against a real service."""

import contextlib
import json
import math
import shutil
import signal
import urllib.request

import numpy as np
import pytest

import nescio as ns
from fixtures.serving import Served
from nescio.detectors import load

image = pytest.importorskip("PIL.Image")

HOSTILE = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script>"
NAMES = ("red", "green", HOSTILE, "chair", "table", "boat")
OUT = [-2.5, -2.0, -1.5, -3.0, -2.25, -2.75]  # nothing is recognised
IN = [4.5, -5.0, 4.0, -6.0, -5.5, -4.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, save_graph):
    """A detector, one by label count, a model, and images of which it knows the red one."""
    folder = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    present = rng.random((2000, 6)) < 0.3
    present[np.arange(2000), rng.integers(0, 6, 2000)] = True
    logits = np.where(present, rng.normal(4, 1.2, (2000, 6)), rng.normal(-5, 1, (2000, 6)))
    held_out = ns.Outputs(logits, label_names=NAMES)
    ns.JointEnergy().calibrate(held_out).save(folder / "tagger.nescio")
    ns.JointEnergy().calibrate(held_out, groups="label_count").save(folder / "counted.nescio")
    ns.MaxLogit().calibrate(held_out).save(folder / "other.nescio")
    parts = [ns.JointEnergy(), ns.OutOfRange(layer="logits")]
    learned = ns.Outputs(logits[:1000], labels=present[:1000], label_names=NAMES)
    combined = ns.Combined(parts).fit(learned)
    combined.calibrate(ns.Outputs(logits[1000:], label_names=NAMES)).save(folder / "parts.nescio")
    _save_model(save_graph, folder / "model.onnx")
    for name, colour in {"red": (250, 20, 20), "grey": (90, 90, 90)}.items():
        image.new("RGB", (40, 30), colour).save(folder / f"{name}.png")
    (folder / "damaged.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (folder / "notes.txt").write_text("not an image")
    return folder


def _save_model(save_graph, path):
    """The mean of the first two colours decides on the first two labels; the others are absent."""
    mix = np.zeros((3, 6), np.float32)
    mix[:, 0], mix[:, 1] = [12, -6, -6], [-6, 12, -6]
    scale = {"size": 32, "mean": [0.0] * 3, "std": [1.0] * 3}
    save_graph(
        path,
        [
            ("ReduceMean", ["image"], ["colour"], {"axes": [2, 3], "keepdims": 0}),
            ("MatMul", ["colour", "mix"], ["mixed"], {}),
            ("Sub", ["mixed", "five"], ["logits"], {}),
        ],
        [("image", "float", ["batch", 3, 32, 32])],
        [("logits", "float", ["batch", 6])],
        {"mix": mix, "five": np.full(1, 5, np.float32)},
        {"nescio.label_names": NAMES, "nescio.preprocessing": scale},
    )


@contextlib.contextmanager
def serving(detector, *options, token=None):
    """Run a service in a separate process; yield the process and the address."""
    quietly = ("--log-level", "warning", "--drain-seconds", "0")
    environment = None if token is None else {"NESCIO_TOKEN": token}
    service = Served((detector, *quietly, *options), environment)
    try:
        yield service.process, service.url
    finally:
        service.process.terminate()
        service.end()


@pytest.fixture(scope="module")
def url(browser, folder):
    with serving(folder / "tagger.nescio", "--model", folder / "model.onnx") as (_, result):
        yield result


@pytest.fixture
def page(browser, url):
    """The page at /, ready."""
    browser.open(f"{url}/")
    browser.until(_READY)
    yield browser
    browser.close()


_READY = "!document.getElementById('content').hidden"
_FILE_INPUT = "document.getElementById('file')"


def text(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)})?.innerText")


def paste(page, logits):
    words = logits if isinstance(logits, str) else json.dumps(logits)
    page.run("document.getElementById('verdict').replaceChildren()")
    page.run(f"document.getElementById('rows').value = {json.dumps(words)}")
    page.run("document.querySelector('#rows-form button.main').click()")


def post(url, logits, query=""):
    """Send logits as another program does: they are traffic."""
    body, kind = json.dumps({"logits": logits}).encode(), {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/v1/score{query}", body, kind)).close()


def verdict(page):
    """The large words, once they are there."""
    page.until("document.querySelector('.verdict .word')")
    return text(page, ".verdict .word")


def shown_score(page):
    return float(text(page, ".facts div:nth-child(3) dd").replace("−", "-"))


def score_of(folder, row):
    return float(load(folder / "tagger.nescio").score_samples(np.array([row]))[0])


# --- the page ---------------------------------------------------------------------------------


def test_it_loads_quietly_and_asks_nobody_else(page, url):
    page.until("document.getElementById('live').innerText.startsWith('Live')")
    assert page.noise == []
    assert all(asked.startswith((url, "data:")) for asked in page.requested)
    # After the detector's file, because the model's says no more than model.onnx.
    assert (page.run("document.title"), text(page, "#name")) == ("tagger", "tagger")
    assert "Keeps 95 % of inputs like the 2,000" in text(page, "#guarantee")
    assert "99 % confidence" in page.run("document.getElementById('statement').textContent")
    assert page.run("[...document.querySelectorAll('header a')].map(a => a.pathname)") == [
        "/openapi.json",
        "/metrics",
    ]


def test_no_script_but_its_own_runs(page):
    page.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        "document.body.append(s); })()"
    )
    assert page.run("window.ran") is None


def test_every_field_has_a_label_and_the_verdict_is_said_aloud(page):
    fields = "[...document.querySelectorAll('input, textarea')]"
    assert page.run(f"{fields}.every(field => field.labels.length === 1)")
    assert page.run("document.getElementById('verdict').getAttribute('aria-live')") == "polite"
    page.press("Tab", 9)
    assert page.run("document.activeElement.className") == "skip"


# --- logits -----------------------------------------------------------------------------------


def test_an_ordinary_row_is_in(page, folder):
    paste(page, IN)
    assert verdict(page) == "✓ In-distribution"
    assert shown_score(page) == pytest.approx(score_of(folder, IN), rel=1e-3)
    assert "in 100 in-distribution inputs score this low or lower" in text(page, ".verdict")


def test_a_row_without_any_certain_label_is_out(page, folder):
    paste(page, OUT)
    assert verdict(page) == "✗ OUT: do not trust"
    assert shown_score(page) == pytest.approx(score_of(folder, OUT), rel=1e-3)
    assert "None of the 2,000 calibration inputs has such a low score" in text(page, ".verdict")
    assert "predicts no label" in text(page, ".doubtful")
    assert page.noise == []


def test_bars_show_each_label_against_what_is_usual(page, folder):
    paste(page, IN)
    verdict(page)
    names = page.run("[...document.querySelectorAll('.bars .name')].map(n => n.innerText)")
    assert sorted(names) == sorted(NAMES)
    assert names[:2] == ["red", HOSTILE]
    values = page.run("[...document.querySelectorAll('.bars .value')].map(n => +n.innerText)")
    assert values[:2] == [4.511, 4.018]
    widths = page.run(
        "[...document.querySelectorAll('.bars .bar')].map(b => b.getBoundingClientRect().width)"
    )
    assert widths[1] / widths[0] == pytest.approx(4.018 / 4.511, rel=0.01)
    medians = load(folder / "tagger.nescio").medians_
    track = "document.querySelector('.bars .track')"
    marks = page.run(f"[...{track}.querySelectorAll('.mark')].map(m => parseFloat(m.style.left))")
    largest = max(4.511, medians.ranks[0, 0], medians.labels.max())
    expected = [0, medians.ranks[0, 0] / largest * 100, medians.labels[0, 0] / largest * 100]
    assert marks == pytest.approx(expected, abs=0.1)


def test_the_part_that_decided_comes_first_with_its_p_value_and_what_it_saw(browser, folder):
    with serving(folder / "parts.nescio") as (_, url):
        browser.open(f"{url}/", width=390)
        browser.until(_READY)
        paste(browser, [40.0, -5.0, 4.0, -6.0, -5.5, -4.0])
        assert verdict(browser) == "✗ OUT: do not trust"
        decided = text(browser, "#details figure p")
        assert decided.startswith(
            "Are the values of the logits in their usual ranges? No: this is "
        )
        assert "% of the evidence. Out of the usual range: red = 40" in decided
        asked = browser.run("[...document.querySelectorAll('.parts .name')].map(p => p.innerText)")
        assert asked == [decided.partition(" No:")[0], "Is the model sure of its labels?"]
        assert browser.run("document.querySelector('.parts .bar').offsetWidth") > 50
        assert browser.run("document.documentElement.scrollWidth") <= 390
        p_values = "[...document.querySelectorAll('.parts .value')].map(p => p.innerText)"
        first, second = (float(p.replace("−", "-")) for p in browser.run(p_values))
        assert first < 0.05 < second
        names = browser.run("[...document.querySelectorAll('.facts dt')].map(d => d.innerText)")
        assert names == ["p-value", "Flagged below", "Score", "Threshold"]
        assert "--" not in browser.run("document.body.innerText")
        browser.close()


def test_a_hostile_label_is_only_text(page):
    paste(page, IN)
    verdict(page)
    assert HOSTILE in page.run("document.querySelector('.labels').innerText")
    assert page.run("document.querySelectorAll('#details script, #details img').length") == 0
    assert page.run("window.hacked") is None


@pytest.mark.parametrize(
    "words",
    [
        "[[4.5, -5, 4.0, -6, -5.5, -4]]",
        "4.5, -5.0, 4.0, -6.0, -5.5, -4.0",
        "4.5\t-5e0\t4\t-6\t-5.5\t-4",
        "4,5;-5;4,0;-6,0;-5,5;-4",
        "4,5\t-5,0\t4\t-6\t-5,5\t-4",
        "[[ 4.5 -5.   4. \n  -6.  -5.5 -4. ]]",
        "tensor([[ 4.5000, -5.0000,  4.0000,\n -6., -5.5, -4.]], device='cpu', dtype=float64)",
        '{"logits": [[4.5, -5, 4, -6, -5.5, -4]], "ids": ["a.jpg"]}',
    ],
    ids=["json", "commas", "tabs", "decimal", "decimal tabs", "numpy", "torch", "object"],
)
def test_logits_come_in_many_forms(page, folder, words):
    paste(page, words)
    assert verdict(page) == "✓ In-distribution"
    assert shown_score(page) == pytest.approx(score_of(folder, IN), rel=1e-3)


def test_groups_by_row_are_sent_alone(browser, folder, tmp_path):
    rng = np.random.default_rng(0)
    detector = ns.JointEnergy().calibrate(
        rng.normal(-3, 3, (400, 6)), groups=np.repeat(["front", "rear"], 200)
    )
    detector.save(tmp_path / "cameras.nescio")
    with serving(tmp_path / "cameras.nescio") as (_, url):
        browser.open(f"{url}/")
        browser.until(_READY)
        paste(browser, json.dumps({"logits": [IN, IN], "groups": ["rear", "front"]}))
        browser.until("document.querySelectorAll('tbody tr').length === 2")
        paste(browser, [IN])
        browser.until("document.querySelectorAll('tbody tr').length === 0")
        verdict(browser)


@pytest.mark.parametrize("words", ["4.5 -inf 4.0 -6 -5.5 -4", '[[4.5, "-inf", 4, -6, -5.5, -4]]'])
def test_a_masked_label_can_be_pasted(page, folder, words):
    paste(page, words)
    assert verdict(page) == "✓ In-distribution"
    masked = [4.5, -math.inf, *IN[2:]]
    assert shown_score(page) == pytest.approx(score_of(folder, masked), rel=1e-3)
    assert page.noise == []


def test_a_missing_value_is_an_error_that_names_the_row(page):
    paste(page, "4.5 nan 4.0 -6 -5.5 -4")
    page.until("document.querySelector('#verdict .trouble')")
    assert "NaN or infinity in 1 of 1 rows: 1. In row 1" in text(page, "#verdict .trouble")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("1, 2, 3", "The row has 3 cells; the detector needs 6, one per label."),
        ("[[1,2,3,4,5,6],[1,2]]", "Row 2 has 2 cells; the detector needs 6, one per label."),
        (
            "Red;Chair\n1;2",
            f"No column is named “red”, “green”, “{HOSTILE[:40]}”, “chair”, “table”, “boat”; "
            "the first line has “Red”, “Chair”.",
        ),
        ("1 2 3 4 5 six", "The row: “six” is not a number."),
        ("1 2 3 4 5 inf", "The row: “inf” is not a number."),
        ("  ", "Paste a row of logits first."),
        ("2.1,,-3,0.4,-4,-4,1", "The row has 7 cells; the detector needs 6, one per label."),
        ("2.1,,-3,0.4,-4,-4", "The row: cell 2 is empty."),
        ("2.1\t\t-3\t0.4\t-4\t-4", "The row: cell 2 is empty."),
        ("1 2 3 4 5 6\n1;2;3;4;5;6", "Row 2 has 1 cell; the detector needs 6, one per label."),
        ('{"logits": [[1]], "logits": [[2]]}', "more than one entry is named “logits”."),
    ],
)
def test_what_is_wrong_with_the_text_is_said_before_the_service_is_asked(page, words, message):
    paste(page, words)
    assert text(page, "#rows-error") == message
    assert page.run("document.getElementById('rows').getAttribute('aria-invalid')") == "true"
    assert not any("/v1/score" in asked for asked in page.requested)
    paste(page, IN)
    verdict(page)
    assert text(page, "#rows-error") == ""


def test_several_rows_make_a_table_to_choose_from(page):
    paste(page, [IN, OUT, IN])
    assert verdict(page) == "✗ OUT: do not trust"  # the most suspicious one comes first
    assert text(page, ".which") == "Row 2"
    assert text(page, "caption") == "1 of 3 flagged."
    cells = "[...document.querySelectorAll('tbody tr')].map(r => r.cells[1].innerText)"
    assert page.run(cells) == ["✗ OUT", "✓ in", "✓ in"]
    page.run("document.querySelectorAll('tbody button')[1].focus()")
    page.press("Enter", 13)
    assert verdict(page) == "✓ In-distribution"
    assert text(page, ".which") == "Row 1"
    pressed = "[...document.querySelectorAll('tbody button')].map(b => b.ariaPressed)"
    assert page.run(pressed) == ["false", "true", "false"]


def test_more_rows_than_can_be_explained_still_get_verdicts(page):
    paste(page, [IN] * 600)
    assert verdict(page) == "✓ In-distribution"
    assert text(page, "caption") == "0 of 600 flagged; the first 500 are shown."
    page.until("document.querySelector('#details .bars')")
    assert sum("/v1/score" in asked for asked in page.requested) == 2  # the second is for one row
    assert page.noise == []


def test_probabilities_are_sent_as_what_they_are(page):
    kind = "document.getElementById('kind').value"
    paste(page, [[0.9, 0.1, 0.2, 0.1, 0.05, 0.3]])
    verdict(page)
    warning = "[...document.querySelectorAll('.result .trouble, .verdict')][0].innerText"
    assert page.run(warning).startswith("Every value lies within [0, 1]")  # above the verdict
    choose_probs = "Choose probabilities under Values, above."
    assert page.run(warning).endswith(choose_probs)
    paste(page, [[0.9, 0.1, 0.2, 0.1, 0.05, 0.3]] * 15)
    page.until("document.querySelector('#verdict .trouble')")
    assert text(page, "#verdict").endswith(choose_probs)
    page.run(f"{kind} = 'true'")
    paste(page, [IN])
    page.until("document.querySelector('#verdict .trouble')")
    assert text(page, "#verdict").endswith("choose logits under Values, above.")
    for value in ("true", "false"):
        page.run(f"{kind} = '{value}'")
        paste(page, [[0.9, 0.1, 0.2, 0.1, 0.05, 0.3]] * 15)
        verdict(page)
        assert any(f"from_probs={value}" in asked for asked in page.requested)
    page.run(f"{kind} = ''")


def test_ids_of_a_pasted_table_name_its_rows(page):
    names = "red\tgreen\tchair\ttable\tboat\tphoto_id\t" + HOSTILE
    paste(page, f"{names}\n4\t-5\t-6\t-5\t-4\tleft\t3\n-2\t-2\t-2\t-2\t-2\tright\t-2")
    page.until("document.querySelectorAll('tbody tr').length === 2")
    assert text(page, ".which") == "right"
    assert text(page, "#rows-notes") == ""


@pytest.mark.parametrize("status", [413, 422, 503])
def test_a_refusal_is_shown_as_the_service_says_it(page, status):
    answer = f'new Response(\'{{"detail": "because <b>so</b>"}}\', {{status: {status}}})'
    page.run(f"window.fetch = async () => {answer}")
    paste(page, IN)
    page.until("document.querySelector('#verdict .trouble')")
    assert text(page, "#verdict") == "because <b>so</b>"


def test_rows_of_a_table_are_inputs_of_the_model(browser, folder, save_graph, tmp_path):
    eye = {"eye": np.eye(3, 6, dtype=np.float32)}
    nodes = [("MatMul", ["row", "eye"], ["logits"], {})]
    ends = [("row", "float", ["batch", 3])], [("logits", "float", ["batch", 6])]
    columns = {
        "nescio.columns": {"row": ["age", "bmi", "iron"]},
        "nescio.example": {"row": [1.0, 2.5, 3.0]},
    }
    model = save_graph(tmp_path / "table.onnx", nodes, *ends, eye, columns)
    with serving(folder / "tagger.nescio", "--model", model) as (_, url):
        browser.open(f"{url}/")
        browser.until(_READY)
        assert text(browser, "#rows-form h3") == "Table rows"
        assert "names of their columns, in any order. The model reads 3" in text(
            browser, "#rows-hint"
        )
        example = "document.getElementById('rows').placeholder"
        assert browser.run(example) == "age,bmi,iron\n1,2.5,3"
        browser.run("document.getElementById('example').click()")
        assert verdict(browser) == "✓ In-distribution"
        assert text(browser, "#rows-notes") == ""
        strange, usual = [-4.5, -5, -4, 0, 0, 0], [1, 2, 3, 0, 0, 0]
        assert score_of(folder, strange) < score_of(folder, usual)
        # By position, or by the names of the columns; the most suspicious row comes first.
        for rows in (
            "1\t2\t3\n-4.5\t-5\t-4",
            '[{"bmi": 2, "age": 1, "iron": 3}, {"age": -4.5, "bmi": -5, "iron": -4}]',
            "[[1. 2. 3.]\n [-4.5 -5. -4.]]",
            'who,bmi,iron,age\r\n"Ann, B",2,3,1\r\nBob,-5,-4,-4.5\r\n',
            '"iron";"age";"bmi"\n3;1;2\n-4;-4,5;-5',
            "age bmi iron\n1 2 3\n-4.5 -5 -4",
        ):
            paste(browser, rows)
            verdict(browser)
            assert shown_score(browser) == pytest.approx(score_of(folder, strange), rel=1e-3)
            assert text(browser, "tbody button") == "Row 2"
            unused = "Not used, because the model does not read it: “who”."
            names = {"w": unused, "1": "No names: read as age, bmi, iron."}
            names["["] = names["1"] if rows.startswith("[[") else ""
            assert text(browser, "#rows-notes") == names.get(rows[0], "")
        for rows, fault in {
            "Age,iron,bmi\n1,2,3": "No column is named “age”; the first line has “Age”, "
            "“iron”, “bmi”.",
            "Age,Bmi,Irn\n1,2,3": "No column is named “age”, “bmi”, “iron”; the first line has "
            "“Age”, “Bmi”, “Irn”.",
            "age,bmi,iron\n1,2,3\n1,2": "Row 2 has 2 cells, but the first line has 3.",
            "age,bmi,iron\n1,2,3\nold,2,3": "Row 2, column age: “old” is not a number.",
            "age,age,bmi,iron\n1,1,2,3": "More than one column is named “age”.",
            "age\tbmi\tiron\n1\t1,234\t2.5": "Write “1,234” as 1234 or as 1.234: it may be either.",
            "age;bmi;iron\n50,5;22.000;1": "Write “22.000” as 22000 or as 22,0: it may be either.",
            '{"inputs": {"age": [1], "age": [2]}}': "more than one entry is named “age”.",
            "age,bmi,iron": "Paste rows below the names of the columns.",
            "1,2": "The row has 2 cells; the model needs 3, one per column.",
        }.items():
            paste(browser, rows)
            assert text(browser, "#rows-error") == fault
        paste(browser, "age;bmi;iron\n1.5;22.000;1")  # no comma: the dot is the decimal sign
        verdict(browser)
        paste(browser, "age,bmi,iron\n1,2,3\n1,,NA")
        assert text(browser, "#rows-notes") == "Row 2 has no bmi, iron."
        paste(browser, '{"age": 50}')
        browser.until("document.querySelector('#verdict .trouble')")
        assert '{"inputs":{"age":[1.0],"bmi":[2.5],"iron":[3.0]}}' in text(browser, "#verdict")
        assert browser.run("getComputedStyle(document.forms['rows-form']).marginTop") == "0px"
        paste(browser, json.dumps({"logits": [IN]}))
        assert verdict(browser) == "✓ In-distribution"
        assert shown_score(browser) == pytest.approx(score_of(folder, IN), rel=1e-3)
        browser.close()


@pytest.mark.filterwarnings("ignore::nescio.errors.NescioWarning")
def test_rows_with_words_are_pasted_from_a_table(browser, tmp_path):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("skl2onnx")
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multioutput import MultiOutputClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"site": rng.choice(["north, upper", "south"], 900)})
    table["age"], labels = rng.normal(50, 15, 900), rng.random((900, 2)) < 0.4
    encoder = OneHotEncoder(handle_unknown="ignore")
    steps = ColumnTransformer([("words", encoder, ["site"])], remainder="passthrough")
    model = make_pipeline(steps, MultiOutputClassifier(LogisticRegression()))
    model.fit(table[:400], labels[:400])
    guarded = ns.wrap(model).fit(table[:400], labels[:400]).calibrate(table[400:])
    guarded.save(tmp_path / "t.nescio")
    ns.export_onnx(guarded, tmp_path / "t.onnx", samples=table[:20])
    with serving(tmp_path / "t.nescio", "--model", tmp_path / "t.onnx") as (_, url):
        browser.open(f"{url}/")
        browser.until(_READY)
        assert text(browser, "#rows-form h3") == "Table rows"
        assert browser.run("document.getElementById('rows').placeholder").startswith("age,site\n")
        browser.run("document.getElementById('example').click()")
        assert verdict(browser) == "✓ In-distribution"
        paste(browser, 'id,site,age\n1,"north, upper",50\n2,mars,50\n3,,50')
        browser.until("document.querySelectorAll('tbody tr').length === 3")
        rows = browser.run("[...document.querySelectorAll('tbody tr')].map(r => r.innerText)")
        assert [row.split("\t")[:2] for row in rows][2] == ["1", "✓ in"]
        assert text(browser, "#rows-notes") == "Row 3 has no site."
        assert "the values of the columns in their" in text(browser, "#details .parts")
        for word in ("NA", "NULL", "NaN", "nan"):  # missing, in both kinds of columns
            paste(browser, f"site,age\n{word},{word}")
            assert text(browser, "#rows-notes") == "The row has no age, site."
        paste(browser, "site,age\nsouth,old")
        assert text(browser, "#rows-error") == "The row, column age: “old” is not a number."
        browser.close()


# --- images -----------------------------------------------------------------------------------


def choose(page, *files):
    """Choose files in the field, as a person would."""
    page.run("document.getElementById('verdict').replaceChildren()")
    root = page.send("DOM.getDocument")["root"]["nodeId"]
    node = page.send("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    page.send("DOM.setFileInputFiles", files=[str(file) for file in files], nodeId=node)


def test_there_is_no_field_for_what_nobody_can_paste(browser, folder, save_graph, tmp_path):
    shown = "document.getElementById('rows-form').checkVisibility()"
    nodes = [
        ("ReduceMean", ["image"], ["features"], {"axes": [2, 3], "keepdims": 0}),
        ("MatMul", ["features", "eye"], ["logits"], {}),
    ]
    ends = (
        [("image", "float", ["batch", 3, 8, 8])],
        [("logits", "float", ["batch", 3]), ("features", "float", ["batch", 3])],
    )
    eye = {"eye": np.eye(3, dtype=np.float32)}
    model = save_graph(tmp_path / "image.onnx", nodes, *ends, eye)
    values = np.random.default_rng(0).normal(size=(300, 3))
    for detector, is_shown in ((ns.JointEnergy(), True), (ns.OutOfRange(), False)):
        outputs = ns.Outputs(values, values)
        detector.fit(outputs[:100]).calibrate(outputs[100:]).save(tmp_path / "d.nescio", force=True)
        with serving(tmp_path / "d.nescio", "--model", model) as (_, url):
            browser.open(f"{url}/")
            browser.until(_READY)
            assert browser.run(shown) == is_shown
            browser.close()


def test_an_image_gets_labels_and_a_verdict(page, folder):
    choose(page, folder / "red.png")
    assert verdict(page) == "✓ In-distribution"
    labels = page.run("[...document.querySelectorAll('.labels li')].map(l => l.innerText)")
    assert labels == ["red99.7 %"]
    page.until("document.querySelector('.verdict img').naturalWidth === 40")
    choose(page, folder / "grey.png")
    assert verdict(page) == "✗ OUT: do not trust"
    assert text(page, ".which") == "grey.png"
    choose(page, folder / "notes.txt")
    page.until("document.querySelector('#verdict .trouble')?.innerText.includes('read the image')")


def test_images_can_be_dropped_several_at_once_and_a_bad_one_spoils_only_itself(page, folder):
    names = ("red", "damaged", "grey")
    bytes_of = {name: list((folder / f"{name}.png").read_bytes()) for name in names}
    page.run(
        f"""(() => {{
            const dragged = new DataTransfer();
            for (const [name, bytes] of Object.entries({json.dumps(bytes_of)}))
                dragged.items.add(
                    new File([new Uint8Array(bytes)], name + ".png", {{type: "image/png"}}));
            document.getElementById("drop").dispatchEvent(new DragEvent(
                "drop", {{dataTransfer: dragged, bubbles: true, cancelable: true}}));
        }})()"""
    )
    page.until("document.querySelectorAll('tbody tr').length === 2")
    rows = page.run("[...document.querySelectorAll('tbody tr')].map(r => r.innerText.split('\\t'))")
    assert [row[:2] for row in rows] == [["grey.png", "✗ OUT"], ["red.png", "✓ in"]]
    assert text(page, "caption") == "1 of 2 flagged."
    assert text(page, "#problems .trouble").startswith("damaged.png: Cannot read the image")


# --- traffic, token, life ---------------------------------------------------------------------


def test_traffic_appears_but_not_what_is_tried(page, url):
    post(url, [IN, OUT, OUT])
    with urllib.request.urlopen(f"{url}/v1/traffic") as answer:
        n_watched = json.load(answer)["n_watched"]
    paste(page, [IN, OUT])
    verdict(page)
    with urllib.request.urlopen(f"{url}/v1/traffic") as answer:
        traffic = json.load(answer)
    assert traffic["n_watched"] == n_watched
    flagged = traffic["monitor"]["flagged"]
    page.until(f"document.querySelector('.crosses')?.dataset.n === '{flagged}'")
    dots = page.run("document.querySelector('.dots').getAttribute('d').split('M').length - 1")
    assert dots + flagged == traffic["n_watched"]
    crosses = page.run("document.querySelector('.crosses').getAttribute('d').split('M').length - 1")
    assert crosses == flagged
    page.run("document.querySelector('.crosses').remove()")
    page.resize(600, 900)  # the charts are drawn again
    page.until("document.querySelector('.crosses')")
    titles = page.run("[...document.querySelectorAll('#traffic h3')].map((h) => h.innerText)")
    assert {"Flagged share", "Evidence of a change"} <= set(titles)
    assert "Evidence for a change of the scores:" in text(page, ".monitor")
    assert page.noise == []


_ALARM = """ALARM: since about input 40, the inputs score lower.
Flagged as out-of-distribution: 30 of 500.
  latest full window, inputs 1 to 500: 6.0% flagged
Evidence: 200 to 1."""


@pytest.mark.parametrize(
    ("monitor", "words", "details"),
    [
        (
            {"summary": _ALARM, "changed": True, "log10_martingale": 2.3},
            ["\N{BALLOT X} ALARM: since about input 40", "Evidence: 200 to 1."],
            ["latest full window, inputs 1 to 500: 6.0% flagged"],
        ),
    ],
)
def test_the_page_has_the_words_of_the_monitor(page, url, monitor, words, details):
    post(url, [IN])
    with urllib.request.urlopen(f"{url}/v1/traffic?charts=600") as answer:
        traffic = json.load(answer)
    assert "Evidence for a change" in traffic["monitor"]["summary"]
    traffic |= {"monitor": traffic["monitor"] | monitor, "n_watched": 10**6}
    traffic["charts"][0]["text"] = "of 1,000,000 inputs"
    page.run(f"window.fetch = async () => new Response({json.dumps(json.dumps(traffic))})")
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    page.until("document.getElementById('traffic').innerText.includes('of 1,000,000 inputs')")
    shown = text(page, ".monitor")
    assert all(word in shown for word in words), shown
    result = page.run("[...document.querySelectorAll('.monitor .detail')].map((p) => p.innerText)")
    assert result == details


def test_an_alarm_is_acknowledged_with_a_note(browser, folder):
    with serving(folder / "tagger.nescio") as (_, url):
        browser.open(f"{url}/")
        browser.until(_READY)
        assert browser.run("document.getElementById('acknowledge')") is None
        post(url, [OUT] * 60)
        browser.until("document.querySelector('.monitor.out #acknowledge')")
        assert "ALARM" in text(browser, ".monitor .word")
        before = "document.getElementById('acknowledge').previousElementSibling.innerText"
        assert browser.run(before).startswith("What to do")
        browser.run("document.querySelector('#acknowledge button').click()")
        assert text(browser, "#note-error") == "Write who, and what was done."
        browser.run(f"document.getElementById('note').value = {json.dumps(HOSTILE)}")
        browser.run("document.querySelector('#acknowledge button').click()")
        browser.until("document.querySelector('#traffic details')")
        assert browser.run("document.getElementById('acknowledge')") is None
        browser.run("document.querySelector('#traffic details').open = true")
        shown = text(browser, "#traffic details")
        assert shown.startswith("1 acknowledged change")
        assert HOSTILE in shown
        assert "ALARM: since about input 1" in shown
        assert browser.run("window.hacked") is None
        assert "No inputs since the latest acknowledged change" in text(browser, ".monitor.idle")
        titles = browser.run("[...document.querySelectorAll('#traffic h3')].map(h => h.innerText)")
        assert titles == []  # no cross of before
        assert browser.noise == []
        browser.close()


def test_an_alarm_of_an_earlier_run_is_shown(browser, folder, tmp_path):
    state = ("--monitor-state", tmp_path / "state.safetensors")
    with serving(folder / "tagger.nescio", *state) as (_, url):
        post(url, [OUT] * 60)
    with serving(folder / "tagger.nescio", *state) as (_, url):
        browser.open(f"{url}/")
        browser.until("document.querySelector('.monitor.out #acknowledge')")
        assert "ALARM" in text(browser, ".monitor .word")
        assert "No traffic yet" not in text(browser, "#traffic")
        browser.close()


def test_a_tab_out_of_sight_does_not_ask(page):
    def asked():
        page.run("0")  # so that the events are in
        return sum("/v1/traffic" in address for address in page.requested)

    seen = "document.dispatchEvent(new Event('visibilitychange'))"
    page.until("document.getElementById('live').innerText.startsWith('Live')")
    # The timer is held here, so that nobody has to wait for it.
    page.run("window.setTimeout = (next) => { window.next = next; }")
    page.run(seen)
    page.until("window.next")
    page.run("Object.defineProperty(document, 'hidden', {value: true, writable: true})")
    before = asked()
    page.run("{ const { next } = window; delete window.next; next(); }")
    assert asked() == before
    assert not page.run("Boolean(window.next)")
    page.run(f"document.hidden = false; {seen}")
    page.until("window.next")
    assert asked() == before + 1


def test_a_token_is_asked_for_and_kept_in_the_tab(browser, folder):
    with serving(folder / "counted.nescio", token="open sesame") as (_, url):
        browser.open(f"{url}/")
        browser.until("!document.getElementById('token-form').hidden")
        assert browser.run("document.getElementById('content').hidden")
        assert browser.run("document.activeElement.id") == "token"
        assert browser.run("document.getElementById('metrics').hidden")  # without a token, a 401
        for token in ("wrong", "öffne dich"):
            _enter(browser, token)
            browser.until("document.getElementById('token-why').innerText.includes('not accept')")
        _enter(browser, "open sesame")
        browser.until(_READY)
        browser.until("document.getElementById('traffic').innerText.startsWith('No traffic yet')")
        assert text(browser, "#rows-hint").startswith("This service has no model: give it the out")
        assert browser.run("document.getElementById('images').hidden")
        paste(browser, IN)
        assert verdict(browser) == "✓ In-distribution"
        assert "Threshold with 2 predicted labels" in text(browser, ".facts")
        browser.send("Page.reload")
        browser.until(f"document.getElementById('content') && {_READY}")
        assert browser.run("localStorage.length + document.cookie.length") == 0
        browser.close()


def _enter(page, token):
    page.run(f"document.getElementById('token').value = {json.dumps(token)}")
    page.run("document.querySelector('#token-form button').click()")


def test_it_follows_a_reload_and_says_when_the_service_stops(browser, folder, tmp_path):
    detector = tmp_path / "changing.nescio"
    shutil.copy(folder / "tagger.nescio", detector)
    with serving(detector, "--drain-seconds", "600") as (process, url):
        browser.open(f"{url}/")
        browser.until(_READY)
        post(url, [IN])
        browser.until("document.querySelector('.dots')")
        shutil.copy(folder / "other.nescio", detector)
        urllib.request.urlopen(urllib.request.Request(f"{url}/v1/reload", method="POST")).close()
        browser.until("document.querySelector('#traffic .waiting')")  # of the new detector
        process.send_signal(signal.SIGTERM)
        live = "document.getElementById('live').innerText"
        browser.until(f"{live} === 'The service is about to stop.'")
        process.send_signal(signal.SIGTERM)
        browser.until(f"{live}.startsWith('The service cannot be reached. Trying again in 4')")
        browser.close()


# --- looks ------------------------------------------------------------------------------------


def test_a_phone_in_the_dark_does_not_scroll_sideways(browser, url):
    browser.open(f"{url}/", scheme="dark", width=390, height=800)
    browser.until(_READY)
    post(url, [OUT, IN])
    paste(browser, [OUT, IN])
    verdict(browser)
    browser.until("document.querySelectorAll('svg.chart').length >= 3")
    assert browser.run("document.documentElement.scrollWidth") <= 390
    beyond = (
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('pre, .scroll, label')"
        " && e.getBoundingClientRect().right > 391).map(e => e.outerHTML.slice(0, 80))"
    )
    assert browser.run(beyond) == []
    colour = browser.run("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, colour[4:-1].split(", "))) < 150
    browser.close()
