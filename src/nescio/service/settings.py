"""What the service is told when it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nescio._validation import checked_whole
from nescio.errors import ParameterError

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Settings:
    """Where the detector and the model are, and the limits.

    Parameters
    ----------
    detector : Path
        A calibrated detector, as `nescio fit` saves it.
    model : Path, optional
        An ONNX file from inputs to logits; without one there is no /v1/predict.
    logits, features : str, optional
        The names of the model's outputs, where they are not to be guessed.
    from_probs : bool
        Whether the model gives probabilities.
    image_size : int, optional
        Pixels a side of the model's images, where its file does not say.
    mean, std : tuple of three floats, optional
        Of each colour of its images, on the scale from 0 to 1; as its file says, if not given.
    token : str, optional
        Every request under /v1 and to /metrics must then bring it as a bearer token.
    cors_origins : tuple of str
        Web pages of other origins that may call the service.
    max_body_bytes : int
        Of a binary body or an image; JSON, which grows when it is read, may have a quarter.
    max_rows : int
        Inputs in one request.
    max_pixels : int
        Of an image, before it is decoded.
    max_requests : int
        Requests that may be under way at once; the next one is told to come back.
    max_waiting_bytes : int
        Of all bodies under way.
    body_seconds : float
        How long a client may take to send its body.
    drain_seconds : float
        How long requests are still taken after the signal to stop.
    monitor_state : Path, optional
        Where the monitor's state is kept between runs.
    alpha : float
        The probability of a false alarm of the monitor.
    """

    detector: Path
    model: Path | None = None
    logits: str | None = None
    features: str | None = None
    from_probs: bool = False
    image_size: int | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    token: str | None = None
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 32 * MEGABYTE
    max_rows: int = 100_000
    max_pixels: int = 50_000_000
    max_requests: int = 256
    max_waiting_bytes: int = 256 * MEGABYTE
    body_seconds: float = 30.0
    drain_seconds: float = 1.0
    monitor_state: Path | None = None
    alpha: float = 0.01

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_rows", "max_pixels", "max_requests"):
            checked_whole(name, getattr(self, name), minimum=1)
        of_a_model = ("logits", "features", "from_probs", "image_size", "mean", "std")
        given = [name for name in of_a_model if getattr(self, name)]
        if self.model is None and given:
            option = given[0].replace("_", "-")
            raise ParameterError(f"--{option} is about a model, and there is none: pass --model.")
        if self.max_waiting_bytes < self.max_body_bytes:
            raise ParameterError(
                f"max_waiting_bytes must be at least max_body_bytes, {self.max_body_bytes:,}, "
                f"got {self.max_waiting_bytes:,}."
            )
        if self.token is not None and not (self.token.isascii() and self.token.strip()):
            raise ParameterError("the token must be ASCII text, and not empty.")
        for origin in self.cors_origins:
            if not re.fullmatch(r"https?://[^/\s*]+", origin):
                raise ParameterError(
                    f"a web page's origin is like https://example.org, without a path, got "
                    f"{origin!r}."
                )

    @property
    def max_json_bytes(self) -> int:
        """Of a body of JSON: a number of two characters takes 32 bytes while it is read."""
        return max(1, self.max_body_bytes // 4)
