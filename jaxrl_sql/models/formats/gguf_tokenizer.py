"""The tokenizer that a GGUF file carries, rebuilt from its vocabulary without torch.

Two kinds are known: byte-level merges (`gpt2`: Qwen, Llama 3) and SentencePiece's (`llama`: Gemma, Llama 2), whose file
has no merges: they follow from the vocabulary. transformers can do the same, but only where torch is installed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.models.formats.gguf_header import read_header
from jaxrl_sql.runtime.tokenizer_files import general_tokenizer
from jaxrl_sql.types import Fields, InputError

# Of tokenizer.ggml.token_type.
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
OTHER = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what SentencePiece writes for a space


class Split(NamedTuple):
    """How text is cut before merging; `composes`: brought to NFC first; `ignores_merges`: whole words go unmerged."""

    pattern: str
    composes: bool = False
    ignores_merges: bool = False


# By tokenizer.ggml.pre; numbers are cut into digits, and into groups of three.
SPLITS = {"qwen2": Split(WORD + r"\p{N}" + OTHER, composes=True)} | dict.fromkeys(
    ("llama-bpe", "llama3", "llama-v3"), Split(WORD + r"\p{N}{1,3}" + OTHER, ignores_merges=True)
)
# The whole of a tokenizer as its own file, by ggml's docs/gguf.md: for a way of cutting text that llama.cpp lacks.
WHOLE = "tokenizer.huggingface.json"
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def gguf_tokenizer(path: Path) -> Any:
    """Build the tokenizer of a GGUF file; raises InputError when it carries none, or one of a kind that is unknown."""
    return tokenizer_of(read_header(path).metadata, path)


def tokenizer_of(metadata: Fields, path: Path) -> Any:
    """Build the tokenizer that the metadata of a file says; raises InputError as `gguf_tokenizer` does."""
    from tokenizers import AddedToken, Tokenizer  # noqa: PLC0415 (slow to import, and only tokenizers need it)

    given = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items() if "tokenizer." in key}
    if not given.get("tokens"):
        raise InputError(f"tokenizer: {path} carries none")
    kind = given.get("model")
    types = given.get("token_type") or [NORMAL] * len(given["tokens"])
    ids = {name: given.get(f"{key}_token_id") for name, key in SPECIAL.items()}
    # Converters name the rows that a tokenizer leaves free so.
    padding = {f"[PAD{i}]" for i, t in enumerate(types) if t == UNUSED and i not in ids.values()}
    padding &= {*given["tokens"]}
    raw: Any
    if metadata.get(WHOLE):
        raw = Tokenizer.from_str(metadata[WHOLE])
    elif kind == "gpt2":
        raw = _byte_level(path, given, padding)
    elif kind == "llama":
        raw = _sentence_piece(given, types, padding, by_id=metadata.get("general.architecture") == "gemma3")
    else:
        raise InputError(f"tokenizer: {path} has one of kind {kind!r}; valid are gpt2, llama")
    if not metadata.get(WHOLE):  # which says of each token how it is found in a text
        named = list(zip(given["tokens"], types, strict=True))
        raw.add_special_tokens([AddedToken(text, normalized=False, special=True) for text, t in named if t == CONTROL])
        whole = [text for text, t in named if t == USER_DEFINED and raw.token_to_id(text) is not None]
        raw.add_tokens([AddedToken(text, normalized=False, special=False) for text in whole])
    return general_tokenizer(
        raw,
        **{name: given["tokens"][i] for name, i in ids.items() if i is not None},
        add_bos_token=given.get("add_bos_token", _begins_by_default(given)),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _begins_by_default(given: Fields) -> bool:
    """Return whether llama.cpp puts the first token before a text where the file does not say."""
    return given["model"] == "llama" or (given.get("pre") in SPLITS and SPLITS[given["pre"]].ignores_merges)


def _byte_level(path: Path, given: Fields, padding: Collection[str]) -> Any:
    """Build merges over bytes."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers  # noqa: PLC0415 (as above)

    if (name := given.get("pre")) not in SPLITS:
        raise InputError(f"tokenizer: {path} splits text as {name!r}; valid are {', '.join(sorted(SPLITS))}")
    split = SPLITS[name]
    vocab = {text: i for i, text in enumerate(given["tokens"]) if text not in padding}
    merges = [tuple(merge.split(" ", 1)) for merge in given.get("merges", ())]
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


def _sentence_piece(given: Fields, types: Sequence[int], padding: Collection[str], *, by_id: bool) -> Any:
    """Build SentencePiece's merges; by_id: a piece's rank is its place in the vocabulary and not its score."""
    from tokenizers import Tokenizer, decoders, models, normalizers  # noqa: PLC0415 (as above)

    # The converter wrote spaces for SPACE in pieces that match as they stand; merging makes them of SPACE all the same.
    texts = [
        text.replace(" ", SPACE) if t == USER_DEFINED else text for text, t in zip(given["tokens"], types, strict=True)
    ]
    vocab = {text: i for i, text in enumerate(texts) if text not in padding}
    merged = [text for text, t in zip(texts, types, strict=True) if t in (NORMAL, USER_DEFINED)]
    rank = vocab if by_id else {text: -given["scores"][i] for text, i in vocab.items()}
    unknown = given.get("unknown_token_id")
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
    if given.get("add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(SPACE))
        back.append(decoders.Strip(" ", 1, 0))
    raw.normalizer = normalizers.Sequence(spaces)
    raw.decoder = decoders.Sequence(back)
    return raw


def _merges(pieces: Sequence[str], vocab: Mapping[str, int], rank: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the pairs that make up pieces, best rank first and of one piece the longest left part first."""
    # Numbers alone are compared: a quarter of a million pieces have half a million pairs.
    found = [
        (rank[piece], -i, i - len(piece), number)
        for number, piece in enumerate(pieces)
        for i in range(1, len(piece))
        if piece[:i] in vocab and piece[i:] in vocab
    ]
    found.sort()
    return [(pieces[number][:-left], pieces[number][-left:]) for _, left, _, number in found]
