"""The batcher: samples of a request are independent of other requests, and cancelled jobs leave the queue."""

from __future__ import annotations

import functools
import json
import math
import queue
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from starlette.testclient import TestClient

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.rollout import Engine, EngineConfig, Sample, SamplingParams
from jaxrl_sql.serving.app import make_app
from jaxrl_sql.serving.batcher import Batcher, Job, QueueFullError
from jaxrl_sql.serving.protocol import CompletionRequest, ResponseBuilder
from jaxrl_sql.types import Prompt

CONFIG = ModelConfig("qwen3", 24, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)
IDS = tuple(range(10))


class Letters:
    """A tokenizer of 24 letters; the model cannot sample its end token."""

    eos_token = "end"  # noqa: S105 (a token's name)

    def get_vocab(self) -> dict[str, int]:
        return {**{chr(97 + i): i for i in range(24)}, "end": 24}

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(chr(97 + i) for i in ids)


@functools.cache
def engine() -> Engine:
    return Engine(CONFIG, init_params(CONFIG, jax.random.key(3)), Letters(), EngineConfig(8))


def make_batcher(capacity: int) -> Batcher:
    return Batcher({"m": engine()}, capacity)


def texts(*requests: tuple[int, int]) -> list[dict[tuple[int, int], str]]:
    """Return the texts of jobs in one call, each (number of equal prompts, seed), by prompt and sample."""
    batcher, events = make_batcher(len(requests)), queue.Queue[tuple[int, Sample | Exception]]()
    result: list[dict[tuple[int, int], str]] = [{} for _ in requests]
    for index, (count, seed) in enumerate(requests):
        sampling = SamplingParams(max_new_tokens=12, n=2, seed=seed)
        prompts = [Prompt(f"prompt {i}", IDS, "") for i in range(count)]
        batcher.submit(Job("m", prompts, sampling, lambda event, index=index: events.put((index, event))))
    with batcher.running():
        for _ in range(sum(2 * count for count, _ in requests)):
            index, event = events.get(timeout=120)
            assert isinstance(event, Sample), event
            result[index][event.prompt_index, event.index] = event.text
    return result


def test_equal_prompts_have_independent_and_reproducible_samples() -> None:
    ((single,), (several,)) = texts((1, 7)), texts((3, 7))
    assert len({*several.values()}) == 6
    assert {key: several[key] for key in single} == single
    assert texts((1, 5), (3, 7), (1, 7))[1:] == [several, single]


def test_cancelled_job_leaves_the_queue() -> None:
    batcher = make_batcher(2)
    first, second, third, fourth = (Job("m", [Prompt("p", IDS, "")], SamplingParams(), print) for _ in range(4))
    batcher.submit(first)
    batcher.submit(second)
    with pytest.raises(QueueFullError):
        batcher.submit(third)
    first.cancelled = True
    assert batcher.counts["waiting"] == 1
    batcher.submit(third)
    assert batcher.counts["waiting"] == 2
    with pytest.raises(QueueFullError):
        batcher.submit(fourth)


def test_non_finite_logprobs_are_null() -> None:
    request = CompletionRequest(model="m", prompt="a", logprobs=0)
    writer = ResponseBuilder(request, [], SimpleNamespace(tokenizer=Letters()))  # type: ignore[arg-type] # only its tokenizer is used
    written = writer._logprobs([0, 1, 2], [-0.5, -math.inf, math.nan])
    assert written == {"tokens": ["a", "b", "c"], "token_logprobs": [-0.5, None, None], "top_logprobs": None}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, marks=pytest.mark.nightly),
        pytest.param({"logprobs": 0}, marks=pytest.mark.nightly),
        {"logprobs": 0, "stream": True},
    ],
)
def test_non_finite_model_output_is_a_server_error(more: dict[str, Any]) -> None:
    """The weights are finite, their products are not."""
    params = init_params(CONFIG, jax.random.key(3))
    params = {**params, "final_norm": params["final_norm"] * 1e38, "embed": params["embed"] * 1e9}
    batcher = Batcher({"m": Engine(CONFIG, params, Letters(), EngineConfig(2))}, 4)
    with batcher.running(), TestClient(make_app(batcher, 64, on_loopback=False)) as client:
        reply = client.post("/v1/completions", json={"model": "m", "prompt": [*IDS], "max_tokens": 3, **more})
    assert "NaN" not in reply.text
    body = json.loads(reply.text.removeprefix("data: ").split("\n")[0])
    assert body["error"]["message"].startswith("model: its log-probabilities are not finite numbers: the weights")
    assert (body["error"]["type"], body["error"]["code"]) == ("server_error", "model_not_finite")
    assert reply.status_code == (200 if more.get("stream") else 503)
