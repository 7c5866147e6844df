"""The server as a program: responses to OpenAI's client, refused requests, and disconnecting clients."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import jax
import numpy as np
import pytest
import uvicorn

from jaxrl_sql.commands.serve import main
from jaxrl_sql.models.formats.hf import load_checkpoint, load_tokenizer
from jaxrl_sql.models.lora import Adapters, LoraPair, init_adapters, load_adapters, policy_params, save_adapters
from jaxrl_sql.models.ops.rng import Purpose
from jaxrl_sql.rollout import Engine, EngineConfig, SamplingParams
from jaxrl_sql.rollout.decode import decode_chunk

if TYPE_CHECKING:
    import openai

START = Path(__file__).parents[2] / "configs/quickstart_start"
MODEL = "quickstart_start"
WORDS = [{"role": "user", "content": "How many ships are there?"}]
IDS = [5, 9, 300, 41, 7, 99]


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """Run the command as a process and yield its address."""
    command = [sys.executable, "-m", "jaxrl_sql", "serve", "--model", str(START), "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "/v1: loading; " in process.stdout.readline()
            line = process.stdout.readline()
            assert " serves " in line
            yield line.split()[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(300)


@contextmanager
def serving_here(*arguments: str) -> Iterator[str]:
    """Run the command in a thread of this process, so that tests share compiled programs; yield its address."""
    servers: list[uvicorn.Server] = []
    codes: list[int] = []

    class Kept(uvicorn.Server):
        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            servers.append(self)

    def run() -> None:
        codes.append(main(["--model", str(START), "--port", "0", *arguments]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn, "Server", Kept)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            assert until(lambda: bool(servers and servers[0].started) or not thread.is_alive())
            port = servers[0].servers[0].sockets[0].getsockname()[1]
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            for server in servers:
                server.should_exit = True
            thread.join(300)
    assert codes == [0]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of adapters that change the model's output."""
    folder = tmp_path_factory.mktemp("adapters")
    config, _ = load_checkpoint(START)
    result = init_adapters(config, 4, 8.0, ["q", "v"], jax.random.key(0))
    rng = np.random.default_rng(0)
    pairs = {
        k: LoraPair(pair.a, rng.normal(0, 0.5, pair.b.shape).astype(np.float32)) for k, pair in result.pairs.items()
    }
    save_adapters(folder, config, Adapters(pairs, result.scale))
    return folder


