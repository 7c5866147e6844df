"""The engine on a small random model: what it samples, when it stops, and what must not change its tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, forward, init_params
from jaxrl_sql.rollout import Engine, EngineConfig, Sample, SamplingParams
from jaxrl_sql.rollout.decode import DecodeState, copy_blocks, decode_chunk, prefill_chunk
from jaxrl_sql.rollout.sampling import GenerationRequest
from jaxrl_sql.rollout.scheduler import Scheduler
from jaxrl_sql.rollout.stats import RolloutStats
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


class NoEnd(Letters):
    """The same, whose end token is none of the model's."""

    eos_token = "end"  # noqa: S105 (a token's name)

    def get_vocab(self) -> dict[str, int]:
        return {**super().get_vocab(), "end": 24}


def make_prompts(*lengths: int) -> list[Prompt]:
    r = np.random.default_rng(0)
    return [Prompt(f"p{i}", tuple(r.integers(0, 24, n).tolist()), "") for i, n in enumerate(lengths)]


def run(prompts: list[Prompt], slots: int = 16, step: int = 0, **sampling: Any) -> dict[tuple[int, int], Sample]:
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(slots))
    samples = list(engine.generate(prompts, SamplingParams(**sampling), step))
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


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param({"temperature": 1.3}, marks=pytest.mark.slow),
        {"temperature": 0.7, "top_k": 4},
        pytest.param({"top_p": 0.6}, marks=pytest.mark.slow),
    ],
)
def test_logprobs_are_those_of_the_model(sampling: dict[str, Any]) -> None:
    prompts = make_prompts(5, 12)
    temperature = sampling.get("temperature", 1.0)
    for (i, _), sample in run(prompts, n=4, max_new_tokens=12, **sampling).items():
        tokens = (*prompts[i].token_ids, *sample.token_ids)
        logits = forward(PARAMS, CONFIG, jnp.array([tokens]), jnp.array([len(tokens)]))[0]
        start = len(prompts[i].token_ids) - 1
        full = jax.nn.log_softmax(logits[start : start + len(sample.token_ids)] / temperature)
        picked = np.asarray(full)[np.arange(len(sample.token_ids)), list(sample.token_ids)]
        np.testing.assert_allclose(sample.logprobs, picked, atol=1e-4)
        gap = np.array(sample.behavior_logprobs) - picked
        if len(sampling) == 1 and temperature != 1.0:
            np.testing.assert_allclose(gap, 0, atol=1e-4)
        else:
            assert (gap > -1e-4).all()
        if "top_k" in sampling:
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


def test_steps_and_seeds_sample_differently_and_replay_exactly() -> None:
    prompts = make_prompts(5, 9)
    first = run(prompts, n=4, max_new_tokens=16, seed=1, step=7)
    assert first == run(prompts, n=4, max_new_tokens=16, seed=1, step=7)
    assert first != run(prompts, n=4, max_new_tokens=16, seed=1, step=8)
    assert first != run(prompts, n=4, max_new_tokens=16, seed=2, step=7)


def test_bad_requests_are_refused_in_words_and_the_others_go_on() -> None:
    prompts = [*make_prompts(120, 5), Prompt("empty", (), ""), Prompt("odd", (1, 99), "")]
    samplings = [
        SamplingParams(max_new_tokens=20),
        SamplingParams(max_new_tokens=4),
        SamplingParams(),
        SamplingParams(max_new_tokens=4),
    ]
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(4))
    samplings.append(SamplingParams(stop=("ab", "%"), max_new_tokens=4))
    found = {s.prompt_index: s for s in engine.generate([*prompts, prompts[1]], samplings)}
    assert [found[i].finish_reason == "refused" for i in range(5)] == [True, False, True, True, True]
    for index, word in ((0, "max_positions"), (2, "max_positions"), (3, "token id"), (4, "'%'")):
        assert word in found[index].error
    assert found[1].token_ids
    for bad, word in (
        ({"max_new_tokens": 0}, "max_new_tokens"), ({"top_p": 0.0}, "top_p"), ({"min_p": 2.0}, "min_p"),
        ({"stop": "ab"}, "stop"), ({"stop": ("",)}, "stop"), ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"max_total_tokens": 5}, "max_total_tokens"), ({"seed": -1}, "seed"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=word):
            SamplingParams(**bad)
    with pytest.raises(InputError, match="one for each"):
        list(engine.generate(prompts, [SamplingParams()]))
    with pytest.raises(InputError, match="list"):
        list(engine.generate("abc", SamplingParams()))


