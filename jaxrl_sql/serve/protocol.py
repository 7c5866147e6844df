"""OpenAI's chat and completions as data: what is asked, what is refused, and the form of what is answered."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jaxrl_sql.data.chat import render_chat
from jaxrl_sql.ops.control_tokens import ControlTokens, bare, prompt_ids
from jaxrl_sql.rollout import Engine, Sample, SamplingParams
from jaxrl_sql.runtime.plain import plain
from jaxrl_sql.sqlenv.turns import TAGS
from jaxrl_sql.types import JaxrlSqlError, Prompt

MOST = 128
"""The most samples, and the most prompts, of a request."""
MOST_STOPS, STOP_BYTES = 16, 256
"""The most stop strings of a request, and their bytes together: each has a row as long as the vocabulary."""

# What would change the answer and is not done here; a value in the tuple asks for nothing.
_NOTHING: tuple[Any, ...] = (None, 0, False, {}, [], "")
_NOT_DONE = (
    "best_of", "echo", "suffix", "logit_bias", "presence_penalty", "frequency_penalty", "top_logprobs", "tools",
    "functions", "response_format", "audio", "prompt_logprobs", "min_tokens", "stop_token_ids", "ignore_eos",
)  # fmt: skip


class RefusedError(JaxrlSqlError):
    """A request that cannot be served, as OpenAI's error object tells it."""

    def __init__(self, message: str, code: str | None = None, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.param, self.status = code, param, status

    def body(self) -> dict[str, Any]:
        """Return the error object."""
        kinds = {429: "rate_limit_error", 503: "server_error", 500: "server_error"}
        kind = kinds.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class StreamOptions(BaseModel):
    """What a stream holds beside its pieces."""

    include_usage: bool = False


class Request(BaseModel):
    """What both forms of request have. Numbers not named are the engine's: a whole distribution, temperature 1."""

    model_config = ConfigDict(extra="allow")
    usual_tokens: ClassVar[int]
    """How many tokens a completion may have where no number is named."""

    model: str
    n: int = Field(1, ge=1, le=MOST)
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

    def prompts(self, engine: Engine, date: str = "") -> list[Prompt]:
        """Return the prompts as tokens; `date` is the day that a chat template knows, empty for that of the request."""
        raise NotImplementedError

    def sampling(self, engine: Engine, prompts: Sequence[Prompt], most: int) -> SamplingParams:
        """Return how to sample; `most` tokens are the server's own bound.

        Raises RefusedError for a prompt that is too long and for stop strings beyond their bounds, InputError for a
        number outside its range.
        """
        longest, positions = max(len(one.token_ids) for one in prompts), engine.model.max_positions
        room, limit = positions - longest, self.max_completion_tokens or self.max_tokens
        if room < (limit or 1):
            wanted = f" and {limit} of its completion" if limit else ""
            message = f"the model has {positions} positions: {longest} tokens of the prompt{wanted} do not fit"
            raise RefusedError(message, "context_length_exceeded")
        if limit and limit > most:
            raise RefusedError(f"max_tokens is at most {most} here, not {limit}", param="max_tokens")
        if len(self.stops) > MOST_STOPS or len("".join(self.stops).encode(errors="replace")) > STOP_BYTES:
            message = f"stop: at most {MOST_STOPS} strings of at most {STOP_BYTES} bytes together"
            raise RefusedError(message, param="stop")
        given = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        told = {name: value for name in given if (value := getattr(self, name)) is not None}
        if told.get("top_k", 0) < 0:
            told["top_k"] = 0  # -1 means all, where vLLM is asked
        seed = secrets.randbits(31) if self.seed is None else self.seed % 2**31
        tokens = min(limit or self.usual_tokens, most, room)
        return SamplingParams(n=self.n, max_new_tokens=tokens, stop=self.stops, seed=seed, **told)


class ContentPart(BaseModel):
    """A part of a message; only texts are read."""

    type: str
    text: str = ""


class Message(BaseModel):
    """A message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None

    def plain(self) -> dict[str, str]:
        """Return role and text; raises RefusedError for a part that is no text."""
        parts = self.content if isinstance(self.content, list) else [ContentPart(type="text", text=self.content or "")]
        if other := next((part.type for part in parts if part.type != "text"), ""):
            raise RefusedError(f"a message's part is of type {other!r}: only text is read", param="messages")
        return {"role": self.role, "content": "".join(part.text for part in parts)}

    def shielded(self, control: ControlTokens) -> dict[str, str]:
        """Return role and text with marks in the names of control tokens.

        A message may be a prompt of ours, so a dialogue's tags stay tokens; an assistant may have written any tag.
        """
        but = TAGS | control.tags if self.role == "assistant" else TAGS
        return {key: control.shield(text, but) for key, text in self.plain().items()}


class ChatRequest(Request):
    """A conversation to go on with; an answer may have all tokens that fit."""

    usual_tokens = 1 << 31
    messages: list[Message] = Field(min_length=1)
    logprobs: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    def prompts(self, engine: Engine, date: str = "") -> list[Prompt]:
        """Return the conversation as tokens, by the tokenizer's chat template."""
        thinking = self.chat_template_kwargs.get("enable_thinking")
        control = engine.vocabulary.control
        messages = [message.shielded(control) for message in self.messages]
        text = render_chat(engine.tokenizer, messages, None if thinking is None else bool(thinking), "", date)
        return [Prompt("chat", tuple(control.encode(text)), bare(text))]


class CompletionRequest(Request):
    """Texts, or tokens, to continue; control tokens in a text count, as whoever sends it writes the template."""

    usual_tokens = 16  # OpenAI's
    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=1)

    def prompts(self, engine: Engine, date: str = "") -> list[Prompt]:  # noqa: ARG002 (a text has its own)
        """Return the prompts as tokens."""
        given: Any = self.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = [given]
        if not 0 < len(given) <= MOST:
            raise RefusedError(f"prompt: 1 to {MOST} of them, not {len(given)}", param="prompt")
        found = [one if isinstance(one, list) else prompt_ids(engine.tokenizer, one) for one in given]
        if not all(found):
            raise RefusedError("prompt: one is without tokens", param="prompt")
        size = engine.model.vocab_size
        if wrong := next((token for ids in found for token in ids if not 0 <= token < size), None):
            raise RefusedError(f"prompt: token {wrong} is none of the model's {size}", param="prompt")
        return [Prompt(f"prompt {i}", tuple(ids), "") for i, ids in enumerate(found)]


