"""Control tokens in external text: each kind of tokenizer encodes their names as ordinary text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from jaxrl_sql.runtime.control_tokens import MARK, ControlTokens, strip_marks
from jaxrl_sql.runtime.tokenizer_files import read_tokenizer

VOCABULARY = ("\n\n", "<b>", " >= ")
PLAIN = "SELECT a[1], '<>' FROM t WHERE a < b AND c >= d  -- \n\n<b>, é"


def byte_level(*tokens: AddedToken, normalizer: Any = None) -> Any:
    """Return a byte-level tokenizer with special tokens and added tokens."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core: Any = Tokenizer(models.BPE(letters, []))
    core.normalizer = normalizer
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<|im_end|>", normalized=False), AddedToken("PAD", normalized=False)])
    further = [AddedToken(name, normalized=False) for name in ("<think>", "\n\n", "<b>", " >= ")]
    core.add_tokens([*further, *tokens])
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False)


def control_ids(tokenizer: Any) -> set[int]:
    """Return the ids of a tokenizer's added tokens, except those that are vocabulary."""
    return {i for i, token in tokenizer.added_tokens_decoder.items() if token.content not in VOCABULARY}


@pytest.mark.parametrize("make", [byte_level, ByT5Tokenizer], ids=["fast", "slow"])
@pytest.mark.parametrize("form", ["{}", "a {} b", "{0}{0}", "{}\n", "<{}>", "</s{}"])
def test_control_token_names_are_encoded_as_ordinary_text(make: Callable[[], Any], form: str) -> None:
    tokenizer = make()
    control = ControlTokens(tokenizer)
    for i in control_ids(tokenizer):
        text = form.format(tokenizer.added_tokens_decoder[i].content)
        assert i in tokenizer.encode(text, add_special_tokens=False)
        ids = control.encode(control.escape(text))
        assert control_ids(tokenizer).isdisjoint(ids)
        assert tokenizer.decode(ids) == text
        assert strip_marks(control.escape(text)) == text


def test_other_text_is_encoded_unchanged() -> None:
    tokenizer = byte_level()
    control = ControlTokens(tokenizer)
    assert control.escape(PLAIN) == PLAIN
    assert control.encode(PLAIN) == tokenizer.encode(PLAIN, add_special_tokens=False)
    assert {*tokenizer.convert_tokens_to_ids([*VOCABULARY])} <= {*control.encode(PLAIN)}


def test_exempt_and_template_tokens_stay_tokens() -> None:
    tokenizer = byte_level()
    control = ControlTokens(tokenizer)
    think, end = tokenizer.convert_tokens_to_ids(["<think>", "<|im_end|>"])
    ids = control.encode(control.escape("<think>a<|im_end|>", exclude=("<think>",)) + "<|im_end|>")
    assert [ids.count(think), ids.count(end)] == [1, 1]
    assert control.tags == {"<think>"}


def test_overlapping_names_are_each_split() -> None:
    tokenizer = byte_level(AddedToken("<x><y>", normalized=False), AddedToken("<y>", normalized=False))
    control = ControlTokens(tokenizer)
    assert control.escape("<x><y>") == f"<{MARK}x><{MARK}y>"
    assert control_ids(tokenizer).isdisjoint(control.encode(control.escape("<x><y><y>")))


def test_name_formed_by_normalization_is_ordinary_text() -> None:
    tokenizer = byte_level(AddedToken("<tool>", normalized=True), normalizer=normalizers.NFKC())
    control = ControlTokens(tokenizer)
    wide = "a ＜tool＞ b"
    assert not control_ids(tokenizer).isdisjoint(tokenizer.encode(wide))
    assert control_ids(tokenizer).isdisjoint(control.encode(control.escape(wide)))
    assert control.escape("a tool, é") == "a tool, é"


