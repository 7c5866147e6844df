"""Retrieve the values of a database that a question names, for prompts, as OmniSQL and CodeS do.

Every run of up to eight consecutive words of the question queries a BM25 index of the database's texts: the distinct
text values of up to 40 characters. A retrieved value counts if its longest common substring with the question exceeds
0.85 of its length. The substring must start and end at word boundaries; after it, a word may have an ending as in
"cats" and "African". Tokens are character trigrams within words: they find 92 % of the literals in the golds of
Spider's dev set that are values, whole words 85 %. Comparisons use one Unicode form (`fold`); the result has the value
as it is in the database.
"""

from __future__ import annotations

import io
import json
import logging
import re
import sqlite3
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np

from jaxrl_sql.text2sql.schema.cache import Version, load_or_compute, version_of
from jaxrl_sql.text2sql.schema.quote import quote_name
from jaxrl_sql.text2sql.schema.read import Table, read_schema
from jaxrl_sql.text2sql.schema.sqlite_file import read_file, skip_unreadable
from jaxrl_sql.types import Example, InputError

# The name of entries in the disk cache; the number must change with the content or the format.
_CACHE_KIND = "texts-4"
_MAX_CHARACTERS = 40
# Of a column with more distinct values, such as codes or names, only the first in order are indexed.
_MAX_VALUES = 100_000
# The maximum number of words in a run, and of values that a run retrieves.
_MAX_RUN_WORDS = 8
_BEST_PER_RUN = 10
# The memory for recently used indices per process, in bytes.
_MEMORY_BYTES = 512 << 20

