"""OpenAI's chat and completions as data: what is asked, what is refused, and the form of what is answered."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jaxrl_sql.data.chat import render_chat
from jaxrl_sql.rollout import Engine, Sample, SamplingParams
from jaxrl_sql.serve.batcher import Piece
from jaxrl_sql.types import InputError, JaxrlSqlError, Prompt

MOST = 128
"""The most samples, and the most prompts, of a request."""

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
        return error_body(str(self), self.code, self.param, self.status)


def error_body(message: str, code: str | None = None, param: str | None = None, status: int = 400) -> dict[str, Any]:
    """Return OpenAI's error object."""
    kinds = {429: "rate_limit_error", 503: "server_error", 500: "server_error"}
    kind = kinds.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


class StreamOptions(BaseModel):
    """What a stream holds beside its pieces."""

    include_usage: bool = False


class Request(BaseModel):
    """What both forms of request have. Numbers not named are the engine's: a whole distribution, temperature 1."""

    model_config = ConfigDict(extra="allow")
    model: str
    n: int = Field(1, ge=1, le=MOST)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False

    def usual_tokens(self, room: int) -> int:
        """Return how many tokens a completion may have that names no number, in `room` positions."""
        raise NotImplementedError

    def prompts(self, engine: Engine) -> list[Prompt]:
        """Return the prompts as tokens."""
        raise NotImplementedError

    @property
    def wants_logprobs(self) -> bool:
        """Return whether tokens are answered with their log-probabilities."""
        raise NotImplementedError

    @property
    def limit(self) -> int | None:
        """Return the tokens that a completion is bounded by; None where none are named."""
        return self.max_tokens

    def sampling(self, engine: Engine, prompts: Sequence[Prompt], most: int) -> SamplingParams:
        """Return how to sample; `most` tokens are the server's own bound. Raises RefusedError for a long prompt."""
        longest, positions = max(len(one.token_ids) for one in prompts), engine.model.max_positions
        room = positions - longest
        if room < 1 or (self.limit is not None and self.limit > room):
            wanted = f" and {self.limit} of its completion" if self.limit is not None else ""
            raise RefusedError(
                f"the model has {positions} positions: {longest} tokens of the prompt{wanted} do not fit",
                "context_length_exceeded",
            )
        if self.limit is not None and self.limit > most:
            raise RefusedError(f"max_tokens is at most {most} here, not {self.limit}", param="max_tokens")
        given = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        told = {name: value for name in given if (value := getattr(self, name)) is not None}
        if told.get("top_k", 0) < 0:
            told["top_k"] = 0  # -1 means all, where vLLM is asked
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        seed = secrets.randbits(31) if self.seed is None else self.seed % 2**31
        tokens = min(self.limit or self.usual_tokens(room), most, room)
        return SamplingParams(n=self.n, max_new_tokens=tokens, stop=stop, seed=seed, **told)


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
        if isinstance(self.content, list):
            if other := next((part.type for part in self.content if part.type != "text"), ""):
                raise RefusedError(f"a message's part is of type {other!r}: only text is read", param="messages")
            return {"role": self.role, "content": "".join(part.text for part in self.content)}
        return {"role": self.role, "content": self.content or ""}


class ChatRequest(Request):
    """A conversation to go on with."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def limit(self) -> int | None:
        """Return the tokens that a completion is bounded by; None where none are named."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_logprobs(self) -> bool:
        """Return whether tokens are answered with their log-probabilities."""
        return self.logprobs

    def usual_tokens(self, room: int) -> int:
        """Return how many tokens a completion may have that names no number: all that fit."""
        return room

    def prompts(self, engine: Engine) -> list[Prompt]:
        """Return the conversation as tokens, by the tokenizer's chat template."""
        thinking = self.chat_template_kwargs.get("enable_thinking")
        messages = [message.plain() for message in self.messages]
        text = render_chat(engine.tokenizer, messages, None if thinking is None else bool(thinking), "")
        return [Prompt("chat", tuple(engine.tokenizer.encode(text, add_special_tokens=False)), text)]


