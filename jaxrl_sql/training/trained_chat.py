"""The chat of a trained model for other programs: a chat template with the answer's prefill, and ollama's Modelfile.

A client of vLLM, llama.cpp or ollama sends messages alone. The server's template therefore adds the prefill of the
answer, as in training. Ollama reads no Jinja: it guesses a known template, so its template is written in Go's syntax.
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
_SYSTEM, _USER, _ANSWER = "\ue000system\ue000", "\ue000user\ue000", "\ue000answer\ue000"
_FIELDS = {_SYSTEM: "{{ .System }}", _USER: "{{ .Prompt }}", _ANSWER: "{{ .Response }}"}


class TrainedChat(NamedTuple):
    """How a model's prompts are rendered: its tokenizer, the thinking switch, the answer's prefill and the date."""

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

    def bare(self, messages: Sequence[Message], *, opens: bool = True) -> str:
        """Return the conversation without the prefill; if `opens`, with the opened answer."""
        return render_chat(self.tokenizer, messages, self.thinking, "" if opens else None, self.date)


def trained_chat(tokenizer: Any, trained: TrainedModel | None) -> TrainedChat | None:
    """Return the chat of a model by its prompt settings (None: unknown), or None if its prompts are not chats.

    Raises InputError if the recipe or the prompt template cannot be read.
    """
    form = "auto" if trained is None else trained.data.prompt
    if form not in {"auto", "chat"} or not getattr(tokenizer, "chat_template", None):
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
    prefill = chat.render(messages).removeprefix(chat.bare(messages))
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

    Our own loading of the folder reads the tokenizer's own template. Return False if the template cannot include them.
    """
    template = prefilled_template(chat)
    if template and template != chat.template:
        replace_chat_template(folder, template)
    return bool(template)


def no_prefill(name: str) -> str:
    """Return a warning that the chat template in the file or folder `name` lacks the prefill."""
    return f"{name}: its chat template cannot include the answer's prefill, so prompts of other programs lack it"


def modelfile(gguf: Path, chat: TrainedChat | None, trained: TrainedModel | None, ends: Sequence[str]) -> str:
    """Return ollama's Modelfile of a GGUF file: the template, end tokens and sampling of training.

    `ends` are the texts of the end tokens. `trained` has the sampling of the run's evaluations; if it is None, ollama's
    own is used.
    """
    metadata = read_header(gguf).metadata
    adds_start = metadata.get("tokenizer.ggml.add_bos_token") and chat is not None and chat.tokenizer.bos_token
    template = "{{ .Prompt }}" if chat is None else go_template(chat, str(adds_start) if adds_start else "")
    lines = [f"FROM ./{gguf.name}", f'TEMPLATE """{template}"""']
    lines += [f'PARAMETER stop "{end}"' for end in ends]
    lines += [f"PARAMETER {name} {value:g}" for name, value in _parameters(metadata, trained).items()]
    return "\n".join(lines) + "\n"


def go_template(chat: TrainedChat, start: str = "") -> str:
    """Return the chat as a Go template of one system message, one question and its answer.

    `start` is the token that ollama itself puts before a prompt.
    """
    question, answered = chat_messages("", _USER), ""
    with suppress(InputError):  # a template without an assistant's turn at the end
        dialogue = chat.bare([*question, {"role": "assistant", "content": _ANSWER}], opens=False)
        answered = dialogue.rpartition(_ANSWER)[2] if _ANSWER in dialogue else ""
    without = chat.render(question).removeprefix(start)
    try:
        with_system = chat.render(chat_messages(_SYSTEM, _USER)).removeprefix(start)
    except InputError:  # a template without system messages
        return _as_go(without + _ANSWER + answered)
    if not (with_system.count(_SYSTEM) == 1 and with_system.count(_USER) == 1):
        return _as_go(without + _ANSWER + answered)
    choice = f"{{{{ if .System }}}}{_as_go(with_system)}{{{{ else }}}}{_as_go(without)}{{{{ end }}}}"
    return choice + _as_go(_ANSWER + answered)


def _as_go(text: str) -> str:
    """Return a text as a Go template, with fields in place of the messages."""
    text = text.replace("{{", '{{ "{{" }}').replace('"""', '""{{ "\\"" }}')
    for message, name in _FIELDS.items():
        text = text.replace(message, name)
    return text


def _parameters(metadata: Mapping[str, Any], trained: TrainedModel | None) -> dict[str, float]:
    """Return ollama's parameters for the sampling of a run's evaluations, and the room for prompt and answer."""
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
