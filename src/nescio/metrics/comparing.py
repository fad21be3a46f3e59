"""`compare`: detectors side by side, on data of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nescio._io.columns import Columns
from nescio.detectors.naming import as_detector, written
from nescio.detectors.registry import DETECTORS
from nescio.errors import MissingInputError, ParameterError
from nescio.metrics.comparison import Comparison, compare_outputs
from nescio.metrics.sets import checked_sets, find_large_sets, read_sets
from nescio.metrics.streams import compare_streams

ALL = "all"
Progress = Callable[[int, str], AbstractContextManager[Callable[[int], object]]]


def _silent(total: int, unit: str) -> AbstractContextManager[Callable[[int], object]]:
    return nullcontext(lambda steps: None)


def compare(
    id_data: Any,
    ood_data: Any,
    detectors: Any = ALL,
    *,
    train: Any = None,
    held_out: Any = None,
    tpr: float = 0.95,
    n_bootstrap: int = 1000,
    seed: int = 0,
    from_probs: bool | None = None,
    id_column: str | None = None,
    labels: Sequence[str] | str | None = None,
    ignore: Sequence[str] | str = (),
    progress: Progress = _silent,
) -> Comparison:
    """Compare detectors on in-distribution data and one or several out-of-distribution sets.

    This is `nescio eval` in Python. Data is an array of logits, `Outputs`, a data frame, or the
    path of a file that `Outputs.load` reads. Files that are larger than memory are read in blocks.

    Parameters
    ----------
    id_data
        In-distribution test data, not used in training.
    ood_data
        One out-of-distribution set; several of them by name, as a dict; or a list of paths.
    detectors : "all", name, Detector, sequence or mapping
        Names such as "joint_energy" and "top_k_joint_energy(k=5)", and detectors. A mapping has
        names of your own. Detectors that cannot run on this data are in `skipped`, with the reason.
    train, held_out : optional
        What the detectors that learn from training data, or from held-out data, learn from.
        Held-out data must be neither training nor test data.
    tpr : float
        The share of in-distribution samples to keep. The FPR is at this TPR.
    n_bootstrap : int
        The number of bootstrap resamples; 0 for no intervals.
    seed : int
        The seed of the resampling.
    from_probs : bool, optional
        Whether the data holds probabilities, which are converted. `Outputs` always hold logits.
    id_column, labels, ignore
        The columns of tables, as `Outputs.load` takes them.
    progress : callable, optional
        Called with the number of steps and their unit. It returns a context manager that gives a
        function to call with the number of finished steps.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> known, strange = rng.normal(2, 2, (200, 5)), rng.normal(-2, 1, (100, 5))
    >>> compare(known, {"strange": strange}, ["joint_energy", "max_logit"], n_bootstrap=0)
    2 detectors on 200 ID samples, in per cent, highest AUROC first
                              strange (100)
    detector                  FPR95   AUROC
    joint_energy               0.00   99.99
    max_logit                  0.00   99.97
    """
    chosen = named_detectors(detectors)
    given = checked_sets(id_data, ood_data, train, held_out)
    reading: dict[str, Any] = {
        "from_probs": from_probs,
        "columns": Columns(id_column, labels, ignore),
    }
    options: dict[str, Any] = {"tpr": tpr, "n_bootstrap": n_bootstrap, "seed": seed}
    large = find_large_sets(given, **reading)
    if large is None:
        sets = read_sets(given, **reading)
        options |= {"train": sets.train, "held_out": sets.held_out}
        with progress(len(chosen) * len(sets.ood), "steps") as advance:
            found = compare_outputs(chosen, sets.id, sets.ood, **options, on_step=advance)
    else:
        options |= {"train": large.train, "held_out": large.held_out}
        n_rows = large.id.n_rows + sum(one.n_rows for one in large.ood.values())
        with progress(n_rows, "rows") as advance:
            found = compare_streams(chosen, large.id, large.ood, **options, on_rows=advance)
    if not any(found.results.values()):
        name, reason = next(iter(found.skipped.items()))
        raise MissingInputError(f"{name} cannot be evaluated: {reason}")
    return found


def named_detectors(detectors: Any) -> dict[str, Any]:
    """Return detectors by name: those of a mapping, or as they are written."""
    if isinstance(detectors, Mapping):
        named = {str(name): as_detector(one) for name, one in detectors.items()}
    else:
        several = detectors if isinstance(detectors, list | tuple) else [detectors]
        named = {}
        for one in several:
            if isinstance(one, str):
                named |= {name: as_detector(name) for name in (DETECTORS if one == ALL else [one])}
                continue
            detector = as_detector(one)
            name = written(detector, defaults=False)
            if name in named and named[name] is not detector:
                raise ParameterError(
                    f"two detectors are named {name}: pass a dict with names of your own."
                )
            named[name] = detector
    if not named:
        raise ParameterError("there is no detector to compare: pass at least one.")
    return named
