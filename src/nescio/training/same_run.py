"""Whether a run that is resumed is the one that was saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nescio.data.split import DATA_SAMPLE, DATA_SHA256, content_changed
from nescio.errors import ParameterError
from nescio.training.settings import TrainSettings


def check_same_run(path: Path, saved: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise unless settings and data are those of the saved run; only epochs may differ."""

    def flat(facts: Mapping[str, Any]) -> dict[str, Any]:
        named = {
            f"[{section}] {name}": list(value) if isinstance(value, tuple) else value
            for section, values in facts["settings"].items()
            for name, value in values.items()
        }
        del named["[training] epochs"]
        # The data of the outliers must be the same, and not their address.
        named.pop("[training] outliers", None)
        for part in ("train", "val", "outliers"):
            named[f"{part} data"] = facts.get(part, {}).get("data_fingerprint")
        return named

    # A setting that is not recorded has its default value.
    defaults = {"settings": asdict(TrainSettings())}
    theirs, mine = (flat(defaults) | flat(facts) for facts in (saved, ours))
    for name, value in mine.items():
        if theirs[name] != value:
            raise ParameterError(
                f"{path} is from a run with a different {name}: {theirs[name]!r}, not "
                f"{value!r}. Use the same settings and data, or start again with force=True."
            )
    for part in ("train", "val", "outliers"):
        content = {name: ours.get(part, {}).get(name) for name in (DATA_SAMPLE, DATA_SHA256)}
        known = {name: value for name, value in content.items() if value is not None}
        changed = content_changed(saved.get(part, {}), known)
        if changed:
            raise ParameterError(
                f"{path} was made from other {part} data: {changed} Start again with force=True."
            )