@pytest.mark.slow
def test_weights_that_diverged_or_are_of_another_type_leave_nothing_behind() -> None:
    prompts, sampling = make_prompts(20, 9), SamplingParams(temperature=0.0, max_new_tokens=8)
    engine = Engine(CONFIG, jax.tree.map(lambda x: x * jnp.nan, PARAMS), NoEnd(), EngineConfig(2, block_size=8))
    list(engine.generate(prompts, sampling))
    engine.params = PARAMS
    got = {s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)}
    fresh = Engine(CONFIG, PARAMS, NoEnd(), EngineConfig(2, block_size=8))
    assert got == {s.prompt_index: s.token_ids for s in fresh.generate(prompts, sampling)}
    engine.params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    assert len(list(engine.generate(prompts, sampling))) == 2


@pytest.mark.slow
def test_a_small_prefix_cache_gives_the_same_completions() -> None:
    r = np.random.default_rng(2)
    shared = tuple(r.integers(0, 24, 17).tolist())
    prompts = [Prompt(str(i), (*shared[: 8 + i % 9], *r.integers(0, 24, 9).tolist()), "") for i in range(10)]
    sampling = SamplingParams(temperature=0.0, max_new_tokens=6)
    found = []
    for tokens in (0, 8, 4096):
        engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(4, block_size=4, prefix_cache_tokens=tokens))
        found.append({s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)})
    assert found[0] == found[1] == found[2]


def test_stop_strings_end_a_completion_wherever_tokens_are_cut() -> None:
    prompts = make_prompts(5, 9)
    free = run(prompts, n=8, max_new_tokens=40)
    stopped = run(prompts, n=8, max_new_tokens=40, stop=("k", "ab", "ba"))
    ends = 0
    for key, sample in stopped.items():
        text = Letters().decode(free[key].token_ids)
        at = min((text.find(s) + len(s) for s in ("k", "ab", "ba") if s in text), default=len(text))
        assert sample.token_ids == free[key].token_ids[:at]
        if at < len(text) or text[:at].endswith(("k", "ab", "ba")):
            ends += 1
            assert sample.finish_reason == "stop"
            assert sample.text == text[:at]
    assert ends > 4


def test_completions_are_sampled_each_with_their_own_parameters() -> None:
    """Greedy, truncated, penalised and free completions side by side are what they are alone."""
    (prompt,) = make_prompts(7)
    samplings = [
        SamplingParams(temperature=0.0, max_new_tokens=8), SamplingParams(temperature=1.7, max_new_tokens=12, seed=3),
        SamplingParams(top_k=3, max_new_tokens=12), SamplingParams(min_p=0.5, max_new_tokens=12),
        SamplingParams(repetition_penalty=1.8, temperature=0.0, max_new_tokens=12),
        SamplingParams(stop=("k",), max_new_tokens=30),
    ]  # fmt: skip
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(4))
    together = {s.prompt_index: s for s in engine.generate([prompt] * len(samplings), samplings)}
    for i, sampling in enumerate(samplings):
        # A sample's key holds its prompt's number.
        refused = [Prompt("", (), "")] * i
        alone = [s for s in engine.generate([*refused, prompt], sampling) if s.finish_reason != "refused"]
        assert alone[0].token_ids == together[i].token_ids
        np.testing.assert_allclose(alone[0].logprobs, together[i].logprobs, atol=1e-5)


def test_a_repetition_penalty_is_on_prompt_and_completion() -> None:
    (prompt,) = make_prompts(6)
    sample = run([prompt], temperature=0.0, max_new_tokens=12, repetition_penalty=2.5)[0, 0]
    tokens = list(prompt.token_ids)
    for token in sample.token_ids:
        logits = np.asarray(forward(PARAMS, CONFIG, jnp.array([tokens]), jnp.array([len(tokens)])))[0, -1].copy()
        seen = np.isin(np.arange(24), tokens)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / 2.5, logits[seen] * 2.5)
        assert token == int(np.argmax(logits))
        tokens.append(token)


