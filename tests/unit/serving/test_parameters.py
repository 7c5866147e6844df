"""Request parameters: read, ignored, or rejected by name."""

from __future__ import annotations

import json
import re
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from jaxrl_sql.config import EvaluateSettings, SamplingConfig
from jaxrl_sql.inference.endpoint_client import _Client
from jaxrl_sql.models.formats.hf import load_tokenizer
from jaxrl_sql.rollout.stop_strings import Vocabulary
from jaxrl_sql.serving.parameters import IGNORED, IGNORED_IN_CONTENT, REFUSED, REFUSED_IN, RefusedError
from jaxrl_sql.serving.protocol import (
    ApiRequest,
    ChatRequest,
    CompletionRequest,
    ContentPart,
    Message,
    StreamOptions,
    TemplateOptions,
    parse_request,
)

ROOT = Path(__file__).parents[3]
LEAST: dict[type[ApiRequest], dict[str, Any]] = {
    ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    CompletionRequest: {"model": "m", "prompt": "a"},
}
KINDS = pytest.mark.parametrize("kind", LEAST)
MEMBERS: dict[str, type[BaseModel]] = {
    "stream_options": StreamOptions, "chat_template_kwargs": TemplateOptions,
    "messages": Message, "content": ContentPart,
}  # fmt: skip


def ask(kind: type[ApiRequest], **more: Any) -> ApiRequest:
    return parse_request(kind, json.dumps(LEAST[kind] | more).encode())


def refusal(kind: type[ApiRequest], **more: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        ask(kind, **more)
    assert caught.value.status == 400
    return caught.value


def message_field(**message: Any) -> dict[str, Any]:
    """Return the field of a chat with one message."""
    return {"messages": [{"role": "user", "content": "a"} | message]}


@KINDS
def test_unsupported_parameters_are_rejected_unless_neutral(kind: type[ApiRequest]) -> None:
    for name in REFUSED.keys() - kind.model_fields.keys():
        for value in (None, *REFUSED[name]):
            ask(kind, **{name: value})
        for value in ({"x": 1}, "x", 7, *(flag for flag in (False, True) if flag not in REFUSED[name])):
            error = refusal(kind, **{name: value})
            assert (error.code, error.param) == ("unsupported_parameter", name)
            assert str(error).startswith(f"{name} is not supported")


@KINDS
def test_ignored_parameters_accept_any_value(kind: type[ApiRequest]) -> None:
    for value in ("a", 7, False):
        ask(kind, **dict.fromkeys(IGNORED, value))
    ask(kind, metadata={"a": "b"}, prediction={"type": "content", "content": "a"})


@KINDS
@pytest.mark.parametrize(
    ("name", "near"),
    [("temprature", "temperature"), ("max_new_tokens", "max_tokens"), ("Stop", "stop"), ("zzzzzz", "")],
)
def test_unknown_parameter_is_rejected_with_the_nearest(kind: type[ApiRequest], name: str, near: str) -> None:
    for value in (None, 0, 0.5):
        error = refusal(kind, **{name: value})
        assert str(error) == f"unknown parameter {name}" + (f"; the nearest is {near}" if near else "")
        assert (error.code, error.param) == ("unknown_parameter", name)


@KINDS
def test_null_is_an_absent_value(kind: type[ApiRequest]) -> None:
    optional = {name: None for name, field in kind.model_fields.items() if not field.is_required()}
    assert ask(kind, **optional) == ask(kind)
    for name in LEAST[kind]:
        assert str(refusal(kind, **{name: None})).startswith(f"{name}: ")


@KINDS
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", "2"), ("n", True), ("n", 1.5), ("max_tokens", "9"), ("temperature", "0.5"), ("temperature", True),
        ("top_p", [1]), ("stream", "yes"), ("stream", 1), ("stop", 5), ("stop", [1]), ("stop", {"a": "b"}),
        ("seed", "1"), ("logprobs", "yes"), ("return_token_ids", 1), ("stream_options", True), ("model", 1),
        ("stream_options", {"include_usage": "yes"}),
    ],
)  # fmt: skip
def test_value_of_another_type_is_rejected(kind: type[ApiRequest], name: str, value: Any) -> None:
    assert str(refusal(kind, **{name: value})).startswith(name)