@pytest.fixture(scope="module")
def server(adapters: Path) -> Iterator[str]:
    with serving_here("--adapter", f"bent={adapters}", "--queue", "64", "evaluate.max_num_seqs=8") as url:
        yield url


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(api_key="none", base_url=server, max_retries=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Return an engine of the same model for comparison."""
    config, params = load_checkpoint(START)
    return Engine(config, params, load_tokenizer(START), EngineConfig(8, Purpose.EVAL))


def test_greedy_tokens_match_direct_engine_calls(client: openai.OpenAI, engine: Engine) -> None:
    reply: Any = client.completions.create(
        model=MODEL, prompt=IDS, max_tokens=16, temperature=0, logprobs=0, extra_body={"return_token_ids": True}
    )
    (alone,) = engine.generate([IDS], SamplingParams(temperature=0, max_new_tokens=16))
    choice = reply.choices[0]
    assert choice.token_ids == [*alone.token_ids]
    assert choice.prompt_token_ids == IDS
    assert choice.text == alone.text
    assert choice.finish_reason == alone.finish_reason
    np.testing.assert_allclose(choice.logprobs.token_logprobs, alone.logprobs, atol=1e-3)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(IDS), len(alone.token_ids))


@pytest.mark.parametrize("turns", [WORDS, [*WORDS, {"role": "assistant", "content": "SELECT"}, *WORDS]])
def test_chat_messages_are_rendered_by_the_tokenizer_template(
    client: openai.OpenAI, turns: list[dict[str, str]]
) -> None:
    reply: Any = client.chat.completions.create(
        model=MODEL,
        messages=turns,  # type: ignore[arg-type]
        max_tokens=16,
        temperature=0,
        extra_body={"return_token_ids": True},
    )
    tokenizer = load_tokenizer(START)
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert reply.choices[0].prompt_token_ids == tokenizer.encode(text, add_special_tokens=False)
    assert reply.choices[0].message.role == "assistant"


def test_a_seed_gives_equal_samples_under_concurrent_requests(client: openai.OpenAI) -> None:
    def ask(seed: int) -> list[str]:
        reply = client.completions.create(model=MODEL, prompt=IDS, max_tokens=16, n=3, seed=seed, temperature=3)
        return [choice.text for choice in reply.choices]

    alone = ask(7)
    with ThreadPoolExecutor(6) as pool:
        beside = list(pool.map(ask, [1, 7, 2, 7, 3, 4]))
    assert beside[1] == beside[3] == alone
    assert len({*alone}) > 1
    assert beside[0] != alone


def test_a_stop_string_ends_an_answer_and_is_removed(client: openai.OpenAI) -> None:
    free = client.completions.create(model=MODEL, prompt=IDS, max_tokens=16, temperature=3, seed=1).choices[0].text
    stop = free[len(free) // 2 :][:3]
    cut = client.completions.create(model=MODEL, prompt=IDS, max_tokens=16, temperature=3, seed=1, stop=[stop]).choices[
        0
    ]
    assert cut.finish_reason == "stop"
    assert cut.text == free[: free.index(stop)]


@pytest.mark.parametrize("stops", [False, True])
def test_a_stream_equals_the_whole_answer(client: openai.OpenAI, stops: bool) -> None:
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": WORDS,
        "max_tokens": 40,
        "seed": 5,
        "n": 2,
        "temperature": 3,
    }
    request["logprobs"] = True
    whole = client.chat.completions.create(**request)
    if stops:
        text = whole.choices[0].message.content or ""
        request["stop"] = [text[len(text) // 2 :][:4]]
        whole = client.chat.completions.create(**request)
    texts, tokens, events, reasons = ["", ""], [0, 0], 0, ["", ""]
    usage = None
    for event in client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}):
        usage = event.usage or usage
        for choice in event.choices:
            events += 1
            assert choice.finish_reason or choice.logprobs.content, "an event has content"
            texts[choice.index] += choice.delta.content or ""
            tokens[choice.index] += len(choice.logprobs.content) if choice.logprobs else 0
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert tokens == [len(choice.logprobs.content) for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert events > 4
    assert usage == whole.usage


def test_an_adapter_is_served_under_its_name(client: openai.OpenAI, adapters: Path, engine: Engine) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, "bent"]
    result = {
        name: client.completions.create(model=name, prompt=IDS, max_tokens=16, temperature=3, seed=1).choices[0].text
        for name in (MODEL, "bent", MODEL)
    }
    params = policy_params(load_adapters(adapters, engine.model), engine.params)
    bent = Engine(engine.model, params, engine.tokenizer, engine.config)
    (alone,) = bent.generate([IDS], SamplingParams(temperature=3, seed=1, max_new_tokens=16))
    assert result["bent"] == alone.text
    assert result["bent"] != result[MODEL]


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        ({"model": "other", "prompt": "a"}, 404, "model_not_found", "'other' is not served: quickstart_start, bent"),
        ({"prompt": [1] * 3000}, 400, "context_length_exceeded", "2048 positions"),
        ({"prompt": "a", "max_tokens": 2048}, 400, "context_length_exceeded", "do not fit"),
        ({"prompt": "a", "max_tokens": 0}, 400, None, "max_tokens: "),
        ({"prompt": "a", "n": 1000}, 400, None, "n: "),
        ({"prompt": []}, 400, None, "1 to 128"),
        ({"prompt": [9999]}, 400, None, "token 9999"),
        ({"prompt": "a", "temperature": -1}, 400, None, "temperature must be at least 0"),
        ({"prompt": "a", "top_k": 2**40}, 400, None, "top_k must be at least 0 and below 2 to the 31"),
        ({"prompt": "a", "repetition_penalty": float("inf")}, 400, None, "repetition_penalty must be"),
        ({"prompt": "a", "stop": "ab" * 20_000}, 400, None, "stop: at most 16 strings of at most 256 bytes together"),
        ({"prompt": "\ud83d"}, 400, None, "the body: "),
        ({"prompt": "a", "stop": ["\ud83d"]}, 400, None, "the body: "),
        ({"prompt": "a", "stop": ["é" * 129]}, 400, None, "stop: at most 16 strings"),
        ({"prompt": "a", "stop": [f"{i} " for i in range(17)]}, 400, None, "stop: at most 16 strings"),
        ({"prompt": "a", "echo": True}, 400, "unsupported_parameter", "echo"),
        ({"prompt": "a", "guided_regex": "[0-9]+"}, 400, "unsupported_parameter", "guided_regex"),
        ({"prompt": "a", "temprature": 1}, 400, "unknown_parameter", "temprature; the nearest is temperature"),
        ({"prompt": "a", "top_k": -2}, 400, None, "top_k must be at least 0"),
        ({"prompt": "a", "stop": "\0;"}, 400, None, "stop: a zero byte"),
        ({"prompt": "a", "logprobs": 5}, 400, None, "logprobs: "),
        ({}, 400, None, "prompt: "),
    ],
)
def test_invalid_requests_return_error_objects(
    server: str, body: dict[str, Any], status: int, code: str | None, message: str
) -> None:
    result = post(f"{server}/completions", {"model": MODEL} | body)
    assert result[0] == status
    assert set(result[1]["error"]) == {"message", "type", "param", "code"}
    assert result[1]["error"]["code"] == code
    assert message in result[1]["error"]["message"]


def test_stop_strings_at_the_limits_are_served(server: str) -> None:
    stops = [f"{i:02}{'é' * 7}" for i in range(16)]
    assert len("".join(stops).encode()) == 256
    assert post(f"{server}/completions", {"model": MODEL, "prompt": "a", "max_tokens": 16, "stop": stops})[0] == 200


def test_invalid_json_and_unknown_paths_return_error_objects(server: str) -> None:
    assert post(f"{server}/completions", b"{")[0] == 400
    assert post(f"{server}/embeddings", {})[1]["error"]["message"] == "Not Found"


def test_a_model_can_be_retrieved_by_its_name(client: openai.OpenAI, server: str) -> None:
    assert [client.models.retrieve(name).id for name in (MODEL, "bent")] == [MODEL, "bent"]
    status, _, answer = send("GET", f"{server}/models/some/other")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_a_query_parameter_and_an_encoded_body_are_refused(server: str) -> None:
    body = json.dumps({"model": MODEL, "prompt": IDS, "max_tokens": 2}).encode()
    status, _, answer = send("POST", f"{server}/completions?stream=true", body)
    assert (status, answer["error"]["param"]) == (400, "stream")
    assert send("GET", f"{server}/models?after={MODEL}")[0] == 400
    assert send("POST", f"{server}/completions?api-version=2024-10-21", body)[0] == 200
    status, _, answer = send("POST", f"{server}/completions", gzip.compress(body), encoding="gzip")
    assert status == 415
    assert "Content-Encoding gzip" in answer["error"]["message"]


def test_requests_that_differ_in_n_and_in_stop_strings_share_programs(server: str) -> None:
    def count_programs(*bodies: dict[str, Any]) -> int:
        before = decode_chunk._cache_size()
        for body in bodies:
            assert post(f"{server}/completions", {"model": MODEL, "prompt": IDS, "max_tokens": 8} | body)[0] == 200
        return decode_chunk._cache_size() - before

    count_programs({"n": 4}, {"n": 8}, {"stop": ["x"]})
    assert count_programs(*({"n": n} for n in (3, 5, 6, 7))) == 0
    assert count_programs(*({"stop": ["x" * length]} for length in range(2, 13))) == 0


def test_a_foreign_host_header_is_refused(server: str) -> None:
    body = json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 16}).encode()
    for method, path, message in (("GET", "models", b""), ("POST", "completions", body)):
        status, _, result = send(method, f"{server}/{path}", message, "evil.example:8000")
        assert status == 403
        assert "Host 'evil.example:8000' is not this machine's loopback" in result["error"]["message"]
        assert send(method, f"{server}/{path}", message, "localhost:1")[0] == 200


def test_any_host_header_is_accepted_on_all_interfaces() -> None:
    with serving_here("--host", "0.0.0.0") as url:  # noqa: S104 - under test
        assert send("GET", f"{url}/models", host="some.name")[0] == 200


@pytest.mark.slow
def test_the_command_serves_until_sigterm() -> None:
    with serving() as url:
        assert send("GET", f"{url}/models")[0] == 200


def post(url: str, body: Any) -> tuple[int, Any]:
    """Return the status and the body of a response."""
    status, _, result = send("POST", url, body if isinstance(body, bytes) else json.dumps(body).encode())
    return status, result


def send(method: str, url: str, body: bytes = b"", host: str = "", encoding: str = "") -> tuple[int, Any, Any]:
    """Return the status, the headers and the JSON body of a response."""
    parts = urlsplit(url)
    headers = {name: value for name, value in (("Host", host), ("Content-Encoding", encoding)) if value}
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=300)) as connection:
        connection.request(method, parts._replace(scheme="", netloc="").geturl(), body, headers)
        reply = connection.getresponse()
        return reply.status, reply.headers, json.loads(reply.read())


def health(server: str) -> dict[str, Any]:
    """Return the server's health report."""
    result: dict[str, Any] = send("GET", f"{server.removesuffix('/v1')}/health")[2]
    return result


def until(holds: Callable[[], bool]) -> bool:
    """Return whether a condition becomes true within five minutes."""
    end = time.monotonic() + 300
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnected_client_frees_its_slots(server: str, stream: bool) -> None:
    """Its answer would have 1,000 tokens per sample, for 32 samples on 8 slots."""
    before = health(server)["cancelled"]
    body = {"model": MODEL, "prompt": IDS, "max_tokens": 1000, "n": 32, "stream": stream, "temperature": 5}
    address = server.removeprefix("http://").removesuffix("/v1").split(":")
    text = json.dumps(body).encode()
    with socket.create_connection((address[0], int(address[1]))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
        connection.sendall(head.encode() + text)
        assert until(lambda: health(server)["running"] == 1)
    assert until(lambda: health(server)["running"] == 0)
    assert health(server)["cancelled"] == before + 1
    assert post(f"{server}/completions", {"model": MODEL, "prompt": IDS, "max_tokens": 16})[0] == 200


def load(server: str, clients: int, is_over: Callable[[Counter[str]], bool]) -> Counter[str]:
    """Send requests from many clients until the load is over; return the number of requests per result."""
    ends: Counter[str] = Counter()
    lock = threading.Lock()
    last = time.monotonic() + 300

    def one(number: int) -> None:
        while not is_over(ends) and time.monotonic() < last:
            body = {"model": MODEL, "prompt": [*IDS, number % 500], "max_tokens": 16, "return_token_ids": True}
            try:
                status, headers, result = send("POST", f"{server}/completions", json.dumps(body).encode())
                end = str(status) if headers.get("Retry-After") else f"{status} without a time"
                if status == 200:
                    choice = result["choices"][0]
                    end = "whole" if choice["finish_reason"] in ("stop", "length") and choice["token_ids"] else "cut"
                else:
                    time.sleep(0.05)
            except OSError as error:
                end = repr(error)
            with lock:
                ends[end] += 1

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(one, range(clients)))
    return ends


def test_requests_beyond_the_queue_return_429_with_retry_after(server: str) -> None:
    ends = load(server, 100, lambda ends: ends["whole"] > 0 and ends["429"] > 0)
    assert set(ends) <= {"whole", "429"}
    assert ends["whole"]
    assert ends["429"]


def leave(server: str, seconds: float) -> int:
    """Request long answers for some seconds, disconnecting from each; return the number of requests."""
    parts, left, stop = urlsplit(server), 0, time.monotonic() + seconds
    text = json.dumps({"model": MODEL, "prompt": IDS, "max_tokens": 1000, "n": 8, "temperature": 5}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
    while time.monotonic() < stop:
        with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
            connection.sendall(head.encode() + text)
            time.sleep(0.5)
        left += 1
    return left


@pytest.mark.nightly
def test_200_clients_get_whole_answers_or_429_while_others_disconnect(server: str) -> None:
    seconds, before = float(os.environ.get("JAXRL_SQL_LOAD_SECONDS", "20")), health(server)["cancelled"]
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(4) as pool:
        leaving = [pool.submit(leave, server, seconds) for _ in range(4)]
        ends = load(server, 200, lambda _: time.monotonic() > end)
        left = sum(item.result() for item in leaving)
    assert until(lambda: health(server)["running"] == 0)
    result = health(server)
    print(f"{seconds:g} s: {dict(ends)}; {left} went away, {result['cancelled'] - before} of them as they ran")
    assert set(ends) <= {"whole", "429"}
    assert ends["whole"] > 100
    assert (result["status"], result["waiting"], result["running"]) == ("ok", 0, 0)
    assert result["cancelled"] > before
