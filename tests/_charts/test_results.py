"""Results as text and HTML: escaped, nested in one class, and readable in any theme."""

import re

from nescio._charts.results import View, keyed, result_card, result_text, strip, table, word
from nescio._charts.svg import Markup, palette, sheet


def test_texts_are_escaped_and_markup_is_not():
    view = View(
        "<b>",
        "a < b",
        {"<u>\n<v>": ["<s>", keyed("<q>", "c0")]},
        charts=lambda: [Markup("<i>drawn</i>")],
        notes=["<e>"],
    )
    html = result_card(view)
    for tag in ("b", "u", "v", "s", "q", "e"):
        assert f"<{tag}>" not in html
        assert f"&lt;{tag}&gt;" in html
    assert '<p class="text">a &lt; b</p>' in html
    assert "<i>drawn</i>" in html


def test_the_text_has_numbers_on_the_right_and_no_drawings():
    table = {
        "name": ["7", "12"],
        "set\nscore ↓": ["-1.5", "20"],
        "verdict": [word("OUT", "out"), word("in", "in")],
        "drawn": [strip(0.5, 0.4, 0.6)] * 2,
    }
    assert result_text(View("A title", "A text.", table, n_rows=9, notes=["a note", ""])) == (
        """A title
A text.
          set
name  score ↓  verdict
7        -1.5  OUT
12         20  in
and 7 more
a note"""
    )


def test_the_style_changes_nothing_else_on_the_page():
    style = re.search(r"<style>(.*)</style>", result_card(View("a")), re.DOTALL)[1]
    assert style.startswith(".nescio {")
    assert style.endswith("}")
    assert ":root" not in style
    depth = 0
    for character in style[:-1]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth > 0 or character not in "};"


def test_a_table_has_its_numbers_on_the_right():
    html = table(["name", "score", "word"], [["1", "1", "in"]])
    assert '<tr><td>1</td><td class="number">1</td><td>in</td></tr>' in html


def test_a_long_table_is_cut():
    html = result_card(View("", table={"n": [str(number) * 100 for number in range(50)]}))
    assert html.count("<tr") == 10
    assert "and 42 more" in html
    assert "1" * 50 not in html


def test_the_palette_has_every_colour_for_day_and_night():
    day, night = palette(), palette(dark=True)
    named = set(re.findall(r"--([\w-]+): (?:light-dark|var)", sheet("palette.css")))
    assert day.keys() == night.keys() == named
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in (*day.values(), *night.values()))
    assert day["in"] == day["accent"] != night["in"]
