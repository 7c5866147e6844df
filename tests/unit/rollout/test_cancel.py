"""Prompts cancelled during a call: their slots and blocks become free, and other prompts' tokens do not change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.rollout import Engine, EngineConfig, Sample, SamplingParams
from jaxrl_sql.rollout.call import EngineCall
from jaxrl_sql.rollout.engine_config import KVBudget
from jaxrl_sql.rollout.sampling import GenerationRequest
from jaxrl_sql.rollout.scheduler import plan
from jaxrl_sql.types import Prompt

CONFIG = ModelConfig("qwen3", 24, 32, 1, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)
PARAMS = init_params(CONFIG, jax.random.key(3))
Key = tuple[int, int]


class Letters:
    """A tokenizer of 24 letters; the model never emits its end token."""

    eos_token = "end"  # noqa: S105 (a token's name)

    def get_vocab(self) -> dict[str, int]:
        return {**{chr(97 + i): i for i in range(24)}, "end": 24}

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(chr(97 + i) for i in ids)


def make_engine(slots: int = 6, budget: KVBudget | None = None) -> Engine:
    """Return an engine with full-size pools: one decode program serves a whole call."""
    config = EngineConfig(
        slots, completion_block_size=4, block_size=8, chunk_steps=4, budget=budget, longest_prompt=9, pads_to_max=True,
        prefix_cache_tokens=64, prefill_tokens=64,
    )  # fmt: skip
    return Engine(CONFIG, PARAMS, Letters(), config)


def make_request(*lengths: int, n: int = 4) -> GenerationRequest:
    """Return a call with prompts of 9 tokens and the given completion lengths."""
    r = np.random.default_rng(0)
    prompts = [Prompt(f"p{i}", tuple(r.integers(0, 24, 9).tolist()), "") for i in range(len(lengths))]
    return GenerationRequest(prompts, [SamplingParams(n=n, max_new_tokens=tokens) for tokens in lengths], 0, None)


def drive(call: EngineCall, cancel: Mapping[int, Sequence[int]]) -> dict[Key, Sample]:
    """Run a call to its end, cancel prompts before the launch of the number, and return the samples."""
    result: dict[Key, Sample] = {}
    launch = 0
    while call.unfinished:
        for prompt in cancel.get(launch, ()):
            call.cancel(prompt)
        for sample in (*call.launch(), *call.read()):
            key = sample.prompt_index, sample.index
            assert key not in result
            result[key] = sample
        launch += 1
        assert launch < 500
    free = plan(call.state, call.events).after.prefixes
    assert sorted(free.free_blocks) == list(range(free.num_blocks)), "a block of a prompt was lost"
    return result


REQUEST = make_request(40, 60, 40, 24, 60)


@cache
def uncancelled(budget: KVBudget | None) -> dict[Key, Sample]:
    """Return the samples of `REQUEST` without cancellation."""
    return drive(make_engine(budget=budget).begin(REQUEST), {})


@pytest.mark.parametrize("budget", [None, KVBudget(8, 30, 0)], ids=["roomy", "preempting"])
@pytest.mark.parametrize("launch", [0, 4, *(pytest.param(launch, marks=pytest.mark.nightly) for launch in (1, 2, 9))])
def test_cancellation_does_not_change_other_prompts_tokens(launch: int, budget: KVBudget | None) -> None:
    request, whole = REQUEST, uncancelled(budget)
    assert len(whole) == 20
    engine = make_engine(budget=budget)
    result = drive(engine.begin(request), {launch: [1, 4]})
    for key, sample in whole.items():
        if key[0] not in (1, 4):
            assert result[key].token_ids == sample.token_ids
            np.testing.assert_allclose(result[key].logprobs, sample.logprobs, atol=1e-5)
    # Already finished samples, and pending ones, which end with one token.
    late = [sample for key, sample in result.items() if key[0] in (1, 4) and sample != whole[key]]
    assert all(len(sample.token_ids) == 1 for sample in late)
    assert engine.stats.tokens < sum(len(sample.token_ids) for sample in whole.values())
    again = drive(engine.begin(request), {})
    assert {key: sample.token_ids for key, sample in again.items()} == {
        key: sample.token_ids for key, sample in whole.items()
    }


def test_slot_of_a_cancelled_completion_is_reused_at_once() -> None:
    """The first completions would occupy all six slots for 60 tokens, before the last prompt's 60."""
    request, engine = make_request(*[60] * 5), make_engine()
    call = engine.begin(request)
    last = call.state.waiting[-1].prompt
    result = drive(call, {3: [prompt for prompt in range(5) if prompt != last]})
    assert {key for key, sample in result.items() if len(sample.token_ids) > 1} == {(last, i) for i in range(4)}
    assert engine.stats.chunks < 3 + 60 // 4 + 4


@pytest.mark.slow
def test_blocks_of_a_cancelled_completion_are_reused() -> None:
    """The blocks suffice for one completion of 60 tokens, so the second waits for the first's blocks."""
    request = make_request(60, 60, n=1)
    engine = make_engine(slots=2, budget=KVBudget(8, 15, 0))
    whole = drive(engine.begin(request), {})
    assert engine.stats.preemptions
    given_up = next(iter(whole))[0]  # the first to finish is not preempted
    engine = make_engine(slots=2, budget=KVBudget(8, 15, 0))
    result = drive(engine.begin(request), {4: [given_up]})
    assert list(result) == [(1 - given_up, 0)]
    assert result[1 - given_up, 0].token_ids == whole[1 - given_up, 0].token_ids


def test_call_with_all_prompts_cancelled_ends() -> None:
    engine = make_engine()
    result = drive(engine.begin(make_request(*[60] * 12)), {2: range(12)})
    assert all(len(sample.token_ids) == 1 for sample in result.values())
    assert engine.stats.chunks < 6


def test_finished_prompt_is_not_cancelled_again() -> None:
    request = make_request(4, 60)
    expected = drive(make_engine().begin(request), {})
    result = drive(make_engine().begin(request), {9: [0], 10: [0]})
    assert result == expected
