"""The exported chat template and ollama's Modelfile: prompts as in training, with end tokens and sampling."""

from __future__ import annotations

import copy
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.inference.policy_client import style_for
from jaxrl_sql.models import load_checkpoint, load_tokenizer
from jaxrl_sql.models.formats.gguf_header import read_header
from jaxrl_sql.models.formats.gguf_write import save_gguf
from jaxrl_sql.models.formats.hf import hf_tensors, read_tensors
from jaxrl_sql.runtime.model_locator import TrainedModel, read_trained
from jaxrl_sql.runtime.tokenizer_files import save_tokenizer
from jaxrl_sql.text2sql.prompts.chat import chat_messages
from jaxrl_sql.text2sql.prompts.prompts import make_prompt, message_texts
from jaxrl_sql.training.trained_chat import (
    TrainedChat,
    go_template,
    modelfile,
    prefilled_template,
    save_chat_template,
    trained_chat,
)
from jaxrl_sql.types import Example

START = Path(__file__).parents[3] / "configs" / "recipes_start"
QUESTION = chat_messages("", "How many?")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WITH_SWITCH = CHATML.replace(
    "assistant\n' }}", "assistant\n' }}{% if not (enable_thinking | default(true)) %}<think></think>{% endif %}"
)
WITHOUT_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
WITH_START = "{{ bos_token }}" + CHATML
WITH_BRACES = CHATML.replace("assistant\n", 'assistant {{ x }} """\n')


def tokenizer_with(template: str) -> Any:
    tokenizer = copy.copy(load_tokenizer(START))
    tokenizer.chat_template = template
    return tokenizer


def trained(tmp_path: Path, text: str) -> TrainedModel:
    (tmp_path / "config.yaml").write_text(text)
    return read_trained(tmp_path / "config.yaml")


@pytest.mark.parametrize("template", [CHATML, CHATML + "\n", WITH_SWITCH, WITHOUT_SYSTEM, WITH_BRACES])
@pytest.mark.parametrize("thinking", [None, False])
@pytest.mark.parametrize("prefill", ["", 'Let "us" {{ see }}:\n<think>'])
def test_template_renders_the_prompt_of_training(template: str, thinking: bool | None, prefill: str) -> None:
    if thinking is not None and "enable_thinking" not in template:
        return
    chat = TrainedChat(tokenizer_with(template), thinking, prefill)
    result = prefilled_template(chat)
    rendered = chat.tokenizer.apply_chat_template(
        QUESTION, chat_template=result, tokenize=False, add_generation_prompt=True
    )
    assert rendered == chat.render(QUESTION)
    assert rendered.endswith(prefill)
    without = chat.tokenizer.apply_chat_template(QUESTION, chat_template=result, tokenize=False)
    assert without == chat.render_without_prefill(QUESTION, opens=False)


def test_template_that_cannot_include_the_prefill_is_left_out() -> None:
    tokenizer = tokenizer_with(CHATML + "{% set add_generation_prompt = false %}")
    assert prefilled_template(TrainedChat(tokenizer, prefill="Let us see.")) == ""


