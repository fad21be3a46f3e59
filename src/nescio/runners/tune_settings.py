"""How the parameters of ODIN and Mahalanobis are chosen; without torch, so that specs can hold it.

One TOML file holds these settings: that of `nescio tune --config`, or [tune] of a benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from nescio._io.toml import from_toml, read_toml
from nescio._validation import checked_choice, checked_whole
from nescio.data.corrupt import CORRUPTIONS, SYNTHETIC_SETS
from nescio.errors import ParameterError

ODIN_EPSILONS = tuple(round(0.0002 * step, 4) for step in range(21))


@dataclass(frozen=True)
class OdinSettings:
    """The section [odin]: how ODIN perturbs its inputs.

    Attributes
    ----------
    label : {"top", "predicted"}
        Under the max, the label that the step makes the network more certain of. "top" takes the
        label of the largest logit as present. "predicted" takes it as predicted: present if the
        logit is at least 0, else absent, so that the step lowers a negative logit further.
    epsilons : tuple of float
        The sizes of the step to try, on the scale of pixels from 0 to 1.
    """

    label: str = "top"
    epsilons: tuple[float, ...] = ODIN_EPSILONS

    def __post_init__(self) -> None:
        checked_choice("label", self.label, ("top", "predicted"))
        if not self.epsilons or not all(0 <= epsilon < 1 for epsilon in self.epsilons):
            raise ParameterError(
                "epsilons must be numbers of at least 0 and less than 1, got "
                f"{list(self.epsilons)}."
            )


@dataclass(frozen=True)
class MahalanobisSettings:
    """The section [mahalanobis]: how Mahalanobis perturbs its inputs.

    Attributes
    ----------
    step : {"prediction", "gaussian"}
        What the step increases: the certainty of the prediction, as for ODIN, or the Gaussian score
        of the nearest label.
    """

    step: str = "prediction"

    def __post_init__(self) -> None:
        checked_choice("step", self.step, ("prediction", "gaussian"))


@dataclass(frozen=True)
class TuneSettings:
    """How the parameters of ODIN and Mahalanobis are chosen.

    Attributes
    ----------
    images : int
        The maximum number of validation images, and of images of each synthetic set.
    synthetic : tuple of str
        The synthetic sets, by their names in `nescio.data.CORRUPTIONS`.
    odin : OdinSettings
    mahalanobis : MahalanobisSettings
    """

    images: int = 1000
    synthetic: tuple[str, ...] = SYNTHETIC_SETS
    odin: OdinSettings = field(default_factory=OdinSettings)
    mahalanobis: MahalanobisSettings = field(default_factory=MahalanobisSettings)

    def __post_init__(self) -> None:
        checked_whole("images", self.images, minimum=2)
        if not self.synthetic or len(set(self.synthetic)) < len(self.synthetic):
            raise ParameterError(
                f"synthetic must be a list of different names, got {list(self.synthetic)}."
            )
        for name in self.synthetic:
            checked_choice("synthetic", name, tuple(CORRUPTIONS))

    @classmethod
    def from_toml(cls, path: str | Path) -> TuneSettings:
        """Read a TOML file; keys that it leaves out have their default values."""
        return from_toml(cls, read_toml(path), path)

    def direction(self, method: str, aggregate: str) -> str:
        """Return the direction that a method steps in, as `find_directions` names it."""
        if method == "odin" and aggregate == "max" and self.odin.label == "predicted":
            return "predicted_max"
        if method == "mahalanobis" and self.mahalanobis.step == "gaussian":
            return "gaussian"
        return aggregate

    def n_steps(self, n_images: int) -> int:
        """Return how many images tuning runs, if the split has this number of images."""
        return (1 + len(self.synthetic)) * min(self.images, n_images)
