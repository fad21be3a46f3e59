"""Results as HTML: escaped, nested in one class, and readable in any theme."""

import re

from nescio._charts.cards import card, keyed, short_table, strip, table
from nescio._charts.style import palette, sheet
from nescio._charts.svg import Markup


def test_texts_are_escaped_and_markup_is_not():
    html = card(
        "<b>", "a < b", Markup("<i>drawn</i>"), table(["<u>"], [["<s>"]]), keyed("<q>", "c0")
    )
    for tag in ("b", "u", "s", "q"):
        assert f"<{tag}>" not in html
        assert f"&lt;{tag}&gt;" in html
    assert '<p class="text">a &lt; b</p>' in html
    assert "<i>drawn</i>" in html


def test_the_style_changes_nothing_else_on_the_page():
    style = re.search(r"<style>(.*)</style>", card("a"), re.DOTALL)[1]
    assert style.startswith(".nescio {")
    assert style.endswith("}")
    assert ":root" not in style
    depth = 0
    for character in style[:-1]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth > 0 or character not in "};"


def test_a_table_has_its_numbers_on_the_right():
    html = table(["name", "score", "word"], [["a", "1", "in"]], n_numbers=1, chosen=0)
    assert '<tr class="chosen"><td>a</td><td class="number">1</td><td>in</td></tr>' in html


def test_a_long_table_is_cut():
    html = short_table(["n"], [[str(at) * 100] for at in range(50)])
    assert html.count("<tr") == 12
    assert "and 40 more" in html
    assert len(html) < 2_000


def test_a_strip_stays_within_its_frame():
    assert 'd="M4.0 8H136.0"' in strip(0.5, -1.0, 3.0)


def test_the_palette_has_every_colour_for_day_and_night():
    day, night = palette(), palette(dark=True)
    named = set(re.findall(r"--([\w-]+): (?:light-dark|var)", sheet("palette.css")))
    assert day.keys() == night.keys() == named
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in (*day.values(), *night.values()))
    assert day["in"] == day["accent"] != night["in"]