# Every three consecutive characters of a word, and shorter words; one pattern for bm25s's tokenizer.
TOKEN_PATTERN = re.compile(r"(?=(\w{3}|\b\w{1,2}\b))")
_WORD = re.compile(r"\w+")
# The condition in SQL for indexing a text `v`: it is short, or may be short in Unicode's composed form (NFC). A
# decomposed text may have three times the characters; it has combining marks, Hangul vowels or voiced kana marks, which
# are recognized by their first bytes.
_MARKS = " OR ".join(f"instr(CAST(v AS BLOB), x'{mark}')" for mark in ("CC", "E185", "E38299", "E3829A"))
_IS_SHORT_SQL = (
    f"(length(v) BETWEEN 1 AND {_MAX_CHARACTERS} OR length(v) BETWEEN {_MAX_CHARACTERS + 1} AND {3 * _MAX_CHARACTERS} "
    f"AND length(CAST(v AS BLOB)) > length(v) AND ({_MARKS}))"
)
# Apostrophes, quotes and hyphens that Unicode's normal forms do not unify, and invisible characters.
_APOSTROPHES = "\u00b4\u02b9\u02bb\u02bc\u2018\u2019\u201b\u2032\u055a\u05f3\ua78b\ua78c"
_QUOTES = "\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb"
_HYPHENS = "\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\u05be"
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
_UNUSUAL_CHARACTER = re.compile(f"[{_APOSTROPHES}{_QUOTES}{_HYPHENS}{_INVISIBLE}]")
_PLAIN_CHARACTERS = str.maketrans(
    _APOSTROPHES + _QUOTES + _HYPHENS, "'" * len(_APOSTROPHES) + '"' * len(_QUOTES) + "-" * len(_HYPHENS), _INVISIBLE
)
# A letter of a script that separates words by spaces: not Thai, Lao, Burmese, Khmer, kana, Chinese and Hangul.
_LETTER = re.compile("[^\\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# Endings that a word of the question may add to a value: "cats", "buses", "African", "European".
WORD_ENDINGS = frozenset(("s", "es", "n", "an"))

# Stop words in questions.
STOP_WORDS = frozenset(
    "a all and are as at be by did do does each find for from give had has have how in is it its least less list many "
    "me more most much name names number numbers of on or return show tell than that the their there they to was were "
    "what which who with".split()
)

Match = tuple[str, str, str]
"""A table, a column, and a value of it."""


class TextIndex(NamedTuple):
    """A BM25 index of N texts of a database, with V distinct tokens; ends of ranges are exclusive.

    Text i is the bytes `starts[i]` to `starts[i + 1]` of `texts`; it is from the (table, column) `columns[owner[i]]`.
    `tokens` maps tokens to ids. Token t adds `scores[j]` to the score of text `text_ids[j]`, for j from `ends[t]` to
    `ends[t + 1]`: the rows of a sparse matrix [V, N] in CSR format. A question can match text i only if it has at least
    `least[i]` of the text's distinct tokens.
    """

    columns: tuple[tuple[str, str], ...]
    texts: bytes
    starts: np.ndarray
    owner: np.ndarray
    least: np.ndarray
    tokens: dict[str, int]
    scores: np.ndarray
    text_ids: np.ndarray
    ends: np.ndarray

    @property
    def nbytes(self) -> int:
        """Return the approximate memory of the index in bytes."""
        arrays = (self.starts, self.owner, self.least, self.scores, self.text_ids, self.ends)
        return len(self.texts) + sum(array.nbytes for array in arrays) + 128 * len(self.tokens)

    def text(self, i: int) -> str:
        """Return a text as in the database."""
        return self.texts[self.starts[i] : self.starts[i + 1]].decode()

    def search(self, question: str, best: int) -> tuple[Match, ...]:
        """Return up to `best` values that the question names: the largest matched share first, then the longest."""
        folded_question = fold(question)
        token_ids = [
            [t for token in TOKEN_PATTERN.findall(word) if (t := self.tokens.get(token)) is not None]
            for word in _WORD.findall(folded_question)
        ]
        matches = []
        for i in self._candidate_texts(token_ids):
            text = self.text(i)
            folded = fold(text)
            if share := _matched_share(folded, folded_question):
                matches.append((-share, -len(folded), i, text))
        return tuple((*self.columns[self.owner[i]], text) for _, _, i, text in sorted(matches)[:best])

    def _candidate_texts(self, token_ids: Sequence[Sequence[int]]) -> list[int]:
        """Return the texts that BM25 retrieves for any run of words, among those that can match.

        `token_ids` has the ids of the known tokens of each word of the question.
        """
        tokens = sorted({token for word in token_ids for token in word})
        if not tokens:
            return []
        slices = [slice(self.ends[token], self.ends[token + 1]) for token in tokens]
        num_shared = np.bincount(np.concatenate([self.text_ids[part] for part in slices]), minlength=len(self.owner))
        possible = np.flatnonzero(num_shared >= self.least)  # the M texts that can match
        if len(possible) <= _BEST_PER_RUN:
            return possible.tolist()
        index_of_text = np.full(len(self.owner), -1, np.int32)
        index_of_text[possible] = np.arange(len(possible))
        scores_by_token = {}
        for token, part in zip(tokens, slices, strict=True):
            indices = index_of_text[self.text_ids[part]]
            scores_by_token[token] = token_scores = np.zeros(len(possible))
            token_scores[indices[indices >= 0]] = self.scores[part][indices >= 0]
        word_scores = [sum((scores_by_token[token] for token in word), np.zeros(len(possible))) for word in token_ids]
        # Row w has the scores of the first w words, [words + 1, M], so a run's scores are the difference of two rows.
        cumulative = np.cumsum([np.zeros(len(possible)), *word_scores], axis=0)
        chosen: set[int] = set()
        for length in range(1, min(_MAX_RUN_WORDS, len(token_ids)) + 1):
            run_scores = cumulative[length:] - cumulative[:-length]
            best = np.argsort(-run_scores, axis=1, kind="stable")[:, :_BEST_PER_RUN]
            chosen.update(possible[best[np.take_along_axis(run_scores, best, axis=1) > 0]].tolist())
        return sorted(chosen)


def find_values(example: Example, best: int) -> tuple[Match, ...]:
    """Return up to `best` values of the example's database that its question or evidence names.

    Raises InputError if the database is unreadable, or without the package bm25s.
    """
    return open_index(example.db_path, example.hide).search(f"{example.evidence}\n{example.question}", best)


_recent: OrderedDict[Version, TextIndex] = OrderedDict()
_lock = threading.Lock()


def open_index(db_path: str, hide: Sequence[str] = ()) -> TextIndex:
    """Return the index of a database's texts, without the columns of `hide`, which the model must not see.

    It is computed once per content of the file and cached on disk; the most recent indices are also in memory.
    """
    version = version_of(db_path, hide)
    with _lock:
        index = _recent.pop(version, None)
        if index is None:
            index = load_or_compute(
                _CACHE_KIND, version, _load, _dump, lambda: make_index(*read_texts(version.path, version.hide))
            )
        _recent[version] = index
        while len(_recent) > 1 and sum(entry.nbytes for entry in _recent.values()) > _MEMORY_BYTES:
            _recent.popitem(last=False)
    return index


def read_texts(path: str, hide: Sequence[str] = ()) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return the (table, column) pairs of a database with texts, and the distinct texts of each, in order."""
    tables = read_schema(path, hide).tables
    try:
        return read_file(path, lambda connection: _read_texts(connection, path, tables))
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter in SQLite's error messages
        raise InputError(f"{path}: values cannot be read ({error})") from error


def _read_texts(
    connection: sqlite3.Connection, path: str, tables: Sequence[Table]
) -> tuple[list[tuple[str, str]], list[list[str]]]:
    columns, texts = [], []
    for table in tables:
        for column in table.columns:
            name, source = (quote_name(text, always=True) for text in (column.name, table.name))
            with skip_unreadable(path, f"{table.name}.{column.name}"):
                rows = connection.execute(
                    f"SELECT DISTINCT v FROM (SELECT {name} AS v FROM {source}) "
                    f"WHERE typeof(v) = 'text' AND {_IS_SHORT_SQL} ORDER BY v LIMIT {_MAX_VALUES}"
                )
                if distinct := [text for (text,) in rows if _WORD.search(text) and _is_short(text)]:
                    columns.append((table.name, column.name))
                    texts.append(distinct)
    return columns, texts


def make_index(columns: Sequence[tuple[str, str]], texts: Sequence[Sequence[str]]) -> TextIndex:
    """Index texts; `texts[i]` are those of `columns[i]`, a (table, column)."""
    all_texts = [text for column in texts for text in column]
    raw = [text.encode() for text in all_texts]
    owner = np.repeat(np.arange(len(columns), dtype=np.int32), [len(column) for column in texts])
    starts = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    folded = [fold(text) for text in all_texts]
    tokens, scores, text_ids, ends = bm25(folded)
    # Up to `max_missing` characters of a matching text may be missing in the question. Each of them removes at most one
    # token, so all other tokens of the text must be in the question.
    max_missing = np.array([len(text) - _min_shared_characters(len(text)) for text in folded], np.int64)
    least = np.maximum(np.bincount(text_ids, minlength=len(all_texts)) - max_missing, 1)
    return TextIndex(
        tuple(columns), b"".join(raw), starts, owner, least.astype(np.int32), tokens, scores, text_ids, ends
    )


def bm25(texts: Sequence[str]) -> tuple[dict[str, int], np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids of the tokens in the texts, and `scores`, `text_ids` and `ends` of `TextIndex`.

    Raises InputError without the package bm25s.
    """
    if not texts:
        return {}, np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(1, np.int32)
    bm25s = _import_bm25s()
    tokenized = bm25s.tokenize(
        texts, lower=False, token_pattern=TOKEN_PATTERN.pattern, stopwords=None, show_progress=False
    )
    retriever = bm25s.BM25()
    retriever.index(tokenized, create_empty_token=False, show_progress=False)
    matrix = retriever.scores
    return dict(tokenized.vocab), matrix["data"], matrix["indices"], matrix["indptr"]


def _import_bm25s() -> Any:
    """Import bm25s while hiding jax, which it would otherwise import and initialize for an unused sort."""
    hidden = ("jax.lax",) if "jax" in sys.modules else ("jax", "jax.lax")
    before = {name: sys.modules[name] for name in hidden if name in sys.modules}
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment] # makes the import fail
    try:
        import bm25s  # noqa: PLC0415 - only retrieval needs it
    except ImportError as error:
        raise InputError(
            "data.retrieval.top_k, data.shots and data.schema_budget need the package bm25s (pip install bm25s): "
            f"{error}"
        ) from error
    finally:
        for name in hidden:
            del sys.modules[name]
        sys.modules.update(before)
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # otherwise it logs its progress
    return bm25s


