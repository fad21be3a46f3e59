"""nescio detectors and nescio info."""


def test_a_narrow_terminal_still_shows_the_names(here, nescio, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = nescio("eval", "--id", "test.npy", "--ood", "objects.npy", "--bootstrap", "0")
    assert "top_k_joint_energy" in out
    assert max(map(len, out.splitlines()[:10])) <= 60


def test_shell_completion_knows_the_detectors():
    from nescio.cli.options import detector_names

    assert detector_names("top") == ["top_k_joint_energy", "top_k_logit", "top_k_prob"]
