"""Tokenizers from GGUF files: ids computed by hand, whole tokens, and saving to a folder."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, load_tokenizer
from jaxrl_sql.types import InputError

TINY = ModelConfig("qwen3", 40, 32, 1, 2, 2, 16, 64, Rope(1e6), Norms(), True, True, False, 64)
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
BYTES = sorted(ByteLevel.alphabet())
MERGED = ["SE", "LE", "SELE", "12"]
TOKENIZER_JSON = ["<|im_end|>", "<think>"]
# SentencePiece order: longer pieces are learned later and have lower scores.
PIECES = ["<pad>", "<eos>", "<bos>", "<unk>", "  ", *(f"<0x{i:02X}>" for i in range(256))]
LETTERS = [*"▁abcdef", "ab", "▁ab", "cd", "abcd"]


def byte_level(**changes: Any) -> dict[str, Any]:
    return {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": BYTES + MERGED + TOKENIZER_JSON,
        "token_type": [NORMAL] * (len(BYTES) + len(MERGED)) + [CONTROL, USER_DEFINED],
        "merges": ["S E", "L E", "SE LE", "1 2"],
        "eos_token_id": len(BYTES) + len(MERGED),
    } | changes


def sentence_piece(**changes: Any) -> dict[str, Any]:
    return {
        "model": "llama",
        "tokens": PIECES + LETTERS,
        "token_type": [CONTROL] * 4 + [USER_DEFINED] + [BYTE] * 256 + [NORMAL] * len(LETTERS),
        "scores": [0.0] * len(PIECES) + [-float(i) for i in range(len(LETTERS))],
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
        "add_space_prefix": False,
    } | changes


@pytest.fixture
def tokenizer_of(tmp_path: Path, gguf_files: ModuleType) -> Any:
    def make(arguments: dict[str, Any]) -> Any:
        changes = {f"tokenizer__ggml__{key}": value for key, value in arguments.items()}
        gguf_files.write_gguf(tmp_path / "m.gguf", TINY, init_params(TINY, jax.random.key(0)), **changes)
        return load_tokenizer(tmp_path / "m.gguf")

    return make


def test_byte_merges_follow_the_order_of_the_file(tokenizer_of: Any) -> None:
    tokenizer = tokenizer_of(byte_level())
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("SELECT 12<think>")) == [
        *("SELE", "C", "T", "Ġ"),
        # Qwen splits digits one by one, so this merge never applies.
        *("1", "2", "<think>"),
    ]
    assert tokenizer.eos_token == "<|im_end|>"  # noqa: S105
    assert tokenizer.encode("a<|im_end|>")[-1] == tokenizer.eos_token_id == len(BYTES) + len(MERGED)
    for text in ("Zürich ≥ 5\n\n", " SELECT  it's "):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_llama_3_splits_digits_by_three_and_adds_a_begin_token(tokenizer_of: Any) -> None:
    tokenizer = tokenizer_of(byte_level(pre="llama-bpe", bos_token_id=len(BYTES) + len(MERGED)))
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("12")) == ["<|im_end|>", "12"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("12", add_special_tokens=False)) == ["12"]


def test_sentence_pieces_are_joined_by_score_and_fall_back_to_bytes(tokenizer_of: Any) -> None:
    tokenizer = tokenizer_of(sentence_piece())
    tokens = tokenizer.convert_ids_to_tokens(tokenizer.encode("abcd ab  é"))
    assert tokens == ["<bos>", "abcd", "▁ab", "▁▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("abcd ab  é", add_special_tokens=False)) == "abcd ab  é"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (2, 1, 3)
    with_space = tokenizer_of(sentence_piece(add_space_prefix=True, add_bos_token=False))
    assert with_space.convert_ids_to_tokens(with_space.encode("abcd")) == ["▁ab", "cd"]
    assert with_space.decode(with_space.encode("abcd")) == "abcd"


@pytest.mark.parametrize("metadata", [byte_level(), sentence_piece()], ids=["bytes", "sentence-pieces"])
def test_tokenizer_is_saved_to_a_folder(tmp_path: Path, tokenizer_of: Any, metadata: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(metadata)
    tokenizer.save_pretrained(tmp_path / "out")
    again = load_tokenizer(tmp_path / "out")
    for text in ("abcd ab  é SELECT 12", "<think>x<eos><|im_end|>"):
        assert again.encode(text) == tokenizer.encode(text)
        assert again.decode(again.encode(text)) == tokenizer.decode(tokenizer.encode(text))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "has no tokenizer"),
        (byte_level(model="bert"), "of kind 'bert'; valid are gpt2, llama"),
        (byte_level(pre="tekken"), "splits text as 'tekken'; valid are llama-bpe, llama-v3, llama3, qwen2"),
    ],
)
def test_unknown_tokenizer_kind_is_rejected_in_one_line(
    tokenizer_of: Any, metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        tokenizer_of(metadata)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("metadata", [byte_level(), sentence_piece()], ids=["bytes", "sentence-pieces"])
def test_padding_rows_of_the_converter_are_not_tokens(tokenizer_of: Any, metadata: dict[str, Any]) -> None:
    tokens, types, count = metadata["tokens"], metadata["token_type"], len(metadata["tokens"])
    padded = metadata | {
        "tokens": [*tokens, f"[PAD{count}]", "[PAD1]", f"[PAD{count + 2}]"],
        "token_type": [*types, UNUSED, UNUSED, UNUSED],
    }
    if "scores" in metadata:
        padded["scores"] = [*metadata["scores"], -1e4, -1e4, -1e4]
    known, plain = tokenizer_of(padded).get_vocab(), tokenizer_of(metadata).get_vocab()
    assert known == plain | {"[PAD1]": count + 1}
