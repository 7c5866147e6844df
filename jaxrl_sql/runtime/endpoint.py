"""A client of a chat endpoint of OpenAI's form, as many servers speak it: one question, one answer, a few at a time.

The package `openai` speaks to the server. What passes (too many requests, a server's fault, a timeout, a broken line)
is tried again here, after a wait that doubles, so that every request is counted before it is sent; what does not pass
is an answer's `error`, or an InputError where every request would fail alike. The key comes from the environment, is
sent to the named server alone (redirects are not followed) and is in no message.
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
from jaxrl_sql.runtime.budget import Budget, BudgetSpentError, Prices, Spent
from jaxrl_sql.types import InputError

Messages = Sequence[Mapping[str, str]]
T = TypeVar("T")

_PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_FOR_ALL = frozenset({401, 403, 404})
_LONGEST_WAIT = 60.0
_SHOWN = 200


class Answer(NamedTuple):
    """What came of a question: a text and the reasoning beside it, if the server parts them; or an error.

    `requests` counts those that were sent for it; `finish_reason` is the server's (`stop`, `length`, …), and so are the
    numbers of tokens (0 where it tells none). `refused`: the error would not pass, however often it is asked again.
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
    def spent(self) -> Spent:
        """Return what it took."""
        return Spent(self.requests, self.prompt_tokens, self.completion_tokens)


def endpoint_values(section: str, url: str | None) -> list[str]:
    """Return an endpoint's URL as overrides of a section; without a key in the usual variable none is sent."""
    if not url:
        return []
    values = [f"{section}.base_url={url}"]
    return values if os.environ.get(EndpointConfig().key_env) else [*values, f"{section}.key_env=''"]


