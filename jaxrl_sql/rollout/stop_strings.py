"""Detect stop strings and the end of a SQL statement on the device, at any byte of a token.

A set of stop strings is a deterministic automaton over bytes (Aho and Corasick 1975). It becomes a table from (state,
token) to the next state, so the device detects the end of a completion in the step that samples its last token. The end
of a SQL statement is another automaton over bytes, which knows SQLite's quotes and comments.

Array letters: A states of automata, V vocabulary. `delta` [A,256] is an automaton's transition function: the next state
for each byte. `pieces` are the bytes of each token id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np

from jaxrl_sql.batch import bucket
from jaxrl_sql.models.ops.token_distribution import IdRanges
from jaxrl_sql.runtime.control_tokens import ControlTokens
from jaxrl_sql.text2sql.env.turns import TAGS
from jaxrl_sql.types import InputError, Tokenizer

_NUM_BYTES = 256

STATEMENT_END = "\0;"
"""Instead of stop strings: the semicolon that ends a SQL statement; semicolons in quotes and comments do not count."""


class Stops(NamedTuple):
    """The automata of several sets of stop strings, in one table with a common numbering of states.

    table [A,V] int16 or int32: state after a token.
    is_complete [A] bool: whether a string is complete. Such a state is never left.
    start_states: start state of each set's automaton.
    A is 1 without strings, else rounded up to one of few sizes (`bucket`).
    """

    table: np.ndarray
    is_complete: np.ndarray
    start_states: dict[tuple[str, ...], int]


StopAutomata = tuple[Stops, dict[tuple[str, ...], str]]
"""The automata of all sets of stop strings, and the reason for each invalid set."""


class Vocabulary:
    """A tokenizer with its control tokens, end tokens, and the bytes of all tokens.

    Control tokens are special tokens such as "<|im_end|>". `declared_ends` are ids that end a completion, in addition
    to those of the tokenizer (`end_tokens`).
    """

    def __init__(self, tokenizer: Tokenizer, declared_ends: Iterable[int] = ()) -> None:
        self.tokenizer, self.control = tokenizer, ControlTokens(tokenizer)
        self.end_tokens = end_tokens(tokenizer, declared_ends)
        # An automaton over 250,000 tokens takes twenty seconds to build, and every rollout needs the same ones.
        self.find_stops = lru_cache(maxsize=8)(self._find_stops)
        self.missing_ids = lru_cache(maxsize=2)(partial(missing_ids, tokenizer, ends=self.end_tokens))

    def encode_observation(self, text: str) -> list[int]:
        """Encode an environment's text; only the tags of a dialogue become control tokens.

        Names of other control tokens are encoded as plain text, so that a database's values cannot end a turn.
        """
        return self.control.encode(self.control.escape(text, exclude=TAGS))

    def text(self, ids: Sequence[int]) -> str:
        """Decode tokens without cleaning up spaces, which would change quoted values in SQL."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _find_stops(self, sets: tuple[tuple[str, ...], ...], vocab_size: int) -> StopAutomata:
        return make_stops(sets, self.token_bytes if any(sets) else [], vocab_size)

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """Return the bytes of each token."""
        return token_bytes(self.tokenizer)


def end_tokens(tokenizer: Tokenizer, declared: Iterable[int] = ()) -> list[int]:
    """Return the ids that end a completion.

    These are the tokenizer's end token, end-of-turn tokens of known templates, and `declared` ids. Raises InputError if
    the result is empty.
    """
    names = [tokenizer.eos_token, "<|im_end|>", "<|eot_id|>", "<end_of_turn>"]
    vocabulary = tokenizer.get_vocab()
    ids = sorted({vocabulary[name] for name in names if name in vocabulary} | {*declared})
    if not ids:
        raise InputError(
            "the tokenizer has no end token: set eos_token in tokenizer_config.json, or data.tokenizer.eos_token"
        )
    return ids


