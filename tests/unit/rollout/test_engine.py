"""The engine on a small random model: its samples, its stop conditions, and invariance of its tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.batch import GroupBatch, Segment, pad_tokens
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.rollout import Engine, EngineConfig, NotFiniteError, Sample, SamplingParams, decode
from jaxrl_sql.rollout.call import EngineCall
from jaxrl_sql.rollout.decode import copy_blocks, decode_chunk, prefill_chunk
from jaxrl_sql.rollout.sampling import GenerationRequest
from jaxrl_sql.rollout.scheduler import plan
from jaxrl_sql.types import InputError, Prompt

CONFIG = ModelConfig("qwen3", 24, 32, 2, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)
PARAMS = init_params(CONFIG, jax.random.key(3))
END = 5
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=4)


class Letters:
    """A tokenizer of 24 letters; one of them ends an answer."""

    eos_token = "f"  # noqa: S105 (a letter, no password)

    def get_vocab(self) -> dict[str, int]:
        return {chr(97 + i): i for i in range(24)}

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(chr(97 + i) for i in ids)


class NoEnd(Letters):
    """The same tokenizer with an end token that the model never emits."""

    eos_token = "end"  # noqa: S105 (a token's name)

    def get_vocab(self) -> dict[str, int]:
        return {**super().get_vocab(), "end": 24}


def make_prompts(*lengths: int) -> list[Prompt]:
    r = np.random.default_rng(0)
    return [Prompt(f"p{i}", tuple(r.integers(0, 24, n).tolist()), "") for i, n in enumerate(lengths)]


def run(prompts: list[Prompt], slots: int = 8, step: int = 0, **sampling: Any) -> dict[tuple[int, int], Sample]:
    """Sample four completions per prompt; with a `max_new_tokens` of 32 or less, tests share compiled programs."""
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(slots))
    samples = list(engine.generate(prompts, SamplingParams(n=4, **sampling), step))
    result = {(s.prompt_index, s.index): s for s in samples}
    assert len(result) == len(samples)
    return result


def test_every_prompt_gets_each_sample_once() -> None:
    result = run(make_prompts(5, 17, 9, 3, 30), slots=3, max_new_tokens=20)
    assert sorted(result) == [(i, g) for i in range(5) for g in range(4)]


def test_samples_end_at_the_end_token_or_at_the_limit() -> None:
    for sample in run(make_prompts(5, 9), max_new_tokens=20).values():
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
        pytest.param({"temperature": 1.3}, marks=pytest.mark.nightly),
        {"temperature": 0.7, "top_k": 4},
        pytest.param({"top_p": 0.6}, marks=pytest.mark.nightly),
    ],
)
def test_logprobs_equal_the_models_forward_pass(
    sampling: dict[str, Any], logprobs_of: Callable[..., np.ndarray]
) -> None:
    prompts = make_prompts(5, 12)
    temperature = sampling.get("temperature", 1.0)
    for (i, _), sample in run(prompts, max_new_tokens=12, **sampling).items():
        full = logprobs_of(PARAMS, CONFIG, prompts[i].token_ids, sample.token_ids, temperature)
        picked = full[np.arange(len(sample.token_ids)), list(sample.token_ids)]
        np.testing.assert_allclose(sample.logprobs, picked, atol=1e-4)
        gap = np.array(sample.behavior_logprobs) - picked
        if len(sampling) == 1 and temperature != 1.0:
            np.testing.assert_allclose(gap, 0, atol=1e-4)
        else:
            assert (gap > -1e-4).all()
        if "top_k" in sampling:
            rank = (full > picked[:, None]).sum(axis=-1)
            assert (rank < 4).all()


def test_greedy_is_the_argmax_of_the_forward_pass(logits_of: Callable[..., np.ndarray]) -> None:
    (prompt,) = make_prompts(6)
    sample = run([prompt], temperature=0.0, max_new_tokens=10)[0, 0]
    logits = logits_of(PARAMS, CONFIG, (*prompt.token_ids, *sample.token_ids))
    assert list(sample.token_ids) == logits[len(prompt.token_ids) - 1 : -1].argmax(axis=-1).tolist()


def test_samples_do_not_depend_on_the_number_of_slots_or_on_the_batch() -> None:
    prompts = make_prompts(5, 17, 9, 3)
    alone = {}
    for i, _ in enumerate(prompts):
        # An answer's key contains its prompt's number: i one-token prompts precede it here.
        before = [Prompt(f"x{j}", (1,), "") for j in range(i)]
        alone |= {k: s.token_ids for k, s in run([*before, prompts[i]], max_new_tokens=16).items() if k[0] == i}
    for slots in (3, 8):
        together = run(prompts, slots=slots, max_new_tokens=16)
        assert {key: sample.token_ids for key, sample in together.items()} == alone


def test_steps_and_seeds_sample_differently_and_replay_exactly() -> None:
    prompts = make_prompts(5, 9)
    first = run(prompts, max_new_tokens=16, seed=1, step=7)
    assert first == run(prompts, max_new_tokens=16, seed=1, step=7)
    assert first != run(prompts, max_new_tokens=16, seed=1, step=8)
    assert first != run(prompts, max_new_tokens=16, seed=2, step=7)


def test_invalid_requests_have_an_error_and_later_calls_work() -> None:
    prompts = [*make_prompts(120, 5), Prompt("empty", (), ""), Prompt("odd", (1, 99), "")]
    samplings = [
        SamplingParams(max_new_tokens=20),
        SamplingParams(n=4, max_new_tokens=4),
        SamplingParams(),
        SamplingParams(max_new_tokens=4),
    ]
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(8))
    samplings.append(SamplingParams(stop=("ab", "%"), max_new_tokens=4))
    result = {s.prompt_index: s for s in engine.generate([*prompts, prompts[1]], samplings)}
    assert [result[i].finish_reason == "invalid" for i in range(5)] == [True, False, True, True, True]
    for index, word in ((0, "max_positions"), (2, "empty"), (3, "token id"), (4, "'%'")):
        assert word in result[index].error
    assert result[1].token_ids
    for bad, word in (
        ({"max_new_tokens": 0}, "max_new_tokens"), ({"top_p": 0.0}, "top_p"), ({"min_p": 2.0}, "min_p"),
        ({"stop": "ab"}, "stop"), ({"stop": ("",)}, "stop"), ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"max_total_tokens": 5}, "max_total_tokens"), ({"seed": -1}, "seed"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=word):
            SamplingParams(**bad)
    with pytest.raises(InputError, match="one per prompt"):
        list(engine.generate(prompts, [SamplingParams()]))
    with pytest.raises(InputError, match="list"):
        list(engine.generate("abc", SamplingParams()))


@pytest.mark.nightly
def test_nan_weights_and_a_change_of_dtype_leave_no_state() -> None:
    prompts, sampling = make_prompts(20, 9), SamplingParams(temperature=0.0, max_new_tokens=8)
    engine = Engine(CONFIG, jax.tree.map(lambda x: x * jnp.nan, PARAMS), NoEnd(), EngineConfig(2, block_size=8))
    with pytest.raises(NotFiniteError):
        list(engine.generate(prompts, sampling))
    engine.params = PARAMS
    got = {s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)}
    fresh = Engine(CONFIG, PARAMS, NoEnd(), EngineConfig(2, block_size=8))
    assert got == {s.prompt_index: s.token_ids for s in fresh.generate(prompts, sampling)}
    engine.params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    assert len(list(engine.generate(prompts, sampling))) == 2


@pytest.mark.nightly
def test_small_prefix_cache_gives_the_same_completions() -> None:
    r = np.random.default_rng(2)
    shared = tuple(r.integers(0, 24, 17).tolist())
    prompts = [Prompt(str(i), (*shared[: 8 + i % 9], *r.integers(0, 24, 9).tolist()), "") for i in range(10)]
    sampling = SamplingParams(temperature=0.0, max_new_tokens=6)
    result = []
    for tokens in (0, 8, 4096):
        engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(4, block_size=4, prefix_cache_tokens=tokens))
        result.append({s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)})
    assert result[0] == result[1] == result[2]


def test_stop_strings_end_a_completion_at_any_token_boundary() -> None:
    prompts = make_prompts(5, 9, 7)
    free = run(prompts, max_new_tokens=32)
    stopped = run(prompts, max_new_tokens=32, stop=("k", "ab", "ba"))
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


def test_completions_use_their_own_sampling_parameters() -> None:
    """Greedy, truncated, penalised and unrestricted completions of one batch equal those of separate calls."""
    (prompt,) = make_prompts(7)
    samplings = [
        SamplingParams(n=4, temperature=0.0, max_new_tokens=8),
        SamplingParams(n=4, temperature=1.7, max_new_tokens=12, seed=3),
        SamplingParams(n=4, top_k=3, max_new_tokens=12), SamplingParams(n=4, min_p=0.5, max_new_tokens=12),
        SamplingParams(n=4, repetition_penalty=1.8, temperature=0.0, max_new_tokens=12),
        SamplingParams(n=4, stop=("k", "ab", "ba"), max_new_tokens=30),
    ]  # fmt: skip
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(8))
    together = {(s.prompt_index, s.index): s for s in engine.generate([prompt] * len(samplings), samplings)}
    for i, sampling in enumerate(samplings):
        # A sample's key contains its prompt's number.
        invalid = [Prompt("", (), "")] * i
        alone = [s for s in engine.generate([*invalid, prompt], sampling) if s.finish_reason != "invalid"]
        assert len(alone) == 4
        for sample in alone:
            assert sample.token_ids == together[i, sample.index].token_ids
            np.testing.assert_allclose(sample.logprobs, together[i, sample.index].logprobs, atol=1e-5)


def test_repetition_penalty_applies_to_prompt_and_completion(logits_of: Callable[..., np.ndarray]) -> None:
    (prompt,) = make_prompts(6)
    sample = run([prompt], temperature=0.0, max_new_tokens=12, repetition_penalty=2.5)[0, 0]
    tokens = [*prompt.token_ids, *sample.token_ids]
    rows = logits_of(PARAMS, CONFIG, tokens)
    for at in range(len(prompt.token_ids), len(tokens)):
        logits, seen = rows[at - 1].copy(), np.isin(np.arange(24), tokens[:at])
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / 2.5, logits[seen] * 2.5)
        assert tokens[at] == int(np.argmax(logits))


@pytest.mark.nightly
def test_long_queue_keeps_all_slots_busy_and_reserves_few_blocks() -> None:
    """A free slot takes the next completion in the next step, and blocks follow the actual lengths."""
    r = np.random.default_rng(0)
    lengths = np.minimum(np.ceil(r.exponential(12, 96)), 90).astype(int)
    lengths[3] = 90
    config = EngineConfig(8, completion_block_size=8, block_size=8, chunk_steps=4)
    engine = Engine(CONFIG, PARAMS, NoEnd(), config)
    samplings = [SamplingParams(max_new_tokens=int(n)) for n in lengths]
    result = {s.prompt_index: s for s in engine.generate(make_prompts(*[6] * 96), samplings)}
    assert [len(result[i].token_ids) for i in range(96)] == lengths.tolist()
    assert engine.stats.tokens == lengths.sum()
    assert engine.stats.occupancy > 0.9
    pool = engine.runner.completion_pool
    assert pool is not None
    assert pool.num_blocks <= 8 * 12 / 2, "more than half of the blocks for the longest completion in every slot"


def test_long_prompts_are_prefilled_in_chunks() -> None:
    prompts = make_prompts(61, 5, 40)
    whole = run(prompts, max_new_tokens=6)
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(8, block_size=8, prefill_tokens=16))
    result = {
        (s.prompt_index, s.index): s.token_ids for s in engine.generate(prompts, SamplingParams(n=4, max_new_tokens=6))
    }
    assert result == {key: s.token_ids for key, s in whole.items()}


def begin(engine: Engine, prompts: list[Prompt], **sampling: Any) -> EngineCall:
    return engine.begin(GenerationRequest(prompts, [SamplingParams(**sampling)] * len(prompts), 0, None))


def test_short_prompts_are_not_padded_to_a_long_prompt() -> None:
    """The limit applies to rows times padding; 15 prompts of 8 tokens with one of 100 would be 16 x 128."""
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(16, block_size=8, prefill_tokens=128))
    prompts = make_prompts(*[8] * 7, 100, *[8] * 8)
    call = begin(engine, prompts, max_new_tokens=2, repetition_penalty=1.1)
    call.runner.prepare(plan(call.state, call.events), ())
    assert call.stats.prompt_tokens == 15 * 8 + 100
    assert call.stats.padded_tokens <= 128 + 2 * 16 * 8
    # All tokens of each prompt are marked, for the penalty.
    seen, completions = np.asarray(call.runner.seen), plan(call.state, call.events).after.completions
    assert len(completions) == 16
    for completion in completions.values():
        assert set(np.flatnonzero(seen[completion.prompt_slot])) == set(prompts[completion.prompt].token_ids)


@pytest.mark.usefixtures("on_cpu")
def test_no_step_copies_a_prompt_for_its_samples() -> None:
    """A chunk's temporary memory is less than one layer's keys with a copy of the prompt in every slot."""
    n, p, size = 32, 1024, 64
    config = dataclasses.replace(CONFIG, max_positions=2048)
    engine = Engine(config, PARAMS, Letters(), EngineConfig(n, block_size=size))
    call = begin(engine, make_prompts(p, p), n=16, max_new_tokens=16)
    chunk, device = plan(call.state, call.events), call.runner
    device.prepare(chunk, ())
    assert chunk.launches
    program = decode_chunk.lower(*device.decode_arguments(chunk))
    copies = n * p * CONFIG.n_kv_heads * CONFIG.head_dim * 4
    assert program.compile().memory_analysis().temp_size_in_bytes < copies


def test_prompt_blocks_are_shared_by_all_its_samples() -> None:
    engine = Engine(CONFIG, PARAMS, NoEnd(), EngineConfig(8, block_size=8))
    call = begin(engine, make_prompts(16), n=8, max_new_tokens=4)
    list(call.run())
    cache = plan(call.state, call.events).after.prefixes
    assert cache.num_blocks == len(cache.free_blocks), "a block was lost"
    assert len(cache.cached) == 1, "another number of blocks than the first of two is cached"
    assert engine.stats.padded_tokens == 16


def test_call_after_a_failed_call_has_new_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed program has donated the pools: no later call can read their blocks."""
    engine = Engine(CONFIG, PARAMS, NoEnd(), EngineConfig(8, block_size=8))
    expected = list(engine.generate(make_prompts(16, 20), GREEDY))

    def fails(*arguments: Any) -> None:
        decode_chunk(*arguments)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(decode, "decode_chunk", fails)
        with pytest.raises(MemoryError):
            list(engine.generate(make_prompts(16, 20), GREEDY))
    assert list(engine.generate(make_prompts(16, 20), GREEDY)) == expected


