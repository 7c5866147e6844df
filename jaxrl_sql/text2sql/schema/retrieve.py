"""Find the values of a database that a question names, so that a prompt can show them (OmniSQL, CodeS).

BM25 over the distinct text values of up to 40 characters, asked with every run of up to eight words of the question;
of what it finds, values stay whose longest common substring with the question is above 0.85 of their length and is not
cut out of a word there, but for endings as in "cats" and "African". Values and questions are cut into three characters
each, word by word: of the literals in the golds of Spider's dev set that are values, 92 % are found so, and 85 % by
whole words. Both are compared in one Unicode form (`fold`); a value is shown as its cell has it.
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

from jaxrl_sql.text2sql.schema.cache import Version, kept, version_of
from jaxrl_sql.text2sql.schema.quote import quote_name
from jaxrl_sql.text2sql.schema.read import Table, read_schema
from jaxrl_sql.text2sql.schema.sqlite_file import read_file, skip_unreadable
from jaxrl_sql.types import Example, InputError

# The name of entries in the cache on disk: another number when what is found, or how it is written, changes.
_KIND = "texts-3"
_LONGEST = 40
# A column of more distinct values is known by the first of them in their order: it is one of codes or names.
_MOST = 100_000
_WORDS = 8
_A_RUN = 10
# What a process keeps of the indices that it used last, in bytes.
_KEPT = 512 << 20

# Every three characters of a word that stand together, and words that are shorter; one pattern for bm25s's tokenizer.
TOKEN = re.compile(r"(?=(\w{3}|\b\w{1,2}\b))")
_WORD = re.compile(r"\w+")
# What of a text `v` is indexed. A decomposed text may have three times the characters; it holds first bytes of marks
# over and below letters, of Hangul's vowels or of kana's voiced marks.
_MARKS = " OR ".join(f"instr(CAST(v AS BLOB), x'{mark}')" for mark in ("CC", "E185", "E38299", "E3829A"))
_SHORT = (
    f"(length(v) BETWEEN 1 AND {_LONGEST} OR length(v) BETWEEN {_LONGEST + 1} AND {3 * _LONGEST} "
    f"AND length(CAST(v AS BLOB)) > length(v) AND ({_MARKS}))"
)
# Apostrophes, quotes and hyphens that normal forms of Unicode keep apart, and what nobody sees.
_APOSTROPHES = "\u00b4\u02b9\u02bb\u02bc\u2018\u2019\u201b\u2032\u055a\u05f3\ua78b\ua78c"
_QUOTES = "\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb"
_HYPHENS = "\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\u05be"
_UNSEEN = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
_ODD = re.compile(f"[{_APOSTROPHES}{_QUOTES}{_HYPHENS}{_UNSEEN}]")
_PLAIN = str.maketrans(
    _APOSTROPHES + _QUOTES + _HYPHENS, "'" * len(_APOSTROPHES) + '"' * len(_QUOTES) + "-" * len(_HYPHENS), _UNSEEN
)
# A character of a word, in scripts that part words: not Thai, Lao, Burmese, Khmer, kana, Chinese and Hangul.
_LETTER = re.compile("[^\\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
# What a word of the question may add to a value: "cats", "buses", "African", "European".
ENDINGS = frozenset(("s", "es", "n", "an"))

# Words of a question that name nothing.
STOP = frozenset(
    "a all and are as at be by did do does each find for from give had has have how in is it its least less list many "
    "me more most much name names number numbers of on or return show tell than that the their there they to was were "
    "what which who with".split()
)

Match = tuple[str, str, str]
"""A table, a column, and a value that stands in it."""


class TextIndex(NamedTuple):
    """The N texts of a database: `text` i is bytes `starts[i]` to `starts[i + 1]`, and stands in `columns[owner[i]]`.

    `tokens` number the V tokens; what token t adds to the score of text `found[j]` is `scores[j]`, for j from
    `ends[t]` to `ends[t + 1]`. A text can only match a question that has `least[i]` of its distinct tokens.
    """

    columns: tuple[tuple[str, str], ...]
    texts: bytes
    starts: np.ndarray
    owner: np.ndarray
    least: np.ndarray
    tokens: dict[str, int]
    scores: np.ndarray
    found: np.ndarray
    ends: np.ndarray

    @property
    def nbytes(self) -> int:
        """Return about how much memory the index takes."""
        arrays = (self.starts, self.owner, self.least, self.scores, self.found, self.ends)
        return len(self.texts) + sum(array.nbytes for array in arrays) + 128 * len(self.tokens)

    def text(self, i: int) -> str:
        """Return a text as it stands in the database."""
        return self.texts[self.starts[i] : self.starts[i + 1]].decode()

    def search(self, question: str, best: int) -> tuple[Match, ...]:
        """Return up to `best` values that the question names: those it has the most of first, and the longest."""
        asked = fold(question)
        words = [[t for token in TOKEN.findall(word) if (t := self.tokens.get(token)) is not None]
                 for word in _WORD.findall(asked)]  # fmt: skip
        found = []
        for i in self._likely(words):
            text = self.text(i)
            folded = fold(text)
            if share := _share(folded, asked):
                found.append((-share, -len(folded), i, text))
        return tuple((*self.columns[self.owner[i]], text) for _, _, i, text in sorted(found)[:best])

    def _likely(self, words: Sequence[Sequence[int]]) -> list[int]:
        """Return the texts that BM25 finds for a run of words, among those that can match at all."""
        tokens = sorted({token for word in words for token in word})
        if not tokens:
            return []
        slices = [slice(self.ends[token], self.ends[token + 1]) for token in tokens]
        has = np.bincount(np.concatenate([self.found[part] for part in slices]), minlength=len(self.owner))
        able = np.flatnonzero(has >= self.least)
        if len(able) <= _A_RUN:
            return able.tolist()
        place = np.full(len(self.owner), -1, np.int32)
        place[able] = np.arange(len(able))
        by_token = {}
        for token, part in zip(tokens, slices, strict=True):
            at = place[self.found[part]]
            by_token[token] = row = np.zeros(len(able))
            row[at[at >= 0]] = self.scores[part][at >= 0]
        by_word = [sum((by_token[token] for token in word), np.zeros(len(able))) for word in words]
        upto = np.cumsum([np.zeros(len(able)), *by_word], axis=0)  # a run's score is a difference of two rows
        chosen: set[int] = set()
        for length in range(1, min(_WORDS, len(words)) + 1):
            runs = upto[length:] - upto[:-length]
            first = np.argsort(-runs, axis=1, kind="stable")[:, :_A_RUN]
            chosen.update(able[first[np.take_along_axis(runs, first, axis=1) > 0]].tolist())
        return sorted(chosen)


def find_values(example: Example, best: int) -> tuple[Match, ...]:
    """Return up to `best` values of the example's database that its question or its evidence names.

    Raises InputError when the database cannot be read, or the package bm25s is not there.
    """
    return open_index(example.db_path, example.hide).search(f"{example.evidence}\n{example.question}", best)


_recent: OrderedDict[Version, TextIndex] = OrderedDict()
_lock = threading.Lock()


def open_index(db_path: str, hide: Sequence[str] = ()) -> TextIndex:
    """Return the index of a database's texts: made once for each content of the file, the last ones kept in memory.

    The columns of `hide` are not in it.
    """
    version = version_of(db_path, hide)
    with _lock:
        index = _recent.pop(version, None)
        if index is None:
            index = kept(_KIND, version, _load, _dump, lambda: make_index(*read_texts(version.path, version.hide)))
        _recent[version] = index
        while len(_recent) > 1 and sum(one.nbytes for one in _recent.values()) > _KEPT:
            _recent.popitem(last=False)
    return index


def read_texts(path: str, hide: Sequence[str] = ()) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Return the (table, column) pairs of a database that hold texts, and the distinct texts of each, in order."""
    tables = read_schema(path, hide).tables
    try:
        return read_file(path, lambda connection: _read_texts(connection, path, tables))
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the second: of SQLite's words, where they quote no text
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
                    f"WHERE typeof(v) = 'text' AND {_SHORT} ORDER BY v LIMIT {_MOST}"
                )
                if distinct := [text for (text,) in rows if _WORD.search(text) and _is_short(text)]:
                    columns.append((table.name, column.name))
                    texts.append(distinct)
    return columns, texts


