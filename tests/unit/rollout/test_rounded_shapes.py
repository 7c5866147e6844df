"""Calls that differ in prompts, `n` and stop strings share programs, and rounding up changes no bit of a sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.rollout import Engine, EngineConfig, Sample, SamplingParams
from jaxrl_sql.rollout.decode import copy_blocks, decode_chunk, prefill_chunk
from jaxrl_sql.types import Prompt

CONFIG = ModelConfig("qwen3", 24, 32, 1, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)
PARAMS = init_params(CONFIG, jax.random.key(3))


class Letters:
    """A tokenizer of 24 letters; the model never emits its end token."""

    eos_token = "end"  # noqa: S105 (a token's name)

    def get_vocab(self) -> dict[str, int]:
        return {**{chr(97 + i): i for i in range(24)}, "end": 24}

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(chr(97 + i) for i in ids)


def make_engine(rounds_groups: bool = True) -> Engine:
    return Engine(CONFIG, PARAMS, Letters(), EngineConfig(8, rounds_groups=rounds_groups))


def samples_of(engine: Engine, **sampling: Any) -> list[Sample]:
    samples = engine.generate([Prompt("p", (3, 7, 1), "")], SamplingParams(**{"max_new_tokens": 12, **sampling}))
    return sorted(samples, key=lambda sample: sample.index)


def count_programs(engine: Engine, samplings: Iterable[dict[str, Any]]) -> int:
    """Return the number of decode programs that an engine's calls compile."""
    before = decode_chunk._cache_size()
    for sampling in samplings:
        assert samples_of(engine, **sampling)
    return decode_chunk._cache_size() - before


@pytest.mark.slow
def test_numbers_of_samples_are_rounded_up_to_powers_of_two() -> None:
    engine = make_engine()
    count_programs(engine, ({"n": n} for n in (1, 2, 4, 8)))
    assert count_programs(engine, ({"n": n} for n in (3, 5, 6, 7))) == 0


def test_twelve_lengths_of_stop_strings_share_a_program() -> None:
    engine = make_engine()
    assert count_programs(engine, [{}, {"stop": ("x",)}]) >= 1
    assert count_programs(engine, ({"stop": ("x" * length,)} for length in range(1, 13))) == 0


@pytest.mark.parametrize("n", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_rounded_group_samples_are_bit_equal(n: int) -> None:
    usual = samples_of(make_engine(rounds_groups=False), n=n, seed=5)
    assert samples_of(make_engine(), n=n, seed=5) == usual
    assert len({sample.token_ids for sample in usual}) == n


@pytest.mark.slow
def test_absent_stop_strings_change_no_bit() -> None:
    engine = make_engine()
    usual = samples_of(engine, n=2, seed=5)
    assert not any("xxxx" in sample.text for sample in usual)
    assert samples_of(engine, n=2, seed=5, stop=("xxxx",)) == usual


def test_calls_of_a_run_share_programs_though_prompts_and_groups_differ() -> None:
    """The pools follow from the run's prompts: at most three decode programs and two copies per size of the cache."""
    r = np.random.default_rng(0)
    lengths = [(9, 5, 40), (40, 3, 17, 20, 9, 12, 30, 8), (61, 41, 60, 2, 33), (7,)]
    calls = [[Prompt(str(n), tuple(r.integers(0, 24, n).tolist()), "") for n in call] for call in lengths]
    config = EngineConfig(4, block_size=8, prefill_tokens=64, completion_block_size=8, prefix_cache_tokens=256)
    of_run = config.for_calls([n for call in lengths for n in call], groups=8, samples=2)
    answers = []
    for engine_config in (config, of_run):
        engine = Engine(CONFIG, PARAMS, Letters(), engine_config)
        programs = decode_chunk, prefill_chunk, copy_blocks
        before = [program._cache_size() for program in programs]
        sampling = SamplingParams(n=2, max_new_tokens=12)
        answers.append([{(s.prompt_index, s.index): s for s in engine.generate(call, sampling)} for call in calls])
        decode, prefill, copies = (
            program._cache_size() - count for program, count in zip(programs, before, strict=True)
        )
    assert answers[0] == answers[1]
    assert decode <= 3
    assert copies <= 4
    assert prefill <= 2 * 6, "more than two programs per shape"


def test_prefill_has_few_shapes_and_little_padding() -> None:
    config = EngineConfig(64, block_size=64, prefill_tokens=1024)
    shapes = set()
    for tokens in range(1, 1500, 7):
        for rows in range(1, 40):
            counts, width = config.prefill_shapes(rows, tokens, 64)
            assert sum(counts) >= rows > sum(counts[:-1])
            assert sum(counts) <= 4 * rows / 3
            assert width >= min(tokens, 1024)
            if config.fits_prefill(rows, tokens, 64):
                shapes |= {(count, width) for count in counts}
    assert shapes == {(1, 64), (4, 64), (16, 64), (1, 128), (4, 128), (1, 256), (4, 256), (1, 512), (1, 1024)}