def test_padded_prompts_keep_the_pool_size_for_fewer_prompts() -> None:
    def blocks(padded_to: int, count: int) -> int:
        begin(engines[padded_to], make_prompts(*[20] * count), max_new_tokens=4)
        pool = engines[padded_to].runner.prompt_pool
        assert pool is not None
        return pool.num_blocks

    engines = {
        padded_to: Engine(
            CONFIG, PARAMS, NoEnd(), EngineConfig(8, block_size=8, longest_prompt=padded_to, pads_to_max=padded_to > 0)
        )
        for padded_to in (0, 32)
    }
    assert blocks(0, 8) > blocks(0, 2)
    assert blocks(32, 8) == blocks(32, 2)
    result = [
        {sample.prompt_index: sample.token_ids for sample in engines[32].generate(make_prompts(*[20] * count), GREEDY)}
        for count in (8, 2)
    ]
    assert result[1] == {i: result[0][i] for i in range(2)}


def test_shared_prefix_is_computed_once_with_equal_results() -> None:
    r = np.random.default_rng(5)
    schema = tuple(r.integers(0, 24, 21).tolist())
    prompts = [Prompt(str(i), (*schema, *r.integers(0, 24, 4).tolist()), "") for i in range(6)]
    sampling = SamplingParams(temperature=0.0, max_new_tokens=10)
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(2, block_size=4))
    first = {s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)}
    assert engine.stats.reuse > 0.5
    assert first == {i: s.token_ids for (i, _), s in run(prompts, temperature=0.0, max_new_tokens=10).items()}
    again = {s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)}
    assert again == first
    before = engine.stats.reuse
    engine.params = jax.tree.map(lambda x: 1.5 * x, PARAMS)
    other = {s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)}
    assert engine.stats.reuse < before
    fresh = Engine(CONFIG, engine.params, Letters(), EngineConfig(2, block_size=4))
    assert other == {s.prompt_index: s.token_ids for s in fresh.generate(prompts, sampling)}
    assert other != first


