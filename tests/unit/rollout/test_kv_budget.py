"""KV blocks under a budget: completions wait or are preempted, and answers equal those without a budget."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.rollout import Action, Engine, EngineConfig, Sample, SamplingParams
from jaxrl_sql.rollout.decode import decode_chunk
from jaxrl_sql.rollout.engine_config import KVBudget, fit_budget
from jaxrl_sql.text2sql.env.turns import Observation, PendingObservation
from jaxrl_sql.types import InputError, Prompt

CONFIG = ModelConfig("qwen3", 24, 32, 1, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)
PARAMS = init_params(CONFIG, jax.random.key(3))
SMALL: dict[str, Any] = {"completion_block_size": 4, "block_size": 8, "chunk_steps": 4}
# Full-size pools from the start: one decode program serves a whole call.
WHOLE: dict[str, Any] = {
    **SMALL,
    "longest_prompt": 30,
    "pads_to_max": True,
    "prefix_cache_tokens": 64,
    "prefill_tokens": 64,
}
# Calls with equal numbers of samples, maximal lengths and stop strings share their programs.
SAMPLING: dict[str, Any] = {"n": 4, "max_new_tokens": 60, "stop": ("ab", "kq")}
Found = dict[tuple[int, int], Sample]


class Letters:
    """A tokenizer of 24 letters; one of them ends an answer."""

    def __init__(self, end: str = "f") -> None:
        self.eos_token = end

    def get_vocab(self) -> dict[str, int]:
        return {**{chr(97 + i): i for i in range(24)}, "end": 24}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(c) - 97 for c in text]

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(chr(97 + i) for i in ids)


class Echo:
    """Answers each turn but the last with its own letters."""

    def __init__(self, number: int) -> None:
        self.number, self.left = number, number % 3

    def next(self, action: Action) -> PendingObservation | None:
        del action
        self.left -= 1
        return Observation("uvw"[self.number % 3] * (5 + self.left) + "abc") if self.left >= 0 else None


def make_prompts(*lengths: int) -> list[Prompt]:
    r = np.random.default_rng(0)
    return [Prompt(f"p{i}", tuple(r.integers(0, 24, n).tolist()), "") for i, n in enumerate(lengths)]


def sampled(
    budget: KVBudget | None, turns: bool = False, sizes: dict[str, Any] = WHOLE, **sampling: Any
) -> tuple[Found, Engine]:
    engine = Engine(CONFIG, PARAMS, Letters("end"), EngineConfig(6, budget=budget, **sizes))
    begin = (lambda prompt, sample: Echo(prompt + sample)) if turns else None
    samples = engine.generate(make_prompts(9, 21, 14, 30, 3), SamplingParams(**sampling), turns=begin)
    return {(s.prompt_index, s.index): s for s in samples}, engine


def assert_same(result: Found, expected: Found) -> None:
    assert result.keys() == expected.keys()
    for key, sample in expected.items():
        assert result[key].token_ids == sample.token_ids
        assert result[key].finish_reason == sample.finish_reason
        assert [turn.role for turn in result[key].turns] == [turn.role for turn in sample.turns]
        for name in ("logprobs", "behavior_logprobs"):
            np.testing.assert_allclose(getattr(result[key], name), getattr(sample, name), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [
        SAMPLING,
        pytest.param({"temperature": 0.0, "n": 4, "max_new_tokens": 60}, marks=pytest.mark.nightly),
        pytest.param({"n": 4, "max_new_tokens": 60, "stop": ("ab", "kk", "cq")}, marks=pytest.mark.nightly),
        pytest.param({"n": 4, "max_new_tokens": 60, "repetition_penalty": 1.3, "top_k": 9}, marks=pytest.mark.nightly),
    ],
)
def test_third_of_the_blocks_gives_the_same_answers(sampling: dict[str, Any]) -> None:
    """The pool of completions grows to that third; a second call gives bit-equal answers."""
    expected, roomy = sampled(None, **sampling)
    assert roomy.stats.preemptions == 0
    # 6 slots of 15 blocks would be 90 blocks of completions.
    result, engine = sampled(KVBudget(8, 30, 0), sizes=SMALL, **sampling)
    assert engine.stats.preemptions > 3
    assert_same(result, expected)
    again, _ = sampled(KVBudget(8, 30, 0), sizes=SMALL, **sampling)
    assert list(result.items()) == list(again.items())
    pools = engine.runner.prompt_pool, engine.runner.completion_pool
    assert [pool and pool.num_blocks for pool in pools] == [8, 30]
    assert engine.runner.prefix_pool is None


@pytest.mark.slow
def test_dialogues_are_preempted_between_and_within_turns() -> None:
    sampling = {**SAMPLING, "max_new_tokens": 14, "max_total_tokens": 60}
    expected, _ = sampled(None, turns=True, **sampling)
    result, engine = sampled(KVBudget(8, 16, 0), turns=True, **sampling)
    assert engine.stats.preemptions > 3
    assert_same(result, expected)


def test_budget_for_one_answer_suffices_and_less_is_an_error() -> None:
    expected, _ = sampled(None, **SAMPLING)
    result, _ = sampled(KVBudget(3, 15, 0), **SAMPLING)
    assert result[3, 0].finish_reason == "invalid"
    assert "the prompt of 30 tokens needs more than the 3 KV blocks" in result[3, 0].error
    assert_same({key: s for key, s in result.items() if key[0] != 3}, {k: s for k, s in expected.items() if k[0] != 3})
    result, _ = sampled(KVBudget(8, 14, 0), **SAMPLING)
    assert "its completion of 60 tokens needs more than the 14 KV blocks" in result[0, 0].error


@pytest.mark.nightly
def test_earlier_calls_change_no_bit_of_later_answers() -> None:
    """Pool sizes depend on the call, not on the largest call so far."""
    sampling = SamplingParams(n=8, max_new_tokens=60)
    fresh = Engine(CONFIG, PARAMS, Letters(), EngineConfig(16, **SMALL))
    used = Engine(CONFIG, PARAMS, Letters(), EngineConfig(16, **SMALL))
    list(used.generate(make_prompts(50, 60, 40), SamplingParams(n=16, max_new_tokens=68)))
    used.params = jax.tree.map(lambda x: x * 1, PARAMS)
    prompts = make_prompts(5, 9, 7)
    assert list(used.generate(prompts, sampling, 3)) == list(fresh.generate(prompts, sampling, 3))


@pytest.mark.nightly
def test_call_compiles_at_most_three_decode_programs() -> None:
    decode_chunk.clear_cache()
    engine = Engine(CONFIG, PARAMS, Letters("end"), EngineConfig(16, **SMALL))
    samplings = [SamplingParams(n=4, max_new_tokens=tokens) for tokens in (8, 20, 40, 60)]
    list(engine.generate(make_prompts(9, 21, 14, 30), samplings))
    assert decode_chunk._cache_size() == 3
    list(engine.generate(make_prompts(9, 21, 14, 30), samplings, 1))
    assert decode_chunk._cache_size() == 3


def test_released_pools_are_allocated_again() -> None:
    engine = Engine(CONFIG, PARAMS, Letters("end"), EngineConfig(6, **WHOLE))
    prompts, sampling = make_prompts(9, 21, 14, 30, 3), SamplingParams(**SAMPLING)
    first = list(engine.generate(prompts, sampling))
    engine.release()
    assert engine.runner.completion_pool is None
    assert list(engine.generate(prompts, sampling)) == first


def test_completion_pool_grows_by_quarter_half_and_full() -> None:
    config = EngineConfig(16, **SMALL)
    sizes = config.sizes([30] * 5, samples=4, completion=60)
    assert (sizes.completion_blocks, sizes.completion_columns) == (256, 16)
    assert config.completion_pool_sizes(sizes) == [(64, 4), (128, 16), (256, 16)]
    assert EngineConfig(16, **WHOLE).completion_pool_sizes(sizes) == [(256, 16)]
    assert config.completion_pool_sizes(sizes._replace(completion_blocks=8)) == [(8, 16)]


def test_byte_budget_allows_all_blocks_or_shrinks_the_cache_first() -> None:
    need = EngineConfig(8, **SMALL).sizes([60] * 20, samples=4, completion=40)
    whole = need.prompt_blocks * 100 + need.completion_blocks * 50 + need.prefix_blocks * 100
    assert fit_budget(need, 100, 50, whole, 1) == tuple(need)[-3:]
    less = fit_budget(need, 100, 50, whole - need.prefix_blocks * 50, 1)
    assert less[:2] == (need.prompt_blocks, need.completion_blocks)
    assert 0 < less.prefix_blocks < need.prefix_blocks
    third = fit_budget(need, 100, 50, (need.prompt_blocks * 100 + need.completion_blocks * 50) // 3, 1)
    assert third.prefix_blocks == 0
    assert need.prompt_blocks / 4 <= third.prompt_blocks <= need.prompt_blocks / 3
    assert need.completion_blocks / 4 <= third.completion_blocks <= need.completion_blocks / 3
    with pytest.raises(
        InputError, match=r"rollout\.memory: 1,000 bytes of KV cache are too few for the longest prompt"
    ):
        fit_budget(need, 100, 50, 1000, 1)
