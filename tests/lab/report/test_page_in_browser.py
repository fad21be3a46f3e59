"""The page in a real browser: quiet, offline, sortable, switchable, light and dark."""

from dataclasses import replace

import pytest

from nescio.detectors import Combined, MaxLogit
from nescio.lab.report import write_report
from nescio.lab.report.verdicts import Chosen


@pytest.fixture
def page(browser, tmp_path, make_evidence, make_lines):
    """A report that is open in the browser."""
    evidence = [make_evidence(oods=("stones", "leaves"), n_labels=9, seed=seed) for seed in (0, 1)]
    path = tmp_path / "report.html"
    write_report(path, make_lines(*evidence), evidence, title="Tiny <report>")
    browser.open(path)
    return browser


_COLUMN = "[...document.querySelectorAll('.results tbody')[0].rows].map(r => r.cells[{}].innerText)"
_SORT = "document.querySelectorAll('.results [data-sort]')"


def _numbers(page, column):
    return [float(text.split()[0]) for text in page.run(_COLUMN.format(column))]


def _states(page):
    states = "[...document.querySelectorAll('.results')[0].querySelectorAll('[aria-sort]')]"
    return page.run(f"{states}.map(h => h.getAttribute('aria-sort'))")


def test_loads_quietly_and_without_the_network(page, tmp_path):
    assert page.run("document.title") == "Tiny <report>"
    methods = [event["method"] for event in page.events]
    assert not {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"} & set(
        methods
    )
    asked = [
        event["params"]["request"]["url"]
        for event in page.events
        if event["method"] == "Network.requestWillBeSent"
    ]
    fetched = [url for url in asked if not url.startswith("data:")]
    assert fetched == [(tmp_path / "report.html").as_uri()]
    loaded = page.run("performance.getEntriesByType('resource').map(e => e.name)")
    assert [url for url in loaded if not url.startswith("data:")] == []


def test_a_click_sorts_and_a_second_one_turns_it_round(page):
    by_fpr = _numbers(page, 1)
    assert by_fpr == sorted(by_fpr)
    assert _states(page) == ["none", "ascending", "none", "none"]
    page.run(f"{_SORT}[2].click()")
    assert _numbers(page, 3) == sorted(_numbers(page, 3))
    assert _states(page) == ["none", "none", "ascending", "none"]
    page.run(f"{_SORT}[2].click()")
    assert _numbers(page, 3) == sorted(_numbers(page, 3), reverse=True)
    assert _states(page) == ["none", "none", "descending", "none"]


def test_tab_reaches_the_skip_link_first(page):
    page.press("Tab", 9)
    assert page.run("document.activeElement.className") == "skip"
    assert page.run("document.activeElement.getBoundingClientRect().left") >= 0


def _visible(page, anchor):
    script = (
        f"[...document.getElementById('{anchor}').closest('[data-switch]')"
        ".querySelectorAll('figure')].filter(f => f.offsetParent)"
        ".sort((a, b) => a.getBoundingClientRect().x - b.getBoundingClientRect().x)"
        ".map(f => f.querySelector('b').innerText)"
    )
    return page.run(script)


