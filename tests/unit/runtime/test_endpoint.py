"""The chat client against a scripted server: retries, budgets, and secrecy of the key."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.runtime.budget import Budget, BudgetSpentError, Prices, Usage
from jaxrl_sql.runtime.endpoint import Endpoint, EndpointAnswer, Messages, read_key
from jaxrl_sql.types import InputError

KEY = "sk-very-secret"
ASKED = [{"role": "user", "content": "?"}]


def ask_once(endpoint: Endpoint, messages: Messages, **options: Any) -> EndpointAnswer:
    ((_, answer),) = endpoint.ask_all([(None, messages)], **options)
    return answer


Client = Callable[..., tuple[Endpoint, list[float]]]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Return a function that opens a client and records its waits; the environment contains another key."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else")
    with ExitStack() as stack:

        def opened(url: str, key: str = KEY, **options: Any) -> tuple[Endpoint, list[float]]:
            waits: list[float] = []
            return stack.enter_context(Endpoint(url, "teacher", key, sleep=waits.append, **options)), waits

        yield opened


def test_request_and_answer_fields(client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda _, __: chat_server.assistant("yes", reasoning_content="because")) as (
        url,
        seen,
    ):
        endpoint, waits = client(url)
        assert ask_once(endpoint, ASKED, temperature=0.5, top_k=7) == EndpointAnswer(
            "yes", "because", "stop", "", 1, 1, 2
        )
    (got,) = seen
    assert got == {
        "path": "/v1/chat/completions", "key": f"Bearer {KEY}", "model": "teacher", "messages": ASKED,
        "temperature": 0.5, "top_k": 7,
    }  # fmt: skip
    assert waits == []
    assert KEY not in repr(endpoint)


def test_every_request_has_the_effort_of_reasoning(client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda _, __: chat_server.assistant("yes")) as (url, seen):
        for effort in ("", "high"):
            ask_once(client(url, reasoning_effort=effort)[0], ASKED, temperature=0.5)
    assert [request.get("reasoning_effort") for request in seen] == [None, "high"]


def test_lone_surrogates_are_sent_as_question_marks(client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda _, __: chat_server.assistant("yes")) as (url, seen):
        ask_once(client(url)[0], [{"role": "user", "content": "é\ud800"}])
    assert seen[0]["messages"] == [{"role": "user", "content": "é?"}]


def test_transient_errors_are_retried_with_backoff(client: Client, chat_server: ModuleType) -> None:
    replies: list[Any] = [
        (429, {"Retry-After": "9"}, "slow down"),
        (503, {}, "later"),
        (200, {}, "{oops"),
        (200, {}, '{"choices": []}'),
        chat_server.assistant("at last \ud800"),
    ]
    with chat_server.serve_script(lambda i, _: replies[i]) as (url, seen):
        endpoint, waits = client(url, wait_s=0.5)
        assert ask_once(endpoint, ASKED) == EndpointAnswer("at last ?", "", "stop", "", 5, 1, 3)
    assert waits == [9.0, 1.0, 2.0, 4.0]
    assert len(seen) == endpoint.budget.spent.requests == 5


def test_permanent_server_failure_is_returned_as_an_error(client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda _, __: (500, {}, f"boom {KEY}\n boom")) as (url, seen):
        endpoint, waits = client(url, retries=2)
        answer = ask_once(endpoint, ASKED)
    assert answer == EndpointAnswer(error="HTTP 500 boom (key) boom", requests=3)
    assert waits == [1.0, 2.0]
    assert len(seen) == 3


def test_rejected_request_is_not_retried(client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda _, __: (400, {}, "too long")) as (url, seen):
        assert ask_once(client(url)[0], ASKED) == EndpointAnswer(error="HTTP 400 too long", requests=1, refused=True)
    assert len(seen) == 1


@pytest.mark.parametrize("status", [401, 403, 404])
def test_authentication_failure_raises_without_showing_the_key(
    status: int, client: Client, chat_server: ModuleType
) -> None:
    with (
        chat_server.serve_script(lambda _, __: (status, {}, f"no: {KEY}")) as (url, seen),
        pytest.raises(InputError) as refused,
    ):
        ask_once(client(url)[0], ASKED)
    assert str(status) in str(refused.value)
    assert KEY not in str(refused.value)
    assert len(seen) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "too  long", "type": "invalid_request_error", "code": None}},
        {"object": "error", "message": "too long", "code": 400},
        {"detail": "too long"},
    ],
)
def test_error_is_the_message_in_the_body(body: dict[str, Any], client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda _, __: (400, {}, json.dumps(body))) as (url, _):
        assert ask_once(client(url)[0], ASKED).error == "HTTP 400 too long"


@pytest.mark.parametrize("body", ['{"error": {"message": 7}}', '{"error": null}', "{", "[7]"])
def test_error_without_a_message_is_the_body(body: str, client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda _, __: (400, {}, body)) as (url, _):
        assert ask_once(client(url)[0], ASKED).error == f"HTTP 400 {body}"


def test_timeout_is_retried_and_refused_connection_is_an_error(client: Client, chat_server: ModuleType) -> None:
    def slow(number: int, _: dict[str, Any]) -> Any:
        time.sleep(1.5 if number == 0 else 0)
        return chat_server.assistant("now")

    with chat_server.serve_script(slow) as (url, seen):
        endpoint, _ = client(url, timeout_s=0.5)
        assert ask_once(endpoint, ASKED).text == "now"
        assert len(seen) == 2
    answer = ask_once(client(url, retries=1)[0], ASKED)
    assert "refused" in answer.error
    assert answer.requests == 2


def test_key_is_not_sent_to_a_redirect(client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda _, __: chat_server.assistant("stolen")) as (elsewhere, stolen):
        with chat_server.serve_script(lambda _, __: (307, {"Location": elsewhere}, "")) as (url, _):
            assert ask_once(client(url)[0], ASKED).error.startswith("HTTP 307")
        assert stolen == []


MALFORMED = [
    "what?", "[]", "7", "null", "{}", '{"choices": 7}', '{"choices": [7]}', '{"choices": [{"message": 7}]}',
    '{"choices": [{"message": {"content": 7}}]}', '{"choices": [{"message": {"content": ["a"]}}], "usage": 7}',
]  # fmt: skip


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_malformed_reply_is_returned_as_an_error(kind: str, client: Client, chat_server: ModuleType) -> None:
    replies = [reply for reply in MALFORMED for _ in range(2)]  # each request has one retry
    with chat_server.serve_script(lambda number, _: (200, {"Content-Type": kind}, replies[number])) as (url, _seen):
        endpoint, _ = client(url, retries=1)
        for reply in MALFORMED:
            answer = ask_once(endpoint, ASKED)
            assert (answer.error, answer.requests) == ("the reply has no answer", 2), reply


def test_request_without_a_key_has_no_authorization(client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda _, __: chat_server.assistant("yes")) as (url, seen):
        assert ask_once(client(url, key="")[0], ASKED).text == "yes"
    assert seen[0]["key"] is None


def test_concurrent_requests_are_limited(client: Client, chat_server: ModuleType) -> None:
    now, most, lock = [0], [0], threading.Lock()

    def script(number: int, _: dict[str, Any]) -> Any:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
        return chat_server.assistant(str(number))

    with chat_server.serve_script(script) as (url, _):
        answers = dict(client(url, concurrency=2)[0].ask_all((i, ASKED) for i in range(6)))
    assert sorted(answers) == list(range(6))
    assert sorted(answer.text for answer in answers.values()) == list("012345")
    assert most[0] == 2


def test_closing_early_waits_for_no_retries(client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda i, _: (500, {}, "") if i else chat_server.assistant("yes")) as (url, seen):
        endpoint, _ = client(url, concurrency=1, retries=50)
        answers = endpoint.ask_all((i, ASKED) for i in range(9))
        assert next(answers)[1].text == "yes"
        endpoint.sleep = lambda _: time.sleep(0.05)
        answers.close()
    assert len(seen) <= 3


def test_budget_limits_requests_and_not_questions(client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda _, __: (500, {}, "boom")) as (url, seen):
        endpoint, _ = client(url, budget=Budget(max_requests=3), retries=1)
        assert ask_once(endpoint, ASKED).requests == 2
        assert ask_once(endpoint, ASKED).requests == 1
        with pytest.raises(BudgetSpentError, match=r"max_requests=3 is reached: 3 of 3 requests"):
            ask_once(endpoint, ASKED)
    assert len(seen) == 3


def test_cost_limit_uses_the_token_counts_of_the_server(client: Client, chat_server: ModuleType) -> None:
    prices = Prices(prompt=1e6, completion=2e6)  # a token costs 1 or 2
    with chat_server.serve_script(lambda i, _: (503, {}, "") if i == 1 else chat_server.assistant("two words")) as (
        url,
        seen,
    ):
        endpoint, _ = client(url, budget=Budget(max_cost=11, prices=prices, spent=Usage(4, 1, 0)), concurrency=1)
        got: list[EndpointAnswer] = []
        with pytest.raises(BudgetSpentError, match=r"max_cost=11 is reached: 7 requests, 3 \+ 4 tokens, cost 11 of 11"):
            got.extend(answer for _, answer in endpoint.ask_all((None, ASKED) for _ in range(9)))
    assert [answer.spent for answer in got] == [Usage(1, 1, 2), Usage(2, 1, 2)]
    assert len(seen) == 3
    assert endpoint.budget.numbers() == {"requests": 7, "prompt_tokens": 3, "completion_tokens": 4, "cost": 11}


def test_cost_limit_requires_token_counts_of_the_server(client: Client, chat_server: ModuleType) -> None:
    silent = '{"choices": [{"message": {"content": "yes"}}]}'
    with chat_server.serve_script(lambda _, __: (200, {}, silent)) as (url, seen):
        assert ask_once(client(url)[0], ASKED).spent == Usage(1)
        with pytest.raises(InputError, match="reports no usage"):
            ask_once(client(url, budget=Budget(max_cost=1, prices=Prices(1, 1)))[0], ASKED)
    assert len(seen) == 2


def test_missing_package_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(InputError, match=r"pip install 'jaxrl-sql\[endpoint\]'"):
        Endpoint("http://localhost", "teacher")


def test_keys_and_addresses_are_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", f" {KEY} ")
    monkeypatch.delenv("NO_KEY", raising=False)
    assert read_key("A_KEY") == KEY
    assert read_key("") == ""
    with pytest.raises(InputError, match="NO_KEY is not set"):
        read_key("NO_KEY")
    with pytest.raises(InputError, match="begins with http"):
        Endpoint("file:///etc/passwd", "teacher")
    with pytest.raises(InputError, match="name of a model"):
        Endpoint("http://localhost", "")


@pytest.mark.parametrize(
    "key", ["sk-very\nsecret", "sk-very secret", "sk-very\x7fsecret", "sk-véry-secret", "sk\tsecret"]
)
def test_key_invalid_in_a_header_is_rejected_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", key)
    with pytest.raises(InputError, match="TEACHER_KEY is not a valid key") as caught:
        read_key("TEACHER_KEY")
    assert "\n" not in str(caught.value)
    assert "sk" not in str(caught.value)
    monkeypatch.setenv("TEACHER_KEY", KEY + "\n")
    assert read_key("TEACHER_KEY") == KEY


def test_deeply_nested_reply_is_returned_as_an_error(client: Client, chat_server: ModuleType) -> None:
    with chat_server.serve_script(lambda _, __: (200, {}, "[" * 200_000)) as (url, _seen):
        endpoint, _ = client(url, retries=1)
        answer = ask_once(endpoint, ASKED)
    assert (answer.error, answer.requests) == ("the reply has no answer", 2)