def make_index(columns: Sequence[tuple[str, str]], texts: Sequence[Sequence[str]]) -> TextIndex:
    """Index the texts of each column."""
    every = [text for column in texts for text in column]
    raw = [text.encode() for text in every]
    owner = np.repeat(np.arange(len(columns), dtype=np.int32), [len(column) for column in texts])
    starts = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    folded = [fold(text) for text in every]
    tokens, scores, found, ends = bm25(folded)
    # A text may miss as many characters as it need not share, and with each of them one token.
    spare = np.array([len(text) - _needed(len(text)) for text in folded], np.int64)
    least = np.maximum(np.bincount(found, minlength=len(every)) - spare, 1)
    return TextIndex(tuple(columns), b"".join(raw), starts, owner, least.astype(np.int32), tokens, scores, found, ends)


def bm25(texts: Sequence[str]) -> tuple[dict[str, int], np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens of the texts, and by token what it adds to which text's score."""
    if not texts:
        return {}, np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(1, np.int32)
    bm25s = _import_bm25s()
    cut = bm25s.tokenize(texts, lower=False, token_pattern=TOKEN.pattern, stopwords=None, show_progress=False)
    retriever = bm25s.BM25()
    retriever.index(cut, create_empty_token=False, show_progress=False)
    made = retriever.scores
    return dict(cut.vocab), made["data"], made["indices"], made["indptr"]


def _import_bm25s() -> Any:
    """Import bm25s, and let it find no jax: it would load it, and start its devices, to sort with what is not used."""
    hidden = ("jax.lax",) if "jax" in sys.modules else ("jax", "jax.lax")
    before = {name: sys.modules[name] for name in hidden if name in sys.modules}
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment] # how Python marks what cannot be imported
    try:
        import bm25s  # noqa: PLC0415 - needed only where texts are looked for
    except ImportError as error:
        raise InputError(
            "data.retrieval.top_k, data.shots and data.schema_budget need the package bm25s (pip install bm25s): "
            f"{error}"
        ) from error
    finally:
        for name in hidden:
            del sys.modules[name]
        sys.modules.update(before)
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it shows what it does to whoever logs at all
    return bm25s


