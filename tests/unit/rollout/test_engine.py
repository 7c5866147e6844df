"""The engine on a small random model: what it draws, when it stops, and what must not change its tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, forward, init_params
from jaxrl_sql.rollout import Engine, Sample, SamplingParams
from jaxrl_sql.rollout.decode import copy_pages, decode_chunk, prefill_lanes
from jaxrl_sql.rollout.scheduler import Call
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


def run(prompts: list[Prompt], slots: int = 16, step: int = 0, **how: Any) -> dict[tuple[int, int], Sample]:
    engine = Engine(CONFIG, PARAMS, Letters(), slots)
    samples = list(engine.generate(prompts, SamplingParams(**how), step))
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
        gap = np.array(sample.behavior_logprobs) - picked
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


def test_bad_requests_are_refused_in_words_and_the_others_go_on() -> None:
    prompts = [*make_prompts(120, 5), Prompt("empty", (), ""), Prompt("odd", (1, 99), "")]
    hows = [
        SamplingParams(max_new_tokens=20),
        SamplingParams(max_new_tokens=4),
        SamplingParams(),
        SamplingParams(max_new_tokens=4),
    ]
    engine = Engine(CONFIG, PARAMS, Letters(), 4)
    hows.append(SamplingParams(stop=("ab", "%"), max_new_tokens=4))
    found = {s.prompt_index: s for s in engine.generate([*prompts, prompts[1]], hows)}
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


def test_weights_that_diverged_or_are_of_another_type_leave_nothing_behind() -> None:
    prompts, how = make_prompts(20, 9), SamplingParams(temperature=0.0, max_new_tokens=8)
    engine = Engine(CONFIG, jax.tree.map(lambda x: x * jnp.nan, PARAMS), NoEnd(), 2, page_size=8)
    list(engine.generate(prompts, how))
    engine.params = PARAMS
    got = {s.prompt_index: s.token_ids for s in engine.generate(prompts, how)}
    fresh = Engine(CONFIG, PARAMS, NoEnd(), 2, page_size=8)
    assert got == {s.prompt_index: s.token_ids for s in fresh.generate(prompts, how)}
    engine.params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), PARAMS)
    assert len(list(engine.generate(prompts, how))) == 2


def test_little_room_for_what_is_kept_gives_the_same_answers() -> None:
    r = np.random.default_rng(2)
    shared = tuple(r.integers(0, 24, 17).tolist())
    prompts = [Prompt(str(i), (*shared[: 8 + i % 9], *r.integers(0, 24, 9).tolist()), "") for i in range(10)]
    how = SamplingParams(temperature=0.0, max_new_tokens=6)
    found = []
    for kept in (0, 8, 4096):
        engine = Engine(CONFIG, PARAMS, Letters(), 4, page_size=4, kept_tokens=kept)
        found.append({s.prompt_index: s.token_ids for s in engine.generate(prompts, how)})
    assert found[0] == found[1] == found[2]


def test_stop_strings_end_an_answer_wherever_tokens_are_cut() -> None:
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


def test_rows_draw_each_in_their_own_way() -> None:
    """Greedy, truncated, penalised and free answers side by side are what they are alone."""
    (prompt,) = make_prompts(7)
    hows = [
        SamplingParams(temperature=0.0, max_new_tokens=8), SamplingParams(temperature=1.7, max_new_tokens=12, seed=3),
        SamplingParams(top_k=3, max_new_tokens=12), SamplingParams(min_p=0.5, max_new_tokens=12),
        SamplingParams(repetition_penalty=1.8, temperature=0.0, max_new_tokens=12),
        SamplingParams(stop=("k",), max_new_tokens=30),
    ]  # fmt: skip
    engine = Engine(CONFIG, PARAMS, Letters(), 4)
    together = {s.prompt_index: s for s in engine.generate([prompt] * len(hows), hows)}
    for i, how in enumerate(hows):
        # A sample's key holds its prompt's number.
        refused = [Prompt("", (), "")] * i
        alone = [s for s in engine.generate([*refused, prompt], how) if s.finish_reason != "refused"]
        assert alone[0].token_ids == together[i].token_ids
        np.testing.assert_allclose(alone[0].logprobs, together[i].logprobs, atol=1e-5)


def test_a_repetition_penalty_is_on_prompt_and_answer() -> None:
    (prompt,) = make_prompts(6)
    sample = run([prompt], temperature=0.0, max_new_tokens=12, repetition_penalty=2.5)[0, 0]
    tokens = list(prompt.token_ids)
    for token in sample.token_ids:
        logits = np.asarray(forward(PARAMS, CONFIG, jnp.array([tokens]), jnp.array([len(tokens)])))[0, -1].copy()
        seen = np.isin(np.arange(24), tokens)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / 2.5, logits[seen] * 2.5)
        assert token == int(np.argmax(logits))
        tokens.append(token)


def test_a_long_queue_keeps_all_rows_busy_and_reserves_little() -> None:
    """Rows go on with the next answer in the next step, and pages follow the lengths there are."""
    r = np.random.default_rng(0)
    lengths = np.minimum(np.ceil(r.exponential(12, 96)), 90).astype(int)
    lengths[3] = 90
    engine = Engine(CONFIG, PARAMS, NoEnd(), 8, row_page_size=8, page_size=8, chunk=4)
    hows = [SamplingParams(max_new_tokens=int(n)) for n in lengths]
    found = {s.prompt_index: s for s in engine.generate(make_prompts(*[6] * 96), hows)}
    assert [len(found[i].token_ids) for i in range(96)] == lengths.tolist()
    assert engine.stats.tokens == lengths.sum()
    assert engine.stats.occupancy > 0.9
    assert engine.own is not None
    assert engine.own.pages <= 8 * 12 / 2, "half of what the longest answer in every row would need"


def test_long_prompts_are_run_in_stretches() -> None:
    prompts = make_prompts(61, 5, 40)
    whole = run(prompts, n=2, max_new_tokens=6)
    engine = Engine(CONFIG, PARAMS, Letters(), 16, page_size=8, prefill_tokens=16)
    found = {
        (s.prompt_index, s.index): s.token_ids for s in engine.generate(prompts, SamplingParams(n=2, max_new_tokens=6))
    }
    assert found == {key: s.token_ids for key, s in whole.items()}


def test_no_step_copies_a_prompt_for_its_samples() -> None:
    """What a chunk holds beside its arguments is less than one layer's keys of the prompts, were they a row's own."""
    n, p, size = 32, 4096, 64
    engine = Engine(dataclasses.replace(CONFIG, max_positions=8192), PARAMS, Letters(), n, page_size=size)
    call = Call(engine, make_prompts(p, p), [SamplingParams(n=16, max_new_tokens=16)] * 2, 0, None)
    call.intake.admit(n)
    program = decode_chunk.lower(
        PARAMS, engine.config, engine.shared, engine.own, call.intake.device_lanes(), call._cover(), call.rows,
        call.intake.ring, np.int32(n), call.stop_ids, call.automata, call.features, 4,
    )  # fmt: skip
    copies = n * p * CONFIG.n_kv_heads * CONFIG.head_dim * 4
    assert program.compile().memory_analysis().temp_size_in_bytes < copies


def test_a_prompt_stands_once_for_all_its_samples() -> None:
    engine = Engine(CONFIG, PARAMS, NoEnd(), 16, page_size=8)
    list(engine.generate(make_prompts(16), SamplingParams(n=16, max_new_tokens=4)))
    assert engine.prompts.total == len(engine.prompts.free), "a page was lost"
    assert len(engine.prompts.known) == 1, "the first of its two pages is kept, the one with its last token is not"
    assert engine.stats.padded_tokens == 16


def test_what_prompts_share_is_computed_once_and_nothing_changes() -> None:
    r = np.random.default_rng(5)
    schema = tuple(r.integers(0, 24, 21).tolist())
    prompts = [Prompt(str(i), (*schema, *r.integers(0, 24, 4).tolist()), "") for i in range(6)]
    how = SamplingParams(temperature=0.0, max_new_tokens=10)
    engine = Engine(CONFIG, PARAMS, Letters(), 2, page_size=4)
    first = {s.prompt_index: s.token_ids for s in engine.generate(prompts, how)}
    assert engine.stats.reuse > 0.5
    assert first == {i: s.token_ids for (i, _), s in run(prompts, slots=16, temperature=0.0, max_new_tokens=10).items()}
    again = {s.prompt_index: s.token_ids for s in engine.generate(prompts, how)}
    assert again == first
    before = engine.stats.reuse
    engine.params = jax.tree.map(lambda x: 1.5 * x, PARAMS)
    other = {s.prompt_index: s.token_ids for s in engine.generate(prompts, how)}
    assert engine.stats.reuse < before
    fresh = Engine(CONFIG, engine.params, Letters(), 2, page_size=4)
    assert other == {s.prompt_index: s.token_ids for s in fresh.generate(prompts, how)}
    assert other != first


def test_new_weights_finish_or_drop_what_is_in_flight() -> None:
    prompts = make_prompts(5, 9, 7, 8)
    how = SamplingParams(max_new_tokens=20)
    whole = {s.prompt_index: s.token_ids for s in Engine(CONFIG, PARAMS, NoEnd(), 2).generate(prompts, how)}
    other = jax.tree.map(lambda x: 1.5 * x, PARAMS)
    engine = Engine(CONFIG, PARAMS, NoEnd(), 2)
    running = engine.generate(prompts, how)
    got = {next(running).prompt_index}
    engine.update(other, in_flight="finish")
    rest = {s.prompt_index: s.token_ids for s in running}
    assert {**rest} == {i: whole[i] for i in rest}
    assert got | set(rest) == {0, 1, 2, 3}
    running = engine.generate(prompts, how)
    next(running)
    with pytest.raises(InputError, match="generating"):
        next(engine.generate(prompts, how))
    engine.update(PARAMS, in_flight="drop")
    assert len(list(running)) < 3
    assert {s.prompt_index: s.token_ids for s in engine.generate(prompts, how)} == whole


def test_a_reader_that_stops_early_leaves_a_working_engine() -> None:
    prompts = make_prompts(5, 9, 7)
    engine = Engine(CONFIG, PARAMS, Letters(), 4)
    running = engine.generate(prompts, SamplingParams(n=2, max_new_tokens=12))
    next(running)
    running.close()
    again = {
        (s.prompt_index, s.index): s.token_ids for s in engine.generate(prompts, SamplingParams(n=2, max_new_tokens=12))
    }
    expected = run(prompts, n=2, max_new_tokens=12)
    assert again == {key: s.token_ids for key, s in expected.items()}


def test_no_more_programs_are_compiled_than_there_are_shapes() -> None:
    engine = Engine(CONFIG, PARAMS, Letters(), 4, page_size=16)
    how = SamplingParams(n=2, max_new_tokens=12)
    list(engine.generate(make_prompts(9, 11, 14, 9), how))
    before = decode_chunk._cache_size(), prefill_lanes._cache_size()
    for step in range(3):
        list(engine.generate(make_prompts(8, 15, 10, 12), how, step))
    assert (decode_chunk._cache_size(), prefill_lanes._cache_size()) == before


def test_an_engine_made_for_the_widest_compiles_one_program_of_each_kind_and_draws_the_same() -> None:
    how = {"n": 2, "max_new_tokens": 30}
    calls = [make_prompts(9, 5, 9, 8, 7), make_prompts(40, 3, 17, 20, 9), make_prompts(70, 41, 61, 2, 66)]
    usual = [run(prompts, 4, step, **how) for step, prompts in enumerate(calls)]
    programs = decode_chunk, prefill_lanes, copy_pages
    for program in programs:
        program.clear_cache()
    engine = Engine(CONFIG, PARAMS, Letters(), 4, page_size=8, prefill_tokens=192, max_prompt_bucket=70)
    sizes = set()
    for step, prompts in enumerate(calls):
        samples = engine.generate(prompts, SamplingParams(**how), step)
        found = {(s.prompt_index, s.index): s.token_ids for s in samples}
        assert found == {key: s.token_ids for key, s in usual[step].items()}
        sizes.add((engine.shared and engine.shared.pages, engine.own and engine.own.pages))
    assert [program._cache_size() for program in programs[:2]] == [1, 1]
    assert copy_pages._cache_size() <= 2, "there and back"
    assert len(sizes) == 1
