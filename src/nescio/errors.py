"""Everything nescio raises or warns with.

    NescioError
    ├── InputError (ValueError)         the data passed in cannot be used
    │   ├── ShapeError                  wrong rank, wrong number of labels, no rows
    │   ├── NonFiniteError              NaN or infinite values
    │   ├── MissingInputError           the detector reads something that was not given
    │   └── LabelMismatchError          another label set, or the same labels in another order
    ├── TooFewSamplesError (ValueError) not enough calibration samples for what was asked
    ├── ParameterError (ValueError)     a parameter outside what is allowed
    ├── NotCalibratedError              predict before fit or calibrate; lives in
    │                                   nescio.detectors, as it is scikit-learn's NotFittedError too
    ├── FileError (OSError)             a file that is missing, or in the way
    │   ├── FileFormatError             truncated, of another kind, or from a newer nescio
    │   └── DatasetError                a data set's folder, list or image that cannot be used
    ├── ExportError                     a model or detector that cannot become an ONNX graph, or
    │                                   whose graph gives something else than Python does
    └── MissingDependencyError (ImportError)  an optional package is not installed

    NescioWarning (UserWarning)
    ├── ProbabilitiesWarning            the logits look like probabilities
    ├── EmptyLabelWarning               labels without a single sample were left out
    ├── TiedScoresWarning               calibration scores tie with the threshold
    └── SingleGroupWarning              too few samples to tell label counts apart

Every message says what is wrong, what came and what to do about it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class NescioError(Exception):
    """Base of every error that nescio raises on purpose."""


class InputError(NescioError, ValueError):
    """The data passed in cannot be used."""


class ShapeError(InputError):
    """Wrong rank, wrong number of labels, or no rows."""


class NonFiniteError(InputError):
    """NaN or infinite values where finite ones are needed."""


class MissingInputError(InputError):
    """The detector reads something (features, labels, logits) that was not given."""


class LabelMismatchError(InputError):
    """The data has another label set than the detector was made for."""


class TooFewSamplesError(NescioError, ValueError):
    """Not enough calibration samples for the guarantee that was asked."""


class ParameterError(NescioError, ValueError):
    """A parameter outside of what is allowed."""


class FileError(NescioError, OSError):
    """A file that is missing, unreadable, or in the way."""


class FileFormatError(FileError):
    """A file that is truncated, of another kind, or from a newer nescio."""


class DatasetError(FileError):
    """A data set's folder, list or image that is missing, damaged or not what it should be."""


class ExportError(NescioError):
    """A model or a detector cannot be exported, or its graph does not do what Python does."""


class MissingDependencyError(NescioError, ImportError):
    """An optional package is needed and not installed."""


class NescioWarning(UserWarning):
    """Base of every warning that nescio gives."""


class ProbabilitiesWarning(NescioWarning):
    """All values lie within [0, 1]: probabilities where logits were expected."""


class EmptyLabelWarning(NescioWarning):
    """Labels without a single sample cannot have a mean and were left out."""


class TiedScoresWarning(NescioWarning):
    """Many calibration scores equal the threshold: more is kept than the guarantee says."""


class SingleGroupWarning(NescioWarning):
    """Groups were asked for, and the samples suffice for one only."""


@contextmanager
def about(what: object) -> Iterator[None]:
    """Name the data, such as a file, in an error about its contents."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"{what}: {error}") from error


def warn(message: str, category: type[NescioWarning]) -> None:
    """Give a warning that points to the caller's own line, however deep in nescio it arose."""
    depth = 1
    while sys._getframe(depth).f_globals.get("__name__", "").startswith("nescio."):
        depth += 1
    warnings.warn(message, category, stacklevel=depth + 1)
