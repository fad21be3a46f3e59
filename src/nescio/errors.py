"""All errors and warnings of nescio; docs/errors has a page on each.

Every message says what is wrong, what was given and what to do about it.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class NescioError(Exception):
    """Base class of all errors that nescio raises deliberately.

    Its arguments: what is wrong and, optionally, what to do in Python or on the command line.
    """

    @property
    def reason(self) -> str:
        """What is wrong."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return " ".join(map(str, self.args))


class InputError(NescioError, ValueError, TypeError):
    """The data cannot be used: its values or, as scikit-learn tells apart, their types."""


class ProbabilitiesError(InputError):
    """The values look like probabilities, percentages or log-probabilities instead of logits."""


class ShapeError(InputError):
    """The data has the wrong number of dimensions, the wrong number of labels, or no rows."""


class NonFiniteError(InputError):
    """The data contains NaN or infinity where finite values are needed."""


class MissingInputError(InputError):
    """The detector reads an array (such as logits, features or labels) that was not given."""


class LabelMismatchError(InputError):
    """The labels of the data are not the labels that the detector was calibrated for."""


class TooFewSamplesError(NescioError, ValueError):
    """There are too few samples to learn from, or to calibrate with the requested guarantee."""


class ParameterError(NescioError, ValueError):
    """The value of a parameter is not allowed."""


class FileError(NescioError, OSError):
    """A file does not exist, cannot be read or written, or exists already."""


class FileFormatError(FileError):
    """A file is truncated, of a different kind, or was written by a newer nescio."""


class DatasetError(FileError):
    """A folder, list or image of a data set is missing, damaged or not as expected."""


class BenchmarkError(NescioError):
    """Some networks of a benchmark failed; the others are done."""


class DetectorError(NescioError):
    """The `_score` of a detector does not return one number per sample."""


class ExportError(NescioError):
    """A model or detector cannot be exported, or its graph gives different results than Python."""


class MissingDependencyError(NescioError, ImportError):
    """An optional package is needed, but not installed."""


class NescioWarning(UserWarning):
    """Base class of all warnings of nescio."""


class ImplausibleValuesWarning(NescioWarning):
    """The values are unusual for a multi-label classifier: constant, softmax, copies."""


class IgnoredLabelsWarning(NescioWarning):
    """The data has labels that the detector was not made for; they were ignored."""


class IgnoredColumnsWarning(NescioWarning):
    """Columns of a table look like ids; they were left out of the features."""


class EmptyLabelWarning(NescioWarning):
    """Labels without any sample were left out, because they have no mean."""


class DefaultDetectorWarning(NescioWarning):
    """The default detector cannot learn from the training data that was given."""


class BlindSpotWarning(NescioWarning):
    """In the self-check of `calibrate`, the detector flags few samples with a gross fault."""


class TiedScoresWarning(NescioWarning):
    """Many calibration scores equal the threshold, so a larger share than requested is kept."""


class GroupWarning(NescioWarning):
    """A group has no threshold of its own, so that of all samples together holds."""


class TruncatedTextWarning(NescioWarning):
    """Some texts have more tokens than the model can take; a part was cut off."""


@contextmanager
def error_context(what: object) -> Iterator[None]:
    """Add the name of the data, such as a file name, to errors about its contents."""
    try:
        yield
    except InputError as error:
        if str(error).startswith((f"{what}:", f"{what},")):  # an inner context has named it
            raise
        message, *rest = error.args or ("",)
        raise type(error)(f"{what}: {message}", *rest) from error


def listed(names: Sequence[object], shown: int = 5, *, quoted: bool = True) -> str:
    """Return names for a message: the first of them, and how many more there are.

    Examples
    --------
    >>> listed(["cat", "dog", "cow"], shown=2)
    "'cat', 'dog' and 1 more"
    """
    more = len(names) - shown
    text = ", ".join(repr(name) if quoted else str(name) for name in names[:shown])
    return f"{text} and {more:,} more" if more > 0 else text


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, for a message.

    Examples
    --------
    >>> counted(1, "image"), counted(2000, "image")
    ('1 image', '2,000 images')
    """
    return f"{n:,} {noun}{'s' * (n != 1)}"


def nearest(name: str, names: Collection[str], n: int = 3) -> str:
    """Return a hint at names that are similar but for case, for a message; empty without any.

    Examples
    --------
    >>> nearest("sedes", ["seeds", "title"])
    " Did you mean 'seeds'?"
    """
    by_lower = {each.lower(): each for each in names}
    alike = difflib.get_close_matches(name.lower(), by_lower, n)
    matches = difflib.get_close_matches(name, names, n) or [by_lower[each] for each in alike]
    said = " or ".join(map(repr, matches))
    return f" Did you mean {said}?" if said else ""


def label_difference(
    ours: Sequence[str], theirs: Sequence[str], owner: str = "the detector"
) -> str:
    """Describe how the labels of the data differ from those that the owner, a detector, has."""
    if sorted(ours) == sorted(theirs):
        position = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        return (
            f"the labels are in another order than those of {owner}: at position {position}, "
            f"{owner} has {ours[position]!r}, and the data {theirs[position]!r}."
        )
    have, wanted = set(theirs), set(ours)
    missing = [name for name in ours if name not in have]
    extra = [name for name in theirs if name not in wanted]
    parts = (("Missing", missing), (f"Not known to {owner}", extra))
    named = "".join(f" {what}: {listed(names)}." for what, names in parts if names)
    by_lower = {name.lower(): name for name in extra}
    alike = difflib.get_close_matches("".join(missing[:1]).lower(), by_lower, 1, cutoff=0.7)
    hint = "".join(f" Rename {by_lower[name]!r} to {missing[0]!r}?" for name in alike)
    return (
        f"the data does not have the labels of {owner} ({owner} has {len(ours):,}, the data "
        f"{len(theirs):,}).{named}{hint}"
    )


def warn(message: str, category: type[NescioWarning]) -> None:
    """Give a warning that points to the line of the user's code, not to a line of nescio."""
    depth = 1
    while sys._getframe(depth).f_globals.get("__name__", "").startswith("nescio."):
        depth += 1
    warnings.warn(message, category, stacklevel=depth + 1)


def require(module: str, extra: str | None) -> Any:
    """Import an optional module, or raise an error that says what to install.

    `extra` is the extra that it belongs to; None if it is a package of the user's choice.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        advice = f"Run pip install {package}."
        if extra is not None:
            advice = (
                f"It belongs to the extra {extra!r}: run pip install '.[{extra}]' in your copy of "
                "nescio's repository."
            )
        raise MissingDependencyError(
            f"this needs {package}, which is not installed. {advice}"
        ) from error
