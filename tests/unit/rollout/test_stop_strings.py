"""Stop strings end a completion in the step that completes them, at any token boundary."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from jaxrl_sql.batch import bucket
from jaxrl_sql.rollout.stop_strings import (
    STATEMENT_END,
    Stops,
    Vocabulary,
    cut_after_stop,
    end_tokens,
    make_stops,
    missing_ids,
    token_bytes,
)
from jaxrl_sql.types import InputError

PIECES = [b"", b"<", b"/", b"s", b"sql", b">", b"</", b"ql>", b"a</s", b"q", b"l", b">>b", b"<<", b"</sql>x"]


def first_end(stops: Stops, strings: tuple[str, ...], tokens: list[int]) -> int | None:
    state = stops.start_states[strings]
    for at, token in enumerate(tokens):
        state = stops.table[state, token]
        if stops.is_complete[state]:
            return at
    return None


@pytest.mark.parametrize("n_examples", [100, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_first_token_that_completes_a_string_ends_the_answer(n_examples: int) -> None:

    @settings(deadline=None, max_examples=n_examples)
    @given(
        st.lists(st.integers(0, len(PIECES) - 1), max_size=12),
        st.sampled_from([("</sql>",), ("</sql>", "<<"), ("ss", "sql", "a</"), ("</s", "</sql>")]),
    )
    def holds_for(tokens: list[int], strings: tuple[str, ...]) -> None:
        stops, invalid = make_stops([("q",), strings], PIECES, 20)
        assert not invalid
        expected = None
        for at in range(len(tokens)):
            written = b"".join(PIECES[t] for t in tokens[: at + 1])
            if any(s.encode() in written for s in strings):
                expected = at
                break
        assert first_end(stops, strings, tokens) == expected

    holds_for()


def test_empty_list_of_stop_strings_ends_nothing() -> None:
    stops, _ = make_stops([()], PIECES, 14)
    assert first_end(stops, (), list(range(14))) is None


@pytest.mark.parametrize("length", [1, 14, 15, 40])
def test_states_are_rounded_up_with_unreachable_rows(length: int) -> None:
    stops, _ = make_stops([("s" * length,)], PIECES, 20)
    have = 1 + 1 + length  # no strings, and one state per byte
    assert len(stops.table) == len(stops.is_complete) == bucket(have, 16)
    assert int(stops.table[:have].max()) == have - 1
    assert not stops.is_complete[have:].any()


def test_string_without_a_token_sequence_is_invalid() -> None:
    _, invalid = make_stops([("</sql>",), ("</s", "zz")], PIECES, 14)
    assert list(invalid) == [("</s", "zz")]
    assert "'zz'" in invalid["</s", "zz"]


@pytest.mark.parametrize("kind", ["byte-level", "pieces"])
def test_tokens_of_real_tokenizers_spell_their_encoded_text(kind: str) -> None:
    texts = ["SELECT naïve FROM t WHERE x > 1 </sql>", "naïve ünïcode </sql> and more"]
    inner = Tokenizer(models.BPE(byte_fallback=True) if kind == "pieces" else models.BPE())
    if kind == "byte-level":
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        alphabet = []
    special = ["<eos>", *[f"<0x{i:02X}>" for i in range(256) if kind == "pieces"]]
    inner.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=700, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")  # noqa: S106 (a token's name)
    pieces = token_bytes(tokenizer)
    for text in texts:
        ids = tokenizer.encode(text)
        assert b"".join(pieces[i] for i in ids).decode() == text
        stops, invalid = make_stops([("</sql>",)], pieces, len(pieces))
        assert not invalid
        end = first_end(stops, ("</sql>",), ids)
        assert end is not None
        assert cut_after_stop(tokenizer.decode(ids[: end + 1]), ("</sql>",)).endswith("</sql>")
    assert end_tokens(tokenizer) == [tokenizer.eos_token_id]


def test_answer_is_truncated_after_the_first_stop_string() -> None:
    assert cut_after_stop("a</sql>b</answer>", ("</answer>", "</sql>")) == "a</sql>"
    assert cut_after_stop("plain", ("</sql>",)) == "plain"


def test_tokenizer_without_an_end_token_is_refused() -> None:
    class Endless:
        eos_token = None

        def get_vocab(self) -> dict[str, int]:
            return {"a": 0}

    refusal = r"no end token: set eos_token in tokenizer_config\.json, or data\.tokenizer\.eos_token$"
    with pytest.raises(InputError, match=refusal):
        end_tokens(Endless())
    assert end_tokens(Endless(), [7, 3]) == [3, 7]


def test_large_vocabulary_uses_one_table_of_small_integers() -> None:
    pieces = [f"t{i}".encode() for i in range(50_000)] + [bytes([b]) for b in range(256)]
    stops, _ = make_stops([("</sql>", "</solution>", "</answer>")], pieces, len(pieces))
    assert stops.table.dtype == np.int16
    assert stops.table.shape[0] < 32


BYTES = [bytes([byte]) for byte in range(256)]


def statement_in(text: str) -> str:
    """Return the text at which a completion of bytes ends, and check that its text is truncated there."""
    stops, invalid = make_stops([(STATEMENT_END,)], BYTES, len(BYTES))
    assert not invalid
    written = text.encode()
    end = first_end(stops, (STATEMENT_END,), [*written])
    cut = cut_after_stop(text, (STATEMENT_END,))
    assert cut == (text if end is None else written[: end + 1].decode())
    return cut


@pytest.mark.parametrize("n_examples", [100, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_statement_ends_at_the_same_semicolon_as_in_sqlite(n_examples: int) -> None:

    @settings(deadline=None, max_examples=n_examples)
    @given(st.text("a'\"`[]-/*; \né", max_size=16))
    def holds_for(more: str) -> None:
        text = f"a{more}"  # SQLite also calls a semicolon alone complete
        prefixes = (text[: at + 1] for at, character in enumerate(text) if character == ";")
        expected = next((prefix for prefix in prefixes if sqlite3.complete_statement(prefix)), text)
        assert statement_in(text) == expected

    holds_for()


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        (" SELECT 1;\n\nQ: Which?", " SELECT 1;"),
        (" SELECT ';' FROM t; x", " SELECT ';' FROM t;"),
        (";\n-- ;\n/* ; */ SELECT 1; x", ";\n-- ;\n/* ; */ SELECT 1;"),  # empty statements do not count
        ("SELECT a\n\nFROM t", "SELECT a\n\nFROM t"),
        ("- ;", "- ;"),
    ],
)
def test_statement_is_complete(text: str, cut: str) -> None:
    assert statement_in(text) == cut


def test_vocabulary_without_a_semicolon_is_accepted() -> None:
    stops, invalid = make_stops([(STATEMENT_END,)], PIECES, 20)
    assert not invalid
    assert first_end(stops, (STATEMENT_END,), list(range(14))) is None


def test_ids_without_a_token_are_ranges() -> None:
    class Some:
        def __init__(self, *ids: int) -> None:
            self.ids = ids

        def get_vocab(self) -> dict[str, int]:
            return {str(i): i for i in self.ids}

    assert missing_ids(Some(0, 1, 2), 3) == ()
    assert missing_ids(Some(0, 1, 2, 9), 3) == ()  # a token for pictures, after the last row
    assert missing_ids(Some(0, 1, 2), 5) == ((3, 5),)
    assert missing_ids(Some(1, 4, 5), 8) == ((0, 1), (2, 4), (6, 8))
    assert missing_ids(Some(1, 4, 5), 8, (7, 2, 9)) == ((0, 1), (3, 4), (6, 7))


def test_models_declared_end_token_is_not_missing() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0, "b": 1}, [])), eos_token="b")  # noqa: S106
    vocabulary = Vocabulary(tokenizer, (4, 9))
    assert vocabulary.end_tokens == [1, 4, 9]
    assert vocabulary.missing_ids(6) == ((2, 4), (5, 6))
