"""Networks on images: build, train, and extract the `Outputs` that everything else reads.

This part of nescio needs torch, torchvision and pillow: pip install 'nescio[vision]'.
"""

from __future__ import annotations

from nescio.models.backbones import build_network
from nescio.models.checkpoint import Architecture, Checkpoint, load_checkpoint
from nescio.models.devices import choose_device
from nescio.models.extract import Extraction, extract
from nescio.models.images import Augmentation
from nescio.models.network import Network, NetworkOutputs, TwoLayerHead
from nescio.models.paper import load_paper_checkpoint
from nescio.models.settings import TrainSettings
from nescio.models.tapped import TappedNetwork
from nescio.models.train import Run, train
from nescio.models.trainer import Epoch
from nescio.models.tuning import Setting, Tuning, tune
from nescio.preprocessing import Preprocessing

__all__ = [
    "Architecture",
    "Augmentation",
    "Checkpoint",
    "Epoch",
    "Extraction",
    "Network",
    "NetworkOutputs",
    "Preprocessing",
    "Run",
    "Setting",
    "TappedNetwork",
    "TrainSettings",
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
