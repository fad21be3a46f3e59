"""Evidence: the scores and outputs behind the lines, and how they are stored."""

import numpy as np
import pytest

pytest.importorskip("torchvision")

from fixtures.rewriting import write_valid
from nescio._io.tensors import read_tensors
from nescio.benchmark.evidence import load_evidence
from nescio.detectors import JointEnergy
from nescio.errors import FileFormatError
from nescio.metrics import auroc


def test_the_lines_are_of_the_evidence(small_run):
    """The numbers are those of the scores, and the scores those of the outputs."""
    evidence = small_run.evidence()
    assert [one.seed for one in evidence] == [0, 1]
    for line in small_run.lines:
        [of_seed] = [one for one in evidence if one.seed == line.seed]
        scored = of_seed.scores[line.detector]
        area = auroc(scored.id_scores, scored.ood_scores[line.ood])
        assert line.evaluation.auroc.value == pytest.approx(area)
    first = evidence[0]
    np.testing.assert_allclose(
        first.scores["joint_energy"].ood_scores["noise"],
        JointEnergy().score_samples(first.ood_outputs["noise"]),
    )
    assert (first.image_roots["noise"] / first.ood_outputs["noise"].ids[0]).is_file()


@pytest.mark.parametrize(
    "damage",
    [{"outputs": {}}, {"outputs": [], "id": 9}, {"detectors": 3}, {"schema": 3}, {"kind": "x"}],
)
def test_damaged_evidence(small_run, tmp_path, damage):
    source = small_run.folder / "runs" / "digits-seed-0.safetensors"
    tensors, metadata = read_tensors(source)
    write_valid(tmp_path / "x.safetensors", tensors, metadata | damage)
    with pytest.raises(FileFormatError):
        load_evidence(tmp_path / "x.safetensors")
