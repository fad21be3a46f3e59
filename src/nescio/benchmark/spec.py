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

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from nescio.benchmark.paper import paper_tables
from nescio.data import parse_spec, split_spec
from nescio.detectors import Detector
from nescio.detectors.naming import build_detector, parse_detector
from nescio.errors import FileFormatError, NescioError, ParameterError
from nescio.files import existing_file
from nescio.parameters import checked_whole

MEAN_LABELS = "mean_labels"
"""As the value of k: the mean number of labels of a training image, rounded up, as in the paper."""

_DATA = "{data}"
_SUFFIX = ".toml"


@dataclass(frozen=True)
class DataPart:
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
    sets : tuple of DataPart
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
    sets: tuple[DataPart, ...]
    seeds: tuple[int, ...] = (0,)
    train: Mapping[str, Any] = field(default_factory=dict)
    tune: TuneSettings = field(default_factory=TuneSettings)
    paper_tables: tuple[str, ...] = ()
    bootstrap: int = 1000
    data: str = ""

    def __post_init__(self) -> None:
        for text in self.detectors:
            resolve_detector(text, mean_labels=1)
        for name in ("detectors", "sets", "seeds"):
            if not getattr(self, name):
                raise ParameterError(f"{name} must not be empty.")
        for seed in self.seeds:
            checked_whole("a seed", seed, minimum=0)
        checked_whole("bootstrap", self.bootstrap, minimum=0)
        for key in self.paper_tables:
            if key not in paper_tables():
                raise ParameterError(
                    f"the paper has no table {key!r}. Choose from: {', '.join(paper_tables())}."
                )
        _refuse_twice("the detector", self.detectors)
        _refuse_twice("the seed", self.seeds)
        _refuse_twice("the set", [part.name for part in self.sets])
        for part in self.sets:
            _check_part(part)

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
        if not where and any(_DATA in text for part in self.sets for text in _paths(part)):
            raise ParameterError(f"{self.name} needs data: name the folder it is in with --data.")

        def put(text: str) -> str:
            return text.replace(_DATA, where)

        sets = tuple(
            replace(
                part,
                data=put(part.data),
                ood={name: put(text) for name, text in part.ood.items()},
                network=put(part.network),
            )
            for part in self.sets
        )
        return replace(self, sets=sets)

    def only(self, names: list[str], seeds: list[int]) -> BenchmarkSpec:
        """The same with some of its sets and seeds; all, where none are named."""
        known = {part.name: part for part in self.sets}
        for name in names:
            if name not in known:
                raise ParameterError(f"{self.name} has no set {name!r}. It has {', '.join(known)}.")
        for seed in seeds:
            if seed not in self.seeds:
                has = ", ".join(map(str, self.seeds))
                raise ParameterError(f"{self.name} has no seed {seed}. It has {has}.")
        return replace(
            self,
            sets=tuple(part for part in self.sets if part.name in names or not names),
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
        _check_names("it", content, BenchmarkSpec, given=("name",))
        sets = tuple(
            DataPart(**_check_names("[[sets]]", part, DataPart))
            for part in _tables(content.get("sets", []))
        )
        tune = TuneSettings(**_check_names("[tune]", content.get("tune", {}), TuneSettings))
        entries: dict[str, Any] = content | {
            key: tuple(content[key])
            for key in ("detectors", "seeds", "paper_tables")
            if key in content
        }
        return BenchmarkSpec(name=name, **(entries | {"sets": sets, "tune": tune}))
    except (TypeError, AttributeError) as error:
        raise ParameterError(f"{source}: an entry is missing or of the wrong kind: {error}.") from (
            error
        )
    except NescioError as error:
        raise ParameterError(f"{source}: {error}") from error


def _tables(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ParameterError(f"sets are written as [[sets]], got {value!r}.")
    return value


def _check_names(
    what: str, content: Mapping[str, Any], kind: type[Any], *, given: tuple[str, ...] = ()
) -> dict[str, Any]:
    allowed = {one.name for one in fields(kind)} - set(given)
    if unknown := sorted(set(content) - allowed):
        raise ParameterError(f"{what} has no {unknown[0]!r}; it has {', '.join(sorted(allowed))}.")
    return dict(content)


def _check_part(part: DataPart) -> None:
    split_spec(part.data, "test")
    for name, text in part.ood.items():
        parse_spec(text)
        if name == part.name:
            raise ParameterError(f"{name!r} names an ID set and an OOD set.")
    if not part.ood:
        raise ParameterError(f"the set {part.name!r} has no ood.")
    if part.module and not part.network:
        raise ParameterError(f"the set {part.name!r} has a module, and no network made from it.")


def _paths(part: DataPart) -> tuple[str, ...]:
    return (part.data, part.network, *part.ood.values())


def _refuse_twice(what: str, values: Any) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise ParameterError(f"{what} {value!r} is there twice.")
        seen.add(value)