def fold(text: str) -> str:
    """Return a text case-folded and in one Unicode form (`unify`), with words separated by single spaces."""
    folded = text.casefold() if text.isascii() else normalize("NFKC", unify(text).casefold())
    return " ".join(folded.split())


def unify(text: str) -> str:
    """Return a text in one Unicode form, NFKC with plain apostrophes, quotes and hyphens."""
    return _with_plain_marks(normalize("NFKC", _with_plain_marks(text)))


def _with_plain_marks(text: str) -> str:
    return text.translate(_PLAIN_CHARACTERS) if _UNUSUAL_CHARACTER.search(text) else text


def _is_short(text: str) -> bool:
    """Return whether a text is short enough for the index, as it is or in Unicode's composed form."""
    return len(text) <= _MAX_CHARACTERS or len(normalize("NFC", text)) <= _MAX_CHARACTERS


def _min_shared_characters(length: int) -> int:
    """Return the minimum number of characters that a text of a length must share: more than 0.85 of them."""
    return length * 85 // 100 + 1


def _matched_share(text: str, question: str) -> float:
    """Return the length of a text's longest substring that `question` names, as a share of the text's length.

    It is 0 if the share is not above 0.85.
    """
    for length in range(len(text), _min_shared_characters(len(text)) - 1, -1):
        if any(_occurs(text[at : at + length], question) for at in range(len(text) - length + 1)):
            return length / len(text)
    return 0.0