@KINDS
def test_contradictory_limits_are_rejected(kind: type[ApiRequest]) -> None:
    assert "send one" in str(refusal(kind, max_tokens=3, max_completion_tokens=4))
    ask(kind, max_tokens=3, max_completion_tokens=3)


def test_best_of_equal_to_n_is_neutral() -> None:
    ask(CompletionRequest, best_of=3, n=3)
    for best_of in (1, 4):
        assert refusal(CompletionRequest, best_of=best_of, n=3).param == "best_of"


def test_top_log_probabilities_are_rejected() -> None:
    ask(CompletionRequest, logprobs=0)
    assert str(refusal(CompletionRequest, logprobs=1)).startswith("logprobs: ")
    assert refusal(ChatRequest, logprobs=True, top_logprobs=1).param == "top_logprobs"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            {"stream_options": {"continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats is not supported",
        ),
        ({"stream_options": {"include_usages": True}}, "the nearest is stream_options.include_usage"),
        ({"chat_template_kwargs": {"thinking": False}}, "unknown parameter chat_template_kwargs.thinking"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking: "),
        (message_field(name="Ann"), "messages.0.name is not supported"),
        (message_field(tool_calls=[{"id": "1"}]), "messages.0.tool_calls is not supported"),
        (message_field(role="tool", tool_call_id="1"), "messages.0.tool_call_id is not supported"),
        (message_field(reasoning_content="so"), "messages.0.reasoning_content is not supported"),
        (message_field(contents="b"), "unknown parameter messages.0.contents; the nearest is messages.0.content"),
        (message_field(content=None), "messages.0.content: "),
        (message_field(content=7), "messages.0.content"),
        (message_field(role=None), "messages.0.role: "),
        (
            message_field(content=[{"type": "image_url", "image_url": {"url": "x"}}]),
            "messages.0.content.0 is of type 'image_url'",
        ),
        (
            message_field(content=[{"type": "input_audio", "input_audio": {}}]),
            "messages.0.content.0 is of type 'input_audio'",
        ),
        (message_field(content=[{"type": "text"}]), "messages.0.content.0.text is missing"),
        (
            message_field(content=[{"type": "text", "text": "a", "cache": 1}]),
            "unknown parameter messages.0.content.0.cache",
        ),
        ({"messages": []}, "messages: "),
    ],
)
def test_unsupported_members_are_rejected(more: dict[str, Any], reason: str) -> None:
    assert reason in str(refusal(ChatRequest, **more))


def test_messages_of_server_replies_are_accepted() -> None:
    empty = dict.fromkeys(("audio", "function_call", "refusal"))
    ask(ChatRequest, **message_field(role="assistant", tool_calls=[], annotations=[], reasoning_content="", **empty))


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"model": "m", "prompt": "a", "temperature": 0, "temperature": 1}', "temperature"),
        (b'{"model": "m", "prompt": "a", "metadata": {"b": {"c": 1, "c": 1}}}', "c"),
    ],
)
def test_duplicate_name_is_rejected(body: bytes, name: str) -> None:
    with pytest.raises(RefusedError, match=f"duplicate name {name} in a JSON object"):
        parse_request(CompletionRequest, body)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[" * 100_000, b'{"model": "m", "prompt": "a", "x": \xff}'])
def test_invalid_body_is_rejected(body: bytes) -> None:
    with pytest.raises(RefusedError, match=r"^the body: "):
        parse_request(CompletionRequest, body)


def test_message_omitted_by_the_template_is_rejected() -> None:
    tokenizer = load_tokenizer(ROOT / "configs/quickstart_start")
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.role }}: {{ m.content | trim }}\n"
        "{% elif m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}\n{% endif %}{% endfor %}"
    )
    engine: Any = SimpleNamespace(tokenizer=tokenizer, vocabulary=Vocabulary(tokenizer))
    turns = [{"role": role, "content": f" {role} <|im_end|> "} for role in ("system", "user", "assistant", "user")]
    turns[2]["content"] = "<think>so</think>yes"
    (prompt,) = ask(ChatRequest, messages=turns).prompts(engine)
    assert prompt.text.startswith("system: system <|im_end|>\nuser: ")
    request = ask(ChatRequest, messages=[{"role": "developer", "content": "Answer in French."}, *turns])
    with pytest.raises(RefusedError, match=r"messages.0: the model's chat template omits .* role 'developer'"):
        request.prompts(engine)