@dataclass
class Endpoint:
    """A model behind `base_url`, which ends before `/chat/completions`; a context manager.

    `timeout_s` bounds each wait for the server; a request is tried `retries` more times, the first after `wait_s`
    seconds. `budget` bounds all requests of this client, and counts them. Raises InputError for an address that is
    none, and where the package `openai` is missing.
    """

    base_url: str
    model: str
    key: str = field(default="", repr=False)
    concurrency: int = 8
    timeout_s: float = 300.0
    retries: int = 5
    wait_s: float = 1.0
    budget: Budget = field(default_factory=Budget)
    sleep: Callable[[float], Any] = field(default=time.sleep, repr=False)

    def __post_init__(self) -> None:
        """Refuse an address that is none, and open the client."""
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
            api_key=self.key or "none",  # left empty, the package would look for one of its own
            base_url=self.base_url,
            timeout=self.timeout_s,
            max_retries=0,
            http_client=openai.DefaultHttpxClient(follow_redirects=False),
        )
        self._headers = {} if self.key else {"Authorization": openai.Omit()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def ask_all(self, questions: Iterable[tuple[T, Messages]], **options: Any) -> Iterator[tuple[T, Answer]]:
        """Put each question once, `concurrency` at a time, and yield what it is and its answer as they come.

        `options` (temperature, max_tokens, …) are the server's. What is under way when the budget is spent is waited
        for; then BudgetSpentError is raised. Raises InputError where the key, the address or the model is refused.
        """
        waiting = iter(questions)
        under_way: dict[Future[Answer], T] = {}
        spent: BudgetSpentError | None = None
        left = threading.Event()
        # On leaving early nothing is tried again: whoever pressed Ctrl-C waits for what is under way, and no more.
        with ThreadPoolExecutor(self.concurrency) as pool, _set_at_the_end(left):
            while True:
                room = 0 if spent else self.concurrency - len(under_way)
                for what, messages in itertools.islice(waiting, room):
                    under_way[pool.submit(self._ask, messages, options, left)] = what
                if not under_way:
                    break
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    what = under_way.pop(future)
                    try:
                        answer = future.result()
                    except BudgetSpentError as error:
                        spent = error
                    else:
                        yield what, answer
        if spent:
            raise spent

    def _ask(self, messages: Messages, options: Mapping[str, Any], left: threading.Event) -> Answer:
        error, used = "", Spent()
        for attempt in range(self.retries + 1):
            if attempt and left.is_set():
                break
            if not self.budget.take():
                if attempt == 0:
                    raise BudgetSpentError(f"{self.budget.limit} is reached: {self.budget.words()}")
                break
            used, asked = used.plus(Spent(1)), 0.0
            try:
                reply = self._post(messages, options)
            except self._openai.APIStatusError as failed:
                error = self._words(failed)
                if failed.status_code in _FOR_ALL:
                    raise InputError(f"{self.base_url}: {error}") from None
                if failed.status_code not in _PASSING:
                    return Answer(error=error, **used._asdict(), refused=True)
                asked = _seconds(failed.response.headers.get("Retry-After"))
            except self._openai.APIConnectionError as failed:
                # Not reached, cut off or timed out: the cause says which.
                error = self._hidden(str(failed.__cause__ or "") or str(failed))
            else:
                answer, tokens = _read(reply)
                self.budget.add(tokens)
                used = used.plus(tokens or Spent())
                error = answer.error
                if not error:
                    return answer._replace(**used._asdict())
            if attempt < self.retries:
                self.sleep(min(max(self.wait_s * 2**attempt, asked), _LONGEST_WAIT))
        return Answer(error=error, **used._asdict())

    def _post(self, messages: Messages, options: Mapping[str, Any]) -> Any:
        completions = self._client.chat.completions.with_raw_response
        said = [{name: _writable(text) for name, text in message.items()} for message in messages]
        return completions.create(model=self.model, messages=said, extra_body=options, extra_headers=self._headers)

    def _words(self, failed: Any) -> str:
        said = " ".join(failed.response.text.split())
        return f"HTTP {failed.status_code} {self._hidden(said)[:_SHOWN]}".strip()

    def _hidden(self, text: str) -> str:
        """Take the key out of a text: servers repeat what they were sent."""
        return text.replace(self.key, "(key)") if self.key else text


@contextmanager
def _set_at_the_end(event: threading.Event) -> Iterator[None]:
    try:
        yield
    finally:
        event.set()


def _read(reply: Any) -> tuple[Answer, Spent | None]:
    """Return the answer in a reply, or an error in it, and the tokens that the server counted; None where it did not.

    The package makes its objects of whatever JSON came, so that nothing in them is sure.
    """
    tokens = None
    try:
        found = reply.parse()
        tokens = _usage(found)
        choice = found.choices[0]
        message = choice.message
        text = message.content or ""
        reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or ""
        return Answer(_writable(text), _writable(reasoning), str(choice.finish_reason or "")), tokens
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Answer(error="the reply holds no answer"), tokens


def _usage(found: Any) -> Spent | None:
    usage = getattr(found, "usage", None)
    read, written = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
    if isinstance(read, int) and isinstance(written, int) and min(read, written) >= 0:
        return Spent(0, read, written)
    return None


def budget_of(config: EndpointConfig, spent: Spent) -> Budget:
    """Return the budget of a section, of which earlier runs have `spent` some."""
    prices = Prices(config.prompt_price, config.completion_price)
    return Budget(config.max_requests, config.max_cost, prices, spent)


def open_endpoint(config: EndpointConfig, budget: Budget) -> Endpoint:
    """Return the client of a section, with the key from the environment.

    Raises InputError where the section names no address or model, or the key is not set.
    """
    key, limits = key_from(config.key_env), (config.concurrency, config.timeout_s, config.retries, config.wait_s)
    return Endpoint(config.base_url, config.model, key, *limits, budget)


def key_from(variable: str) -> str:
    """Return the key in an environment variable; "" where none is named. Raises InputError when it is not set.

    A key with other characters than a header may hold is refused too: the client's error would show it.
    """
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InputError(f"{variable} is not set: it holds the endpoint's key (key_env='' sends none)")
    if not all("!" <= letter <= "~" for letter in key):
        raise InputError(f"{variable} holds no key: white space, or a character that is not printable ASCII, is in it")
    return key


def _writable(text: str) -> str:
    """Replace halves of characters, which JSON can spell and no file and no request can hold."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _seconds(text: str | None) -> float:
    """Return a number of seconds that a server asks to wait; 0 where it names none (dates are not read)."""
    try:
        return max(float(text or 0), 0.0)
    except ValueError:
        return 0.0
