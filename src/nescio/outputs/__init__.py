"""What a model gave for some data, in memory and on disk."""

from __future__ import annotations

from nescio.outputs.outputs import (
    READABLE,
    Outputs,
    check_label_names,
    check_outputs_target,
    quiet_about_probabilities,
    save_in_parts,
)

__all__ = [
    "READABLE",
    "Outputs",
    "check_label_names",
    "check_outputs_target",
    "quiet_about_probabilities",
    "save_in_parts",
]
