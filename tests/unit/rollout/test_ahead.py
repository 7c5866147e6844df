"""Samples of the next call start in slots that the last samples of a call leave free."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.rollout import Engine, EngineConfig, Sample, SamplingParams
from jaxrl_sql.rollout.engine_config import KVBudget
from jaxrl_sql.rollout.replicated import pack_samples, unpack_samples
from jaxrl_sql.rollout.sampling import UNFINISHED
from jaxrl_sql.types import InputError, Prompt

CONFIG = ModelConfig("qwen3", 24, 32, 1, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)
PARAMS, OTHERS = (init_params(CONFIG, jax.random.key(number)) for number in (1, 2))
SAMPLING = SamplingParams(n=4, max_new_tokens=32, seed=3)
SLOTS = 8
Samples = dict[tuple[int, int], Sample]


class Letters:
    """A tokenizer of 24 letters; the last letter ends a text."""

    eos_token = "x"  # noqa: S105 (a token's name)

    def get_vocab(self) -> dict[str, int]:
        return {chr(97 + i): i for i in range(24)}

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(chr(97 + i) for i in ids)


def make_prompt_set(seed: int, count: int = 3) -> list[Prompt]:
    r = np.random.default_rng(seed)
    return [Prompt(f"{seed}.{i}", tuple(r.integers(0, 24, 20).tolist()), "") for i in range(count)]


FIRST, SECOND = make_prompt_set(0), make_prompt_set(1)


def engine(params: Any = PARAMS, **sizes: Any) -> Engine:
    return Engine(CONFIG, params, Letters(), EngineConfig(SLOTS, **sizes))


def by_index(samples: list[Sample]) -> Samples:
    result = {(s.prompt_index, s.index): s for s in samples}
    assert len(result) == len(samples)
    return result


def separate_call(prompts: list[Prompt], step: int, params: Any = PARAMS) -> Samples:
    return by_index(list(engine(params).generate(prompts, SAMPLING, step)))


def two_calls(result: Engine, then: Any = None) -> tuple[Samples, list[Sample], Samples]:
    """Return the first call's samples, the second call's early samples, and the second call's samples.

    `then` has the parameters of the second call.
    """
    results = list(result.generate([*FIRST, *SECOND], SAMPLING, 5, ahead=len(FIRST)))
    first = [item for item in results if item.prompt_index < len(FIRST)]
    left = [
        dataclasses.replace(entry, prompt_index=entry.prompt_index - len(FIRST))
        for entry in results
        if entry.prompt_index >= len(FIRST)
    ]
    result.params = result.params if then is None else then
    return by_index(first), left, by_index(list(result.generate(SECOND, SAMPLING, 6, carried=left)))


def assert_same(ours: Samples, theirs: Samples) -> None:
    assert ours.keys() == theirs.keys()
    for place, item in ours.items():
        other = theirs[place]
        assert (item.token_ids, item.text, item.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        assert item.turns[0].token_ids == item.token_ids
        assert item.turns[0].logprobs == item.logprobs
        np.testing.assert_allclose(item.logprobs, other.logprobs, atol=1e-5)
        np.testing.assert_allclose(item.behavior_logprobs, other.behavior_logprobs, atol=1e-5)


@pytest.mark.parametrize("budget", [None, KVBudget(3, 4, 0)])
def test_early_start_gives_the_samples_of_separate_calls(budget: KVBudget | None) -> None:
    """Use equal parameters, with a full and with a minimal KV budget."""
    sizes = {} if budget is None else {"budget": budget, "block_size": 32, "completion_block_size": 16}
    first, left, second = two_calls(engine(**sizes))
    assert_same(first, separate_call(FIRST, 5))
    assert_same(second, separate_call(SECOND, 6))
    assert budget or {item.finish_reason for item in left} > {UNFINISHED}


def test_early_tokens_keep_their_logprobs_under_new_parameters(logprobs_of: Callable[..., Any]) -> None:
    """The second call's parameters sample the remaining tokens: a forward pass gives their logprobs."""
    _, left, second = two_calls(engine(), OTHERS)
    carried = [entry for entry in left if entry.finish_reason == UNFINISHED]
    assert carried
    whole = separate_call(SECOND, 6, OTHERS)
    for item in left:
        now, have = second[item.prompt_index, item.index], len(item.token_ids)
        assert now.token_ids[:have] == item.token_ids
        assert now.logprobs[:have] == pytest.approx(item.logprobs)
        assert now.finish_reason in {"stop", "length"}
        if item.finish_reason != UNFINISHED:
            assert now == item
    fresh = second.keys() - {(one.prompt_index, one.index) for one in left}
    assert_same({place: second[place] for place in fresh}, {place: whole[place] for place in fresh})
    resumed = [second[element.prompt_index, element.index] for element in carried]
    for item, now in zip(carried, resumed, strict=True):
        full = logprobs_of(OTHERS, CONFIG, SECOND[item.prompt_index].token_ids, now.token_ids)
        scored = full[np.arange(len(now.token_ids)), list(now.token_ids)]
        have = len(item.token_ids)
        np.testing.assert_allclose(now.logprobs[have:], scored[have:], atol=1e-4)
        assert np.abs(np.array(now.logprobs[:have]) - scored[:have]).max() > 1e-2


def test_early_start_uses_free_slots() -> None:
    """Both calls together take fewer decode steps than one after the other."""
    result = engine()
    list(result.generate([*FIRST, *SECOND], SAMPLING, 5, ahead=len(FIRST)))
    with_ahead, written = result.stats.steps, result.stats.tokens
    list(result.generate(FIRST, SAMPLING, 5))
    assert with_ahead < result.stats.steps + 2 * result.config.chunk_steps  # early samples add no step
    assert written > result.stats.tokens


def test_early_samples_survive_serialization() -> None:
    _, left, second = two_calls(engine())
    again = unpack_samples(pack_samples(left))
    assert again == left
    assert by_index(list(engine().generate(SECOND, SAMPLING, 6, carried=again))) == second


def test_call_with_only_finished_samples_decodes_nothing() -> None:
    finished = list(separate_call(SECOND, 6).values())
    result = engine()
    assert by_index(list(result.generate(SECOND, SAMPLING, 6, carried=finished))) == by_index(finished)
    assert result.stats.steps == 0


def test_dialogues_do_not_start_early() -> None:
    result = engine()
    with pytest.raises(InputError, match="multi-turn"):
        next(result.generate(FIRST, SAMPLING, turns=lambda *_: None, ahead=1))  # type: ignore[arg-type, return-value]
