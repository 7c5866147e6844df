"""Small tokenizers of several kinds, and folders that name a tokenizer class for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = ("SELECT name FROM animal WHERE age >= 4;\n  -- 2014, café", " a", "a <|im_end|>  b", "", "<x>  a <x>", "<s>a")
BEGIN, END, PAD, OWN = "<s>", "<|im_end|>", "<pad>", "<image>"
CUT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LETTERS = sorted({*"SELECT name FROM animal WHERE age >= 4;\n-2014,café<x>b|im_ds'!.,"} - {" "})


def begins(core: Tokenizer) -> Tokenizer:
    """Put the begin token before each text."""
    core.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    return core


def byte_level(*, prefix: bool = False, is_alone: bool = True) -> Tokenizer:
    """Return a byte-level tokenizer, whose pre-tokenizer is single or part of a sequence."""
    core = Tokenizer(models.BPE())
    core.decoder = decoders.ByteLevel()
    if is_alone:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    else:
        split = pre_tokenizers.Split(Regex(CUT), behavior="isolated")
        core.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(prefix, use_regex=False)])
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[BEGIN, END, PAD],
        show_progress=False,
    )
    core.train_from_iterator(["SELECT name FROM animal WHERE age > 3"] * 9, trainer)
    core.add_tokens([AddedToken("<x>", lstrip=True, rstrip=True, normalized=False), AddedToken("ALL", normalized=True)])
    return core


def pieces() -> Tokenizer:
    """Return a SentencePiece-like tokenizer, which puts a space before a text."""
    vocabulary = {text: i for i, text in enumerate([BEGIN, END, PAD, "<unk>", "▁", *LETTERS, "▁a"])}
    core = Tokenizer(models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>", fuse_unk=True))  # noqa: S106
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    core.add_special_tokens([AddedToken(name, normalized=False) for name in (BEGIN, END, PAD, "<unk>")])
    return core


def metaspace(scheme: str) -> Tokenizer:
    """Return a piece tokenizer whose pre-tokenizer puts a space before the first piece, each piece, or none."""
    core = pieces()
    core.normalizer = None
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    core.decoder = decoders.Metaspace(prepend_scheme=scheme, split=False)
    return core


def unigram() -> Tokenizer:
    """Return a tokenizer whose model would merge a control token's name into one piece."""
    scores = [(BEGIN, 0.0), (END, 0.0), ("<unk>", 0.0), ("▁", -2.0), *((letter, -3.0) for letter in LETTERS)]
    core = Tokenizer(models.Unigram(scores, unk_id=2))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    core.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    core.add_special_tokens([AddedToken(name, normalized=False) for name in (BEGIN, END, "<unk>")])
    return core


def whole_words() -> Tokenizer:
    """Return a tokenizer of words that decodes with spaces between words."""
    vocabulary = [END, "?", *"! = ' ' || name , .".split()]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(dict.fromkeys(vocabulary))}, unk_token="?"))  # noqa: S106
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens([END])
    return core


CORES: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "byte-level, a space before": lambda: byte_level(prefix=True),
    "byte-level, in a sequence": lambda: byte_level(is_alone=False),
    "byte-level, begun": lambda: begins(byte_level(is_alone=False)),
    "pieces": pieces,
    "pieces, begun": lambda: begins(pieces()),
}

FURTHER: dict[str, Callable[[], Tokenizer]] = {
    "pieces, a space before the first": lambda: metaspace("first"),
    "pieces, a space before each": lambda: metaspace("always"),
    "pieces, no space before": lambda: metaspace("never"),
    "unigram": unigram,
    "whole words": whole_words,
}


def write(folder: Path, core: Tokenizer, tokenizer_class: str | None = None, family: str = "", **fields: Any) -> Path:
    """Write a tokenizer's folder."""
    folder.mkdir(exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    class_field = {"tokenizer_class": tokenizer_class} if tokenizer_class else {}
    (folder / "tokenizer_config.json").write_text(json.dumps({**class_field, "eos_token": END, **fields}))
    if family:
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return folder
