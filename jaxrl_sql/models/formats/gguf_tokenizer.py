"""The tokenizer of a GGUF file, rebuilt from its vocabulary without torch.

Two kinds are supported: byte-level BPE (`gpt2`: Qwen, Llama 3) and SentencePiece BPE (`llama`: Gemma, Llama 2), whose
merges are not in the file and follow from the vocabulary. transformers offers this only with torch installed.
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
WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
OTHER = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's symbol for a space


class Split(NamedTuple):
    """Pre-tokenization; composes: normalize to NFC first; ignores_merges: keep words that are in the vocabulary."""

    pattern: str
    composes: bool = False
    ignores_merges: bool = False


# By tokenizer.ggml.pre; numbers are split into digits (qwen2) or groups of three (llama).
SPLITS = {"qwen2": Split(WORD + r"\p{N}" + OTHER, composes=True)} | dict.fromkeys(
    ("llama-bpe", "llama3", "llama-v3"), Split(WORD + r"\p{N}{1,3}" + OTHER, ignores_merges=True)
)
# Key of a whole tokenizer.json (ggml's docs/gguf.md), for pre-tokenizers that llama.cpp does not have.
WHOLE = "tokenizer.huggingface.json"
TEMPLATE = "tokenizer.chat_template"
# Key of the tokenizer's own template in files whose chat template includes the prefill of the answer.
OWN_TEMPLATE = "jaxrl_sql.chat_template"
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def gguf_tokenizer(path: Path) -> Any:
    """Build the tokenizer of a GGUF file; raises InputError if it has none or one of an unknown kind."""
    return tokenizer_of(read_header(path).metadata, path)


def tokenizer_of(metadata: Fields, path: Path) -> Any:
    """Build the tokenizer of a file's metadata; raises InputError as `gguf_tokenizer` does."""
    from tokenizers import AddedToken, Tokenizer  # noqa: PLC0415 (slow to import, and only tokenizers need it)

    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items() if "tokenizer." in key}
    if not fields.get("tokens"):
        raise InputError(f"tokenizer: {path} has no tokenizer")
    kind = fields.get("model")
    types = fields.get("token_type") or [NORMAL] * len(fields["tokens"])
    ids = {name: fields.get(f"{key}_token_id") for name, key in SPECIAL.items()}
    # Converters give unused rows these names.
    padding = {f"[PAD{i}]" for i, t in enumerate(types) if t == UNUSED and i not in ids.values()}
    padding &= {*fields["tokens"]}
    raw: Any
    if metadata.get(WHOLE):
        raw = Tokenizer.from_str(metadata[WHOLE])
    elif kind == "gpt2":
        raw = _byte_level(path, fields, padding)
    elif kind == "llama":
        raw = _sentence_piece(fields, types, padding, by_id=metadata.get("general.architecture") == "gemma3")
    else:
        raise InputError(f"tokenizer: {path} has one of kind {kind!r}; valid are gpt2, llama")
    if not metadata.get(WHOLE):  # which has the roles of tokens itself
        typed_tokens = list(zip(fields["tokens"], types, strict=True))
        raw.add_special_tokens(
            [AddedToken(text, normalized=False, special=True) for text, t in typed_tokens if t == CONTROL]
        )
        user_defined = [text for text, t in typed_tokens if t == USER_DEFINED and raw.token_to_id(text) is not None]
        raw.add_tokens([AddedToken(text, normalized=False, special=False) for text in user_defined])
    return general_tokenizer(
        raw,
        **{name: fields["tokens"][i] for name, i in ids.items() if i is not None},
        add_bos_token=fields.get("add_bos_token", _begins_by_default(fields)),
        chat_template=metadata.get(OWN_TEMPLATE) or metadata.get(TEMPLATE),
    )


def _begins_by_default(fields: Fields) -> bool:
    """Return whether llama.cpp adds the BOS token by default, for files without that setting."""
    return fields["model"] == "llama" or (fields.get("pre") in SPLITS and SPLITS[fields["pre"]].ignores_merges)


def _byte_level(path: Path, fields: Fields, padding: Collection[str]) -> Any:
    """Build a byte-level BPE."""
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
    """Build a SentencePiece BPE; by_id: a piece's rank is its id and not its score."""
    from tokenizers import Tokenizer, decoders, models, normalizers  # noqa: PLC0415 (as above)

    # The converter writes spaces for SPACE in user-defined pieces, but merges need SPACE.
    texts = [
        text.replace(" ", SPACE) if t == USER_DEFINED else text for text, t in zip(fields["tokens"], types, strict=True)
    ]
    vocab = {text: i for i, text in enumerate(texts) if text not in padding}
    merged = [text for text, t in zip(texts, types, strict=True) if t in (NORMAL, USER_DEFINED)]
    rank = vocab if by_id else {text: -fields["scores"][i] for text, i in vocab.items()}
    unknown = fields.get("unknown_token_id")
    raw = Tokenizer(
        models.BPE(
            vocab,
            _merges(merged, vocab, rank),
            unk_token=None if unknown is None else texts[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces: list[Any] = [normalizers.Replace(" ", SPACE)]
    back: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.get("add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(SPACE))
        back.append(decoders.Strip(" ", 1, 0))
    raw.normalizer = normalizers.Sequence(spaces)
    raw.decoder = decoders.Sequence(back)
    return raw


def _merges(pieces: Sequence[str], vocab: Mapping[str, int], rank: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the merges of all pieces, best rank first and for one piece the longest left part first."""
    # Sorts numbers instead of texts, because a quarter of a million pieces have half a million pairs.
    pairs = [
        (rank[piece], -i, i - len(piece), number)
        for number, piece in enumerate(pieces)
        for i in range(1, len(piece))
        if piece[:i] in vocab and piece[i:] in vocab
    ]
    pairs.sort()
    return [(pieces[number][:-left], pieces[number][-left:]) for _, left, _, number in pairs]
