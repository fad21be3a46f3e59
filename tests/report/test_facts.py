"""The manifest of a report."""

from dataclasses import replace

from fixtures.reports import build, result_line


def test_manifest_lists_every_fact_by_seed():
    manifest = {"data": {"id": "pets@test", "n": 3}, "versions": {"torch": None}, "x": "y" * 9999}
    lines = [replace(result_line("msp", 0.1, seed=seed), manifest=manifest) for seed in (0, 1)]
    page = build(lines)
    for words in ("pets, seed 1", "data.id pets@test", "data.n 3", "versions.torch null"):
        assert words in page.text
    assert len(page.text) < 9999
