"""What a model gave for some samples: named arrays, in memory and on disk.

`Outputs` is where the model ends: everything after it works without torch. On disk it is one
safetensors file, which is memory-mapped when loaded.
"""

from __future__ import annotations

from nescio.outputs.files import READABLE
from nescio.outputs.outputs import Head, Outputs

__all__ = ["READABLE", "Head", "Outputs"]
