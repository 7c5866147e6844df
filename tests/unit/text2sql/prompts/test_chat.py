"""Conversations as text: transformers' rendering of templates, prefilled turns, and the thinking switch.

The templates are written for these tests in the format of each family: Qwen2.5's ChatML with its system prompt, Qwen3's
without earlier thoughts, Llama 3's headers and trimming, Gemma's roles.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from jaxrl_sql.config import ChatConfig, DataConfig
from jaxrl_sql.runtime.control_tokens import ControlTokens, strip_marks
from jaxrl_sql.text2sql.env.turns import TAGS
from jaxrl_sql.text2sql.prompts.chat import render_chat, turn_end
from jaxrl_sql.text2sql.prompts.prompts import make_prompts
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.types import Example, InputError

pytest.importorskip("jinja2", reason="transformers renders chat templates with jinja2")

CHATML = """
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}{{ m.content + '<|im_end|>' }}{{ '\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

THINKER = """
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set thought, said = '', m.content %}
{%- if '</think>' in m.content %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
{%- set said = m.content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{{- '<|im_start|>assistant\n' }}
{%- if loop.index0 > ns.last and (loop.last or thought) %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}
{{- said + '<|im_end|>' }}{{ '\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}"""

HEADERS = """{{- bos_token }}
{%- for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}
{%- if m.role == 'assistant' %}{{ m.content | trim + '<|eot_id|>' }}
{%- else %}{{ m.content | trim + '<|eot_id|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

TURNS = """{{- bos_token }}
{%- set first, rest = '', messages %}
{%- if messages[0].role == 'system' %}{% set first, rest = messages[0].content + '\n\n', messages[1:] %}{% endif %}
{%- for m in rest %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if m.role == 'assistant' %}{{ '<start_of_turn>model\n' }}{{ m.content | trim + '<end_of_turn>' }}{{ '\n' }}
{%- else %}{{ '<start_of_turn>user\n' + (first if loop.first else '') + m.content | trim }}
{{- '<end_of_turn>\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

TEMPLATES = {"qwen2.5": CHATML, "qwen3": THINKER, "llama3": HEADERS, "gemma3": TURNS}
START = "<s>"
SPECIAL = (
    "<s> <|im_start|> <|im_end|> <think> </think> <|start_header_id|> <|end_header_id|> <|eot_id|> "
    "<start_of_turn> <end_of_turn>"
).split()
SYSTEM = {"role": "system", "content": "You write SQL."}
ASK = {"role": "user", "content": "How many names are there?"}
ANSWER = {"role": "assistant", "content": "SELECT count(*) FROM names"}
AGAIN = {"role": "user", "content": "  And which?\n\nName them. "}
THOUGHT = {"role": "assistant", "content": "<think>\nwhich names\n</think>\n\nSELECT name FROM names"}
TALKS = {
    "one turn": [ASK, ANSWER],
    "two turns": [ASK, ANSWER, AGAIN, {"role": "assistant", "content": "SELECT name FROM names;"}],
    "with a system": [SYSTEM, ASK, ANSWER, AGAIN, ANSWER],
    "thoughts, kept and dropped": [ASK, THOUGHT, AGAIN, THOUGHT],
    "a question at the end": [SYSTEM, ASK, THOUGHT, AGAIN],
}


def make_tokenizer(template: str | None) -> Any:
    """Train a byte-level tokenizer whose merges span line ends and spaces."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.post_processor = processors.ByteLevel()
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["SELECT name FROM names\n\n\nwhich user model\n\n  How many"] * 9, trainer)
    result = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=START)
    result.chat_template = template
    return result


@pytest.fixture(params=TEMPLATES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("prefill", ["", "<think>\n", "Let me see.\n<think>"])
@pytest.mark.parametrize("talk", ["one turn", "thoughts, kept and dropped"])
def test_prefilled_turn_follows_the_template(family: str, talk: str, prefill: str) -> None:
    tokenizer = make_tokenizer(TEMPLATES[family])
    messages = TALKS[talk][:-1]
    opened = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert render_chat(tokenizer, messages, prefill=prefill) == opened + prefill
    assert render_chat(tokenizer, messages) == tokenizer.apply_chat_template(messages, tokenize=False)
    if prefill and family != "qwen3":  # its template adds an empty thought to answers without one
        last = {"role": "assistant", "content": prefill.strip()}
        going_on = tokenizer.apply_chat_template([*messages, last], continue_final_message=True, tokenize=False)
        assert render_chat(tokenizer, messages, prefill=prefill.strip()) == going_on


@pytest.mark.parametrize("talk", TALKS)
def test_content_adds_no_control_token_to_a_conversation(family: str, talk: str) -> None:
    tokenizer = make_tokenizer(TEMPLATES[family])
    control = ControlTokens(tokenizer)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    counts = []
    for names in ("", "".join(name for name in SPECIAL if "think" not in name)):
        talked = [{**m, "content": control.escape(f"{names}{m['content']} {names}", TAGS)} for m in TALKS[talk]]
        text = render_chat(tokenizer, talked, prefill="")
        encoded = control.encode(text)
        counts.append({name: encoded.count(i) for name, i in ids.items()})
        assert tokenizer.decode(encoded) == strip_marks(text)
    assert counts[0] == counts[1]
    assert control.encode(render_chat(tokenizer, TALKS[talk])) == tokenizer.encode(
        tokenizer.apply_chat_template(TALKS[talk], tokenize=False), add_special_tokens=False
    )


def test_thinking_is_switched_by_the_template() -> None:
    tokenizer = make_tokenizer(THINKER)
    for thinking in (None, True, False):
        switch = {} if thinking is None else {"enable_thinking": thinking}
        expected = tokenizer.apply_chat_template([ASK], add_generation_prompt=True, tokenize=False, **switch)
        text = render_chat(tokenizer, [ASK], thinking, prefill="")
        assert text == expected
        assert text.endswith("<think>\n\n</think>\n\n") == (thinking is False)


@pytest.mark.parametrize("before", ["", "\n", "  ", "\n\n  a "])
@pytest.mark.parametrize(
    "form", ["%d %b %Y", "%Y-%m-%d", "100 %% %A, %-d. %B", "%H:%M:%S of %^a %j", "no code", "cut %", ""]
)
def test_templates_clock_uses_the_configured_date(form: str, before: str) -> None:
    """The result equals that of a template with the date as literal text, with the same whitespace."""
    dated = before + "{%- set d = CLOCK %}" + before + "{{ d }}\n" + CHATML
    day = datetime(2024, 2, 9)  # noqa: DTZ001 (as transformers' clock)
    text = render_chat(
        make_tokenizer(dated.replace("CLOCK", f"strftime_now('{form}')")), [ASK], prefill="", date="2024-02-09"
    )
    assert text == render_chat(make_tokenizer(dated.replace("CLOCK", f"'{day.strftime(form)}'")), [ASK], prefill="")


DATE_STRING = """{%- if not date_string is defined %}{%- if strftime_now is defined %}
{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = 'never' %}{%- endif %}{%- endif %}
{%- macro head() %}{{ 'Today Date: ' + date_string + strftime_now('/%y') + '\n' }}{%- endmacro %}
{{- head() }}"""


def test_date_reaches_defaults_and_macros_and_is_the_clocks_by_default() -> None:
    tokenizer = make_tokenizer(DATE_STRING + HEADERS)
    dates = [render_chat(tokenizer, [ASK], date=day).splitlines()[0] for day in ("2024-02-09", "2025-12-31", "")]
    assert dates[:2] == ["Today Date: 09 Feb 2024/24", "Today Date: 31 Dec 2025/25"]
    assert dates[2] == tokenizer.apply_chat_template([ASK], tokenize=False).splitlines()[0]


def test_literal_date_of_a_template_is_unchanged() -> None:
    fixed = "{%- if not date_string is defined %}{%- set date_string = '26 Jul 2024' %}{%- endif %}{{ date_string }}"
    assert render_chat(make_tokenizer(fixed + CHATML), [ASK], date="2025-12-31").startswith("26 Jul 2024")


def test_end_of_a_turn_is_the_templates(family: str) -> None:
    tokenizer = make_tokenizer(TEMPLATES[family])
    end = {"llama3": "<|eot_id|>", "gemma3": "<end_of_turn>"}.get(family, "<|im_end|>")
    assert turn_end(tokenizer) == tokenizer.convert_tokens_to_ids(end)


def test_missing_template_or_answers_have_no_end_of_turn() -> None:
    for template in (None, "{% for m in messages if m.role == 'user' %}{{ '<s>' + m.content + '</s>' }}{% endfor %}"):
        assert turn_end(make_tokenizer(template)) is None


@pytest.mark.parametrize("prefill", ["<think>\n", "<think>", "<reasoning>\n", ""])
def test_prefilled_turn_does_not_repeat_the_templates_opened_thought(prefill: str) -> None:
    tokenizer = make_tokenizer(CHATML.replace("assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif"))
    assert render_chat(tokenizer, [ASK], prefill=prefill).endswith("<|im_start|>assistant\n<think>\n")
    assert render_chat(tokenizer, [ASK], prefill=f"{prefill}Let me see.").endswith("\n<think>\nLet me see.")


def test_switch_missing_from_the_template_is_refused() -> None:
    with pytest.raises(InputError, match="enable_thinking"):
        render_chat(make_tokenizer(CHATML), [ASK], thinking=False)


@pytest.mark.parametrize(
    ("template", "messages", "error"),
    [
        (None, [ASK], "needs a tokenizer with a chat template"),
        (TURNS, [ASK, ASK], "roles must alternate"),
        (CHATML, [], "at least one message"),
    ],
)
def test_template_error_is_reported_in_one_line(template: str | None, messages: Any, error: str) -> None:
    tokenizer = make_tokenizer(template and template)
    with pytest.raises(InputError, match=error) as caught:
        render_chat(tokenizer, messages)
    assert "\n" not in str(caught.value)


def test_prompts_use_the_configured_thinking_and_prefill(tmp_path: Any) -> None:
    import sqlite3

    path = tmp_path / "d.sqlite"
    sqlite3.connect(path).executescript("CREATE TABLE names(name); INSERT INTO names VALUES ('a');")
    example = Example("1", "d", str(path), "How many?", "SELECT 1")
    tokenizer = make_tokenizer(THINKER)
    style = RECIPES["arctic"].style("chat", "no_think", "Let me see.")
    (prompt,) = make_prompts([example], style, tokenizer, 10_000).prompts
    assert prompt.text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nLet me see.")
    assert tokenizer.decode(prompt.token_ids) == prompt.text
    dated = make_tokenizer("{{ strftime_now('%d %b %Y') + '\n' }}" + CHATML)
    style = RECIPES["arctic"].style_for(DataConfig(prompt="chat", chat=ChatConfig(date="2024-02-09")))
    (prompt,) = make_prompts([example], style._replace(shots=lambda _: [example]), dated, 10_000).prompts
    assert prompt.text.startswith("09 Feb 2024\n")
    with pytest.raises(InputError, match=r"data\.prompt=chat"):
        RECIPES["arctic"].style("compact", "think")