def test_running_call_finishes_with_its_initial_weights() -> None:
    prompts = make_prompts(25, 9, 7, 8)  # the same lengths as in the test above, which compiles the same programs
    sampling = SamplingParams(temperature=0.0, max_new_tokens=20)
    first = Engine(CONFIG, PARAMS, Letters(), EngineConfig(2, block_size=4)).generate(prompts, sampling)
    whole = {s.prompt_index: s.token_ids for s in first}
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(2, block_size=4))
    running = engine.generate(prompts, sampling)
    result = [next(running)]
    with pytest.raises(InputError, match="generating"):
        next(engine.generate(prompts, sampling))
    engine.params = jax.tree.map(lambda x: 1.5 * x, PARAMS)
    result += running
    assert {s.prompt_index: s.token_ids for s in result} == whole
    assert not engine.runner.prefix_cache.cached, "keys of older weights are cached"
    assert {s.prompt_index: s.token_ids for s in engine.generate(prompts, sampling)} != whole


def test_call_closed_early_leaves_a_working_engine() -> None:
    prompts = make_prompts(5, 9, 7)
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(8))
    running = engine.generate(prompts, SamplingParams(n=4, max_new_tokens=12))
    next(running)
    running.close()
    again = {
        (s.prompt_index, s.index): s.token_ids for s in engine.generate(prompts, SamplingParams(n=4, max_new_tokens=12))
    }
    expected = run(prompts, max_new_tokens=12)
    assert again == {key: s.token_ids for key, s in expected.items()}


