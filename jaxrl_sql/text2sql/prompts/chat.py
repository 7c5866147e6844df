"""Render conversations with the tokenizer's chat template, with a prefilled answer and a thinking switch.

A thought is the reasoning in tags, such as `<think>`, before an answer. The prefill is a beginning of the answer that
is part of the prompt. Some templates include the current date (by the function `strftime_now`), so the text depends on
the day; `date` fixes it. A date that a template sets itself, such as Llama 3.1's `date_string`, stays.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache

from jaxrl_sql.runtime.control_tokens import ControlTokens, strip_marks
from jaxrl_sql.text2sql.env.tags import OPENED, OPENING_THOUGHT
from jaxrl_sql.types import InputError, Record, Tokenizer

Message = Mapping[str, str]
"""A chat message with `role` and `content`."""

THINKING: Mapping[str, bool | None] = {"template": None, "think": True, "no_think": False}
"""The template's argument `enable_thinking` (None: not passed) for each value of the setting for thinking."""


NO_TEMPLATE = (
    "a chat needs a tokenizer with a chat template (chat_template.jinja next to it, or chat_template in its "
    "tokenizer_config.json); data.prompt=tagged needs none (for a model made from scratch: data.prompt=compact)"
)
"""The error of a chat prompt with a tokenizer that has no template."""

_CLOCK = "strftime_now"
# transformers passes no functions to a template, so this macro looks up the text of each code.
_FIXED_CLOCK = """\
{%- macro strftime_now(format) -%}
{%- set at = namespace(code='') -%}
{%- for letter in format -%}
{%- if at.code or letter == '%' -%}{%- set at.code = at.code + letter -%}{%- else -%}{{ letter }}{%- endif -%}
{%- if at.code in date_codes -%}{{ date_codes[at.code] }}{%- set at.code = '' -%}{%- endif -%}
{%- endfor -%}
{{ at.code }}
{%- endmacro %}
"""
# The flags between % and the letter of a `strftime` code.
_FLAGS = ("", "-", "_", "0", "^", "#")


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    thinking: bool | None = None,
    prefill: str | None = None,
    date: str = "",
) -> str:
    """Return the text of a conversation by the tokenizer's chat template.

    With a `prefill`, the text ends with the beginning of the assistant's turn and then the prefill, which may be "".
    With None, it ends after the last message. If the template opens a thought at the end, the prefill does not open it
    again. `thinking` sets the template's thinking
    switch; None keeps its default. `date` (2026-11-29) is the date of `strftime_now`, at midnight; "" uses the clock.
    Raises InputError for a tokenizer without a template, for a template without a requested switch, and for messages
    that a template refuses.
    """
    if not messages:
        raise InputError("a conversation needs at least one message")
    switch = {} if thinking is None else {"enable_thinking": thinking}
    conversation = [dict(message) for message in messages]
    try:
        template = str(tokenizer.get_chat_template()) if switch or date else ""
        clock: Record = {}
        if date and _CLOCK in template:
            clock = {"chat_template": _FIXED_CLOCK + template, "date_codes": _date_codes(date)}
        text = tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=prefill is not None, **switch, **clock
        )
    except ImportError as error:
        raise InputError("chat templates need the package jinja2, which renders them") from error
    except UnicodeError as error:
        raise InputError("the tokenizer's chat template changes the text of a message") from error
    except (AttributeError, ValueError) as error:
        raise InputError(NO_TEMPLATE) from error
    except Exception as error:  # a template is a program and may raise any error
        raise InputError(f"the tokenizer's chat template refuses these messages: {_first_line(error)}") from error
    if switch and "enable_thinking" not in template:
        raise InputError("the tokenizer's chat template has no switch for thinking (enable_thinking)")
    return text + _prefill_after(text, prefill or "")


def _prefill_after(text: str, prefill: str) -> str:
    """Return the prefill of an answer; if the prompt's text ends with an opened thought, without its opening tag."""
    opening = OPENING_THOUGHT.search(prefill) if OPENED.search(text) else None
    if opening is None:
        return prefill
    rest = prefill[: opening.start()] + prefill[opening.end() :]
    return rest.lstrip() if text[-1].isspace() else rest


def full_prefill(text: str, prefill: str) -> str:
    """Return the prefill of an answer, preceded by the tag if the prompt's text ends with an opened thought.

    A complete answer in a conversation, such as that of a few-shot example, begins with both.
    """
    opening = OPENED.search(text)
    return opening[0] + _prefill_after(opening[0], prefill) if opening else prefill


def turn_end(tokenizer: Tokenizer) -> int | None:
    """Return the id of the control token that ends an assistant's turn in the chat template; None without one.

    It is the first control token after the answer in a rendered example.
    """
    answer = "SELECT 1"
    try:
        text = render_chat(tokenizer, [*chat_messages("", "Question?"), {"role": "assistant", "content": answer}])
    except InputError:  # no template, or one without an assistant's turn at the end
        return None
    _, separator, rest = text.rpartition(answer)
    control = ControlTokens(tokenizer)
    return next((token for token in control.encode(rest if separator else "") if token in control.ids), None)


def chat_messages(system: str, user: str) -> list[dict[str, str]]:
    """Return the messages of a question, for `apply_chat_template` and endpoints."""
    messages = [{"role": "user", "content": user}]
    return [{"role": "system", "content": system}, *messages] if system else messages


@cache
def _date_codes(date: str) -> dict[str, str]:
    """Return the text of each `strftime` code for midnight of a date."""
    midnight = datetime.fromisoformat(date)
    codes = [f"%{flag}{letter}" for flag in _FLAGS for letter in f"{string.ascii_letters}%"]
    return {code: midnight.strftime(code) for code in codes}


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, for output."""
    return strip_marks(str(error).strip() or type(error).__name__).splitlines()[0]