def read(kind: type[Request], body: bytes) -> Request:
    """Return a request; raises RefusedError for what is none, and for what asks for something that is not done."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RefusedError(f"{where or 'the body'}: {first['msg']}", param=where or None) from error
    for name, value in (request.model_extra or {}).items():
        if name in _NOT_DONE and value not in (*_NOTHING, {"type": "text"}) and (name, value) != ("best_of", 1):
            raise RefusedError(f"{name} is not supported by this server", "unsupported_parameter", name)
    return request


class Writer:
    """Writes the answers to one request, whole or as the events of a stream."""

    def __init__(self, request: Request, prompts: Sequence[Prompt], engine: Engine) -> None:
        self.request, self.given, self.engine = request, prompts, engine
        self.is_chat = isinstance(request, ChatRequest)
        kind, name = ("chat.completion", "chatcmpl") if self.is_chat else ("text_completion", "cmpl")
        self.head = {
            "id": f"{name}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if self.is_chat and request.stream else kind,
            "created": int(time.time()),
            "model": request.model,
        }
        self.sent: dict[int, tuple[int, int]] = {}
        """The tokens and the characters of each choice that were streamed."""
        self.written = 0

    def whole(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Return the answer of all samples."""
        choices = [self._choice(sample, "message", 0, self._text(sample)) for sample in samples]
        choices.sort(key=lambda choice: choice["index"])
        return {**self.head, "choices": choices, "usage": self._usage()}

    def event(self, sample: Sample) -> dict[str, Any] | None:
        """Return the event of what has come of a sample since the last one; None where nothing has."""
        number = self._number(sample)
        tokens, characters = self.sent.get(number, (0, 0))
        if len(sample.token_ids) == tokens and not sample.finish_reason:
            return None
        text = self._text(sample)
        sure = len(text) if sample.finish_reason else self._sure(text)
        self.sent[number] = len(sample.token_ids), max(characters, sure)
        return {**self.head, "choices": [self._choice(sample, "delta", tokens, text[characters:sure])]}

    def usage_event(self) -> dict[str, Any]:
        """Return the last event of a stream whose usage is asked for."""
        return {**self.head, "choices": [], "usage": self._usage()}

    def _usage(self) -> dict[str, int]:
        read_ = sum(len(one.token_ids) for one in self.given)
        return {"prompt_tokens": read_, "completion_tokens": self.written, "total_tokens": read_ + self.written}

    def _number(self, sample: Sample) -> int:
        return sample.prompt_index * self.request.n + sample.index

    def _choice(self, sample: Sample, part: str, first: int, text: str) -> dict[str, Any]:
        """Return a choice with a text, and with a sample's tokens from a `first` one on where they are asked for."""
        ids, logprobs = sample.token_ids[first:], sample.logprobs[first:]
        self.written += len(ids)
        said = {part: {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        about: dict[str, Any] = {"index": self._number(sample), "finish_reason": sample.finish_reason or None}
        about["logprobs"] = self._logprobs(ids, logprobs)
        if self.request.return_token_ids:
            about |= {"token_ids": [*ids], "prompt_token_ids": [*self.given[sample.prompt_index].token_ids]}
        return said | about

    def _logprobs(self, ids: Sequence[int], logprobs: Sequence[float]) -> Mapping[str, Any] | None:
        if self.request.logprobs is None or self.request.logprobs is False:
            return None
        texts, logprobs = (
            [self.engine.tokenizer.decode([token], clean_up_tokenization_spaces=False) for token in ids],
            plain(logprobs),
        )  # JSON has no infinity
        if not self.is_chat:
            return {"tokens": texts, "token_logprobs": [*logprobs], "top_logprobs": None}
        names = self.engine.vocabulary.token_bytes
        content = [
            {"token": text, "logprob": value, "bytes": [*names[token]], "top_logprobs": []}
            for text, token, value in zip(texts, ids, logprobs, strict=True)
        ]
        return {"content": content}

    def _text(self, sample: Sample) -> str:
        """Return the text of a sample without the stop string that ended it, which OpenAI's answers leave out."""
        if sample.finish_reason:
            ends = sample.finish_reason == "stop"
            stop = next((one for one in self.request.stops if ends and sample.text.endswith(one)), "")
            return sample.text.removesuffix(stop)
        return self.engine.vocabulary.text(sample.token_ids)

    def _sure(self, text: str) -> int:
        """Return how much of a text cannot change: not a cut character at its end, nor what may begin a stop string."""
        text = text.rstrip("\ufffd")
        held = (n for stop in self.request.stops for n in range(1, len(stop) + 1) if text.endswith(stop[:n]))
        return len(text) - max(held, default=0)
