"""Read TOML into dataclasses, whose annotations and own checks say what is allowed.

A dataclass is a table. A field that is a dataclass is a table inside it, and a field that is a
tuple of dataclasses is a list of tables. An error names the file, the table, the key, what is
allowed and what was given.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from nescio._io.files import existing_file
from nescio.errors import FileFormatError, NescioError, ParameterError

_DESCRIBED = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}
_PLURAL = {str: "strings", int: "whole numbers", float: "numbers"}

_LARGEST = 2**53  # of a whole number in the place of a floating-point number

Settings = TypeVar("Settings")


def read_toml(path: str | Path) -> str:
    """Return the text of a TOML file."""
    try:
        return existing_file(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not TOML: it is not text in UTF-8.") from error


def from_toml(
    kind: type[Settings],
    text: str,
    source: object,
    *,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = lambda table: table,
    **given: Any,
) -> Settings:
    """Return a dataclass from the text of a TOML file; `source` names the file in errors.

    `prepare` may change the table before it is read. `given` are fields that do not come from the
    file, and that the file may not contain.
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: numbers of thousands of digits too
        raise FileFormatError(f"{source} is not TOML: {error}") from error
    try:
        settings: Settings = from_table(kind, prepare(table), **given)
    except NescioError as error:
        raise ParameterError(f"{source}: {error}") from error
    return settings


def from_table(
    kind: type[Settings],
    table: Any,
    *,
    where: str = "",
    base: Settings | None = None,
    **given: Any,
) -> Settings:
    """Return a dataclass from a table, as `tomllib` returns it.

    `where` names the table in errors, such as "train.model". The values of `base` are used for
    the keys that the table leaves out, instead of the defaults. `given` are fields that the table
    may not contain.
    """
    if not isinstance(table, Mapping):
        raise ParameterError(f"{where} must be a table, written as [{where}], got {table!r}.")
    place = f"[{where}]: " if where else ""
    known = {field.name: field for field in fields(kind) if field.name not in given}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            raise ParameterError(
                f"{place}there is no key {key!r}.{guess} The keys are {', '.join(sorted(known))}."
            )
        inside = f"{where}.{key}" if where else key
        values[key] = _value(value, hints[key], key, inside, getattr(base, key, None), place)
    for key, field in known.items():
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if base is None and key not in values and not has_default:
            raise ParameterError(f"{place}the key {key!r} is missing.")
    try:
        return kind(**given, **values) if base is None else replace(base, **given, **values)  # type: ignore[type-var]
    except NescioError as error:
        raise ParameterError(f"{place}{error}") from error


def _value(value: Any, hint: Any, key: str, inside: str, base: Any, place: str) -> Any:
    """Return a value of a table as its field wants it."""
    if isinstance(hint, type) and is_dataclass(hint):
        return from_table(hint, value, where=inside, base=base)
    parts = get_args(hint)
    if get_origin(hint) is tuple and isinstance(parts[0], type) and is_dataclass(parts[0]):
        if not isinstance(value, list):
            raise ParameterError(f"{key} must be a list of tables, written as [[{inside}]].")
        return tuple(from_table(parts[0], one, where=f"[{inside}]") for one in value)
    if not _fits(value, hint):
        raise ParameterError(f"{place}{key} must be {_described(hint)}, got {value!r}.")
    return tuple(value) if isinstance(value, list) else value


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a field is annotated with."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        if parts[-1] is Ellipsis:
            return all(_fits(one, parts[0]) for one in value)
        return len(value) == len(parts) and all(map(_fits, value, parts))
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_fits(one, parts[1]) for one in value.values())
    if origin is UnionType:
        return any(_fits(value, part) for part in parts)
    if hint is float:
        return type(value) is float or (type(value) is int and abs(value) < _LARGEST)
    return hint is Any or type(value) is hint


def _described(hint: Any) -> str:
    """Return a type in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple:
        count = "" if parts[-1] is Ellipsis else f"{len(parts)} "
        return f"a list of {count}{_PLURAL[parts[0]]}"
    if origin is Mapping:
        return f"a table of {_PLURAL[parts[1]]}" if parts[1] in _PLURAL else "a table"
    if origin is UnionType:
        return _described(next(part for part in parts if part is not NoneType))
    return _DESCRIBED[hint]