def test_later_calls_of_known_shapes_compile_no_program() -> None:
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(8))
    sampling = SamplingParams(n=4, max_new_tokens=12)
    list(engine.generate(make_prompts(9, 11, 14, 9), sampling))
    before = decode_chunk._cache_size(), prefill_chunk._cache_size()
    for step in range(3):
        list(engine.generate(make_prompts(8, 15, 10, 12), sampling, step))
    assert (decode_chunk._cache_size(), prefill_chunk._cache_size()) == before


@pytest.mark.nightly
def test_fixed_shapes_compile_one_program_per_kind_and_sample_the_same() -> None:
    sampling: dict[str, Any] = {"max_new_tokens": 30}
    calls = [make_prompts(9, 5, 9, 8, 7), make_prompts(40, 3, 17, 20, 9), make_prompts(70, 41, 61, 2, 66)]
    usual = [run(prompts, 4, step, **sampling) for step, prompts in enumerate(calls)]
    programs = decode_chunk, prefill_chunk, copy_blocks
    for program in programs:
        program.clear_cache()
    config = EngineConfig(4, block_size=8, prefill_tokens=192, longest_prompt=70, pads_to_max=True)
    engine = Engine(CONFIG, PARAMS, Letters(), config)
    sizes = set()
    for step, prompts in enumerate(calls):
        samples = engine.generate(prompts, SamplingParams(n=4, **sampling), step)
        result = {(s.prompt_index, s.index): s.token_ids for s in samples}
        assert result == {key: s.token_ids for key, s in usual[step].items()}
        pools = engine.runner.prompt_pool, engine.runner.completion_pool
        sizes.add(tuple(pool and pool.num_blocks for pool in pools))
    assert [program._cache_size() for program in programs[:2]] == [1, 1]
    assert copy_blocks._cache_size() <= 2, "more than one program per direction"
    assert len(sizes) == 1


