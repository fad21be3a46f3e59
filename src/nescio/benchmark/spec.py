"""A benchmark is data: one TOML file that names data sets, network, detectors and seeds.

    title = "Scenes of handwritten digits"
    seeds = [0, 1, 2]
    detectors = ["joint_energy", "max_logit", "top_k_joint_energy(k=5)", "odin(aggregate=sum)"]

    [train.model]            # the sections of `nescio train --config`
    name = "small-cnn"

    [tune]
    images = 500             # validation images for ODIN and Mahalanobis; left out, 1,000

    [[sets]]                 # an in-distribution set and what stands against it
    name = "digits"
    data = "digits:{data}/digits"
    ood = { photos = "digits@photos:{data}/digits" }

`{data}` stands for the folder that all data is in. `nescio bench --show NAME` prints a shipped one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from nescio._io.files import existing_file
from nescio._validation import checked_whole
from nescio.benchmark.paper import find_paper_table
from nescio.benchmark.results import file_name
from nescio.data import parse_spec, split_spec
from nescio.detectors import Detector
from nescio.detectors.naming import build_detector, parse_detector
from nescio.errors import FileFormatError, NescioError, ParameterError

MEAN_LABELS = "mean_labels"
"""As the value of k: the mean number of labels of a training image, rounded up, as in the paper."""

_DATA = "{data}"
_SUFFIX = ".toml"


@dataclass(frozen=True)
class BenchmarkSet:
    """An in-distribution set and the sets that stand against it.

    Attributes
    ----------
    name : str
    data : str
        As `KIND:PATH`, with parts train, val and test.
    ood : mapping of str to str
        Names and `KIND:PATH` or `KIND@SPLIT:PATH` of out-of-distribution sets.
    network : str
        A network's file, in place of training one.
    module : str
        "package.module:factory", for a network's file that was made from a module of your own.
    skip_bad : bool
        Leave out images that cannot be read.
    """

    name: str
    data: str
    ood: Mapping[str, str]
    network: str = ""
    module: str = ""
    skip_bad: bool = False


@dataclass(frozen=True)
class TuneSettings:
    """[tune]: how ODIN's and Mahalanobis' settings are chosen."""

    images: int = 1000

    def __post_init__(self) -> None:
        checked_whole("images", self.images, minimum=2)


@dataclass(frozen=True)
class BenchmarkSpec:
    """What to run.

    Attributes
    ----------
    name : str
        The file's.
    title : str
    detectors : tuple of str
        Such as "joint_energy" or "top_k_joint_energy(k=5)"; k may be mean_labels.
    sets : tuple of BenchmarkSet
    seeds : tuple of int
        One network for each.
    train : mapping
        The sections of a training configuration.
    tune : TuneSettings
    paper_tables : tuple of str
        The paper's tables that the results belong beside.
    bootstrap : int
        Resamples for the intervals.
    data : str
        Where the data is if nothing is said.
    """

    name: str
    title: str
    detectors: tuple[str, ...]
    sets: tuple[BenchmarkSet, ...]
    seeds: tuple[int, ...] = (0,)
    train: Mapping[str, Any] = field(default_factory=dict)
    tune: TuneSettings = field(default_factory=TuneSettings)
    paper_tables: tuple[str, ...] = ()
    bootstrap: int = 1000
    data: str = ""

    def __post_init__(self) -> None:
        if self.name == "cache":
            raise ParameterError("cache is the name of what benchmarks share; choose another.")
        for name in ("detectors", "sets", "seeds"):
            if not getattr(self, name):
                raise ParameterError(f"{name} must not be empty.")
        for seed in self.seeds:
            checked_whole("a seed", seed, minimum=0)
        checked_whole("bootstrap", self.bootstrap, minimum=0)
        for key in self.paper_tables:
            find_paper_table(key)
        _refuse_twice("the seed", [(seed, seed) for seed in self.seeds])
        _refuse_twice("the detector", [(text, _same_detector(text)) for text in self.detectors])
        # As they are called on disk, also where capitals do not count.
        _refuse_twice("the set", [(one.name, file_name(one.name).lower()) for one in self.sets])
        for one in self.sets:
            _check_set(one)
            if one.network and len(self.seeds) > 1:
                raise ParameterError(
                    f"the set {one.name!r} has one network, from a file, for {len(self.seeds)} "
                    "seeds; name a single seed."
                )

    def aggregates(self) -> tuple[str, ...]:
        """The aggregates that perturbed outputs are needed for; none, if no detector reads any."""
        detectors = (resolve_detector(text, mean_labels=1) for text in self.detectors)
        reads = {detector.input_name() for detector in detectors}
        return tuple(
            aggregate
            for aggregate in ("max", "sum")
            if reads & {f"odin_{aggregate}", f"mahalanobis_{aggregate}"}
        )

    def with_data(self, folder: str | Path | None) -> BenchmarkSpec:
        """The same with `{data}` replaced by a folder."""
        where = self.data if folder is None else str(folder)
        made = all(parse_spec(one.data).kind == "digits" for one in self.sets)
        if folder is None and where and not made and not Path(where).is_dir():
            raise ParameterError(
                f"{self.name} expects its data in {where}, which is not there. Name the folder it "
                "is in with --data."
            )
        if not where and any(_DATA in text for one in self.sets for text in _paths(one)):
            raise ParameterError(f"{self.name} needs data: name the folder it is in with --data.")

        def put(text: str) -> str:
            return text.replace(_DATA, where)

        sets = tuple(
            replace(
                one,
                data=put(one.data),
                ood={name: put(text) for name, text in one.ood.items()},
                network=put(one.network),
            )
            for one in self.sets
        )
        return replace(self, sets=sets)

    def only(self, names: list[str], seeds: list[int]) -> BenchmarkSpec:
        """The same with some of its sets and seeds; all, where none are named."""
        known = {one.name: one for one in self.sets}
        for name in names:
            if name not in known:
                raise ParameterError(f"{self.name} has no set {name!r}. It has {', '.join(known)}.")
        for seed in seeds:
            if seed not in self.seeds:
                has = ", ".join(map(str, self.seeds))
                raise ParameterError(f"{self.name} has no seed {seed}. It has {has}.")
        return replace(
            self,
            sets=tuple(one for one in self.sets if one.name in names or not names),
            seeds=tuple(seed for seed in self.seeds if seed in seeds or not seeds),
        )


def resolve_detector(text: str, *, mean_labels: int) -> Detector:
    """The detector that is written so, with k = mean_labels replaced by the number."""
    name, settings = parse_detector(text)
    if settings.get("k") == MEAN_LABELS:
        settings["k"] = str(mean_labels)
    return build_detector(name, settings)


def shipped_specs() -> dict[str, str]:
    """Each shipped spec's name and text, in alphabetical order."""
    found = sorted(
        (entry for entry in files("nescio.benchmark").joinpath("specs").iterdir()),
        key=lambda entry: entry.name,
    )
    return {
        entry.name.removesuffix(_SUFFIX): entry.read_text("utf-8")
        for entry in found
        if entry.name.endswith(_SUFFIX)
    }


