"""Detect stop strings and the end of a SQL statement on the device, at any byte of a token.

The strings of a request form one automaton over bytes (Aho and Corasick 1975). A table maps (state, token) to the next
state, so the device detects the end of a completion in the step that samples it. The end of a statement is another
automaton over bytes, which knows SQLite's quotes and comments.
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

_BYTE = 256

STATEMENT_END = "\0;"
"""Instead of stop strings: the semicolon that ends a SQL statement; semicolons in quotes and comments do not count."""


class Stops(NamedTuple):
    """The automata of several sets of strings, stacked.

    table [A,V] int16 or int32: state after a token. is_complete [A] bool: a string is complete; these states are final.
    first: start state of each set's automaton. A is 1 without strings, else rounded up to one of few sizes (`bucket`).
    """

    table: np.ndarray
    is_complete: np.ndarray
    first: dict[tuple[str, ...], int]


StopAutomata = tuple[Stops, dict[tuple[str, ...], str]]
"""The automata of all sets of strings, and the reason for each invalid set."""


class Vocabulary:
    """A tokenizer with its control tokens, end tokens, and the bytes of all tokens."""

    def __init__(self, tokenizer: Tokenizer, declared_ends: Iterable[int] = ()) -> None:
        self.tokenizer, self.control = tokenizer, ControlTokens(tokenizer)
        self.end_tokens = end_tokens(tokenizer, declared_ends)
        # An automaton over 250,000 tokens takes twenty seconds to build, and every rollout needs the same ones.
        self.find_stops = lru_cache(maxsize=8)(self._find_stops)
        self.missing_ids = lru_cache(maxsize=2)(partial(missing_ids, tokenizer, ends=self.end_tokens))

    def encode_observation(self, text: str) -> list[int]:
        """Encode an environment's text; only a dialogue's tags become control tokens."""
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
    """Return the ids of a model's vocabulary without a token: padding rows, and gaps between ids.

    `ends` are end tokens, which are excluded even if the tokenizer lacks them.
    """
    has_token = np.zeros(vocab_size, bool)
    has_token[[token for token in (*tokenizer.get_vocab().values(), *ends) if token < vocab_size]] = True
    edges = np.flatnonzero(np.diff(has_token, prepend=True, append=True)).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each token id; empty for an id without a token."""
    vocabulary = tokenizer.get_vocab()
    pieces: list[bytes] = [b""] * (max(vocabulary.values()) + 1)
    kind = _decoder(tokenizer)
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


def _decoder(tokenizer: Tokenizer) -> str:
    """Return the kind of a tokenizer's decoder."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    described = decoder.__getstate__().decode() if decoder is not None else ""  # its JSON; the tokenizer's is megabytes
    if '"ByteLevel"' in described:
        return "byte-level"
    return "pieces" if '"ByteFallback"' in described or '"Metaspace"' in described else "other"


@lru_cache(maxsize=1)
def _byte_level_letters() -> dict[str, int]:
    """Return the byte of each letter in byte-level tokenizers; printable bytes map to themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(_BYTE) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(_BYTE + i): byte for i, byte in enumerate(others)}


def _from_byte_level(name: str) -> bytes:
    letters = _byte_level_letters()
    return bytes(letters[c] for c in name) if all(c in letters for c in name) else name.encode()


