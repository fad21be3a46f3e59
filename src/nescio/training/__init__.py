"""Train networks on images, and tune ODIN and Mahalanobis for them.

This package needs torch, torchvision and pillow: pip install '.[vision]'.
"""

from __future__ import annotations

from nescio.data.preprocessing import Preprocessing
from nescio.networks.backbones import build_network
from nescio.networks.checkpoint import Architecture, Checkpoint, load_checkpoint
from nescio.networks.network import Network, TwoLayerHead
from nescio.networks.paper import load_paper_checkpoint
from nescio.runners import Extraction, extract
from nescio.runners.devices import choose_device
from nescio.runners.images import Augmentation
from nescio.runners.perturb import Setting, Tuning
from nescio.runners.tune_settings import MahalanobisSettings, OdinSettings, TuneSettings
from nescio.training.settings import TrainSettings
from nescio.training.train import Run, train
from nescio.training.trainer import Epoch
from nescio.training.tuning import tune

__all__ = [
    "Architecture",
    "Augmentation",
    "Checkpoint",
    "Epoch",
    "Extraction",
    "MahalanobisSettings",
    "Network",
    "OdinSettings",
    "Preprocessing",
    "Run",
    "Setting",
    "TrainSettings",
    "TuneSettings",
    "Tuning",
    "TwoLayerHead",
    "build_network",
    "choose_device",
    "extract",
    "load_checkpoint",
    "load_paper_checkpoint",
    "train",
    "tune",
]