def load_spec(name_or_path: str | Path) -> BenchmarkSpec:
    """A shipped spec by its name, or one from a TOML file."""
    shipped = shipped_specs()
    if str(name_or_path) in shipped:
        return parse_benchmark(str(name_or_path), shipped[str(name_or_path)])
    path = Path(name_or_path)
    if path.suffix != _SUFFIX:
        raise ParameterError(
            f"there is no benchmark {str(name_or_path)!r}. Choose from: {', '.join(shipped)}; or "
            "name a .toml file."
        )
    try:
        text = existing_file(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not text in UTF-8.") from error
    return parse_benchmark(path.stem, text, source=str(path))


def parse_benchmark(name: str, text: str, *, source: str | None = None) -> BenchmarkSpec:
    """A spec from the text of its file; what is not known in it is an error."""
    source = source or name
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{source} is not TOML: {error}") from error
    try:
        entries = _checked_entries("it", content, BenchmarkSpec, given=("name",))
        entries["sets"] = tuple(
            BenchmarkSet(**_checked_entries("[[sets]]", one, BenchmarkSet))
            for one in entries.get("sets", ())
        )
        if "tune" in entries:
            tune = _checked_entries("[tune]", entries["tune"], TuneSettings)
            entries["tune"] = TuneSettings(**tune)
        return BenchmarkSpec(name=name, **entries)
    except NescioError as error:
        raise ParameterError(f"{source}: {error}") from error


_KINDS: dict[str, tuple[type, str]] = {
    "title": (str, "a text"),
    "data": (str, "a text"),
    "name": (str, "a text"),
    "network": (str, "a text"),
    "module": (str, "a text"),
    "skip_bad": (bool, "true or false"),
    "images": (int, "a whole number"),
    "bootstrap": (int, "a whole number"),
    "seeds": (list, "a list of whole numbers"),
    "detectors": (list, "a list of texts"),
    "paper_tables": (list, "a list of texts"),
    "sets": (list, "written as [[sets]]"),
    "ood": (dict, "a table of names and data"),
    "train": (dict, "a table, such as [train.model]"),
    "tune": (dict, "a table, [tune]"),
}
_TEXTS = ("detectors", "paper_tables", "ood")  # which hold texts only


def _checked_entries(
    what: str, content: Any, kind: type[Any], *, given: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The entries of a table, each of its kind and known; lists as tuples."""
    if not isinstance(content, dict):
        raise ParameterError(f"{what} must be a table, got {content!r}.")
    allowed = {one.name: one for one in fields(kind) if one.name not in given}
    found = {}
    for name, value in content.items():
        if name not in allowed:
            raise ParameterError(f"{what} has no {name!r}; it has {', '.join(sorted(allowed))}.")
        expected, described = _KINDS[name]
        inside = value.values() if isinstance(value, dict) else value
        texts = name not in _TEXTS or all(isinstance(one, str) for one in inside)
        if type(value) is not expected or not texts:
            raise ParameterError(f"{name} must be {described}, got {value!r}.")
        found[name] = tuple(value) if isinstance(value, list) else value
    lacking = [
        one.name
        for one in allowed.values()
        if one.default is MISSING and one.default_factory is MISSING and one.name not in found
    ]
    if lacking:
        raise ParameterError(f"{what} lacks {lacking[0]}.")
    return found


def _check_set(one: BenchmarkSet) -> None:
    if not one.name:
        raise ParameterError("a set needs a name.")
    for text in _paths(one):
        for placeholder in re.findall(r"\{\w*\}", text):
            if placeholder != _DATA:
                raise ParameterError(f"there is no {placeholder} to put in {text!r}, only {_DATA}.")
    split_spec(one.data, "test")
    for name, text in one.ood.items():
        parse_spec(text)
        if name == one.name:
            raise ParameterError(f"{name!r} names an ID set and an OOD set.")
    _refuse_twice("the OOD set", [(name, file_name(name).lower()) for name in one.ood])
    if not one.ood:
        raise ParameterError(f"the set {one.name!r} has no ood.")
    if one.module and not one.network:
        raise ParameterError(f"the set {one.name!r} has a module, and no network made from it.")


def _paths(one: BenchmarkSet) -> tuple[str, ...]:
    return (one.data, one.network, *one.ood.values())


def _same_detector(text: str) -> tuple[str, str]:
    """The same for two ways to write one detector; raises if there is no such detector."""
    name, settings = parse_detector(text)
    params = resolve_detector(text, mean_labels=1).get_params()
    if settings.get("k") == MEAN_LABELS:
        params["k"] = MEAN_LABELS
    return name, repr(params)


def _refuse_twice(what: str, named: Iterable[tuple[Any, Any]]) -> None:
    """Raise if two names stand for the same."""
    seen: dict[Any, Any] = {}
    for name, value in named:
        if value in seen:
            raise ParameterError(f"{what} {name!r} is there already, as {seen[value]!r}.")
        seen[value] = name