def _from_piece(name: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        return bytes([int(name[3:5], 16)])
    return name.replace("▁", " ").encode()


def _automaton(strings: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return transitions delta [A,256] and is_complete [A]; complete states are final."""
    delta, is_complete = [dict[int, int]()], [False]
    for string in strings:
        state = 0
        for byte in string:
            if byte not in delta[state]:
                delta[state][byte] = len(delta)
                delta.append({})
                is_complete.append(False)
            state = delta[state][byte]
        is_complete[state] = True
    transitions = np.zeros((len(delta), _BYTE), np.int16)
    failure_links = [0] * len(delta)
    queue = [0]
    for state in queue:
        transitions[state] = transitions[failure_links[state]] if state else 0
        is_complete[state] |= is_complete[failure_links[state]]
        for byte, child in delta[state].items():
            failure_links[child] = int(transitions[state, byte]) if state else 0
            transitions[state, byte] = child
            queue.append(child)
    done = np.array(is_complete)
    transitions[done] = np.flatnonzero(done)[:, None]
    return transitions, done


@lru_cache(maxsize=1)
def _statement_automaton() -> tuple[np.ndarray, np.ndarray]:
    """Return delta [A,256] and is_complete [A] for the end of a statement; state 0 precedes its first token.

    Quotes and comments are SQLite's: '', "", ``, [], -- to the end of a line, /* */.
    """
    names = [(base, within) for base in ("before", "in") for within in ("", "-", "/", "--", "/*", "/**")]
    names += [("in", quote) for quote in "'\"`["]
    number = {name: i for i, name in enumerate(names)}
    done = len(names)
    delta = np.full((done + 1, _BYTE), done, np.int16)
    for base in ("before", "in"):
        plain, line, block, star = (number[base, within] for within in ("", "--", "/*", "/**"))
        delta[plain] = number["in", ""]
        for byte in b" \t\n\f\r":
            delta[plain, byte] = plain
        delta[plain, ord(";")] = done if base == "in" else plain
        for mark in "-/":
            delta[plain, ord(mark)] = number[base, mark]
        for quote in "'\"`[":
            delta[plain, ord(quote)] = number["in", quote]
        delta[line] = line
        delta[line, ord("\n")] = plain
        delta[block] = delta[star] = block
        delta[block, ord("*")] = delta[star, ord("*")] = star
        delta[star, ord("/")] = plain
    for base in ("before", "in"):  # a - or / that begins no comment is a token
        for mark, second, comment in (("-", "-", "--"), ("/", "*", "/*")):
            state = number[base, mark]
            delta[state] = delta[number["in", ""]]
            delta[state, ord(second)] = number[base, comment]
    for quote, closing in zip("'\"`[", "'\"`]", strict=True):
        state = number["in", quote]
        delta[state] = state
        delta[state, ord(closing)] = number["in", ""]
    return delta, np.arange(done + 1) == done


def _token_transitions(delta: np.ndarray, pieces: Sequence[bytes]) -> np.ndarray:
    """Return the state after each token from each state, [A,V] int16."""
    lengths = np.array([len(piece) for piece in pieces])
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    letters = np.zeros((len(pieces), longest), np.uint8)
    letters[np.arange(longest) < lengths[order, None]] = np.frombuffer(b"".join(pieces[i] for i in order), np.uint8)
    state = np.repeat(np.arange(len(delta), dtype=np.int16)[:, None], len(pieces), axis=1)
    for position in range(longest):
        live = int(np.searchsorted(-lengths[order], -position, side="left"))
        state[:, :live] = delta[state[:, :live], letters[:live, position]]
    out = np.empty_like(state)
    out[:, order] = state
    return out


def make_stops(sets: Iterable[tuple[str, ...]], pieces: Sequence[bytes], vocab_size: int) -> StopAutomata:
    """Build the automata of all sets of strings; return them and the reason for each invalid set.

    A string is invalid if no sequence of tokens produces it. STATEMENT_END, the only string of its set, is never
    invalid.
    """
    tables, complete_flags = [np.zeros((1, vocab_size), np.int32)], [np.zeros(1, bool)]
    first: dict[tuple[str, ...], int] = {(): 0}
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
        width = min(vocab_size, len(pieces))
        table[:, :width] = _token_transitions(delta, pieces)[:, :width]
        tables.append(table.astype(np.int32) + offset)
        complete_flags.append(is_complete)
        first[strings] = offset
    if len(tables) > 1:  # pad to one of few sizes, because each size compiles a decode program; padding is unreachable
        num_states = sum(len(table) for table in tables)
        tables.append(np.zeros((bucket(num_states, 16) - num_states, vocab_size), np.int32))
        complete_flags.append(np.zeros(len(tables[-1]), bool))
    states = np.concatenate(tables)
    dtype = np.int16 if len(states) <= np.iinfo(np.int16).max else np.int32
    return Stops(states.astype(dtype), np.concatenate(complete_flags), first), invalid


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
