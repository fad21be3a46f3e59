"""The tokenizer that makes arrays of texts. It needs no torch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nescio._io.files import existing_file
from nescio._validation import Array
from nescio.errors import FileFormatError, InputError, ParameterError, listed, require

_FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}

NAMES = tuple(_FIELDS)
"""The names of the arrays that a tokenizer can give."""

TOKENIZER_KEY = "nescio.tokenizer"
"""Where the metadata of an ONNX file keeps the tokenizer."""

_FILE, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_NO_LIMIT = 10**9  # transformers writes 1e30 if there is none
_LARGEST_ID = 10_000_000  # of a token; vocabularies have a million at most


class Tokens(NamedTuple):
    """The arrays of some texts, of shape (n_texts, n_tokens)."""

    arrays: dict[str, Array]
    lengths: list[int]  # of each text, without padding
    truncated: list[int]  # the rows of texts that were cut off


class TextTokenizer:
    """Turns texts into padded arrays, always in the same way; `wrap` says what it can be made of.

    A text that is longer than `max_tokens` is cut off on the side that the tokenizer says. The
    others are padded to the longest text of their batch, or to the length that the model takes.
    """

    def __init__(
        self,
        tokenizer: Any,
        names: Collection[str],  # the inputs of the model
        *,
        longest: int | None = None,  # the largest number of tokens that the model can take
        length: int | None = None,  # the only one
    ) -> None:
        content, own = _content(tokenizer)
        self.names = tuple(name for name in NAMES if name in names)
        limits = [limit for limit in (own, longest, length) if limit is not None]
        self.max_tokens: int | None = min(limits, default=None)
        self._tokenizer = load_tokenizer(content)
        special = self._tokenizer.num_special_tokens_to_add(False)
        if self.max_tokens is None:
            self._tokenizer.no_truncation()
        elif self.max_tokens <= special:
            raise ParameterError(
                f"a text may have {self.max_tokens} tokens, but the tokenizer adds {special} to "
                "each. Set a greater maximum length."
            )
        else:
            side = (self._tokenizer.truncation or {}).get("direction", "right")
            self._tokenizer.enable_truncation(self.max_tokens, direction=side)
        padding = self._tokenizer.padding or {}
        names_of_padding = ("direction", "pad_id", "pad_type_id", "pad_token")
        kept = {name: padding[name] for name in names_of_padding if name in padding}
        self._tokenizer.enable_padding(**kept, length=length)
        self._hash = hashlib.sha256(self.json().encode()).hexdigest()[:16]

    def __call__(self, texts: Sequence[str], first_row: int = 0) -> Tokens:
        """Return the arrays of a batch of texts; errors count rows from the first one."""
        try:
            encodings = self._tokenizer.encode_batch(list(texts))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library is not an Exception
            rows = enumerate(texts, first_row)
            # Such as half of a surrogate pair.
            bad = [row for row, text in rows if text.encode(errors="replace").decode() != text]
            what = f"rows {listed(bad)}: not valid Unicode" if bad else error
            raise InputError(f"the tokenizer cannot read these texts: {what}.") from error
        lengths = [sum(encoding.attention_mask) for encoding in encodings]
        empty = [row for row, length in enumerate(lengths, first_row) if not length]
        if empty:
            raise InputError(
                f"texts without a token, in rows: {listed(empty)}. They are empty, or the "
                "tokenizer knows none of their characters. Remove them."
            )
        arrays = {
            name: np.array([getattr(row, _FIELDS[name]) for row in encodings], dtype=np.int64)
            for name in self.names
        }
        cut = [row for row, text in enumerate(encodings, first_row) if text.overflowing]
        return Tokens(arrays, lengths, cut)

    def limit(self) -> int:
        """Return the maximum length; raise if there is none."""
        if self.max_tokens is None:
            raise ParameterError(
                "the tokenizer has no maximum length, and a service needs one. Set it, and pass "
                "the tokenizer again: tokenizer.enable_truncation(256), or of transformers "
                "tokenizer.model_max_length = 256. Of a tokenizer.json: tokenizer = "
                "tokenizers.Tokenizer.from_file(path); then save(path)."
            )
        return self.max_tokens

    def json(self) -> str:
        """Return it as a tokenizer.json, with its maximum length."""
        return str(self._tokenizer.to_str())

    def describe(self) -> dict[str, Any]:
        """Return what a manifest says about it."""
        return {"tokenizer_hash": self._hash, "max_tokens": self.max_tokens}


def _content(tokenizer: Any) -> tuple[str, int | None]:
    """Return a tokenizer.json, and the maximum length that goes with it."""
    if isinstance(tokenizer, str | os.PathLike):
        return _of_path(Path(tokenizer))
    if isinstance(tokenizer, TextTokenizer):
        return tokenizer.json(), tokenizer.max_tokens
    backend = getattr(tokenizer, "backend_tokenizer", None)  # of transformers
    if backend is not None and hasattr(backend, "to_str"):
        copied, limit = load_tokenizer(backend.to_str()), _limit(tokenizer.model_max_length)
        copied.enable_truncation(limit or _NO_LIMIT, direction=tokenizer.truncation_side)
        if tokenizer.pad_token_id is not None:
            copied.enable_padding(
                direction=tokenizer.padding_side,
                pad_id=tokenizer.pad_token_id,
                pad_type_id=tokenizer.pad_token_type_id,
                pad_token=tokenizer.pad_token,
            )
        return copied.to_str(), limit
    if hasattr(tokenizer, "encode_batch") and hasattr(tokenizer, "to_str"):
        return tokenizer.to_str(), (tokenizer.truncation or {}).get("max_length")
    raise ParameterError(
        "tokenizer must be a transformers tokenizer with a tokenizer.json (a fast one), a "
        f"tokenizers.Tokenizer, or the path of a tokenizer.json; got {type(tokenizer).__name__}. "
        "With any other, pass what it returns for your texts instead of the texts."
    )


def _of_path(path: Path) -> tuple[str, int | None]:
    path = path / _FILE if path.is_dir() else path
    try:
        content = existing_file(path).read_text("utf-8")
        own = (load_tokenizer(content).truncation or {}).get("max_length")
    except (FileFormatError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path}: this is not a tokenizer.json: {error}") from error
    if own is not None:
        return content, own
    try:
        config = json.loads(path.with_name(_CONFIG).read_text("utf-8"))
        return content, _limit(config.get("model_max_length"))
    except (OSError, ValueError, AttributeError):  # there is none, or it is of something else
        return content, None


def _limit(length: Any) -> int | None:
    is_number = isinstance(length, int | float) and not isinstance(length, bool)
    return int(length) if is_number and 0 < length < _NO_LIMIT else None


def load_tokenizer(content: str) -> Any:
    """Return the tokenizer of the library tokenizers that a tokenizer.json describes."""
    library = require("tokenizers", "text")
    try:
        tokenizer = library.Tokenizer.from_str(content)
    except Exception as error:  # the library raises no class of its own
        raise FileFormatError(f"not a tokenizer.json: {error}") from error
    if max(tokenizer.get_vocab().values(), default=0) > _LARGEST_ID:
        raise FileFormatError(
            f"not a tokenizer.json: a token has an id above {_LARGEST_ID:,}, for which the library "
            "would fill the memory."
        )
    return tokenizer