def fold(text: str) -> str:
    """Return a text in one case and one Unicode form (`unify`), its words parted by single spaces."""
    folded = text.casefold() if text.isascii() else normalize("NFKC", unify(text).casefold())
    return " ".join(folded.split())


def unify(text: str) -> str:
    """Return a text in one Unicode form, NFKC with plain apostrophes, quotes and hyphens."""
    return _with_plain_marks(normalize("NFKC", _with_plain_marks(text)))


def _with_plain_marks(text: str) -> str:
    return text.translate(_PLAIN) if _ODD.search(text) else text


def _is_short(text: str) -> bool:
    return len(text) <= _LONGEST or len(normalize("NFC", text)) <= _LONGEST


def _needed(length: int) -> int:
    """Return how many characters a text of a length shares at least: more than 0.85 of them."""
    return length * 85 // 100 + 1


def _share(text: str, asked: str) -> float:
    """Return the share of a text's characters in its longest substring that `_stands` in `asked`; 0 if too small."""
    for length in range(len(text), _needed(len(text)) - 1, -1):
        if any(_stands(text[at : at + length], asked) for at in range(len(text) - length + 1)):
            return length / len(text)
    return 0.0


def _stands(piece: str, asked: str) -> bool:
    """Return whether a piece stands in `asked` as words do: from the start of one to the end of one, or its ending."""
    at = asked.find(piece)
    while at >= 0:
        word = _LETTER.match(piece) and _LETTER.match(asked[at - 1 : at])
        end = at + len(piece)
        upto = end
        while _LETTER.match(piece[-1]) and _LETTER.match(asked, upto):
            upto += 1
        if not word and (upto == end or asked[end:upto] in ENDINGS):
            return True
        at = asked.find(piece, at + 1)
    return False


def _dump(index: TextIndex) -> bytes:
    names = json.dumps({"columns": index.columns, "tokens": sorted(index.tokens, key=index.tokens.__getitem__)})
    file = io.BytesIO()
    np.savez(
        file,
        names=np.frombuffer(names.encode(), np.uint8),
        texts=np.frombuffer(index.texts, np.uint8),
        **{name: getattr(index, name) for name in ("starts", "owner", "least", "scores", "found", "ends")},
    )
    return file.getvalue()


def _load(raw: bytes) -> TextIndex:
    with np.load(io.BytesIO(raw)) as file:
        names = json.loads(file["names"].tobytes())
        return TextIndex(
            columns=tuple((table, column) for table, column in names["columns"]),
            texts=file["texts"].tobytes(),
            tokens={token: i for i, token in enumerate(names["tokens"])},
            **{name: file[name] for name in ("starts", "owner", "least", "scores", "found", "ends")},
        )
