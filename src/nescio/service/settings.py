"""The settings of the service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nescio._validation import checked_whole
from nescio.errors import ParameterError

# Limits per request that cannot be set.
MAX_ROWS = 100_000
MAX_TEXTS = 1_000
MAX_CHARACTERS = 1_000_000  # of all texts; about a second for the tokenizer
MAX_TOKENS = 2_000_000  # in an input of the model: some seconds with a small one
MAX_EXPLAINED = 100  # rows


@dataclass(frozen=True)
class Settings:
    """The files that the service uses, and its limits: the options of `nescio serve`.

    Sizes are in bytes and pixels. A JSON body may have a quarter of `max_body_bytes`.
    """

    detector: Path
    model: Path | None = None
    tokenizer: Path | None = None
    logits: str | None = None
    features: str | None = None
    from_probs: bool | None = None
    image_size: int | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    token: str | None = None
    max_body_bytes: int = 32_000_000
    max_pixels: int = 50_000_000
    max_requests: int = 256
    drain_seconds: float = 1.0
    monitor_state: Path | None = None
    alpha: float = 0.01

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_pixels", "max_requests"):
            checked_whole(name, getattr(self, name), minimum=1)
        model_options = ("tokenizer", "logits", "features", "from_probs", "image_size")
        passed = [name for name in (*model_options, "mean", "std") if getattr(self, name)]
        if self.model is None and passed:
            option = passed[0].replace("_", "-")
            raise ParameterError(f"--{option} needs a model: pass --model.")
        if self.token is not None and not (self.token.isascii() and self.token.strip()):
            raise ParameterError("the token must be ASCII text and must not be empty.")
