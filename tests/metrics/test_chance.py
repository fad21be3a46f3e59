from nescio.metrics.chance import WORSE, chance_note, points_at_data


def test_nothing_is_said_without_reason():
    assert chance_note([], [], 5) == ""


def test_one_detector_gets_every_usual_cause():
    assert chance_note(["mine"], [], 1) == WORSE


def test_a_few_detectors_that_fail_are_not_taken_for_swapped_data():
    assert "lof. It fails on this data" in chance_note(["lof"], [], 5)
    note = chance_note(["lof", "msp"], ["odin"], 5)
    assert "lof, msp. They fail on this data" in note
    assert "No better than chance: odin" in note
    assert "swapped" not in note


def test_nearly_all_detectors_point_at_the_data():
    note = chance_note(list("abcd"), ["e"], 5)
    assert "4 of 5 detectors. The likely cause: the ID and the OOD data are swapped" in note
    assert points_at_data(4, 5)
    assert points_at_data(1, 1)
    assert not points_at_data(0, 1)
    assert not points_at_data(3, 5)
