"""Protocols: named defaults for the settings of a benchmark.

"paper" is what the paper says: it changes nothing, because all settings have the paper's values by
default. "authors" is what the authors' published code does: authors.toml. A setting in the
benchmark's own file wins over that of the protocol, so each difference can be switched alone.

A table of the file that is named after a protocol is read with this protocol only:

    [authors.train.training]
    batch_size = 320
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from nescio._validation import checked_choice
from nescio.errors import ParameterError

PROTOCOLS = ("paper", "authors")


def with_protocol(table: Mapping[str, Any], protocol: str | None = None) -> dict[str, Any]:
    """Return the table of a benchmark, with a protocol's settings where it has none of its own.

    Parameters
    ----------
    table : mapping
        As `tomllib` returns it.
    protocol : {"paper", "authors"}, optional
        By default the one that the table names, or the paper's.
    """
    own = {name: value for name, value in table.items() if name not in PROTOCOLS}
    name = checked_choice("protocol", protocol or own.get("protocol", "paper"), PROTOCOLS)
    for key in PROTOCOLS:
        if not isinstance(table.get(key, {}), Mapping):
            raise ParameterError(
                f"{key} must be a table of settings for this protocol, such as "
                f'[{key}.train.training], got {table[key]!r}. Use protocol = "{key}" to choose it.'
            )
    settings = merged(_settings_of(name), table.get(name, {}))
    return merged(settings, own) | {"protocol": name}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return two tables as one; where both have a value, that of `above` is taken."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        result[key] = merged(under, value) if both else value  # type: ignore[arg-type]
    return result


def _settings_of(protocol: str) -> dict[str, Any]:
    if protocol == "paper":
        return {}
    text = files("nescio.benchmark").joinpath(f"{protocol}.toml").read_text("utf-8")
    return tomllib.loads(text)
