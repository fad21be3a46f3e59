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
    """The files that the service uses, and its limits.

    Parameters
    ----------
    detector : Path
        A calibrated detector, as saved by `nescio calibrate`.
    model : Path, optional
        An ONNX file that computes logits. Without it, /v1/predict answers 404.
    tokenizer : Path, optional
        A tokenizer.json, or a folder with one, if the model takes texts and its file has none.
    logits, features : str, optional
        The names of the model's outputs, if they cannot be guessed.
    from_probs : bool, optional
        Whether the model returns probabilities instead of logits. By default, outputs that look
        like probabilities are an error.
    image_size : int, optional
        Width and height of the model's images in pixels, if its file does not say.
    mean, std : tuple of three floats, optional
        Mean and standard deviation of each colour channel on the scale from 0 to 1, if the file of
        the model does not say.
    token : str, optional
        The bearer token that requests to /v1 and /metrics must send.
    max_body_bytes : int
        Maximum size of a binary body or an image. For JSON, which needs more memory when it is
        decoded, the maximum is a quarter of it.
    max_pixels : int
        Maximum number of pixels per image. It is checked before the image is decoded.
    max_requests : int
        Maximum number of requests in progress; further requests get the answer 503.
    drain_seconds : float
        How long requests are still accepted after the signal to stop.
    monitor_state : Path, optional
        The file in which the state of the monitor is kept between runs.
    alpha : float
        The probability that the monitor ever raises a false alarm.
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
