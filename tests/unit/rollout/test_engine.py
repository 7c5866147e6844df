"""The engine on a small random model: what it draws, when it stops, and what must not change its tokens."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, forward, init_params
from jaxrl_sql.rollout import Engine, Sample, Sampling
from jaxrl_sql.types import InputError, Prompt

CONFIG = ModelConfig("qwen3", 24, 32, 2, 4, 2, 8, 48, 1e4, 1e-6, True, True, False, 128)
PARAMS = init_params(CONFIG, jax.random.key(3))
END = 5


class Letters:
    """A tokenizer of 24 letters, one of which ends an answer."""

    eos_token = "f"  # noqa: S105 (a letter, no password)

    def get_vocab(self) -> dict[str, int]:
        return {chr(97 + i): i for i in range(24)}

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(chr(97 + i) for i in ids)


def make_prompts(*lengths: int) -> list[Prompt]:
    r = np.random.default_rng(0)
    return [Prompt(f"p{i}", tuple(r.integers(0, 24, n).tolist()), "") for i, n in enumerate(lengths)]


def run(prompts: list[Prompt], slots: int = 16, step: int = 0, **how: Any) -> dict[tuple[int, int], Sample]:
    engine = Engine(CONFIG, PARAMS, Letters(), slots)
    samples = list(engine.generate(prompts, Sampling(**how), step))
    found = {(s.prompt_index, s.index): s for s in samples}
    assert len(found) == len(samples)
    return found


def test_every_prompt_gets_its_samples_once() -> None:
    found = run(make_prompts(5, 17, 9, 3, 30), slots=7, n=3, max_new_tokens=20)
    assert sorted(found) == [(i, g) for i in range(5) for g in range(3)]


def test_samples_end_at_the_end_token_or_at_the_limit() -> None:
    for sample in run(make_prompts(5, 9), n=8, max_new_tokens=20).values():
        assert END not in sample.token_ids[:-1]
        if sample.finish_reason == "stop":
            assert sample.token_ids[-1] == END
            assert sample.text == Letters().decode(sample.token_ids[:-1])
        else:
            assert len(sample.token_ids) == 20
            assert sample.token_ids[-1] != END


@pytest.mark.parametrize("how", [{"temperature": 1.3}, {"temperature": 0.7, "top_k": 4}, {"top_p": 0.6}])
def test_logprobs_are_those_of_the_model(how: dict[str, Any]) -> None:
    prompts = make_prompts(5, 12)
    temperature = how.get("temperature", 1.0)
    for (i, _), sample in run(prompts, n=4, max_new_tokens=12, **how).items():
        tokens = (*prompts[i].token_ids, *sample.token_ids)
        logits = forward(PARAMS, CONFIG, jnp.array([tokens]), jnp.array([len(tokens)]))[0]
        start = len(prompts[i].token_ids) - 1
        full = jax.nn.log_softmax(logits[start : start + len(sample.token_ids)] / temperature)
        picked = np.asarray(full)[np.arange(len(sample.token_ids)), list(sample.token_ids)]
        np.testing.assert_allclose(sample.logprobs, picked, atol=1e-4)
        gap = np.array(sample.drawn_logprobs) - picked
        if len(how) == 1 and temperature != 1.0:
            np.testing.assert_allclose(gap, 0, atol=1e-4)
        else:
            assert (gap > -1e-4).all()
        if "top_k" in how:
            rank = (np.asarray(full) > picked[:, None]).sum(axis=-1)
            assert (rank < 4).all()


def test_greedy_is_the_argmax_of_the_forward_pass() -> None:
    (prompt,) = make_prompts(6)
    sample = run([prompt], temperature=0.0, max_new_tokens=10)[0, 0]
    tokens = list(prompt.token_ids)
    for token in sample.token_ids:
        logits = forward(PARAMS, CONFIG, jnp.array([tokens]), jnp.array([len(tokens)]))
        assert token == int(jnp.argmax(logits[0, -1]))
        tokens.append(token)


def test_trap_slots_tokens_do_not_depend_on_slots_or_batch_mates() -> None:
    prompts = make_prompts(5, 17, 9, 3)
    alone = {}
    for i, _ in enumerate(prompts):
        # An answer's key holds its prompt's number: the first i prompts stand before it, one token long.
        before = [Prompt(f"x{j}", (1,), "") for j in range(i)]
        alone |= {k: s.token_ids for k, s in run([*before, prompts[i]], n=2, max_new_tokens=16).items() if k[0] == i}
    for slots in (2, 8, 13):
        together = run(prompts, slots=slots, n=2, max_new_tokens=16)
        assert {key: sample.token_ids for key, sample in together.items()} == alone


def test_steps_and_seeds_draw_differently_and_replay_exactly() -> None:
    prompts = make_prompts(5, 9)
    first = run(prompts, n=4, max_new_tokens=16, seed=1, step=7)
    assert first == run(prompts, n=4, max_new_tokens=16, seed=1, step=7)
    assert first != run(prompts, n=4, max_new_tokens=16, seed=1, step=8)
    assert first != run(prompts, n=4, max_new_tokens=16, seed=2, step=7)


def test_bad_requests_are_refused_in_words() -> None:
    engine = Engine(CONFIG, PARAMS, Letters(), 4)
    with pytest.raises(InputError, match="max_new_tokens"):
        Sampling(max_new_tokens=0)
    with pytest.raises(InputError, match="top_p"):
        Sampling(top_p=0.0)