def missing_ids(tokenizer: Tokenizer, vocab_size: int, ends: Iterable[int] = ()) -> IdRanges:
    """Return half-open ranges of the ids in a model's vocabulary without a token: padding rows, and gaps between ids.

    `ends` are end tokens. They are not missing, even if the tokenizer lacks them.
    """
    has_token = np.zeros(vocab_size, bool)
    has_token[[token for token in (*tokenizer.get_vocab().values(), *ends) if token < vocab_size]] = True
    edges = np.flatnonzero(np.diff(has_token, prepend=True, append=True)).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each token id; empty for an id without a token."""
    vocabulary = tokenizer.get_vocab()
    pieces: list[bytes] = [b""] * (max(vocabulary.values()) + 1)
    kind = _decoder_kind(tokenizer)
    special = set(getattr(tokenizer, "get_added_vocab", dict)())
    for name, token in vocabulary.items():
        if name in special:
            pieces[token] = name.encode()
        elif kind == "byte-level":
            pieces[token] = _from_byte_level(name)
        elif kind == "pieces":
            pieces[token] = _from_piece(name)
        else:
            pieces[token] = tokenizer.decode([token]).encode()
    return pieces


def _decoder_kind(tokenizer: Tokenizer) -> str:
    """Return the kind of a tokenizer's decoder, which determines how names of tokens encode bytes.

    "byte-level": a letter per byte, as in GPT-2. "pieces": text with "▁" for spaces, as in SentencePiece. "other":
    unknown, so tokens are decoded one by one.
    """
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    # The JSON of the decoder alone; the JSON of the whole tokenizer has megabytes.
    decoder_json = decoder.__getstate__().decode() if decoder is not None else ""
    if '"ByteLevel"' in decoder_json:
        return "byte-level"
    return "pieces" if '"ByteFallback"' in decoder_json or '"Metaspace"' in decoder_json else "other"


@lru_cache(maxsize=1)
def _byte_level_letters() -> dict[str, int]:
    """Return the byte of each letter in byte-level tokenizers.

    Printable bytes of Latin-1 are their own letters. The others have the letters from code point 256 on, in order.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(_NUM_BYTES) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(_NUM_BYTES + i): byte for i, byte in enumerate(others)}


def _from_byte_level(name: str) -> bytes:
    """Return the bytes of a byte-level token; a name with other letters is an added token, which is plain text."""
    letters = _byte_level_letters()
    return bytes(letters[c] for c in name) if all(c in letters for c in name) else name.encode()


def _from_piece(name: str) -> bytes:
    """Return the bytes of a SentencePiece token: "<0x0A>" is a single byte, and "▁" is a space."""
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace("▁", " ").encode()


