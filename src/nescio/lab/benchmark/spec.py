"""A benchmark is data: one TOML file that names data sets, network, detectors and seeds.

docs/how-to/run-a-benchmark.md shows one, and `nescio bench NAME --show` prints a shipped one.
`{data}` in it stands for the folder that all data is in, which `nescio bench --data` names.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from nescio._validation import checked_choice, checked_whole
from nescio.detectors import Detector
from nescio.detectors.registry import build_detector, parse_detector
from nescio.errors import ParameterError
from nescio.lab.benchmark.paper import find_paper_table
from nescio.lab.benchmark.results import file_name
from nescio.lab.data import parse_address
from nescio.lab.settings import TrainSettings, TuneSettings, from_toml, read_toml
from nescio.models.base import layer_names

_DATA = "{data}"
_SUFFIX = ".toml"


@dataclass(frozen=True)
class BenchmarkSet:
    """An in-distribution set and the out-of-distribution sets that it is compared with."""

    name: str
    data: str  # the address of a data set with the splits train, val and test: KIND:PATH
    ood: Mapping[str, str]  # name and address of each OOD set: KIND:PATH or KIND@SPLIT:PATH
    network: str = ""  # the file of a trained network; if empty, one is trained per seed
    skip_bad: bool = False  # whether to leave out images that cannot be read
    mean_labels: int = 0  # what `k=mean_labels` stands for; if 0, counted in the training images

    def __post_init__(self) -> None:
        parse_address(self.data).with_split("test")
        for name, text in self.ood.items():
            parse_address(text)
            if name == self.name:
                raise ParameterError(f"{name!r} names an ID set and an OOD set.")
        if not self.ood:
            raise ParameterError(f"the set {self.name!r} has no OOD set: ood is empty.")

    def with_data(self, folder: str) -> BenchmarkSet:
        """Return a copy with `{data}` replaced by a folder."""
        return replace(
            self,
            data=self.data.replace(_DATA, folder),
            ood={name: text.replace(_DATA, folder) for name, text in self.ood.items()},
            network=self.network.replace(_DATA, folder),
        )


@dataclass(frozen=True)
class BenchmarkSpec:
    """What to run. docs/how-to/run-a-benchmark.md describes every key."""

    name: str  # of the file, without its suffix
    title: str
    detectors: tuple[str, ...]  # with their parameters; the value of k may be mean_labels
    sets: tuple[BenchmarkSet, ...]
    seeds: tuple[int, ...] = (0,)  # one network is trained per seed
    train: TrainSettings = field(default_factory=TrainSettings)
    tune: TuneSettings = field(default_factory=TuneSettings)
    paper_tables: tuple[str, ...] = ()  # keys of those that the results are compared with
    bootstrap: int = 1000  # resamples for the intervals
    features: str | None = None  # the layers that detectors read, as `extract` takes them
    fit_on: Mapping[str, str] = field(default_factory=dict)  # "train" or "val", by detector
    variants: Mapping[str, str] = field(default_factory=dict)  # what names in detectors stand for
    nus_wide_halves: str = "nescio"  # or "authors": see `load_nus_wide`
    limit: int = 0  # images of each split in a rehearsal; 0 for all of them, and results
    protocol: str = "paper"  # one of `PROTOCOLS`

    def __post_init__(self) -> None:
        for name in ("detectors", "sets", "seeds"):
            if not getattr(self, name):
                raise ParameterError(f"{name} must not be empty.")
        checked_whole("bootstrap", self.bootstrap, minimum=0)
        checked_whole("limit", self.limit, minimum=0)
        layer_names(self.features)  # raises an error if it names none
        checked_choice("nus_wide_halves", self.nus_wide_halves, ("nescio", "authors"))
        checked_choice("protocol", self.protocol, PROTOCOLS)
        for name, split in self.fit_on.items():
            checked_choice(f"fit_on.{name}", split, ("train", "val"))
            if build_detector(name).learns_from_held_out and split == "val":
                raise ParameterError(
                    f"fit_on: {name} cannot be fitted on val, which is the held-out data that it "
                    "is calibrated on."
                )
        for key in self.paper_tables:
            find_paper_table(key)
        _refuse_duplicates("seed", self.seeds)
        for text in (*self.detectors, *self.variants):
            self.detector(text)  # raises an error if there is no such detector
        _refuse_duplicates("detector", ("".join(text.split()) for text in self.detectors))
        # Names are compared as file names, on systems that ignore upper and lower case too.
        _refuse_duplicates("set", (file_name(part.name).lower() for part in self.sets))
        for part in self.sets:
            if part.network and len(self.seeds) > 1:
                raise ParameterError(
                    f"the set {part.name!r} has a network from a file: name a single seed."
                )

    def detector(self, text: str, *, mean_labels: int = 1) -> Detector:
        """Return what an entry of detectors stands for, with k=mean_labels as the number."""
        text = self.variants.get(text, text)
        return build_detector(re.sub(r"\bk\s*=\s*mean_labels\b", f"k={mean_labels}", text))

    def aggregates(self) -> tuple[str, ...]:
        """Return the aggregates that a detector needs outputs of perturbed inputs for."""
        reads = {name for text in self.detectors for name in self.detector(text).scores_from}
        return tuple(
            aggregate
            for aggregate in ("max", "sum")
            if reads & {f"odin_{aggregate}", f"mahalanobis_{aggregate}"}
        )

    def fitted_on_val(self) -> tuple[str, ...]:
        """Return the detectors that learn from validation data instead of training data."""
        fit_on = {text: self.fit_on.get(parse_detector(text)[0]) for text in self.detectors}
        return tuple(text for text, split in fit_on.items() if split == "val")

    def calibrated_on_val(self) -> tuple[str, ...]:
        """Return the detectors that learn from held-out data, which is the validation data."""
        return tuple(text for text in self.detectors if self.detector(text).learns_from_held_out)

    def split_name(self, source: BenchmarkSet, part: str) -> str:
        """Return the name of the split that is a set's "train", "val" or "test" part."""
        halves = parse_address(source.data).kind == "nus-wide" and part in ("val", "test")
        return f"authors-{part}" if halves and self.nus_wide_halves == "authors" else part

    def with_data(self, folder: str | Path | None) -> BenchmarkSpec:
        """Return a copy with `{data}` replaced by a folder, which may be None if it is not used."""
        placed = replace(self, sets=tuple(part.with_data(str(folder)) for part in self.sets))
        if folder is None and placed != self:
            raise ParameterError(
                f"the benchmark {self.name} needs to know where its data is (--data)."
            )
        return placed

    def rehearsed(self, limit: int, epochs: int) -> BenchmarkSpec:
        """Return a copy that runs all on `limit` random images of each split, with one seed."""
        train = self.train.updated({"training": {"epochs": epochs}})
        return replace(self, limit=limit, train=train, seeds=self.seeds[:1])

    def only(self, names: list[str], seeds: list[int]) -> BenchmarkSpec:
        """Return a copy with some of the sets and seeds; an empty list keeps all of them."""
        for what, wanted, available in (
            ("set", names, [part.name for part in self.sets]),
            ("seed", seeds, list(self.seeds)),
        ):
            for value in wanted:
                if value not in available:
                    has = ", ".join(map(str, available))
                    raise ParameterError(f"{self.name} has no {what} {value!r}. It has {has}.")
        return replace(
            self,
            sets=tuple(part for part in self.sets if part.name in names or not names),
            seeds=tuple(seed for seed in self.seeds if seed in seeds or not seeds),
        )


