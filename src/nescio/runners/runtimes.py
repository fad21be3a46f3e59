"""By which runtime a model runs: the fastest one that gives what the model itself gives.

All runtimes compute the same function and round differently, by about 1e-6. So a runtime is used
only if its arrays equal those of the model itself to `TOLERANCE` on batches of the real input. The
choice depends on a measurement, and on a busy machine it may differ from run to run. Who needs the
same bytes names the runtime.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nescio._validation import Array, checked_choice
from nescio.errors import ExportError, NescioError, ParameterError
from nescio.runners.base import Runner

AUTO = "auto"
EAGER, CHANNELS_LAST, COMPILE = "eager", "channels-last", "compile"
ONNXRUNTIME, OPENVINO = "onnxruntime", "openvino"
RUNTIMES = (EAGER, CHANNELS_LAST, ONNXRUNTIME, OPENVINO, COMPILE)

TOLERANCE = 1e-4
"""The largest difference from the model itself, relative to the value if that is above 1."""

_EXPORT_SECONDS = 15.0  # about what it takes to export DenseNet-121
_MEASURED_BATCHES = 10  # about how many batches all measurements run
_COMPILE_SECONDS = 60.0
_WORTH = 1.1  # a further runtime must be this many times as fast, so that noise decides less
_REPEAT_SECONDS = 0.5  # repeat the measurement of a batch until then, at most three times


@dataclass(frozen=True)
class RuntimeChoice:
    """Which runtime was chosen, and why.

    Attributes
    ----------
    runtime : str
    why : str
    images_per_second : mapping of str to float
        Of each runtime that was measured, without reading the images.
    not_used : mapping of str to str
        Why a runtime could not be used.
    """

    runtime: str
    why: str
    images_per_second: Mapping[str, float] = field(default_factory=dict)
    not_used: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        unused = [f"{name} was not used: {why}" for name, why in self.not_used.items()]
        return " ".join([f"runtime {self.runtime} ({self.why}).", *unused])


class Runtimes:
    """Chooses the runtime of models, and keeps what it has built for the next data set.

    Parameters
    ----------
    name : str
        A runtime, or "auto" for the fastest one.
    """

    def __init__(self, name: str = AUTO) -> None:
        self.name = checked_choice("runtime", name, (AUTO, *RUNTIMES))
        # None for the runner of the model itself: of equal models, each is run by its own.
        self._kept: tuple[Any, Runner | None, RuntimeChoice] | None = None

    @classmethod
    def of(cls, given: str | Runtimes) -> Runtimes:
        """Return the object itself, or one for a name."""
        return given if isinstance(given, Runtimes) else cls(given)

    def choose(
        self,
        own: Runner,
        images: Callable[[], Sequence[Array]],
        n_batches: int,
        continued: str | None = None,
    ) -> tuple[Runner, RuntimeChoice]:
        """Return a runner by the chosen runtime, and the choice.

        Parameters
        ----------
        own : Runner
            Runs the model itself.
        images : callable
            Gives batches of different sizes to measure and to compare on, as `run` takes them.
        n_batches : int
            How many batches there are to run.
        continued : str, optional
            The runtime of earlier work that is continued.
        """
        wanted = continued or self.name
        if not own.runtimes and wanted == AUTO:
            return own, RuntimeChoice(own.runtime, f"a {own.kind} model has no other")
        if wanted == own.runtime:
            return own, RuntimeChoice(wanted, "continued" if continued else "as asked for")
        key = _settings(own)
        if (
            self._kept is not None
            and self._kept[0] == key
            and wanted in (AUTO, self._kept[2].runtime)
        ):
            return self._kept[1] or own, self._kept[2]
        if wanted != AUTO:
            batches = images()
            if not batches:
                return own, RuntimeChoice(own.runtime, "there are no images to check another on")
            chosen = _asked_for(own, wanted, batches, continued=bool(continued))
        elif n_batches <= 2 * _MEASURED_BATCHES:
            return own, RuntimeChoice(own.runtime, "there is too little work for a choice to pay")
        else:
            contest = _Contest(own, images(), n_batches)
            chosen = contest.run()
            if not contest.held:
                return chosen  # the next data set may be larger
        self._kept = (key, None if chosen[0] is own else chosen[0], chosen[1])
        return chosen


def checked_run(fast: Runner, own: Runner) -> Callable[[Any], dict[str, Array]]:
    """Return how `fast` runs a batch, compared with the model itself on batches 2, 4, 8 and so on.

    The check before the work has seen a few batches only.
    """
    if fast is own:
        return own.run
    n_batches = 0

    def run(inputs: Any) -> dict[str, Array]:
        nonlocal n_batches
        n_batches += 1
        arrays = fast.run(inputs)
        if n_batches > 1 and n_batches & (n_batches - 1) == 0:
            problem = _problem(arrays, own.arrays(inputs))
            if problem:
                raise ExportError(
                    f"the runtime {fast.runtime} is wrong in a later batch: {problem}. The results "
                    f"so far are not used. Start again with --runtime {own.runtime} "
                    f"(runtime={own.runtime!r})."
                )
        return arrays

    return run


def _settings(runner: Runner) -> tuple[Any, ...]:
    """Return what two runners have in common if one can take the place of the other."""
    parts = (runner.output, runner.from_probs, runner.label_names, str(runner.device), runner.crops)
    return (type(runner), runner.content_hash(), runner.layers, runner.preprocessing, *parts)


def _asked_for(
    own: Runner, name: str, batches: Sequence[Array], *, continued: bool
) -> tuple[Runner, RuntimeChoice]:
    """Return a runner by the runtime of this name; raise if it cannot be used."""
    if name not in own.runtimes:
        raise ParameterError(
            f"runtime must be {AUTO} or one that runs models of the kind {own.kind} "
            f"({', '.join(own.runtimes) or 'none'}), got {name!r}."
        )
    expected = [own.arrays(batch) for batch in batches]
    fast, problem = _built(own, name, batches, expected, {})
    if fast is None:
        hint = f"Choose another one, such as {own.runtime}."
        if continued:
            hint = "Earlier work was done with it: start again with force=True (--force)."
        raise ParameterError(f"the runtime {name} cannot be used: {problem}. {hint}")
    return fast, RuntimeChoice(name, "continued" if continued else "as asked for")


class _Contest:
    """The runtimes of a model in turn, each with what it costs to try it."""

    def __init__(self, own: Runner, batches: Sequence[Array], n_batches: int) -> None:
        self.own = self.best = own
        self.batches = batches
        self.n_batches = n_batches
        self.seconds: dict[str, float] = {}  # per batch
        self.not_used: dict[str, str] = {}
        self.shared: dict[str, Any] = {}
        self.held = False  # whether there was enough work to measure

    def run(self) -> tuple[Runner, RuntimeChoice]:
        """Return the fastest."""
        if not self.batches:
            return self._result("there are no images to measure it on")
        expected = [self.own.arrays(batch) for batch in self.batches]  # the first runs are slower
        self.seconds[self.own.runtime] = self._measured(self.own)
        if self._left < 2 * (_EXPORT_SECONDS + _MEASURED_BATCHES * self._fastest):
            return self._result("there is too little work for a choice to pay")
        self.held = True
        for name in self.own.runtimes:
            if name != self.own.runtime and not self._is_waste(name):
                self._try(name, expected)
        ratio = self.seconds[self.own.runtime] / self._fastest
        if self.best is self.own:
            return self._result("no other was faster")
        return self._result(f"measured, {ratio:.1f} times as fast as {self.own.runtime}")

    @property
    def _fastest(self) -> float:
        return self.seconds[self.best.runtime]

    @property
    def _left(self) -> float:
        """How many seconds the work takes with the fastest so far."""
        return self.n_batches * self._fastest

    def _is_waste(self, name: str) -> bool:
        """Whether compiling takes too long, or a graph, which is mostly faster, can be used."""
        if name != COMPILE:
            return False
        graphs = {ONNXRUNTIME, OPENVINO} & self.seconds.keys()
        return bool(graphs) or self._left < 5 * _COMPILE_SECONDS

    def _try(self, name: str, expected: Sequence[Mapping[str, Array]]) -> None:
        fast, problem = _built(self.own, name, self.batches, expected, self.shared)
        if fast is None:
            self.not_used[name] = problem
            return
        self.seconds[name] = self._measured(fast)
        if self.seconds[name] * _WORTH < self._fastest:
            self.best = fast

    def _measured(self, runner: Runner) -> float:
        """Return the seconds of the first batch; it has run before."""
        times: list[float] = []
        while len(times) < 3 and sum(times) < _REPEAT_SECONDS:
            start = time.perf_counter()
            runner.arrays(self.batches[0])
            times.append(time.perf_counter() - start)
        return min(times)

    def _result(self, why: str) -> tuple[Runner, RuntimeChoice]:
        n_images = len(self.batches[0]) if self.batches else 0
        rates = {name: n_images / value for name, value in self.seconds.items()}
        return self.best, RuntimeChoice(self.best.runtime, why, rates, self.not_used)


def _built(
    own: Runner,
    name: str,
    batches: Sequence[Array],
    expected: Sequence[Mapping[str, Array]],
    shared: dict[str, Any],
) -> tuple[Runner | None, str]:
    """Return a runner by a runtime, and None with the reason if it cannot be used."""
    try:
        fast = own.by(name, batches[0], shared)
        found = [fast.arrays(batch) for batch in batches]
    except NescioError as error:
        return None, str(error).rstrip(".")
    except Exception as error:  # a runtime is not ours and may raise anything
        lines = str(error).strip().splitlines()
        return None, f"it failed: {lines[0] if lines else type(error).__name__}".rstrip(".")
    problems = (_problem(*pair) for pair in zip(found, expected, strict=True))
    problem = next(filter(None, problems), "")
    return (None, problem) if problem else (fast, "")


def _problem(found: Mapping[str, Array], expected: Mapping[str, Array]) -> str:
    """Return how arrays differ from those of the model itself; empty if they do not."""
    for name, theirs in expected.items():
        ours = found.get(name)
        if ours is None or ours.shape != theirs.shape:
            return f"its {name} have another shape than those of the model itself"
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        with np.errstate(invalid="ignore"):
            difference = np.abs(ours.astype(np.float64) - theirs)
        # Nothing is near infinity: a masked label must be masked by every runtime.
        near = np.isfinite(theirs) & (difference <= TOLERANCE * np.maximum(1, np.abs(theirs)))
        if not (same | near).all():
            largest = float(difference[~(same | near)].max())
            return f"its {name} differ from those of the model itself by up to {largest:.2g}"
    return ""