@pytest.mark.parametrize("recipe", ["arctic", "think2sql", "omnisql"])
@pytest.mark.parametrize(
    ("chat_template", "settings"),
    [
        (CHATML, "{}"),
        (WITH_SWITCH, "{thinking: no_think}"),
        (CHATML, "{assistant_prefill: 'Let us see.'}"),
        ({"default": CHATML, "tool_use": WITH_BRACES}, "{assistant_prefill: 'Let us see.'}"),
    ],
)
def test_a_saved_folder_gives_transformers_the_prompt_tokens_of_training(
    recipe: str, chat_template: Any, settings: str, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        connection.execute("CREATE TABLE customers(id INTEGER, city TEXT)")
    example = Example("q", "shop", str(tmp_path / "shop.sqlite"), "How many customers?", "SELECT 1")
    model = trained(tmp_path, f"recipe: {recipe}\ndata: {{prompt: chat, chat: {settings}}}\n")
    tokenizer = tokenizer_with(chat_template)
    chat = trained_chat(tokenizer, model)
    assert chat is not None
    for _ in range(2):  # an export of an export adds nothing
        save_tokenizer(tokenizer, tmp_path / "model")
        assert save_chat_template(tmp_path / "model", chat)
        tokenizer = load_tokenizer(tmp_path / "model")
        assert tokenizer.chat_template == chat_template
    style = style_for(recipe, model.data, tokenizer)
    expected = make_prompt(example, style, tokenizer, 4096)
    assert expected is not None
    other = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = other.apply_chat_template(
        message_texts(example, style).messages(), add_generation_prompt=True, return_dict=False
    )
    assert ids == list(expected.token_ids)
    assert (other.chat_template == chat_template) == (chat.prefill == "" and chat.thinking is None)


def test_prefill_comes_from_the_settings_of_the_run_or_its_recipe(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(START)
    arctic = trained_chat(tokenizer, trained(tmp_path, "recipe: arctic\ndata: {prompt: chat}\n"))
    assert arctic is not None
    assert arctic.prefill.endswith("<think>")
    configured = trained_chat(tokenizer, trained(tmp_path, "data: {prompt: chat, chat: {assistant_prefill: 'SQL:'}}\n"))
    assert configured == TrainedChat(tokenizer, None, "SQL:")
    assert trained_chat(tokenizer, None) == TrainedChat(tokenizer)
    assert trained_chat(tokenizer, trained(tmp_path, "data: {prompt: compact}\n")) is None


def test_go_template_has_system_question_and_answer() -> None:
    chat = TrainedChat(tokenizer_with(CHATML), prefill="<think>")
    user = "<|im_start|>user\n{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n<think>"
    system = "<|im_start|>system\n{{ .System }}<|im_end|>\n"
    end = "{{ .Response }}<|im_end|>\n"
    assert go_template(chat) == f"{{{{ if .System }}}}{system}{user}{{{{ else }}}}{user}{{{{ end }}}}{end}"
    assert go_template(chat._replace(tokenizer=tokenizer_with(WITHOUT_SYSTEM))) == user + end
    starting = tokenizer_with(WITH_START)
    starting.bos_token = "<|im_end|>"  # noqa: S105 - a token of text
    text = go_template(chat._replace(tokenizer=starting), "<|im_end|>")
    assert text == f"{{{{ if .System }}}}{system}{user}{{{{ else }}}}{user}{{{{ end }}}}{end}"


def test_braces_and_quotes_are_escaped_in_a_go_template() -> None:
    text = go_template(TrainedChat(tokenizer_with(WITH_BRACES)))
    assert 'assistant {{ "{{" }} x }} ""{{ "\\"" }}\n' in text
    assert '"""' not in text


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "shop-f16.gguf"
    config, params = load_checkpoint(START)
    chat = TrainedChat(load_tokenizer(START), prefill="Let us see.")
    save_gguf(
        path, config, hf_tensors(config, params, "float32"), chat.tokenizer, chat_template=prefilled_template(chat)
    )
    return path


def test_gguf_has_the_prefilled_template_and_our_reader_the_original(gguf: Path) -> None:
    template = read_header(gguf).metadata["tokenizer.chat_template"]
    assert "Let us see." in template
    assert load_tokenizer(gguf).chat_template == load_tokenizer(START).chat_template
    assert dict(read_tensors(gguf))


def test_modelfile_has_end_tokens_and_the_sampling_of_evaluations(gguf: Path, tmp_path: Path) -> None:
    settings = trained(
        tmp_path,
        "data: {prompt: chat, max_prompt_tokens: 900}\nsampling: {max_new_tokens: 300}\n"
        "validation: {sampling: {max_new_tokens: 200, repetition_penalty: 1.05}}\n",
    )
    text = modelfile(gguf, TrainedChat(load_tokenizer(START)), settings, ["<|im_end|>", "<|endoftext|>"])
    first, _, rest = text.partition('TEMPLATE """')
    assert first == "FROM ./shop-f16.gguf\n"
    assert rest.partition('"""\n')[2].splitlines() == [
        'PARAMETER stop "<|im_end|>"',
        'PARAMETER stop "<|endoftext|>"',
        "PARAMETER temperature 0",
        "PARAMETER top_k 0",
        "PARAMETER top_p 1",
        "PARAMETER min_p 0",
        "PARAMETER repeat_penalty 1.05",
        "PARAMETER num_predict 200",
        "PARAMETER num_ctx 1100",
    ]


def test_modelfile_of_an_unknown_run_leaves_the_sampling_to_ollama(gguf: Path) -> None:
    text = modelfile(gguf, None, None, ["<|im_end|>"])
    assert text == 'FROM ./shop-f16.gguf\nTEMPLATE """{{ .Prompt }}"""\nPARAMETER stop "<|im_end|>"\n'
