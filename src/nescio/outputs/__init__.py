"""What a model gave for some samples: named arrays, in memory and on disk.

`Outputs` is where the model ends: everything after it works without torch. On disk it is one
safetensors file, which is memory-mapped when loaded.
"""

from __future__ import annotations

from nescio.outputs.checked import check_label_names
from nescio.outputs.files import (
    READABLE,
    check_outputs_target,
    save_in_parts,
)
from nescio.outputs.head import Head
from nescio.outputs.outputs import Outputs, quiet_about_probabilities

__all__ = [
    "READABLE",
    "Head",
    "Outputs",
    "check_label_names",
    "check_outputs_target",
    "quiet_about_probabilities",
    "save_in_parts",
]
