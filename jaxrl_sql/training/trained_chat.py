"""The chat of a trained model for other programs: a chat template with the answer's prefill, and ollama's Modelfile.

A prefill is the beginning of the answer that training put at the end of each prompt, such as `<think>`. A client of
vLLM, llama.cpp or ollama sends messages alone, so the server's template must add the prefill. Ollama does not read
Jinja templates; its Modelfile has the template in Go's syntax.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.config import DataConfig
from jaxrl_sql.models.formats.gguf_header import read_header
from jaxrl_sql.runtime.model_locator import TrainedModel
from jaxrl_sql.runtime.tokenizer_files import replace_chat_template
from jaxrl_sql.text2sql.prompts.chat import THINKING, Message, chat_messages, render_chat
from jaxrl_sql.text2sql.prompts.template import read_template
from jaxrl_sql.text2sql.recipes import find_recipe
from jaxrl_sql.types import InputError

MODELFILE = "Modelfile"
# Texts that stand for the messages in a rendered conversation, and the fields that replace them in a Go template.
_SYSTEM, _USER, _ANSWER = "\ue000system\ue000", "\ue000user\ue000", "\ue000answer\ue000"
_FIELDS = {_SYSTEM: "{{ .System }}", _USER: "{{ .Prompt }}", _ANSWER: "{{ .Response }}"}


class TrainedChat(NamedTuple):
    """The rendering of a model's prompts.

    `thinking` is the switch of chat templates with optional thinking (None: the template's default). `date` is the date
    that the template prints, "" for today's.
    """

    tokenizer: Any
    thinking: bool | None = None
    prefill: str = ""
    date: str = ""

    @property
    def template(self) -> str:
        """Return the tokenizer's own Jinja template."""
        template = self.tokenizer.chat_template
        return str(template if isinstance(template, str) else template["default"])

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt of a conversation, with the opened and prefilled answer."""
        return render_chat(self.tokenizer, messages, self.thinking, self.prefill, self.date)

    def render_without_prefill(self, messages: Sequence[Message], *, opens: bool = True) -> str:
        """Return the conversation without the prefill; with `opens` it ends with the header of the answer's turn."""
        return render_chat(self.tokenizer, messages, self.thinking, "" if opens else None, self.date)


def trained_chat(tokenizer: Any, trained: TrainedModel | None) -> TrainedChat | None:
    """Return the chat of a model with the prompt settings `trained` (None: unknown); None if its prompts are not chats.

    Raises InputError if the recipe or the prompt template cannot be read.
    """
    prompt_style = "auto" if trained is None else trained.data.prompt
    if prompt_style not in {"auto", "chat"} or not getattr(tokenizer, "chat_template", None):
        return None
    if trained is None:
        return TrainedChat(tokenizer)
    chat = trained.data.chat
    return TrainedChat(tokenizer, THINKING[chat.thinking], trained_prefill(trained.recipe, trained.data), chat.date)


def trained_prefill(recipe: str, data: DataConfig) -> str:
    """Return the prefill of the answers in a recipe's chats; raises InputError as `trained_chat` does."""
    chat = data.chat
    if chat.assistant_prefill or data.prompt not in {"auto", "chat"}:
        return chat.assistant_prefill
    return read_template(chat.template or find_recipe(recipe).template).assistant(thinks=chat.thinking == "think")


def prefilled_template(chat: TrainedChat) -> str:
    """Return the tokenizer's Jinja template with the thinking switch and the prefill of training.

    "" if the result would not render prompts as in training.
    """
    template = chat.template
    messages = chat_messages("", _USER)
    prefill = chat.render(messages).removeprefix(chat.render_without_prefill(messages))
    switch = "" if chat.thinking is None else f"{{% set enable_thinking = {str(chat.thinking).lower()} %}}"
    added = f"{{% if add_generation_prompt %}}{{{{ {json.dumps(prefill)} }}}}{{% endif %}}" if prefill else ""
    result = switch + (template.removesuffix("\n") + added if added else template)
    rendered = chat.tokenizer.apply_chat_template(
        messages, chat_template=result, tokenize=False, add_generation_prompt=True
    )
    is_same = rendered == chat.render(messages) or bool(chat.date)  # a date changes from day to day
    return result if is_same else ""


def save_chat_template(folder: Path, chat: TrainedChat) -> bool:
    """Write training's thinking switch and prefill to the chat template of an exported folder, for other programs.

    This package reads the tokenizer's original template, which the folder also keeps, and adds both itself. Return
    False if the template cannot include them.
    """
    template = prefilled_template(chat)
    if template and template != chat.template:
        replace_chat_template(folder, template)
    return bool(template)


def missing_prefill_warning(name: str) -> str:
    """Return a warning that the chat template in the file or folder `name` lacks the prefill."""
    return f"{name}: its chat template cannot include the answer's prefill, so prompts of other programs lack it"


def modelfile(gguf: Path, chat: TrainedChat | None, trained: TrainedModel | None, ends: Sequence[str]) -> str:
    """Return ollama's Modelfile of a GGUF file: the template, end tokens and sampling of training.

    `ends` are the texts of the end tokens. `trained` has the sampling of the run's evaluations; if it is None, the
    file sets no sampling, and ollama's defaults apply.
    """
    metadata = read_header(gguf).metadata
    start_token = metadata.get("tokenizer.ggml.add_bos_token") and chat is not None and chat.tokenizer.bos_token
    template = "{{ .Prompt }}" if chat is None else go_template(chat, str(start_token) if start_token else "")
    lines = [f"FROM ./{gguf.name}", f'TEMPLATE """{template}"""']
    lines += [f'PARAMETER stop "{end}"' for end in ends]
    lines += [f"PARAMETER {name} {value:g}" for name, value in _parameters(metadata, trained).items()]
    return "\n".join(lines) + "\n"


def go_template(chat: TrainedChat, start: str = "") -> str:
    """Return the chat as a Go template of one system message, one question and its answer.

    `start` is the start token that ollama adds before a prompt, so the template omits it; "" if ollama adds none.
    """
    question, after_answer = chat_messages("", _USER), ""
    with suppress(InputError):  # the chat template refuses a conversation that ends with an answer
        dialogue = chat.render_without_prefill([*question, {"role": "assistant", "content": _ANSWER}], opens=False)
        after_answer = dialogue.rpartition(_ANSWER)[2] if _ANSWER in dialogue else ""
    without_system = chat.render(question).removeprefix(start)
    try:
        with_system = chat.render(chat_messages(_SYSTEM, _USER)).removeprefix(start)
    except InputError:  # the chat template refuses system messages
        return _as_go(without_system + _ANSWER + after_answer)
    if not (with_system.count(_SYSTEM) == 1 and with_system.count(_USER) == 1):  # it ignores or merges them
        return _as_go(without_system + _ANSWER + after_answer)
    choice = f"{{{{ if .System }}}}{_as_go(with_system)}{{{{ else }}}}{_as_go(without_system)}{{{{ end }}}}"
    return choice + _as_go(_ANSWER + after_answer)


def _as_go(text: str) -> str:
    """Return a rendered conversation as a Go template: escaped, and with fields in place of the messages."""
    text = text.replace("{{", '{{ "{{" }}').replace('"""', '""{{ "\\"" }}')
    for message, name in _FIELDS.items():
        text = text.replace(message, name)
    return text


def _parameters(metadata: Mapping[str, Any], trained: TrainedModel | None) -> dict[str, float]:
    """Return ollama's parameters: the sampling of a run's evaluations, and the lengths of answer and context."""
    if trained is None:
        return {}
    sampling = trained.validation.sampling_in(trained.sampling)
    longest = sampling.max_total_tokens if sampling.turns > 1 else sampling.max_new_tokens
    positions = metadata[f"{metadata['general.architecture']}.context_length"]
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "num_predict": sampling.max_new_tokens,
        "num_ctx": min(positions, trained.data.max_prompt_tokens + longest),
    }
