"""Find values that a question refers to by a synonym: "French" finds France (`data.retrieval.synonyms`).

Similarity is the cosine of static word vectors, from the folder of a Model2Vec model or of a StaticEmbedding of
sentence-transformers. The vector of a text is the mean of its tokens' vectors. Each phrase of one or two words of the
question that names no value and no part of the schema retrieves the value of one word with the most similar vector, if
the similarity suffices. Codes, such as F for "female", have no useful vectors.
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
from jaxrl_sql.text2sql.schema.retrieve import STOP_WORDS, WORD_ENDINGS, Match, find_values, fold, open_index
from jaxrl_sql.types import Example, InputError

# The minimum cosine similarity of a phrase and a value; docs/results/evaluation.md has its effect.
_MIN_SIMILARITY = 0.8
# Words with fewer letters are codes.
_MIN_LETTERS = 3

_WORD = re.compile(r"[^\W\d_]+")


class WordVectors(NamedTuple):
    """The vectors of V tokens, float32 [V, E] for vectors of size E, with their tokenizer.

    `unknown` is the token id of unknown words, which have no useful vector; None if the tokenizer has no such token.
    """

    tokenizer: Tokenizer
    table: np.ndarray
    unknown: int | None

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """Return the normalized vector of each text, float32 [N, E]: its length is 1, or 0 without known tokens."""
        directions = np.zeros((len(texts), self.table.shape[1]), np.float32)
        for i, encoding in enumerate(self.tokenizer.encode_batch(list(texts), add_special_tokens=False)):
            if ids := [token for token in encoding.ids if token != self.unknown]:
                directions[i] = self.table[ids].mean(axis=0)
        return directions / np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-9)


class _ValueVectors(NamedTuple):
    """The N values of one word in a database: their texts, the columns that have each, and their vectors.

    `directions` are normalized vectors, float32 [N, E].
    """

    texts: tuple[str, ...]
    matches: tuple[tuple[Match, ...], ...]
    directions: np.ndarray


def find_alike(example: Example, best: int, folder: str) -> tuple[Match, ...]:
    """Return up to `best` values that the question or its evidence names, followed by those that it has synonyms of.

    `folder` contains the word vectors; "" disables synonyms. Raises InputError for a folder without word vectors or an
    unreadable database.
    """
    named = find_values(example, best)
    if not folder:
        return named
    version = version_of(example.db_path, example.hide)
    vectors, values = load_vectors(folder), _read_value_vectors(version, folder)
    vocabulary = {word for *_, value in named for word in _WORD.findall(fold(value))} | _schema_words(version)
    texts = (example.evidence, example.question)
    phrases = sorted({phrase for text in texts for phrase in _phrases(fold(text), vocabulary)})
    if not phrases or not values.texts:
        return named
    similarity = vectors.of(phrases) @ values.directions.T
    # (negative cosine, index of a value) for the nearest value of each phrase, the most similar first.
    nearest = sorted({(-float(similarity[i, value]), int(value)) for i, value in enumerate(similarity.argmax(axis=1))})
    near_values = [value for negative_cosine, value in nearest if -negative_cosine >= _MIN_SIMILARITY]
    synonyms = [match for value in near_values for match in values.matches[value]]
    return (*named, *(match for match in dict.fromkeys(synonyms) if match not in named))[:best]


@lru_cache(maxsize=2)
def load_vectors(folder: str) -> WordVectors:
    """Load a folder's `model.safetensors` and `tokenizer.json`; raises InputError without word vectors."""
    path = Path(folder) / "0_StaticEmbedding"
    path = path if path.is_dir() else Path(folder)
    for name in ("model.safetensors", "tokenizer.json"):
        if not (path / name).is_file():
            raise InputError(f"data.retrieval.synonyms={folder}: no {name} there; pass a folder of a Model2Vec model")
    try:
        tensors = load_file(path / "model.safetensors")
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    except Exception as error:  # tokenizers raises no narrower type
        raise InputError(f"data.retrieval.synonyms={folder}: cannot be read ({error})") from error
    model = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    table = tensors.get("embeddings", tensors.get("embedding.weight"))
    if table is None or table.ndim != 2:
        raise InputError(
            f"data.retrieval.synonyms={folder}: model.safetensors has no table of word vectors (embeddings or "
            f"embedding.weight), but {', '.join(sorted(tensors)[:3]) or 'nothing'}; pass a folder of a Model2Vec model"
        )
    table = table.astype(np.float32)
    if (mapping := tensors.get("mapping")) is not None:  # tokens that share a vector
        table = table[mapping]
    if (weights := tensors.get("weights")) is not None:  # a factor per token
        table = table * weights.astype(np.float32)[: len(table), None]
    if tokenizer.get_vocab_size() > len(table):
        raise InputError(
            f"data.retrieval.synonyms={folder}: {tokenizer.get_vocab_size()} tokens, but {len(table)} word vectors; "
            "both must be from the same model"
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    unknown = (
        model.get("unk_id") if model.get("type") == "Unigram" else tokenizer.token_to_id(str(model.get("unk_token")))
    )
    return WordVectors(tokenizer, table, unknown)


@lru_cache(maxsize=64)
def _read_value_vectors(version: Version, folder: str) -> _ValueVectors:
    """Return the values of one word in a database, with their vectors from a folder."""
    index = open_index(version.path, version.hide)
    matches: dict[str, list[Match]] = {}
    for i, owner in enumerate(index.owner):
        text = index.text(i)
        tokens = _WORD.findall(fold(text))
        if len(tokens) == 1 and _is_distinctive(tokens[0]):
            matches.setdefault(fold(text), []).append((*index.columns[owner], text))
    return _ValueVectors(tuple(matches), tuple(map(tuple, matches.values())), load_vectors(folder).of(list(matches)))


@lru_cache(maxsize=64)
def _schema_words(version: Version) -> frozenset[str]:
    """Return the words in a database's table and column names."""
    names = [
        part
        for table in read_schema(version.path, version.hide).tables
        for part in (table.name, *(c.name for c in table.columns))
    ]
    return frozenset(word for name in names for word in name_words(name).split())


def _phrases(text: str, vocabulary: Collection[str]) -> Iterator[str]:
    """Yield the words that may refer to a value, and the pairs of such words that follow each other.

    A word of `vocabulary` (the named values and the schema's names) needs no synonym.
    """
    previous = ""
    for word in _WORD.findall(text):
        may_refer = _is_distinctive(word) and not _is_known(word, vocabulary)
        if may_refer:
            yield word
        if may_refer and previous:
            yield f"{previous} {word}"
        previous = word if may_refer else ""


def _is_distinctive(word: str) -> bool:
    """Return whether a word is neither a code nor a stop word."""
    return len(word) >= _MIN_LETTERS and word not in STOP_WORDS


def _is_known(word: str, vocabulary: Collection[str]) -> bool:
    """Return whether a word is in the vocabulary, possibly without an ending such as a plural's."""
    return word in vocabulary or any(word.endswith(end) and word[: -len(end)] in vocabulary for end in WORD_ENDINGS)
