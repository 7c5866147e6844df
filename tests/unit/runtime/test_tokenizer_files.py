"""Texts have the ids of tokenizer.json, whatever other files of the folder contain, also after saving."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from jaxrl_sql.runtime.control_tokens import ControlTokens, prompt_ids
from jaxrl_sql.runtime.tokenizer_files import misreading_class, read_tokenizer, save_tokenizer
from jaxrl_sql.types import InputError

CLASSES = ("LlamaTokenizerFast", "LlamaTokenizer", "Qwen2Tokenizer", "GemmaTokenizer", "TokenizersBackend", "X", None)
BEGIN, END, PAD = "<s>", "<|im_end|>", "<pad>"


@pytest.fixture
def kinds(tokenizer_kinds: ModuleType) -> ModuleType:
    return tokenizer_kinds


def ids(tokenizer: Any, text: str, *, whole: bool) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=whole))


def test_text_has_the_ids_of_tokenizer_json(kinds: ModuleType, tmp_path: Path) -> None:
    for kind, make in kinds.CORES.items():
        (tmp_path / kind).mkdir()
        check_ids(kinds, kind, make(), tmp_path / kind)


def check_ids(kinds: ModuleType, kind: str, core: Any, folder_of_kind: Path) -> None:
    """Compare folders that name each class, before and after saving, with tokenizer.json."""
    fields = {"add_prefix_space": not kind.endswith("before"), "add_bos_token": True, "legacy": True}
    fields |= {"bos_token": BEGIN, "split_special_tokens": True, "pad_token": {"content": PAD, "lstrip": True}}
    for named in CLASSES:
        folder = kinds.write(folder_of_kind / f"{named}", core, named, "llama", **fields)
        tokenizer = read_tokenizer(folder)
        save_tokenizer(tokenizer, folder_of_kind / "saved")
        for each in (tokenizer, read_tokenizer(folder_of_kind / "saved")):
            for text in kinds.TEXTS:
                for whole in (True, False):
                    wanted = core.encode(text, add_special_tokens=whole).ids
                    assert ids(each, text, whole=whole) == wanted, (named, text)
                assert each.decode(wanted) == core.decode(wanted, skip_special_tokens=False)
            assert each.added_tokens_decoder == core.get_added_tokens_decoder(), named
            assert (each.bos_token, each.eos_token, each.pad_token) == (BEGIN, END, PAD)
    files = (folder_of_kind / name / "tokenizer.json" for name in ("None", "saved"))
    raw, saved = (json.loads(file.read_text()) for file in files)
    assert {**saved, "post_processor": None} == {**raw, "post_processor": None}


def test_generic_class_of_transformers_reads_the_same_ids(kinds: ModuleType, tmp_path: Path) -> None:
    """The class of the installed version reads saved files like ours."""
    from transformers import AutoTokenizer

    for kind, make in kinds.CORES.items():
        core, folder = make(), tmp_path / kind
        save_tokenizer(read_tokenizer(kinds.write(tmp_path / "given", core, bos_token=BEGIN)), folder)
        for family in ("llama", "qwen3", "gemma3_text"):  # for qwen2, transformers takes the class of the family alone
            (folder / "config.json").write_text(json.dumps({"model_type": family}))
            theirs = AutoTokenizer.from_pretrained(folder)
            for text in kinds.TEXTS:
                assert theirs.encode(text) == core.encode(text).ids, (kind, family, text)


def test_class_that_misreads_a_saved_tokenizer_is_named(kinds: ModuleType, tmp_path: Path) -> None:
    """The version of transformers decides which families ignore the class that a folder names."""
    from transformers import AutoTokenizer

    core = kinds.byte_level(prefix=True)
    tokenizer = read_tokenizer(kinds.write(tmp_path / "given", core))
    save_tokenizer(tokenizer, tmp_path)
    for family in ("llama", "qwen2"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
        theirs = AutoTokenizer.from_pretrained(tmp_path)
        differs = [theirs.encode(text) for text in kinds.TEXTS] != [core.encode(text).ids for text in kinds.TEXTS]
        assert misreading_class(tmp_path, tokenizer) == (type(theirs).__name__ if differs else "")


def test_truncation_and_padding_of_tokenizer_json_are_ignored(kinds: ModuleType, tmp_path: Path) -> None:
    core = kinds.byte_level()
    core.enable_truncation(4)
    core.enable_padding(length=9)
    tokenizer = read_tokenizer(kinds.write(tmp_path / "given", core))
    save_tokenizer(tokenizer, tmp_path / "saved")
    core.no_truncation()
    core.no_padding()
    assert tokenizer.encode(kinds.TEXTS[0]) == core.encode(kinds.TEXTS[0]).ids
    saved = json.loads((tmp_path / "saved" / "tokenizer.json").read_text())
    assert (saved["truncation"], saved["padding"]) == (None, None)


@pytest.mark.parametrize("kind", ["whole words", "byte-level", "pieces"])
def test_decoding_never_cleans_up_spaces(kinds: ModuleType, kind: str, tmp_path: Path) -> None:
    text = "name ! = ' ' || name , name ."
    core = {**kinds.CORES, "whole words": kinds.whole_words}[kind]()
    tokenizer = read_tokenizer(kinds.write(tmp_path / "given", core, clean_up_tokenization_spaces=True))
    wanted = core.encode(text, add_special_tokens=False).ids
    plain = core.decode(wanted, skip_special_tokens=False)
    assert " ' " in plain
    assert [tokenizer.decode(wanted), *tokenizer.batch_decode([wanted])] == [plain] * 2
    assert ControlTokens(tokenizer).tokenizer.decode(wanted, skip_special_tokens=True) == plain
    save_tokenizer(tokenizer, tmp_path / "saved")
    assert (
        json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())["clean_up_tokenization_spaces"] is False
    )


def test_role_of_a_token_without_an_id_is_omitted(kinds: ModuleType, tmp_path: Path) -> None:
    """transformers gives it an id after the last one, for which the model has no row."""
    core = kinds.byte_level()
    absent = {"pad_token": "[PAD]", "additional_special_tokens": [BEGIN, "<absent>"], "image_token": "<absent>"}
    tokenizer = read_tokenizer(kinds.write(tmp_path / "a", core, **absent))
    assert tokenizer.get_vocab() == core.get_vocab()
    assert tokenizer.pad_token is None
    with pytest.raises(AttributeError):
        tokenizer.image_token  # noqa: B018


def test_ordinary_token_with_a_role_stays_ordinary(kinds: ModuleType, tmp_path: Path) -> None:
    """A padding token `!` must not split `!=`, in transformers either; a name in brackets is one token."""
    state = json.loads(kinds.byte_level().to_str())
    size = kinds.byte_level().get_vocab_size()
    state["model"]["vocab"] |= {"!=": size, "<eot>": size + 1}
    state["model"]["merges"].append(["!", "="])
    core = Tokenizer.from_str(json.dumps(state))
    assert core.encode("!=").ids == [size]
    folder = kinds.write(tmp_path / "given", core, pad_token="!", unk_token="b", eos_token="<eot>")  # noqa: S106
    tokenizer = read_tokenizer(folder)
    save_tokenizer(tokenizer, tmp_path / "saved")
    for each in (tokenizer, read_tokenizer(tmp_path / "saved")):
        assert each.encode("a!=b!") == core.encode("a!=b!").ids
        assert each.encode("a<eot>b") == [*core.encode("a").ids, size + 1, *core.encode("b").ids]
    assert (tokenizer.pad_token_id, tokenizer.unk_token, tokenizer.eos_token) == (core.token_to_id("!"), "b", "<eot>")
    fields = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert {name for name in fields if name.endswith("_token")} == {"eos_token"}


def test_roles_come_from_the_special_tokens_map_of_older_folders(kinds: ModuleType, tmp_path: Path) -> None:
    folder = kinds.write(tmp_path / "a", kinds.byte_level(), bos_token=None)
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": BEGIN}, "eos_token": PAD}))
    tokenizer = read_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (BEGIN, PAD)
    kinds.write(folder, kinds.byte_level(), added_tokens_decoder={})
    tokenizer = read_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (BEGIN, END)


@pytest.mark.parametrize("extra", [[BEGIN], {"image_token": BEGIN}, None])
def test_saved_fields_are_valid_in_both_versions(kinds: ModuleType, extra: Any, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"pad_token": PAD, "model_max_length": 77, "padding_side": "left", "is_local": True}
    core = kinds.byte_level(prefix=True)
    folder = kinds.write(tmp_path / "given", core, "TokenizersBackend", extra_special_tokens=extra, **fields)
    (folder / "chat_template.jinja").write_text("é{{ messages }}", encoding="utf-8")
    saved = tmp_path / "saved"
    saved.mkdir()
    for name in ("special_tokens_map.json", "added_tokens.json"):
        (saved / name).write_text("{}")
    save_tokenizer(read_tokenizer(folder), saved)
    names = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert {path.name for path in saved.iterdir()} == names
    local = {"extra_special_tokens": extra} if isinstance(extra, dict) else {}
    local |= {"additional_special_tokens": extra} if isinstance(extra, list) else {}
    assert json.loads((saved / "tokenizer_config.json").read_text(encoding="utf-8")) == local | {
        "add_prefix_space": True,
        "chat_template": "é{{ messages }}",
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 77,
        "pad_token": PAD,
        "padding_side": "left",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "truncation_side": "right",
    }
    again = read_tokenizer(saved)
    assert again.chat_template == "é{{ messages }}"
    assert again.extra_special_tokens == (extra if isinstance(extra, list) else [])
    assert getattr(again, "image_token", None) == (BEGIN if isinstance(extra, dict) else None)


def test_template_of_an_earlier_save_is_removed(kinds: ModuleType, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(kinds.write(tmp_path / "given", kinds.byte_level(), chat_template="a"))
    save_tokenizer(tokenizer, tmp_path / "saved")
    tokenizer.chat_template = None
    save_tokenizer(tokenizer, tmp_path / "saved")
    assert read_tokenizer(tmp_path / "saved").chat_template is None


def test_several_templates_keep_their_names(kinds: ModuleType, tmp_path: Path) -> None:
    both = {"default": "a", "tool_use": "b"}
    listed = [{"name": name, "template": text} for name, text in both.items()]
    folder = kinds.write(tmp_path / "field", kinds.byte_level(), chat_template=listed)
    save_tokenizer(read_tokenizer(folder), tmp_path / "saved")
    files = kinds.write(tmp_path / "files", kinds.byte_level(), chat_template="not this")
    (files / "additional_chat_templates").mkdir()
    (files / "additional_chat_templates" / "tool_use.jinja").write_text("b")
    (files / "chat_template.jinja").write_text("a")
    for each in (folder, tmp_path / "saved", files):
        assert read_tokenizer(each).chat_template == both


def test_class_that_drops_spaces_is_rejected_without_tokenizer_json(kinds: ModuleType, tmp_path: Path) -> None:
    kinds.write(tmp_path, kinds.byte_level(), "LlamaTokenizer")
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))
    with pytest.raises(InputError, match=r"has no tokenizer\.json, and its class \w+ makes .*copy tokenizer\.json"):
        read_tokenizer(tmp_path)


def test_prompt_has_one_begin_token_and_no_end_token(kinds: ModuleType, tmp_path: Path) -> None:
    for core in (kinds.begins(kinds.byte_level()), kinds.byte_level()):
        is_begun = core.encode("").ids == [0]
        tokenizer = read_tokenizer(kinds.write(tmp_path / "a", core, bos_token=BEGIN))
        a = core.encode("a b", add_special_tokens=False).ids
        assert prompt_ids(tokenizer, "a b") == [0] * is_begun + a
        assert prompt_ids(tokenizer, f"{BEGIN}a b") == [0, *a]
    ends = [(BEGIN, 0), (END, 1)]
    core.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A {END}", special_tokens=ends)
    tokenizer = read_tokenizer(kinds.write(tmp_path / "b", core, bos_token=BEGIN))
    assert prompt_ids(tokenizer, "a b") == [0, *a]


def test_prompt_begins_like_tokenizer_json(kinds: ModuleType, tmp_path: Path) -> None:
    """After a begin token, a Metaspace that marks only the first piece does not mark the first letter."""
    core = Tokenizer(
        models.BPE({text: i for i, text in enumerate([BEGIN, END, "<unk>", "▁", "a", "▁a"])}, [("▁", "a")])
    )
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    core.decoder = decoders.Metaspace(prepend_scheme="first")
    core.add_special_tokens([AddedToken(name, normalized=False) for name in (BEGIN, END)])
    tokenizer = read_tokenizer(kinds.write(tmp_path / "a", kinds.begins(core), bos_token=BEGIN))
    assert prompt_ids(tokenizer, "a a") == core.encode("a a").ids == [0, 5, 5]
    assert prompt_ids(tokenizer, f"{BEGIN}a") == core.encode(f"{BEGIN}a", add_special_tokens=False).ids == [0, 4]


def added_token(text: str, **flags: bool) -> dict[str, Any]:
    """Return the fields with which a folder stores an added token."""
    return {"content": text, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, **flags}


def with_tokens(core: Any, *names: str) -> Any:
    """Return a tokenizer whose model has further tokens, which no merge produces."""
    state = json.loads(core.to_str())
    size = core.get_vocab_size()
    state["model"]["vocab"] |= {name: size + i for i, name in enumerate(names)}
    return Tokenizer.from_str(json.dumps(state))


def test_token_with_an_id_in_another_file_is_read(kinds: ModuleType, tmp_path: Path) -> None:
    """Flags come from added_tokens_decoder; tokens of added_tokens.json are special if they have a role."""
    core = kinds.byte_level()
    size = core.get_vocab_size()
    decoder = {
        str(size + 1): added_token("<tool>", special=False, lstrip=True),
        str(size): added_token("<|end|>", special=True),
    }
    folder = kinds.write(tmp_path / "given", core, eos_token="<|end|>", pad_token="[PAD]", added_tokens_decoder=decoder)  # noqa: S106
    numbers = {"[PAD]": size + 2, "word": size + 3, "<|end|>": size, BEGIN: 0}
    (folder / "added_tokens.json").write_text(json.dumps(numbers))
    tokenizer = read_tokenizer(folder)
    save_tokenizer(tokenizer, tmp_path / "saved")
    for each in (tokenizer, read_tokenizer(tmp_path / "saved")):
        assert (each.eos_token_id, each.pad_token_id) == (size, size + 2)
        a = core.encode("a").ids
        assert each.encode("a <tool>a<|end|>wordawords", add_special_tokens=False)[:5] == [
            *a,
            size + 1,
            *a,
            size,
            size + 3,
        ]
        new = {i: token for i, token in each.added_tokens_decoder.items() if i >= size}
        assert {token.content for token in new.values() if token.special} == {"<|end|>", "[PAD]"}
        assert [i for i, token in new.items() if token.lstrip] == [size + 1]
        assert {token.content for token in new.values() if token.normalized} == {"word"}


@pytest.mark.parametrize("file", ["tokenizer_config.json", "added_tokens.json"])
def test_ordinary_token_listed_in_another_file_is_not_split(kinds: ModuleType, tmp_path: Path, file: str) -> None:
    core = with_tokens(kinds.byte_level(), "<|end|>", "<tool>", "END", "blank")
    size = core.get_vocab_size() - 4
    names = {"<|end|>": size, "<tool>": size + 1, "END": size + 2, "blank": size + 3}
    fields: dict[str, Any] = {"eos_token": "END"}
    if file == "tokenizer_config.json":
        fields["added_tokens_decoder"] = {
            str(i): added_token(name, special=name in ("END", "<|end|>")) for name, i in names.items()
        }
    folder = kinds.write(tmp_path / "given", core, **fields)
    if file == "added_tokens.json":
        (folder / file).write_text(json.dumps(names))
    tokenizer = read_tokenizer(folder)
    assert ids(tokenizer, "<|end|><tool>END", whole=False) == [size, size + 1, size + 2]
    assert ids(tokenizer, "blank", whole=False) == core.encode("blank").ids
    assert tokenizer.get_vocab() == core.get_vocab()


@pytest.mark.parametrize("file", ["tokenizer_config.json", "added_tokens.json"])
@pytest.mark.parametrize(("name", "ahead"), [(END, 0), ("<tool>", 3)])
def test_id_that_contradicts_tokenizer_json_is_rejected(
    kinds: ModuleType, tmp_path: Path, file: str, name: str, ahead: int
) -> None:
    core = kinds.byte_level()
    size = core.get_vocab_size()
    number, actual = size + ahead, core.token_to_id(name) or size
    fields = {"added_tokens_decoder": {str(number): added_token(name)}} if file == "tokenizer_config.json" else {}
    folder = kinds.write(tmp_path / "given", core, **fields)
    if not fields:
        (folder / file).write_text(json.dumps({name: number}))
    reason = rf"{file} gives '{re.escape(name)}' the id {number}, and tokenizer\.json the id {actual}: "
    with pytest.raises(InputError, match=reason):
        read_tokenizer(folder)


@pytest.mark.parametrize("field", ["additional_special_tokens", "extra_special_tokens"])
def test_listed_token_in_brackets_is_not_split(kinds: ModuleType, tmp_path: Path, field: str) -> None:
    core = with_tokens(kinds.byte_level(), "<|end|>", "END")
    size = core.get_vocab_size() - 2
    listed = [BEGIN, {"content": "<|end|>"}, "END", "<absent>"]
    tokenizer = read_tokenizer(kinds.write(tmp_path / "given", core, **{field: listed}))
    save_tokenizer(tokenizer, tmp_path / "saved")
    for each in (tokenizer, read_tokenizer(tmp_path / "saved")):
        assert each.extra_special_tokens == [BEGIN, "<|end|>"]
        assert ids(each, "<|end|>", whole=False) == [size]
        assert ids(each, "END", whole=False) == core.encode("END").ids
        assert size in ControlTokens(each).ids


def test_listed_tokens_are_read_next_to_model_roles(kinds: ModuleType, tmp_path: Path) -> None:
    """A saved folder has the roles in `extra_special_tokens`, and the list in the other field."""
    fields = {"extra_special_tokens": {"image_token": PAD}, "additional_special_tokens": [BEGIN]}
    tokenizer = read_tokenizer(kinds.write(tmp_path / "given", kinds.byte_level(), **fields))
    assert (tokenizer.image_token, tokenizer.extra_special_tokens) == (PAD, [BEGIN])


@pytest.mark.parametrize("names", [["tool_use"], ["default", "tool_use"]])
def test_additional_templates_of_an_earlier_save_are_removed(
    kinds: ModuleType, tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        (tmp_path / "saved" / "additional_chat_templates").mkdir(parents=True, exist_ok=True)
        (tmp_path / "saved" / "additional_chat_templates" / f"{name}.jinja").write_text("earlier")
    tokenizer = read_tokenizer(kinds.write(tmp_path / "given", kinds.byte_level(), chat_template="a"))
    save_tokenizer(tokenizer, tmp_path / "saved")
    assert read_tokenizer(tmp_path / "saved").chat_template == "a"


LAST = "<|endoftext|>"


def read_plain(kinds: ModuleType, folder: Path, core: Any, **fields: Any) -> Any:
    """Read a folder whose tokenizer_config.json has only these fields."""
    kinds.write(folder, core)
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 1024, **fields}))
    return read_tokenizer(folder)


def test_roles_without_a_field_have_the_defaults_of_the_class(kinds: ModuleType, tmp_path: Path) -> None:
    core = with_tokens(kinds.byte_level(), LAST)
    for named in ("GPT2Tokenizer", "GPT2TokenizerFast"):
        tokenizer = read_plain(kinds, tmp_path, core, tokenizer_class=named)
        assert [tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token] == [LAST] * 3
        assert tokenizer.get_vocab() == core.get_vocab()
        tokenizer = read_plain(kinds, tmp_path, core, tokenizer_class=named, eos_token=END, bos_token=None)
        assert [tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token] == [None, END, LAST]
        assert read_plain(kinds, tmp_path, kinds.byte_level(), tokenizer_class=named).eos_token is None
    numbers = {LAST: kinds.byte_level().get_vocab_size()}
    (tmp_path / "added_tokens.json").write_text(json.dumps(numbers))
    tokenizer = read_plain(kinds, tmp_path, kinds.byte_level(), tokenizer_class="GPT2Tokenizer")
    assert (tokenizer.eos_token_id, tokenizer.added_tokens_decoder[numbers[LAST]].special) == (numbers[LAST], True)
    core = with_tokens(core, "None")  # a default of None does not mean this token
    tokenizer = read_plain(kinds, tmp_path, core, tokenizer_class="Qwen2Tokenizer")
    assert (tokenizer.bos_token, tokenizer.eos_token) == (None, LAST)
    for unknown in ({}, {"tokenizer_class": "X"}, {"tokenizer_class": "logging"}, {"tokenizer_class": None}):
        assert read_plain(kinds, tmp_path, core, **unknown).eos_token is None