def _occurs(piece: str, question: str) -> bool:
    """Return whether a piece occurs in `question` at word boundaries; an ending as in "cats" may follow it."""
    at = question.find(piece)
    while at >= 0:
        is_inside_word = _LETTER.match(piece) and _LETTER.match(question[at - 1 : at])
        end = at + len(piece)
        word_end = end
        while _LETTER.match(piece[-1]) and _LETTER.match(question, word_end):
            word_end += 1
        if not is_inside_word and (word_end == end or question[end:word_end] in WORD_ENDINGS):
            return True
        at = question.find(piece, at + 1)
    return False


def _dump(index: TextIndex) -> bytes:
    names = json.dumps({"columns": index.columns, "tokens": sorted(index.tokens, key=index.tokens.__getitem__)})
    file = io.BytesIO()
    np.savez(
        file,
        names=np.frombuffer(names.encode(), np.uint8),
        texts=np.frombuffer(index.texts, np.uint8),
        **{name: getattr(index, name) for name in ("starts", "owner", "least", "scores", "text_ids", "ends")},
    )
    return file.getvalue()


def _load(raw: bytes) -> TextIndex:
    with np.load(io.BytesIO(raw)) as file:
        names = json.loads(file["names"].tobytes())
        return TextIndex(
            columns=tuple((table, column) for table, column in names["columns"]),
            texts=file["texts"].tobytes(),
            tokens={token: i for i, token in enumerate(names["tokens"])},
            **{name: file[name] for name in ("starts", "owner", "least", "scores", "text_ids", "ends")},
        )
