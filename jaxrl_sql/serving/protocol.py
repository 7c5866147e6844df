"""Requests and responses of OpenAI's chat and completions API as data models.

A choice is one sampled answer to one prompt of a request. Control tokens, such as `<|im_end|>`, end turns; texts of
messages must not produce them (`runtime.control_tokens`).
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from jaxrl_sql.rollout import Engine, Sample, SamplingParams
from jaxrl_sql.rollout.stop_strings import STATEMENT_END
from jaxrl_sql.runtime.control_tokens import ControlTokens, prompt_ids, strip_marks
from jaxrl_sql.runtime.plain import plain
from jaxrl_sql.serving.chats import DEFAULT_CHAT_SETTINGS, ChatSettings
from jaxrl_sql.serving.parameters import (
    IGNORED,
    IGNORED_IN_CONTENT,
    REFUSED,
    REFUSED_IN,
    Refused,
    RefusedError,
    check_names,
    check_parameters,
)
from jaxrl_sql.text2sql.env.turns import TAGS
from jaxrl_sql.text2sql.prompts.chat import render_chat
from jaxrl_sql.types import Fields, Prompt, Record, Tokenizer

MAX_SAMPLES = 128
"""Maximum number of samples, and of prompts, per request."""
# A text that no message contains, to test whether a chat template shows a message.
_SENTINEL = "a7c1f04e2b"
MAX_STOPS, STOP_BYTES = 16, 256
"""Limits on a request's stop strings: their number and total bytes.

Each byte is a state of the engine's automaton, and a state has a row as long as the vocabulary.
"""


class _ApiObject(BaseModel):
    """Base of the models: null means absent, 1.0 means 1, and `check_parameters` checks unknown names."""

    model_config = ConfigDict(extra="allow", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        annotations = {name: cls.model_fields[name].annotation for name in fields if name in cls.model_fields}
        present = {name: value for name, value in fields.items() if value is not None or name not in annotations}
        # JSON has one type of number, and some clients write whole ones as 1.0.
        whole_numbers = {
            name: int(value)
            for name, value in present.items()
            if annotations.get(name) in (int, int | None) and isinstance(value, float) and value.is_integer()
        }
        return present | whole_numbers

    def check(self, refused: Refused, ignored: Collection[str] = (), where: str = "") -> None:
        """Raise RefusedError, as `check_parameters` does, for names that are no fields of the model."""
        check_parameters(self.model_extra or {}, type(self).model_fields, refused, ignored, where)


class StreamOptions(_ApiObject):
    """Options of a stream."""

    include_usage: bool = False


class TemplateOptions(_ApiObject):
    """Options of the chat template."""

    enable_thinking: bool | None = None


class ApiRequest(_ApiObject):
    """Common fields of both requests. Missing sampling parameters are temperature 1, and no top-p, top-k or min-p."""

    default_tokens: ClassVar[int]
    """Default of `max_tokens`."""

    model: str
    n: int = Field(1, ge=1, le=MAX_SAMPLES)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: bool | int | None = None
    return_token_ids: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def check_all(self) -> None:
        """Raise RefusedError for parameters and members that are not supported."""
        self.check({**REFUSED, "best_of": (self.n,)}, IGNORED)
        if self.stream_options:
            self.stream_options.check(REFUSED_IN["stream_options"], where="stream_options.")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            message = f"max_tokens is {self.max_tokens}, max_completion_tokens {self.max_completion_tokens}: send one"
            raise RefusedError(message, param="max_tokens")

    def prompts(self, engine: Engine, chat: ChatSettings = DEFAULT_CHAT_SETTINGS) -> list[Prompt]:
        """Return the prompts as tokens; `chat` are the settings of the model's training."""
        raise NotImplementedError

    def sampling(self, engine: Engine, prompts: Sequence[Prompt], server_limit: int) -> SamplingParams:
        """Return the sampling parameters; `server_limit` is the server's limit of tokens per answer.

        Raises RefusedError for a prompt that is too long and for stop strings beyond their limits, InputError for a
        number outside its range.
        """
        longest_prompt, positions = max(len(prompt.token_ids) for prompt in prompts), engine.model.max_positions
        free_positions, limit = positions - longest_prompt, self.max_completion_tokens or self.max_tokens
        if free_positions < (limit or 1):
            suffix = f" and {limit} of its completion" if limit else ""
            message = f"the model has {positions} positions: {longest_prompt} tokens of the prompt{suffix} do not fit"
            raise RefusedError(message, "context_length_exceeded")
        if limit and limit > server_limit:
            raise RefusedError(f"max_tokens is at most {server_limit} here, not {limit}", param="max_tokens")
        if len(self.stops) > MAX_STOPS or len("".join(self.stops).encode(errors="replace")) > STOP_BYTES:
            message = f"stop: at most {MAX_STOPS} strings of at most {STOP_BYTES} bytes together"
            raise RefusedError(message, param="stop")
        if STATEMENT_END in self.stops:  # for the engine it means the end of a SQL statement
            raise RefusedError("stop: a zero byte before a semicolon is not supported by this server", param="stop")
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        parameters = {name: value for name in names if (value := getattr(self, name)) is not None}
        if parameters.get("top_k") == -1:
            parameters["top_k"] = 0  # in vLLM's API -1 means all tokens
        seed = secrets.randbits(31) if self.seed is None else self.seed % 2**31
        tokens = min(limit or self.default_tokens, server_limit, free_positions)
        return SamplingParams(n=self.n, max_new_tokens=tokens, stop=self.stops, seed=seed, **parameters)


