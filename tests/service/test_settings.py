"""Settings that contradict each other are rejected."""

import pytest

from nescio.errors import ParameterError
from nescio.service import Settings


def test_settings_that_cannot_be_are_refused(detector_file):
    wrong = (
        {"max_requests": 0},
        {"logits": "scores"},
        {"image_size": 64},
        {"token": ""},
        {"token": "é"},
        {"cors_origins": ("*",)},
        {"cors_origins": ("https://example.org/page",)},
        {"cors_origins": ("example.org",)},
    )
    for settings in wrong:
        with pytest.raises(ParameterError):
            Settings(detector=detector_file(), **settings)