def test_message_changed_by_the_template_is_answered() -> None:
    tokenizer = load_tokenizer(ROOT / "configs/quickstart_start")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content.replace('/no_think', '').rstrip() }}{% endfor %}"
    engine: Any = SimpleNamespace(tokenizer=tokenizer, vocabulary=Vocabulary(tokenizer))
    (prompt,) = ask(ChatRequest, messages=[{"role": "system", "content": "Be brief. /no_think"}]).prompts(engine)
    assert prompt.text == "Be brief."


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi", "type": "text"},
        {"role": "user", "content": "hi", "name": ""},
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": None},
    ],
    ids=["type", "name", "cache_control", "no content"],
)
def test_default_members_of_clients_are_accepted(message: dict[str, Any]) -> None:
    assert ask(ChatRequest, messages=[message]).messages[0].plain()["content"] in ("hi", "")


def test_integers_may_have_a_decimal_point() -> None:
    request = ask(CompletionRequest, max_tokens=100.0, n=1.0, top_k=50.0, seed=1.0)
    assert (request.max_tokens, request.n, request.top_k, request.seed) == (100, 1, 50, 1)
    assert str(refusal(CompletionRequest, n=1.5)).startswith("n: ")


def test_requests_of_our_client_are_accepted() -> None:
    sampling = SamplingConfig(top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.1)
    changed = EvaluateSettings(sampling=sampling, token_limit="max_completion_tokens")  # noqa: S106 - a name
    for settings in (EvaluateSettings(), changed, EvaluateSettings(send_temperature=False)):
        client: Any = SimpleNamespace(config=settings)
        ask(ChatRequest, **_Client._sampling_options(client))


def test_every_parameter_of_the_openai_package_is_known() -> None:
    import openai.types.chat as openai_chat
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params

    for kind, params in ((ChatRequest, chat_create_params), (CompletionRequest, completion_create_params)):
        names = typing.get_type_hints(params.CompletionCreateParamsBase)
        assert set(names) <= kind.model_fields.keys() | IGNORED | REFUSED.keys()
    known = Message.model_fields.keys() | REFUSED_IN["messages"].keys()
    for role in ("System", "Developer", "User", "Assistant", "Tool", "Function"):
        assert set(typing.get_type_hints(getattr(openai_chat, f"ChatCompletion{role}MessageParam"))) <= known


def test_reference_page_lists_the_parameters() -> None:
    """Each line of the page starts with a title; names are in backticks, with the neutral value after `=`."""
    page = (ROOT / "docs/reference/server.md").read_text(encoding="utf-8")
    section = page.split("## Parameters\n")[1].split("\n#")[0]

    def listed(title: str) -> set[str]:
        (item,) = re.findall(rf"^- \*\*{title}\*\*(.*?)(?=^- \*\*|^$|\Z)", section, re.MULTILINE | re.DOTALL)
        return set(re.findall("`([^`]+)`", item))

    def with_values(refused: Any, before: str = "") -> set[str]:
        return {
            f"{before}{name}" + "".join(f"={json.dumps(value)}" for value in values[:1])
            for name, values in refused.items()
        }

    both = ChatRequest.model_fields.keys() & CompletionRequest.model_fields.keys()
    assert listed("Read by both") == {*both}
    assert listed("Read in a chat") == {*ChatRequest.model_fields} - both
    assert listed("Read in a completion") == {*CompletionRequest.model_fields} - both
    assert listed("Ignored") == IGNORED
    assert listed("Refused") == with_values(REFUSED)
    for name, kind in MEMBERS.items():
        ignored = IGNORED_IN_CONTENT if name == "content" else set()
        assert listed(f"Members of {name}") == {*kind.model_fields} | with_values(REFUSED_IN[name]) | ignored
