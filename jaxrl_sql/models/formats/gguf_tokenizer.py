"""The tokenizer of a GGUF file, rebuilt from its vocabulary without torch.

Two kinds are supported: byte-level BPE (which GGUF calls `gpt2`: Qwen, Llama 3) and SentencePiece BPE (`llama`: Gemma,
Llama 2). The merges of the latter are not in the file and follow from the vocabulary. transformers can read tokenizers
of GGUF files too, but only with torch installed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.models.formats.gguf_header import read_header
from jaxrl_sql.runtime.tokenizer_files import general_tokenizer
from jaxrl_sql.types import Fields, InputError

# Values of tokenizer.ggml.token_type.
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
# Parts of the regular expressions that split text: before and after the part for digits.
WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
OTHER = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's symbol for a space


class Split(NamedTuple):
    """Pre-tokenization of a byte-level BPE.

    pattern: regular expression of the pieces into which text is split
    composes: whether text is first normalized to NFC, which composes characters with their accents
    ignores_merges: whether a piece that is in the vocabulary becomes one token without applying merges
    """

    pattern: str
    composes: bool = False
    ignores_merges: bool = False


# By tokenizer.ggml.pre; numbers are split into single digits (qwen2) or groups of up to three (llama).
SPLITS = {"qwen2": Split(WORD + r"\p{N}" + OTHER, composes=True)} | dict.fromkeys(
    ("llama-bpe", "llama3", "llama-v3"), Split(WORD + r"\p{N}{1,3}" + OTHER, ignores_merges=True)
)
# Key of a complete tokenizer.json (ggml's docs/gguf.md), for pre-tokenizers that llama.cpp does not have.
TOKENIZER_JSON = "tokenizer.huggingface.json"
TEMPLATE = "tokenizer.chat_template"
# Key of the tokenizer's own template. It is used in files whose TEMPLATE is a template for other programs, which also
# begins the answer as our prompts do.
OWN_TEMPLATE = "jaxrl_sql.chat_template"
# transformers' name of each special token -> the name in GGUF's keys.
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def gguf_tokenizer(path: Path) -> Any:
    """Build the tokenizer of a GGUF file; raises InputError if the file has no tokenizer or one of an unknown kind."""
    return tokenizer_of(read_header(path).metadata, path)


def tokenizer_of(metadata: Fields, path: Path) -> Any:
    """Build the tokenizer of a file's metadata; `path` is for messages. Raises InputError as `gguf_tokenizer` does."""
    from tokenizers import AddedToken, Tokenizer  # noqa: PLC0415 (slow to import, and only tokenizers need it)

    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items() if "tokenizer." in key}
    if not fields.get("tokens"):
        raise InputError(f"tokenizer: {path} has no tokenizer")
    kind = fields.get("model")
    types = fields.get("token_type") or [NORMAL] * len(fields["tokens"])
    ids = {name: fields.get(f"{key}_token_id") for name, key in SPECIAL.items()}
    # Converters give these names to ids without a token. Such ids are left out of the vocabulary.
    padding = {f"[PAD{i}]" for i, t in enumerate(types) if t == UNUSED and i not in ids.values()}
    padding &= {*fields["tokens"]}
    raw: Any
    if metadata.get(TOKENIZER_JSON):
        raw = Tokenizer.from_str(metadata[TOKENIZER_JSON])
    elif kind == "gpt2":
        raw = _byte_level(path, fields, padding)
    elif kind == "llama":
        raw = _sentence_piece(fields, types, padding, by_id=metadata.get("general.architecture") == "gemma3")
    else:
        raise InputError(f"tokenizer: {path} has one of kind {kind!r}; valid are gpt2, llama")
    if not metadata.get(TOKENIZER_JSON):  # a tokenizer.json lists its special tokens itself
        typed_tokens = list(zip(fields["tokens"], types, strict=True))
        raw.add_special_tokens(
            [AddedToken(text, normalized=False, special=True) for text, t in typed_tokens if t == CONTROL]
        )
        user_defined = [text for text, t in typed_tokens if t == USER_DEFINED and raw.token_to_id(text) is not None]
        raw.add_tokens([AddedToken(text, normalized=False, special=False) for text in user_defined])
    return general_tokenizer(
        raw,
        **{name: fields["tokens"][i] for name, i in ids.items() if i is not None},
        add_bos_token=fields.get("add_bos_token", _adds_bos_by_default(fields)),
        chat_template=metadata.get(OWN_TEMPLATE) or metadata.get(TEMPLATE),
    )