@pytest.mark.slow
def test_a_long_queue_keeps_all_slots_busy_and_reserves_little() -> None:
    """A slot takes the next completion in the next step, and blocks follow the actual lengths."""
    r = np.random.default_rng(0)
    lengths = np.minimum(np.ceil(r.exponential(12, 96)), 90).astype(int)
    lengths[3] = 90
    config = EngineConfig(8, completion_block_size=8, block_size=8, chunk_steps=4)
    engine = Engine(CONFIG, PARAMS, NoEnd(), config)
    samplings = [SamplingParams(max_new_tokens=int(n)) for n in lengths]
    found = {s.prompt_index: s for s in engine.generate(make_prompts(*[6] * 96), samplings)}
    assert [len(found[i].token_ids) for i in range(96)] == lengths.tolist()
    assert engine.stats.tokens == lengths.sum()
    assert engine.stats.occupancy > 0.9
    pool = engine.runner.completion_pool
    assert pool is not None
    assert pool.num_blocks <= 8 * 12 / 2, "half of what the longest completion in every slot would need"


def test_long_prompts_are_prefilled_in_chunks() -> None:
    prompts = make_prompts(61, 5, 40)
    whole = run(prompts, n=2, max_new_tokens=6)
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(16, block_size=8, prefill_tokens=16))
    found = {
        (s.prompt_index, s.index): s.token_ids for s in engine.generate(prompts, SamplingParams(n=2, max_new_tokens=6))
    }
    assert found == {key: s.token_ids for key, s in whole.items()}


def test_short_prompts_are_not_padded_to_a_long_one() -> None:
    """Rows and their padding are bounded together; 15 prompts of 8 tokens beside one of 100 would be 16 x 128."""
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(16, block_size=8, prefill_tokens=128))
    list(engine.generate(make_prompts(*[8] * 7, 100, *[8] * 8), SamplingParams(max_new_tokens=2)))
    assert engine.stats.padded_tokens <= 128 + 2 * 16 * 8


@pytest.mark.usefixtures("on_cpu")
def test_no_step_copies_a_prompt_for_its_samples() -> None:
    """What a chunk holds beside its arguments is less than one layer's keys with a copy of the prompt in every slot."""
    n, p, size = 32, 4096, 64
    config = dataclasses.replace(CONFIG, max_positions=8192)
    engine = Engine(config, PARAMS, Letters(), EngineConfig(n, block_size=size))
    request = GenerationRequest(make_prompts(p, p), [SamplingParams(n=16, max_new_tokens=16)] * 2, 0, None)
    call, runner = Scheduler(engine.runner, engine.vocabulary, request, RolloutStats()), engine.runner
    call.queue.admit(n)
    assert call._has_room(None)
    program = decode_chunk.lower(
        call.queue.weights, call.chunk_config, runner.prompt_pool, call.queue.prompt_slots(),
        DecodeState(runner.completion_pool, call.slots), call.block_map(), call.queue.request_ring(), call.stops,
    )  # fmt: skip
    copies = n * p * CONFIG.n_kv_heads * CONFIG.head_dim * 4
    assert program.compile().memory_analysis().temp_size_in_bytes < copies


def test_a_prompt_stands_once_for_all_its_samples() -> None:
    engine = Engine(CONFIG, PARAMS, NoEnd(), EngineConfig(16, block_size=8))
    list(engine.generate(make_prompts(16), SamplingParams(n=16, max_new_tokens=4)))
    cache = engine.runner.prefix_cache
    assert cache.num_blocks == len(cache.free_blocks), "a block was lost"
    assert len(cache.cached) == 1, "the first of its two blocks is cached, the one with its last token is not"
    assert engine.stats.padded_tokens == 16


@pytest.mark.parametrize("padded_to", [0, 32])
def test_where_one_program_serves_all_a_call_of_fewer_prompts_keeps_the_pool(padded_to: int) -> None:
    engine = Engine(CONFIG, PARAMS, NoEnd(), EngineConfig(8, block_size=8, max_prompt_bucket=padded_to))
    blocks, found = [], []
    for count in (8, 2):
        samples = engine.generate(make_prompts(*[20] * count), SamplingParams(temperature=0.0, max_new_tokens=4))
        found.append({sample.prompt_index: sample.token_ids for sample in samples})
        pool = engine.runner.prompt_pool
        assert pool is not None
        blocks.append(pool.num_blocks)
    assert (blocks[0] == blocks[1]) == bool(padded_to)
    assert found[1] == {i: found[0][i] for i in range(2)}


