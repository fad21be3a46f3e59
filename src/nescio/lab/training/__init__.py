"""Train networks on images, and tune ODIN and Mahalanobis for them.

This package needs torch, torchvision and pillow: pip install '.[torch]'.
"""

from __future__ import annotations

from nescio.lab.training.settings import TrainSettings
from nescio.lab.training.train import Run, train
from nescio.lab.training.trainer import Epoch
from nescio.lab.training.tuning import tune

__all__ = ["Epoch", "Run", "TrainSettings", "train", "tune"]