def _adds_bos_by_default(fields: Fields) -> bool:
    """Return whether llama.cpp adds the BOS token by default, for files without that setting."""
    return fields["model"] == "llama" or (fields.get("pre") in SPLITS and SPLITS[fields["pre"]].ignores_merges)


def _byte_level(path: Path, fields: Fields, padding: Collection[str]) -> Any:
    """Build a byte-level BPE from the metadata below `tokenizer.ggml.`; `padding`: texts of ids without a token."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers  # noqa: PLC0415 (as above)

    if (name := fields.get("pre")) not in SPLITS:
        raise InputError(f"tokenizer: {path} splits text as {name!r}; valid are {', '.join(sorted(SPLITS))}")
    split = SPLITS[name]
    vocab = {text: i for i, text in enumerate(fields["tokens"]) if text not in padding}
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("merges", ())]
    raw = Tokenizer(models.BPE(vocab, merges, ignore_merges=split.ignores_merges))
    if split.composes:
        raw.normalizer = normalizers.NFC()
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    return raw


def _sentence_piece(fields: Fields, types: Sequence[int], padding: Collection[str], *, by_id: bool) -> Any:
    """Build a SentencePiece BPE from the metadata below `tokenizer.ggml.`, whose tokens are called pieces.

    types: the type of each piece; padding: texts of ids without a token; by_id: pieces with lower ids are merged first;
    otherwise those with higher scores.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers  # noqa: PLC0415 (as above)

    # In user-defined pieces the converter writes a space instead of SPACE, but merges need SPACE.
    texts = [
        text.replace(" ", SPACE) if t == USER_DEFINED else text for text, t in zip(fields["tokens"], types, strict=True)
    ]
    vocab = {text: i for i, text in enumerate(texts) if text not in padding}
    mergeable = [text for text, t in zip(texts, types, strict=True) if t in (NORMAL, USER_DEFINED)]
    rank = vocab if by_id else {text: -fields["scores"][i] for text, i in vocab.items()}
    unknown = fields.get("unknown_token_id")
    raw = Tokenizer(
        models.BPE(
            vocab,
            _merges(mergeable, vocab, rank),
            unk_token=None if unknown is None else texts[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    normalizer_steps: list[Any] = [normalizers.Replace(" ", SPACE)]
    decoder_steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.get("add_space_prefix", True):
        normalizer_steps.insert(0, normalizers.Prepend(SPACE))
        decoder_steps.append(decoders.Strip(" ", 1, 0))
    raw.normalizer = normalizers.Sequence(normalizer_steps)
    raw.decoder = decoders.Sequence(decoder_steps)
    return raw


def _merges(pieces: Sequence[str], vocab: Mapping[str, int], rank: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the merges (left part, right part) that produce the pieces.

    Pieces with the lowest rank come first; of one piece, the merge with the longest left part.
    """
    # To sort quickly, each of the half a million merges is a tuple of numbers: the rank, the negative lengths of both
    # parts, and the index of the piece.
    merges = [
        (rank[piece], -i, i - len(piece), index)
        for index, piece in enumerate(pieces)
        for i in range(1, len(piece))
        if piece[:i] in vocab and piece[i:] in vocab
    ]
    merges.sort()
    return [(pieces[index][:-negative], pieces[index][-negative:]) for _, negative, _, index in merges]