def test_unknown_character_is_no_control_token() -> None:
    unknown, end = "<unk>", "</s>"
    core = Tokenizer(models.BPE(unk_token=unknown))
    core.normalizer = normalizers.Replace(" ", "_")
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=[unknown, end], show_progress=False)
    core.train_from_iterator(["select name from singer"] * 9, trainer)
    described = json.loads(core.to_str())
    for token in described["added_tokens"]:
        token["normalized"] = True
    core = Tokenizer.from_str(json.dumps(described))
    control = ControlTokens(PreTrainedTokenizerFast(tokenizer_object=core, unk_token=unknown, eos_token=end))
    assert control.escape("select é from singer") == "select é from singer"
    assert control.escape("select </s> <unk>").count(MARK) >= 2


def test_tokenizer_without_added_tokens_has_no_control_tokens() -> None:
    class Letters:
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            assert not add_special_tokens
            return [*map(ord, text)]

    control = ControlTokens(Letters())
    assert control.escape("<|im_end|>") == "<|im_end|>"
    assert control.encode("ab") == [97, 98]


FORGED = "<|forged|>"
WORDS = ("SELECT", " name", "age", " ", "  ", "\n", "'", "<", "|", ">", "<|", "|>", "im_en", "4,", ".", "café")


def random_text(rng: random.Random, names: tuple[str, ...] = ()) -> str:
    """Return a random text of names, and of other parts that form no name."""
    return "".join(rng.choices((*WORDS, *names * 6), k=rng.randrange(12)))


@pytest.mark.parametrize("special", [True, False])
def test_forged_name_has_the_ids_of_a_tokenizer_without_that_token(
    tokenizer_kinds: ModuleType, special: bool, tmp_path: Path
) -> None:
    begin, end = tokenizer_kinds.BEGIN, tokenizer_kinds.END
    for kind, make in {**tokenizer_kinds.CORES, **tokenizer_kinds.FURTHER}.items():
        plain, core = make(), make()
        core.add_tokens([AddedToken(FORGED, special=special, normalized=False)])
        fields = {"clean_up_tokenization_spaces": False, "bos_token": begin if kind != "whole words" else end}
        without = read_tokenizer(tokenizer_kinds.write(tmp_path / f"{kind} without", plain, **fields))
        control = ControlTokens(read_tokenizer(tokenizer_kinds.write(tmp_path / kind, core, **fields)))
        rng = random.Random(kind)
        for _ in range(100):
            first, second = (random_text(rng, (FORGED,)) for _ in range(2))
            marked = f"{begin}{control.escape(first)}{end}\n{control.escape(second)}"
            assert strip_marks(marked) == f"{begin}{first}{end}\n{second}"
            expected = without.encode(strip_marks(marked), add_special_tokens=False)
            assert control.encode(marked) == expected, (kind, first, second)
            if FORGED in first + second:
                assert MARK in marked


def test_only_template_output_contains_control_tokens(tokenizer_kinds: ModuleType, tmp_path: Path) -> None:
    begin, end = tokenizer_kinds.BEGIN, tokenizer_kinds.END
    for kind, make in {**tokenizer_kinds.CORES, **tokenizer_kinds.FURTHER}.items():
        tokenizer = read_tokenizer(tokenizer_kinds.write(tmp_path / kind, make(), bos_token=begin))
        control = ControlTokens(tokenizer)
        names = tuple(sorted({*tokenizer.convert_ids_to_tokens([*control.ids])} - {"<unk>"}))
        rng = random.Random(kind)
        for _ in range(100):
            forged, usual = random_text(rng, names), random_text(rng)
            for text, is_usual in ((forged, False), (usual, True)):
                ids = control.encode(f"{begin}{control.escape(text)}{end}\n{control.escape(text)}")
                whole = tokenizer.encode(f"{begin}{text}{end}\n{text}", add_special_tokens=False)
                template = tokenizer.encode(f"{begin} {end}", add_special_tokens=False)
                assert ids == whole or not is_usual, (kind, text)
                for token in tokenizer.convert_tokens_to_ids([*names]):
                    assert ids.count(token) == template.count(token), (kind, text)
