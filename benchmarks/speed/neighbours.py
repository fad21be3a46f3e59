"""Local Outlier Factor against scikit-learn."""

from __future__ import annotations

import numpy as np

from nescio import LocalOutlierFactor
from speed.harness import Bench


def run(bench: Bench) -> None:
    from sklearn.neighbors import LocalOutlierFactor as SklearnLof

    rng = np.random.default_rng(0)
    for n_labels in (5, 15, 80):
        mixing = rng.normal(size=(n_labels, n_labels))
        train, new = (rng.normal(size=(n, n_labels)) @ mixing for n in (10_000, 4000))
        theirs = SklearnLof(novelty=True).fit(train)
        ours = LocalOutlierFactor().fit(train)
        bench.compare(
            f"LOF of 4,000 samples against 10,000, {n_labels} labels",
            "scikit-learn",
            {
                "scikit-learn": lambda theirs=theirs, new=new: theirs.score_samples(new),
                "nescio": lambda ours=ours, new=new: ours.score_samples(new),
            },
        )
