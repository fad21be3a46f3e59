"""A wrapped model as a folder that can be loaded without the code that trained it.

The folder is a repository in the layout of Hugging Face. `nescio.mlflow` keeps the same files in a
model of MLflow.
"""

from __future__ import annotations

from nescio.registries.hugging_face import from_pretrained, push_to_hub, save_pretrained

__all__ = ["from_pretrained", "push_to_hub", "save_pretrained"]