class Gaps(Letters):
    """The same tokenizer with gaps between its ids, for a model with padding rows."""

    def get_vocab(self) -> dict[str, int]:
        return {text: i for text, i in super().get_vocab().items() if i < 18 and i not in (0, 7, 8)}


MISSING = ((0, 1), (7, 9), (18, 24))


def with_likely_ids(*ids: int) -> Any:
    """Return parameters that make these ids by far the most likely."""
    embed = np.array(PARAMS["embed"])
    embed[list(ids)] *= 20.0
    return {**PARAMS, "embed": jnp.asarray(embed)}


def test_likely_ids_with_a_token_are_sampled() -> None:
    engine = Engine(CONFIG, with_likely_ids(0, 8, 20), Letters(), EngineConfig(8))
    samples = list(engine.generate(make_prompts(6, 11), SamplingParams(n=4, max_new_tokens=20, temperature=3.0)))
    assert any({0, 8, 20} & set(sample.token_ids) for sample in samples)


@pytest.mark.parametrize(
    "options", [{"temperature": 3.0}, {"temperature": 0.0}, {"top_k": 30, "repetition_penalty": 0.7}]
)
def test_ids_without_a_token_are_masked_in_engine_and_trainer(options: dict[str, Any]) -> None:
    """The logits of such ids are by far the largest; the importance ratio of the first step is 1."""
    params = with_likely_ids(0, 8, 20)
    prompts, temperature = make_prompts(6, 11), options.get("temperature", 1.0)
    engine = Engine(CONFIG, params, Gaps(), EngineConfig(8))
    samples = list(engine.generate(prompts, SamplingParams(n=4, max_new_tokens=20, **options)))
    known = set(Gaps().get_vocab().values())
    assert all(set(sample.token_ids) <= known for sample in samples)
    policy = jax.jit(make_policy(CONFIG, temperature, missing=MISSING))
    for sample in samples:
        prompt, ids = prompts[sample.prompt_index].token_ids, sample.token_ids
        batch = GroupBatch(
            shared=(Segment(pad_tokens([prompt], 16)[0], np.array([len(prompt)])),),
            completion=pad_tokens([ids], 20)[0][None],
            completion_len=np.array([[len(ids)]]),
            loss_mask=np.ones((1, 1, 20), bool),
            behavior_logprobs=np.zeros((1, 1, 20), np.float32),
            rollout_logprobs=np.zeros((1, 1, 20), np.float32),
            reward=np.zeros((1, 1)),
            weight=np.ones((1, 1)),
            truncated=np.zeros((1, 1), bool),
        )
        scored = policy(params, None, batch)
        np.testing.assert_allclose(scored.logprob[0, 0, : len(ids)], sample.logprobs, atol=1e-4)
        assert np.isfinite(scored.entropy).all()


@pytest.mark.parametrize("scale", [jnp.nan, pytest.param(1e38, marks=pytest.mark.nightly)])
def test_non_finite_probabilities_end_a_call_and_leave_no_state(scale: float) -> None:
    """Use NaN weights, and finite weights with non-finite products."""
    params = {**PARAMS, "final_norm": PARAMS["final_norm"] * scale, "embed": PARAMS["embed"] * 1e9}
    engine = Engine(CONFIG, params, NoEnd(), EngineConfig(2, block_size=8))
    with pytest.raises(NotFiniteError, match="are not finite numbers: the weights are broken"):
        list(engine.generate(make_prompts(9), SamplingParams(temperature=0.0, max_new_tokens=4)))
    assert engine.runner.prompt_pool is None
