"""Find values that a question means by another word: "French" finds France (`data.retrieval.synonyms`).

A folder of static word vectors says which words are alike: Model2Vec's, or a StaticEmbedding of sentence-transformers.
A text is the mean of its tokens' vectors. Every one or two words of the question that name no value and nothing of the
schema bring the value of one word that is nearest to them, where that is near enough. Codes (F for "female") are words
to no such model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from jaxrl_sql.text2sql.schema.cache import Version, version_of
from jaxrl_sql.text2sql.schema.link import name_words
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.text2sql.schema.retrieve import ENDINGS, STOP, Match, find_values, fold, open_index
from jaxrl_sql.types import Example, InputError

# The least cosine of words and a value; what it finds and shows is in docs/results/evaluation.md.
_NEAR = 0.8
# Words of fewer letters are codes.
_LETTERS = 3

_WORD = re.compile(r"[^\W\d_]+")


class WordVectors(NamedTuple):
    """The vectors of V tokens, float32 [V, E], and what cuts a text into them; `unknown` is that of other words."""

    tokenizer: Tokenizer
    table: np.ndarray
    unknown: int | None

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """Return the direction of each text, float32 [N, E]: of length 1, or 0 where no token of it is known."""
        found = np.zeros((len(texts), self.table.shape[1]), np.float32)
        for i, one in enumerate(self.tokenizer.encode_batch(list(texts), add_special_tokens=False)):
            if ids := [token for token in one.ids if token != self.unknown]:
                found[i] = self.table[ids].mean(axis=0)
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)


class _Meanings(NamedTuple):
    """The N values of a database that are words, with where each stands, and their directions, float32 [N, E]."""

    texts: tuple[str, ...]
    places: tuple[tuple[Match, ...], ...]
    directions: np.ndarray


def find_alike(example: Example, best: int, folder: str) -> tuple[Match, ...]:
    """Return up to `best` values that the question or its evidence names, and behind them those that it means.

    A `folder` of "" means none. Raises InputError for a folder without word vectors, or a database that cannot be read.
    """
    named = find_values(example, best)
    if not folder:
        return named
    version = version_of(example.db_path, example.hide)
    vectors, meanings = load_vectors(folder), _read_meanings(version, folder)
    known = {word for *_, value in named for word in _WORD.findall(fold(value))} | _names(version)
    asked = sorted({one for text in (example.evidence, example.question) for one in _asked(fold(text), known)})
    if not asked or not meanings.texts:
        return named
    alike = vectors.of(asked) @ meanings.directions.T
    nearest = sorted({(-float(alike[i, at]), int(at)) for i, at in enumerate(alike.argmax(axis=1))})
    meant = [match for near, at in nearest if -near >= _NEAR for match in meanings.places[at]]
    return (*named, *(match for match in dict.fromkeys(meant) if match not in named))[:best]


@lru_cache(maxsize=2)
def load_vectors(folder: str) -> WordVectors:
    """Load a folder's `model.safetensors` and `tokenizer.json`; raises InputError where they hold no word vectors."""
    path = Path(folder) / "0_StaticEmbedding"
    path = path if path.is_dir() else Path(folder)
    for name in ("model.safetensors", "tokenizer.json"):
        if not (path / name).is_file():
            raise InputError(f"data.retrieval.synonyms={folder}: no {name} there; name a folder of Model2Vec's")
    try:
        tensors = load_file(path / "model.safetensors")
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(f"data.retrieval.synonyms={folder}: cannot be read ({error})") from error
    model = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    table = tensors.get("embeddings", tensors.get("embedding.weight"))
    if table is None or table.ndim != 2:
        raise InputError(
            f"data.retrieval.synonyms={folder}: model.safetensors holds no table of word vectors (embeddings or "
            f"embedding.weight), but {', '.join(sorted(tensors)[:3]) or 'nothing'}; Model2Vec's folders do"
        )
    table = table.astype(np.float32)
    if (place := tensors.get("mapping")) is not None:  # tokens that share a vector
        table = table[place]
    if (weights := tensors.get("weights")) is not None:
        table = table * weights.astype(np.float32)[: len(table), None]
    if tokenizer.get_vocab_size() > len(table):
        raise InputError(
            f"data.retrieval.synonyms={folder}: {tokenizer.get_vocab_size()} tokens, but {len(table)} word vectors; "
            "both are of one model"
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    unknown = (
        model.get("unk_id") if model.get("type") == "Unigram" else tokenizer.token_to_id(str(model.get("unk_token")))
    )
    return WordVectors(tokenizer, table, unknown)


@lru_cache(maxsize=64)
def _read_meanings(version: Version, folder: str) -> _Meanings:
    index = open_index(version.path, version.hide)
    places: dict[str, list[Match]] = {}
    for i, owner in enumerate(index.owner):
        text = index.text(i)
        words = _WORD.findall(fold(text))
        if len(words) == 1 and _says_much(words[0]):
            places.setdefault(fold(text), []).append((*index.columns[owner], text))
    return _Meanings(tuple(places), tuple(map(tuple, places.values())), load_vectors(folder).of(list(places)))


@lru_cache(maxsize=64)
def _names(version: Version) -> frozenset[str]:
    """Return the words of a database's tables and columns."""
    names = [
        one
        for table in read_schema(version.path, version.hide).tables
        for one in (table.name, *(c.name for c in table.columns))
    ]
    return frozenset(word for name in names for word in name_words(name).split())


def _asked(text: str, known: Collection[str]) -> Iterator[str]:
    """Yield the words that may mean a value, and those of them that stand side by side as one."""
    before = ""
    for word in _WORD.findall(text):
        counts = _says_much(word) and not _is_known(word, known)
        if counts:
            yield word
        if counts and before:
            yield f"{before} {word}"
        before = word if counts else ""


def _says_much(word: str) -> bool:
    return len(word) >= _LETTERS and word not in STOP


def _is_known(word: str, known: Collection[str]) -> bool:
    return word in known or any(word.endswith(end) and word[: -len(end)] in known for end in ENDINGS)