class CompletionRequest(Request):
    """Texts, or tokens, to go on with."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=1)

    @property
    def wants_logprobs(self) -> bool:
        """Return whether tokens are answered with their log-probabilities."""
        return self.logprobs is not None

    def usual_tokens(self, room: int) -> int:
        """Return how many tokens a completion may have that names no number: OpenAI's 16."""
        return min(room, 16)

    def prompts(self, engine: Engine) -> list[Prompt]:
        """Return the prompts as tokens."""
        given: Any = self.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = [given]
        if not 0 < len(given) <= MOST:
            raise RefusedError(f"prompt: 1 to {MOST} of them, not {len(given)}", param="prompt")
        found = [one if isinstance(one, list) else engine.tokenizer.encode(one) for one in given]
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
        self.head = {
            "id": f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": request.model,
        }
        self.streams: dict[int, _Text] = {}
        self.written = 0

    def number(self, said: Sample | Piece) -> int:
        """Return the number of a sample's choice."""
        return said.prompt_index * self.request.n + said.index

    def whole(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Return the answer of all samples."""
        choices = []
        for sample in sorted(samples, key=self.number):
            self.written += len(sample.token_ids)
            text = without_stop(sample, self._stops())
            said = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
            choices.append(
                {"index": self.number(sample), **said, "finish_reason": sample.finish_reason}
                | self._about(sample.token_ids, sample.logprobs, sample.prompt_index)
            )
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {**self.head, "object": kind, "choices": choices, "usage": self.usage()}

    def piece(self, piece: Piece) -> dict[str, Any]:
        """Return the event of a piece of a sample."""
        self.written += len(piece.token_ids)
        text = self._stream(piece).add(piece.token_ids)
        return self._event(piece, text, None, self._about(piece.token_ids, piece.logprobs, piece.prompt_index))

    def last(self, sample: Sample) -> dict[str, Any]:
        """Return the event that ends a sample, with what was held back of its text."""
        whole = without_stop(sample, self._stops())
        return self._event(sample, whole[self._stream(sample).sent :], sample.finish_reason, {})

    def usage_event(self) -> dict[str, Any]:
        """Return the last event of a stream whose usage is asked for."""
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return {**self.head, "object": kind, "choices": [], "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Return the tokens that were read and written."""
        read_ = sum(len(one.token_ids) for one in self.given)
        return {"prompt_tokens": read_, "completion_tokens": self.written, "total_tokens": read_ + self.written}

    def _event(self, said: Sample | Piece, text: str, reason: str | None, about: Mapping[str, Any]) -> dict[str, Any]:
        part = {"delta": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        choice = {"index": self.number(said), **part, "finish_reason": reason, **about}
        return {
            **self.head,
            "object": "chat.completion.chunk" if self.is_chat else "text_completion",
            "choices": [choice],
        }

    def _about(self, ids: Sequence[int], logprobs: Sequence[float], prompt: int) -> dict[str, Any]:
        """Return the log-probabilities and the ids of tokens, where they are asked for."""
        about: dict[str, Any] = {"logprobs": None}
        if self.request.wants_logprobs:
            texts = [self.engine.tokenizer.decode([token]) for token in ids]
            if self.is_chat:
                names = self.engine.vocabulary.token_bytes
                about["logprobs"] = {
                    "content": [
                        {"token": text, "logprob": value, "bytes": [*names[token]], "top_logprobs": []}
                        for text, token, value in zip(texts, ids, logprobs, strict=True)
                    ]
                }
            else:
                about["logprobs"] = {"tokens": texts, "token_logprobs": [*logprobs], "top_logprobs": None}
        if self.request.return_token_ids:
            about |= {"token_ids": [*ids], "prompt_token_ids": [*self.given[prompt].token_ids]}
        return about

    def _stops(self) -> tuple[str, ...]:
        stop = self.request.stop
        return (stop,) if isinstance(stop, str) else tuple(stop or ())

    def _stream(self, said: Sample | Piece) -> _Text:
        return self.streams.setdefault(self.number(said), _Text(self.engine, self._stops()))


class _Text:
    """The text of a sample while its tokens come: what may still change, or begins a stop string, is held back."""

    def __init__(self, engine: Engine, stops: Sequence[str]) -> None:
        self.tokenizer, self.ends = engine.tokenizer, set(engine.vocabulary.end_tokens)
        self.stops, self.ids, self.sent = stops, list[int](), 0

    def add(self, ids: Sequence[int]) -> str:
        """Add tokens and return the text that is sure by now and was not returned before."""
        self.ids += [token for token in ids if token not in self.ends]
        text = self.tokenizer.decode(self.ids, skip_special_tokens=False).rstrip("\ufffd")
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        safe = min(found, default=len(text))
        for stop in () if found else self.stops:
            held = next((n for n in range(min(len(stop), len(text)), 0, -1) if text.endswith(stop[:n])), 0)
            safe = min(safe, len(text) - held)
        new, self.sent = text[self.sent : safe], max(self.sent, safe)
        return new


def without_stop(sample: Sample, stops: Sequence[str]) -> str:
    """Return the text of a sample without the stop string that ended it, which OpenAI's answers leave out."""
    if sample.finish_reason != "stop":
        return sample.text
    return next((sample.text[: -len(stop)] for stop in stops if sample.text.endswith(stop)), sample.text)


def refusal(error: InputError) -> RefusedError:
    """Return an input error as a refusal."""
    return RefusedError(str(error))