def _automaton(strings: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return delta [A,256] and is_complete [A] of the automaton that finds any of the strings, from state 0 on.

    The nodes of a trie of the strings are the states. Breadth first, each state copies the transitions of its failure
    link (the state of its longest proper suffix) and replaces those of its own children.
    """
    trie, is_complete = [dict[int, int]()], [False]
    for string in strings:
        state = 0
        for byte in string:
            if byte not in trie[state]:
                trie[state][byte] = len(trie)
                trie.append({})
                is_complete.append(False)
            state = trie[state][byte]
        is_complete[state] = True
    delta = np.zeros((len(trie), _NUM_BYTES), np.int16)
    failure_links = [0] * len(trie)
    queue = [0]
    for state in queue:
        delta[state] = delta[failure_links[state]] if state else 0
        is_complete[state] |= is_complete[failure_links[state]]
        for byte, child in trie[state].items():
            failure_links[child] = int(delta[state, byte]) if state else 0
            delta[state, byte] = child
            queue.append(child)
    complete = np.array(is_complete)
    delta[complete] = np.flatnonzero(complete)[:, None]  # complete states are never left
    return delta, complete


@lru_cache(maxsize=1)
def _statement_automaton() -> tuple[np.ndarray, np.ndarray]:
    """Return delta [A,256] and is_complete [A] of the automaton that finds the end of a statement, from state 0 on.

    A state is (place, open): the place is before the first token of the statement or in it. `open` is "" or begins a
    quote or comment: a first "-" or "/", the opening characters, or "/**" after a "*" in a block comment. Quotes and
    comments are SQLite's: '', "", ``, [], -- to the end of a line, /* */. A semicolon before the first token does not
    end a statement.
    """
    states = [(place, opened) for place in ("before", "in") for opened in ("", "-", "/", "--", "/*", "/**")]
    states += [("in", quote) for quote in "'\"`["]
    number = {state: i for i, state in enumerate(states)}
    done = len(states)
    delta = np.full((done + 1, _NUM_BYTES), done, np.int16)
    for place in ("before", "in"):
        plain, line, block, star = (number[place, opened] for opened in ("", "--", "/*", "/**"))
        delta[plain] = number["in", ""]
        for byte in b" \t\n\f\r":
            delta[plain, byte] = plain
        delta[plain, ord(";")] = done if place == "in" else plain
        for mark in "-/":
            delta[plain, ord(mark)] = number[place, mark]
        for quote in "'\"`[":
            delta[plain, ord(quote)] = number["in", quote]
        delta[line] = line
        delta[line, ord("\n")] = plain
        delta[block] = delta[star] = block
        delta[block, ord("*")] = delta[star, ord("*")] = star
        delta[star, ord("/")] = plain
    for place in ("before", "in"):  # a - or / that begins no comment is a token, so the statement has begun
        for mark, second, comment in (("-", "-", "--"), ("/", "*", "/*")):
            state = number[place, mark]
            delta[state] = delta[number["in", ""]]
            delta[state, ord(second)] = number[place, comment]
    for quote, closing in zip("'\"`[", "'\"`]", strict=True):
        state = number["in", quote]
        delta[state] = state
        delta[state, ord(closing)] = number["in", ""]
    return delta, np.arange(done + 1) == done


def _token_transitions(delta: np.ndarray, pieces: Sequence[bytes]) -> np.ndarray:
    """Return the state after each token from each state, [A,V] int16.

    Tokens are sorted by length, longest first, so that all tokens with a byte at a position are a slice.
    """
    lengths = np.array([len(piece) for piece in pieces])
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    letters = np.zeros((len(pieces), longest), np.uint8)
    letters[np.arange(longest) < lengths[order, None]] = np.frombuffer(b"".join(pieces[i] for i in order), np.uint8)
    state = np.repeat(np.arange(len(delta), dtype=np.int16)[:, None], len(pieces), axis=1)
    for position in range(longest):
        num_longer = int(np.searchsorted(-lengths[order], -position, side="left"))
        state[:, :num_longer] = delta[state[:, :num_longer], letters[:num_longer, position]]
    by_id = np.empty_like(state)
    by_id[:, order] = state
    return by_id


def make_stops(sets: Iterable[tuple[str, ...]], pieces: Sequence[bytes], vocab_size: int) -> StopAutomata:
    """Build the automata of all sets of stop strings; return them and the reason for each invalid set.

    A set is invalid if no sequence of tokens produces one of its strings. STATEMENT_END, which must be the only string
    of its set, is never invalid. State 0 is for requests without stop strings, and is never left.
    """
    tables, complete_flags = [np.zeros((1, vocab_size), np.int32)], [np.zeros(1, bool)]
    start_states: dict[tuple[str, ...], int] = {(): 0}
    invalid: dict[tuple[str, ...], str] = {}
    for strings in dict.fromkeys(strings for strings in sets if strings):
        impossible = [string for string in strings if string != STATEMENT_END and not _can_occur(string, pieces)]
        if impossible:
            invalid[strings] = f"no tokens write the stop string {impossible[0]!r}"
            continue
        ends_statement = strings == (STATEMENT_END,)
        delta, is_complete = (
            _statement_automaton() if ends_statement else _automaton(string.encode() for string in strings)
        )
        offset = sum(len(table) for table in tables)
        table = np.zeros((len(delta), vocab_size), np.int16)
        num_ids = min(vocab_size, len(pieces))
        table[:, :num_ids] = _token_transitions(delta, pieces)[:, :num_ids]
        tables.append(table.astype(np.int32) + offset)
        complete_flags.append(is_complete)
        start_states[strings] = offset
    if len(tables) > 1:  # pad to one of few sizes, because each size compiles a decode program; padding is unreachable
        num_states = sum(len(table) for table in tables)
        tables.append(np.zeros((bucket(num_states, 16) - num_states, vocab_size), np.int32))
        complete_flags.append(np.zeros(len(tables[-1]), bool))
    states = np.concatenate(tables)
    dtype = np.int16 if len(states) <= np.iinfo(np.int16).max else np.int32
    return Stops(states.astype(dtype), np.concatenate(complete_flags), start_states), invalid


def _can_occur(string: str, pieces: Sequence[bytes]) -> bool:
    """Return whether some sequence of tokens produces the string."""
    delta, is_complete = _automaton([string.encode()])
    table = _token_transitions(delta, sorted(set(pieces)))
    reached = {0}
    todo = [0]
    while todo:
        new = set(np.unique(table[todo.pop()]).tolist()) - reached
        reached |= new
        todo.extend(new)
    return bool(is_complete[list(reached)].any())


def cut_after_stop(text: str, stop: Sequence[str]) -> str:
    """Truncate a text after the stop string that ends first, or after its first statement."""
    if tuple(stop) == (STATEMENT_END,):
        return _first_statement(text)
    ends = [text.find(string) + len(string) for string in stop if string in text]
    return text[: min(ends)] if ends else text


def _first_statement(text: str) -> str:
    """Truncate a text after the semicolon that ends its first statement, if any."""
    delta, is_complete = _statement_automaton()
    state, encoded = 0, text.encode(errors="replace")
    for position, byte in enumerate(encoded):
        state = delta[state, byte]
        if is_complete[state]:
            return encoded[: position + 1].decode()
    return text