def test_a_shared_prefix_is_computed_once_and_nothing_changes() -> None:
    r = np.random.default_rng(5)
    schema = tuple(r.integers(0, 24, 21).tolist())
    prompts = [Prompt(str(i), (*schema, *r.integers(0, 24, 4).tolist()), "") for i in range(6)]
    sampling = SamplingParams(temperature=0.0, max_new_tokens=10)
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(2, block_size=4))
    first = {s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)}
    assert engine.stats.reuse > 0.5
    assert first == {i: s.token_ids for (i, _), s in run(prompts, slots=16, temperature=0.0, max_new_tokens=10).items()}
    again = {s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)}
    assert again == first
    before = engine.stats.reuse
    engine.params = jax.tree.map(lambda x: 1.5 * x, PARAMS)
    other = {s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)}
    assert engine.stats.reuse < before
    fresh = Engine(CONFIG, engine.params, Letters(), EngineConfig(2, block_size=4))
    assert other == {s.prompt_index: s.token_ids for s in fresh.generate(prompts, sampling)}
    assert other != first


def test_a_call_under_way_finishes_with_the_weights_it_began_with() -> None:
    prompts = make_prompts(5, 9, 7, 8)
    sampling = SamplingParams(max_new_tokens=20)
    first = Engine(CONFIG, PARAMS, NoEnd(), EngineConfig(2)).generate(prompts, sampling)
    whole = {s.prompt_index: s.token_ids for s in first}
    engine = Engine(CONFIG, PARAMS, NoEnd(), EngineConfig(2, block_size=4))
    running = engine.generate(prompts, sampling)
    found = [next(running)]
    with pytest.raises(InputError, match="generating"):
        next(engine.generate(prompts, sampling))
    engine.params = jax.tree.map(lambda x: 1.5 * x, PARAMS)
    found += running
    assert {s.prompt_index: s.token_ids for s in found} == whole
    assert not engine.runner.prefix_cache.cached, "what older weights wrote is not cached"
    assert {s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)} != whole


def test_a_caller_that_stops_early_leaves_a_working_engine() -> None:
    prompts = make_prompts(5, 9, 7)
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(4))
    running = engine.generate(prompts, SamplingParams(n=2, max_new_tokens=12))
    next(running)
    running.close()
    again = {
        (s.prompt_index, s.index): s.token_ids for s in engine.generate(prompts, SamplingParams(n=2, max_new_tokens=12))
    }
    expected = run(prompts, n=2, max_new_tokens=12)
    assert again == {key: s.token_ids for key, s in expected.items()}


def test_no_more_programs_are_compiled_than_there_are_shapes() -> None:
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(4, block_size=16))
    sampling = SamplingParams(n=2, max_new_tokens=12)
    list(engine.generate(make_prompts(9, 11, 14, 9), sampling))
    before = decode_chunk._cache_size(), prefill_chunk._cache_size()
    for step in range(3):
        list(engine.generate(make_prompts(8, 15, 10, 12), sampling, step))
    assert (decode_chunk._cache_size(), prefill_chunk._cache_size()) == before


@pytest.mark.slow
def test_fixed_shapes_compile_one_program_of_each_kind_and_sample_the_same() -> None:
    sampling: dict[str, Any] = {"n": 2, "max_new_tokens": 30}
    calls = [make_prompts(9, 5, 9, 8, 7), make_prompts(40, 3, 17, 20, 9), make_prompts(70, 41, 61, 2, 66)]
    usual = [run(prompts, 4, step, **sampling) for step, prompts in enumerate(calls)]
    programs = decode_chunk, prefill_chunk, copy_blocks
    for program in programs:
        program.clear_cache()
    config = EngineConfig(4, block_size=8, prefill_tokens=192, max_prompt_bucket=70)
    engine = Engine(CONFIG, PARAMS, Letters(), config)
    sizes = set()
    for step, prompts in enumerate(calls):
        samples = engine.generate(prompts, SamplingParams(**sampling), step)
        found = {(s.prompt_index, s.index): s.token_ids for s in samples}
        assert found == {key: s.token_ids for key, s in usual[step].items()}
        pools = engine.runner.prompt_pool, engine.runner.completion_pool
        sizes.add(tuple(pool and pool.num_blocks for pool in pools))
    assert [program._cache_size() for program in programs[:2]] == [1, 1]
    assert copy_blocks._cache_size() <= 2, "there and back"
    assert len(sizes) == 1