def _choose(page, anchor, text):
    page.run(
        f"(() => {{ const s = document.getElementById('{anchor}');"
        f"s.value = [...s.options].find(o => o.text === '{text}').value;"
        "s.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def test_selects_show_the_panels_that_they_name(page):
    assert _visible(page, "id0-ood0-density-0") == ["joint_energy", "max_logit"]
    _choose(page, "id0-ood0-density-0", "top_k_joint_energy(k=5)")
    assert _visible(page, "id0-ood0-density-0") == ["top_k_joint_energy(k=5)", "max_logit"]
    assert _visible(page, "id0-ood1-density-0") == ["joint_energy", "max_logit"]
    assert len(_visible(page, "id0-label-0")) == 6
    _choose(page, "id0-label-0", "label-8")
    assert _visible(page, "id0-label-0") == ["label-8"]


def test_focus_on_a_name_lights_its_curve_and_a_press_keeps_it(page):
    group = "document.getElementById('id0-ood0')"
    lit = f"[...{group}.querySelectorAll('path.lit')].map(p => p.dataset.curve)"
    page.run(f"{group}.querySelector('.curves [data-curve=\"1\"]').focus()")
    assert page.run(lit) == ["1"]
    page.run("document.activeElement.blur()")
    assert page.run(lit) == []
    page.run(f"{group}.querySelector('.curves [data-curve=\"2\"]').click()")
    assert page.run(lit) == ["2"]


def test_theme_follows_the_system_until_the_button_is_pressed(page):
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.run(background)
    page.prefer("dark")
    dark = page.run(background)
    assert sum(map(int, dark[4:-1].split(", "))) < 150 < sum(map(int, light[4:-1].split(", ")))
    page.until("document.getElementById('theme').textContent === 'Light'")
    page.run("document.getElementById('theme').click()")
    assert page.run(background) == light
    assert page.run("document.getElementById('theme').textContent") == "Dark"
    page.prefer("light")
    page.run("document.getElementById('theme').click()")
    assert page.run(background) == dark


def test_without_scripts_nothing_looks_like_a_button(page, tmp_path):
    looks = (
        "[...document.querySelectorAll('button')].filter(b => b.offsetParent).map(b => "
        "[getComputedStyle(b).cursor, getComputedStyle(b, '::before').content, b.tabIndex >= 0 && "
        "!b.disabled])"
    )
    pressable = page.run(looks)
    assert {cursor for cursor, _, _ in pressable} == {"pointer"}
    assert all(reached for _, _, reached in pressable)
    assert sum("↕" in mark for _, mark, _ in pressable) > 4
    page.open(tmp_path / "report.html", scripts=False)
    words = page.run(looks)
    assert len(words) == len(pressable) - 1  # the theme's is not there
    assert {tuple(look) for look in words} == {("default", "none", False)}
    assert page.run("document.querySelector('.selects').offsetParent") is None


def test_a_phone_does_not_scroll_sideways(page):
    page.resize(360, 800)
    assert page.run("document.documentElement.scrollWidth") <= 360


def too_wide(page):
    """Open what is folded, and return the tables of a phone that need scrolling sideways."""
    page.resize(400, 800)
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    return page.run(
        "[...document.querySelectorAll('table')].filter("
        "t => t.scrollWidth > t.parentElement.clientWidth + 1).map(t => t.outerHTML)"
    )


def test_a_phone_shows_whole_tables(page):
    assert too_wide(page) == []


def test_a_link_opens_what_it_leads_into(browser, tmp_path, make_evidence, make_lines):
    evidence = make_evidence()
    chosen = Chosen("max_logit", MaxLogit().calibrate(evidence.id_outputs))
    write_report(tmp_path / "r.html", make_lines(evidence), [evidence], title="t", chosen=chosen)
    browser.open(tmp_path / "r.html")
    opened = "document.getElementById('comparison').open"
    assert not browser.run(opened)
    browser.run("document.querySelector('a[href=\"#id0-ood0\"]').click()")
    assert browser.run(opened)


def test_the_page_of_a_detector_is_quiet_and_fits_a_phone(browser, tmp_path, make_evidence):
    evidence = replace(make_evidence(oods=(), n_samples=300), scores={})
    parts = ["joint_energy", "out_of_range(layer=logits, held_out=true)"]
    detector = Combined(parts).calibrate(make_evidence(n_samples=300, seed=3).id_outputs)
    path = tmp_path / "mine.html"
    write_report(path, [], [evidence], title="Mine", chosen=Chosen("mine (combined)", detector))
    browser.open(path)
    assert browser.noise == []
    # The answer is on the first screen, and on that of a phone too.
    number = "document.querySelector('.sentences .number').getBoundingClientRect().bottom"
    assert browser.run(number) < 400
    browser.resize(360, 800)
    assert browser.run("document.documentElement.scrollWidth") <= 360
    assert browser.run(number) < 800
    assert too_wide(browser) == []
    sort = "document.querySelectorAll('#verdicts-labels [data-sort]')[1]"
    browser.run(f"{sort}.click()")
    rows = "[...document.querySelector('#verdicts-labels table').tBodies[0].rows]"
    column = f"{rows}.map(r => +r.cells[1].innerText)"
    assert browser.run(column) == sorted(browser.run(column))


@pytest.mark.parametrize("width", [390, 1200])
def test_no_word_of_a_case_lies_on_another(page, width):
    page.resize(width, 800)
    overlaps = """(() => {
        const found = [];
        for (const bars of document.querySelectorAll('.bars')) {
            const frame = bars.getBoundingClientRect();
            const words = [...bars.querySelectorAll('text')].map(t => t.getBoundingClientRect());
            for (const one of words) {
                if (one.right > frame.right + 1 || one.left < frame.left - 1) found.push('outside');
                for (const other of words) {
                    const apart = one.right <= other.left || other.right <= one.left;
                    const sameRow = Math.abs(one.top - other.top) < 4;
                    if (one !== other && sameRow && !apart) found.push('overlap');
                }
            }
        }
        return [document.querySelectorAll('.bars').length, found];
    })()"""
    n_cards, overlapping = page.run(overlaps)
    assert n_cards > 4
    assert overlapping == []


def test_print_has_no_controls_and_opens_what_is_folded(page):
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("document.querySelectorAll('details:not([open])').length") == 0
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run("document.querySelectorAll('details[open]').length") == 0
    page.send("Emulation.setEmulatedMedia", media="print")
    for selector in ("#theme", ".selects", ".contents"):
        assert page.run(f"document.querySelector('{selector}').offsetParent") is None
    page.send("Emulation.setEmulatedMedia", media="")


_CARD = "getComputedStyle(document.querySelector('.nescio')).{}"


@pytest.mark.parametrize(
    ("scheme", "body", "dark"),
    [
        ("light", "", False),
        ("dark", "", True),
        ("light", 'data-jp-theme-light="false"', True),  # JupyterLab's own theme comes first
        ("dark", 'data-jp-theme-light="true"', False),
        ("dark", 'class="vscode-light"', False),
        ("light", 'data-md-color-scheme="slate"', True),
    ],
)
def test_a_result_in_a_notebook_follows_its_theme(browser, tmp_path, rng, scheme, body, dark):
    import nescio as ns

    card = ns.JointEnergy().calibrate(rng.normal(size=(100, 4))).calibration_._repr_html_()
    outside = "<p class='line in text' id='other'>not ours</p>"
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><body {body}>{outside}{card}", "utf-8")
    browser.open(path, scheme=scheme, scripts=True)
    ink, panel = (browser.run(_CARD.format(name)) for name in ("color", "backgroundColor"))
    assert ink == ("rgb(230, 232, 234)" if dark else "rgb(28, 33, 38)")
    assert panel == ("rgb(27, 31, 35)" if dark else "rgb(255, 255, 255)")
    own = "getComputedStyle(document.getElementById('other'))"
    assert browser.run(f"{own}.getPropertyValue('--c') + {own}.whiteSpace") == "normal"
    assert browser.noise == []