class ContentPart(_ApiObject):
    """A part of a message; only texts are read."""

    type: str
    text: str | None = None


class Message(_ApiObject):
    """A message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None

    def check_all(self, where: str) -> None:
        """Raise RefusedError for members that are not supported, and for a content part that is not text."""
        self.check(REFUSED_IN["messages"], where=where)
        if self.content is None and self.role != "assistant":
            raise RefusedError(f"{where}content: is missing", param="messages")
        for i, part in enumerate(self.content if isinstance(self.content, list) else ()):
            if part.type != "text":
                raise RefusedError(f"{where}content.{i} is of type {part.type!r}: only text is read", param="messages")
            if part.text is None:
                raise RefusedError(f"{where}content.{i}.text is missing", param="messages")
            part.check(REFUSED_IN["content"], IGNORED_IN_CONTENT, f"{where}content.{i}.")

    def plain(self) -> dict[str, str]:
        """Return role and text."""
        parts = self.content or ""
        return {"role": self.role, "content": parts if isinstance(parts, str) else "".join(p.text or "" for p in parts)}

    def escape_special_tokens(self, control: ControlTokens) -> dict[str, str]:
        """Return role and text, with the names of control tokens escaped.

        A message may be a prompt of this package, so the tags of its dialogues, such as `<sql>`, stay tokens. An
        assistant's message may have any tag of the tokenizer.
        """
        exclude = TAGS | control.tags if self.role == "assistant" else TAGS
        return {key: control.escape(text, exclude) for key, text in self.plain().items()}


class ChatRequest(ApiRequest):
    """A conversation to continue; by default an answer may have all tokens that fit."""

    default_tokens = 1 << 31
    messages: list[Message] = Field(min_length=1)
    logprobs: bool = False
    chat_template_kwargs: TemplateOptions = TemplateOptions()

    def check_all(self) -> None:
        """Raise RefusedError for parameters and members that are not supported."""
        super().check_all()
        self.chat_template_kwargs.check(REFUSED_IN["chat_template_kwargs"], where="chat_template_kwargs.")
        for i, message in enumerate(self.messages):
            message.check_all(f"messages.{i}.")

    def prompts(self, engine: Engine, chat: ChatSettings = DEFAULT_CHAT_SETTINGS) -> list[Prompt]:
        """Return the conversation as the tokens of one prompt, by the tokenizer's chat template, with the prefill.

        Raises RefusedError if the template omits a message, as some do for unknown roles.
        """
        control = engine.vocabulary.control
        messages = [message.escape_special_tokens(control) for message in self.messages]
        thinking = self.chat_template_kwargs.enable_thinking
        text = render_chat(engine.tokenizer, messages, thinking, chat.prefill, chat.date)
        for i, message in enumerate(messages):
            # An assistant's message is not checked, because templates omit its reasoning.
            is_present = message["role"] == "assistant" or message["content"].strip() in text
            if not is_present and not self._is_shown(engine, messages, i):
                role = self.messages[i].role
                reason = f"messages.{i}: the model's chat template omits the text of a message of role {role!r}"
                raise RefusedError(reason, param="messages")
        return [Prompt("chat", tuple(control.encode(text)), strip_marks(text))]

    def _is_shown(self, engine: Engine, messages: Sequence[Mapping[str, str]], i: int) -> bool:
        """Return whether the template shows the content of the i-th message, if it is another text.

        A template may change a text, as SmolLM3's removes `/no_think`, so the text alone may be absent.
        """
        replaced = [*messages[:i], {**messages[i], "content": _SENTINEL}, *messages[i + 1 :]]
        return _SENTINEL in render_chat(engine.tokenizer, replaced, self.chat_template_kwargs.enable_thinking, "")


class CompletionRequest(ApiRequest):
    """Texts, or tokens, to continue; control tokens in a text are recognised, because the client applies templates."""

    default_tokens = 16  # OpenAI's
    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = Field(None, ge=0)
    add_special_tokens: bool = True

    def check_all(self) -> None:
        """Raise RefusedError for parameters and members that are not supported."""
        super().check_all()
        if self.logprobs:
            message = (
                f"logprobs: {self.logprobs} is not supported: send 0 for the sampled tokens only, without alternatives"
            )
            raise RefusedError(message, param="logprobs")

    def prompts(self, engine: Engine, chat: ChatSettings = DEFAULT_CHAT_SETTINGS) -> list[Prompt]:  # noqa: ARG002 (no chat template)
        """Return the prompts as tokens."""
        prompts: Any = self.prompt
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        if not 0 < len(prompts) <= MAX_SAMPLES:
            raise RefusedError(f"prompt: 1 to {MAX_SAMPLES} prompts are allowed, not {len(prompts)}", param="prompt")
        encoded = [prompt if isinstance(prompt, list) else self._ids(engine.tokenizer, prompt) for prompt in prompts]
        if not all(encoded):
            raise RefusedError("prompt: a prompt has no tokens", param="prompt")
        vocab_size = engine.model.vocab_size
        if invalid := next((token for ids in encoded for token in ids if not 0 <= token < vocab_size), None):
            message = f"prompt: token {invalid} is not in the model's vocabulary of {vocab_size}"
            raise RefusedError(message, param="prompt")
        return [Prompt(f"prompt {i}", tuple(ids), "") for i, ids in enumerate(encoded)]

    def _ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        if self.add_special_tokens:
            return prompt_ids(tokenizer, text)
        return list(tokenizer.encode(text, add_special_tokens=False))


def parse_request(request_type: type[ApiRequest], body: bytes) -> ApiRequest:
    """Parse a request from JSON; raises RefusedError for an invalid one, and for parameters that are not supported."""
    try:
        request = request_type.model_validate_json(body)
    except ValidationError as error:
        first_error = error.errors()[0]
        where = ".".join(map(str, first_error["loc"]))
        raise RefusedError(f"{where or 'the body'}: {first_error['msg']}", param=where or None) from error
    try:
        check_names(body)
    except ValueError as error:
        raise RefusedError(f"the body: {error}") from error
    request.check_all()
    return request


class ResponseBuilder:
    """Build the response to one request, complete or as the events of a stream; `head` has the fields of both."""

    def __init__(self, request: ApiRequest, prompts: Sequence[Prompt], engine: Engine) -> None:
        self.request, self.prompts, self.engine = request, prompts, engine
        self.is_chat = isinstance(request, ChatRequest)
        kind, name = ("chat.completion", "chatcmpl") if self.is_chat else ("text_completion", "cmpl")
        self.head = {
            "id": f"{name}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if self.is_chat and request.stream else kind,
            "created": int(time.time()),
            "model": request.model,
        }
        self.sent: dict[int, tuple[int, int]] = {}
        """The numbers of tokens and characters that were streamed, by the index of the choice."""
        self.num_tokens = 0

    def complete(self, samples: Sequence[Sample]) -> Record:
        """Return the complete response."""
        choices = [self._choice(sample, "message", 0, self._text(sample)) for sample in samples]
        choices.sort(key=lambda choice: choice["index"])
        return {**self.head, "choices": choices, "usage": self._usage()}

    def event(self, sample: Sample) -> Record | None:
        """Return the event with the tokens that a sample has gained since its last event; None if it gained none.

        A text that further tokens may change, such as half a character, is sent with a later event.
        """
        choice_index = self._choice_index(sample)
        sent_tokens, sent_characters = self.sent.get(choice_index, (0, 0))
        if len(sample.token_ids) == sent_tokens and not sample.finish_reason:
            return None
        text = self._text(sample)
        final_length = len(text) if sample.finish_reason else self._stable_length(text)
        self.sent[choice_index] = len(sample.token_ids), max(sent_characters, final_length)
        choice = self._choice(sample, "delta", sent_tokens, text[sent_characters:final_length])
        return {**self.head, "choices": [choice]}

    def usage_event(self) -> Record:
        """Return the last event of a stream with `include_usage`."""
        return {**self.head, "choices": [], "usage": self._usage()}

    def _usage(self) -> dict[str, int]:
        prompt_tokens = sum(len(prompt.token_ids) for prompt in self.prompts)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.num_tokens,
            "total_tokens": prompt_tokens + self.num_tokens,
        }

    def _choice_index(self, sample: Sample) -> int:
        return sample.prompt_index * self.request.n + sample.index

    def _choice(self, sample: Sample, key: str, first: int, text: str) -> Record:
        """Return a choice with a text, and with a sample's tokens from `first` on if the request asks for them.

        `key` is the member with the text of a chat: `message`, or `delta` in a stream.
        """
        ids, logprobs = sample.token_ids[first:], sample.logprobs[first:]
        self.num_tokens += len(ids)
        content = {key: {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        fields: Record = {"index": self._choice_index(sample), "finish_reason": sample.finish_reason or None}
        fields["logprobs"] = self._logprobs(ids, logprobs)
        if self.request.return_token_ids:
            fields |= {"token_ids": [*ids], "prompt_token_ids": [*self.prompts[sample.prompt_index].token_ids]}
        return content | fields

    def _logprobs(self, ids: Sequence[int], logprobs: Sequence[float]) -> Fields | None:
        if self.request.logprobs is None or self.request.logprobs is False:
            return None
        texts = [self.engine.tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in ids]
        logprobs = plain(logprobs)  # null instead of infinity, which JSON does not have
        if not self.is_chat:
            return {"tokens": texts, "token_logprobs": [*logprobs], "top_logprobs": None}
        token_bytes = self.engine.vocabulary.token_bytes
        content = [
            {"token": text, "logprob": logprob, "bytes": [*token_bytes[token]], "top_logprobs": []}
            for text, token, logprob in zip(texts, ids, logprobs, strict=True)
        ]
        return {"content": content}

    def _text(self, sample: Sample) -> str:
        """Return the text of a sample without the stop string that ended it, as in OpenAI's API."""
        if sample.finish_reason:
            is_stopped = sample.finish_reason == "stop"
            stop = next((stop for stop in self.request.stops if is_stopped and sample.text.endswith(stop)), "")
            return sample.text.removesuffix(stop)
        return self.engine.vocabulary.text(sample.token_ids)

    def _stable_length(self, text: str) -> int:
        """Return the length of the text that is final: without a partial character or stop string at its end."""
        text = text.rstrip("\ufffd")  # the decoded form of an incomplete character
        partial_stops = (n for stop in self.request.stops for n in range(1, len(stop) + 1) if text.endswith(stop[:n]))
        return len(text) - max(partial_stops, default=0)
