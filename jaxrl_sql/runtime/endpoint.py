"""A client of an OpenAI-compatible chat endpoint, with bounded concurrency, retries and a budget.

Requests are sent with the package `openai`. Transient errors (429, 5xx, timeouts, broken connections) are retried here
with exponential backoff, so that each request is counted before it is sent. Other errors become the `error` of an
answer, or an InputError if every request would fail. The API key comes from the environment. It is sent only to the
configured server (redirects are not followed) and appears in no message.

A command configures an endpoint in a section of its configuration (`EndpointConfig`), such as `distill` or `verbal`.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from jaxrl_sql.config import EndpointConfig
from jaxrl_sql.runtime.budget import Budget, BudgetSpentError, Prices, Usage
from jaxrl_sql.types import InputError

Messages = Sequence[Mapping[str, str]]
T = TypeVar("T")

# HTTP statuses: after a transient one the request is retried; after a fatal one all requests would fail.
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_FATAL = frozenset({401, 403, 404})
_MAX_WAIT_S = 60.0
_MAX_ERROR_CHARS = 200


class EndpointAnswer(NamedTuple):
    """The answer to a question: its text, and its reasoning if the server separates it; or an error.

    `requests` counts the requests that were sent for the question, retries included. The server reports
    `finish_reason` (`stop`, `length`, …) and the numbers of tokens (0 if it does not). `refused`: the server rejects
    this question permanently, so asking again does not help.
    """

    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    error: str = ""
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    refused: bool = False

    @property
    def spent(self) -> Usage:
        """Return the requests and tokens of this answer."""
        return Usage(self.requests, self.prompt_tokens, self.completion_tokens)


def endpoint_values(section: str, url: str | None) -> list[str]:
    """Return the overrides, `SECTION.key=value`, that set the endpoint of a configuration section to a URL.

    If the environment variable that holds the key by default is not set, an override disables the key. Without a URL
    there are no overrides.
    """
    if not url:
        return []
    values = [f"{section}.base_url={url}"]
    return values if os.environ.get(EndpointConfig().key_env) else [*values, f"{section}.key_env=''"]


@dataclass
class Endpoint:
    """A model behind `base_url`, which ends before `/chat/completions`; a context manager.

    `key` is the API key, `concurrency` the number of requests at the same time. `timeout_s` limits each wait for the
    server. A request is retried at most `retries` times, the first time after `wait_s` seconds; each wait is twice the
    one before. `budget` counts and limits all requests of this client. Each request has `reasoning_effort` unless it is
    empty. `sleep` replaces `time.sleep` in tests. Raises InputError for an invalid address, and if the package `openai`
    is missing.
    """

    base_url: str
    model: str
    key: str = field(default="", repr=False)
    concurrency: int = 8
    timeout_s: float = 300.0
    retries: int = 5
    wait_s: float = 1.0
    budget: Budget = field(default_factory=Budget)
    reasoning_effort: str = ""
    sleep: Callable[[float], Any] = field(default=time.sleep, repr=False)

    def __post_init__(self) -> None:
        """Check the address and open the client."""
        if not self.base_url.startswith(("http://", "https://")):
            raise InputError(f"an endpoint's base_url begins with http:// or https://, not {self.base_url!r}")
        if not self.model:
            raise InputError("an endpoint needs the name of a model")
        try:
            import openai  # noqa: PLC0415 - takes a second to load, and few commands ask an endpoint
        except ImportError as error:
            raise InputError(
                "asking an endpoint needs the package openai: pip install 'jaxrl-sql[endpoint]' (or openai)"
            ) from error
        self._openai = openai
        self._client = openai.OpenAI(
            api_key=self.key or "none",  # if empty, the package reads a key from the environment
            base_url=self.base_url,
            timeout=self.timeout_s,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(follow_redirects=False),
        )
        self._headers = {} if self.key else {"Authorization": openai.Omit()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def ask_all(self, questions: Iterable[tuple[T, Messages]], **options: Any) -> Iterator[tuple[T, EndpointAnswer]]:
        """Send each question, `concurrency` at a time, and yield (id, answer) in order of completion.

        `questions` are pairs of an id of any type and the chat messages. `options` (temperature, max_tokens, …) are
        passed to the server. Once the budget is spent, requests in flight complete, then BudgetSpentError is raised.
        Raises InputError if the key, the address or the model is refused.
        """
        pending = iter(questions)
        in_flight: dict[Future[EndpointAnswer], T] = {}
        budget_error: BudgetSpentError | None = None
        closing = threading.Event()
        # On an early exit nothing is retried, so that Ctrl-C waits only for requests in flight.
        with ThreadPoolExecutor(self.concurrency) as pool, _set_on_exit(closing):
            while True:
                num_free = 0 if budget_error else self.concurrency - len(in_flight)
                for question_id, messages in itertools.islice(pending, num_free):
                    in_flight[pool.submit(self._ask, messages, options, closing)] = question_id
                if not in_flight:
                    break
                for future in wait(in_flight, return_when=FIRST_COMPLETED).done:
                    question_id = in_flight.pop(future)
                    try:
                        answer = future.result()
                    except BudgetSpentError as error:
                        budget_error = error
                    else:
                        yield question_id, answer
        if budget_error:
            raise budget_error

    def _ask(self, messages: Messages, options: Mapping[str, Any], closing: threading.Event) -> EndpointAnswer:
        error, usage = "", Usage()
        for attempt in range(self.retries + 1):
            if attempt and closing.is_set():
                break
            if not self.budget.take():
                if attempt == 0:
                    raise BudgetSpentError(f"{self.budget.reached_limit} is reached: {self.budget.text()}")
                break
            usage, retry_after = usage.plus(Usage(1)), 0.0
            try:
                reply = self._post(messages, options)
            except self._openai.APIStatusError as failed:
                error = self._error_text(failed)
                if failed.status_code in _FATAL:
                    raise InputError(f"{self.base_url}: {error}") from None
                if failed.status_code not in _TRANSIENT:
                    return EndpointAnswer(error=error, **usage._asdict(), refused=True)
                retry_after = _retry_after_seconds(failed.response.headers.get("Retry-After"))
            except self._openai.APIConnectionError as failed:
                # Unreachable, disconnected or timed out: the cause has the reason.
                error = self._redact(str(failed.__cause__ or "") or str(failed))
            else:
                answer, tokens = _parse_reply(reply)
                self.budget.add(tokens)
                usage = usage.plus(tokens or Usage())
                error = answer.error
                if not error:
                    return answer._replace(**usage._asdict())
            if attempt < self.retries:
                self.sleep(min(max(self.wait_s * 2**attempt, retry_after), _MAX_WAIT_S))
        return EndpointAnswer(error=error, **usage._asdict())

    def _post(self, messages: Messages, options: Mapping[str, Any]) -> Any:
        completions = self._client.chat.completions.with_raw_response
        encoded = [{name: _without_surrogates(text) for name, text in message.items()} for message in messages]
        effort = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        body = {**effort, **options}
        return completions.create(model=self.model, messages=encoded, extra_body=body, extra_headers=self._headers)

    def _error_text(self, failed: Any) -> str:
        """Return the status and the message in a reply's JSON, else its body."""
        fields = failed.body if isinstance(failed.body, Mapping) else {}
        messages = (fields.get(name) for name in ("message", "detail"))
        message = next((text for text in messages if isinstance(text, str) and text), failed.response.text)
        body = " ".join(message.split())
        return f"HTTP {failed.status_code} {self._redact(body)[:_MAX_ERROR_CHARS]}".strip()

    def _redact(self, text: str) -> str:
        """Remove the key from a text: servers may repeat it in errors."""
        return text.replace(self.key, "(key)") if self.key else text


