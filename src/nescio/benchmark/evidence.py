"""The scores and outputs behind the result lines of one network, for the figures of the report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nescio._io.kinds import FileKind
from nescio.errors import FileFormatError
from nescio.metrics.comparison import Scored
from nescio.outputs import Outputs

_KIND = FileKind("nescio.evidence", "file of a benchmark's scores", schema=2, hashed_from=2)


@dataclass(frozen=True)
class Evidence:
    """The scores of every detector, and the outputs that they were computed from.

    Attributes
    ----------
    id_name : str
        The in-distribution set.
    seed : int
    id_outputs : Outputs
        The outputs on in-distribution test data.
    ood_outputs : mapping of OOD set to Outputs
    scores : mapping of detector to Scored
    image_roots : mapping of set to Path
        For sets of images, the folder that the ids of its outputs are relative to.
    of_lines : str
        A hash of the result lines made from the scores; empty if there are none on disk.
    """

    id_name: str
    seed: int
    id_outputs: Outputs
    ood_outputs: Mapping[str, Outputs]
    scores: Mapping[str, Scored]
    image_roots: Mapping[str, Path] = field(default_factory=dict)
    of_lines: str = ""


def save_evidence(path: str | Path, evidence: Evidence, outputs_paths: Mapping[str, Path]) -> None:
    """Write the scores to one file, with the paths of the outputs of all sets."""
    tensors = {}
    for at, scored in enumerate(evidence.scores.values()):
        tensors[f"{at}.id"] = scored.id_scores
        for number, ood in enumerate(evidence.ood_outputs):
            tensors[f"{at}.{number}"] = scored.ood_scores[ood]
    metadata = {
        "id": evidence.id_name,
        "seed": evidence.seed,
        "ood": list(evidence.ood_outputs),
        "detectors": list(evidence.scores),
        "of_lines": evidence.of_lines,
        # Relative, so that a folder of results can be moved.
        "outputs": {
            name: os.path.relpath(file, Path(path).parent) for name, file in outputs_paths.items()
        },
        "image_roots": {name: str(root.resolve()) for name, root in evidence.image_roots.items()},
    }
    _KIND.write(path, tensors, metadata, force=True)


def load_evidence(path: str | Path) -> Evidence:
    """Read a file that `save_evidence` wrote, and the outputs that it refers to."""
    tensors, metadata = _KIND.read(path)
    folder = Path(path).parent
    try:
        id_name, oods = metadata["id"], list(metadata["ood"])
        paths = {name: folder / metadata["outputs"][name] for name in (id_name, *oods)}
        scores = {
            name: Scored(
                tensors[f"{at}.id"],
                {ood: tensors[f"{at}.{number}"] for number, ood in enumerate(oods)},
            )
            for at, name in enumerate(metadata["detectors"])
        }
        outputs = {name: Outputs.load(file) for name, file in paths.items()}
        return Evidence(
            id_name=id_name,
            seed=metadata["seed"],
            id_outputs=outputs.pop(id_name),
            ood_outputs=outputs,
            scores=scores,
            image_roots={name: Path(root) for name, root in metadata["image_roots"].items()},
            of_lines=metadata["of_lines"],
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from error
