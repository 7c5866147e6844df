"""Calls that differ in `n` and in stop strings share decode programs, and rounding up changes no bit of a sample."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.rollout import Engine, EngineConfig, Sample, SamplingParams
from jaxrl_sql.rollout.decode import decode_chunk
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