@contextmanager
def _set_on_exit(event: threading.Event) -> Iterator[None]:
    try:
        yield
    finally:
        event.set()


def _parse_reply(reply: Any) -> tuple[EndpointAnswer, Usage | None]:
    """Return the answer in a reply or its error, and the server's token counts, None if absent.

    The package builds objects from any JSON, so every field may be missing or of another type.
    """
    tokens = None
    try:
        completion = reply.parse()
        tokens = _usage(completion)
        choice = completion.choices[0]
        message = choice.message
        text = message.content or ""
        reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or ""
        return EndpointAnswer(
            _without_surrogates(text), _without_surrogates(reasoning), str(choice.finish_reason or "")
        ), tokens
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return EndpointAnswer(error="the reply has no answer"), tokens


def _usage(completion: Any) -> Usage | None:
    usage = getattr(completion, "usage", None)
    prompt, completion = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
    if isinstance(prompt, int) and isinstance(completion, int) and min(prompt, completion) >= 0:
        return Usage(0, prompt, completion)
    return None


def make_budget(config: EndpointConfig, spent: Usage) -> Budget:
    """Return the budget that a configuration section sets; `spent` is the use of earlier runs."""
    prices = Prices(config.prompt_price, config.completion_price)
    return Budget(config.max_requests, config.max_cost, prices, spent)


def open_endpoint(config: EndpointConfig, budget: Budget) -> Endpoint:
    """Return the client of the endpoint in a configuration section, with the key from the environment.

    Raises InputError if the section has no address or model, or if the key is not set.
    """
    key, limits = read_key(config.key_env), (config.concurrency, config.timeout_s, config.retries, config.wait_s)
    return Endpoint(config.base_url, config.model, key, *limits, budget, config.reasoning_effort)


def read_key(variable: str) -> str:
    """Return the key in an environment variable; "" if `variable` is empty. Raises InputError if it is not set.

    InputError is also raised for a key with characters that a header cannot hold: the client's error would print it.
    """
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InputError(f"{variable} is not set: it holds the endpoint's key (key_env='' sends none)")
    if not all("!" <= letter <= "~" for letter in key):
        raise InputError(
            f"{variable} is not a valid key: it has white space or characters that are not printable ASCII"
        )
    return key


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _retry_after_seconds(text: str | None) -> float:
    """Return the seconds of a Retry-After header; 0 without one (dates are ignored)."""
    try:
        return max(float(text or 0), 0.0)
    except ValueError:
        return 0.0