def shipped_specs() -> dict[str, str]:
    """Return the name and the text of each shipped spec, in alphabetical order."""
    entries = sorted((files(__package__) / "specs").iterdir(), key=lambda entry: entry.name)
    return {entry.name.removesuffix(_SUFFIX): entry.read_text("utf-8") for entry in entries}


def load_spec(name_or_path: str | Path, *, protocol: str | None = None) -> BenchmarkSpec:
    """Return a shipped spec by its name, or read one from a TOML file.

    `protocol` replaces the one that the spec names.
    """
    shipped, name, path = shipped_specs(), str(name_or_path), Path(name_or_path)
    if name in shipped:
        return parse_benchmark(name, shipped[name], protocol=protocol)
    if path.suffix != _SUFFIX:
        raise ParameterError(
            f"there is no benchmark {name!r}. Choose from: {', '.join(shipped)}; or a .toml file."
        )
    return parse_benchmark(path.stem, read_toml(path), source=str(path), protocol=protocol)


def parse_benchmark(
    name: str, text: str, *, source: str = "", protocol: str | None = None
) -> BenchmarkSpec:
    """Return a spec from the text of a file, which is named `source` in errors.

    A protocol other than the paper's is part of the spec's name, and so of the results' folder.
    """
    prepare = partial(with_protocol, protocol=protocol)
    spec = from_toml(BenchmarkSpec, text, source or name, prepare=prepare, name=name)
    return spec if spec.protocol == "paper" else replace(spec, name=f"{name}-{spec.protocol}")


def _refuse_duplicates(what: str, names: Iterable[object]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ParameterError(f"duplicate {what}: {name!r}.")


PROTOCOLS = ("paper", "authors", "authors-earlier")
"""The paper's has the defaults of all settings; each other one changes those of the one before."""


def with_protocol(table: Mapping[str, Any], protocol: str | None = None) -> dict[str, Any]:
    """Return the table of a benchmark, with a protocol's settings where it has none of its own.

    The protocol is by default the one that the table names, or the paper's. Its settings are in
    files such as authors.toml, and in the table's own sections of their names, such as [authors].
    """
    own = {name: value for name, value in table.items() if name not in PROTOCOLS[1:]}
    name = checked_choice("protocol", protocol or own.get("protocol", "paper"), PROTOCOLS)
    for key in PROTOCOLS[1:]:
        if not isinstance(table.get(key, {}), Mapping):
            raise ParameterError(f"{key} must be a table of settings, got {table[key]!r}.")
    settings: dict[str, Any] = {}
    for part in PROTOCOLS[1 : PROTOCOLS.index(name) + 1]:
        shipped = tomllib.loads((files(__package__) / f"{part}.toml").read_text("utf-8"))
        settings = merged(merged(settings, shipped), table.get(part, {}))
    return merged(settings, own) | {"protocol": name}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return two tables as one; where both have a value, that of `above` is taken."""
    both = {
        key: merged(below[key], value)
        for key, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return {**below, **above, **both}
