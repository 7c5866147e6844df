"""Encode untrusted text without control tokens: no cell, question or message can produce them.

A tokenizer reads `<|im_end|>` as the end of a turn wherever it is written, so the author of a cell could start the next
turn. `escape` therefore puts a mark into the name of each control token in an untrusted text. The marked text passes
through prompt and chat templates like any other. `encode` removes the marks after the tokenizer's search for control
tokens, so the ids are those of a tokenizer without the marked tokens. The names that templates write have no mark and
stay tokens. A text without marks is encoded as before.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection
from functools import lru_cache
from itertools import pairwise
from typing import Any

from jaxrl_sql.types import Tokenizer

MARK = "\udabc"
"""A lone surrogate, which no encodable text contains."""
SPLIT_MARK = "\udabd"
"""Another lone surrogate; `ControlTokens.encode` encodes the texts before and after it separately."""
# Replaces MARK where a tokenizer must read the text: it accepts Unicode noncharacters, but no lone surrogates.
_READABLE_MARK = "\ufdd0\ufdd1\ufdd0"

_TAG = re.compile(r"[<\[].+[>\]]", re.DOTALL)
# HTML elements, which are tokens of Gemma's tokenizer and occur in ordinary texts.
_HTML = re.compile(
    r"</?(?:a|b|blockquote|br|caption|code|div|em|h[1-6]|hr|i|img|li|ol|p|pre|s|span|strong|su[bp]|"
    r"t(?:able|body|d|foot|h|head|r)|u|ul)>"
)


def strip_marks(text: str) -> str:
    """Return a text without marks."""
    return text.replace(MARK, "").replace(SPLIT_MARK, "")


def is_tag(name: str) -> bool:
    """Return whether a token's name is in angle or square brackets and not an HTML element."""
    return bool(_TAG.fullmatch(name)) and not _HTML.fullmatch(name)


def _is_control(name: str, special: Collection[str]) -> bool:
    return len(name.strip()) > 1 and (name in special or is_tag(name))


class ControlTokens:
    """The control tokens of a tokenizer, and the encoding of texts in which `escape` has marked their names.

    Control tokens are the special tokens, and other added tokens in angle or square brackets (Qwen's `<tool_call>`,
    `<think>`); `ids` are those of both, `tags` the names of the latter. Further added tokens are vocabulary: runs of
    blanks, whole terms, HTML. A tokenizer without `added_tokens_decoder` has no control tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {token.content for token in added.values() if token.special}
        special |= set(getattr(tokenizer, "all_special_tokens", ()))
        self._ids = {token.content: i for i, token in added.items() if _is_control(token.content, special)}
        self.ids = frozenset(self._ids.values())
        self.tags = frozenset(self._ids.keys() - special)
        self._lengths = sorted({len(name) for name in self._ids})
        # A fast filter: a name can start only where a first letter of a name precedes a second letter of a name.
        first, second = ("".join(sorted({name[i] for name in self._ids})) for i in (0, 1))
        self._name_start = re.compile(f"[{re.escape(first)}](?=[{re.escape(second)}])" if self._ids else "(?!)")
        self._unknown_id = getattr(tokenizer, "unk_token_id", None)
        normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        self._is_normalized = normalizer is not None and any(added[i].normalized for i in self._ids.values())

    def escape(self, text: str, exclude: Collection[str] = ()) -> str:
        """Return an untrusted text with a mark in the name of each control token except those in `exclude`."""
        mark_positions = [
            match.start() + 1
            for match in self._name_start.finditer(text)
            if self._has_name_at(text, match.start(), exclude)
        ]
        if mark_positions:
            text = MARK.join(text[start:end] for start, end in pairwise((0, *mark_positions, len(text))))
        if self._is_normalized:  # normalization by the tokenizer may produce a name
            # Any character that the vocabulary lacks is encoded as the unknown token.
            control = {i for name, i in self._ids.items() if name not in exclude and i != self._unknown_id}
            if not control.isdisjoint(self.encode(text)):
                return MARK.join(strip_marks(text))  # a mark after each letter
        return text

    def _has_name_at(self, text: str, start: int, exclude: Collection[str]) -> bool:
        names = (text[start : start + length] for length in self._lengths)
        return any(name in self._ids and name not in exclude for name in names)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which marked names are ordinary text.

        Even without the marks, the vocabulary (BPE, Unigram) may merge the letters of a name into its control token.
        The text is then cut at its marks, and each piece is encoded alone, so that no piece holds a whole name.
        Tokenizers that put a space before a text put one before each piece.
        """
        return [i for part in text.split(SPLIT_MARK) for i in self._encode(part)]

    def _encode(self, text: str) -> list[int]:
        marked_ids = [i for piece in text.split(MARK) for i in _ids(self.tokenizer, piece)]
        tokenizer_without_marks = (
            _without_marks(self.tokenizer) if MARK in text and _READABLE_MARK not in text else None
        )
        if tokenizer_without_marks is None:
            return marked_ids
        unmarked_ids = _ids(tokenizer_without_marks, text.replace(MARK, _READABLE_MARK))
        return unmarked_ids if self._control_ids(unmarked_ids) == self._control_ids(marked_ids) else marked_ids

    def _control_ids(self, ids: list[int]) -> list[int]:
        return [i for i in ids if i in self.ids and i != self._unknown_id]


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


@lru_cache(maxsize=1)  # a copy of a large vocabulary takes a second
def _without_marks(tokenizer: Tokenizer) -> Any:
    """Return a copy of a tokenizer that removes marks after its search for control tokens; None if it cannot."""
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        return None
    from tokenizers import normalizers  # noqa: PLC0415 (slow to import, and only tokenizers need it)

    tokenizer_without_marks: Any = copy.deepcopy(tokenizer)
    core = tokenizer_without_marks.backend_tokenizer
    original = [] if core.normalizer is None else [core.normalizer]
    core.normalizer = normalizers.Sequence([normalizers.Replace(_READABLE_MARK, ""), *original])
    return tokenizer_without_marks


def prepend_begin_token(tokenizer: Tokenizer | None, text: str) -> str:
    """Prepend the tokenizer's begin token if the tokenizer adds one to texts (Gemma, Llama 3).

    A model trained with exactly one begin token (BOS) must not be prompted with none or two. Chat templates write it
    themselves, so this is for plain prompts. Without a tokenizer the text is unchanged. `SPLIT_MARK` follows the token,
    so that SentencePiece puts its word-start mark before the first word, as in a text without the token.
    """
    if tokenizer is None or not _needs_begin(tokenizer, text):
        return text
    return f"{tokenizer.bos_token}{SPLIT_MARK}{text}"


def _needs_begin(tokenizer: Tokenizer, text: str) -> bool:
    bos = getattr(tokenizer, "bos_token", None)
    if not bos or text.startswith(bos):
        return False
    return bool(tokenizer.encode("", add_special_tokens=True)[:1] == [tokenizer.bos_token_id])


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text for a model to continue, with at most one begin token and no end token.

    The begin token is prepended as an id: after its name in the text, SentencePiece would not mark the first word.
    """
    bos = tokenizer.bos_token_id if _needs_begin(tokenizer, text) else None
    return [*([] if bos is None else [bos]), *_ids(tokenizer, text)]
